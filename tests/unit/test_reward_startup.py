"""A grader that has never answered stops the first step, for reasons that no candidate can make."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.mock_provider import start_mock_here
from tests.unit.helpers.reward_functions import FakeClock, build, samples, values

from adjudge import FunctionGrader, GradingFailure, RewardSample, RewardSpec, SpecRewardFunction
from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.rewards.judge_watch import MIN_FAILED_SAMPLES

TEMPLATE = "How good is {response}? {reply_form}"


def failing(failure: GradingFailure, fails: Callable[[], bool] = lambda: True) -> FunctionGrader:
    """1 for every sample, but ``failure`` while it ``fails``."""

    def judge(n: int) -> float:
        if fails():
            raise failure
        return 1.0

    return FunctionGrader(judge, score_range=(0, 1))


def rows(count: int, start: int = 0) -> dict[str, list[RewardSample]]:
    found = samples(*({"n": n} for n in range(start, start + count)))
    for group in found.values():
        for sample in group:
            sample.response = f"answer {(sample.extra or {})['n']}"
    return found


UNREADABLE = GradingFailure("unparsable", "no verdict in two replies")
NOT_FOUND = GradingFailure("invalid_input", "the server answered 404", {"status": 404})
BAD_REQUEST = GradingFailure("invalid_input", "the server answered 400", {"status": 400})
REFUSED = GradingFailure("connection", "connection refused", {"sent": False})


def test_a_model_that_is_not_found_stops_the_first_call() -> None:
    with refuses("spec.graders.j"):
        build({"j": failing(NOT_FOUND)}).compute(rows(1))


@pytest.mark.parametrize("failure", [UNREADABLE, BAD_REQUEST])
def test_what_a_candidate_might_cause_takes_many_distinct_samples(failure: GradingFailure) -> None:
    made = build({"j": failing(failure)})
    assert values(made.compute(rows(MIN_FAILED_SAMPLES - 1))) == [None] * (MIN_FAILED_SAMPLES - 1)
    assert values(made.compute(rows(8))) == [None] * 8  # the same ones again
    with pytest.raises(ConfigError, match=f"first {MIN_FAILED_SAMPLES} samples"):
        made.compute(rows(1, start=MIN_FAILED_SAMPLES))


@pytest.mark.parametrize("kind", ["refused", "timeout", "rate_limited", "budget", "server_error"])
def test_other_kinds_stop_nothing_here(kind: str) -> None:
    failure = GradingFailure(kind, "no", {"local": True} if kind == "timeout" else None)
    made = build({"j": failing(failure)}, missing={"patience_s": 0.0}, clock=FakeClock())
    assert values(made.compute(rows(16))) == [None] * 16


def test_who_takes_any_share_of_missing_rewards_is_not_stopped() -> None:
    made = build({"j": failing(NOT_FOUND)}, missing={"max_missing": 1.0})
    assert values(made.compute(rows(4))) == [None] * 4


def test_a_grader_that_is_only_reported_stops_nothing() -> None:
    graders = {"j": failing(NOT_FOUND, lambda: False), "gold": failing(NOT_FOUND)}
    made = build(graders, entries={"gold": {"weight": 0.0}})
    assert values(made.compute(rows(2))) == [1.0, 1.0]


def test_one_sample_that_meets_nobody_waits_for_the_judge() -> None:
    clock = FakeClock()
    loading = failing(REFUSED, lambda: clock.now < 90)
    assert values(build({"j": loading}, clock=clock).compute(rows(1))) == [1.0]
    assert 90 <= clock.now < 125


def test_the_patience_for_a_judge_that_was_never_reached_is_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = RewardSpec.from_dict({"graders": [{"name": "j", "type": "m:C"}]})
    for patience, waited in ((None, 600.0), (5.0, 5.0), (0.0, 0.0)):
        clock = FakeClock()
        made = SpecRewardFunction(
            spec, graders={"j": failing(REFUSED)}, clock=clock, startup_patience_s=patience
        )
        with pytest.raises(JudgeUnavailable, match="never reached its judge.*connection refused"):
            made.compute(rows(4))
        assert clock.now == pytest.approx(waited)
    assert "connection refused; asking again" in caplog.text


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with start_mock_here() as base_url:
        yield base_url


def judged(url: str, template: str = TEMPLATE, **grader: Any) -> SpecRewardFunction:
    asks = {"name": "quality", "type": "llm", "template": template, "score_range": [0, 1]}
    judge = {"type": "vllm", "model": "nope", "base_url": url}
    spec = {"judges": {"main": judge}, "graders": [{**asks, "judge": "main", **grader}]}
    return SpecRewardFunction(RewardSpec.from_dict(spec))


def batch(count: int = 16, **extra: Any) -> dict[str, list[RewardSample]]:
    return {"g": [RewardSample(i, i, "p", f"r{i}", None, extra) for i in range(count)]}


@pytest.mark.parametrize(
    ("template", "grader", "column"),
    [
        ("How good is {mesages}? {reply_form}", {}, "mesages"),
        ("{mesages} {reply_form}", {"panel": {"votes": 2}}, "mesages"),
        ("{note} {reply_form}", {"mapper": {"note": "remark"}}, "remark"),
    ],
)
def test_a_template_with_a_field_that_no_row_has_is_refused_before_anything_is_asked(
    provider: str, template: str, grader: dict[str, Any], column: str
) -> None:
    made = judged(provider, template, **grader)
    message = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for rows in (batch(), batch(messages=message)):
        with refuses("spec.graders.quality.template"):
            made.compute(rows)
    there: dict[str, Any] = {column: "there"}
    assert values(made.compute(batch(**there))) == [1.0] * 16


def test_a_field_that_some_rows_have_leaves_the_others_missing(provider: str) -> None:
    given = batch(3)
    given["g"][1].extra = {"note": "n"}
    found = values(judged(provider, "{response} {note} {reply_form}").compute(given))
    assert [value is None for value in found] == [True, False, True]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fail": ("404:1",)}, "'nope' at http://127.*404.*`base_url`"),
        ({"fail": ("400:1",)}, "the server answered 400.*sampling"),
        ({"reply": "A fine answer, I like it."}, "unparsable.*doctor"),
    ],
)
def test_a_server_that_never_gives_a_verdict(settings: dict[str, Any], said: str) -> None:
    with start_mock_here(**settings) as url, pytest.raises(ConfigError, match=said):
        judged(url).compute(batch())


def test_nobody_listening_is_said_by_address_and_cause() -> None:
    """Also where a mock has answered that has ended since: ports come again."""
    with start_mock_here() as url:
        assert values(judged(url).compute(batch())) == [1.0] * 16
    clock = FakeClock()
    made = SpecRewardFunction(judged(url).spec, clock=clock, startup_patience_s=0.0)
    with pytest.raises(
        JudgeUnavailable, match=f"never reached its judge: .*{url}: connection refused; is the"
    ):
        made.compute(batch(64))
    assert clock.now == 0.0  # nothing was waited for
