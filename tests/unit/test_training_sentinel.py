"""What the sentinel says of made-up curves: the right thing, at the right time, and once."""

import math
from collections.abc import Callable

import pytest

from adjudge.runs.sentinel import Sentinel, SentinelAlarm, SentinelReading

Curve = Callable[[int], float]


def watched(steps: int, sentinel: Sentinel | None = None, **curves: Curve) -> list[SentinelAlarm]:
    """The alarms of a run whose quantities are functions of the step."""
    sentinel = sentinel or Sentinel()
    for step in range(steps):
        sentinel.observe(
            SentinelReading(step=step, **{name: f(step) for name, f in curves.items()})
        )
    return sentinel.alarms


def wave(middle: float, size: float = 0.05) -> Curve:
    """Something like noise, the same every time."""
    return lambda step: middle + size * math.sin(2.4 * step) * math.cos(1.1 * step)


def rules(alarms: list[SentinelAlarm]) -> list[str]:
    return [alarm.rule for alarm in alarms]


def test_a_gold_that_rises_first_is_measured_from_its_best() -> None:
    def gold(step: int) -> float:
        return 0.26 + 0.01 * step if step < 20 else max(0.02, 0.45 - 0.03 * (step - 20))

    (alarm,) = watched(60, judge=lambda step: step / 60, gold=gold)
    assert alarm.rule == "divergence"
    assert gold(alarm.step) > 0.1  # long before all is lost


def test_when_both_fall_the_judge_is_not_blamed() -> None:
    def falling(step: int) -> float:
        return 0.7 if step < 20 else max(0.0, 0.7 - 0.05 * (step - 20))

    alarms = watched(40, judge=falling, gold=falling)
    assert rules(alarms)[0] == "collapse"
    assert "learning_rate" in alarms[0].advice


def test_a_gold_that_falls_unwatched_by_a_judge_says_nothing() -> None:
    assert watched(40, gold=lambda step: 0.8 - step / 50) == []


def test_learning_that_goes_well_raises_nothing() -> None:
    noise = wave(0.0)
    alarms = watched(
        100,
        judge=lambda step: 0.3 + step / 200 + noise(step),
        gold=lambda step: 0.4 + step / 250 + noise(step + 3),
        length=lambda step: 14 - step / 25,
        length_corr=wave(0.2, 0.4),
        zero_spread=lambda step: step / 250,
        spread=wave(0.3),
    )
    assert alarms == []


def test_length_needs_both_correlation_and_growth() -> None:
    (alarm,) = watched(20, length=lambda step: 14.0 + step, length_corr=wave(0.9, 0.02))
    assert alarm.rule == "length"
    assert "length_penalty" in alarm.advice
    assert watched(20, length=lambda _: 14.0, length_corr=wave(0.9, 0.02)) == []
    assert watched(20, length=lambda step: 14.0 + step, length_corr=wave(0.2)) == []


@pytest.mark.parametrize(
    ("level", "gold", "rule"),
    [
        (0.1, 0.5, "too_harsh"),
        (0.97, 0.3, "too_lenient"),
        (0.97, None, "too_lenient"),
        (0.97, 0.98, "solved"),
        (0.5, 0.5, "no_spread"),
    ],
)
def test_groups_without_spread_are_told_apart_by_level(
    level: float, gold: float | None, rule: str
) -> None:
    sentinel = Sentinel("stop")
    for step in range(20):
        sentinel.observe(SentinelReading(step=step, judge=level, gold=gold, zero_spread=0.9))
    assert rules(sentinel.alarms) == [rule]
    assert sentinel.should_stop == (rule != "solved")


@pytest.mark.parametrize(
    ("level", "found"), [(0.2, ["too_harsh"]), (0.95, ["too_lenient"]), (0.5, [])]
)
def test_all_scores_alike_at_an_end_of_the_scale(level: float, found: list[str]) -> None:
    alarms = watched(20, judge=lambda _: level, spread=lambda _: 0.02, zero_spread=lambda _: 0.0)
    assert rules(alarms) == found


def test_a_judge_that_drowns_the_environment_is_told_the_scale_that_would_not() -> None:
    sentinel = Sentinel(judge_scale=10.0)
    (alarm,) = watched(20, sentinel, judge_var=lambda _: 25.0, env_var=lambda _: 0.25)
    assert alarm.rule == "dominates"
    assert "judge_scale (at 1 " in alarm.advice
    assert watched(20, judge_var=lambda _: 25.0, env_var=lambda _: 25.0) == []
    assert watched(20, judge_var=lambda _: 25.0, env_var=lambda _: 0.0) == []


def test_a_judge_that_changes_shows_on_the_canary() -> None:
    noise = wave(0.0, 0.01)

    def canary(step: int) -> float:
        return (0.6 if step < 30 else 0.7) + noise(step)

    (alarm,) = watched(60, canary=canary)
    assert alarm.rule == "drift"
    assert 30 <= alarm.step <= 36
    assert watched(60, canary=noise) == []


def test_action_warn_never_stops() -> None:
    sentinel = Sentinel("warn")
    watched(20, sentinel, judge=lambda _: 0.1, zero_spread=lambda _: 1.0)
    assert sentinel.alarms
    assert not sentinel.should_stop


def test_what_is_missing_or_not_finite_is_left_out() -> None:
    sentinel = Sentinel()
    for step in range(30):
        sentinel.observe(SentinelReading(step=step))
        sentinel.observe(
            SentinelReading(step=step, judge=math.nan, gold=math.inf, length=-math.inf)
        )
    assert sentinel.alarms == []


def test_many_missing_rewards_are_said_in_the_first_step() -> None:
    (alarm,) = watched(30, judge=wave(0.5), missing=lambda _: 0.9)
    assert (alarm.step, alarm.rule) == (0, "missing")
    assert "90%" in alarm.seen
    assert watched(30, judge=wave(0.5), missing=lambda _: 0.2) == []


def test_missing_rewards_that_become_more_are_said_before_they_are_many() -> None:
    def missing(step: int) -> float:
        return 0.02 if step < 20 else min(0.2, 0.02 + 0.01 * (step - 20))

    (alarm,) = watched(60, judge=wave(0.5), missing=missing)
    assert alarm.rule == "missing_rises"
    assert 30 <= alarm.step <= 40
    assert "2%" in alarm.seen
    assert watched(60, judge=wave(0.5), missing=wave(0.05)) == []


def test_a_run_whose_rewards_are_missing_can_be_stopped() -> None:
    sentinel = Sentinel("stop")
    watched(1, sentinel, missing=lambda _: 0.9)
    assert sentinel.should_stop
