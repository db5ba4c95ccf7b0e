"""Rows of formats as tests compare them."""

from __future__ import annotations

from typing import Any


def checked_row(row: Any) -> Any:
    """A row without ``opening_turns``, after which the policy speaks, or nothing comes."""
    turns = row.pop("opening_turns", None) if isinstance(row, dict) else None
    if turns is not None:
        after = row["messages"][turns:]
        assert not after or after[0]["role"] == "assistant", (turns, row["messages"])
    return row
