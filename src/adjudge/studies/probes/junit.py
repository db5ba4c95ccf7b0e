"""The card as a JUnit file, which CI systems show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from adjudge.studies.probes.card import Finding
from adjudge.studies.probes.words import effect_text, interval_text, limit_text, note

__all__ = ["junit"]

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(card: Mapping[str, Any], findings: Sequence[Finding], *, strict: bool = False) -> str:
    """One test case a probe: a failed verdict is a failure, one that does not apply is skipped.

    ``strict``: an uncertain one is a failure too.
    """
    failed = {"fail", "uncertain"} if strict else {"fail"}
    cases = [_case(card, one, failed) for one in findings]
    failures = sum(one.verdict in failed for one in findings)
    skipped = sum(one.verdict == "not applicable" for one in findings)
    name = _attribute(f"adjudge probe {card['grader']['name']}")
    counts = f'tests="{len(findings)}" failures="{failures}" errors="0" skipped="{skipped}"'
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f"<testsuites {counts}>\n"
        f'<testsuite name={name} {counts} time="{card["elapsed_s"]:.3f}" '
        f"timestamp={_attribute(card['created'])}>\n{''.join(cases)}</testsuite>\n</testsuites>\n"
    )


def _case(card: Mapping[str, Any], one: Finding, failed: set[str]) -> str:
    said = f"{effect_text(one)} {one.unit}"
    if interval := interval_text(one):
        said += f" ({interval}), allowed {limit_text(one)}"
    if more := note(one):
        said += f"; {more}"
    suite = _attribute(f"adjudge.probe.{card['grader']['name']}")
    opening = f'<testcase classname={suite} name={_attribute(one.probe)} time="0">'
    body = f"<system-out>{_text(f'{one.verdict}: {said}')}</system-out>"
    if one.verdict == "not applicable":
        body = f"<skipped message={_attribute(one.why)}/>"
    elif one.verdict in failed:
        body = (
            f"<failure type={_attribute(one.verdict)} message={_attribute(said)}>"
            f"{_text(f'{one.what}: {one.measures}')}</failure>"
        )
    return f"{opening}{body}</testcase>\n"


def _text(text: str) -> str:
    return escape(_ILLEGAL.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_ILLEGAL.sub("\ufffd", text))
