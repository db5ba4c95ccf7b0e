"""Reply text to verdict, or why there is none: pure, total, and never a guess.

A prompt that asks for a form of ours is answered in that form or not at all: :func:`read_object`.
The other readers are for replies that have no form of ours, whose authors word the ending.
"""

from adjudge.verdicts.base import Menu, NumberScale, UnreadableReply, Verdict, parse_score
from adjudge.verdicts.choice import CHOICE_KEYS, read_choice
from adjudge.verdicts.criterion_marks import read_mark, read_marks
from adjudge.verdicts.reply import extract_reason, read_fields
from adjudge.verdicts.score import places_in, read_ranking, read_score
from adjudge.verdicts.strict import Ending, find_key_fault, parse_number, read_ending, read_object

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
