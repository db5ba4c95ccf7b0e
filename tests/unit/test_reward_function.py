import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adjudge import (
    BaseGrader,
    ErrorKind,
    FunctionGrader,
    GraderMode,
    GraderRank,
    GradingFailure,
    Journal,
    RewardResult,
    RewardSample,
    RewardSpec,
    Role,
    SpecRewardFunction,
)
from adjudge.errors import ConfigError, JudgeAuthError, JudgeUnavailable, MissingRewardError
from adjudge.rewards import check_results, combine, judge_part, reduce_events
from adjudge.rewards.missing import OutageWatch
from adjudge.runner.progress import Tally
from adjudge.types import GraderError


class FakeClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def build(
    graders: Mapping[str, Any],
    *,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    reward: Mapping[str, Any] | None = None,
    missing: Mapping[str, Any] | None = None,
    clock: FakeClock | None = None,
) -> SpecRewardFunction:
    listed = [{"name": name, "type": "m:C", **(entries or {}).get(name, {})} for name in graders]
    spec = RewardSpec.from_dict(
        {"graders": listed, "reward": dict(reward or {}), "missing": dict(missing or {})}
    )
    return SpecRewardFunction(spec, graders=graders, clock=clock)


def samples(*extras: Mapping[str, Any], group: int = 4) -> dict[str, list[RewardSample]]:
    made: dict[str, list[RewardSample]] = {}
    for index, extra in enumerate(extras):
        key = f"g{index // group}"
        made.setdefault(key, []).append(
            RewardSample(index, index % group, "p", "r", None, dict(extra))
        )
    return made


def scored(**options: Any) -> FunctionGrader:
    def judge(s: Any) -> float:
        if isinstance(s, str):
            raise GradingFailure(s, f"recorded {s}")
        return float(s)

    options.setdefault("score_range", (0.0, 1.0))
    return FunctionGrader(judge, "judge", **options)


def values(results: list[RewardResult]) -> list[float | None]:
    return [result.score for result in sorted(results, key=lambda r: r.original_index)]


def test_weighted_mean_of_normalised_scores() -> None:
    graders = {
        "a": FunctionGrader(lambda s: s, score_range=(1, 5)),
        "b": FunctionGrader(lambda t: t, score_range=(0, 1)),
    }
    made = build(graders, entries={"a": {"weight": 3.0}, "b": {"weight": 1.0}})
    [result] = made.compute(samples({"s": 3.0, "t": 1.0}))
    assert result.score == pytest.approx((3 * 0.5 + 1) / 4)
    assert result.reward_info == {
        "a_score": 3.0,
        "b_score": 1.0,
        "outcome": result.score,
        "env_reward": None,
    }
    assert result.details is not None
    assert result.details["a"] == {"score": 3.0, "reason": ""}


def test_signed_points() -> None:
    graders = {n: FunctionGrader(lambda s: s, score_range=(0, 1)) for n in ("good", "bad")}
    made = build(
        graders,
        entries={"good": {"weight": 5.0}, "bad": {"weight": -2.0}},
        reward={"aggregate": "points"},
    )
    assert values(made.compute(samples({"s": 1.0}))) == [pytest.approx(3 / 5)]


def test_penalties_are_added_and_gates_multiply_or_veto() -> None:
    graders = {
        "s": FunctionGrader(lambda s: s, score_range=(0, 1)),
        "p": FunctionGrader(lambda p: p, score_range=(None, 0.0), role=Role.PENALTY),
        "g": FunctionGrader(lambda g: g, role=Role.GATE),
    }
    rows = samples({"s": 0.8, "p": -0.5, "g": 1.0}, {"s": 0.8, "p": -0.5, "g": 0.0})
    assert values(build(graders).compute(rows)) == [pytest.approx(0.3), pytest.approx(-0.5)]
    veto = build(graders, reward={"gate": "veto"})
    assert values(veto.compute(rows)) == [pytest.approx(0.3), 0.0]


def test_minimum_over_essentials() -> None:
    graders = {n: FunctionGrader(lambda **f: f["x"], score_range=(0, 1)) for n in "ab"}
    graders["a"] = FunctionGrader(lambda x: x, score_range=(0, 1))
    graders["b"] = FunctionGrader(lambda y: y, score_range=(0, 1))
    rows = samples({"x": 0.9, "y": 0.1})
    assert values(build(graders, reward={"aggregate": "min"}).compute(rows)) == [0.1]
    essential = build(graders, entries={"a": {"essential": True}}, reward={"aggregate": "min"})
    assert values(essential.compute(rows)) == [0.9]


def test_a_report_only_grader_makes_no_reward_missing() -> None:
    graders = {"a": FunctionGrader(lambda s: s, score_range=(0, 1)), "seen": scored()}
    made = build(graders, entries={"seen": {"weight": 0.0, "mapper": {"s": "t"}}})
    [result] = made.compute(samples({"s": 1.0, "t": "budget"}))
    assert result.score == 1.0
    assert result.reward_info["seen_score"] is None
    assert (result.details or {})["seen"]["kind"] == "budget"


def test_averaging_needs_a_range_or_no_normalising() -> None:
    graders = {"a": FunctionGrader(lambda s: s)}
    with pytest.raises(ConfigError, match=r"graders\.a.*score_range"):
        build(graders)
    made = build(graders, reward={"normalise": False})
    assert values(made.compute(samples({"s": 17.0}))) == [17.0]


class Flaky(BaseGrader):
    """Fails the first ``times`` asks of each sample with ``kind``."""

    score_range = (0.0, 1.0)

    def __init__(self, kind: str, times: int) -> None:
        super().__init__("flaky")
        self.kind, self.times = kind, times
        self.asks: list[tuple[int, int]] = []

    async def aevaluate(self, n: int, draw: int = 0) -> float:
        self.asks.append((n, draw))
        if sum(m == n for m, _ in self.asks) <= self.times:
            raise GradingFailure(self.kind, "not yet")
        return 1.0


@pytest.mark.parametrize(
    "kind", ["timeout", "rate_limited", "connection", "server_error", "circuit_open"]
)
def test_passing_failures_are_asked_once_more_after_the_others(kind: str) -> None:
    grader = Flaky(kind, 1)
    made = build({"flaky": grader})
    assert values(made.compute(samples({"n": 0}, {"n": 1}))) == [1.0, 1.0]
    assert grader.asks == [(0, 0), (1, 0), (0, 0), (1, 0)]


@pytest.mark.parametrize("kind", ["unparsable", "truncated", "refused"])
def test_parse_failures_are_asked_once_more_with_a_new_draw(kind: str) -> None:
    grader = Flaky(kind, 1)
    assert values(build({"flaky": grader}).compute(samples({"n": 0}))) == [1.0]
    assert grader.asks == [(0, 0), (0, 1)]


def test_a_new_draw_is_made_once() -> None:
    grader = Flaky("unparsable", 9)
    assert values(build({"flaky": grader}).compute(samples({"n": 0}))) == [None]
    assert grader.asks == [(0, 0), (0, 1)]


@pytest.mark.parametrize("kind", ["out_of_range", "budget", "bug", "invalid_input", "unsupported"])
def test_final_kinds_are_not_asked_again(kind: str) -> None:
    grader = Flaky(kind, 1)
    [result] = build({"flaky": grader}).compute(samples({"n": 0}))
    assert result.missing is not None
    assert result.missing.kind == kind
    assert len(grader.asks) == 1


def test_a_deadline_of_our_own_is_neither_asked_again_nor_an_outage() -> None:
    asked: list[int] = []

    def hostile(n: int) -> float:
        asked.append(n)
        raise GradingFailure("timeout", "ran past its deadline", {"local": True})

    clock = FakeClock()
    made = build({"j": FunctionGrader(hostile, score_range=(0, 1))}, clock=clock)
    results = made.compute(samples(*({"n": n} for n in range(64))))
    assert {r.missing and r.missing.kind for r in results} == {"timeout"}
    assert asked == list(range(64))
    assert clock.now == 0


def test_what_fails_twice_is_missing_with_its_reason() -> None:
    [result] = build({"flaky": Flaky("timeout", 9)}).compute(samples({"n": 0}))
    assert result.score is None
    assert result.missing is not None
    assert result.missing.kind is ErrorKind.TIMEOUT
    assert "not yet" in result.missing.error


def test_a_repeated_ask_is_counted_once() -> None:
    spec = RewardSpec.from_dict({"graders": [{"name": "j", "type": "m:C"}]})
    tally = Tally(3)
    made = SpecRewardFunction(spec, graders={"j": scored()}, tally=tally)
    made.compute(samples({"s": 1.0}, {"s": "timeout"}, {"s": "unparsable"}))
    assert tally.done == 3
    assert +tally.failures == {"timeout": 1, "unparsable": 1}


def test_an_outage_is_outlasted() -> None:
    clock = FakeClock()
    down_until = 100.0

    def judge(n: int) -> float:
        if clock.now < down_until:
            raise GradingFailure("server_error", "503")
        return 1.0

    made = build({"j": FunctionGrader(judge, score_range=(0, 1))}, clock=clock)
    rows = samples(*({"n": n} for n in range(64)))
    assert values(made.compute(rows)) == [1.0] * 64
    assert 100 <= clock.now <= 131


def test_an_outage_that_outlasts_the_patience_stops_under_every_policy() -> None:
    for policy in ("mask", "drop_group", "raise"):
        clock = FakeClock()
        made = build({"j": scored()}, missing={"policy": policy, "patience_s": 600}, clock=clock)
        with pytest.raises(JudgeUnavailable, match="600 s.*timeout"):
            made.compute(samples(*({"s": "timeout"} for _ in range(40))))
        assert clock.now == pytest.approx(600)


def test_parse_failures_and_few_failures_are_no_outage() -> None:
    clock = FakeClock()
    made = build({"j": scored()}, clock=clock)
    made.compute(samples(*({"s": "unparsable"} for _ in range(64))))
    made.compute(samples(*({"s": "timeout" if i < 32 else 0.5} for i in range(64))))
    assert clock.now == 0
    small = build({"j": scored()}, clock=clock)
    assert values(small.compute(samples({"s": "timeout"}))) == [None]
    assert clock.now == 0


def test_an_outage_is_seen_across_small_calls() -> None:
    clock = FakeClock()
    made = build({"j": scored()}, missing={"patience_s": 5}, clock=clock)
    for _ in range(16):
        made.compute(samples({"s": "timeout"}))
    with pytest.raises(JudgeUnavailable):
        made.compute(samples({"s": "timeout"}))


def test_the_watch_looks_at_the_last_call_or_the_last_32() -> None:
    watch = OutageWatch(0.5)
    assert not watch.is_outage(watch.begin([True] * 16))
    assert watch.is_outage(watch.begin([True]))
    assert not watch.is_outage(watch.begin([True] + [False] * 39))
    call = watch.begin([True] * 60 + [False] * 40)
    assert watch.is_outage(call)
    call[:] = [False] * 100
    assert not watch.is_outage(call)


def test_a_call_of_which_nothing_is_missing_is_no_outage() -> None:
    clock = FakeClock()
    made = build({"j": scored()}, clock=clock)
    made.compute(samples(*({"s": 0.5 if i < 34 else "rate_limited"} for i in range(64))))
    assert values(made.compute(samples(*({"s": 0.5} for _ in range(4))))) == [0.5] * 4
    assert clock.now == 0


def test_calls_that_overlap_outlast_an_outage_each_for_itself() -> None:
    clock = FakeClock()

    def judge(n: int) -> float:
        if clock.now < 40:
            raise GradingFailure("server_error", "503")
        return 1.0

    made = build({"j": FunctionGrader(judge, score_range=(0, 1))}, clock=clock)

    async def one(n: int) -> RewardResult:
        [result] = await made.compute_batch_scores(
            {"g": [RewardSample(n, 0, "p", "r", None, {"n": n})]}
        )
        return result

    async def all_at_once() -> list[RewardResult]:
        return [await task for task in [asyncio.create_task(one(n)) for n in range(40)]]

    results = asyncio.run(all_at_once())
    scores = [result.score for result in results]
    assert scores.count(1.0) >= 23  # those that met the outage waited for its end
    assert all(score in (1.0, None) for score in scores)
    assert clock.now < 600


def test_what_was_resumed_does_not_hide_an_outage(tmp_path: Path) -> None:
    rows = samples(*({"n": n} for n in range(100)))
    up = {"share": 60}

    def judge(n: int) -> float:
        if n >= up["share"]:
            raise GradingFailure("timeout", "down")
        return 1.0

    spec = RewardSpec.from_dict(
        {"graders": [{"name": "j", "type": "m:C"}], "missing": {"patience_s": 5}}
    )
    graders = {"j": FunctionGrader(judge, score_range=(0, 1))}
    for expected in (60, None):
        journal = Journal(tmp_path / "journal.jsonl", "spec")
        made = SpecRewardFunction(spec, graders=graders, clock=FakeClock(), journal=journal)
        if expected is None:
            with pytest.raises(JudgeUnavailable):
                made.compute(rows)
        else:
            assert values(made.compute(rows)).count(1.0) == expected


def test_never_more_in_flight_than_allowed_even_when_asking_again() -> None:
    now = most = 0

    async def judge(n: int) -> float:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        raise GradingFailure("timeout", "late")

    graders = {name: FunctionGrader(judge, name, score_range=(0, 1)) for name in "abcd"}
    listed = [{"name": name, "type": "m:C"} for name in graders]
    spec = RewardSpec.from_dict({"graders": listed, "max_concurrency": 2})
    SpecRewardFunction(spec, graders=graders).compute(samples(*({"n": n} for n in range(6))))
    assert most == 2


def test_a_refused_key_stops_the_run() -> None:
    with pytest.raises(JudgeAuthError, match="401|recorded auth"):
        build({"j": scored()}).compute(samples({"s": 1.0}, {"s": "auth"}))


def test_policy_raise_ends_with_every_error() -> None:
    made = build({"j": scored()}, missing={"policy": "raise"})
    with pytest.raises(MissingRewardError) as caught:
        made.compute(samples({"s": 1.0}, {"s": "budget"}, {"s": "bug"}))
    assert [error.kind for error in caught.value.errors] == ["budget", "bug"]
    assert values(made.compute(samples({"s": 1.0}))) == [1.0]


def test_drop_group_keeps_each_reason() -> None:
    made = build({"j": scored()}, missing={"policy": "drop_group", "min_valid": 2})
    results = made.compute(samples({"s": 1.0}, {"s": "budget"}, {"s": 0.2}, {"s": 0.3}, group=2))
    assert values(results) == [None, None, 0.2, 0.3]
    assert [r.missing and r.missing.kind for r in results] == ["quorum", "budget", None, None]


def test_a_fallback_must_be_a_rule_and_named() -> None:
    with pytest.raises(ConfigError, match="not a rule grader"):
        build({"j": scored()}, missing={"policy": "fallback", "fallback": "j"})
    with pytest.raises(ConfigError, match="did you mean 'judge'"):
        build({"judge": scored()}, missing={"policy": "fallback", "fallback": "jugde"})
    with pytest.raises(ConfigError, match=r"missing\.fallback"):
        build({"j": scored()}, missing={"policy": "fallback"})


class Shortest(BaseGrader):
    def __init__(self) -> None:
        super().__init__("shortest", GraderMode.LISTWISE)

    async def aevaluate(self, n: list[int]) -> GraderRank:
        return GraderRank(self.name, [sorted(n).index(one) + 1 for one in n])


def test_a_sample_without_a_reward_shapes_no_group() -> None:
    """Whatever makes it missing: its events, the environment's reward, a negative one."""
    graders = {"j": scored(), "e": scored()}
    entries = {"e": {"scope": "event"}}
    good = [{"s": s, "env_reward": 1.0, "events": [{"s": 0.5}]} for s in (0.2, 0.4, 0.9)]
    broken = [
        {"s": 0.9, "env_reward": 1.0, "events": [{"s": "budget"}]},
        {"s": 0.9, "events": [{"s": 0.5}]},
        {"s": 0.9, "env_reward": -1.0, "events": [{"s": 0.5}]},
    ]
    for step in ("centre", "z_score", "rank", "best_bonus"):
        reward = {"group": step, "event_weight": 0.5, "combine_mode": "multiply"}
        made = build(graders, entries=entries, reward=reward)
        alone = values(made.compute(samples(*good)))
        for bad in broken:
            assert values(made.compute(samples(*good, bad))) == [*alone, None]
    made = build(
        graders,
        entries=entries,
        reward={"event_weight": 0.5, "combine_mode": "multiply"},
        missing={"policy": "drop_group", "min_valid": 2},
    )
    assert values(made.compute(samples(good[0], broken[0], broken[1]))) == [None] * 3


def test_a_fallback_answers_for_events_too() -> None:
    rule = FunctionGrader(lambda n: n / 10, "rule", score_range=(0, 1))
    rule.is_rule = True
    made = build(
        {"j": scored(), "rule": rule},
        entries={"j": {"scope": "event"}, "rule": {"weight": 0.0}},
        reward={"event_weight": 1.0, "outcome_weight": 0.0},
        missing={"policy": "fallback", "fallback": "rule"},
    )
    rows = samples({"n": 3, "events": [{"s": 0.9}]}, {"n": 5, "events": [{"s": "budget"}]})
    assert values(made.compute(rows)) == [0.3, 0.5]


def test_a_failed_outcome_of_weight_zero_makes_no_reward_missing() -> None:
    made = build(
        {"whole": scored(), "step": scored()},
        entries={"step": {"scope": "event"}},
        reward={"event_weight": 1.0, "outcome_weight": 0.0},
    )
    [result] = made.compute(samples({"s": "budget", "events": [{"s": 0.5}, {"s": 0.25}]}))
    assert result.score == 0.75
    assert result.reward_info["outcome"] is None


@pytest.mark.parametrize("env", [float("nan"), float("inf"), "high", None])
def test_an_unjudged_sample_gets_a_real_env_reward_or_none(env: Any) -> None:
    options = {"sample_rate": 1e-9, "combine_mode": "weighted_sum", "unjudged": "env"}
    [result] = build({"j": scored()}, reward=options).compute(
        samples({"s": 1.0, "env_reward": env})
    )
    assert result.score is None
    assert (result.details or {})["source"] == "none"


class Scalar:
    """A number of another library."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_numbers_of_other_libraries_are_numbers() -> None:
    def judge(s: float) -> Scalar:
        return Scalar(s)

    grader = FunctionGrader(judge, "j", score_range=(0, 1))
    made = build({"j": grader}, reward={"combine_mode": "weighted_sum"})
    assert values(made.compute(samples({"s": 0.5, "env_reward": Scalar(2.0)}))) == [2.5]


def test_open_ends_may_be_written_as_infinities() -> None:
    for open_end in ((0.0, math.inf), (-math.inf, 0.0), (-math.inf, math.inf)):
        with pytest.raises(ConfigError, match="score_range"):
            build({"j": scored(score_range=open_end)})


@pytest.mark.parametrize("step", ["centre", "z_score", "rank", "best_bonus"])
def test_huge_numbers_give_numbers_or_nothing(step: str) -> None:
    made = build({"j": scored(score_range=None)}, reward={"normalise": False, "group": step})
    for scores in ([1.7e308, 1.7e308, 1.0], [1e200, -1e200, 3.0], [1.7e308, -1.7e308]):
        for value in values(made.compute(samples(*({"s": s} for s in scores)))):
            assert value is None or math.isfinite(value)


def test_weights_that_cannot_work_are_refused() -> None:
    gate = FunctionGrader(lambda g: g, role=Role.GATE)
    penalty = FunctionGrader(lambda p: p, role=Role.PENALTY)
    points = {"aggregate": "points"}
    with pytest.raises(ConfigError, match="positive weight among the outcome scores"):
        build({"j": scored(), "g": gate}, entries={"j": {"weight": -1.0}}, reward=points)
    with pytest.raises(ConfigError, match="a penalty takes a weight"):
        build({"j": scored(), "p": penalty}, entries={"p": {"weight": -1.0}}, reward=points)


def test_two_samples_with_one_index_are_refused() -> None:
    twice = {"g": [RewardSample(0, 0, "p", "r", None, {"s": 1.0})] * 2}
    with pytest.raises(ValueError, match="original_index 0"):
        build({"j": scored()}).compute(twice)


def test_a_grader_that_exits_is_that_samples_bug() -> None:
    def leaves(n: int) -> float:
        if n == 1:
            raise SystemExit(3)
        return 1.0

    made = build({"j": FunctionGrader(leaves, score_range=(0, 1))})
    results = made.compute(samples({"n": 0}, {"n": 1}))
    assert results[0].score == 1.0
    assert results[1].missing is not None
    assert results[1].missing.kind is ErrorKind.BUG


def test_listwise_graders_see_each_group_once() -> None:
    made = build({"shortest": Shortest()})
    assert made.needs_whole_groups
    results = made.compute(samples({"n": 5}, {"n": 3}, {"n": 4}, {"n": 9}, {"n": 9}, group=3))
    assert values(results) == [0.0, 1.0, 0.5, 0.5, 0.5]


def test_a_lone_sample_cannot_be_ranked() -> None:
    [result] = build({"shortest": Shortest()}).compute(samples({"n": 5}))
    assert result.score is None
    [ranked] = build({"j": scored()}, reward={"group": "rank"}).compute(samples({"s": 1.0}))
    assert ranked.score is None


@pytest.mark.parametrize(
    ("mode", "env", "expected"),
    [
        ("replace", None, 5.0),
        ("weighted_sum", 2.0, 7.0),
        ("weighted_sum", -2.0, 3.0),
        ("multiply", 2.0, 10.0),
        ("multiply", 0.0, 0.0),
        ("multiply", -1.0, None),
        ("multiply", None, None),
        ("weighted_sum", None, None),
    ],
)
def test_combining_with_the_environment(
    mode: Any, env: float | None, expected: float | None
) -> None:
    reward = combine(0.5, env, mode=mode, judge_scale=10.0)
    if expected is None:
        assert isinstance(reward, GraderError)
        assert reward.kind is ErrorKind.INVALID_INPUT
    else:
        assert reward == expected


def test_a_reward_is_finite_or_missing() -> None:
    for mode in ("replace", "weighted_sum", "multiply"):
        reward = combine(1e308, 1e308, mode=mode, judge_scale=1e308)
        assert isinstance(reward, GraderError)
        assert reward.kind is ErrorKind.OUT_OF_RANGE


def test_a_negative_environment_can_be_allowed() -> None:
    assert combine(0.5, -1.0, mode="multiply", negative_env="allow") == -0.5


def test_event_and_outcome_weights() -> None:
    failed = GraderError("e", ErrorKind.TIMEOUT, "x")
    assert judge_part(0.5, 2.0, outcome_weight=1.0, event_weight=0.5) == 1.5
    assert judge_part(failed, 2.0, outcome_weight=0.0, event_weight=0.5) == 1.0
    assert judge_part(0.5, failed, outcome_weight=1.0, event_weight=0.5) is failed
    assert reduce_events([1.0, failed, 2.0], "sum") is failed
    assert reduce_events([1.0, 2.0], "mean") == 1.5
    assert reduce_events([], "sum") == 0.0
    assert isinstance(reduce_events([], "mean"), GraderError)


def test_event_graders_judge_each_event() -> None:
    graders = {"step": scored(), "whole": FunctionGrader(lambda w: w, score_range=(0, 1))}
    made = build(
        graders,
        entries={"step": {"scope": "event"}},
        reward={"event_weight": 0.5, "combine_mode": "weighted_sum", "judge_scale": 2.0},
    )
    rows = samples(
        {"w": 0.5, "env_reward": 1.0, "events": [{"s": 0.2}, {"s": 0.4}]},
        {"w": 0.5, "env_reward": 1.0, "events": [{"s": 0.2}, {"s": "budget"}]},
        {"w": 0.5, "env_reward": 1.0, "events": []},
        {"w": 0.5, "env_reward": 1.0},
    )
    results = made.compute(rows)
    assert values(results) == [pytest.approx(1 + 2 * (0.5 * 0.6 + 0.5)), None, 2.0, None]
    assert results[0].reward_info["step_score"] == pytest.approx(0.3)
    assert results[1].missing is not None
    assert results[1].missing.kind is ErrorKind.BUDGET
    assert results[3].missing is not None
    assert "events" in results[3].missing.error
    assert {tuple(r.reward_info) for r in results} == {tuple(results[0].reward_info)}


def test_a_share_of_groups_is_judged() -> None:
    asked: list[int] = []

    def judge(n: int) -> float:
        asked.append(n)
        return 1.0

    options: dict[str, Any] = {"sample_rate": 0.5, "combine_mode": "weighted_sum"}
    rows = samples(*({"n": n, "env_reward": 3.0} for n in range(400)), group=4)
    made = build({"j": FunctionGrader(judge, score_range=(0, 1))}, reward=options)
    results = made.compute(rows)
    drawn = {n // 4 for n in asked}
    assert len(asked) == 4 * len(drawn)
    assert 25 < len(drawn) < 75
    for result in results:
        if result.original_index // 4 in drawn:
            assert result.score == 4.0
        else:
            assert result.missing is not None
            assert result.missing.kind is ErrorKind.NOT_SAMPLED
    second = {r.original_index for r in made.compute(rows) if r.score is not None}
    assert second != {r.original_index for r in results if r.score is not None}
    env = build(
        {"j": FunctionGrader(judge, score_range=(0, 1))}, reward={**options, "unjudged": "env"}
    )
    assert {r.score for r in env.compute(rows)} == {3.0, 4.0}


def test_what_is_not_sampled_counts_nowhere() -> None:
    made = build({"j": scored()}, reward={"sample_rate": 1e-9}, missing={"policy": "raise"})
    assert values(made.compute(samples({"s": 1.0}))) == [None]


def test_results_are_matched_by_index_exactly_once() -> None:
    rows = samples({}, {})
    good = [RewardResult(1, 1, 0.5), RewardResult(0, 0, None)]
    assert list(check_results(good, rows)) == [1, 0]
    for bad, message in (
        ([good[0]], "no result for original_index \\[0\\]"),
        ([*good, good[0]], "two results"),
        ([*good, RewardResult(7, 0, 1.0)], "unknown original_index \\[7\\]"),
    ):
        with pytest.raises(ValueError, match=message):
            check_results(bad, rows)


def test_it_works_inside_a_running_loop() -> None:
    made = build({"j": scored()})
    results = asyncio.run(made.compute_batch_scores(samples({"s": 0.25})))
    assert values(results) == [0.25]
    assert not math.isnan(results[0].score or 0.0)
