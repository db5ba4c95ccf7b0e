"""An IFEval evaluation as one HTML file: accuracies with intervals, differences, what is missing.

Whatever prompts, files and models are called is escaped wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.judge_training.validating.charts import interval_strip
from adjudge.runs.report.charts import esc, integer, number
from adjudge.runs.report.frame import Section, framed, how_to_read
from adjudge.studies.ifeval.words import headline, missing_lines

__all__ = ["write_page"]

_NOTES = """<p><b>Pr</b>: the share of prompts all of whose instructions are followed; <b>Ins</b>: \
the share of instructions. <b>S</b> (strict) judges the response as it is; <b>L</b> (loose) also \
without asterisks, its first or its last line, and one reading that follows is enough.</p>
<p>With several samples a prompt counts with the mean of its samples: the expected share of one \
response, not the best of several (no pass@k).</p>
<p>Intervals are 95 % percentile bootstrap intervals over prompts: other prompts of this kind, not \
other draws of the model. Differences are paired: over the prompts that both have. McNemar&rsquo;s \
test counts the prompts that one follows and the other does not. No p-value is adjusted for the \
number of comparisons.</p>
<p>Prompts without a response, and responses that could not be made or judged, are in no share: \
they are missing, and not &ldquo;not followed&rdquo;.</p>"""
_LEVELS = (("prompt", "Pr"), ("instruction", "Ins"))
_READINGS = (("strict", "S"), ("loose", "L"))

Entry = Mapping[str, Any]


def write_page(path: Path, summary: Entry) -> None:
    """Write the page to ``path``, UTF-8."""
    found = [
        ("scores", "Accuracies", "".join(map(_scores, summary["models"]))),
        ("compared", "Compared", _compared(summary)),
        ("types", "By category and type", "".join(map(_parts, summary["models"]))),
        ("missing", "Not counted", _missing(summary)),
    ]
    sections = [Section(key, title, text, title) for key, title, text in found]
    html = framed(
        "IFEval",
        _facts(summary),
        [*sections, how_to_read(_NOTES)],
        styles=[("adjudge.judge_training.validating", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: Entry) -> list[tuple[str, str]]:
    return [
        ("Models", ", ".join(one["name"] for one in summary["models"])),
        ("Prompts", f"{integer(summary['prompts'])} of {summary['data']}"),
        ("Joined by", summary["by"]),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _scores(one: Entry) -> str:
    rows = [
        (f"{short}({letter})", *_cells(one[reading][level], f"{short}({letter})"))
        for reading, letter in _READINGS
        for level, short in _LEVELS
    ]
    return _table(headline(one), ("share", "95 %", "0 to 1", "of"), rows)


def _cells(one: Entry, label: str) -> tuple[str, ...]:
    value = one["value"]
    strip = interval_strip(value, one["low"], one["high"], f"{label}: {number(value)}")
    return (_n(value, 4), _interval(one), f'<td class="plot">{strip}</td>',
            _n(one["n"], 0))  # fmt: skip


def _parts(one: Entry) -> str:
    """A category a row, its types under it."""
    rows = []
    for category in one["strict"]["by_category"]:
        rows.append((f"<b>{esc(category)}</b>", *_both(one, "by_category", category)))
        for name in one["strict"]["by_type"]:
            own, _, rest = name.partition(":")
            if own == category:
                rows.append((esc(rest), *_both(one, "by_type", name)))
    return _table(one["name"], ("strict", "95 %", "0 to 1", "loose", "95 %", "of"), rows)


def _both(one: Entry, part: str, name: str) -> tuple[str, ...]:
    *strict, of = _cells(one["strict"][part][name], name)
    loose = one["loose"][part][name]
    return (*strict, _n(loose["value"], 4), _interval(loose), of)


def _compared(summary: Entry) -> str:
    head = ("", "first", "second", "difference", "95 %", "p", "only it / only other", "McNemar p",
            "prompts")  # fmt: skip
    rows = []
    for one in summary["compared"]:
        name = f"{dict(_LEVELS)[one['level']]}({dict(_READINGS)[one['reading']]})"
        only = "–" if one["only_a"] is None else f"{one['only_a']:,} / {one['only_b']:,}"
        rows.append(
            (
                f"{esc(one['a'])} against {esc(one['b'])}",
                f"<td>{name}</td>",
                _n(one["value_a"], 4),
                _n(one["value_b"], 4),
                _n(one["difference"], 4),
                _interval(one),
                _n(one["p"], 4),
                f'<td class="n">{only}</td>',
                _n(one["mcnemar_p"], 4),
                _n(one["prompts"], 0),
            )
        )
    return _table("", head, rows) if rows else ""


def _missing(summary: Entry) -> str:
    lines = [(one["name"], line) for one in summary["models"] for line in missing_lines(one)]
    return "".join(f"<p><b>{esc(name)}</b>: {esc(line)}</p>" for name, line in lines)


def _interval(one: Entry) -> str:
    low, high = one["low"], one["high"]
    said = esc(one["why"]) if low is None else f"{number(low)} to {number(high)}"
    return f'<td class="i">{said}</td>'


def _n(value: float | None, digits: int) -> str:
    return f'<td class="n">{"–" if value is None else f"{value:,.{digits}f}"}</td>'


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose rows have a heading cell's content first, then whole cells."""
    titled = f"<caption>{esc(caption)}</caption>" if caption else ""
    heads = "".join(f'<th scope="col">{esc(one)}</th>' for one in ("", *head))
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{"".join(row[1:])}</tr>' for row in rows)
    return (
        f'<div class="scroll"><table class="judges">{titled}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
