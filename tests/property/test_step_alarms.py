"""The checks of steps on random curves: how often they cry wolf, what they find, and totality."""

import math
import random
from collections.abc import Iterator

import pytest

from adjudge.checks.steps import StepAlarm, StepWatch

RUNS = 80
BATCH = 64
JUDGE, GOLD = "judge/outcome_mean", "judge/gold_score_mean"


def share_of(rng: random.Random, p: float) -> float:
    """The share of a batch's answers that are right."""
    return sum(rng.random() < p for _ in range(BATCH)) / BATCH


def logistic(step: int, middle: float, width: float) -> float:
    return 1 / (1 + math.exp((middle - step) / width))


def wandering(rng: random.Random, phi: float, sigma: float) -> Iterator[float]:
    """A stationary AR(1) process of this standard deviation."""
    off = rng.gauss(0, sigma)
    while True:
        yield off
        off = phi * off + rng.gauss(0, sigma * math.sqrt(1 - phi * phi))


def healthy_run(seed: int, steps: int) -> list[StepAlarm]:
    """Judge and gold that are flat or learn together, at any level and speed."""
    rng = random.Random(seed)
    start, end = rng.uniform(0.2, 0.8), rng.uniform(0.0, 0.15)
    end = start if seed % 2 else min(0.98, start + end + rng.uniform(0.0, 0.4))
    middle, width = rng.uniform(5, steps), rng.uniform(2, 20)
    watch, lengths = StepWatch(gold="gold"), wandering(rng, 0.9, 0.1)
    for step in range(steps):
        gold = start + (end - start) * logistic(step, middle, width)
        row = {
            JUDGE: share_of(rng, 0.2 + 0.6 * gold),
            GOLD: share_of(rng, gold),
            "length": 14 * math.exp(next(lengths)),
            "judge/len_corr_group": rng.uniform(0.4, 0.9),
            "judge/zero_std_frac": rng.uniform(0.5, 1.0),
            "judge/missing_frac": share_of(rng, 0.1),
            "judge/part_group_var": rng.expovariate(0.5),
            "judge/env_group_var": rng.expovariate(1),
        }
        watch.observe(step, row)
    return watch.alarms


@pytest.mark.parametrize("steps", [60, 150])
def test_healthy_runs_hardly_ever_raise_an_alarm(steps: int) -> None:
    alarmed = sum(bool(healthy_run(seed, steps)) for seed in range(RUNS))
    assert alarmed <= 0.03 * RUNS


def gold_rules(seed: int, phi: float, sigma: float, *, fall: float) -> list[str]:
    """Of 200 steps of a wandering gold that falls within 40 to 80 of them."""
    rng, watch = random.Random(seed), StepWatch(gold="gold")
    start, width, noise = rng.randint(40, 90), rng.randint(40, 80), wandering(rng, phi, sigma)
    for step in range(200):
        fallen = fall * min(1.0, max(0.0, (step - start) / width))
        watch.observe(step, {JUDGE: 0.4 + step / 500, GOLD: 0.7 - fallen + next(noise)})
    return [alarm.rule for alarm in watch.alarms]


@pytest.mark.parametrize("phi", [0.3, 0.9])
@pytest.mark.parametrize("sigma", [0.05, 0.1])
def test_a_gold_that_wanders_raises_nothing_and_one_that_falls_is_found(
    phi: float, sigma: float
) -> None:
    false = sum(bool(gold_rules(seed, phi, sigma, fall=0.0)) for seed in range(RUNS))
    found = sum(gold_rules(seed, phi, sigma, fall=0.3) == ["divergence"] for seed in range(RUNS))
    assert false <= 0.03 * RUNS
    assert found >= (0.55 if sigma == 0.1 else 0.95) * RUNS


NAMES = [JUDGE, GOLD, "length", "judge/len_corr_group", "judge/zero_std_frac",
         "judge/missing_frac", "judge/part_group_var", "judge/env_group_var"]  # fmt: skip
ODD = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e300, 1.7e308, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("seed", range(40))
def test_any_rows_are_taken_and_each_rule_speaks_once(seed: int) -> None:
    rng = random.Random(seed)
    watch, raised = StepWatch("stop", gold="gold"), []
    for _ in range(rng.randrange(80)):
        raised += watch.observe(rng.randrange(1000), {name: rng.choice(ODD) for name in NAMES})
    assert raised == watch.alarms
    assert len({alarm.rule for alarm in raised}) == len(raised)
    assert watch.should_stop == any(not alarm.note for alarm in raised)
