"""The page's first screen: how far the run is, tiles, curves over steps, alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from adjudge.runs.report.charts import integer, number, percent
from adjudge.runs.view.curves import Curves, number_of
from adjudge.runs.view.reading import RunReading

__all__ = ["overview"]

_MOST_LINES = 6
_RECENT = 10
"""Steps whose times the estimate of the rest is made from."""


class _Chart(NamedTuple):
    title: str
    lines: Sequence[tuple[str, str]]
    low: float | None = None
    high: float | None = None


_RETURNS = _Chart(
    "Return",
    (("mean", "mean_return"), ("environment", "env_return"), ("judge", "judge_return")),
)
_CHARTS = (
    _Chart("Reward", (("mean", "reward"), ("std", "reward_std"))),
    _Chart("Judge’s score", (("mean", "judge/score_mean"), ("std", "judge/score_std"))),
    _Chart("Outcome and events", (("outcome", "judge/outcome_mean"),
                                  ("events", "judge/events_mean"))),
    _Chart("Judge part ÷ environment’s reward", (("ratio", "judge/env_ratio"),)),
    _Chart("Judge’s latency, s", (("median", "judge/latency_p50"),
                                  ("99th percentile", "judge/latency_p99")), 0.0),
    _Chart("Length, tokens", (("length", "length"),), 0.0),
    _Chart("Groups without spread, share", (("zero spread", "zero_std_frac"),), 0.0, 1.0),
    _Chart("Judge’s score without spread, share of groups",
           (("zero spread", "judge/zero_std_frac"),), 0.0, 1.0),
    _Chart("Correlation of reward and length in groups",
           (("correlation", "judge/len_corr_group"),), -1.0, 1.0),
    _Chart("Entropy of the policy", (("entropy", "entropy"),), 0.0),
    _Chart("Loss", (("loss", "loss"),)),
    _Chart("Cost per step, USD", (("cost", "judge/cost_usd"),), 0.0),
    _Chart("Seconds per step", (("step", "step_s"), ("generate", "generate_s"),
                                ("wait for judges", "judge_wait_s"), ("update", "update_s")), 0.0),
    _Chart("Lag of the judged policy, versions", (("lag", "lag"),), 0.0),
)  # fmt: skip
_MISSING = "judge/missing_frac"
_UNDRAWN = "not_sampled"
_NOT_GRADERS = {"judge/score_mean"}


def overview(reading: RunReading) -> dict[str, Any]:
    """Everything but samples, as plain data; numbers that are not there are ``None``."""
    rollouts, curves = reading.rollouts, reading.curves
    label = reading.run.get("label")
    return {
        "version": reading.version,
        "generation": reading.generation,
        "kind": reading.kind,
        "label": label if isinstance(label, str) else "",
        "folder": str(reading.folder),
        "facts": _facts(reading),
        "state": reading.state,
        "status": _status(reading),
        "progress": _progress(reading),
        "changed_at": reading.changed_at,
        "tiles": [tile._asdict() for tile in _tiles(reading)],
        "curves": _curves(curves),
        "alarms": [_alarm(one) for one in reading.alarms],
        "first_step": min(rollouts.steps, default=None),
        "last_step": max(rollouts.steps, default=None),
        "samples": len(rollouts),
        "groups": len(rollouts.groups),
        "scores": list(rollouts.scores),
        "broken": reading.broken,
        "indexed": {"behind": reading.behind, "size": reading.size},
    }


# --- how far ------------------------------------------------------------------------------------


def _last_step(reading: RunReading) -> int | None:
    step = reading.curves.last.get("step")
    return None if step is None else round(step)


def _planned(reading: RunReading) -> int | None:
    planned = reading.run.get("steps_planned", reading.summary.get("steps_planned"))
    return planned if type(planned) is int and 0 < planned < 10**9 else None


def _progress(reading: RunReading) -> float | None:
    """Share of the planned steps that are done."""
    planned, step = _planned(reading), _last_step(reading)
    return None if planned is None else min(1.0, max(0, step or 0) / planned)


def _status(reading: RunReading) -> str:
    """How far the run is, in words."""
    if reading.kind is None:
        return "waiting: nothing is written in this folder yet"
    done = _done(reading)
    if reading.state == "done":
        return f"done: {done}"
    if reading.state == "stopped":
        pid = reading.run.get("pid")
        return f"stopped: {done}; its process {pid} is not on this machine"
    left = _left(reading)
    return f"running: {done}{f', about {left} left' if left else ''}"


def _done(reading: RunReading) -> str:
    if reading.kind == "grade":
        if reading.rollouts:
            return f"{integer(len(reading.rollouts))} samples graded"
        return f"{integer(reading.answers)} graders’ results so far"
    step, planned = _last_step(reading), _planned(reading)
    if step is None:
        return f"no step of {integer(planned)} done yet" if planned else "no step done yet"
    return f"step {integer(step)}" + (f" of {integer(planned)}" if planned else "")


def _left(reading: RunReading) -> str:
    step, planned = _last_step(reading), _planned(reading)
    took = [x for x in reading.curves.points("step_s")[-_RECENT:] if x is not None]
    if step is None or planned is None or not took or planned <= step:
        return ""
    seconds = (planned - step) * sum(took) / len(took)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def _facts(reading: RunReading) -> list[list[str]]:
    run = reading.run
    facts = [["Folder", str(reading.folder)]]
    if isinstance(created := run.get("created"), str):
        facts.append(["Begun", created])
    sizes = [run.get("batch_size"), run.get("group_size")]
    if all(type(size) is int for size in sizes):
        facts.append(["Each step", f"{sizes[0]} rollouts in groups of {sizes[1]}"])
    if isinstance(spec := run.get("spec_path"), str):
        facts.append(["Spec", spec])
    return facts


# --- tiles --------------------------------------------------------------------------------------


class _Tile(NamedTuple):
    name: str
    value: str
    note: str
    alarm: bool = False


def _tiles(reading: RunReading) -> list[_Tile]:
    first = _trained(reading) if reading.kind == "train" else _graded(reading)
    return [*first, *_missing_tiles(reading), *_watched(reading)]


def _trained(reading: RunReading) -> list[_Tile]:
    names = (("Return", "mean_return"), ("Environment", "env_return"), ("Judge", "judge_return"))
    if "mean_return" not in reading.curves.keys:
        names = (("Reward", "reward"), ("Environment", "judge/env_mean"),
                 ("Judge", "judge/outcome_mean"))  # fmt: skip
    return [_ends(name, reading.curves, key) for name, key in names]


def _ends(name: str, curves: Curves, key: str) -> _Tile:
    present = [value for value in curves.points(key) if value is not None]
    few = present[: max(1, len(present) // 10)]
    late = present[-max(1, len(present) // 10) :]
    if not present:
        return _Tile(name, "–", "")
    return _Tile(name, _mean_of(sum(late), len(late)), f"from {_mean_of(sum(few), len(few))}")


def _mean_of(total: float, count: int) -> str:
    """A mean for reading; what rounding left of 0 is 0."""
    return number(round(total / count, 12) + 0.0 if count else None, 2)


def _graded(reading: RunReading) -> list[_Tile]:
    rollouts = reading.rollouts
    present = len(rollouts) - rollouts.lost.total()
    return [
        _Tile("Samples", integer(len(rollouts)), f"in {integer(len(rollouts.groups))} groups"),
        _Tile("Reward", _mean_of(rollouts.sum, present), "mean of those present"),
    ]


def _missing_tiles(reading: RunReading) -> list[_Tile]:
    """Of the samples that somebody was to judge: the rest is missing by wish."""
    rollouts = reading.rollouts
    failed = rollouts.lost - Counter({_UNDRAWN: rollouts.lost[_UNDRAWN]})
    undrawn = rollouts.lost[_UNDRAWN]
    kinds = ", ".join(f"{kind} {integer(n)}" for kind, n in failed.most_common(2))
    lost = "; ".join(filter(None, (kinds, f"{integer(undrawn)} not drawn" if undrawn else "")))
    turned, groups = rollouts.turned_in_all()
    note = f"in {integer(groups)} groups, with failures as 0" if turned else "by failures as 0"
    return [
        _Tile(
            "Rewards missing",
            percent(failed.total(), len(rollouts) - undrawn),
            lost or "of the samples",
        ),
        _Tile("Advantages turned", integer(turned) if rollouts else "–", note),
    ]


def _watched(reading: RunReading) -> list[_Tile]:
    if reading.kind != "train":
        return []
    alarms = sum(not one.get("note") for one in reading.alarms)
    cost = reading.curves.total("judge/cost_usd")
    return [
        _Tile("Judges’ cost", "–" if cost is None else f"${cost:,.2f}", "so far"),
        _Tile("Alarms", integer(alarms), "of the sentinel", alarm=bool(alarms)),
    ]


def _alarm(one: dict[str, Any]) -> dict[str, Any]:
    step = number_of(one.get("step"))
    texts = {key: str(one.get(key) or "") for key in ("rule", "seen", "advice")}
    return {"step": step, "note": bool(one.get("note")), **texts}


# --- curves -------------------------------------------------------------------------------------


def _curves(curves: Curves) -> dict[str, Any]:
    found = [_drawn(curves, chart) for chart in _charts(curves)]
    return {
        "rows": curves.rows,
        "width": curves.width,
        "steps": curves.points("step"),
        "charts": [chart for chart in found if chart is not None],
    }


def _charts(curves: Curves) -> Iterable[_Chart]:
    if "mean_return" in curves.keys:
        yield _RETURNS
    yield _missing_chart(curves)
    yield from _CHARTS
    for key in curves.keys:
        name = key.removeprefix("judge/").removesuffix("_score_mean")
        if key == f"judge/{name}_score_mean" and key not in _NOT_GRADERS:
            yield _Chart(f"Score of {name}", ((name, key),))


def _missing_chart(curves: Curves) -> _Chart:
    """Missing rewards, all and by the kinds that occurred most."""
    kinds = {key: curves.total(key) or 0.0 for key in curves.keys if key.startswith(f"{_MISSING}/")}
    most = sorted((key for key in kinds if kinds[key] > 0), key=lambda key: -kinds[key])
    lines = [("all", _MISSING)]
    lines += [(key.removeprefix(f"{_MISSING}/"), key) for key in most[: _MOST_LINES - 1]]
    return _Chart("Rewards missing, share", lines, 0.0)


def _drawn(curves: Curves, chart: _Chart) -> dict[str, Any] | None:
    keys = set(curves.keys)
    lines = [
        {"name": name, "values": _short(curves.points(key, _whole_of(key)))}
        for name, key in chart.lines
        if key in keys
    ]
    if not lines:
        return None
    return {"title": chart.title, "low": chart.low, "high": chart.high, "lines": lines}


def _whole_of(key: str) -> str | None:
    """The metric that ``key`` is a part of: rows leave a part out that is 0."""
    return _MISSING if key.startswith(f"{_MISSING}/") else None


def _short(values: Iterable[float | None]) -> list[float | None]:
    """To six digits: as fine as a curve can show, and half the bytes."""
    return [None if value is None else float(f"{value:.6g}") for value in values]
