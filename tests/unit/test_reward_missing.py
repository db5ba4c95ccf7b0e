"""Rewards that are missing: asking again, outages, and the policies."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.reward_functions import FakeClock, build, samples, scored, values

from adjudge import (
    BaseGrader,
    FunctionGrader,
    GraderMode,
    GraderRank,
    GradingFailure,
    Journal,
    RewardResult,
    RewardSample,
    RewardSpec,
    SpecRewardFunction,
)
from adjudge.errors import REDRAW_KINDS, JudgeAuthError, JudgeUnavailable, MissingRewardError
from adjudge.runner.progress import Tally


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
    ("kinds", "asks"),
    [
        (["timeout", "rate_limited", "connection", "server_error", "circuit_open"], 2),
        (["unparsable", "truncated", "refused"], 2),  # the same draw, another attempt
        (["out_of_range", "budget", "bug", "invalid_input", "unsupported"], 1),
    ],
)
def test_what_may_pass_or_be_read_is_asked_once_more(kinds: list[str], asks: int) -> None:
    for kind in kinds:
        once, ever = Flaky(kind, 1), Flaky(kind, 9)
        found = build({"flaky": once}).compute(samples({"n": 0}, {"n": 1}))
        assert values(found) == [1.0 if asks == 2 else None] * 2
        assert once.asks == [(0, 0), (1, 0)] * asks  # after the others
        if kind == "connection":  # who was never reached is waited for
            continue
        [lost] = build({"flaky": ever}).compute(samples({"n": 0}))
        assert lost.missing is not None
        assert (lost.missing.kind, len(ever.asks)) == (kind, asks)
        assert "not yet" in lost.missing.error


def test_a_repeated_ask_is_counted_once() -> None:
    spec = RewardSpec.from_dict({"graders": [{"name": "j", "type": "m:C"}]})
    tally = Tally(3)
    made = SpecRewardFunction(spec, graders={"j": scored()}, tally=tally)
    made.compute(samples({"s": 1.0}, {"s": "timeout"}, {"s": "unparsable"}))
    assert tally.done == 3
    assert +tally.failures == {"timeout": 1, "unparsable": 1}


def judging(
    fails: Callable[[int], str | None], asked: list[int] | None = None, **metadata: Any
) -> FunctionGrader:
    """1 for each sample's ``n``, but where ``fails`` names a kind; ``asked`` has each ``n``."""

    def judge(n: int) -> float:
        if asked is not None:
            asked.append(n)
        if kind := fails(n):
            raise GradingFailure(kind, "said so", dict(metadata))
        return 1.0

    return FunctionGrader(judge, score_range=(0, 1))


def test_an_outage_is_outlasted() -> None:
    clock = FakeClock()
    judge = judging(lambda _: "server_error" if clock.now < 100 else None)
    rows = samples(*({"n": n} for n in range(64)))
    assert values(build({"j": judge}, clock=clock).compute(rows)) == [1.0] * 64
    assert 100 <= clock.now <= 131


def test_an_outage_that_outlasts_the_patience_stops_under_every_policy() -> None:
    for policy in ("mask", "drop_group", "raise"):
        clock = FakeClock()
        made = build({"j": scored()}, missing={"policy": policy, "patience_s": 600}, clock=clock)
        with pytest.raises(JudgeUnavailable, match="600 s.*timeout"):
            made.compute(samples(*({"s": "timeout"} for _ in range(40))))
        assert clock.now == pytest.approx(600)


def test_parse_failures_and_few_failures_are_no_outage() -> None:
    cases: list[list[list[Any]]] = [
        [["unparsable"] * 64, ["timeout"] * 32 + [0.5] * 32],
        [["timeout"]],
        [[0.5] * 34 + ["rate_limited"] * 30, [0.5] * 4],  # of the last, nothing is missing
    ]
    for calls in cases:
        clock = FakeClock()
        made = build({"j": scored()}, clock=clock)
        for told in calls:
            found = values(made.compute(samples(*({"s": s} for s in told))))
            assert found == [None if isinstance(s, str) else s for s in told]
        assert clock.now == 0


MET, WAITED, STOPPED = "goes on", "600 s", "at once"


@pytest.mark.parametrize(
    ("kind", "metadata", "shape", "ends"),
    [
        *((kind, {}, [(8, 4)], WAITED) for kind in ("unparsable", "out_of_range", "truncated",
          "incomplete", "timeout", "rate_limited", "server_error")),
        ("unparsable", {}, [(8, 8)], MET),  # one prompt may be too hard for a judge
        ("unparsable", {}, [(8, 8), (8, 8)], WAITED),
        ("unparsable", {}, [(4, 4), (2, 2), (1, 1)], MET),
        ("unparsable", {}, [(1, 1)] * 31, MET),  # all of one group
        ("unparsable", {}, [(1, 1)] * 32, WAITED),
        ("invalid_input", {"status": 404}, [(1, 1)], STOPPED),
        ("invalid_input", {"judge": True, "final": True}, [(1, 1)], STOPPED),
        ("unsupported", {"status": 400}, [(4, 4)], STOPPED),
        ("unsupported", {"status": 307}, [(1, 1)], STOPPED),
        ("refused", {"status": 400}, [(24, 4)], MET),
        ("refused", {"status": 400}, [(16, 4), (16, 4)], WAITED),
        ("invalid_input", {"status": 400, "suspect": True}, [(24, 4)], MET),
        ("invalid_input", {"status": 413, "suspect": True}, [(64, 64)], MET),  # one long prompt
        ("invalid_input", {"status": 413, "suspect": True}, [(64, 8)], WAITED),
        ("invalid_input", {}, [(64, 4)], MET),  # the rows lack something
        ("unsupported", {}, [(64, 4)], MET),
        ("bug", {}, [(64, 4)], MET),
        ("timeout", {"local": True}, [(64, 4)], MET),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suspect", ["missing", "min"])
def test_a_run_ends_where_no_reward_is_left(
    kind: str, metadata: dict[str, Any], shape: list[tuple[int, int]], ends: str, suspect: str
) -> None:
    """After an answer; ``shape``: the samples of each call, and how many are a group."""
    clock, numbers, asked = FakeClock(), itertools.count(), list[int]()
    judge = judging(lambda n: kind if n else None, asked, **metadata)
    made = build({"j": judge}, missing={"suspect": suspect}, clock=clock)

    def call(count: int, group: int) -> None:
        made.compute(samples(*({"n": n} for n in itertools.islice(numbers, count)), group=group))

    call(1, 1)
    for one in shape[:-1]:
        call(*one)
    if ends == MET:
        call(*shape[-1])
    else:
        with pytest.raises(JudgeUnavailable, match="j: .*said so") as stopped:
            call(*shape[-1])
        assert stopped.value.kind == kind
    assert clock.now == (600 if ends == WAITED else 0)
    if ends != WAITED:
        assert len(asked) == 1 + (2 if kind in REDRAW_KINDS else 1) * sum(n for n, _ in shape)


def numbered(start: int, stop: int) -> dict[str, list[RewardSample]]:
    return samples(*({"n": n, "s": 0.5} for n in range(start, stop)))


@pytest.mark.parametrize("beside", [{}, {"rule": {}}, {"rule": {"weight": 0.0}}])
def test_a_judge_that_gives_verdicts_again_ends_the_outage(beside: dict[str, Any]) -> None:
    clock, asked = FakeClock(), list[int]()
    graders = {name: judging(lambda n: "invalid_input" if n else None) for name in beside}
    graders["j"] = judging(
        lambda n: "unparsable" if n and clock.now < 20 else None, asked, asked_again=True
    )
    made = build(graders, entries=beside, clock=clock, missing={"max_missing": 0.9})
    made.compute(numbered(0, 1))
    there = beside.get("rule", {"weight": 0.0}).get("weight") == 0.0
    assert values(made.compute(numbered(1, 65))) == [1.0 if there else None] * 64
    assert 20 <= clock.now < 60
    assert len(asked) < 64 + 64 + 40  # a few stand for all until one is answered


@pytest.mark.parametrize("kind", ["unparsable", "invalid_input"])
def test_what_other_graders_lack_does_not_hide_that_judges_answer(kind: str) -> None:
    """A grader for each task, and a rule that fails for all; one of eight judgements fails."""
    metadata: dict[str, Any] = {"status": 404} if kind != "unparsable" else {}
    task = judging(lambda n: kind if n % 8 == 7 else None, **metadata)
    graders = {"a": task, "b": task, "rule": judging(lambda n: "invalid_input" if n else None)}
    entries = {name: {"mapper": {"n": name}} for name in "ab"}
    for names in ("a", "b"), ("a", "b", "rule"):
        clock = FakeClock()
        made = build({name: graders[name] for name in names}, entries=entries, clock=clock)
        for start in range(0, 256, 16):
            rows = ({"n": n, "ab"[n // 4 % 2]: n} for n in range(start, start + 16))
            assert values(made.compute(samples(*rows))).count(None) >= 2
        assert clock.now == 0


def test_a_ranking_that_nobody_can_read_counts_as_one_question() -> None:
    class Ranking(BaseGrader):
        async def aevaluate(self, n: list[int]) -> GraderRank:
            if n[0]:
                raise GradingFailure("unparsable", "no ranks")
            return GraderRank(self.name, [float(place) for place in range(1, len(n) + 1)])

    clock = FakeClock()
    made = build({"j": Ranking("j", GraderMode.LISTWISE)}, clock=clock)
    made.compute(numbered(0, 4))
    made.compute(numbered(4, 32))
    assert clock.now == 0
    with pytest.raises(JudgeUnavailable):
        made.compute(numbered(32, 36))


def test_calls_that_overlap_outlast_an_outage_each_for_itself() -> None:
    clock = FakeClock()
    judge = judging(lambda _: "server_error" if clock.now < 40 else None)
    made = build({"j": judge}, clock=clock)

    async def all_at_once() -> list[list[RewardResult]]:
        alone = ({"g": [RewardSample(n, 0, "p", "r", None, {"n": n})]} for n in range(40))
        tasks = [asyncio.create_task(made.compute_batch_scores(one)) for one in alone]
        return [await task for task in tasks]

    scores = [result.score for [result] in asyncio.run(all_at_once())]
    assert scores.count(1.0) >= 23  # those that met the outage waited for its end
    assert all(score in (1.0, None) for score in scores)
    assert clock.now < 600


def test_what_was_resumed_does_not_hide_an_outage(tmp_path: Path) -> None:
    rows = samples(*({"n": n} for n in range(100)))
    graders = {"j": judging(lambda n: "timeout" if n >= 60 else None)}
    spec = RewardSpec.from_dict(
        {"graders": [{"name": "j", "type": "m:C"}], "missing": {"patience_s": 5}}
    )

    def compute() -> list[float | None]:
        journal = Journal(tmp_path / "journal.jsonl", "spec")
        made = SpecRewardFunction(spec, graders=graders, clock=FakeClock(), journal=journal)
        return values(made.compute(rows))

    assert compute().count(1.0) == 60
    with pytest.raises(JudgeUnavailable):
        compute()


def test_a_refused_key_stops_the_run() -> None:
    with pytest.raises(JudgeAuthError, match="401|recorded auth"):
        build({"j": scored()}).compute(samples({"s": 1.0}, {"s": "auth"}))


def test_policy_raise_ends_with_every_error() -> None:
    made = build({"j": scored()}, missing={"policy": "raise"})
    with pytest.raises(MissingRewardError) as caught:
        made.compute(samples({"s": 1.0}, {"s": "budget"}, {"s": "bug"}))
    assert [error.kind for error in caught.value.errors] == ["budget", "bug"]
    assert values(made.compute(samples({"s": 1.0}))) == [1.0]


def test_a_fallback_must_be_a_rule_and_named() -> None:
    with refuses("spec.missing.fallback"):
        build({"j": scored()}, missing={"policy": "fallback", "fallback": "j"})
    with refuses("spec.missing.fallback"):
        build({"judge": scored()}, missing={"policy": "fallback", "fallback": "jugde"})
    with refuses("spec.missing.fallback"):
        build({"j": scored()}, missing={"policy": "fallback"})


def test_a_sample_without_a_reward_shapes_no_group() -> None:
    """Whatever makes it missing: its events, or the environment's reward."""
    graders = {"j": scored(), "e": scored()}
    entries = {"e": {"scope": "event"}}
    good = [{"s": s, "env_reward": 1.0, "events": [{"s": 0.5}]} for s in (0.2, 0.4, 0.9)]
    broken = [
        {"s": 0.9, "env_reward": 1.0, "events": [{"s": "budget"}]},
        {"s": 0.9, "events": [{"s": 0.5}]},
    ]
    for step in ("centre", "rloo", "z_score", "gdpo", "rank", "best_bonus"):
        reward = {"group": step, "event_weight": 0.5, "combine_mode": "multiply"}
        made = build(graders, entries=entries, reward=reward)
        alone = values(made.compute(samples(*good)))
        for bad in broken:
            assert values(made.compute(samples(*good, bad))) == [*alone, None]
    made = build(
        graders,
        entries=entries,
        reward={"event_weight": 0.5, "combine_mode": "multiply"},
        missing={"policy": "drop_group"},
    )
    assert values(made.compute(samples(*good, broken[0]))) == [None] * 4


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
