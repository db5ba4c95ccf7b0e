"""What a narrow terminal shows of a table, against a wide one."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from typing import Any

from rich.console import Console

from adjudge.report.table import Table

_MARKS = "/_.,:;?#=@|+)}-"
"""After these a word that is too long may be broken."""


def shown(content: object, width: int) -> str:
    """``content`` as a terminal of that width has it."""
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, emoji=False).print(content)
    return file.getvalue()


def figures(**known: Any) -> Any:
    """A table of a summary: whatever else is asked for is a long number."""
    return defaultdict(lambda: -1234.5678, known)


def check_narrow(table: Table) -> None:
    """In 60 and 80 columns: no line is longer, no word cut, and the first column there whole."""
    assert table
    for width in (60, 80):
        text = shown(table, width)
        body, _, left_out = text.partition("columns left out for width:")
        assert not left_out or "--json has all" in " ".join(left_out.split())
        check_words(body, shown(table, 500), width)
        for row in table.rows:
            first = re.split(rf"[\s{_MARKS}]+", shown(Table([""], [[row[0]]]), 500))
            assert all(part in body for part in first), (first, text)


def check_words(text: str, whole: str, width: int) -> None:
    """No line of ``text`` is too long, and its words stand in ``whole``, uncut."""
    assert all(len(line) <= width for line in text.splitlines()), text
    for word in text.split():
        end = "" if word[-1] in _MARKS else r"(?!\S)"
        assert re.search(rf"(?<![^\s{_MARKS}]){re.escape(word)}{end}", whole), (word, text)
