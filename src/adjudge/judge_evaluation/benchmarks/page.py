"""The HTML report of a judge evaluation: scores with what is missing, orders, calibration.

One file; its charts (a score's interval, a reliability diagram) are SVG strings. A section is a
string of HTML, empty where it has nothing. Whatever items and judges said is escaped wherever it
stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.judge_evaluation.benchmarks.contamination import contamination_warning
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BenchmarkItem,
    Judgement,
    MissingJudgement,
    PairItem,
    pair_verdicts,
)
from adjudge.runs.report import frame
from adjudge.runs.report.charts import escape_html, format_integer, format_number
from adjudge.runs.report.frame import Section, notes_section, render_page

__all__ = [
    "EvaluationSummary",
    "banner_section",
    "calibration_section",
    "comparison_section",
    "contamination_section",
    "errors_section",
    "interval_strip",
    "items_section",
    "lengths_section",
    "orders_section",
    "reliability_diagram",
    "scores_section",
    "subsets_section",
    "write_validation_report",
]


_HEIGHT = 220
_INSET = 4.0
_TOP = 10


def interval_strip(value: float | None, low: float | None, high: float | None, label: str) -> str:
    """A score on a strip from 0 to 1 with its interval, where there is one."""
    parts = [
        f'<line class="grid" x1="{_strip_x(x)}" x2="{_strip_x(x)}" y1="0" y2="22"/>'
        for x in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    if value is not None:
        if low is not None and high is not None:
            ends = f'x1="{_strip_x(low)}" x2="{_strip_x(high)}"'
            parts.append(f'<line class="interval within" {ends} y1="11" y2="11"/>')
        parts.append(f'<circle class="dot within" cx="{_strip_x(value)}" cy="11" r="4.5"/>')
    return (
        f'<svg role="img" aria-label="{escape_html(label)}" width="100%" '
        f'height="22">{"".join(parts)}</svg>'
    )


def reliability_diagram(title: str, bins: Sequence[Sequence[float]]) -> str:
    """How often a judge is right (up) where it is so sure (across, 0.5 to 1); empty without bins.

    ``bins``: pairs, mean confidence, accuracy. A calibrated judge lies on the diagonal; larger
    marks stand for more pairs.
    """
    if not bins:
        return ""
    most = max(count for count, _, _ in bins)
    marks = "".join(_point_mark(count, sure, right, most) for count, sure, right in bins)
    diagonal = (
        f'<line class="chance" x1="{_confidence_x(0.5)}" x2="{_confidence_x(1.0)}" '
        f'y1="{_share_y(0.5)}" '
        f'y2="{_share_y(1.0)}"/>'
    )
    said = f"{title}: accuracy by confidence, {format_integer(sum(one[0] for one in bins))} pairs"
    return (
        f"<figure><figcaption><b>{escape_html(title)}</b></figcaption>"
        f'<svg role="img" aria-label="{escape_html(said)}" width="100%" height="{_HEIGHT + 36}">'
        f"{_grid()}{diagonal}{marks}</svg></figure>"
    )


def _point_mark(count: float, sure: float, right: float, most: float) -> str:
    radius = 3.5 + 5.5 * (count / most) ** 0.5
    told = (
        f"{format_integer(count)} pairs: confidence {format_number(sure)}, right "
        f"{format_number(right)}"
    )
    return (
        f'<circle class="mark" cx="{_confidence_x(sure)}" cy="{_share_y(right)}" r="{radius:.1f}">'
        f"<title>{escape_html(told)}</title></circle>"
    )


def _grid() -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<line class="grid" x1="0" x2="100%" y1="{_share_y(share)}" y2="{_share_y(share)}"/>'
        )
        parts.append(f'<text x="0" y="{float(_share_y(share)) - 3:.0f}">{share:g}</text>')
    for sure, anchor in ((0.5, "start"), (0.75, "middle"), (1.0, "end")):
        parts.append(
            f'<text x="{_confidence_x(sure)}" y="{_HEIGHT + 14}" '
            f'text-anchor="{anchor}">{sure:g}</text>'
        )
    parts.append(
        f'<text x="50%" y="{_HEIGHT + 30}" text-anchor="middle">confidence (across), right (up)'
        "</text>"
    )
    return "".join(parts)


def _strip_x(value: float) -> str:
    inside = min(1.0, max(0.0, value))
    return f"{_INSET + (100 - 2 * _INSET) * inside:.2f}%"


def _confidence_x(value: float) -> str:
    return _strip_x((value - 0.5) * 2)


def _share_y(value: float) -> str:
    return f"{_TOP + (_HEIGHT - 2 * _TOP) * (1 - value):.1f}"


EvaluationSummary = Mapping[str, Any]

_WIDE_COLUMNS = dict.fromkeys(("missing", "with", "0 to 1"), ' class="w"')
_MAX_ERRORS = 8
_MAX_TEXT = 600


def banner_section(summary: EvaluationSummary) -> str:
    """What must be read first: contamination, a sample that is no benchmark."""
    about = summary["benchmark"]
    said = [
        contamination_warning(judge["name"], judge["contamination"], about["items"])
        for judge in summary["judges"]
    ]
    if about["local"]:
        said.append("LOCAL SAMPLE: self-made items of the shape alone; no score of the benchmark")
    parts = [line.partition(":") for line in said if line]
    return "".join(
        f'<p class="banner"><b>{escape_html(a)}</b>:{escape_html(b)}</p>' for a, _, b in parts
    )


def scores_section(summary: EvaluationSummary) -> str:
    """Every judge's overall score."""
    head = ("score", "95 %", "0 to 1", "at least", "at most", "answered", "missing", "own script")
    rows = []
    for judge in summary["judges"]:
        one = judge["overall"]
        rows.append(
            (
                f"{escape_html(judge['name'])}<small> {escape_html(judge['mode'])}</small>",
                *_score_cells(one, judge["why"]),
                _plot_cell(one, judge["name"]),
                _number_cell(one["at_least"]),
                _number_cell(one["at_most"]),
                (
                    f'<td class="n">{format_integer(one["answered"])} of '
                    f"{format_integer(one['items'])}</td>"
                ),
                _missing_cell(one),
                _number_cell(one["own"]),
            )
        )
    said = [
        f"<p>{escape_html(judge['name'])}: the first <b>{escape_html(kind)}</b>: "
        f"{escape_html(message)}</p>"
        for judge in summary["judges"]
        for kind, message in judge["first_failures"].items()
    ]
    return _table("", head, rows) + "".join(said)


def subsets_section(summary: EvaluationSummary) -> str:
    """A table a judge, a row a subset."""
    return "".join(_judge_subsets(judge) for judge in summary["judges"] if judge["subsets"])


def _judge_subsets(judge: EvaluationSummary) -> str:
    pairs = judge["mode"] == "pairwise"
    last = ("consistent",) if pairs else ()
    head = ("items", "score", "95 %", "0 to 1", "missing", "own script", *last)
    rows = []
    for name, one in judge["subsets"].items():
        both = (_number_cell(one["orders"]["consistency"]),) if pairs else ()
        cells = (_plot_cell(one, name), _missing_cell(one), _number_cell(one["own"]), *both)
        rows.append((escape_html(name), _count_cell(one["items"]), *_score_cells(one), *cells))
    return _table(judge["name"], head, rows)


def comparison_section(summary: EvaluationSummary) -> str:
    """Every two judges on what both answered."""
    head = ("score", "other's", "difference", "95 %", "p", "only it / only other right",
            "McNemar p", "items of both")  # fmt: skip
    rows = []
    for one in summary["compared"]:
        low, high, why = (one["interval"][key] for key in ("low", "high", "why"))
        right = f"{format_integer(one['only_a_right'])} / {format_integer(one['only_b_right'])}"
        rows.append(
            (
                f"{escape_html(one['a'])} against {escape_html(one['b'])}",
                _number_cell(one["score_a"]),
                _number_cell(one["score_b"]),
                _number_cell(one["difference"]),
                _interval_cell(low, high, one["why"] or why),
                _number_cell(one["p"], 4),
                f'<td class="n">{right}</td>',
                _number_cell(one["mcnemar_p"], 4),
                _count_cell(one["items"]),
            )
        )
    return _table("", head, rows) if rows else ""


def orders_section(summary: EvaluationSummary) -> str:
    """What the order of two answers did to a judge's verdicts; of judges that compare."""
    head = ("as given", "swapped", "both right", "consistent", "kappa", "primacy / recency", "p",
            "ties", "missing verdicts")  # fmt: skip
    rows = []
    for judge in summary["judges"]:
        one = judge["overall"]["orders"]
        if one is None or judge["mode"] != "pairwise":
            continue
        position = f"{format_integer(one['primacy'])} / {format_integer(one['recency'])}"
        shares = [
            _share_cell(one["right_as_given"], one["answered_as_given"]),
            _share_cell(one["right_swapped"], one["answered_swapped"]),
            _share_cell(one["both_right"], one["both_answered"]),
        ]
        rows.append(
            (
                escape_html(judge["name"]),
                *shares,
                _number_cell(one["consistency"]),
                _number_cell(one["kappa"]),
                f'<td class="n">{position}</td>',
                _number_cell(one["position_p"], 4),
                _count_cell(one["ties"]),
                _count_cell(one["null_verdicts"]),
            )
        )
    return _table("", head, rows) if rows else ""


def calibration_section(summary: EvaluationSummary) -> str:
    """Reliability diagrams of the judges whose scores are logits or probabilities."""
    found = [judge for judge in summary["judges"] if judge["calibration"]]
    if not found:
        return ""
    entries = [entry for judge in found for entry in _calibrations(judge)]
    drawn = "".join(reliability_diagram(name, one["bins"]) for name, _, one in entries)
    head = ("read as", "pairs", "calibration error", "Brier score", "log loss")
    rows = [
        (
            escape_html(name),
            f'<td class="n">{escape_html(scale)}</td>',
            _count_cell(one["pairs"]),
            *(_number_cell(one[key]) for key in ("ece", "brier")),
            '<td class="n">∞</td>' if one["ruled_out"] else _number_cell(one["log_loss"]),
        )
        for name, scale, one in entries
    ]
    return f'<div class="diagrams">{drawn}</div>{_table("", head, rows)}'


def _calibrations(judge: EvaluationSummary) -> Iterable[tuple[str, str, EvaluationSummary]]:
    """As its scores are, and as the card of a trained judge turns them into probabilities."""
    yield judge["name"], judge["scale"], judge["calibration"]
    if own := judge["calibrated"]:
        yield f"{judge['name']}, calibrated by its card", own["by"], own


def lengths_section(summary: EvaluationSummary) -> str:
    """What length has to do with the judges' choices."""
    head = ("pairs", "r with length", "rho", "picks the longer", "longer is better",
            "right where longer is better", "where shorter is")  # fmt: skip
    keys = ("pearson", "spearman", "prefers_longer", "better_is_longer", "accuracy_longer",
            "accuracy_shorter")  # fmt: skip
    rows = [
        (
            escape_html(judge["name"]),
            _count_cell(one["pairs"]),
            *(_number_cell(one[key]) for key in keys),
        )
        for judge in summary["judges"]
        if (one := judge["lengths"])
    ]
    return _table("", head, rows) if rows else ""


def contamination_section(summary: EvaluationSummary) -> str:
    """What each judge was compared with."""
    head = ("items seen", "found by", "compared", "with")
    rows = []
    for judge in summary["judges"]:
        one = judge["contamination"]
        how = ", ".join(f"{kind} {format_integer(count)}" for kind, count in one["how"].items())
        seen = "–" if one["compared"] == "nothing" else format_integer(one["seen"])
        rows.append(
            (
                escape_html(judge["name"]),
                f'<td class="n">{seen}</td>',
                f'<td class="n">{escape_html(how)}</td>',
                f'<td class="n">{escape_html(one["compared"])}</td>',
                f'<td class="w">{escape_html("; ".join(one["notes"]))}</td>',
            )
        )
    return _table("", head, rows)


def items_section(summary: EvaluationSummary) -> str:
    """Where the items are from, and the rows that are none."""
    about = summary["benchmark"]
    files = [
        f"<p>{escape_html(one['file'])} <small>{one['sha256'][:12]}</small></p>"
        for one in about["files"]
    ]
    counts = ", ".join(
        f"{escape_html(name)} {format_integer(n)}" for name, n in about["subsets"].items()
    )
    gone = about["unusable"]
    problems = "".join(f"<p>{escape_html(line)}</p>" for line in gone["first"])
    if gone["rows"]:
        problems = f"<p><b>{format_integer(gone['rows'])} rows could not be used</b>:</p>{problems}"
    return f"{''.join(files)}<p>{counts}</p>{problems}"


def errors_section(
    summary: EvaluationSummary, benchmark: Benchmark, judgements: Mapping[str, Sequence[Judgement]]
) -> str:
    """The first pairs that the first judge has wrong in every order, with its words for them."""
    name = summary["judges"][0]["name"]
    found = [
        (item, said)
        for item, said in zip(benchmark.items, judgements[name], strict=True)
        if isinstance(item, PairItem) and _is_wrong_in_both_orders(item, said)
    ]
    if not found:
        return ""
    body = "".join(_error_row(item, said) for item, said in found[:_MAX_ERRORS])
    return (
        f"<p>{format_integer(len(found))} pairs of which {escape_html(name)} picks the other "
        "answer in both "
        f"orders; the first of them:</p>"
        '<div class="scroll"><table class="said"><thead><tr><th scope="col">Asked</th>'
        '<th scope="col">Better by the label</th><th scope="col">What it picked</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_wrong_in_both_orders(item: PairItem, said: Judgement) -> bool:
    other = "B" if item.label == "A" else "A"
    return all(verdict == other for verdict in pair_verdicts(said))


def _error_row(item: BenchmarkItem, said: Judgement) -> str:
    if not isinstance(item, PairItem):
        return ""
    better, other = (item.a, item.b) if item.label == "A" else (item.b, item.a)
    scored = [one for one in said.scores if not isinstance(one, MissingJudgement)]
    told = ""
    if len(scored) == 2:
        mine, theirs = scored if item.label == "A" else scored[::-1]
        told = f"<small>scores {format_number(mine)} against {format_number(theirs)}</small>"
    return (
        f"<tr><td><small>{escape_html(item.subset)} · {escape_html(_shorten(item.id))}</small>"
        f"<q>{escape_html(_shorten(_text(item.prompt)))}</q></td><td><q>{escape_html(_shorten(_text(better)))}</q></td>"
        f"<td><q>{escape_html(_shorten(_text(other)))}</q>{told}</td></tr>"
    )


def _text(turns: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(turn["content"]) for turn in turns)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose rows have a heading cell's content first, then whole cells."""
    titled = f"<caption>{escape_html(caption)}</caption>" if caption else ""
    heads = "".join(
        f'<th scope="col"{_WIDE_COLUMNS.get(one, "")}>{escape_html(one)}</th>'
        for one in ("", *head)
    )
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{"".join(row[1:])}</tr>' for row in rows)
    return (
        f'<div class="scroll"><table class="judges">{titled}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _score_cells(one: EvaluationSummary, why: str = "") -> tuple[str, str]:
    return _number_cell(one["score"], 4), _interval_cell(one["low"], one["high"], why or one["why"])


def _interval_cell(low: float | None, high: float | None, why: str) -> str:
    said = escape_html(why) if low is None else f"{format_number(low)} to {format_number(high)}"
    return f'<td class="i">{said}</td>'


def _plot_cell(one: EvaluationSummary, name: str) -> str:
    label = f"{name}: {format_number(one['score'])}"
    strip = interval_strip(one["score"], one["low"], one["high"], label)
    return f'<td class="plot">{strip}</td>'


def _missing_cell(one: EvaluationSummary) -> str:
    kinds = ", ".join(f"{kind} {format_integer(count)}" for kind, count in one["failures"].items())
    lost = f'<span class="lost">{escape_html(kinds)}</span>' if kinds else "0"
    return f'<td class="w">{lost}</td>'


def _number_cell(value: float | None, digits: int = 3) -> str:
    return f'<td class="n">{format_number(value, digits)}</td>'


def _count_cell(value: int) -> str:
    return f'<td class="n">{format_integer(value)}</td>'


def _share_cell(part: int, whole: int) -> str:
    return f'<td class="n">{format_integer(part)} of {format_integer(whole)}</td>'


_NOTES = """<p><b>Score</b> is the benchmark&rsquo;s overall score over what the judge answered; \
<b>at least</b> and <b>at most</b> are what it would be if all that is missing were wrong, or \
right. What a judge failed at is counted by kind and is never a choice. <b>Own script</b> is what \
the benchmark&rsquo;s published script would print, failures counted as it counts them.</p>
<p>Intervals are 95 % percentile bootstrap intervals, drawn by item within subsets. Two judges are \
compared on what both answered, drawn the same items; McNemar&rsquo;s test counts the items that \
one has wholly right and the other has not. No p-value is adjusted for the number of \
comparisons.</p>
<p><b>Consistent</b>: the share of pairs with two verdicts where both orders name the same answer. \
<b>Primacy</b> and <b>recency</b>: both orders name what was shown first, or second.</p>
<p><b>Calibration</b> reads a difference of scores as log odds: &sigma;(difference) is the \
probability that the better answer wins. A well calibrated judge lies on the diagonal.</p>
<p><b>Contaminated</b>: the judge, or one it was trained from, has seen these items in training. \
Where only ids were compared, texts that were trained on under another name go unnoticed.</p>"""


def write_validation_report(
    path: Path,
    summary: Mapping[str, Any],
    benchmark: Benchmark,
    judgements: Mapping[str, Sequence[Judgement]],
) -> None:
    """Write ``report.html`` to ``path``, UTF-8; ``judgements`` are each judge's in items' order."""
    found = [
        ("scores", "Scores", scores_section(summary)),
        ("subsets", "By subset", subsets_section(summary)),
        ("compared", "Judges compared", comparison_section(summary)),
        ("orders", "Both orders", orders_section(summary)),
        ("calibration", "Calibration", calibration_section(summary)),
        ("lengths", "Length", lengths_section(summary)),
        ("contamination", "Contamination", contamination_section(summary)),
        ("wrong", "Where it was wrong", errors_section(summary, benchmark, judgements)),
        ("items", "Items", items_section(summary)),
    ]
    html = render_page(
        "Judge validation",
        _facts(summary),
        [
            banner_section(summary),
            *(Section(key, title, text, title) for key, title, text in found),
            frame.judge_calls_html({"endpoints": summary.get("endpoints")}),
            notes_section(_NOTES),
        ],
        styles=[("adjudge.judge_evaluation.benchmarks", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    about = summary["benchmark"]
    return [
        ("Judges", ", ".join(judge["name"] for judge in summary["judges"])),
        ("Benchmark", f"{about['title']}, {format_integer(about['items'])} items"),
        ("Overall score", about["official"]),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]
