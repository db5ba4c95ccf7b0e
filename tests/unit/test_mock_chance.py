"""Latency, faults, outages and limits of the mock provider: what is drawn, and what is refused."""

import statistics
from collections import Counter

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError
from adjudge.mock.faults import (
    FAULTS,
    DrawStream,
    FaultSampler,
    Outage,
    draw_latency,
    draw_uniform,
    parse_fault_option,
    parse_latency,
    parse_outage_option,
)

N = 20_000


def drawn(*specs: str, seed: int = 1) -> list[float]:
    parts = [parse_latency(spec) for spec in specs]
    return [draw_latency(parts, seed, number, 3) for number in range(1, N + 1)]


def test_draws_are_uniform_and_their_own() -> None:
    for stream in (DrawStream.FAULT, DrawStream.LATENCY, DrawStream.LATENCY + 1):
        values = [draw_uniform(5, number, stream) for number in range(N)]
        assert min(values) > 0
        assert max(values) < 1
        assert statistics.fmean(values) == pytest.approx(0.5, abs=0.01)
        assert statistics.pvariance(values) == pytest.approx(1 / 12, abs=0.003)
    one = [draw_uniform(5, number, 0) for number in range(N)]
    other = [draw_uniform(5, number, 1) for number in range(N)]
    assert abs(statistics.correlation(one, other)) < 0.03
    assert abs(statistics.correlation(one[1:], one[:-1])) < 0.03
    assert draw_uniform(5, 7, 0) != draw_uniform(6, 7, 0)


def test_lognormal_has_its_median_and_tail() -> None:
    values = sorted(drawn("lognormal:0.2,1.288"))
    assert values[N // 2] == pytest.approx(0.2, rel=0.05)
    assert values[int(N * 0.99)] == pytest.approx(20 * 0.2, rel=0.15)


def test_parts_add_up_and_load_counts_the_others() -> None:
    assert drawn("fixed:0.02", "load:0.01") == pytest.approx([0.05] * N)
    hangs = drawn("fixed:0.02", "hang:0.1,60")
    assert Counter(round(value, 2) for value in hangs).keys() == {0.02, 60.02}
    assert sum(value > 1 for value in hangs) / N == pytest.approx(0.1, abs=0.01)


def test_one_seed_one_latency_per_request_whatever_else_is_asked_for() -> None:
    assert drawn("lognormal:0.2,1") == drawn("lognormal:0.2,1")
    assert drawn("lognormal:0.2,1") != drawn("lognormal:0.2,1", seed=2)
    both = drawn("lognormal:0.2,1", "fixed:1")
    assert both == pytest.approx([value + 1 for value in drawn("lognormal:0.2,1")])


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("lognorml:1,1", "did you mean 'lognormal'"),
        ("fixed:x", "fixed:SECONDS"),
        ("fixed:-1", "0 or more"),
        ("lognormal:1", "lognormal:MEDIAN,SIGMA"),
        ("hang:2,1", "probability"),
    ],
)
def test_a_wrong_latency_is_explained(spec: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_latency(spec)


def test_faults_come_as_often_as_asked_and_one_at_a_time() -> None:
    faults = FaultSampler(
        [parse_fault_option("429:0.05"), parse_fault_option("drip=0.5:0.2")], seed=3
    )
    names = Counter(fault.name for n in range(N) if (fault := faults.breaking(n)) is not None)
    assert names["429"] / N == pytest.approx(0.05, abs=0.006)
    assert names["drip"] / N == pytest.approx(0.2, abs=0.012)


def test_details_go_wrong_on_their_own() -> None:
    specs = ("drop-logprobs:0.5", "wrong-id:0.5", "500:0.5")
    faults = FaultSampler([parse_fault_option(spec) for spec in specs], seed=3)
    seen = Counter((faults.breaking(n) is not None, faults.modifying(n)) for n in range(N))
    assert len(seen) == 8
    assert min(seen.values()) / N == pytest.approx(1 / 8, abs=0.015)


def test_every_fault_can_be_asked_for() -> None:
    for name in FAULTS:
        assert parse_fault_option(f"{name}:0.5").name == name
    assert parse_fault_option("429-retry:1").value == 1.0
    assert parse_fault_option("hang:1").value is None
    assert parse_fault_option("hang=30:1").value == 30.0


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("429", "NAME:PROBABILITY"),
        ("429:2", "from 0 to 1"),
        ("resett:0.1", "did you mean 'reset'"),
        ("500=3:0.1", "takes no value"),
        ("hang=x:0.1", "must be a number of seconds"),
    ],
)
def test_a_wrong_fault_is_explained(spec: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_fault_option(spec)


def test_faults_beyond_all_requests_are_refused() -> None:
    with refuses("--fail"):
        FaultSampler([parse_fault_option("429:0.6"), parse_fault_option("500:0.6")], seed=0)


def test_outages() -> None:
    assert parse_outage_option("60,120") == Outage(60, 120)
    assert parse_outage_option("60,120,503") == Outage(60, 120, 503)
    for wrong in ("60", "120,60", "60,120,500", "a,b", "1,2,503,4", ""):
        with refuses("--outage"):
            parse_outage_option(wrong)
