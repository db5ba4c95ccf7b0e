"""All rules over one file."""

from __future__ import annotations

from pathlib import Path

from adjudge.runs.code_check.defaults import defaults
from adjudge.runs.code_check.findings import CodeFinding
from adjudge.runs.code_check.handlers import handlers
from adjudge.runs.code_check.results import results
from adjudge.runs.code_check.source import Source

__all__ = ["MEANT", "check_code", "check_file"]

MEANT = "adjudge: meant"
"""A comment with these words keeps its line out of the findings."""


def check_code(code: bytes | str, where: str = "<code>") -> list[CodeFinding]:
    """Places where reward code turns a failure into a number, in the order of their lines.

    Reads the code, never runs it. Heuristic: only names that speak of scores, rewards and judges
    are looked at. Raises :class:`~adjudge.errors.ConfigError` with the line where it is not Python.

    >>> [f.rule for f in check_code('total += getattr(result, "score", 0.0)')]
    ['default-score']
    """
    source = Source(code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code, where)
    found: dict[tuple[int, str], CodeFinding] = {}
    for rule in (handlers, defaults, results):
        for one in rule(source):
            if MEANT not in source.line(one.line):
                found.setdefault((one.line, one.code), one)
    return sorted(found.values(), key=lambda one: one.line)


def check_file(path: Path) -> list[CodeFinding]:
    """:func:`check_code` of a file; ``OSError`` where it cannot be read."""
    return check_code(path.read_bytes(), str(path))
