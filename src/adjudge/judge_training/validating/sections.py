"""The sections of a validation's report, each a string of HTML, empty where it has nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adjudge.judge_training.benchmarks.items import Benchmark, Item, PairItem
from adjudge.judge_training.benchmarks.judgements import Judgement, Missing, verdicts_of
from adjudge.judge_training.validating.charts import interval_strip, reliability
from adjudge.judge_training.validating.summary import contamination_line
from adjudge.runs.report.charts import esc, integer, number

__all__ = [
    "banners",
    "calibration",
    "compared",
    "contamination",
    "items",
    "lengths",
    "orders",
    "scores",
    "subsets",
    "wrong",
]

Summary = Mapping[str, Any]

_WIDE = dict.fromkeys(("missing", "with", "0 to 1"), ' class="w"')
_MOST_SHOWN = 8
_MOST_TEXT = 600


def banners(summary: Summary) -> str:
    """What must be read first: contamination, a sample that is no benchmark."""
    about = summary["benchmark"]
    said = [
        contamination_line(judge["name"], judge["contamination"], about["items"])
        for judge in summary["judges"]
    ]
    if about["local"]:
        said.append("LOCAL SAMPLE: self-made items of the shape alone; no score of the benchmark")
    parts = [line.partition(":") for line in said if line]
    return "".join(f'<p class="banner"><b>{esc(a)}</b>:{esc(b)}</p>' for a, _, b in parts)


def scores(summary: Summary) -> str:
    """Every judge's overall score."""
    head = ("score", "95 %", "0 to 1", "at least", "at most", "answered", "missing", "own script")
    rows = []
    for judge in summary["judges"]:
        one = judge["overall"]
        rows.append(
            (
                f"{esc(judge['name'])}<small> {esc(judge['mode'])}</small>",
                *_score(one, judge["why"]),
                _plot(one, judge["name"]),
                _n(one["at_least"]),
                _n(one["at_most"]),
                f'<td class="n">{integer(one["answered"])} of {integer(one["items"])}</td>',
                _missing(one),
                _n(one["own"]),
            )
        )
    said = [
        f"<p>{esc(judge['name'])}: the first <b>{esc(kind)}</b>: {esc(message)}</p>"
        for judge in summary["judges"]
        for kind, message in judge["first_failures"].items()
    ]
    return _table("", head, rows) + "".join(said)


def subsets(summary: Summary) -> str:
    """A table a judge, a row a subset."""
    return "".join(_subsets_of(judge) for judge in summary["judges"] if judge["subsets"])


def _subsets_of(judge: Summary) -> str:
    pairs = judge["mode"] == "pairwise"
    last = ("consistent",) if pairs else ()
    head = ("items", "score", "95 %", "0 to 1", "missing", "own script", *last)
    rows = []
    for name, one in judge["subsets"].items():
        both = (_n(one["orders"]["consistency"]),) if pairs else ()
        cells = (_plot(one, name), _missing(one), _n(one["own"]), *both)
        rows.append((esc(name), _count(one["items"]), *_score(one), *cells))
    return _table(judge["name"], head, rows)


def compared(summary: Summary) -> str:
    """Every two judges on what both answered."""
    head = ("score", "other's", "difference", "95 %", "p", "only it / only other right",
            "McNemar p", "items of both")  # fmt: skip
    rows = []
    for one in summary["compared"]:
        low, high, why = (one["interval"][key] for key in ("low", "high", "why"))
        right = f"{integer(one['only_a_right'])} / {integer(one['only_b_right'])}"
        rows.append(
            (
                f"{esc(one['a'])} against {esc(one['b'])}",
                _n(one["score_a"]),
                _n(one["score_b"]),
                _n(one["difference"]),
                _interval(low, high, one["why"] or why),
                _n(one["p"], 4),
                f'<td class="n">{right}</td>',
                _n(one["mcnemar_p"], 4),
                _count(one["items"]),
            )
        )
    return _table("", head, rows) if rows else ""


def orders(summary: Summary) -> str:
    """What the order of two answers did to a judge's verdicts; of judges that compare."""
    head = ("as given", "swapped", "both right", "consistent", "kappa", "primacy / recency", "p",
            "ties", "missing verdicts")  # fmt: skip
    rows = []
    for judge in summary["judges"]:
        one = judge["overall"]["orders"]
        if one is None or judge["mode"] != "pairwise":
            continue
        position = f"{integer(one['primacy'])} / {integer(one['recency'])}"
        shares = [
            _of(one["right_as_given"], one["answered_as_given"]),
            _of(one["right_swapped"], one["answered_swapped"]),
            _of(one["both_right"], one["both_answered"]),
        ]
        rows.append(
            (
                esc(judge["name"]),
                *shares,
                _n(one["consistency"]),
                _n(one["kappa"]),
                f'<td class="n">{position}</td>',
                _n(one["position_p"], 4),
                _count(one["ties"]),
                _count(one["null_verdicts"]),
            )
        )
    return _table("", head, rows) if rows else ""


def calibration(summary: Summary) -> str:
    """Reliability diagrams of the judges whose scores are logits or probabilities."""
    found = [judge for judge in summary["judges"] if judge["calibration"]]
    if not found:
        return ""
    entries = [entry for judge in found for entry in _calibrations(judge)]
    drawn = "".join(reliability(name, one["bins"]) for name, _, one in entries)
    head = ("read as", "pairs", "calibration error", "Brier score", "log loss")
    rows = [
        (
            esc(name),
            f'<td class="n">{esc(scale)}</td>',
            _count(one["pairs"]),
            *(_n(one[key]) for key in ("ece", "brier")),
            '<td class="n">∞</td>' if one["ruled_out"] else _n(one["log_loss"]),
        )
        for name, scale, one in entries
    ]
    return f'<div class="diagrams">{drawn}</div>{_table("", head, rows)}'


def _calibrations(judge: Summary) -> Iterable[tuple[str, str, Summary]]:
    """As its scores are, and as the card of a trained judge turns them into probabilities."""
    yield judge["name"], judge["scale"], judge["calibration"]
    if own := judge["calibrated"]:
        yield f"{judge['name']}, calibrated by its card", own["by"], own


def lengths(summary: Summary) -> str:
    """What length has to do with the judges' choices."""
    head = ("pairs", "r with length", "rho", "picks the longer", "longer is better",
            "right where longer is better", "where shorter is")  # fmt: skip
    keys = ("pearson", "spearman", "prefers_longer", "better_is_longer", "accuracy_longer",
            "accuracy_shorter")  # fmt: skip
    rows = [
        (esc(judge["name"]), _count(one["pairs"]), *(_n(one[key]) for key in keys))
        for judge in summary["judges"]
        if (one := judge["lengths"])
    ]
    return _table("", head, rows) if rows else ""


def contamination(summary: Summary) -> str:
    """What each judge was compared with."""
    head = ("items seen", "found by", "compared", "with")
    rows = []
    for judge in summary["judges"]:
        one = judge["contamination"]
        how = ", ".join(f"{kind} {integer(count)}" for kind, count in one["how"].items())
        seen = "–" if one["compared"] == "nothing" else integer(one["seen"])
        rows.append(
            (
                esc(judge["name"]),
                f'<td class="n">{seen}</td>',
                f'<td class="n">{esc(how)}</td>',
                f'<td class="n">{esc(one["compared"])}</td>',
                f'<td class="w">{esc("; ".join(one["notes"]))}</td>',
            )
        )
    return _table("", head, rows)


def items(summary: Summary) -> str:
    """Where the items are from, and the rows that are none."""
    about = summary["benchmark"]
    files = [
        f"<p>{esc(one['file'])} <small>{one['sha256'][:12]}</small></p>" for one in about["files"]
    ]
    counts = ", ".join(f"{esc(name)} {integer(n)}" for name, n in about["subsets"].items())
    gone = about["unusable"]
    problems = "".join(f"<p>{esc(line)}</p>" for line in gone["first"])
    if gone["rows"]:
        problems = f"<p><b>{integer(gone['rows'])} rows could not be used</b>:</p>{problems}"
    return f"{''.join(files)}<p>{counts}</p>{problems}"


def wrong(
    summary: Summary, benchmark: Benchmark, judgements: Mapping[str, Sequence[Judgement]]
) -> str:
    """The first pairs that the first judge has wrong in every order, with its words for them."""
    name = summary["judges"][0]["name"]
    found = [
        (item, said)
        for item, said in zip(benchmark.items, judgements[name], strict=True)
        if isinstance(item, PairItem) and _all_wrong(item, said)
    ]
    if not found:
        return ""
    body = "".join(_wrong_row(item, said) for item, said in found[:_MOST_SHOWN])
    return (
        f"<p>{integer(len(found))} pairs of which {esc(name)} picks the other answer in both "
        f"orders; the first of them:</p>"
        '<div class="scroll"><table class="said"><thead><tr><th scope="col">Asked</th>'
        '<th scope="col">Better by the label</th><th scope="col">What it picked</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _all_wrong(item: PairItem, said: Judgement) -> bool:
    other = "B" if item.label == "A" else "A"
    return all(verdict == other for verdict in verdicts_of(said))


def _wrong_row(item: Item, said: Judgement) -> str:
    if not isinstance(item, PairItem):
        return ""
    better, other = (item.a, item.b) if item.label == "A" else (item.b, item.a)
    scored = [one for one in said.scores if not isinstance(one, Missing)]
    told = ""
    if len(scored) == 2:
        mine, theirs = scored if item.label == "A" else scored[::-1]
        told = f"<small>scores {number(mine)} against {number(theirs)}</small>"
    return (
        f"<tr><td><small>{esc(item.subset)} · {esc(_cut(item.id))}</small>"
        f"<q>{esc(_cut(_text(item.prompt)))}</q></td><td><q>{esc(_cut(_text(better)))}</q></td>"
        f"<td><q>{esc(_cut(_text(other)))}</q>{told}</td></tr>"
    )


def _text(turns: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(turn["content"]) for turn in turns)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " …"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose rows have a heading cell's content first, then whole cells."""
    titled = f"<caption>{esc(caption)}</caption>" if caption else ""
    heads = "".join(f'<th scope="col"{_WIDE.get(one, "")}>{esc(one)}</th>' for one in ("", *head))
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{"".join(row[1:])}</tr>' for row in rows)
    return (
        f'<div class="scroll"><table class="judges">{titled}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _score(one: Summary, why: str = "") -> tuple[str, str]:
    return _n(one["score"], 4), _interval(one["low"], one["high"], why or one["why"])


def _interval(low: float | None, high: float | None, why: str) -> str:
    said = esc(why) if low is None else f"{number(low)} to {number(high)}"
    return f'<td class="i">{said}</td>'


def _plot(one: Summary, name: str) -> str:
    label = f"{name}: {number(one['score'])}"
    strip = interval_strip(one["score"], one["low"], one["high"], label)
    return f'<td class="plot">{strip}</td>'


def _missing(one: Summary) -> str:
    kinds = ", ".join(f"{kind} {integer(count)}" for kind, count in one["failures"].items())
    lost = f'<span class="lost">{esc(kinds)}</span>' if kinds else "0"
    return f'<td class="w">{lost}</td>'


def _n(value: float | None, digits: int = 3) -> str:
    return f'<td class="n">{number(value, digits)}</td>'


def _count(value: int) -> str:
    return f'<td class="n">{integer(value)}</td>'


def _of(part: int, whole: int) -> str:
    return f'<td class="n">{integer(part)} of {integer(whole)}</td>'
