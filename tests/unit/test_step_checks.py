"""What the checks of a training's steps say of made-up curves: the right thing, and once."""

import math
from collections.abc import Callable

import pytest

from adjudge.checks.steps import STEP_CHECKS, StepAlarm, StepWatch

Curve = Callable[[int], float] | float

METRICS = {
    "judge": "judge/outcome_mean",
    "gold": "judge/right_score_mean",
    "length": "length",
    "corr": "judge/len_corr_group",
    "zero": "judge/zero_std_frac",
    "missing": "judge/missing_frac",
    "part": "judge/part_group_var",
    "env": "judge/env_group_var",
}


def watched(steps: int, watch: StepWatch | None = None, **curves: Curve) -> list[StepAlarm]:
    """The alarms of a run whose metrics are numbers, or functions of the step."""
    watch = watch or StepWatch(gold="right")
    for step in range(steps):
        row = {METRICS[name]: f(step) if callable(f) else f for name, f in curves.items()}
        watch.observe(step, row)
    return watch.alarms


def wave(middle: float, size: float = 0.05) -> Callable[[int], float]:
    """Something like noise, the same every time."""
    return lambda step: middle + size * math.sin(2.4 * step) * math.cos(1.1 * step)


def rise(first: float, last: float, start: int, width: int) -> Callable[[int], float]:
    return lambda step: first + (last - first) * min(1.0, max(0.0, (step - start) / width))


NOISE = wave(0.0)
LEARNING = rise(0.3, 0.8, 0, 100)


@pytest.mark.parametrize(
    ("curves", "rules"),
    [
        ({"judge": rise(0.4, 0.9, 30, 40), "gold": rise(0.7, 0.3, 30, 40)}, ["divergence"]),
        ({"judge": rise(0.7, 0.2, 30, 40), "gold": rise(0.7, 0.2, 30, 40)}, ["collapse"]),
        ({"gold": rise(0.7, 0.2, 30, 40)}, []),  # no judge that could be misled
        ({"judge": 0.5, "gold": lambda step: LEARNING(step) + NOISE(step)}, []),
        ({"judge": 0.5, "gold": wave(0.6, 0.2)}, []),
        ({"length": rise(14, 40, 0, 20), "corr": wave(0.9, 0.02)}, ["length"]),
        ({"length": wave(14, 2), "corr": wave(0.9, 0.02)}, []),
        ({"length": rise(14, 40, 0, 20), "corr": wave(0.2)}, []),
        ({"judge": 0.1, "gold": 0.5, "zero": 0.95}, ["too_harsh"]),
        ({"judge": 0.1, "gold": 0.1, "zero": 0.99}, ["no_spread"]),
        ({"judge": 0.1, "zero": 0.99}, ["no_spread"]),  # too harsh, or too hard: who knows
        ({"judge": 0.97, "gold": 0.3, "zero": 0.95}, ["too_lenient"]),
        ({"judge": 0.97, "gold": 0.98, "zero": 0.95}, ["solved"]),
        ({"judge": 0.97, "zero": 0.99}, ["no_spread"]),
        ({"judge": 0.5, "gold": 0.5, "zero": 0.99}, ["no_spread"]),
        ({"judge": 0.05, "gold": 0.05, "zero": 0.95}, []),  # a hard task of right and wrong
        ({"part": 25.0, "env": 0.25}, ["dominates"]),
        ({"part": 25.0, "env": 25.0}, []),
        ({"part": 25.0, "env": 0.0}, []),
        ({"judge": 0.5, "missing": 0.9}, ["missing"]),
        ({"judge": 0.5, "missing": 0.2}, []),
        ({"judge": 0.5, "missing": lambda step: 0.3 * (step == 0)}, []),
        ({"judge": 0.5, "missing": rise(0.02, 0.2, 20, 20)}, ["missing_rises"]),
        ({"judge": 0.5, "missing": wave(0.05)}, []),
    ],
)
def test_each_rule_is_said_of_its_curve_alone(curves: dict[str, Curve], rules: list[str]) -> None:
    alarms = watched(100, None, **curves)
    assert [alarm.rule for alarm in alarms] == rules
    assert all(alarm.note == (alarm.rule == "solved") for alarm in alarms)
    assert all(alarm.note or alarm.otherwise for alarm in alarms)


def test_an_alarm_gives_the_numbers() -> None:
    (alarm,) = watched(100, judge=rise(0.4, 0.9, 30, 40), gold=rise(0.7, 0.3, 30, 40))
    assert 40 <= alarm.step <= 70
    assert "fell from 0.70 to 0." in alarm.seen
    (alarm,) = watched(20, part=25.0, env=0.25)
    assert "(0.1 times this judge_scale" in alarm.seen
    (alarm,) = watched(20, missing=0.9)
    assert (alarm.step, alarm.seen[:3]) == (0, "90%")


@pytest.mark.parametrize(("action", "level", "stops"), [("warn", 0.3, False), ("stop", 0.3, True),
                                                        ("stop", 0.97, False)])  # fmt: skip
def test_an_alarm_stops_where_that_is_wanted_and_a_note_never(
    action: str, level: float, stops: bool
) -> None:
    watch = StepWatch(action, gold="right")  # type: ignore[arg-type]
    assert watched(20, watch, judge=0.97, gold=level, zero=1.0)
    assert watch.should_stop == stops


def test_what_is_missing_or_not_finite_is_left_out_and_named() -> None:
    watch = StepWatch()
    for step in range(30):
        watch.observe(step, {"judge/outcome_mean": math.nan, "length": -math.inf})
    assert watch.alarms == []
    assert watch.unchecked.keys() == {check.name for check in STEP_CHECKS}
    assert watch.unchecked["solved"] == "gold"
    watched(10, watch, judge=0.5, zero=0.1, missing=0.0)
    lacks = dict.fromkeys(("divergence", "collapse", "too_harsh", "too_lenient", "solved"), "gold")
    lacks |= {"length": METRICS["corr"], "dominates": METRICS["part"], "missing_rises": "24 steps"}
    assert watch.unchecked == lacks


def test_a_run_of_any_length_costs_little_and_late_falls_are_seen() -> None:
    watch = StepWatch(gold="right")
    alarms = watched(
        6000, watch, judge=0.5, gold=lambda step: 0.7 + NOISE(step) - 0.3 * (step > 5000)
    )
    assert [alarm.rule for alarm in alarms] == ["divergence"]
    assert alarms[0].step < 5600
