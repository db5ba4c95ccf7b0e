"""Scores of stored answers: each text once, resumed, never a number for what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rows import write_jsonl

from adjudge.errors import RunFolderError
from adjudge_lab.rl.rewards import format_toml
from adjudge_lab.studies.gathering import AnswerSource, read_scores_by_step
from adjudge_lab.studies.tasks import PanelMember, score_sources

JUDGE = """
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader

asked = []


class Loud(RuleGrader):
    score_range = (0.0, 10.0)

    def __init__(self, *, name=""):
        super().__init__(name)

    def evaluate(self, response: str):
        asked.append(response)
        if response == "bad":
            raise GradingFailure(ErrorKind.UNPARSABLE, "no verdict")
        return self._score(float(len(response)))
"""


RANKS = """
from adjudge import GraderMode, GraderRank
from adjudge.graders.base import BaseGrader


class Shortest(BaseGrader):
    def __init__(self, *, name=""):
        super().__init__(name, GraderMode.LISTWISE)

    async def aevaluate(self, response: list[str]) -> GraderRank:
        order = sorted(range(len(response)), key=lambda i: len(response[i]))
        return GraderRank(self.name, [float(order.index(i) + 1) for i in range(len(order))])
"""


def row(text: str, step: int = 0, seed: int = 0, **more: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": f"question {seed}"}
    said = {"role": "assistant", "content": text}
    columns = {"rollout": f"evaluation {step}/{seed}", "reference": "x"}
    return {"step": step, "seed": seed, "messages": [asked, said], "columns": columns, **more}


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    (tmp_path / "loud_judge.py").write_text(JUDGE)
    return run_file(tmp_path, {"name": "loud", "type": "loud_judge:Loud"})


def run_file(folder: Path, *graders: dict[str, Any], name: str = "scorer") -> Path:
    data = {
        "version": 1,
        "kind": "rl",
        "model": {"base": "tiny"},
        "graders": list(graders),
        "judge": {"combine_mode": "replace"},
    }
    path = folder / f"{name}.toml"
    path.write_text(format_toml(data))
    return path


def scored(folder: Path, file: Path, *sources: AnswerSource) -> int:
    return score_sources("loud", str(file), str(folder), sources, str(folder / "scores.jsonl"))


def asked_texts(folder: Path) -> list[str]:
    journal = (folder / "scores.journal.jsonl").read_text().splitlines()[1:]
    return [json.loads(line)["s"] for line in journal]


def test_equal_texts_are_asked_once_and_failures_stay_missing(tmp_path: Path, judge: Path) -> None:
    first = write_jsonl(
        tmp_path / "a.jsonl", [row("two"), row("bad"), row("two", step=5), row("x")]
    )
    second = write_jsonl(tmp_path / "b.jsonl", [row("two"), row("", error="timeout")])
    sources = AnswerSource("arms/a", first), AnswerSource("arms/b", second)
    assert scored(tmp_path, judge, *sources) == 3
    found = read_scores_by_step(tmp_path / "scores.jsonl")
    assert found["arms/a", 0].values == [0.3, None, 0.1]
    assert found["arms/a", 0].missing == {"unparsable": 1}
    assert found["arms/a", 5].values == [0.3]
    assert found["arms/b", 0].values == [0.3, None]
    assert found["arms/b", 0].missing == {"timeout": 1}
    assert found["arms/b", 0].mean == 0.3
    assert len(asked_texts(tmp_path)) == 2  # "two" of both arms and steps, and "x"


def test_other_answers_of_the_same_name_are_scored_anew(tmp_path: Path, judge: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [row("two"), row("x", step=1)])
    assert scored(tmp_path, judge, AnswerSource("a", file)) == 2
    write_jsonl(file, [row("three"), row("x", step=1)])  # the arm was trained again
    assert scored(tmp_path, judge, AnswerSource("a", file)) == 1
    assert read_scores_by_step(tmp_path / "scores.jsonl")["a", 0].values == [0.5]
    assert scored(tmp_path, judge, AnswerSource("a", file)) == 0


def test_what_may_have_passed_is_asked_again(tmp_path: Path, judge: Path) -> None:
    (tmp_path / "shy_judge.py").write_text(
        JUDGE.replace('response == "bad"', "not __import__('pathlib').Path(UP).exists()")
        .replace("UNPARSABLE", "TIMEOUT")
        .replace("asked = []", f"asked = []\nUP = {str(tmp_path / 'up')!r}")
    )
    file = run_file(tmp_path, {"name": "loud", "type": "shy_judge:Loud"})
    source = AnswerSource(
        "a", write_jsonl(tmp_path / "a.jsonl", [row("two"), row("", error="timeout")])
    )
    path = tmp_path / "scores.jsonl"
    assert scored(tmp_path, file, source) == 1
    assert read_scores_by_step(path)["a", 0].missing == {"timeout": 2}
    before = path.read_bytes()
    assert scored(tmp_path, file, source) == 1  # in vain
    assert path.read_bytes() == before
    (tmp_path / "up").touch()
    scored(tmp_path, file, source)
    assert read_scores_by_step(path)["a", 0].values == [0.3, None]
    assert read_scores_by_step(path)["a", 0].missing == {"timeout": 1}


def test_scores_of_another_reward_are_not_mixed_in(tmp_path: Path, judge: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [row("two")])
    scored(tmp_path, judge, AnswerSource("a", file))
    other = run_file(tmp_path, {"name": "loud", "type": "length_penalty", "max_length": 5})
    with pytest.raises(RunFolderError, match="scores of another reward"):
        scored(tmp_path, other, AnswerSource("a", file))


def test_a_judge_that_compares_sees_the_answers_to_a_prompt_together(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    file = run_file(tmp_path, {"name": "ranks", "type": "ranks:Shortest"})
    answers = [row("a"), row("bbb", seed=1), row("ccc"), row("bb", seed=1), row("a", step=1)]
    rows = write_jsonl(tmp_path / "a.jsonl", answers)
    assert scored(tmp_path, file, AnswerSource("a", rows)) == 2
    found = read_scores_by_step(tmp_path / "scores.jsonl")
    assert found["a", 0].values == [1.0, 0.0, 0.0, 1.0]  # by rank, 1 the best of its prompt
    assert found["a", 1].values == [None]  # nothing to compare it with


def test_a_panel_does_not_ask_what_its_members_said_alone(tmp_path: Path, judge: Path) -> None:
    members = [{"name": name, "type": "loud_judge:Loud"} for name in ("loud", "quiet")]
    panel = run_file(tmp_path, *members, name="panel")
    first = write_jsonl(tmp_path / "a.jsonl", [row("two"), row("bad"), row("x")])
    assert scored(tmp_path, judge, AnswerSource("a", first)) == 1
    whole = AnswerSource("a", write_jsonl(first, [row("two"), row("bad"), row("x"), row("three")]))

    def asked(target: str, *known: PanelMember) -> list[tuple[str, float]]:
        path = tmp_path / target
        assert score_sources("p", str(panel), str(tmp_path), [whole], str(path), known) == 1
        journal = path.with_suffix(".journal.jsonl").read_text()
        lines = map(json.loads, journal.splitlines())
        return sorted((one["g"], one["r"]["score"]) for one in lines if "g" in one)

    alone = PanelMember(str(judge), str(tmp_path / "scores.jsonl"))
    unasked = PanelMember(str(judge), str(tmp_path / "none.jsonl"))
    quiet = [("quiet", score) for score in (1, 3, 5)]
    assert asked("with.jsonl", unasked, alone) == [("loud", 5), *quiet]
    assert asked("without.jsonl") == [("loud", 1), ("loud", 3), ("loud", 5), *quiet]
    values = {name: read_scores_by_step(tmp_path / f"{name}.jsonl") for name in ("with", "without")}
    assert values["with"] == values["without"]
    assert values["with"]["a", 0].values == [0.3, None, 0.1, 0.5]


def test_time_outs_that_are_a_dial_are_not_waited_for(tmp_path: Path) -> None:
    """They would come again, and are no outage: all of these answers fail."""
    parametric = "adjudge_lab.studies.parametric_judge:ParametricJudge"
    file = run_file(
        tmp_path, {"name": "j", "type": parametric, "gold": "none", "length": 1.0, "fails": 0.999}
    )
    rows = [row(f"answer {n}", seed=n) for n in range(40)]
    source = AnswerSource("a", write_jsonl(tmp_path / "a.jsonl", rows))
    for _ in range(2):
        assert scored(tmp_path, file, source) == 1
        found = read_scores_by_step(tmp_path / "scores.jsonl")["a", 0]
        assert found.missing == {"timeout": 40}
