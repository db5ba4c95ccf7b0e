"""The HTML report of a judge evaluation: scores with what is missing, orders, calibration.

A section is its tables and charts; one that has none is left out. The cells of numbers, scores and
intervals also serve the pages of other benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adjudge.report.charts import forest_strip, reliability_diagram
from adjudge.report.page import (
    Element,
    Section,
    bold,
    format_integer,
    format_number,
    format_range,
    notes_section,
    paragraph,
    render_page,
    small,
)
from adjudge.report.table import Column, Table, estimate_cells, lost, numeric
from adjudge.runs.report.tables import judge_calls_section
from adjudge.stats import Estimate
from adjudge.stats.agreement import describe_youden

EvaluationSummary = Mapping[str, Any]


def score_columns(*names: str) -> list[Column]:
    """What stands above :func:`score_cells`."""
    return [*numeric(*names), Column("95 %", "i"), Column("0 to 1", "plot")]


def score_cells(
    value: float | None, low: float | None, high: float | None, why: str, label: str
) -> list[object]:
    """A score, its interval or why there is none, and both on a strip."""
    strip = forest_strip({"within": Estimate(value, low, high)}, f"{label}: {format_number(value)}")
    return [format_number(value, 4), format_range(low, high, why), strip]


def _scores(judge: EvaluationSummary) -> Table:
    """One judge overall, and by subset where there are several."""
    pairs = judge["mode"] == "pairwise"
    columns = [*score_columns("score"), *numeric("items"), Column("missing", "w"),
               *numeric("least/most", "own", *(("agrees",) if pairs else ()))]  # fmt: skip
    rows = [[bold("overall"), *_score_row(judge["overall"], judge["name"], pairs=pairs)]]
    if len(judge["subsets"]) > 1 or judge["why"]:
        rows += [
            [name, *_score_row(one, name, pairs=pairs)] for name, one in judge["subsets"].items()
        ]
    return Table(
        ["", *columns],
        rows,
        caption=f"{judge['name']} ({judge['mode']})",
        drop=("own", "agrees", "least/most", "items"),
        keep=("score", "missing"),
    )


def _score_row(one: EvaluationSummary, label: str, *, pairs: bool) -> list[object]:
    least, most = one["at_least"], one["at_most"]
    bounds = "" if least is None or not one["missing"] else f"{least:.3f}/{most:.3f}"
    kinds = ", ".join(f"{kind} {format_integer(count)}" for kind, count in one["failures"].items())
    cells: list[object] = [
        *score_cells(one["score"], one["low"], one["high"], one["why"], label),
        format_integer(one["items"]),
        lost(kinds) if kinds else "0",
        bounds,
        format_number(one["own"], 4),
    ]
    return [*cells, format_number(one["orders"]["consistency"])] if pairs else cells


def _numbers(one: EvaluationSummary, *keys: str) -> list[str]:
    return [
        (format_integer if isinstance(one[key], int) else format_number)(one[key]) for key in keys
    ]


def _youden(summary: EvaluationSummary) -> Table:
    """J of the judges that pass an answer or not."""
    found = {judge["name"]: judge["youden"] for judge in summary["judges"] if judge["youden"]}
    rows = [[name, *estimate_cells(one), *_numbers(one, "n")] for name, one in found.items()]
    return Table(["", *numeric("Youden's J"), Column("95 %", "i"), *numeric("answers")], rows)


def _comparison(summary: EvaluationSummary) -> Table:
    """Every two judges on what both answered."""
    columns = [*numeric("score", "other's", "difference"), Column("95 %", "i"),
               *numeric("p", "items of both")]  # fmt: skip
    rows = []
    for one in summary["compared"]:
        found = one["interval"]
        ends = format_range(found["low"], found["high"], one["why"] or found["why"])
        numbers = _numbers(one, "score_a", "score_b", "difference")
        p, items = format_number(one["p"], 4), format_integer(one["items"])
        rows.append([f"{one['a']} against {one['b']}", *numbers, ends, p, items])
    return Table(["", *columns], rows)


def position_sentence(judge: Mapping[str, Any]) -> str:
    """What the order of two answers did to a judge's verdicts, in words; empty where nothing.

    A place is preferred where the verdicts that name it in both orders are more than chance
    (p < 0.05), and a twentieth of the pairs.
    """
    one = judge["overall"]["orders"]
    if one is None or judge["mode"] != "pairwise" or not (pairs := one["both_answered"]):
        return ""
    counts = {"first": one["primacy"], "second": one["recency"]}
    place, other = sorted(counts, key=lambda name: -counts[name])
    named, turned = counts[place], sum(counts.values())
    of = f"{format_integer(named)} of {format_integer(pairs)} pairs"
    if one["position_p"] is not None and one["position_p"] < 0.05 and named >= 0.05 * pairs:
        often = "always" if named == pairs else "mostly" if named > 0.5 * pairs else "too often"
        return (
            f"{judge['name']} {often} picks the {place} answer, whichever that is: in {of} it "
            f"names what was shown {place} in both orders (shown {other}: "
            f"{format_integer(counts[other])})"
        )
    if turned > 0.2 * pairs:
        return (
            f"{judge['name']} changes its verdict with the order in {format_integer(turned)} of "
            f"{format_integer(pairs)} pairs, without preferring a place"
        )
    return ""


def judge_warnings(summary: EvaluationSummary) -> list[str]:
    """What a reader must know of each judge before its numbers."""
    found = []
    for judge in summary["judges"]:
        youden = Estimate(**judge["youden"]) if judge["youden"] else Estimate()
        found += [
            position_sentence(judge),
            describe_youden(judge["name"], youden),
            judge["why"] and f"{judge['name']}: {judge['why']}",
            *(
                f"{judge['name']}: the first {kind}: {message}"
                for kind, message in judge["first_failures"].items()
            ),
        ]
    return [line for line in found if line]


def evaluation_tables(summary: EvaluationSummary) -> dict[str, list[Table]]:
    """The tables of page and terminal by the title of their section; a table may have no rows."""
    return {
        "Scores": [*map(_scores, summary["judges"]), _youden(summary)],
        "Judges compared": [_comparison(summary)],
        "Both orders": [_orders(summary)],
        "Calibration": [_calibration(summary)],
        "Length": [_lengths(summary)],
    }


def _orders(summary: EvaluationSummary) -> Table:
    """What the order of two answers did to a judge's verdicts; of judges that compare."""
    columns = numeric("as given", "swapped", "both right", "consistent", "kappa",
                      "primacy / recency", "p", "ties", "missing verdicts")  # fmt: skip
    shares = (("right_as_given", "answered_as_given"), ("right_swapped", "answered_swapped"),
              ("both_right", "both_answered"))  # fmt: skip
    rows = []
    for judge in summary["judges"]:
        one = judge["overall"]["orders"]
        if one is None or judge["mode"] != "pairwise":
            continue
        rows.append(
            [
                judge["name"],
                *(" of ".join(_numbers(one, *share)) for share in shares),
                *_numbers(one, "consistency", "kappa"),
                " / ".join(_numbers(one, "primacy", "recency")),
                format_number(one["position_p"], 4),
                *_numbers(one, "ties", "null_verdicts"),
            ]
        )
    return Table(["", *columns], rows)


def _calibrations(summary: EvaluationSummary) -> list[tuple[str, str, EvaluationSummary]]:
    """As its scores are, and as a trained judge's card turns them into probabilities."""
    found = []
    for judge in summary["judges"]:
        if judge["calibration"]:
            found.append((judge["name"], judge["scale"], judge["calibration"]))
        if own := judge["calibrated"]:
            found.append((f"{judge['name']}, by its card", own["by"], own))
    return found


def _calibration(summary: EvaluationSummary) -> Table:
    rows = [
        [name, scale, *_numbers(one, "pairs", "ece", "brier"),
         "∞" if one["ruled_out"] else format_number(one["log_loss"])]
        for name, scale, one in _calibrations(summary)
    ]  # fmt: skip
    columns = numeric("read as", "pairs", "calibration error", "Brier score", "log loss")
    return Table(["", *columns], rows)


def _lengths(summary: EvaluationSummary) -> Table:
    """What length has to do with the judges' choices."""
    columns = numeric("pairs", "ρ with length", "picks the longer", "longer is better",
                      "right where longer is better", "where shorter is")  # fmt: skip
    judges = [judge for judge in summary["judges"] if judge["lengths"]]
    rows = [[one["name"], *_numbers(one["lengths"], *one["lengths"])] for one in judges]
    return Table(["", *columns], rows)


def write_validation_report(path: Path, summary: Mapping[str, Any]) -> None:
    """Write ``report.html`` to ``path``, UTF-8."""
    tables, about = evaluation_tables(summary), summary["benchmark"]
    contents: dict[str, list[object]] = {title: [*found] for title, found in tables.items()}
    contents["Scores"][:0] = [paragraph(bold(line), ".") for line in judge_warnings(summary)]
    drawn = [reliability_diagram(name, one["bins"]) for name, _, one in _calibrations(summary)]
    contents["Calibration"].append(Element("div", drawn, class_="curves") if drawn else None)
    # Where the items are from, and the rows that are none.
    files = [paragraph(one["file"], " ", small(one["sha256"][:12])) for one in about["files"]]
    counts = ", ".join(f"{name} {format_integer(n)}" for name, n in about["subsets"].items())
    gone = about["unusable"]
    unusable = paragraph(bold(f"{format_integer(gone['rows'])} rows could not be used"), ":")
    contents["Items"] = [*files, counts, unusable if gone["rows"] else "", *gone["first"]]
    html = render_page(
        "Judge validation",
        [
            ("Judges", ", ".join(judge["name"] for judge in summary["judges"])),
            ("Benchmark", f"{about['title']}, {format_integer(about['items'])} items"),
            ("Overall score", about["official"]),
            ("Took", f"{summary['seconds']:g} s"),
            ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
        ],
        [
            *(
                Section(title.split()[0].lower(), title, content, title)
                for title, content in contents.items()
            ),
            judge_calls_section({key: summary.get(key) for key in ("endpoints", "spending")}),
            notes_section(__package__ or ""),
        ],
    )
    path.write_text(html, encoding="utf-8", newline="\n")
