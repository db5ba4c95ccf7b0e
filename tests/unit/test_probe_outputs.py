"""The card as a page, with names that try to break out of it."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from adjudge.judge_evaluation.probes.probe import ProbeFinding, render_probe_page
from adjudge.judge_evaluation.probes.run import PROBES

HOSTILE = "a<b>&\"'|`]]>\x00\x1b[31m\ud800\n# x"


PAGE = Path(__file__).parents[2] / "docs" / "probe.md"


def finding(probe: str, verdict: Any, **more: Any) -> ProbeFinding:
    fields: dict[str, Any] = {
        "what": "a change", "measures": "an effect", "unit": "SD of scores", "threshold": 0.25,
        "sided": "up", "effect": 0.5, "low": 0.3, "high": 0.7, "n": 40,
    }  # fmt: skip
    return ProbeFinding(probe=probe, verdict=verdict, **(fields | more))


FINDINGS = [
    finding("length", "fail"),
    finding("markdown", "pass", effect=-0.1, low=-0.2, high=0.01, sided="both"),
    finding("position", "uncertain", missing=3, lost={"timeout": 3}),
    finding("reference", "not applicable", effect=None, low=None, high=None, n=0, why=HOSTILE),
]


def card(**more: Any) -> dict[str, Any]:
    return {
        "adjudge": "0", "created": "2026-01-01T00:00:00+00:00", "elapsed_s": 1.5,
        "spec": {"path": HOSTILE, "hash": "abc"}, "items": "shipped", "topics": 40,
        "grader": {"name": HOSTILE, "type": "llm", "kind": "scores", "judge": None,
                   "models": [HOSTILE]},
        "language": "mixed", "repeats": 3, "seed": 0, "level": 0.95,
        "questions": 100, "control_questions": 40, "calls": 120, "cost_usd": None,
        "missing": {"count": 3, "by_kind": {"timeout": 3}},
        "verdicts": {"pass": 1, "fail": 1, "uncertain": 1, "not applicable": 1}, **more,
    }  # fmt: skip


def test_the_page_holds_nothing_but_itself() -> None:
    html = render_probe_page(card(), FINDINGS)
    html.encode("utf-8")
    style = re.search("<style>(.*)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html
    for forbidden in ("<script", "http://", "https://", "a<b>", "style="):
        assert forbidden not in html.replace(style[1], "")
    assert html.count('<svg class="strip"') == 3
    assert html.count("<tr") == 2 + 2 * len(FINDINGS) - 1


def test_every_probe_is_documented_with_its_threshold() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (±?[\d.]+)(?: / (±?[\d.]+))? \|$", PAGE.read_text(), re.MULTILINE
    )
    found = {name: (limit, of_pairs or limit) for name, limit, of_pairs in rows}
    assert list(found) == list(PROBES)
    for name, probe in PROBES.items():
        sign = "±" if probe.sided == "both" else ""
        limits = [f"{sign}{probe.limit(kind):g}" for kind in ("scores", "compares")]
        assert list(found[name]) == limits
