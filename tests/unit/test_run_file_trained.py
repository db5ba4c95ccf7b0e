"""``[judge] folder``: a judge that ``adjudge train`` made, as the judge of a run."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjudge.errors import ConfigError
from adjudge.judge_training.card import CARD, SPEC, Card, normalisation_of
from adjudge.training.planning.plan import plan
from adjudge.training.rundir import RunDir
from adjudge.training.runfile import RunFile

SPEC_TEXT = """
[[graders]]
name = "mine"
type = "adjudge.judge_training.scalar.ranked:RankedScalar"
[judges.main]
type = "local"
model = "."
task = "score"
"""


def trained(folder: Path, label: str = "mine") -> Path:
    """A folder with all of a scalar judge but the model."""
    folder.mkdir()
    empty: dict[str, Any] = {}
    card = Card(
        adjudge="0", kind="scalar", method="bradley_terry", mode=None, label=label, created="",
        base=empty, data=empty, config=empty, validation=empty, max_length=8,
        normalisation=normalisation_of([0.0, 1.0]),
    )  # fmt: skip
    (folder / CARD).write_bytes(msgspec.json.encode(card))
    (folder / SPEC).write_text(SPEC_TEXT)
    return folder


def read(beside: Path, **judge: Any) -> RunFile:
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [{"name": "gold", "type": "adjudge.training.task:CapitalGrader", "weight": 0.0}],
        "judge": {"folder": "runs/mine", "combine_mode": "replace", **judge},
        "services": {"judge_url": "serve"},
        "sentinel": {"gold": "gold"},
    }
    return RunFile.from_dict(data, where="run.toml", folder=beside)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    trained(tmp_path / "runs" / "mine")
    return tmp_path


def test_it_is_asked_as_its_own_spec_says_wherever_that_is_read(beside: Path) -> None:
    run = read(beside)
    spec = run.reward_spec()
    assert [one.name for one in spec.graders] == ["mine", "gold"]
    assert spec.judges["main"].model == str(beside / "runs" / "mine")
    assert spec.reward.combine_mode == "replace"
    served = run.served()
    assert [one["name"] for one in served["graders"]] == ["mine"]
    assert served["judges"]["main"]["model"] == str(beside / "runs" / "mine")
    asked = run.reward_spec(service_url="http://127.0.0.1:1")
    assert [one.name for one in asked.graders] == ["mine", "gold"]
    assert not asked.judges
    assert run.judge_key_env is None
    assert run.judge_name == "mine"


def test_a_dry_run_says_who_judges(beside: Path) -> None:
    found = plan(read(beside))
    assert found.judge == "runs/mine (trained), behind adjudge serve"
    assert [one.calls for one in found.graders if one.asks_judge] == [1.0]
    assert not [one for one in found.warnings if "price" in one or "api_key" in one]


def test_a_folder_that_is_not_there_yet_is_missed_when_it_is_asked_for(tmp_path: Path) -> None:
    run = read(tmp_path)
    with pytest.raises(ConfigError, match="judge.folder: .*holds no judge.json"):
        run.reward_spec()
    (tmp_path / "runs").mkdir()
    (trained(tmp_path / "runs" / "mine") / SPEC).unlink()
    with pytest.raises(ConfigError, match=r"judge.folder: .*holds no reward.toml"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ({"model": "m"}, "judge.model: is said by the judge's folder"),
        ({"base_url": "mock"}, "judge.base_url: is said by the judge's folder"),
        ({"rubric_id": "r@v1"}, "judge.rubric_id: is said by the judge's folder"),
        ({"event_weight": 1.0}, "judge.event_weight: is not 0"),
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
        (trained(beside / label, label) / CARD).replace(beside / "runs" / "mine" / CARD)
        folder = RunDir(beside / f"out-{label}", read(beside), source)
        digests.append(folder.digest)
        folder.close()
    assert digests[0] != digests[1]
