"""How a question is put to a judge: which ask a call is, when again, what is noted, what it costs.

=========  =======================================================================================
repair     the reply has no verdict: once, with what was wrong with it
redraw     there is still none, or the judge refused, or its reply was cut off: once, the same
           question for another reply
left_out   the reply leaves criteria of a rubric out: once, for those alone
again      a failure that passes by itself: once, after all other questions of the call
outage     too many are missing for such failures: until the judges are back, for ``patience_s``
=========  =======================================================================================

So an unreadable reply costs at most two further calls. Below this an endpoint sends one call as
often as a connection, a rate limit or silence makes it.

Whoever asks sets the ask around the call, so graders pass on the number of the draw and nothing
else.

Whoever asks a grader puts a list into :data:`call_log`; every call that is made for that question
is added to it, in the order in which calls end. Without a list nothing is noted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from adjudge.engine.loop import run_all
from adjudge.errors import (
    FINAL,
    LACKED,
    REDRAW_KINDS,
    ErrorKind,
    Fields,
    GradingFailure,
    Metadata,
    is_passing,
)
from adjudge.types import Message, Provenance, Usage

_K = TypeVar("_K")
_T = TypeVar("_T")


class _JudgeReply(Protocol):
    """What is needed here of a :class:`~adjudge.judges.base.Reply`."""

    @property
    def text(self) -> str: ...

    @property
    def provenance(self) -> Provenance: ...


_Reply = TypeVar("_Reply", bound=_JudgeReply)

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
    :data:`AskReason`. ``reply`` is ``None`` where none came, ``kind`` and
    ``error`` say why; ``unread`` says why no verdict could be read from the reply. ``source`` is
    ``live``, ``shared``, ``cache`` or ``cassette``.
    """

    messages: Sequence[Message]
    schema: Fields | None = None
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
    messages: Sequence[Message],
    schema: Fields | None,
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


RAW_LIMIT = 8_000
"""Characters of a reply that a failure keeps."""
_NUMBERS = {2: "two", 3: "three"}


class AskPolicy(NamedTuple):
    """How one question is asked again; see the module.

    ``repairs``: whether a judge is shown what was wrong with its reply. ``redraws``: whether the
    question is put once more for another reply.
    """

    repairs: bool = True
    redraws: bool = True

    async def ask(
        self, put: Callable[[str | None], Awaitable[_Reply]], read: Callable[[_Reply], _T]
    ) -> tuple[_T, _Reply, list[Provenance]]:
        """What was read from the reply, the reply, and the provenance of every reply.

        ``put`` asks the judge, with what was wrong with the reply before or ``None``; ``read``
        raises ``GradingFailure`` for a reply without a verdict. Raises the last failure, with the
        replies' texts in ``metadata["raw"]``.
        """
        made: list[AskReason] = []
        spent: list[Provenance] = []
        raw: list[str] = []
        problem = ""
        while True:
            reply: _Reply | None = None
            try:
                with asking(made[-1], len(made)) if made else nullcontext():
                    reply = await put(problem if made[-1:] == ["repair"] else None)
                spent.append(reply.provenance)
                return read(reply), reply, spent
            except GradingFailure as failure:
                problem = str(failure)
                if reply is not None:
                    raw.append(reply.text[:RAW_LIMIT])
                    note_unreadable(reply.text, problem)
                elif failure.provenance is not None:
                    spent.append(failure.provenance)
                if reply is not None and self.repairs and "repair" not in made:
                    made.append("repair")
                elif self.redraws and "redraw" not in made and failure.kind in REDRAW_KINDS:
                    made.append("redraw")
                else:
                    raise _last_failure(failure, raw, spent, replied=reply is not None) from None


ASK_ONCE = AskPolicy(repairs=False, redraws=False)

_LONGEST_WAIT_S = 30.0


def compute_wait(asks: int) -> float:
    """Seconds to wait in an outage before the next ask, after so many: 1, 2, 4, … 30.

    >>> [compute_wait(asks) for asks in (0, 1, 4, 5, 99)]
    [1.0, 2.0, 16.0, 30.0, 30.0]
    """
    return float(min(2 ** min(asks, 5), _LONGEST_WAIT_S))


def _last_failure(
    failure: GradingFailure, raw: list[str], spent: Sequence[Provenance], *, replied: bool
) -> GradingFailure:
    """``failure`` with every reply's text and what all of them cost."""
    if raw:
        failure.metadata.setdefault("raw", raw)
    if spent:
        failure.provenance = sum_provenance(spent)
    if not replied or len(raw) == 1:
        return failure
    return GradingFailure(
        failure.kind,
        f"no verdict in {_NUMBERS[len(raw)]} replies: {failure}",
        failure.metadata,
        provenance=failure.provenance,
    )


async def ask_all(
    ask: Callable[[_K], Awaitable[_T]], parts: Sequence[_K]
) -> tuple[dict[_K, _T], dict[_K, GradingFailure]]:
    """Ask about all ``parts`` at once: the answers, and the failures, each in the parts' order.

    A failure cancels no other ask. ``auth`` alone is raised, and cancels: with a refused key no
    other ask does better.
    """
    answers: dict[_K, _T] = {}
    failures: dict[_K, GradingFailure] = {}

    async def one(part: _K) -> None:
        try:
            answers[part] = await ask(part)
        except GradingFailure as failure:
            if failure.kind is ErrorKind.AUTH:
                raise
            failures[part] = failure

    await run_all(map(one, parts))
    return (
        {part: answers[part] for part in parts if part in answers},
        {part: failures[part] for part in parts if part in failures},
    )


def join_failures(
    failures: Sequence[GradingFailure],
    message: str,
    metadata: Fields,
    *,
    answered: Sequence[Provenance | None] = (),
    otherwise: ErrorKind = ErrorKind.INCOMPLETE,
) -> GradingFailure:
    """One failure for an answer with failed parts; ``answered``: where its other parts came from.

    Its kind: the first one's where all failed in ways that pass by themselves, so that the run asks
    again; where nothing was answered, the kind that all share; else ``otherwise``. ``suspect``
    and ``final`` where any was. What was spent is summed.
    """
    kinds = [failure.kind for failure in failures]
    shared = not answered and len(set(kinds)) == 1
    passing = all(is_passing(failure.kind, failure.metadata) for failure in failures)
    kind = kinds[0] if shared or passing else otherwise
    metadata = {**metadata, "suspect": any(failure.suspect for failure in failures)}
    if shared:
        first = failures[0].metadata
        metadata |= {key: first[key] for key in ("status", LACKED) if key in first}
    if any(failure.final for failure in failures):
        metadata[FINAL] = True
    return GradingFailure(kind, message, metadata, provenance=sum_costs(answered, failures))


def sum_costs(
    answered: Iterable[Provenance | None], failures: Iterable[GradingFailure] = ()
) -> Provenance | None:
    """The sum of what answers and failures cost; ``None`` where nothing is known of it."""
    known = [one for one in (*answered, *(f.provenance for f in failures)) if one is not None]
    return sum_provenance(known) if known else None


def describe_failure(failure: GradingFailure) -> Metadata:
    """What a result's metadata keeps of a part that failed: kind, message, the raw replies."""
    note: Metadata = {"kind": str(failure.kind), "error": str(failure)}
    if "raw" in failure.metadata:
        note["raw"] = failure.metadata["raw"]
    return note


def sum_provenance(several: Sequence[Provenance]) -> Provenance:
    """The provenance of an answer that took several calls: tokens, money, sends and time added.

    Facts that differ between the calls are ``None``; so is the cost where one has no price. Kept
    replies cost nothing beside live ones.
    """
    paid = [one.paid for one in several if one.paid is not None]
    usages = paid or [one.usage for one in several if one.usage is not None]
    costs = [usage.cost_usd for usage in usages if usage.cost_usd is not None]
    usage = Usage(
        input_tokens=sum(one.input_tokens for one in usages),
        output_tokens=sum(one.output_tokens for one in usages),
        cached_tokens=sum(one.cached_tokens for one in usages),
        cost_usd=sum(costs) if len(costs) == len(usages) else None,
    )
    return Provenance(
        source=_common_value([one.source for one in several]),
        model=_common_value([one.model for one in several]),
        prompt_hash=_common_value([one.prompt_hash for one in several]),
        usage=usage if usages else None,
        latency_s=sum(one.latency_s or 0.0 for one in several),
        attempts=sum(one.attempts or 0 for one in several),
        hedged=any(one.hedged for one in several),
    )


def _common_value(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None
