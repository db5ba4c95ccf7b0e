"""The card as one HTML file: no script, no network, a strip per probe.

Everything that is not ours (names of graders, judges, files) is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.runs.report.charts import esc, integer
from adjudge.runs.report.frame import Section, Tile, framed, how_to_read, tiles
from adjudge.studies.probes.card import Finding
from adjudge.studies.probes.words import (
    about_many,
    effect_text,
    interval_text,
    limit_text,
    note,
    verdict_line,
)

__all__ = ["page"]

_SPAN = 3.0
"""How many thresholds each half of a strip shows."""


def page(card: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """The whole page."""
    return framed(
        f"Probes of {card['grader']['name']}",
        _facts(card),
        [
            _tiles(card),
            Section("probes", "What sways the judge", _table(findings), "Probes"),
            Section("details", "Details", _details(findings), "Details"),
            how_to_read(_notes(card), "How to read it"),
        ],
        styles=[(__package__ or "", "page.css")],
    )


def _facts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    grader = card["grader"]
    return [
        ("Judge", ", ".join(grader["models"]) or "none was asked"),
        ("Grader", f"{grader['name']} ({grader['type']}; {grader['kind']} answers)"),
        ("Spec", f"{card['spec']['path']} · {card['spec']['hash']}"),
        ("Items", f"{card['items']}, {card['topics']} topics, language {card['language']}"),
        ("Asked", f"seed {card['seed']}, {card['repeats']} repeats"),
        ("When", f"{card['created']} · adjudge {card['adjudge']}"),
    ]


def _tiles(card: Mapping[str, Any]) -> str:
    verdicts, missing = card["verdicts"], card["missing"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in missing["by_kind"].items())
    cost = "–" if card["cost_usd"] is None else f"{card['cost_usd']:.4f}"
    found = (
        Tile("Failed", integer(verdicts["fail"]), "beyond the threshold", verdicts["fail"] > 0),
        Tile("Passed", integer(verdicts["pass"]), "within it"),
        Tile("Uncertain", integer(verdicts["uncertain"]), "the interval straddles it"),
        Tile("Questions", integer(card["questions"]), f"{card['elapsed_s']:.1f} s"),
        Tile("No answer", integer(missing["count"]), kinds or "none", missing["count"] > 0),
        Tile("USD", cost, "of priced judges"),
    )
    return tiles(found)


def _table(findings: Sequence[Finding]) -> str:
    body = "".join(_row(one) for one in findings)
    return (
        '<div class="scroll"><table class="probes"><thead><tr><th scope="col">Probe</th>'
        '<th scope="col">Verdict</th><th scope="col">Effect, interval</th>'
        '<th scope="col" class="plot">In thresholds: the band is allowed</th>'
        f'<th scope="col" class="n">Items</th></tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(one: Finding) -> str:
    more = f"<small>{esc(note(one))}</small>" if note(one) else ""
    found = "–"
    if one.effect is not None:
        ends = interval_text(one) or "no interval"
        found = (
            f"{esc(effect_text(one))} {esc(one.unit)}<small>{esc(ends)}; allowed "
            f"{esc(limit_text(one))}</small>"
        )
    return (
        f'<tr class="{esc(one.verdict.split()[0])}"><th scope="row"><b>{esc(one.probe)}</b>'
        f"<small>{esc(one.what)}; {esc(one.measures)}</small></th>"
        f"<td><b>{esc(one.verdict)}</b>{more}</td><td>{found}</td>"
        f'<td class="plot">{_strip(one)}</td><td class="n">{one.n or "–"}</td></tr>'
    )


def _strip(one: Finding) -> str:
    """Effect and interval in units of the threshold, from −3 to 3; beyond it at the edge."""
    if one.effect is None or one.low is None or one.high is None:
        return ""
    unit = one.threshold or 1e-9
    left = -1.0 if one.sided == "both" else -_SPAN
    allowed = (
        f'<rect class="allowed" x="{_at(left)}" width="{(1 - left) / _SPAN * 50:.2f}%" y="2" '
        'height="20"/>'
    )
    label = f"{one.probe}: {effect_text(one)}, {interval_text(one)}, allowed {limit_text(one)}"
    return (
        f'<svg class="strip" role="img" aria-label="{esc(label)}" width="100%" height="24">'
        f'{allowed}<line class="chance" x1="50%" x2="50%" y1="0" y2="24"/>'
        f'<line class="interval within" x1="{_at(one.low / unit)}" x2="{_at(one.high / unit)}" '
        f'y1="12" y2="12"/><circle class="dot within" cx="{_at(one.effect / unit)}" cy="12" '
        'r="4.5"/></svg>'
    )


def _at(value: float) -> str:
    return f"{50 + 50 * min(_SPAN, max(-_SPAN, value)) / _SPAN:.2f}%"


def _details(findings: Sequence[Finding]) -> str:
    rows = "".join(
        f"<tr><td>{esc(one.probe)}</td><td>{esc(_shown(name))}</td>"
        f'<td class="n">{esc(_number(value))}</td></tr>'
        for one in findings
        for name, value in one.parts.items()
    )
    if not rows:
        return "<p>None.</p>"
    return (
        '<div class="scroll"><table class="bars"><thead><tr><th scope="col">Probe</th>'
        '<th scope="col">Part</th><th scope="col" class="n">Value</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _shown(name: str) -> str:
    """A part's name; a response that is white space is quoted."""
    return name.replace("_", " ") if name.strip() == name else repr(name)


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _notes(card: Mapping[str, Any]) -> str:
    paragraphs = (
        verdict_line(card) + ".",
        about_many(card),
        (
            "SD of scores: the standard deviation of the raw scores that the items' own answers "
            "(right, partly right, wrong) got. Net preference: share of verdicts for, less share "
            "against."
        ),
        (
            "Fail: the whole interval lies beyond the threshold. Pass: all of it is within. Else "
            "uncertain: it straddles the threshold; more items (--n, --items) make it narrower."
        ),
        (
            "An answer that the judge failed to give is missing and counted by kind. It is never a "
            "number."
        ),
    )
    return "".join(f"<p>{esc(text)}</p>" for text in paragraphs)
