"""What a judge's server really honours, found out by a handful of small calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from adjudge.engine.clock import Clock
from adjudge.errors import GradingFailure, JudgeUnavailable
from adjudge.judges.base import ChatModel, HttpRequest, Reply, Transport
from adjudge.judges.presets import FEATURES, PRESETS
from adjudge.judges.table import JudgeTable

__all__ = ["Finding", "check_judge", "wait_until_reached"]

State = Literal["yes", "no", "unclear", "failed", "not offered"]

_CHOICES = ("alpha", "omega")
_COLOUR = [{"role": "user", "content": "Name a colour. Answer with one word."}]
_WORDS = [{"role": "user", "content": "Write eight random words."}]
_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
_TOKENS = 64
_NOTHING = HttpRequest(path="/models", headers={}, body=b"")
_EVERY_S = 2.0

Build = Callable[[JudgeTable], ChatModel]


class Finding(msgspec.Struct, frozen=True):
    """Whether a server honours one thing, and what was seen.

    ``honoured``: ``yes``; ``no`` (asked for and evidently not there); ``unclear`` (the reply was
    cut by its length limit before it could show); ``failed`` (the call failed: ``note`` has kind
    and message); ``not offered`` (this kind of server has no field for it).
    ``sent``: whether calls with this judge ask for it, ``None`` where that is not a setting.
    """

    feature: str
    honoured: State
    note: str = ""
    sent: bool | None = None


async def check_judge(table: JudgeTable, build: Build) -> list[Finding]:
    """Seven small calls to a judge with a server; one where the first fails.

    ``build`` makes the chat model of a table. Everything is asked for once, also what this kind of
    server is not sent by default, so that the table's ``features`` can be set to what is true.
    """
    bare = table.model_copy(update={"cache": None, "cache_sampled": False})
    everything = bare.model_copy(update={"features": sorted(FEATURES)})
    sent = PRESETS[table.type].features if table.features is None else frozenset(table.features)
    model, full = build(bare), build(everything)
    try:
        first = await model.achat(_COLOUR)
    except GradingFailure as failure:
        return [_failed("reply", failure)]
    found = [_replied(first), Finding("usage", *_usage(first))]
    found.append(await _schema(full, "schema" in sent))
    found.append(await _choices(full, table, "choices" in sent))
    found.append(await _logprobs(full, table, "logprobs" in sent))
    found.append(await _streaming(everything, build))
    found.append(await _seed(model, table))
    return found


async def wait_until_reached(
    base_urls: Sequence[str],
    seconds: float,
    *,
    transport: Transport,
    clock: Clock,
    on_wait: Callable[[str], None] = lambda _: None,
) -> None:
    """Wait until a server at one of ``base_urls`` answers anything, if only "no"; costs nothing.

    ``on_wait`` hears of each failure. Raises :class:`~adjudge.errors.JudgeUnavailable` with the
    last one after ``seconds``.
    """
    deadline = clock.time() + seconds
    while True:
        for url in base_urls:
            try:
                await transport.post(url, _NOTHING)
            except GradingFailure as failure:
                problem = str(failure)
                if failure.metadata.get("sent", True):
                    return
            else:
                return
        left = deadline - clock.time()
        if left <= 0:
            raise JudgeUnavailable(f"{problem} (waited for {seconds:.0f} s)")
        on_wait(f"{problem}; waiting for up to {left:.0f} s")
        await clock.sleep(min(_EVERY_S, left))


def _failed(feature: str, failure: GradingFailure, sent: bool | None = None) -> Finding:
    return Finding(feature, "failed", f"{failure.kind}: {failure}", sent)


def _replied(reply: Reply) -> Finding:
    took = f"{reply.provenance.latency_s:.2f} s" if reply.provenance.latency_s is not None else ""
    thinking = "thinks" if reply.reasoning else ""
    says = f"says it is {reply.model}" if reply.model else "does not say what model it is"
    note = ", ".join(part for part in (says, took, thinking) if part)
    if not reply.text:
        return Finding("reply", "no", f"{note}; the reply has no text ({reply.finish_reason})")
    return Finding("reply", "yes", note)


def _usage(reply: Reply) -> tuple[State, str]:
    usage = reply.usage
    if usage is None:
        return "no", "tokens are not counted, so costs are assumed"
    return "yes", f"{usage.input_tokens} tokens in, {usage.output_tokens} out"


async def _asked(
    feature: str, asked: Awaitable[Reply], sent: bool | None, seen: Callable[[Reply], str]
) -> Finding:
    """A call for one feature; ``seen`` words what the reply shows."""
    try:
        reply = await asked
    except GradingFailure as failure:
        return _failed(feature, failure, sent)
    if feature in reply.ignored:
        return Finding(feature, "no", "the reply does not have it: dropped silently", sent)
    if feature in ("schema", "choices") and reply.finish_reason == "length":
        return _cut(feature, reply, sent)
    if not reply.text and feature != "logprobs":
        return Finding(feature, "no", f"the reply has no text ({reply.finish_reason})", sent)
    return Finding(feature, "yes", seen(reply), sent)


def _cut(feature: str, reply: Reply, sent: bool | None) -> Finding:
    """A cut reply shows at most that the form was not kept: an object begins with a brace."""
    if feature == "schema" and not reply.text.lstrip().startswith("{"):
        return Finding(feature, "no", "the reply is no JSON: dropped silently", sent)
    return Finding(feature, "unclear", "the reply was cut: raise max_tokens", sent)


async def _schema(model: ChatModel, sent: bool) -> Finding:
    asked = model.achat(_COLOUR, schema=_SCHEMA)
    return await _asked("schema", asked, sent, lambda _: "the reply is JSON with its keys")


async def _choices(model: ChatModel, table: JudgeTable, sent: bool) -> Finding:
    if PRESETS[table.type].choices_field is None:
        return Finding("choices", "not offered", "replies are checked against the list instead")
    asked = model.achat(_COLOUR, choices=_CHOICES)
    return await _asked("choices", asked, sent, lambda _: "the reply is one of the list")


async def _logprobs(model: ChatModel, table: JudgeTable, sent: bool) -> Finding:
    if table.type == "anthropic":
        return Finding("logprobs", "not offered", "no expected scores from this API")

    def seen(reply: Reply) -> str:
        most = max(len(token.top) for token in reply.logprobs or ())
        return f"{most} alternatives a token"

    return await _asked("logprobs", model.achat(_COLOUR, logprobs=True), sent, seen)


async def _streaming(table: JudgeTable, build: Build) -> Finding:
    if table.type == "anthropic":
        return Finding("streaming", "not offered", "this client asks it for whole replies only")
    model = build(table.model_copy(update={"stream": True}))

    def seen(reply: Reply) -> str:
        return f"joined, {'with' if reply.usage else 'without'} usage"

    return await _asked("streaming", model.achat(_COLOUR), table.stream, seen)


async def _seed(model: ChatModel, table: JudgeTable) -> Finding:
    if table.type == "anthropic":
        return Finding("seed", "not offered")
    sent = table.seed is not None
    try:
        texts = [
            (await model.achat(_WORDS, seed=7, temperature=1.0, max_tokens=_TOKENS)).text
            for _ in range(2)
        ]
    except GradingFailure as failure:
        return _failed("seed", failure, sent)
    if texts[0] == texts[1]:
        return Finding("seed", "yes", "two replies at temperature 1 are the same", sent)
    return Finding("seed", "no", "two replies at temperature 1 differ", sent)
