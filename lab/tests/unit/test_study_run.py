"""A whole study without training: what is kept, what is said of judges that are down, going on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from lab.tests.unit.helpers.judge_cards import make_card

import adjudge_lab.studies.run as running
from adjudge.errors import ConfigError, JudgeUnavailable, RunFolderError
from adjudge_lab.judge_training.run import reward_spec_of_card
from adjudge_lab.rl.rewards import format_toml
from adjudge_lab.rl.runfile_checks import load_run_file
from adjudge_lab.studies.run import StudyJob, run_study
from adjudge_lab.studies.study import Study
from adjudge_lab.studies.tasks import TaskOutcome

RULE = "adjudge_lab.studies.parametric_judge:ParametricJudge"


def judge(**dials: Any) -> dict[str, Any]:
    return {"name": "j", "type": RULE, "gold": "none", **dials}


STUDY: dict[str, Any] = {
    "kind": "study",
    "seeds": [0],
    "pilot": True,
    "gold": "gold",
    "best_of": {"prompts": 1, "answers": 2},
    "run": {
        "model": {"base": "tiny"},
        "judge": {"combine_mode": "replace"},
        "evaluation": {"instances": 2, "every_n_iters": 1},
        "graders": [judge(length=1.0, name="gold", weight=0.0)],
    },
    "judges": {
        "long": {"run": {"graders": [judge(length=0.5)]}},
        "bold": {"run": {"graders": [judge(markdown=1.0)]}},
        "other": {"held_out": True, "run": {"graders": [judge(fillers=1.0)]}},
    },
    "plans": [{"name": "p", "judge": ["long", "bold"]}],
}


def row(text: str, step: int, seed: int) -> dict[str, Any]:
    asked = {"role": "user", "content": f"question {seed}"}
    said = {"role": "assistant", "content": text}
    return {
        "step": step, "seed": seed, "messages": [asked, said], "columns": {}, "kl": 0.1 * step,
        "missing": None,
    }  # fmt: skip


FAILED = {
    "step": 1, "seed": 2, "messages": [], "columns": {}, "kl": None,
    "missing": {"kind": "connection", "message": "the environment is down"},
}  # fmt: skip


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))


class Here:
    """Does the tasks in this process; training writes what an arm leaves."""

    def __init__(self, down: str = "") -> None:
        self.down, self.text = down, "one two"
        self.broken: Exception | None = None

    def run(
        self,
        task: Callable[..., Any],
        arguments: Mapping[str, Sequence[Any]],
        on_done: Callable[[TaskOutcome], None],
    ) -> dict[str, TaskOutcome]:
        found = {}
        for name, given in arguments.items():
            try:
                found[name] = TaskOutcome(name, self.do(task, name, given))
            except (JudgeUnavailable, ConfigError) as error:
                found[name] = TaskOutcome(name, error=str(error), kind=type(error).__name__)
            on_done(found[name])
        return found

    def do(self, task: Callable[..., Any], name: str, given: Sequence[Any]) -> Any:
        if task.__name__ == "train_arm":
            if self.broken is not None:
                raise self.broken
            return self.train(Path(given[2]))
        if name.startswith("judges/"):
            folder = Path(given[2])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "judge.json").write_text("{}")
            return (folder / "reward.toml").write_text(reward_spec_of_card(make_card()) or "")
        if task.__name__ == "sample_answers":
            return lines(Path(given[2]), [row("a", 0, 0), row("a b", 0, 0)])
        if task.__name__ == "score_sources":
            if name == self.down:
                raise JudgeUnavailable("nobody there")
            return task(name, *given)
        return None

    def train(self, folder: Path) -> None:
        if (folder / "summary.json").exists():
            return
        rows = [row("one", 0, 1), row("one", 0, 2), row(self.text, 1, 1), FAILED]
        lines(folder / "evaluation_rollouts.jsonl", rows)
        lines(folder / "rollouts.jsonl", [{"missing": None}])
        lines(folder / "metrics.jsonl", [{"step": 1, "reward": 0.5, "judge/reward_score_mean": 9}])
        lines(folder / "summary.json", [{"spending": {"endpoints": []}, "seconds": {"total": 1.0}}])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    pool = Here()

    @contextmanager
    def workers(*_: object) -> Iterator[Here]:
        yield pool

    monkeypatch.setattr(running, "start_workers", workers)
    return pool


def done(folder: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary, and ``result.json``."""
    file = folder / "study.toml"
    file.write_text(format_toml({**STUDY, **changes}))
    summary = run_study(StudyJob(Study.load(file), file, folder / "out", jobs=1))
    return summary, json.loads((folder / "out" / "result.json").read_text())


def last_point(result: dict[str, Any]) -> dict[str, Any]:
    return dict(result["arms"][0]["points"][-1])


def test_an_episode_that_failed_is_no_answer(tmp_path: Path, here: Here) -> None:
    _, result = done(tmp_path)
    point = last_point(result)
    for name in ("gold", "long", "other"):
        assert point["scores"][name]["values"][1] is None
        assert point["scores"][name]["missing"] == {"connection": 1}
    assert point["scores"]["gold"]["values"][0] is not None
    assert point["features"]["words"] == 2.0  # of the one answer, not of two
    assert point["unanswered"] == 1


def test_a_grader_of_that_name_is_not_taken_for_the_trainers_reward(
    tmp_path: Path, here: Here
) -> None:
    _, result = done(tmp_path)
    assert result["arms"][0]["curves"]["reward"] == [0.5]


def test_a_judge_that_is_down_leaves_its_scores_missing_and_is_asked_again(
    tmp_path: Path, here: Here
) -> None:
    here.down = "other"
    summary, result = done(tmp_path)
    assert summary["unscored"] == {"other": "nobody there"}
    assert any("'other' did not score" in one for one in summary["warnings"])
    point = last_point(result)
    assert point["scores"]["other"] == {"values": [None, None], "missing": {"circuit_open": 2}}
    assert point["scores"]["long"]["values"][0] is not None
    here.down = ""
    summary, result = done(tmp_path)
    assert summary["unscored"] == {}
    assert last_point(result)["scores"]["other"]["values"][0] == 0.0


@pytest.mark.parametrize("kind", [JudgeUnavailable, ConfigError])
def test_where_no_arm_could_be_trained_the_first_says_why(
    tmp_path: Path, here: Here, kind: type[Exception]
) -> None:
    here.broken = kind("for this reason")
    with pytest.raises(kind, match=r"no arm could be trained; .*long.none.seed-0: for this reason"):
        done(tmp_path)


def test_without_the_gold_there_is_no_report(tmp_path: Path, here: Here) -> None:
    here.down = "gold"
    with pytest.raises(JudgeUnavailable, match="gold: nobody there"):
        done(tmp_path)


def test_an_arm_that_is_trained_again_is_scored_again(tmp_path: Path, here: Here) -> None:
    _, before = done(tmp_path)
    arm = tmp_path / "out" / "arms" / before["arms"][0]["name"]
    (arm / "summary.json").unlink()
    here.text = "one two three four"
    _, after = done(tmp_path)
    old, new = (last_point(one)["scores"]["gold"]["values"][0] for one in (before, after))
    assert new > old


def test_other_numbers_for_best_of_n_are_another_study(tmp_path: Path, here: Here) -> None:
    done(tmp_path)
    with pytest.raises(RunFolderError, match=r"best_of was .*'answers': 2.* and is .*'answers': 9"):
        done(tmp_path, best_of={"prompts": 1, "answers": 9})


def test_the_manifest_has_the_cards_of_judges_that_were_just_trained(
    tmp_path: Path, here: Here
) -> None:
    trained = {"method": "bradley_terry", "data": {"synthetic": {"n": 20}}}
    learned = {"learned": {"held_out": True, "train": trained}}
    here.down = "learned"
    summary, _ = done(tmp_path, judges={**STUDY["judges"], **learned})
    kept = json.loads((tmp_path / "out" / "manifest.json").read_text())
    card = tmp_path / "out" / "judges" / "learned" / "judge.json"
    assert kept["judges"]["learned"]["card"] == sha256(card.read_bytes()).hexdigest()
    assert summary["manifest"]["judges"] == kept["judges"]
    card.write_text('{"another": 1}')
    with pytest.raises(RunFolderError, match="judges.learned: it was trained anew"):
        done(tmp_path, judges={**STUDY["judges"], **learned})


def test_no_secret_of_the_environment_is_written(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hunter2secret"
    monkeypatch.setenv("STUDY_WORD", secret)
    file = tmp_path / "study.toml"
    word = {"name": "word", "type": "answer", "pattern": "${STUDY_WORD}", "weight": 0.0}
    run = {**STUDY["run"], "graders": [*STUDY["run"]["graders"], word]}
    held = {"held_out": True, "run": {"graders": [{**word, "weight": 1.0}]}}
    judges = {**STUDY["judges"], "held": held}
    file.write_text(format_toml({**STUDY, "run": run, "judges": judges}))
    study = Study.load(file)
    run_study(StudyJob(study, file, tmp_path / "out", jobs=1))
    files = [one for one in (tmp_path / "out").rglob("*") if one.is_file()]
    assert [str(one) for one in files if secret in one.read_text(errors="replace")] == []
    for name in ("arms/long.none.seed-0.toml", "scores/held.toml"):
        written = tmp_path / "out" / name
        assert "${STUDY_WORD}" in written.read_text()
        graders = load_run_file(written).graders
        assert any(one.get("pattern") == secret for one in graders)
    run_study(StudyJob(Study.load(file), file, tmp_path / "out", jobs=1))  # the same study
    monkeypatch.setenv("STUDY_WORD", "another")
    with pytest.raises(RunFolderError, match="was another"):
        run_study(StudyJob(Study.load(file), file, tmp_path / "out", jobs=1))
