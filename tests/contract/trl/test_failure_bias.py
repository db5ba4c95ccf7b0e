"""The study of failures, its smallest arms: run by `make test-trl`."""

from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from benchmarks import failure_bias, failure_bias_runs
from benchmarks.failure_bias_runs import Arm, Seen, Start, advantages, judged, measures

from adjudge import GraderScore, GradingRunner
from adjudge.graders.llm.judge_grader import LLMGrader
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
