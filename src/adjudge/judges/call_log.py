"""Which ask of a question a judge's call is, and what is noted of it for people to read.

Whoever asks sets the ask around the call, so graders pass on the number of the draw and nothing
else; :class:`~adjudge.graders.llm.judge_grader.AskPolicy` says when a question is put again. Sends
of one call (retries, hedges) are the endpoint's.

Whoever asks a grader puts a list into :data:`call_log`; every call that is made for that question
is added to it, in the order in which calls end. Without a list nothing is noted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.types import Provenance, Usage

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


_KINDS = (
    (ErrorKind.TIMEOUT, TimeoutError),
    (ErrorKind.CONNECTION, ConnectionError),
    (ErrorKind.CANCELLED, asyncio.CancelledError),
)


def find_error_kind(error: BaseException) -> ErrorKind:
    """The kind of failure that an exception of a call is."""
    if isinstance(error, GradingFailure):
        return error.kind
    return next((kind for kind, types in _KINDS if isinstance(error, types)), ErrorKind.BUG)


class JudgeCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call of a judge as it was made: what was sent, and what came back.

    ``part`` says which of a grader's questions it was (an order of a pair, a chunk of a rubric, a
    judge of several, a vote), empty where it has one. ``why`` it was made: see
    :data:`~adjudge.judges.call_log.AskReason`. ``reply`` is ``None`` where none came, ``kind`` and
    ``error`` say why; ``unread`` says why no verdict could be read from the reply. ``source`` is
    ``live``, ``shared``, ``cache`` or ``cassette``.
    """

    messages: Sequence[Mapping[str, Any]]
    schema: Mapping[str, Any] | None = None
    choices: Sequence[str] | None = None
    draw: int = 0
    part: str = ""
    why: AskReason = "first"
    reply: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    unread: str = ""
    kind: str = ""
    error: str = ""
    source: str | None = None
    model: str | None = None
    attempts: int | None = None
    latency_s: float | None = None
    usage: Usage | None = None

    def note_provenance(self, provenance: Provenance | None) -> None:
        """Where the reply came from, and what it cost."""
        if provenance is not None:
            self.source, self.model = provenance.source, provenance.model or self.model
            self.attempts, self.latency_s = provenance.attempts, provenance.latency_s
            self.usage = provenance.usage

    def note_failure(self, error: BaseException) -> None:
        """Why no reply came."""
        self.kind, self.error = str(find_error_kind(error)), f"{type(error).__name__}: {error}"
        if isinstance(error, GradingFailure):
            self.error = str(error)
            self.note_provenance(error.provenance)


call_log: ContextVar[list[JudgeCall] | None] = ContextVar("judge_call_log", default=None)
"""Where the calls of the running question are noted; ``None``: nowhere."""

_part: ContextVar[str] = ContextVar("judge_call_part", default="")


@contextmanager
def call_part(label: str) -> Iterator[None]:
    """Calls in this block belong to one of several parts of a question; parts nest."""
    outer = _part.get()
    token = _part.set(f"{outer}, {label}" if outer and label else outer or label)
    try:
        yield
    finally:
        _part.reset(token)


def begin_call(
    messages: Sequence[Mapping[str, Any]],
    schema: Mapping[str, Any] | None,
    choices: Sequence[str] | None,
    draw: int,
) -> JudgeCall:
    """A call that is about to be made; ``messages`` as they are now, whatever is added later."""
    return JudgeCall(
        messages=[dict(message) for message in messages],
        schema=schema,
        choices=choices,
        draw=draw,
        part=_part.get(),
        why=current_ask.get().why,
    )


def note_unreadable(reply: str, why: str) -> None:
    """Note of the latest call with this reply that no verdict could be read from it."""
    for call in reversed(call_log.get() or ()):
        if call.reply is reply and not call.unread:
            call.unread = why
            return
