"""A HealthBench evaluation as one HTML file: the score, its parts, and what is missing.

Whatever files, tags and keys are called is escaped wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.judge_training.validating.charts import interval_strip
from adjudge.runs.report.charts import esc, integer, number
from adjudge.runs.report.frame import Section, framed, how_to_read
from adjudge.studies.healthbench.words import missing_lines, tag_groups

__all__ = ["write_page"]

_NOTES = """<p>A sample&rsquo;s score is the points of its criteria that are met over all positive \
points; it is not clipped, and faults can bring it far below 0. The benchmark&rsquo;s score is the \
mean over samples, clipped to 0 to 1 once, at the end. Several samples of a prompt count with \
their mean.</p>
<p>By tag: the same formula on the criteria that carry it (axis, level), or the samples whose row \
carries it (theme). The spread is the standard deviation of the clipped mean over 1,000 bootstrap \
resamples of the prompts; the interval is its 2.5 % to 97.5 % quantile: other prompts of this \
kind, not other judges.</p>
<p>A sample with a criterion that the judge gave no mark for has no score: nothing is assumed, and \
no weight moves to the other criteria. Its interval says where the score must lie.</p>"""

Entry = Mapping[str, Any]


def write_page(path: Path, summary: Entry) -> None:
    """Write the page to ``path``, UTF-8."""
    found = [
        ("score", "Score", _table("", [("HealthBench", summary["overall"])])),
        ("tags", "By tag", _tags(summary)),
        ("missing", "Not counted", _missing(summary)),
    ]
    sections = [Section(key, title, text, title) for key, title, text in found]
    html = framed(
        "HealthBench",
        _facts(summary),
        [*sections, how_to_read(_NOTES)],
        styles=[("adjudge.judge_training.validating", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: Entry) -> list[tuple[str, str]]:
    judge, scored = summary["judge"], f"{summary['scored']:,} of {summary['samples']:,}"
    return [
        ("Responses", summary["responses"]),
        ("Prompts", f"{integer(summary['prompts'])} of {summary['data']}"),
        ("Judge", f"{judge['grader']} of {judge['spec']}"),
        ("Samples with a score", scored),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _tags(summary: Entry) -> str:
    return "".join(
        _table(name, [(value, one) for value, one in tags.items()])
        for name, tags in tag_groups(summary["tags"]).items()
    )


def _missing(summary: Entry) -> str:
    lines = "".join(f"<p>{esc(line)}</p>" for line in missing_lines(summary))
    rows = [
        (esc(f"{one['key']} #{one['sample']}"), f"<td>{esc(one['kind'])}</td>",
         _n(one["low"]), _n(one["high"]), f"<td>{esc(one['reason'][:300])}</td>")
        for one in summary["missing"]
    ]  # fmt: skip
    return lines + (_rows("", ("kind", "at least", "at most", ""), rows) if rows else "")


def _table(caption: str, entries: Sequence[tuple[str, Entry]]) -> str:
    rows = []
    for name, one in entries:
        strip = interval_strip(one["score"], one["low"], one["high"], f"{name}: {one['score']}")
        low = one["low"]
        said = esc(one["why"]) if low is None else f"{number(low)} to {number(one['high'])}"
        rows.append(
            (
                esc(name),
                _n(one["score"]),
                _n(one["bootstrap_std"]),
                f'<td class="i">{said}</td>',
                f'<td class="plot">{strip}</td>',
                f'<td class="n">{one["n_samples"]:,}</td>',
            )
        )
    return _rows(caption, ("score", "SD", "95 %", "0 to 1", "n"), rows)


def _n(value: float | None) -> str:
    return f'<td class="n">{"–" if value is None else f"{value:,.4f}"}</td>'


def _rows(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose rows have a heading cell's content first, then whole cells."""
    titled = f"<caption>{esc(caption)}</caption>" if caption else ""
    heads = "".join(f'<th scope="col">{esc(one)}</th>' for one in ("", *head))
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{"".join(row[1:])}</tr>' for row in rows)
    return (
        f'<div class="scroll"><table class="judges">{titled}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
