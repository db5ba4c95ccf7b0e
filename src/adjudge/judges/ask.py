"""Which ask of a question a judge's call is, and why it is made.

A grader puts a question; :class:`~adjudge.graders.llm.asking.AskPolicy` says when it is put again.
Whoever asks sets the ask around the call, so graders pass on the number of the draw and nothing
else. Sends of one call (retries, hedges) are the endpoint's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import msgspec

AskReason = Literal["first", "draw", "repair", "redraw", "left_out", "again", "outage"]
"""Why a judge is asked: for the ``first`` answer, for another ``draw`` (a repeat, a vote), to
``repair`` a reply without a verdict, to ``redraw`` one, for the criteria that a reply ``left_out``,
``again`` after a failure that passes, in an ``outage``."""


class Ask(msgspec.Struct, frozen=True):
    """One ask of a question.

    ``draw`` = 0, 1, 2, … numbers independent answers to one question (repeats, votes); ``attempt``
    the calls for one of them: 0, then 1 and 2 after replies without a verdict. Calls that differ in
    either never share a reply. What is asked ``again`` after a failure is the same attempt.
    """

    draw: int = 0
    attempt: int = 0
    why: AskReason = "first"


current_ask: ContextVar[Ask] = ContextVar("current_ask", default=Ask())  # noqa: B039  (frozen)
"""The ask that calls of this context belong to."""

ask_counts: ContextVar[Counter[str] | None] = ContextVar("ask_counts", default=None)
"""Where calls are counted by why they are made; ``None``: nowhere."""


@contextmanager
def asking(why: AskReason, attempt: int) -> Iterator[None]:
    """Calls in this block are made for ``why``, ``attempt`` attempts after the question's first."""
    outer = current_ask.get()
    token = current_ask.set(Ask(outer.draw, outer.attempt + attempt, why))
    try:
        yield
    finally:
        current_ask.reset(token)


def count_ask(why: AskReason, draw: int) -> None:
    """Count a call that is about to be made."""
    counts = ask_counts.get()
    if counts is not None:
        counts["draw" if draw and why == "first" else why] += 1
