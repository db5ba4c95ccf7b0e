"""What adapters share: a scored batch, its metrics, and what is never a number."""

import asyncio
import copy
import math
import pickle
from typing import Any, ClassVar

import pytest

from adjudge.errors import GradingFailure, JudgeUnavailable
from adjudge.graders.base import BaseGrader
from adjudge.rewards import RewardSample, RewardSpec
from adjudge.trainers.metrics import group_length_correlation
from adjudge.trainers.scoring import Scorer, ScorerResult
from adjudge.trainers.verl.rewards import (
    count_reward,
    loop_row,
    missing_metrics,
    read_loop_rows,
)
from adjudge.types import (
    GraderMode,
    GraderRank,
    GraderScore,
    Provenance,
    Usage,
)

SPEC: dict[str, Any] = {
    "graders": [
        {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]}
    ],
    "judges": {
        "main": {"type": "scripted", "script": {"fail": "no verdict", "": '{"score": 0.5}'}}
    },
}


def scorer(**reward: Any) -> Scorer:
    return Scorer(RewardSpec.from_dict({**SPEC, "reward": reward}))


def batch(*responses: str) -> tuple[list[RewardSample], list[str]]:
    samples = [RewardSample(i, i % 2, "p", text) for i, text in enumerate(responses)]
    return samples, [f"g{i // 2}" for i in range(len(responses))]


def test_a_failed_judge_is_missing_and_counted_by_kind() -> None:
    scored = scorer().score(*batch("a", "fail", "b", "c"))
    assert scored.rewards == [0.5, None, 0.5, 0.5]
    assert scored.metrics["judge/missing_frac"] == 0.25
    assert scored.metrics["judge/missing_frac/unparsable"] == 0.25
    assert scored.metrics["judge/score_mean"] == 0.5
    assert scored.metrics["judge/quality_score_mean"] == 0.5
    assert scored.metrics["judge/zero_std_frac"] == 1.0


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([None] * 3, ["2 of 4"]),  # later ones only after ten seconds
        ([1, 2, 2, 3], ["2 of 4", "2 of 4", "4 of 8"]),
    ],
)
def test_why_rewards_are_missing_is_a_line_a_step(
    steps: list[int | None], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    judge = scorer()
    for step in steps:
        judge.score(*batch("a", "fail", "b", "fail"), step=step)
    ours = [one for one in caplog.messages if "rewards are missing (unparsable" in one]
    assert len(ours) == len(said)
    assert all(f"{count} rewards" in one for count, one in zip(said, ours, strict=True))
    assert "; the first: quality: " in ours[0]


@pytest.mark.parametrize("suspect", ["missing", "min"])
def test_suspect_failures_are_seen_whatever_they_become(
    suspect: str, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Scorer(RewardSpec.from_dict({**SPEC, "missing": {"suspect": suspect}}))
    [first, last] = [judge.score(*batch("a", text, "b", "c")) for text in ("fail", "d")]
    assert first.rewards == [0.5, 0.0 if suspect == "min" else None, 0.5, 0.5]
    assert first.metrics["judge/suspect_frac"] == 0.25
    assert last.metrics["judge/suspect_frac"] == 0.0
    [said] = [one for one in caplog.messages if "1 of 4 rewards" in one]
    assert "(unparsable 1); the first: " in said
    assert "quality: " in said
    made = loop_row(first.results[1], [], {})
    columns = {name: [value] for name, value in made.items()}
    reward = math.nan if first.rewards[1] is None else first.rewards[1]
    [row] = read_loop_rows(columns, [reward], ["u"], [1]).results
    assert (row.suspect, "imputed" in (row.details or {})) == (True, False)
    assert missing_metrics(count_reward(row))["judge/suspect_frac"] == 1.0


def test_a_spent_budget_ends_training() -> None:
    class Unpaid(BaseGrader):
        score_range = (0.0, 1.0)

        async def aevaluate(self, response: str) -> float:
            if response == "unpaid":
                raise GradingFailure("budget", "the spend ceiling is reached")
            return 0.5

    graders = {"graders": [{"name": "g", "type": "m:C"}]}
    for share in (0.5, 1.0):
        spec = RewardSpec.from_dict({**graders, "missing": {"max_missing": share}})
        judge = Scorer(spec, graders={"g": Unpaid("g")})
        assert judge.score(*batch("a", "b")).rewards == [0.5, 0.5]
        if share == 1.0:
            assert judge.score(*batch("a", "unpaid")).rewards == [0.5, None]
            continue
        with pytest.raises(JudgeUnavailable, match="g: .*ceiling") as stopped:
            judge.score(*batch("a", "unpaid"))
        assert stopped.value.kind == "budget"


def test_an_answer_that_breaks_its_judge_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    watching = scorer()
    for step in range(6):
        scored = watching.score(*batch(*(["fail ```x```", "fine so far."] * 4)))
        assert scored.metrics["judge/missing_predictors"] == float(step >= 4), step
    warnings = [r.message for r in caplog.records if "'code block'" in r.message]
    assert len(warnings) == 1
    assert "no reward in 100%" in warnings[0]


def drawn(one: Scorer, step: int | None = None) -> list[bool]:
    return [reward is not None for reward in one.score(*batch(*"abcdefgh"), step=step).rewards]


def test_a_step_draws_the_same_groups_whoever_asks() -> None:
    """So a trainer whose group comes in several calls can honour ``sample_rate``."""
    here, there = scorer(sample_rate=0.5, seed=3), scorer(sample_rate=0.5, seed=3)
    drawn(there)
    steps = [drawn(here, step) for step in range(6)]
    assert steps == [drawn(there, step) for step in range(6)]
    assert len({tuple(step) for step in steps}) > 1
    alone = [
        here.score([sample], [group], step=2).rewards[0] is not None
        for sample, group in zip(*batch(*"abcdefgh"), strict=True)
    ]
    assert alone == steps[2]


class Paid(BaseGrader):
    """Answers with the provenance that the response names."""

    score_range = (0.0, 1.0)
    usage = Usage(input_tokens=100, output_tokens=10, cached_tokens=60, cost_usd=0.25)
    found: ClassVar[dict[str, Provenance | None]] = {
        "live": Provenance(source="live", usage=usage),
        "mixed": Provenance(usage=Usage(input_tokens=5, output_tokens=1)),
        "silent": Provenance(source="live"),
        "shared": Provenance(source="shared", usage=usage),
        "cache": Provenance(source="cache", usage=usage),
        "cassette": Provenance(source="cassette", usage=usage),
        "rule": None,
    }

    async def aevaluate(self, response: Any) -> Any:
        if self.mode is GraderMode.LISTWISE:
            rank = [float(place) for place in range(1, len(response) + 1)]
            return GraderRank(self.name, rank, provenance=self.found["live"])
        return GraderScore(self.name, 0.5, provenance=copy.copy(self.found[response]))


def paid(mode: GraderMode, *responses: str) -> ScorerResult:
    one = Scorer(scorer().spec, graders={"quality": Paid("quality", mode)})
    samples = [RewardSample(i, i, "p", text) for i, text in enumerate(responses)]
    return one.score(samples, ["g"] * len(samples))


def used(mode: GraderMode, *responses: str) -> Usage | None:
    return paid(mode, *responses).usage


def test_usage_is_what_live_calls_consumed() -> None:
    both = used(GraderMode.POINTWISE, "live", "cache", "mixed", "shared", "live", "rule")
    assert both == Usage(input_tokens=205, output_tokens=21, cached_tokens=120, cost_usd=0.5)
    unpriced = used(GraderMode.POINTWISE, "mixed", "silent")
    assert unpriced == Usage(input_tokens=5, output_tokens=1)
    for kept in ("silent", "shared", "cache", "cassette", "rule"):
        assert used(GraderMode.POINTWISE, kept) is None


def test_a_call_about_a_whole_group_is_paid_once() -> None:
    scored = paid(GraderMode.LISTWISE, "a", "b", "c")
    assert scored.usage == Paid.usage
    assert scored.metrics["judge/cost_usd"] == 0.25


def test_a_pickled_scorer_scores_the_same_in_a_running_loop() -> None:
    one = pickle.loads(pickle.dumps(scorer()))

    async def step() -> Any:
        return (await one.ascore(*batch("a", "fail"))).rewards, one.score(*batch("b")).rewards

    assert asyncio.run(step()) == ([0.5, None], [0.5])


def test_length_correlation_looks_inside_groups_only() -> None:
    scores = [0.0, 0.1, 0.2, 1.0, 1.1, 1.2]
    lengths = [30, 20, 10, 300, 200, 100]
    assert group_length_correlation(scores, lengths, list("aaabbb")) == pytest.approx(-1.0)
    assert group_length_correlation([1.0, 1.0, 1.0], [1, 2, 3], list("aaa")) is None
