"""Reply text to verdict, or why there is none: pure, total, and never a guess."""

from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.choice import CHOICE_KEYS, read_choice
from adjudge.verdicts.fields import read_fields
from adjudge.verdicts.marks import read_mark, read_marks
from adjudge.verdicts.menu import Menu
from adjudge.verdicts.ranking import read_ranking
from adjudge.verdicts.score import read_score

__all__ = [
    "CHOICE_KEYS",
    "Menu",
    "Unread",
    "Verdict",
    "read_choice",
    "read_fields",
    "read_mark",
    "read_marks",
    "read_ranking",
    "read_score",
]
