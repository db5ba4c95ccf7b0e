"""Reply text to verdict, or why there is none: pure, total, and never a guess.

A prompt that asks for a form of ours is answered in that form or not at all: :func:`read_object`.
The other readers are for replies that have no form of ours: they read JSON or one mark, and are
imported when the first such reply is read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adjudge.verdicts.strict import (
    Ending,
    NumberScale,
    UnreadableReply,
    Verdict,
    extract_reason,
    find_key_fault,
    parse_number,
    places_in,
    read_object,
)

if TYPE_CHECKING:
    from adjudge.verdicts.notation import Menu, parse_score
    from adjudge.verdicts.readers import (
        CHOICE_KEYS,
        read_choice,
        read_ending,
        read_fields,
        read_mark,
        read_marks,
        read_ranking,
        read_score,
    )

__all__ = [
    "CHOICE_KEYS",
    "Ending",
    "Menu",
    "NumberScale",
    "UnreadableReply",
    "Verdict",
    "extract_reason",
    "find_key_fault",
    "parse_number",
    "parse_score",
    "places_in",
    "read_choice",
    "read_ending",
    "read_fields",
    "read_mark",
    "read_marks",
    "read_object",
    "read_ranking",
    "read_score",
]

_WITHOUT_FORM = ("notation", "readers")


def __getattr__(name: str) -> Any:
    for module in _WITHOUT_FORM if name in __all__ else ():
        found = vars(import_module(f"adjudge.verdicts.{module}"))
        if name in found:
            globals()[name] = found[name]
            return found[name]
    raise AttributeError(f"module 'adjudge.verdicts' has no attribute {name!r}")
