"""``[judge] folder``: a judge that ``adjudge train`` made, or a panel of them, judges a run."""

from pathlib import Path
from typing import Any

import pytest
from lab.tests.unit.helpers.judge_cards import write_card
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind
from adjudge.graders.llm.trained_judge_card import SPEC_FILE
from adjudge.rewards.formulas import AggregateTerm, aggregate
from adjudge.rewards.spec import RewardSettings, RewardSpec
from adjudge.types import GraderError, GraderResult, GraderScore
from adjudge_lab.judge_training.calibration import fit_normalisation
from adjudge_lab.rl.plan import plan_run
from adjudge_lab.rl.rewards import (
    build_reward_spec,
    build_service_spec,
    find_judge_key_env,
    name_judge,
)
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file

ONE = """
[[graders]]
name = "mine"
type = "adjudge.graders.llm.trained_judge:RankedScalar"
[judges.main]
type = "local"
model = "."
task = "score"
"""
TWO = """
[[graders]]
name = "a"
type = "llm"
template = "{response}"
judge = "x"
[[graders]]
name = "b"
type = "llm"
template = "{response}"
judge = ["x", "y"]
weight = 3.0
[judges.x]
type = "openai"
model = "one"
base_url = "http://h/v1"
[judges.y]
type = "openai"
model = "other"
base_url = "http://h/v1"
"""


def trained(folder: Path, label: str = "mine", spec: str = ONE) -> Path:
    """A folder with all of a scalar judge but the model."""
    write_card(folder, label=label, normalisation=fit_normalisation([0.0, 1.0]))
    (folder / SPEC_FILE).write_text(spec)
    return folder


def read(beside: Path, folder: str | list[str], **judge: Any) -> RunFile:
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [{"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0}],
        "judge": {"folder": folder, "combine_mode": "replace", **judge},
        "services": {} if isinstance(folder, list) else {"judge_url": "serve"},
        "sentinel": {"gold": "gold"},
    }
    return resolve_run_file(data, where="run.toml", folder=beside)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    for name in ("mine", "a", "b"):
        trained(tmp_path / "judges" / name)
    return tmp_path


def test_it_is_asked_as_its_own_spec_says_wherever_that_is_read(beside: Path) -> None:
    run = read(beside, "judges/mine")
    spec = build_reward_spec(run)
    assert [one.name for one in spec.graders] == ["mine", "gold"]
    judge: Any = spec.judges["main"]
    assert judge.model == str(beside / "judges" / "mine")
    assert spec.reward.combine_mode == "replace"
    served = build_service_spec(run)
    assert [one["name"] for one in served["graders"]] == ["mine"]
    assert served["judges"]["main"]["model"] == str(beside / "judges" / "mine")
    asked = build_reward_spec(run, service_url="http://127.0.0.1:1")
    assert [one.name for one in asked.graders] == ["mine", "gold"]
    assert not asked.judges
    assert find_judge_key_env(run) is None
    assert name_judge(run) == "mine"


def test_a_dry_run_says_who_judges(beside: Path) -> None:
    found = plan_run(read(beside, "judges/mine"))
    assert found.judge == "judges/mine (trained), behind adjudge serve"
    assert [one.calls for one in found.graders if one.asks_judge] == [1.0]
    assert not [one for one in found.warnings if "price" in one or "api_key" in one]


def test_a_folder_that_is_not_there_yet_is_missed_when_it_is_asked_for(tmp_path: Path) -> None:
    run = read(tmp_path, "judges/mine")
    with refuses("judge.folder"):
        build_reward_spec(run)
    (trained(tmp_path / "judges" / "mine") / SPEC_FILE).unlink()
    with refuses("judge.folder.judge.folder"):
        read(tmp_path, "judges/mine")


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ({"model": "m"}, "judge.model: the judge's folder sets this value"),
        ({"base_url": "mock"}, "judge.base_url: the judge's folder sets this value"),
        ({"rubric_id": "r@v1"}, "judge.rubric_id: the judge's folder sets this value"),
        ({"event_weight": 1.0}, "judge.event_weight: must be 0"),
    ],
)
def test_what_the_folder_says_is_not_said_again(
    beside: Path, judge: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(beside, "judges/mine", **judge)


# A panel.


def test_each_is_asked_as_its_own_spec_says_under_its_folders_name(beside: Path) -> None:
    run = read(beside, ["judges/a", "judges/b"], aggregate="min")
    spec = build_reward_spec(run)
    assert [(one.name, one.judge) for one in spec.graders] == [
        ("a", "a"), ("b", "b"), ("gold", None),
    ]  # fmt: skip
    assert {name: one.model_dump()["model"] for name, one in spec.judges.items()} == {
        name: str(beside / "judges" / name) for name in "ab"
    }
    assert spec.reward.aggregate == "min"
    assert name_judge(run) == "a, b"
    assert find_judge_key_env(run) is None
    found = plan_run(run)
    assert found.judge == "judges/a, judges/b (trained)"
    assert [one.calls for one in found.graders] == [1.0, 1.0, 0.0]


def test_a_member_of_several_graders_and_judges_keeps_who_asks_whom(beside: Path) -> None:
    trained(beside / "judges" / "7 of us", spec=TWO)
    spec = build_reward_spec(read(beside, ["judges/a", "judges/7 of us"]))
    assert [(one.name, one.judge, one.weight) for one in spec.graders[:3]] == [
        ("a", "a", 1.0),
        ("judge_7_of_us.a", "judge_7_of_us.x", 1.0),
        ("judge_7_of_us.b", ["judge_7_of_us.x", "judge_7_of_us.y"], 3.0),
    ]
    assert list(spec.judges) == ["a", "judge_7_of_us.x", "judge_7_of_us.y"]


def test_folders_of_one_name_are_told_apart(beside: Path) -> None:
    trained(beside / "others" / "a")
    spec = build_reward_spec(read(beside, ["judges/a", "others/a"]))
    assert [one.name for one in spec.graders] == ["a", "a_2", "gold"]
    assert [one.model_dump()["model"] for one in spec.judges.values()] == [
        str(beside / "judges" / "a"), str(beside / "others" / "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("folders", [[], ["judges/a", "judges/a"], ["judges/a", 1]])
def test_a_list_that_is_no_panel_is_refused(beside: Path, folders: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"judge\.folder"):
        read(beside, folders)


def test_one_that_is_not_there_yet_is_missed_when_it_is_asked_for(beside: Path) -> None:
    run = read(beside, ["judges/a", "judges/later"])
    assert run.lacks_trained_judge
    with refuses("judge.folder"):
        build_reward_spec(run)


def test_a_member_that_is_missing_leaves_the_reward_missing(beside: Path) -> None:
    """The others are another ruler: nothing is spread over them."""
    for method in ("weighted_mean", "min"):
        spec = build_reward_spec(read(beside, ["judges/a", "judges/b"], aggregate=method))
        said: dict[str, GraderResult] = {
            "a": GraderScore("a", 0.5, score_range=(0.0, 1.0)),
            "b": GraderError("b", ErrorKind.TIMEOUT, "late"),
        }
        terms = [AggregateTerm(one.name, one.weight_at(0)) for one in spec.graders]
        found = aggregate(said, terms, spec.reward)
        assert isinstance(found, GraderError)
        assert found.kind is ErrorKind.TIMEOUT


def test_a_service_combines_them_by_the_same_rule(beside: Path) -> None:
    run = read(beside, ["judges/a", "judges/b"], aggregate="min")
    served = RewardSpec.from_dict(build_service_spec(run))
    assert served.reward.aggregate == "min"
    asked = build_reward_spec(run, service_url="http://127.0.0.1:1")
    assert [(one.name, one.weight) for one in asked.graders] == [("judged", 2.0), ("gold", 0.0)]
    assert asked.reward.aggregate == "min"


@pytest.mark.parametrize("method", ["weighted_mean", "min"])
def test_part_behind_a_service_and_a_rule_here_make_the_same_score(method: Any) -> None:
    """Judged graders become one, with the weight of all: the formulas nest."""
    scores = {"a": 0.2, "b": 0.9, "c": 0.6}
    said: dict[str, GraderResult] = {
        name: GraderScore(name, one, score_range=(0.0, 1.0)) for name, one in scores.items()
    }
    a, b, c = AggregateTerm("a", 1.0), AggregateTerm("b", 2.0), AggregateTerm("c", 1.5)
    settings = RewardSettings(aggregate=method)
    whole = aggregate(said, [a, b, c], settings)
    inner = aggregate(said, [a, b], settings)
    assert isinstance(inner, float)
    served = {**said, "a": GraderScore("a", inner, score_range=(0.0, 1.0))}
    found = aggregate(served, [AggregateTerm("a", 3.0), c], settings)
    assert found == pytest.approx(whole)
