"""What an evaluation says in words of what is in no score; and its tags in the usual order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["USUAL", "missing_lines", "tag_groups"]

USUAL = ("theme", "axis", "level")
"""The tags that HealthBench is reported by."""
_MOST_LINES = 10

Entry = Mapping[str, Any]


def tag_groups(tags: Mapping[str, Entry]) -> dict[str, dict[str, Entry]]:
    """``{"axis": {"accuracy": …}}``: the usual names first, then the others as they come."""
    groups: dict[str, dict[str, Entry]] = {}
    for tag, one in tags.items():
        name, _, value = tag.partition(":")
        groups.setdefault(name, {})[value or name] = one
    order = [name for name in USUAL if name in groups]
    return {name: groups[name] for name in [*order, *(n for n in groups if n not in order)]}


def missing_lines(summary: Entry) -> list[str]:
    """What is in no score, or is not what it seems, a line each."""
    lines = []
    if kinds := summary["missing_by_kind"]:
        said = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
        low, high = summary["bounds"]
        lines.append(
            f"{_count(sum(kinds.values()), 'sample')} without a score: {said}; with them the "
            f"score lies between {low:.4f} and {high:.4f}"
        )
    if unsaid := summary["unsaid"]:
        lines.append(f"{_count(unsaid, 'response')} empty or still thinking, judged as such")
    if gone := summary["without_response"]["count"]:
        named = ", ".join(str(key)[:40] for key in summary["without_response"]["first"])
        more = ", …" if gone > len(summary["without_response"]["first"]) else ""
        lines.append(f"{_count(gone, 'prompt')} without a response (key {named}{more})")
    if strays := summary["strays"]["count"]:
        lines.append(f"{_count(strays, 'response')} to no prompt of the benchmark")
    if cut := summary["cut_by_length"]:
        lines.append(f"{_count(cut, 'response')} ended by the length limit")
    problems = summary["problems"]
    lines += [f"{p['file']}:{p['line']}: {p['reason']}" for p in problems[:_MOST_LINES]]
    if len(problems) > _MOST_LINES:
        lines.append(f"and {len(problems) - _MOST_LINES:,} more lines (summary.json)")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
