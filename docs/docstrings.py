"""Docstrings, which are written for Python's readers, as Markdown: for the reference pages.

Roles such as ``:class:`~a.b.C``` become ``C``, double backticks single ones, tables of ``====``
Markdown tables and examples code. mkdocstrings takes :class:`MarkdownDocstrings` (``mkdocs.yml``),
``generate_reference.py`` the function.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_RULE = re.compile(r"\s*=+(?: +=+)+\s*")


def to_markdown(docstring: str, *, examples: bool) -> str:
    """A docstring as Markdown, with its examples in Python or without them."""
    kept: list[str] = []
    literal = False
    for text in re.split(r"\n[ \t]*\n", docstring):
        if text.lstrip().startswith(">>>"):
            if examples:
                kept.append(f"```pycon\n{text.rstrip()}\n```")
            continue
        if literal and text.startswith(" "):
            kept.append(text)
            continue
        literal = text.rstrip().endswith("::")
        before, table, after = _split_table(text)
        parts = [_format_text(before), _format_table(table), _format_text(after)]
        kept += [part for part in parts if part]
    return "\n\n".join(kept)


def _format_text(text: str) -> str:
    body = re.sub(r"::\s*$", ":", text)
    body = re.sub(r":[a-z:]+:`~?([^`]+)`", _name_of_role, body)
    return _escape(body)


def _name_of_role(found: re.Match[str]) -> str:
    """The last part of a name, or the words in front of ``<a.name>``."""
    words, _, target = found[1].partition(" <")
    return f"`{words}`" if target else f"`{found[1].rpartition('.')[2]}`"


def _escape(text: str) -> str:
    """Double backticks as single ones; ``<`` outside of code is escaped."""
    pieces = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(
        piece.replace("``", "`") if piece.startswith("`") else piece.replace("<", "&lt;")
        for piece in pieces
    )


def _split_table(text: str) -> tuple[str, list[str], str]:
    """What stands before a table, the table's lines with its rules, and what stands after."""
    lines = text.split("\n")
    rules = [number for number, line in enumerate(lines) if _RULE.fullmatch(line)]
    if len(rules) < 2:
        return text, [], ""
    first, last = rules[0], rules[-1] + 1
    return "\n".join(lines[:first]), lines[first:last], "\n".join(lines[last:])


def _format_table(lines: list[str]) -> str:
    if not lines:
        return ""
    starts = [found.start() for found in re.finditer("=+", lines[0])]
    ends = [*starts[1:], None]
    rows: list[list[str]] = []
    for line in lines[1:-1]:
        if _RULE.fullmatch(line):
            continue
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        if cells[0] or not rows:
            rows.append(cells)
        else:  # a cell that goes on in the next line
            rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
    head = "|" + " |" * len(starts) + "\n|" + "---|" * len(starts)
    body = [f"| {' | '.join(_format_text(cell) for cell in row)} |" for row in rows]
    return "\n".join([head, *body])


class MarkdownDocstrings(griffe.Extension):
    """Hands mkdocstrings each docstring as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """See :class:`griffe.Extension`."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value, examples=True)
