"""What is noted of judge calls for people to read: the exact question and every reply.

Whoever asks a grader puts a list into :data:`call_log`; every call that is made for that question
is added to it, in the order in which calls end. Without a list nothing is noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.ask import AskReason, current_ask
from adjudge.types import Provenance, Usage

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
    :data:`~adjudge.judges.ask.AskReason`. ``reply`` is ``None`` where none came, ``kind`` and
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
