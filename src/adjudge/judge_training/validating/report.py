"""A validation as one HTML file: scores with what is missing beside them, orders, calibration.

No script and no network: a content security policy admits this file's own style by hash and nothing
else. Whatever items and judges said is escaped wherever it stands.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from adjudge.judge_training.benchmarks.items import Benchmark
from adjudge.judge_training.benchmarks.judgements import Judgement
from adjudge.judge_training.validating import sections
from adjudge.runs.report import calls
from adjudge.runs.report.charts import esc, integer

__all__ = ["write_validation_report"]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{hash}'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Judge validation</title>
<style>{style}</style>
</head>
<body>
<header class="page">
<h1>Judge validation</h1>
<nav aria-label="Sections">{links}</nav>
<dl class="facts">{facts}</dl>
</header>
<main>
{banners}
{body}
{calls}
<section id="notes"><h2>How to read the numbers</h2>{notes}</section>
</main>
</body>
</html>
"""
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
    style = "".join(
        _asset(package, "page.css")
        for package in ("adjudge.runs.report", "adjudge.judge_training.validating")
    )
    found = [
        ("scores", "Scores", sections.scores(summary)),
        ("subsets", "By subset", sections.subsets(summary)),
        ("compared", "Judges compared", sections.compared(summary)),
        ("orders", "Both orders", sections.orders(summary)),
        ("calibration", "Calibration", sections.calibration(summary)),
        ("lengths", "Length", sections.lengths(summary)),
        ("contamination", "Contamination", sections.contamination(summary)),
        ("wrong", "Where it was wrong", sections.wrong(summary, benchmark, judgements)),
        ("items", "Items", sections.items(summary)),
    ]
    shown = [one for one in found if one[2]]
    html = _PAGE.format(
        style=style,
        hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        links="".join(f'<a href="#{key}">{title}</a>' for key, title, _ in shown),
        facts=_facts(summary),
        banners=sections.banners(summary),
        body="".join(
            f'<section id="{key}"><h2>{title}</h2>{text}</section>' for key, title, text in shown
        ),
        calls=calls.section({"endpoints": summary.get("endpoints")}),
        notes=_NOTES,
    )
    path.write_bytes(html.encode("utf-8", "replace"))


def _asset(package: str, name: str) -> str:
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    # The browser hashes after its own newline normalisation.
    return text.replace("\r\n", "\n")


def _facts(summary: Mapping[str, Any]) -> str:
    about = summary["benchmark"]
    entries = [
        ("Judges", ", ".join(judge["name"] for judge in summary["judges"])),
        ("Benchmark", f"{about['title']}, {integer(about['items'])} items"),
        ("Overall score", about["official"]),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{esc(text)}</dd></div>" for name, text in entries)
