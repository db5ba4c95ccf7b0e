"""A judge of rubrics: a criterion is met when the words that it quotes occur in the response."""

from __future__ import annotations

import re

import msgspec

from adjudge.mock.asked import Asked, last_user_text
from adjudge.mock.behaviour import Answer, Behaviour

__all__ = ["Criteria"]

_NUMBERED = re.compile(r"^(\d{1,4})\. (.*)$", re.MULTILINE)
_QUOTED = re.compile(r'"([^"\n]{1,200})"')


class Criteria(Behaviour):
    """Marks for the numbered criteria of a rubric that came with its sample.

    MET where all that a criterion quotes ("…") occurs between the response's fences, capitals
    ignored; UNMET otherwise, also where it quotes nothing. What is asked otherwise has no verdict.
    """

    repeats = False

    def answer(self, asked: Asked) -> Answer:
        """A verdict for each number between the fences of ``sample_criteria``."""
        text = last_user_text(asked.messages)
        # The rubric's block is the first there is, the response's the last that is closed.
        tag = text.partition("<sample_criteria-")[2].partition(">")[0]
        criteria = _inside(text, "sample_criteria", tag)
        tag = text.rpartition("\n</response-")[2].partition(">")[0]
        response = _inside(text, "response", tag).casefold()
        given = _NUMBERED.findall(criteria) if response else []
        marks = {number: _mark(text, response) for number, text in given}
        return Answer(msgspec.json.encode(marks).decode())


def _inside(text: str, name: str, tag: str) -> str:
    """What stands between the fences with ``tag``; nothing without them."""
    return text.partition(f"<{name}-{tag}>\n")[2].rpartition(f"\n</{name}-{tag}>")[0]


def _mark(criterion: str, response: str) -> dict[str, str]:
    wanted = _QUOTED.findall(criterion)
    lacking = [words for words in wanted if words.casefold() not in response]
    met = bool(wanted) and not lacking
    reason = f"{len(wanted) - len(lacking)} of {len(wanted)} quotes occur"
    return {"reason": reason, "verdict": "MET" if met else "UNMET"}
