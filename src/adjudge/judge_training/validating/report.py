"""A validation as one HTML file: scores with what is missing beside them, orders, calibration.

Whatever items and judges said is escaped wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.judge_training.benchmarks.items import Benchmark
from adjudge.judge_training.benchmarks.judgements import Judgement
from adjudge.judge_training.validating import sections
from adjudge.runs.report import calls
from adjudge.runs.report.charts import integer
from adjudge.runs.report.frame import Section, framed, how_to_read

__all__ = ["write_validation_report"]

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
    html = framed(
        "Judge validation",
        _facts(summary),
        [
            sections.banners(summary),
            *(Section(key, title, text, title) for key, title, text in found),
            calls.section({"endpoints": summary.get("endpoints")}),
            how_to_read(_NOTES),
        ],
        styles=[("adjudge.judge_training.validating", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    about = summary["benchmark"]
    return [
        ("Judges", ", ".join(judge["name"] for judge in summary["judges"])),
        ("Benchmark", f"{about['title']}, {integer(about['items'])} items"),
        ("Overall score", about["official"]),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]
