"""What the server answers of a whole run: the first screen, and pages of groups.

The first screen says how far the run is: tiles, curves over steps, alarms. The rest comes when the
page asks for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from adjudge.report.charts import ChartLine, line_chart, merge_equal_lines
from adjudge.report.page import Tile, format_integer, format_number, format_percent, format_times
from adjudge.runner.progress import format_duration
from adjudge.runs.sample_index import RolloutIndex, drawable_number
from adjudge.runs.samples import describe_group, present_rewards
from adjudge.runs.view.run_reader import MISSING_METRIC, Curves, RunReader
from adjudge.stats import std

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
    (
        ("mean", "mean_return"),
        ("environment", "env_return"),
        ("judge", "judge_return"),
        ("reward", "reward"),
        ("std of rewards", "reward_std"),
    ),
)
_CHARTS = (
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
    _Chart("Drawn for judging, share of rollouts",
           (("drawn", "judge/drawn_frac"),), 0.0, 1.0),
    _Chart("Correlation of reward and length in groups",
           (("correlation", "judge/len_corr_group"),), -1.0, 1.0),
    _Chart("Entropy of the policy", (("entropy", "entropy"),), 0.0),
    _Chart("Loss", (("loss", "loss"),)),
    _Chart("Cost per step, USD", (("cost", "judge/cost_usd"),), 0.0),
    _Chart("Seconds per step", (("step", "step_s"), ("generate", "generate_s"),
                                ("wait for judges", "judge_wait_s"), ("update", "update_s")), 0.0),
    _Chart("Lag of the judged policy, versions", (("lag", "lag"),), 0.0),
)  # fmt: skip
_UNDRAWN = "not_sampled"
_NOT_GRADERS = {"judge/score_mean"}


def build_overview(reading: RunReader) -> dict[str, Any]:
    """Everything but samples, as plain data; numbers that are not there are ``None``."""
    rollouts, curves, file = reading.rollouts, reading.curves, reading.samples_file
    label = reading.run.get("label")
    planned, step = _planned_steps(reading), _last_step(reading)
    return {
        "version": reading.version,
        "generation": reading.generation,
        "kind": reading.kind,
        "label": label if isinstance(label, str) else "",
        "folder": str(reading.folder),
        "facts": _facts(reading),
        "state": reading.state,
        "status": _status(reading),
        "progress": planned and min(1.0, max(0, step or 0) / planned),
        "changed_at": reading.changed_at,
        "tiles": [tile._asdict() for tile in _tiles(reading)],
        "curves": _curves(curves, reading.alarms),
        "alarms": [
            {
                "step": drawable_number(one.get("step")),
                "note": bool(one.get("note")),
                **{key: str(one.get(key) or "") for key in ("rule", "seen", "otherwise", "advice")},
            }
            for one in reading.alarms
        ],
        "first_step": min(rollouts.steps, default=None),
        "last_step": max(rollouts.steps, default=None),
        "samples": len(rollouts),
        "groups": len(rollouts.groups),
        "scores": list(rollouts.scores),
        "broken": reading.broken,
        "report": reading.has_report,
        "indexed": {"behind": file.unread_bytes, "size": file.size},
    }


# --- how far ------------------------------------------------------------------------------------


def _last_step(reading: RunReader) -> int | None:
    step = reading.curves.last.get("step")
    return None if step is None else round(step)


def _planned_steps(reading: RunReader) -> int | None:
    planned = reading.run.get("steps_planned", reading.summary.get("steps_planned"))
    return planned if type(planned) is int and 0 < planned < 10**9 else None


def _status(reading: RunReader) -> str:
    """How far the run is, in words."""
    if not reading.rollouts and (reading.folder / "probe.json").is_file():
        return "this is a probe, which grades no samples; see its report.html"
    if reading.kind is None:
        return "waiting: nothing is written in this folder yet"
    done = _done_text(reading)
    if reading.state == "done":
        return f"done: {done}"
    if reading.state == "stopped":
        pid = reading.run.get("pid")
        if reading.run.get("kind") == "record":  # a trainer does not say that it is done
            return f"over: {done}; its process {pid} has ended"
        return f"stopped: {done}; its process {pid} is not on this machine"
    left = _time_left(reading)
    return f"running: {done}{f', about {left} left' if left else ''}"


def _done_text(reading: RunReader) -> str:
    if reading.kind == "grade":
        if reading.rollouts:
            return f"{format_integer(len(reading.rollouts))} samples graded"
        return f"{format_integer(reading.answers)} graders’ results so far"
    step, planned = _last_step(reading), _planned_steps(reading)
    if step is None:
        return f"no step of {format_integer(planned)} done yet" if planned else "no step done yet"
    return f"step {format_integer(step)}" + (f" of {format_integer(planned)}" if planned else "")


def _time_left(reading: RunReader) -> str:
    step, planned = _last_step(reading), _planned_steps(reading)
    took = [x for x in reading.curves.points("step_s")[-_RECENT:] if x is not None]
    if step is None or planned is None or not took or planned <= step:
        return ""
    return format_duration((planned - step) * sum(took) / len(took))


def _facts(reading: RunReader) -> list[list[str]]:
    run = reading.run
    facts = [["Folder", str(reading.folder)]]
    if isinstance(created := run.get("created"), str):
        facts.append(["Begun", format_times(created)])
    sizes = [run.get("batch_size"), run.get("group_size")]
    if all(type(size) is int for size in sizes):
        facts.append(["Each step", f"{sizes[0]} rollouts in groups of {sizes[1]}"])
    if isinstance(spec := run.get("spec_path"), str):
        facts.append(["Spec", spec])
    return facts


# --- tiles --------------------------------------------------------------------------------------


def _tiles(reading: RunReader) -> list[Tile]:
    if reading.kind != "train":
        return [*_grading_tiles(reading), *_missing_tiles(reading)]
    alarms = sum(not one.get("note") for one in reading.alarms)
    cost = reading.curves.total("judge/cost_usd")
    return [
        *_training_tiles(reading),
        *_missing_tiles(reading),
        Tile("Judges’ cost", "–" if cost is None else f"${cost:,.2f}", "so far"),
        Tile("Alarms", format_integer(alarms), "of the sentinel", alarm=bool(alarms)),
    ]


def _training_tiles(reading: RunReader) -> list[Tile]:
    """What came of the last tenth of the steps, and of the first."""
    curves = reading.curves
    names = (("Return", "mean_return"), ("Environment", "env_return"), ("Judge", "judge_return"))
    if "mean_return" not in curves.keys:
        names = (("Reward", "reward"), ("Environment", "judge/env_mean"),
                 ("Judge", "judge/outcome_mean"))  # fmt: skip
    _, missing = _first_and_last(curves, MISSING_METRIC)
    share = f", of {1 - missing:.0%} of the rollouts" if missing else ""
    tiles = []
    for name, key in names:
        first, last = _first_and_last(curves, key)
        note = f"from {_mean_of(first)}{'' if name == 'Environment' else share}"
        tiles.append(Tile(name, _mean_of(last), "" if last is None else note))
    return tiles


def _first_and_last(curves: Curves, key: str) -> tuple[float | None, float | None]:
    """The mean of a metric over the first and the last tenth of its points."""
    present = [value for value in curves.points(key) if value is not None]
    some = max(1, len(present) // 10)
    few, late = present[:some], present[-some:]
    return (sum(few) / len(few), sum(late) / len(late)) if present else (None, None)


def _mean_of(value: float | None) -> str:
    """A mean for reading; what rounding left of 0 is 0."""
    return format_number(None if value is None else round(value, 12) + 0.0, 2)


def _grading_tiles(reading: RunReader) -> list[Tile]:
    rollouts = reading.rollouts
    present = len(rollouts) - rollouts.lost.total()
    return [
        Tile(
            "Samples",
            format_integer(len(rollouts)),
            f"in {format_integer(len(rollouts.groups))} groups",
        ),
        Tile(
            "Reward",
            _mean_of(rollouts.sum / present if present else None),
            f"mean of {format_integer(present)} that are present",
        ),
    ]


def _missing_tiles(reading: RunReader) -> list[Tile]:
    """Of the samples that somebody was to judge: the rest is missing by wish."""
    rollouts = reading.rollouts
    failed = rollouts.lost - Counter({_UNDRAWN: rollouts.lost[_UNDRAWN]})
    undrawn = rollouts.lost[_UNDRAWN]
    kinds = ", ".join(f"{kind} {format_integer(n)}" for kind, n in failed.most_common(2))
    lost = "; ".join(
        filter(None, (kinds, f"{format_integer(undrawn)} not drawn" if undrawn else ""))
    )
    turned, groups = rollouts.turned_in_all()
    note = (
        f"in {format_integer(groups)} groups, if failures counted as 0"
        if turned
        else "if failures counted as 0"
    )
    missing = Tile(
        "Rewards missing",
        format_percent(failed.total(), len(rollouts) - undrawn),
        lost or "of the samples",
    )
    if not failed or rollouts.stepped:
        return [missing]
    return [missing, Tile("Advantages of other sign", format_integer(turned), note)]


# --- curves -------------------------------------------------------------------------------------


def _curves(curves: Curves, alarms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The curves as figures, the first of which matter most, and their values by line and point."""
    steps = curves.points("step")
    marks = [drawable_number(one.get("step")) for one in alarms if not one.get("note")]
    charts = []
    for chart in _charts(curves):
        lines = [
            ChartLine(name, _six_digits(_points(curves, key)))
            for name, key in chart.lines
            if key in curves.keys
        ]
        figure = line_chart(
            chart.title,
            lines,
            steps,
            low=chart.low,
            high=chart.high,
            marks=[one for one in marks if one is not None],
            followed=True,
        )
        if figure is not None:
            values = [line.values for line in merge_equal_lines(lines)]
            charts.append({"title": chart.title, "figure": figure.as_tree(), "values": values})
    return {"rows": curves.rows, "width": curves.width, "steps": steps, "charts": charts}


def _points(curves: Curves, key: str) -> list[float | None]:
    # Of what is missing, rows leave parts out that are 0.
    return curves.points(key, MISSING_METRIC if MISSING_METRIC in key else None)


def _charts(curves: Curves) -> Iterable[_Chart]:
    # Equal curves of one figure are one: of most runs the return is the reward.
    yield _RETURNS if "mean_return" in curves.keys else _RETURNS._replace(title="Reward")
    # Missing rewards, all and by the kinds that occurred most.
    head = f"{MISSING_METRIC}/"
    kinds = {key: curves.total(key) or 0.0 for key in curves.keys if key.startswith(head)}
    most = sorted((key for key in kinds if kinds[key] > 0), key=lambda key: -kinds[key])
    lines = [(key.removeprefix(head), key) for key in most[: _MOST_LINES - 1]]
    yield _Chart("Rewards missing, share", [("all", MISSING_METRIC), *lines], 0.0)
    yield from _CHARTS
    for key in curves.keys:
        name = key.removeprefix("judge/").removesuffix("_score_mean")
        if key == f"judge/{name}_score_mean" and key not in _NOT_GRADERS:
            yield _Chart(f"Score of {name}", ((name, key),))


def _six_digits(values: Iterable[float | None]) -> list[float | None]:
    """To six digits: as fine as a curve can show, and half the bytes."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


_PAGE = 20


# --- groups -------------------------------------------------------------------------------------


GroupFilter = Literal["all", "missing", "turned", "flat"]


def list_groups(
    reading: RunReader, first: int, last: int, page: int, show: GroupFilter = "all"
) -> dict[str, Any]:
    """A page of the groups of some steps, the latest step first.

    ``show`` narrows them to those with a missing reward, with an advantage that would turn, or
    without spread.
    """
    rollouts = reading.rollouts
    steps = sorted((step for step in rollouts.steps if first <= step <= last), reverse=True)
    found = [one for step in steps for one in rollouts.steps[step]]
    kept = [one for one in found if _matches_filter(rollouts, one, show)]
    pages = max(1, math.ceil(len(kept) / _PAGE))
    page = min(max(0, page), pages - 1)
    shown = kept[page * _PAGE : (page + 1) * _PAGE]
    return {
        "of": len(found),
        "found": len(kept),
        "page": page,
        "pages": pages,
        "groups": [describe_group(rollouts, one) for one in shown],
    }


def _matches_filter(rollouts: RolloutIndex, one: int, show: GroupFilter) -> bool:
    if show == "missing":
        return one in rollouts.missing
    if show == "turned":
        return bool(rollouts.turned(one))
    return show == "all" or std(present_rewards(rollouts, one)) == 0
