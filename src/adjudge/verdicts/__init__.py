"""Reply text to verdict, or why there is none: pure, total, and never a guess.

A prompt that asks for a form of ours is answered in that form or not at all: :func:`read_object`.
The other readers are for replies that have no form of ours: they read JSON or one mark.
"""

from adjudge.verdicts.free_text import (
    find_label,
    parse_score,
    read_choice,
    read_ending,
    read_fields,
    read_score,
)
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

__all__ = [
    "Ending",
    "NumberScale",
    "UnreadableReply",
    "Verdict",
    "extract_reason",
    "find_key_fault",
    "find_label",
    "parse_number",
    "parse_score",
    "places_in",
    "read_choice",
    "read_ending",
    "read_fields",
    "read_object",
    "read_score",
]
