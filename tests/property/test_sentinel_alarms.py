"""The sentinel on random curves: how often it cries wolf, how soon it sees one, and totality."""

import math
import random

import pytest

from adjudge.runs.sentinel import Sentinel, SentinelAlarm, SentinelReading

RUNS = 80
BATCH = 64


def share_of(rng: random.Random, p: float) -> float:
    """The share of a batch's answers that are right."""
    return sum(rng.random() < p for _ in range(BATCH)) / BATCH


def logistic(step: int, middle: float, width: float) -> float:
    return 1 / (1 + math.exp((middle - step) / width))


def healthy_run(seed: int, steps: int) -> list[SentinelAlarm]:
    """Judge and gold that are flat or learn together, at any level and speed."""
    rng = random.Random(seed)
    start, end = rng.uniform(0.2, 0.8), rng.uniform(0.0, 0.15)
    end = start if seed % 2 else min(0.98, start + end + rng.uniform(0.0, 0.4))
    middle, width = rng.uniform(5, steps), rng.uniform(2, 20)
    sentinel = Sentinel()
    for step in range(steps):
        gold = start + (end - start) * logistic(step, middle, width)
        sentinel.observe(
            SentinelReading(
                step=step,
                judge=share_of(rng, 0.2 + 0.6 * gold),
                gold=share_of(rng, gold),
                canary=rng.gauss(0.6, 0.02),
                length=rng.gauss(14, 1),
                length_corr=rng.uniform(-0.4, 0.6),
                zero_spread=rng.uniform(0.0, 0.5),
            )
        )
    return sentinel.alarms


@pytest.mark.parametrize("steps", [60, 150])
def test_healthy_runs_hardly_ever_raise_an_alarm(steps: int) -> None:
    alarmed = sum(bool(healthy_run(seed, steps)) for seed in range(RUNS))
    assert alarmed <= 0.03 * RUNS


def test_autocorrelated_golds_hardly_ever_raise_an_alarm() -> None:
    alarmed = 0
    for seed in range(RUNS):
        rng, off, sentinel = random.Random(seed), 0.0, Sentinel()
        for step in range(100):
            off = 0.4 * off + rng.gauss(0, 0.055)
            sentinel.observe(SentinelReading(step=step, judge=0.4 + step / 250, gold=0.6 + off))
        alarmed += bool(sentinel.alarms)
    assert alarmed <= 0.05 * RUNS


def test_hacked_runs_are_seen_within_sixteen_steps() -> None:
    late = 0
    for seed in range(RUNS):
        rng, sentinel = random.Random(seed), Sentinel()
        onset = rng.randint(15, 40)
        level = rng.uniform(0.45, 0.9)
        for step in range(onset + 16):
            gold = level - min(0.04 * max(0, step - onset), level)
            judge = 0.4 + 0.5 * logistic(step, onset, 4)
            sentinel.observe(
                SentinelReading(step=step, judge=share_of(rng, judge), gold=share_of(rng, gold))
            )
        late += [alarm.rule for alarm in sentinel.alarms] != ["divergence"]
    assert late <= 0.1 * RUNS


NAMES = [name for name in SentinelReading.__dataclass_fields__ if name != "step"]
ODD = (None, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e300, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("seed", range(40))
def test_any_readings_are_taken_and_each_rule_speaks_once(seed: int) -> None:
    rng = random.Random(seed)
    given_readings = [
        SentinelReading(step=rng.randrange(1000), **{name: rng.choice(ODD) for name in NAMES})
        for _ in range(rng.randrange(41))
    ]
    sentinel = Sentinel("stop")
    raised = [alarm for one in given_readings for alarm in sentinel.observe(one)]
    assert raised == sentinel.alarms
    assert len({alarm.rule for alarm in raised}) == len(raised)
    assert sentinel.should_stop == any(not alarm.note for alarm in raised)
