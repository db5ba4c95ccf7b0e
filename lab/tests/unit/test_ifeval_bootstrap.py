"""The bootstrap of IFEval's shares: the same rules as in pure Python, however many models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from lab.tests.unit.helpers.ifeval_files import GOOD, prompt, response

from adjudge.stats import Estimate
from adjudge.stats.estimates import draw_counts, expanded_tail
from adjudge_lab.evaluation.ifeval.scoring import (
    JudgedResponses,
    PromptRatio,
    bootstrap_ratios,
    compute_ifeval_metrics,
    judge_responses,
)
from adjudge_lab.evaluation.responses import PromptResponse

_RESAMPLES = 200


def quantile(ordered: list[float], q: float) -> float:
    place = q * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, -0.5, 0.0, 1 / 3, 1.0]), st.integers(1, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_one_ratio_by_hand(prompts: list[tuple[float, int]]) -> None:
    counts = next(draw_counts(len(prompts), _RESAMPLES, 0)).tolist()
    drawn = sorted(
        sum(n * of[0] for n, of in zip(row, prompts, strict=True))
        / sum(n * of[1] for n, of in zip(row, prompts, strict=True))
        for row in counts
    )
    assert {sum(row) for row in counts} == {len(prompts)}
    [(found, p)] = bootstrap_ratios(
        [PromptRatio(*map(list, zip(*prompts, strict=True)))], _RESAMPLES
    )
    assert found.value == pytest.approx(sum(a for a, _ in prompts) / sum(b for _, b in prompts))
    if drawn[-1] - drawn[0] < 1e-12:
        assert (found.low, found.high, found.why) == (None, None, "all units score the same")
        assert p == (None if abs(drawn[0]) > 1e-12 else 1.0)
        return
    end = expanded_tail(len(prompts))
    assert found.low == pytest.approx(quantile(drawn, end), abs=1e-12)
    assert found.high == pytest.approx(quantile(drawn, 1 - end), abs=1e-12)
    assert p is not None
    if drawn[0] > 1e-12:
        assert p < 0.5


def test_of_no_prompt_there_is_nothing() -> None:
    [found, (other, _)] = bootstrap_ratios([PromptRatio([], []), PromptRatio([1, 0], [1, 1])], 50)
    assert found == (Estimate(why="too few resamples have a score"), None)
    assert other.value == 0.5


def test_the_mean_of_two_ratios_by_hand() -> None:
    followed, hits, total = [1.0, 0.0, 1.0, 0.0], [1.0, 2.0, 3.0, 0.0], [1, 3, 3, 1]
    two = [PromptRatio(followed, [1] * 4), PromptRatio(hits, total)]
    alone = bootstrap_ratios(two, _RESAMPLES)
    *shares, (found, _) = bootstrap_ratios(two, _RESAMPLES, means=[(0, 1)])
    assert shares == alone

    def weigh(row: list[float], values: Sequence[float]) -> float:
        return sum(n * of for n, of in zip(row, values, strict=True))

    counts = next(draw_counts(4, _RESAMPLES, 0)).tolist()
    drawn = sorted(weigh(c, followed) / 8 + weigh(c, hits) / weigh(c, total) / 2 for c in counts)
    assert found.value == (2 / 4 + 6 / 8) / 2
    end = expanded_tail(4)
    assert found.low == pytest.approx(quantile(drawn, end))
    assert found.high == pytest.approx(quantile(drawn, 1 - end))


def test_a_missing_response_widens_the_bounds_of_the_mean_alone() -> None:
    [metrics] = compute_ifeval_metrics([judged({0}, range(11))], resamples=50)
    strict = metrics["strict"]
    two = [strict[level] for level in ("prompt", "instruction")]
    for key in ("value", "least", "most"):
        assert strict["mean"][key] == pytest.approx((two[0][key] + two[1][key]) / 2)
    assert strict["mean"]["prompts"] == 11


def judged(bad: set[int], keys: range = range(12)) -> JudgedResponses:
    texts = [response(key, "a, b" if key in bad else GOOD) for key in keys]
    rows = [
        PromptResponse(place=row["prompt"], sample=0, text=row["response"], line=at)
        for at, row in enumerate(texts, 1)
    ]
    return judge_responses([prompt(key) for key in range(12)], rows, by="prompt")
