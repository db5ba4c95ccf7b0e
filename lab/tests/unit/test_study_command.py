"""``adjudge study FILE.toml`` and ``adjudge study diff``: words, plans, results, exit codes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lab.tests.unit.helpers.made_study import arm, made_result, made_summary
from typer.testing import CliRunner, Result

from adjudge.cli.main import command_line
from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge_lab.rl.rewards import format_toml
from adjudge_lab.studies.study import Study

pytestmark = pytest.mark.slow  # whole commands, one after the other

GOLD = {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0}
RULE = {"name": "format", "type": "reasoning_format"}
ASKED = {"name": "quality", "type": "llm", "template": "{messages}", "score_range": [0.0, 2.0]}
STUDY: dict[str, Any] = {
    "kind": "study",
    "label": "Which [bold]judge",
    "gold": "gold",
    "run": {"model": {"base": "tiny"}, "judge": {"combine_mode": "replace"}, "graders": [GOLD]},
    "judges": {
        "rule": {"bias": {"length": 0.5}, "run": {"graders": [RULE]}},
        "asked": {
            "bias": {"length": 0.0},
            "run": {
                "graders": [ASKED],
                "judge": {"model": "m", "base_url": "mock", "mock": {"behaviour": "length"}},
            },
        },
        "small": {
            "levels": {"size": 8},
            "train": {"method": "bradley_terry", "data": {"synthetic": {"n": 20}}},
        },
        "other": {"held_out": True, "run": {"graders": [{**RULE, "name": "again"}]}},
    },
    "plans": [
        {"name": "first", "question": "bias", "x": "length", "judge": ["rule", "asked"]},
        {"name": "second", "judge": ["rule", "small"]},
    ],
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.toml"
    path.write_text(format_toml(STUDY))
    return path


def said(*words: object) -> Result:
    return CliRunner().invoke(command_line(), ["study", *map(str, words)])


class StandIn(ModuleType):
    """What runs a study, without running one."""

    summary: dict[str, Any]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("adjudge_lab.studies.run")
        self.jobs: list[Any] = []
        self.raises: BaseException | None = None
        self.summary = made_summary(made_result())

        @dataclasses.dataclass
        class StudyJob:
            study: Study
            source: Path
            folder: Path
            jobs: int | None
            on_phase: Any
            on_arm: Any

        def run_study(job: StudyJob) -> dict[str, Any]:
            self.jobs.append(job)
            print("a library that talks")
            job.on_phase("arms", 0, 2)
            job.on_arm("a[b]", "training", 1, 2)
            job.on_arm("a[b]", "training", 2, 2)
            job.on_phase("arms", 2, 2)
            if self.raises is not None:
                raise self.raises
            return dict(self.summary)

        self.StudyJob, self.run_study = StudyJob, run_study
        monkeypatch.setitem(sys.modules, self.__name__, self)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(monkeypatch)


# --- words ----------------------------------------------------------------------------------------


def test_a_missing_or_wrong_file_is_one_message(tmp_path: Path) -> None:
    found = said("run", tmp_path / "NONE.toml")
    assert found.exit_code == 2
    assert "NONE.toml" in found.output
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(format_toml({**STUDY, "gold": "nobody"}))
    found = said("run", wrong, "--dry-run")
    assert found.exit_code == 2
    assert "gold" in found.output
    assert "Traceback" not in found.output


# --- the plan -------------------------------------------------------------------------------------


def test_a_dry_run_lists_all_and_writes_nothing(file: Path, tmp_path: Path) -> None:
    found = said("run", file, "--dry-run", "-o", "out")
    assert found.exit_code == 0, found.output
    for text in ("Which [bold]judge", "first", "bias over length", "rule", "asked", "to be trained",
                 "held out", "3 seeds"):  # fmt: skip
        assert text in found.output, text
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


def test_a_plan_as_data_counts_runs_and_calls(file: Path) -> None:
    found = json.loads(said("run", file, "--dry-run", "--json", "-o", "out").output)
    assert found["runs"] == {
        "policies": {"in_all": 3, "done": 0},
        "judges": {"in_all": 1, "done": 0},
        "arms": {"in_all": 9, "done": 0},
    }
    assert [plan["cells"] for plan in found["plans"]] == [
        [["rule", "none"], ["asked", "none"]],
        [["rule", "none"], ["small", "none"]],
    ]
    assert found["calls"] > 0
    assert found["held_out"] == ["other"]


def test_a_plan_says_what_the_folder_has_already(file: Path, tmp_path: Path) -> None:
    (tmp_path / "out/policies/seed-1").mkdir(parents=True)
    for done in ("arms/rule.none.seed-0", "judges/small"):
        (tmp_path / "out" / done).mkdir(parents=True)
        (tmp_path / "out" / done / "summary.json").write_text("{}")
    found = json.loads(said("run", file, "--dry-run", "--json", "-o", "out").output)
    assert [one["done"] for one in found["runs"].values()] == [1, 1, 1]
    assert [one["name"] for one in found["arms"] if one["done"]] == ["rule.none.seed-0"]


def test_a_study_is_run_and_told(file: Path, stand_in: StandIn) -> None:
    found = said("run", file, "-o", "out", "--jobs", 2)
    assert found.exit_code == 0, found.output
    (job,) = stand_in.jobs
    assert (job.source, job.folder, job.jobs) == (file, Path("out"), 2)
    for text in ("Plan of bias", "strong", "Gold gain in SDs", "Trained on one, scored by all",
                 "report.html"):  # fmt: skip
        assert text in found.stdout, text
    assert "a library that talks" not in found.stdout


def test_a_failed_arm_is_named_and_costs_the_exit_code(file: Path, stand_in: StandIn) -> None:
    result = made_result(arms=[arm("plain", 0)], failed={"rule.none.seed-1": "no [judge]"})
    stand_in.summary = made_summary(result)
    found = said("run", file)
    assert found.exit_code == 3
    assert "rule.none.seed-1: no [judge]" in found.output
    assert "Plan of bias" in found.output


def test_a_judge_that_did_not_score_is_named_and_costs_the_exit_code(
    file: Path, stand_in: StandIn
) -> None:
    stand_in.summary = {**made_summary(made_result()), "unscored": {"far": "nobody [there]"}}
    found = said("run", file)
    assert found.exit_code == 3
    assert "far: nobody [there]" in found.output


def test_an_interrupted_study_says_how_to_go_on(file: Path, stand_in: StandIn) -> None:
    for failure, code, words in (
        (KeyboardInterrupt(), 130, "-o out"),
        (JudgeUnavailable("no arm could be trained"), 3, "To resume, run:"),
        (ConfigError("study.toml: arms are confounded"), 2, "confounded"),
    ):
        stand_in.raises = failure
        found = said("run", file, "-o", "out")
        assert (found.exit_code, words in found.output) == (code, True)


# --- diff -----------------------------------------------------------------------------------------


def test_diff_shows_what_two_runs_differ_in(tmp_path: Path) -> None:
    run = {
        "model": {"base": "tiny"},
        "judge": {"combine_mode": "replace"},
        "graders": [{**RULE, "name": "reward"}],
    }
    for name, temperature in (("a", 0.7), ("b", 1.0), ("c", 1.0)):
        data = {**run, "rollout": {"temperature": temperature}}
        (tmp_path / f"{name}.toml").write_text(format_toml(data))
    a, b, c = (tmp_path / f"{name}.toml" for name in "abc")
    found = said("diff", a, b)
    assert found.exit_code == 1, found.output
    assert "rollout.temperature" in found.output
    found = said("diff", a, b, "--json")
    assert json.loads(found.stdout) == [{"key": "rollout.temperature", "left": 0.7, "right": 1}]
    found = said("diff", b, c)
    assert (found.exit_code, "are equal" in found.output) == (0, True)
    assert said("diff", a, tmp_path / "none.toml").exit_code == 2
