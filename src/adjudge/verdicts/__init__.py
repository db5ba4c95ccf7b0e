"""Reply text to verdict, or why there is none: pure, total, and never a guess.

A prompt that asks for a form of ours is answered in that form or not at all: :func:`read_object`.
The other readers are for replies that have no form of ours, whose authors word the ending.
"""

from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.choice import CHOICE_KEYS, read_choice
from adjudge.verdicts.fields import read_fields
from adjudge.verdicts.marks import read_mark, read_marks
from adjudge.verdicts.menu import Menu
from adjudge.verdicts.numbers import Scale, score_of
from adjudge.verdicts.ranking import places_in, read_ranking
from adjudge.verdicts.reply import reason_in
from adjudge.verdicts.score import read_score
from adjudge.verdicts.strict import Ending, number_in, read_ending, read_object, wrong_keys

__all__ = [
    "CHOICE_KEYS",
    "Ending",
    "Menu",
    "Scale",
    "Unread",
    "Verdict",
    "number_in",
    "places_in",
    "read_choice",
    "read_ending",
    "read_fields",
    "read_mark",
    "read_marks",
    "read_object",
    "read_ranking",
    "read_score",
    "reason_in",
    "score_of",
    "wrong_keys",
]
