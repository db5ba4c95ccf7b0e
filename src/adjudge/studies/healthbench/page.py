"""A HealthBench evaluation as one HTML file: the score, its parts, and what is missing.

No script and no network: a content security policy admits this file's own style by hash and nothing
else. Whatever files, tags and keys are called is escaped wherever it stands.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from adjudge.judge_training.validating.charts import interval_strip
from adjudge.runs.report.charts import esc, integer, number
from adjudge.studies.healthbench.words import missing_lines, tag_groups

__all__ = ["write_page"]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{hash}'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>HealthBench</title>
<style>{style}</style>
</head>
<body>
<header class="page">
<h1>HealthBench</h1>
<nav aria-label="Sections">{links}</nav>
<dl class="facts">{facts}</dl>
</header>
<main>
{body}
<section id="notes"><h2>How to read the numbers</h2>{notes}</section>
</main>
</body>
</html>
"""
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
    style = _asset("adjudge.runs.report") + _asset("adjudge.judge_training.validating")
    found = [
        ("score", "Score", _table("", [("HealthBench", summary["overall"])])),
        ("tags", "By tag", _tags(summary)),
        ("missing", "Not counted", _missing(summary)),
    ]
    shown = [one for one in found if one[2]]
    html = _PAGE.format(
        style=style,
        hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        links="".join(f'<a href="#{key}">{title}</a>' for key, title, _ in shown),
        facts=_facts(summary),
        body="".join(
            f'<section id="{key}"><h2>{title}</h2>{text}</section>' for key, title, text in shown
        ),
        notes=_NOTES,
    )
    path.write_bytes(html.encode("utf-8", "replace"))


def _asset(package: str) -> str:
    text = resources.files(package).joinpath("page.css").read_text(encoding="utf-8")
    # The browser hashes after its own newline normalisation.
    return text.replace("\r\n", "\n")


def _facts(summary: Entry) -> str:
    judge, scored = summary["judge"], f"{summary['scored']:,} of {summary['samples']:,}"
    entries = [
        ("Responses", summary["responses"]),
        ("Prompts", f"{integer(summary['prompts'])} of {summary['data']}"),
        ("Judge", f"{judge['grader']} of {judge['spec']}"),
        ("Samples with a score", scored),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{esc(text)}</dd></div>" for name, text in entries)


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
