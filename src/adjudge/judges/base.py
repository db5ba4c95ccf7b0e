"""What a judge is asked, what it replies, and the parts a call passes through.

=============  ====================================================================================
``ChatCall``   one question as plain data: messages, schema or choices, sampling, draw, attempt
``Reply``      the answer: text and reasoning apart, finish reason, log-probabilities, usage
``ChatModel``  who answers: derive from it and write :meth:`ChatModel.answer`
``Wire``       a provider's format: ``ChatCall`` → HTTP request, HTTP response → ``Reply``
``Transport``  bytes over the network, nothing else; what tests replace
=============  ====================================================================================

Between wire and transport stands the endpoint (limits, retries, hedging, breaker, budget, cache).
Everything here runs on one event loop, whose clock is the only clock.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind, Fields, GradingFailure
from adjudge.judges.asking import begin_call, call_log, count_ask, current_ask
from adjudge.messages import content_text
from adjudge.prompts import PROCESS_KEY
from adjudge.text import split_thinking
from adjudge.types import Message, Provenance, Usage

LocalTask = Literal["chat", "score"]
"""What a model in this process does: replies, or gives a conversation one number."""

LocalDtype = Literal["float32", "bfloat16", "float16"]
"""What its weights are held as."""

RouteName = Literal["classify", "pooling", "sglang", "score", "judge"]
"""How a classifier's server is asked for a score (:mod:`adjudge.judges.wire.classifier`)."""


call_round: ContextVar[object | None] = ContextVar("asking_round", default=None)
"""What is asked in one go: equal calls in it end alike where calls are recorded.

Set anew by who asks failures again. ``None``: every call for itself.
"""


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a chat model, as plain data; what the cache key is made of.

    ``messages`` in OpenAI chat format (tool and image parts pass through); ``schema``: a JSON
    Schema that the reply should satisfy; ``choices``: the texts of which the reply should be one;
    ``logprobs``: ask for the log-probabilities of the reply's tokens; ``draw`` numbers votes and
    repeats, ``attempt`` the calls for one of them (:class:`.Ask`): calls that differ in either
    never share a reply; ``sampling``: ``temperature``, ``max_tokens``, ``seed``, … as the provider
    names them. ``group`` is no part of the question: calls of one group go to one
    replica, whose prefix cache knows them.
    """

    model: str
    messages: Sequence[Message]
    schema: Fields | None = None
    choices: Sequence[str] | None = None
    logprobs: bool = False
    draw: int = 0
    attempt: int = 0
    sampling: Fields = {}
    group: str | None = None

    @property
    def seed_step(self) -> int:
        """What is added to a seed, so that no two draws and attempts have the same one."""
        return self.draw + 1_000_000 * self.attempt


class TokenLogprobs(msgspec.Struct, frozen=True):
    """One output token: its text, its log-probability, and the most likely tokens there."""

    token: str
    logprob: float
    top: dict[str, float]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer.

    ``text`` is what stands after the thinking, ``reasoning`` the thinking (from a field of its own
    or an inline ``<think>``; an unclosed one makes everything reasoning and ``text`` empty).
    ``finish_reason`` as the server says it (``stop``, ``length``, ``content_filter``, …), ``None``
    when unsaid. ``model`` as the server reports it. ``ignored`` names what was asked for and
    evidently not honoured: ``logprobs``, ``schema``, ``choices``, ``usage``.
    """

    text: str
    reasoning: str = ""
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    usage: Usage | None = None
    model: str | None = None
    ignored: tuple[str, ...] = ()
    provenance: Provenance = Provenance()


class ScalarReading(msgspec.Struct, frozen=True):
    """What a scalar judge says, as JSON in its reply: its output, and tokens read and cut off."""

    score: float
    tokens: int = 0
    truncated: int = 0


_json = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def find_ignored_features(
    call: ChatCall,
    text: str,
    finish_reason: str | None,
    logprobs: list[TokenLogprobs] | None,
    usage: Usage | None,
) -> tuple[str, ...]:
    """The names of what ``call`` asked for and this reply evidently lacks, in a fixed order.

    A reply that ran into its length limit, or has no text, says nothing about schema and choices.
    """
    missing = []
    if call.logprobs and not logprobs:
        missing.append("logprobs")
    if text and finish_reason != "length":
        if call.schema is not None and not _fits_schema(text, call.schema):
            missing.append("schema")
        if call.choices is not None and not {text, text.strip()}.intersection(call.choices):
            missing.append("choices")
    if usage is None:
        missing.append("usage")
    return tuple(missing)


def _fits_schema(text: str, schema: Fields) -> bool:
    """Whether ``text`` is JSON with the keys that ``schema`` requires; no full validation."""
    try:
        if schema.get("type") != "object":
            _json.decode(text)
            return True
        found = _object.decode(text)
    except (ValueError, RecursionError):
        return False
    return all(name in found for name in schema.get("required", ()))


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One POST; ``path`` is appended to the base URL."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response read to its end; header names in lower case. ``cut``: the body ended too early."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False


class Transport(Protocol):
    """Sends bytes; ``GradingFailure(connection)`` for whatever keeps a response from coming.

    ``metadata["sent"]`` of the failure is false where the request never left.
    """

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        """The response, whatever its status."""

    async def aclose(self) -> None:
        """Close the connections."""


class Wire(Protocol):
    """A provider's format; stateless and pure.

    A judge with a server may have the user's own: ``wire = "module:Class"`` in its table. The class
    is made with the key (or ``None``); :func:`adjudge.judges.wire.response_failure` words
    the failure of a response with an error status.
    """

    def request(self, call: ChatCall) -> HttpRequest | Awaitable[HttpRequest]:
        """``call`` as the provider wants it. Never contains what a log must not (headers may)."""

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        """The reply in a response.

        Raises ``GradingFailure``: ``auth`` (401, other 403), ``rate_limited`` (429),
        ``server_error`` (5xx, 529, a 200 that is an error or no JSON), ``refused`` (moderation,
        refusal), ``budget`` (a 429/402/403 that means money), ``too_long``, ``invalid_input``
        (other 4xx), ``truncated`` (a cut stream). ``metadata["status"]`` is the HTTP status.
        """


class ChatModel:
    """A judge that chats. One object serves any thread, loop and process: configuration only.

    A judge of your own derives from this and writes one method, :meth:`answer`. A reward spec
    names it as ``type = "module:Class"``; the other keys of its table are arguments of the
    constructor::

        class HouseJudge(ChatModel):
            def __init__(self, url: str, temperature: float = 0.0, key_env: str = "HOUSE_KEY"):
                self.url, self.sampling = url, {"temperature": temperature}
                self.key_env = key_env

            async def answer(self, call: ChatCall) -> str:
                return await house.ask(self.url, call.messages, **call.sampling)

    Raise :class:`~adjudge.errors.GradingFailure` with the kind of what went wrong
    (``rate_limited``, ``server_error``, …: those that pass are asked again). Of other exceptions
    ``TimeoutError`` is ``timeout``, ``ConnectionError`` is ``connection`` and any other one a
    ``bug``. Each is a failed judgement, never a score.

    ``model``: what replies are counted under. ``sampling``: what each call is sent with, unless the
    call says otherwise. ``features``: what calls to it may ask for (:mod:`adjudge.judges.base`);
    graders put into words what a judge is not sent as a field.

    >>> class Echo(ChatModel):
    ...     async def answer(self, call):
    ...         return call.messages[-1]["content"]
    >>> Echo().chat([{"role": "user", "content": "hello"}]).text
    'hello'
    """

    model: str = ""
    kind: str = "custom"
    sampling: Fields = {}  # noqa: RUF012  (read only)
    features: frozenset[str] = frozenset()
    has_server: bool = False
    """Whether its calls go over the network and may cost money."""
    preset: str = ""
    """The kind of its server (:data:`PRESETS`)."""
    control_tokens: frozenset[str] = frozenset()
    """What its tokenizer takes for structure; broken up in what it judges. Empty: unknown."""

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The addresses of its server."""
        return ()

    @property
    def fingerprint(self) -> str:
        """A digest of what replies depend on beside a spec's table: here the class's own file."""
        return digest_source(type(self))

    @property
    def fence_key(self) -> bytes:
        """The key for tags that fence text in prompts; that of its cassette, if it has one."""
        return PROCESS_KEY

    def check_machine(self) -> None:
        """Raise :class:`~adjudge.errors.ConfigError` for what this machine lacks: a key, a device.

        Nothing is asked or loaded, and nothing is needed by default.
        """

    async def wait_until_reachable(
        self, seconds: float, on_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait for a server that is starting; a judge without one is there at once.

        ``on_wait`` hears what is waited for. Raises :class:`~adjudge.errors.JudgeUnavailable`
        after ``seconds``.
        """

    async def start(self) -> None:
        """Make ready what the first call would wait for: a model in this process is loaded."""

    async def aclose(self) -> None:
        """Let go of what was made ready; the next call makes it ready again."""

    async def answer(self, call: ChatCall) -> Reply | str:
        """The reply to one call, complete, or its text (thinking is parted as ever).

        Runs on whichever event loop asks; must not block it.
        """
        raise NotImplementedError(f"{type(self).__name__} must have the method: async answer(call)")

    async def achat(
        self,
        messages: Sequence[Message],
        *,
        schema: Fields | None = None,
        choices: Sequence[str] | None = None,
        logprobs: bool = False,
        draw: int = 0,
        group: str | None = None,
        **sampling: Any,
    ) -> Reply:
        """Ask, and return one complete reply; the arguments are those of :class:`ChatCall`.

        ``sampling`` goes before the model's own. Raises ``GradingFailure`` with the kind of what
        went wrong, and ``ConfigError`` for what cannot be meant.
        """
        ask = current_ask.get()
        count_ask(ask.why, draw)
        call = ChatCall(
            model=self.model,
            messages=messages,
            schema=schema,
            choices=choices,
            logprobs=logprobs,
            draw=draw,
            attempt=ask.attempt,
            sampling=self.merge_sampling(sampling) if sampling else self.sampling,
            group=group,
        )
        log = call_log.get()
        if log is None:
            return await self._complete(call)
        noted = begin_call(messages, schema, choices, draw)
        try:
            reply = await self._complete(call)
        except BaseException as error:
            noted.note_failure(error)
            raise
        else:
            noted.reply, noted.reasoning = reply.text, reply.reasoning or None
            noted.finish_reason, noted.model = reply.finish_reason, reply.model
            noted.note_provenance(reply.provenance)
            return reply
        finally:
            log.append(noted)

    async def _complete(self, call: ChatCall) -> Reply:
        answering = self.answer(call)
        if not inspect.isawaitable(answering):
            raise ConfigError(
                f"judge {self.model!r}: answer must be `async def` (found a function that returned "
                f"{type(answering).__name__})"
            )
        said: object = await answering
        if isinstance(said, Reply):
            return said
        if isinstance(said, str):
            return build_text_reply(call, said)
        found = f"answer must return a Reply or text (found {type(said).__name__})"
        raise GradingFailure(ErrorKind.BUG, f"judge {call.model!r}: {found}")

    def chat(self, messages: Sequence[Message], **asked: Any) -> Reply:
        """The blocking twin of :meth:`achat`, for ordinary code in any thread."""
        return run_blocking(self.achat(messages, **asked))

    def merge_sampling(self, sampling: Fields) -> Fields:
        """The sampling of a call that says something about it."""
        return {**self.sampling, **sampling}


TextTurns = list[dict[str, str]]
"""Roles and texts."""


def read_text_turns(messages: Sequence[Message], clean: Callable[[str], str]) -> TextTurns:
    """Messages as roles and texts, each text cleaned by ``clean``.

    Raises ``GradingFailure``: ``invalid_input`` for what is no message, ``unsupported`` for parts
    that are no text (images), which such a judge is not shown.
    """
    turns = []
    for place, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise GradingFailure(ErrorKind.INVALID_INPUT, f"messages[{place}] has no role")
        if isinstance(content, list) and any(
            not isinstance(part.get("text") if isinstance(part, Mapping) else part, str)
            for part in content
        ):
            raise GradingFailure(
                ErrorKind.UNSUPPORTED, "this judge reads text only, no images or other parts"
            )
        turns.append({"role": role, "content": clean(content_text(content))})
    return turns


def check_scored_conversation(call: ChatCall) -> None:
    """Raise :class:`ConfigError` where a scalar judge is asked a question."""
    last = call.messages[-1] if call.messages else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        raise ConfigError(
            f"model: {call.model} is a scalar judge and cannot answer questions. Use a grader "
            "of type 'scalar'."
        )


def build_text_reply(call: ChatCall, whole: str) -> Reply:
    """The reply whose text was generated as a whole, by who counts no tokens."""
    text, reasoning = split_thinking(whole)
    ignored = find_ignored_features(call, text, "stop", None, None)
    return Reply(
        text=text,
        reasoning=reasoning,
        finish_reason="stop",
        model=call.model,
        ignored=tuple(name for name in ignored if name != "usage"),
        provenance=Provenance(source="live", model=call.model, attempts=1),
    )


def digest_source(cls: type[Any]) -> str:
    """The digest of the files of a user's own class and of its own bases.

    Empty for what ships, which goes with adjudge's version, and for what has no file.
    """
    paths: dict[str, None] = {}
    for one in cls.__mro__:
        package = one.__module__.partition(".")[0]
        if package in ("adjudge", "adjudge_lab") or package in sys.stdlib_module_names:
            continue
        if (path := getattr(sys.modules.get(one.__module__), "__file__", None)) is not None:
            paths[path] = None
    digests = []
    for path in paths:
        with suppress(OSError):
            digests.append(sha256(Path(path).read_bytes()).hexdigest())
    return " ".join(digests)
