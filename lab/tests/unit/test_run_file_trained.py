"""``[judge] folder``: a judge that ``adjudge train`` made, as the judge of a run."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import (
    CARD_FILE,
    SPEC_FILE,
    JudgeCard,
    fit_normalisation,
)
from adjudge_lab.rl.plan import plan_run
from adjudge_lab.rl.rewards import (
    build_reward_spec,
    build_service_spec,
    find_judge_key_env,
    name_judge,
)
from adjudge_lab.rl.run_folder import TrainingFolder
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file

SPEC_TEXT = """
[[graders]]
name = "mine"
type = "adjudge.graders.llm.trained_judge:RankedScalar"
[judges.main]
type = "local"
model = "."
task = "score"
"""


def trained(folder: Path, label: str = "mine") -> Path:
    """A folder with all of a scalar judge but the model."""
    folder.mkdir()
    empty: dict[str, Any] = {}
    card = JudgeCard(
        adjudge="0", kind="scalar", method="bradley_terry", mode=None, label=label, created="",
        base=empty, data=empty, config=empty, validation=empty, max_length=8,
        normalisation=fit_normalisation([0.0, 1.0]),
    )  # fmt: skip
    (folder / CARD_FILE).write_bytes(msgspec.json.encode(card))
    (folder / SPEC_FILE).write_text(SPEC_TEXT)
    return folder


def read(beside: Path, **judge: Any) -> RunFile:
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [{"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0}],
        "judge": {"folder": "runs/mine", "combine_mode": "replace", **judge},
        "services": {"judge_url": "serve"},
        "sentinel": {"gold": "gold"},
    }
    return resolve_run_file(data, where="run.toml", folder=beside)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    trained(tmp_path / "runs" / "mine")
    return tmp_path


def test_it_is_asked_as_its_own_spec_says_wherever_that_is_read(beside: Path) -> None:
    run = read(beside)
    spec = build_reward_spec(run)
    assert [one.name for one in spec.graders] == ["mine", "gold"]
    assert spec.judges["main"].model == str(beside / "runs" / "mine")
    assert spec.reward.combine_mode == "replace"
    served = build_service_spec(run)
    assert [one["name"] for one in served["graders"]] == ["mine"]
    assert served["judges"]["main"]["model"] == str(beside / "runs" / "mine")
    asked = build_reward_spec(run, service_url="http://127.0.0.1:1")
    assert [one.name for one in asked.graders] == ["mine", "gold"]
    assert not asked.judges
    assert find_judge_key_env(run) is None
    assert name_judge(run) == "mine"


def test_a_dry_run_says_who_judges(beside: Path) -> None:
    found = plan_run(read(beside))
    assert found.judge == "runs/mine (trained), behind adjudge serve"
    assert [one.calls for one in found.graders if one.asks_judge] == [1.0]
    assert not [one for one in found.warnings if "price" in one or "api_key" in one]


def test_a_folder_that_is_not_there_yet_is_missed_when_it_is_asked_for(tmp_path: Path) -> None:
    run = read(tmp_path)
    with pytest.raises(ConfigError, match="judge.folder: .*it has no judge.json"):
        build_reward_spec(run)
    (tmp_path / "runs").mkdir()
    (trained(tmp_path / "runs" / "mine") / SPEC_FILE).unlink()
    with pytest.raises(ConfigError, match=r"judge.folder: .*has no reward.toml"):
        read(tmp_path)


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
        read(beside, **judge)


def test_another_judge_in_the_same_folder_is_another_run_s(beside: Path) -> None:
    """What the first one said is not taken for what the second would say."""
    source = beside / "run.toml"
    source.write_text("x")
    digests = []
    for label in ("mine", "another"):
        (trained(beside / label, label) / CARD_FILE).replace(beside / "runs" / "mine" / CARD_FILE)
        folder = TrainingFolder(beside / f"out-{label}", read(beside), source)
        digests.append(folder.digest)
        folder.close()
    assert digests[0] != digests[1]
