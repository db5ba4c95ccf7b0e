"""What is wrong with the wording of one criterion, as far as words can tell.

Heuristics, in English and Chinese: each has its reason in :data:`ADVICE`, and keeps quiet where
the wording could well be meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from adjudge.rubrics.criterion import Category, Criterion
from adjudge.rubrics.lint_patterns import (
    ANCHOR,
    ANY_OF,
    ASIDE,
    AVOIDS,
    DOUBLE,
    EXAMPLES,
    FAULT,
    INCLUDE,
    JOINED,
    KNOWLEDGE,
    MENTION,
    MODAL,
    NEGATED,
    SAYS_WHAT,
    SENTENCE,
    SHUNS_HARM,
    SOURCES,
    STEP,
    VAGUE,
)

__all__ = ["ADVICE", "check_wording", "negated", "stripped"]

ADVICE = {
    "compound": "split it, so that meeting one part earns that part only",
    "presence_only": "say what must be said about it, or that it must be correct",
    "unverifiable": "name what can be seen in the response when it is met",
    "double_negative": "say the same without negating twice",
    "polarity": "met must be good where points are positive and bad where they are negative",
    "long": "one criterion is a sentence; put instructions to the judge into the prompt",
}

_LONG = 1_000
_LIST_ITEMS = 4
_MEMBER_WORDS = 5


def check_wording(criterion: Criterion) -> Iterator[tuple[str, str, str]]:
    """``(rule, severity, message)`` for each thing wrong with the text."""
    text = " ".join(criterion.text.split())
    demand = stripped(criterion.text)
    if len(text) > _LONG:
        yield "long", "note", f"has {len(text):,} characters; its wording was not looked at"
        return
    if message := _compound(criterion, demand):
        yield "compound", *message
    if not criterion.is_fault:
        yield from _presence(demand, text)
    yield from _unverifiable(demand, text)
    if found := DOUBLE.search(demand):
        yield "double_negative", "warning", f"negates twice: {found[0]!r}"
    yield from _polarity(criterion, demand)


def stripped(text: str) -> str:
    """The demand itself, lower-cased: no label in front, no asides, no examples."""
    head, colon, rest = text.partition(":")
    if colon and rest.strip() and " " not in head.strip() and len(head) < 60:
        text = rest  # a name such as Paragraphs_Constraints
    text = ASIDE.sub(" ", text)
    return " ".join(EXAMPLES.sub(" ", text).split()).lower()


def negated(demand: str) -> bool:
    """Whether the demand opens with a negation."""
    return NEGATED.search(demand) is not None


def _compound(criterion: Criterion, demand: str) -> tuple[str, str] | None:
    if len(STEP.findall(demand)) >= 2:
        return "warning", "is a procedure of several steps with a verdict each"
    if ANY_OF.search(demand):
        return None
    if found := JOINED.search(demand):
        return "warning", f"joins demands: {found[0].strip()[:40]!r}"
    sentences = SENTENCE.split(ASIDE.sub(" ", criterion.text))
    asking = [sentence for sentence in sentences if MODAL.search(sentence.lower())]
    if len(asking) >= 2:
        return "warning", f"has {len(asking)} sentences that demand something"
    if (items := _longest_list(demand)) >= _LIST_ITEMS:
        return "note", f"asks for a list of {items}, of which a part may be there"
    return None


def _longest_list(demand: str) -> int:
    """Members of the longest ``a, b, c, and d`` (or ``a、b、c``) of short members."""
    longest = 0
    for clause in re.split(r"[.;:。；：]", demand):
        run = 1
        for member in clause.split(", ")[1:]:
            if member.startswith("and "):
                longest = max(longest, run + 1)
            short = member.count(" ") < _MEMBER_WORDS and not member.startswith("or ")
            run = run + 1 if short else 1
        longest = max(longest, clause.count("、") + 1)
    return longest


def _presence(demand: str, text: str) -> Iterator[tuple[str, str, str]]:
    found = MENTION.search(demand) or INCLUDE.search(demand)
    if found is None or negated(demand):
        return
    rest = demand[found.end() :]
    if SAYS_WHAT.search(rest) or len(text) > len(demand) + 40:
        return  # it says what is to be said, or an aside does
    severity = "warning" if MENTION.search(demand) else "note"
    yield "presence_only", severity, f"{found[0].strip()!r} asks for words, not for what is right"


def _unverifiable(demand: str, text: str) -> Iterator[tuple[str, str, str]]:
    found = KNOWLEDGE.search(demand)
    if found is None and not ANCHOR.search(demand):
        found = SOURCES.search(demand)
    if found is not None:
        message = f"{found[0]!r} needs knowledge that is not in the criterion"
        yield "unverifiable", "note", f"{message}; give the judge a reference"
    elif (found := VAGUE.search(demand)) is not None:
        if ANCHOR.search(text.lower()) or _longest_list(demand) >= 3:
            return
        yield "unverifiable", "warning", f"{found[0]!r} is left to taste"


def _polarity(criterion: Criterion, demand: str) -> Iterator[tuple[str, str, str]]:
    if criterion.is_fault:
        if AVOIDS.search(demand) or SHUNS_HARM.search(demand):
            yield "polarity", "warning", "is met by a good response, yet meeting it costs points"
    elif FAULT.search(demand):
        yield "polarity", "warning", "is met by a bad response, yet meeting it earns points"
    elif criterion.category is Category.PITFALL and not negated(demand):
        yield (
            "polarity",
            "note",
            "is a pitfall that earns points when met: it must say what is avoided",
        )
