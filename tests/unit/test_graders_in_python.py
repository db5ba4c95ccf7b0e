"""Graders that a program gives as functions, classes and objects; the fields they get."""

import asyncio
import functools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

import adjudge
from adjudge import BaseGrader, FunctionGrader, RuleGrader
from adjudge.errors import GradingFailure, RunFolderError

ROWS = [{"prompt": "p", "response": "yes"}, {"prompt": "p", "response": "no, never"}]


def length(response: str) -> int:
    return len(response)


async def length_awaited(response: str) -> int:
    return len(response)


def scaled_length(response: str, factor: float) -> float:
    return factor * len(response)


class Length(BaseGrader):
    def __init__(self, factor: float = 1.0, name: str = "") -> None:
        super().__init__(name)
        self.factor = factor

    async def aevaluate(self, response: str) -> float:
        return self.factor * len(response)


class LengthRule(RuleGrader):
    def evaluate(self, response: str) -> float:
        return float(len(response))


@dataclass
class Callable:
    """Not hashable, and without a name."""

    factors: list[float] = field(default_factory=lambda: [1.0])

    def __call__(self, response: str) -> float:
        return self.factors[0] * len(response)


class Needs(BaseGrader):
    def __init__(self, words: list[str]) -> None:
        super().__init__("needs")

    async def aevaluate(self, response: str) -> float:
        return 0.0


class NeedsJudge(Needs):
    def __init__(self, model: Any) -> None:
        super().__init__([])


FORMS: dict[str, tuple[Any, str]] = {
    "function": (length, "length"),
    "async function": (length_awaited, "length_awaited"),
    "lambda": (lambda response: 1.0 * len(response), "lambda"),
    "partial": (functools.partial(scaled_length, factor=1.0), "partial"),
    "callable object": (Callable(), "Callable"),
    "bound method": (Callable().__call__, "call"),
    "class": (Length, "Length"),
    "object": (Length(1.0), "Length"),
    "named object": (Length(1.0, "how long"), "how_long"),
    "rule": (LengthRule, "LengthRule"),
    "wrapped function": (FunctionGrader(length), "length"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_grader_may_be_a_spec_or_the_type_of_an_entry(form: str) -> None:
    grader, name = FORMS[form]
    run = adjudge.grade(ROWS, grader)
    assert run.rewards == [3.0, 9.0]
    assert list(run.rows[0].scores) == [name]
    assert run.rows[0].scores[name] == 3.0
    assert adjudge.make_reward(grader)(["p", "p"], ["yes", "no, never"]) == [3.0, 9.0]
    entry = {"name": "mine", "type": grader}
    [first, second] = adjudge.grade(ROWS, {"graders": [entry]}).rows
    assert (first.scores, second.scores) == ({"mine": 3.0}, {"mine": 9.0})


def test_an_entry_sets_the_parameters_of_a_class_or_function_and_not_of_an_object() -> None:
    given = Length(2.0, "own")
    entries = [
        {"name": "class", "type": Length, "factor": 2.0},
        {"name": "object", "type": given},
        {"name": "function", "type": length, "score_range": [0, 10]},
    ]
    [row, _] = adjudge.grade(ROWS, {"graders": entries}).rows
    assert row.scores == {"class": 6.0, "object": 6.0, "function": 3.0}
    assert row.reward == pytest.approx((6.0 + 6.0 + 0.3) / 3)
    assert given.name == "own"
    for key in ("factor", "judge"):
        entry = {"name": "mine", "type": given, key: "main"}
        judge = {"type": "scripted", "script": "x"}
        with refuses(f"spec.graders.mine.{key}"):
            adjudge.grade(ROWS, {"graders": [entry], "judges": {"main": judge}})


def test_a_class_that_needs_arguments_is_refused_by_their_names() -> None:
    with refuses("spec.graders.Needs.words"):
        adjudge.grade(ROWS, Needs)
    with refuses("spec.graders.NeedsJudge.model"):
        adjudge.make_reward(NeedsJudge)


@pytest.mark.parametrize("given", [5, None, Callable, object()])
def test_what_can_be_no_grader_is_refused(given: Any) -> None:
    with pytest.raises(adjudge.ConfigError):
        adjudge.grade(ROWS, {"graders": [{"name": "mine", "type": given}]})


def test_another_object_is_another_run(tmp_path: Path) -> None:
    adjudge.grade(ROWS, Length(1.0), output=tmp_path / "run")
    assert adjudge.grade(ROWS, Length(1.0), output=tmp_path / "run").rewards == [3.0, 9.0]
    with pytest.raises(RunFolderError):
        adjudge.grade(ROWS, Length(2.0), output=tmp_path / "run")
    adjudge.grade(ROWS, Callable([1.0]).__call__, output=tmp_path / "method")
    with pytest.raises(RunFolderError):
        adjudge.grade(ROWS, Callable([2.0]).__call__, output=tmp_path / "method")


def of_trl(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
    return [0.0 for _ in completions]


def of_verl(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> float:
    return float(solution_str == ground_truth)


@pytest.mark.parametrize(("grader", "name"), [(of_trl, "completions"), (of_verl, "solution_str")])
def test_a_reward_function_of_a_trainer_is_refused_in_every_door(grader: Any, name: str) -> None:
    spec = {"graders": [{"name": "mine", "type": grader}]}
    with refuses(f"graders.mine.{name}"):
        adjudge.grade(ROWS, spec)
    for options in ({}, {"trainer": "trl"}):
        with refuses(f"graders.mine.{name}"):
            adjudge.make_reward(spec, **options)


def test_a_mapper_makes_a_trainers_function_a_grader() -> None:
    mapper = {"solution_str": "response", "ground_truth": "reference", "data_source": "source"}
    rows = [{"prompt": "p", "response": "4", "reference": "4", "source": "s"}]
    spec = {"graders": [{"name": "mine", "type": of_verl, "mapper": mapper}]}
    assert adjudge.grade(rows, spec).rewards == [1.0]


@pytest.mark.parametrize("kind", [Length, f"{__name__}:Length", length, f"{__name__}:length"])
def test_a_table_states_the_range_of_ones_own_grader(kind: Any) -> None:
    table = {"type": kind, "score_range": [0, 10]}
    assert adjudge.grade(ROWS, table, progress=False).rewards == [0.3, 0.9]


def waits(response: str) -> float:
    time.sleep(0.06)
    return 1.0


async def waits_in_a_step(response: str) -> float:
    await asyncio.sleep(0)
    return waits(response)


def waits_and_raises(response: str) -> float:
    waits(response)
    raise GradingFailure("invalid_input", "nothing there")


async def waits_as_it_should(response: str) -> float:
    await asyncio.sleep(0.06)
    return 1.0


@pytest.mark.parametrize(
    ("function", "blocking", "said"),
    [
        (waits, False, 1),
        (waits_in_a_step, False, 1),
        (waits_and_raises, False, 1),
        (waits, True, 0),
        (waits_as_it_should, False, 0),
    ],
)
def test_a_function_that_holds_the_loop_is_reported_once(
    function: Any, blocking: bool, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    grader = FunctionGrader(function, "slow", score_range=(0, 1), blocking=blocking)
    runner = adjudge.GradingRunner({"slow": grader}, show_progress=False)
    for _ in range(2):
        results = runner.run([{"response": "a"}, {"response": "b"}])["slow"]
        assert (
            all(isinstance(one, adjudge.GraderScore) for one in results)
            or function is waits_and_raises
        )
    ours = [one for one in caplog.messages if "blocking = true" in one]
    assert len(ours) == said
    assert all("slow" in one for one in ours)


def test_a_watched_function_is_cancelled_like_another() -> None:
    ended: list[str] = []

    async def function(response: str) -> float:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return 1.0

    async def main() -> None:
        task = asyncio.create_task(FunctionGrader(function).aevaluate(response="a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == ["cancelled"]
