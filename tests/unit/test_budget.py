"""Prices, estimates, the spend ceiling, settings, and the table's numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses

from adjudge.judges.endpoint.settings import (
    EndpointSettings,
    LatencyHistogram,
    Price,
    estimate_tokens,
)
from adjudge.types import Usage


def test_cached_tokens_have_their_own_price() -> None:
    usage = Usage(input_tokens=100, cached_tokens=80, output_tokens=10)
    assert Price(input=1.0, output=2.0).cost(usage) == pytest.approx(120e-6)
    assert Price(input=1.0, output=2.0, cached_input=0.5).cost(usage) == pytest.approx(80e-6)
    more = Usage(input_tokens=10, cached_tokens=80)  # as a server once said
    assert Price(input=1.0, output=2.0).cost(more) == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("content", "least"),
    [
        ("x" * 3000, 1000),
        ("语" * 1000, 1000),
        ("\ud800", 1),
        ([{"type": "text", "text": "x" * 3000}], 1000),
        ([{"type": "image_url", "image_url": {"url": "data:" + "A" * 10**6}}], 1500),
        (None, 0),
    ],
)
def test_input_estimates_are_on_the_safe_side_and_not_absurd(content: object, least: int) -> None:
    reads, _ = estimate_tokens([{"role": "user", "content": content}], {})
    assert least <= reads <= least + 10


def test_output_estimates_are_the_calls_own_limit() -> None:
    assert estimate_tokens([], {})[1] == 1024
    assert estimate_tokens([], {"max_tokens": 7})[1] == 7
    assert estimate_tokens([], {"max_completion_tokens": 9, "max_tokens": 7})[1] == 9
    assert estimate_tokens([], {"max_tokens": 7, "n": 3})[1] == 21


def test_tool_calls_are_counted() -> None:
    call = {"function": {"name": "search", "arguments": "x" * 300}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert estimate_tokens([message], {})[0] > 100


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrency", 0),
        ("max_attempts", 0),
        ("deadline_s", 0.0),
        ("budget_usd", -1.0),
        ("requests_per_minute", 0.0),
        ("deadline_s", math.nan),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: float) -> None:
    with refuses(name):
        EndpointSettings(**{name: value})  # type: ignore[arg-type]  # one of many types


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_are_right_to_a_few_percent(samples: list[float], share: float) -> None:
    seen = LatencyHistogram()
    for sample in samples:
        seen.add(sample)
    exact = sorted(samples)[math.ceil(share * len(samples)) - 1]
    found = seen.quantile(share)
    assert found is not None
    near = [s for s in samples if abs(s / found - 1) < 0.02]
    assert near
    ranks = [sum(other < s for other in samples) / len(samples) for s in near]
    assert found == pytest.approx(exact, rel=0.02) or min(abs(r - share) for r in ranks) < 0.01
