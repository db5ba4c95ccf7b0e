"""The study of failures, its smallest arms: run by `make test-trl`."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from benchmarks import failure_bias, failure_bias_runs
from benchmarks.failure_bias_runs import Arm, Seen, Start, advantages, is_astray, judged, measures

from adjudge import GraderScore, GradingRunner
from adjudge.graders.llm.llm_grader import LLMGrader
from adjudge.judges import ScriptedModel
from adjudge_lab.rl.runfile_checks import load_run_file

SIZE = 8
STEPS = 2


@pytest.fixture(scope="module")
def start() -> Start:
    failure_bias.quiet()
    return Start(0, steps=30)


@pytest.fixture(scope="module")
def runs(start: Start) -> dict[str, list[Seen]]:
    """Two steps of each policy, a fifth of the judge's calls failing; the first are alike."""
    return {
        policy: failure_bias_runs.train(Arm("truth", "random", 0.2, policy, 0, STEPS), start)[0]
        for policy in ("mask", "zero")
    }


def test_both_policies_meet_the_same_answers_and_failures(runs: dict[str, list[Seen]]) -> None:
    mask, zero = (steps[0] for steps in runs.values())
    assert (mask.clean, mask.present) == (zero.clean, zero.present)
    for steps in runs.values():
        assert len(steps) == STEPS
        for step in steps:
            pairs = list(zip(step.present, step.clean, strict=True))
            assert all(value in (None, clean) for value, clean in pairs)
            assert any(value is None for value, _ in pairs)


def test_left_out_the_answered_rows_keep_their_groups_advantages(
    runs: dict[str, list[Seen]],
) -> None:
    found = measures(runs["mask"], SIZE)
    assert found["error_group"] == pytest.approx(0.0, abs=1e-5)
    assert found["invented"] == 0
    for step in runs["mask"]:
        lost = [used for used, value in zip(step.used, step.present, strict=True) if value is None]
        assert not any(lost)


def test_zeros_move_the_advantages_of_the_answered_rows(runs: dict[str, list[Seen]]) -> None:
    found = measures(runs["zero"], SIZE)
    assert found["error_group"] > 0.05
    for step in runs["zero"]:
        filled = [value or 0.0 for value in step.present]
        groups = [filled[place : place + SIZE] for place in range(0, len(filled), SIZE)]
        expected = [value for group in groups for value in advantages(group)]
        assert step.used == pytest.approx(expected, abs=1e-4)


def test_advantages_are_those_of_who_is_there() -> None:
    four = advantages([1.0, 0.0, 0.5, 0.5])
    assert advantages([1.0, None, 0.0, 0.5, None, 0.5]) == [four[0], 0.0, *four[1:3], 0.0, four[3]]
    assert four == pytest.approx([1.2244, -1.2244, 0, 0], abs=1e-3)
    assert advantages([1.0, None]) == [0.0, 0.0]


def test_the_measures_of_one_group() -> None:
    clean = [1.0, 1.0, 1.0, 1.0]
    filled = Seen([None, 1.0, 1.0, 1.0], clean, clean, advantages([0.0, 1.0, 1.0, 1.0]))
    mixed = [1.0, 0.0, 0.5, 0.0]
    without = Seen([None, *mixed[1:]], mixed, mixed, advantages([None, *mixed[1:]]))
    found = measures([filled, without], 4)
    assert found["missing"] == 0.25
    assert found["invented"] == found["astray"] == 0.5
    assert found["error_group"] == pytest.approx(3**0.5 * 0.4999 / 2**0.5 / 0.9998, rel=1e-2)
    assert is_astray([1, -1, 0, 0], [1, 0.1, -0.5, -0.6])
    assert is_astray([1, -1], [0, 0])
    assert not is_astray([1, 1, -2], [0, 2, -2])


def test_more_failures_include_the_fewer_and_longer_answers_fail_more() -> None:
    def failing(kind: str, share: float, length: float) -> set[int]:
        arm = Arm("truth", kind, share, "mask", 0, 1)
        return {place for place in range(4000) if arm.fails(0, place, length)}

    assert failing("random", 0.05, 1.0) < failing("random", 0.1, 3.0) < failing("random", 0.2, 1.0)
    assert len(failing("random", 0.1, 1.0)) == pytest.approx(400, abs=80)
    assert failing("length", 0.1, 2.0) == failing("random", 0.2, 1.0)


@pytest.mark.parametrize(
    "answer",
    [
        "Paris.",
        "Sure! The capital of France is Paris.",
        "Sure! The capital of Cuba is Rome.",
        "Oh, the capital of Peru is Lima.",
        "",
    ],
)
def test_the_rule_judges_as_the_examples_judge_does(answer: str) -> None:
    """The example's own template and keywords, the keywords counted as `adjudge mock` does."""
    run = load_run_file(failure_bias_runs.EXAMPLE)
    assert run.judge.mock is not None
    words = [word.casefold() for word in run.judge.mock.keywords]

    def counted(messages: Any) -> dict[str, Any]:
        text = messages[-1]["content"].casefold()
        return {"score": sum(word in text for word in words), "reason": "counted"}

    quality = run.graders[0]
    grader = LLMGrader(
        ScriptedModel(counted), template=quality["template"], score_range=quality["score_range"]
    )
    sample = {"query": "What is the capital of France?", "response": answer}
    (result,) = GradingRunner({"quality": grader}, show_progress=False).run([sample])["quality"]
    assert isinstance(result, GraderScore)
    assert result.score / 2 == judged("example", answer, "Paris")


def test_results_are_gone_on_with_and_shown(tmp_path: Path, monkeypatch: Any) -> None:
    trained: list[Arm] = []

    def row(arm: Arm, _: Any) -> dict[str, Any]:
        trained.append(arm)
        numbers = dict.fromkeys([one.key for one in failure_bias.ERRORS], arm.share)
        numbers |= {"judge_last": 0.9, "gold_last": 0.8, "missing_last": 0.1}
        styles = dict.fromkeys(["example", "gold", "characters", "terse", "polite", "long"], 0.5)
        return {**arm._asdict(), **numbers, "after": styles}

    monkeypatch.setattr(failure_bias, "arm_row", row)
    monkeypatch.setattr(failure_bias, "Start", lambda seed: seed)
    path = tmp_path / "new" / "results.jsonl"
    wanted = failure_bias.arms(2, 6)
    failure_bias.run_missing(wanted[:3], path)
    with path.open("a") as file:
        file.write(json.dumps({"judge": "cut off"})[:9])
    rows = failure_bias.run_missing(wanted, path)
    assert trained == wanted
    assert len(path.read_text().splitlines()) == len(rows) == len(wanted)

    lines = failure_bias.table(
        failure_bias.study(rows, "truth", "length"), failure_bias.ERRORS
    ).splitlines()
    assert len(lines) == 2 + 5
    assert {line.count("|") for line in lines} == {len(failure_bias.ERRORS) + 3}
    drawn = ElementTree.fromstring(failure_bias.picture(rows))
    lines_drawn = drawn.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines_drawn) == 2 * len(failure_bias.PANELS)
