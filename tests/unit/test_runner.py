import asyncio
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.reward_functions import FakeClock

from adjudge import (
    BaseGrader,
    ErrorKind,
    FunctionGrader,
    GraderConfig,
    GraderError,
    GraderRank,
    GraderScore,
    GradingFailure,
    GradingRunner,
    RuleGrader,
    Sample,
)
from adjudge.errors import ConfigError
from adjudge.graders import RelevanceGrader
from adjudge.judges import OpenAIChatModel
from adjudge.runner.runner import GradingRequest
from adjudge.types import GraderResult


class Length(RuleGrader):
    type_name = "length"
    score_range = (0.0, 10.0)

    def evaluate(self, response: str) -> float:
        return float(len(response))


def grade(grader: Any, items: list[Any], **options: Any) -> list[GraderResult]:
    return GradingRunner({"g": grader}, show_progress=False, **options).run(items)["g"]


def kind(result: GraderResult) -> ErrorKind:
    assert isinstance(result, GraderError), result
    return result.kind


def test_never_more_in_flight_than_allowed() -> None:
    now, most = 0, 0

    async def busy() -> float:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        return 1.0

    grade(FunctionGrader(busy), [{}] * 40, max_concurrency=6)
    assert most == 6


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ZeroDivisionError("oops"), ErrorKind.BUG),
        (KeyError("x"), ErrorKind.BUG),
        (BaseException("a panic of Rust, an exit"), ErrorKind.BUG),
        (StopIteration(), ErrorKind.BUG),
        (TimeoutError(), ErrorKind.TIMEOUT),
        (ConnectionResetError(), ErrorKind.CONNECTION),
        (GradingFailure("refused", "policy"), ErrorKind.REFUSED),
        (asyncio.CancelledError(), ErrorKind.CANCELLED),
    ],
)
@pytest.mark.parametrize("blocking", [False, True])
def test_a_grader_that_raises_spoils_its_own_item_only(
    error: BaseException, expected: ErrorKind, blocking: bool
) -> None:
    def grader(x: int) -> float:
        if x == 1:
            raise error
        return 1.0

    asked = FunctionGrader(grader, blocking=blocking)
    first, second, third = grade(asked, [{"x": 0}, {"x": 1}, {"x": 2}])
    assert isinstance(first, GraderScore)
    assert isinstance(third, GraderScore)
    assert kind(second) is expected


@pytest.mark.parametrize("answer", ["0.7", None, {"score": 1}, GraderRank("r", [1])])
def test_a_wrong_kind_of_answer_is_a_bug(answer: Any) -> None:
    assert kind(grade(FunctionGrader(lambda: answer), [{}])[0]) is ErrorKind.BUG


@pytest.mark.parametrize("how", ["run", "aask"])
def test_what_the_user_wrote_wrong_stops_the_run_as_it_is(how: str) -> None:
    wrong = ConfigError("judges a and b must agree on their settings")
    asked: list[int] = []

    async def grader(x: int) -> float:
        asked.append(x)
        await asyncio.sleep(0)
        raise wrong

    runner = GradingRunner({"g": FunctionGrader(grader)}, 4, show_progress=False)
    items = [{"x": x} for x in range(100)]
    asks = [GradingRequest("g", item) for item in items]
    with pytest.raises(ConfigError) as caught:
        runner.run(items) if how == "run" else asyncio.run(runner.aask(asks))
    assert caught.value is wrong
    assert len(asked) <= 8


def test_a_missing_field_is_named() -> None:
    [result] = grade(Length(), [{"text": "abc"}])
    assert kind(result) is ErrorKind.INVALID_INPUT
    assert isinstance(result, GraderError)
    assert "'response'" in result.error
    assert "text" in result.error


def test_fields_come_from_samples_defaults_and_extras() -> None:
    def grader(response: str, lang: str, note: str = "none") -> GraderScore:
        return GraderScore("g", 1.0, f"{response} {lang} {note}")

    sample = Sample(response="hi", extra={"lang": "en", "other": 1})
    [result] = grade(FunctionGrader(grader), [sample])
    assert isinstance(result, GraderScore)
    assert result.reason == "hi en none"


@pytest.mark.parametrize(
    "mapper",
    [{"response": "choices.0.text"}, lambda item: {"response": item["choices"][0]["text"]}],
)
def test_mappers(mapper: Any) -> None:
    config = GraderConfig(Length(), mapper)
    [found, lacking] = grade(config, [{"choices": [{"text": "abc"}]}, {"choices": []}])
    assert isinstance(found, GraderScore)
    assert found.score == 3
    assert isinstance(lacking, GraderError)


def test_several_datasets_and_none() -> None:
    runner = GradingRunner({"g": Length()}, show_progress=False)
    two = runner.run_multiple_datasets([[{"response": "a"}], [], [{"response": "ab"}] * 2])
    assert [len(one["g"]) for one in two] == [1, 0, 2]
    assert runner.run([]) == {"g": []}


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="at least one grader"):
        GradingRunner({})
    with refuses("max_concurrency"):
        GradingRunner({"g": Length()}, max_concurrency=0)
    with pytest.raises(ConfigError, match="aevaluate"):
        GradingRunner({"g": object()}).run([{}])


def test_a_class_written_for_openjudge_is_told_what_to_rename() -> None:
    class Migrated(BaseGrader):
        async def _aevaluate(self, response: str) -> float:
            return float(bool(response))

    with pytest.raises(ConfigError, match="Rename its _aevaluate to aevaluate"):
        GradingRunner({"g": Migrated("g")}).run([{"response": "a"}])


def test_a_repeated_ask_carries_its_draw_to_graders_that_want_it() -> None:
    grader = FunctionGrader(lambda draw=0: float(draw))
    runner = GradingRunner({"g": grader}, show_progress=False)
    results = asyncio.run(runner.aask([GradingRequest("g", {}, 3), GradingRequest("g", {})]))
    assert results == [GraderScore("g", 3.0), GraderScore("g", 0.0)]
    assert runner.run([{}])["g"] == [GraderScore("g", 0.0)]


class Blocking(BaseGrader):
    def aevaluate(self, x: int) -> float:  # the mistake
        return 0.5


class WrongKind(BaseGrader):
    async def aevaluate(self, x: int) -> float:
        raise GradingFailure("nonsense", "x")


def test_aevaluate_must_be_a_coroutine() -> None:
    with pytest.raises(ConfigError, match="grader 'g': aevaluate must be `async def`"):
        GradingRunner({"g": Blocking()}).run([{"x": 1}])


def test_a_wrong_kind_points_at_the_graders_own_line() -> None:
    [error] = GradingRunner({"g": WrongKind()}).run([{"x": 1}])["g"]
    assert isinstance(error, GraderError)
    assert error.kind is ErrorKind.BUG
    assert "the kind is unknown (found 'nonsense'; allowed: timeout, " in error.error
    assert error.metadata["at"].startswith("test_runner.py:")


def test_failures_are_counted_in_a_warning_and_not_in_each_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fragile(response: str) -> float:
        if response != "well":
            raise GradingFailure(response, "the judge is away")
        return 1.0

    runner = GradingRunner({"a": FunctionGrader(fragile)}, show_progress=False)
    runner._limiter._clock = clock = FakeClock()

    def warnings_of(*kinds: str) -> list[str]:
        caplog.clear()
        runner.run([{"response": one} for one in kinds])
        return [one.partition(":")[0] for one in caplog.messages]

    assert warnings_of("timeout", "well", "timeout") == ["a"]
    assert warnings_of("timeout", "auth", "not_applicable") == ["a"]  # a new kind is said at once
    assert warnings_of("well", "timeout") == []
    clock.now += 100
    assert warnings_of("timeout") == ["a"]
    assert "a: 3 answers failed (timeout): the judge is away" in caplog.messages  # all since then


def test_a_failure_is_said_while_the_others_are_asked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjudge.runner.runner._GATHER_S", 0.0)
    said_before = []

    def fragile(response: str) -> float:
        said_before.append(len(caplog.messages))
        raise GradingFailure("timeout", "the judge is away")

    runner = GradingRunner({"a": FunctionGrader(fragile)}, max_concurrency=1, show_progress=False)
    runner.run([{"response": "x"}] * 2)
    assert said_before == [0, 1]


def test_a_missing_key_is_said_before_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    judge = OpenAIChatModel("m", base_url="https://judge.invalid/v1", api_key_env="SOME_KEY")
    asked: list[str] = []
    runner = GradingRunner(
        {"b": FunctionGrader(asked.append), "a": RelevanceGrader(judge)}, show_progress=False
    )
    with refuses("graders.a"):
        runner.run([{"query": "q", "response": "r"}])
    assert not asked
