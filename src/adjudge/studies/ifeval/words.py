"""What an evaluation says in words: of its samples, and of what is in no accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["headline", "missing_lines"]

_MOST_LINES = 10

Entry = Mapping[str, Any]


def headline(one: Entry) -> str:
    """A model's name, and over what it was judged."""
    fewest, most = one["samples"]
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    means = "" if most <= 1 else f", {count} samples each, their mean"
    return f"{one['name']}: {_count(one['prompts'], 'prompt')}{means}"


def missing_lines(one: Entry) -> list[str]:
    """What of a model's responses is in no accuracy, or was read in part, a line each."""
    lines = []
    if gone := one["without_response"]["count"]:
        named = _named(one["without_response"])
        lines.append(f"{_count(gone, 'prompt')} without a response (key {named})")
    if kinds := one["failures"]["by_kind"]:
        said = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
        total = _count(sum(kinds.values()), "response")
        lines.append(f"{total} could not be made or judged: {said}")
        lines += one["failures"]["first"][:_MOST_LINES]
    if strays := one["strays"]["count"]:
        named = _named(one["strays"])
        lines.append(f"{_count(strays, 'response')} to no prompt of the benchmark (line {named})")
    if one["samples"][0] != one["samples"][1]:
        lines.append("not every prompt has as many samples; each counts with its own mean")
    if cut := one["cut_by_length"]:
        lines.append(f"{_count(cut, 'judged response')} ended by the length limit")
    problems = one["problems"]
    lines += [f"{p['file']}:{p['line']}: {p['reason']}" for p in problems[:_MOST_LINES]]
    if len(problems) > _MOST_LINES:
        lines.append(f"and {len(problems) - _MOST_LINES:,} more lines (summary.json)")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _named(some: Entry) -> str:
    named = ", ".join(str(value)[:40] for value in some["first"][:_MOST_LINES])
    return named + (", …" if some["count"] > _MOST_LINES else "")
