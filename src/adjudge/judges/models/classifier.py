"""``ClassifierModel``: a scalar judge (a reward model) behind a server.

On the first call that no cassette answers the server is asked which of its routes gives scores, and
whether they are raw outputs; see :mod:`adjudge.judges.models.classifier_routes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, get_args

from adjudge.config import check_allowed
from adjudge.engine.loop import on_engine, run_on_engine
from adjudge.errors import ConfigError, GradingFailure
from adjudge.judges.base import (
    ChatCall,
    HttpRequest,
    HttpResponse,
    Reply,
    RouteName,
    Wire,
    check_scored_conversation,
)
from adjudge.judges.endpoint.connections import Connection
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.models.classifier_routes import (
    PROBE_CONVERSATIONS,
    ProbeMessages,
    RouteSearch,
    ScalarRoute,
    probe_messages,
)
from adjudge.judges.models.http import HttpChatModel, LoopBinding
from adjudge.judges.models.local_loading import (
    apply_chat_template,
    compute_model_digest,
    convert_to_turns,
    get_special_tokens,
    read_tokenizer,
)
from adjudge.judges.wire.classifier import ROUTES, UNSENT, ClassifierRoute, ClassifierWire
from adjudge.judges.wire.common import TextTurns
from adjudge.judges.wire.transport import normalize_url

_ENCODED = 512


class TemplateEncoder:
    """Applies a tokenizer's chat template; loaded with the first conversation, or by ``load``.

    Nobody's text can write the tokenizer's special tokens: they are broken up.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._tokenizer: Any = None
        self._special: frozenset[str] = frozenset()
        self._encode = lru_cache(maxsize=_ENCODED)(self._encode_turns)

    def load(self) -> None:
        """Load the tokenizer; ``ConfigError`` for one that cannot be, or has no template."""
        if self._tokenizer is not None:
            return
        tokenizer = read_tokenizer(self.place)
        if not tokenizer.chat_template:
            raise ConfigError(
                f"tokenizer: {self.place} has no chat template. Leave tokenizer out to let the "
                "server apply its own, or set route = 'score'."
            )
        self._special = get_special_tokens(tokenizer)
        self._tokenizer = tokenizer

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The token ids of a conversation."""
        self.load()
        turns = convert_to_turns(messages, self._special)
        return self._encode(tuple((turn["role"], turn["content"]) for turn in turns))

    def _encode_turns(self, pairs: tuple[tuple[str, str], ...]) -> list[int]:
        turns: TextTurns = [{"role": role, "content": content} for role, content in pairs]
        return apply_chat_template(self._tokenizer, turns, reply=False)


class _RoutedWire:
    """The wire of a route that is found with the first call."""

    def __init__(self, model: ClassifierModel, key: str | None) -> None:
        self._model, self._key = model, key
        self._search: asyncio.Task[tuple[ScalarRoute, ClassifierWire]] | None = None
        self.connection: Connection | None = None

    async def find(self) -> tuple[ScalarRoute, ClassifierWire]:
        """The server's route and its wire; one search for all calls that wait."""
        if self._search is None:
            self._search = asyncio.ensure_future(self._find())
        search = self._search
        try:
            return await asyncio.shield(search)
        except GradingFailure as failure:  # each caller adds to its own metadata
            if self._search is search:
                self._search = None
            raise GradingFailure(failure.kind, str(failure), dict(failure.metadata)) from None
        except ConfigError as error:
            raise ConfigError(str(error)) from None

    async def _find(self) -> tuple[ScalarRoute, ClassifierWire]:
        if self.connection is None:
            raise RuntimeError("unreachable: set when the model connects")
        found = await self._model.find_route(self.connection.endpoint, self._key)
        self.connection.classifiers[self._model.model] = found.facts
        return found, self._model.build_wire(ROUTES[found.route], self._key)

    async def request(self, call: ChatCall) -> HttpRequest:
        return (await self.find())[1].request(call)

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        if self._search is None:
            raise RuntimeError("unreachable: found before the request")
        return self._search.result()[1].reply(call, response)


class ClassifierModel(HttpChatModel):
    """A scalar judge behind a server: vLLM, SGLang or ``adjudge serve``.

    It reads a conversation that ends with the assistant's turn, and its reply is the JSON of
    ``score`` (the raw output), ``tokens`` and ``truncated`` with the finish reason ``score``, which
    the grader type ``scalar`` reads. ``route``: one of
    :data:`~adjudge.judges.wire.classifier.ROUTES`; by default the server is asked. ``tokenizer``:
    the served model's, a folder or a name that transformers can load: the chat template is then
    applied here and token ids are sent. Without it the server applies its own. All else as in
    :class:`HttpChatModel`, ``base_url`` with or without ``/v1``; what is in ``extra_body``
    goes into each request.

    A server whose numbers cannot be raw is refused (``ConfigError``). A conversation that is too
    long for it is ``invalid_input``: nothing is cut.

    >>> ClassifierModel("rm", base_url="http://localhost:8000")
    ClassifierModel(model='rm', base_url=['http://localhost:8000'])
    """

    kind = "classifier"
    streams = False

    def __init__(
        self,
        model: str,
        *,
        route: RouteName | None = None,
        tokenizer: str | None = None,
        **options: Any,
    ) -> None:
        if route is not None:
            check_allowed("route", route, get_args(RouteName))
            takes_tokens = "tokens" in ROUTES[route].forms
            if tokenizer is None and ROUTES[route].forms == ("tokens",):
                raise ConfigError(
                    f"route: {route!r} takes token ids. Set tokenizer to the served model's folder."
                )
            if tokenizer is not None and not takes_tokens:
                raise ConfigError(
                    f"tokenizer: is not used with route = {route!r}, which takes texts. Leave it "
                    "out."
                )
        super().__init__(model, **options)
        for name in UNSENT:
            if name in self.sampling:
                raise ConfigError(
                    f"extra_body.{name}: is not sent to a scalar judge. Leave it out."
                )
        self.route = route
        self._encoder = None if tokenizer is None else TemplateEncoder(tokenizer)
        # Not sent. No chance has a say in a score, so it is kept, and equal calls in flight share
        # one; limits of tokens and money need not reserve a reply.
        self.sampling = {**self.sampling, "temperature": 0.0, "max_tokens": 1}
        if route is not None:  # another may give a probability where this one gives a logit
            self.sampling["route"] = route
        if tokenizer is not None:
            self.sampling["tokenizer"] = compute_model_digest(tokenizer)[:16] or tokenizer

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._encoder is not None:
            state["_encoder"] = TemplateEncoder(self._encoder.place)
        return state

    @staticmethod
    def _normalize(url: str) -> str:
        return normalize_url(url.rstrip("/").removesuffix("/v1"))

    async def answer(self, call: ChatCall) -> Reply:
        """The score of a conversation; ``ConfigError`` when it is asked a question instead."""
        check_scored_conversation(call)
        return await super().answer(call)

    def _wire(self, key: str | None, *, stream: bool) -> Wire:  # noqa: ARG002  (it has none)
        return _RoutedWire(self, key)

    async def _connect(self, key: str | None) -> LoopBinding:
        line = await super()._connect(key)
        if isinstance(line.plain, _RoutedWire):
            line.plain.connection = line.connection
        return line

    async def inspect_server(self) -> tuple[ScalarRoute, list[Reply]]:
        """What was found out about the server, and two replies to one conversation.

        Raises as :meth:`find_route`.
        """
        return await (self._inspect() if on_engine() else run_on_engine(self._inspect()))

    async def _inspect(self) -> tuple[ScalarRoute, list[Reply]]:
        line = await self._connect(self._key())
        if not isinstance(line.plain, _RoutedWire):
            raise ConfigError("wire: a classifier with a wire of its own has no route")
        found, _ = await line.plain.find()
        messages = probe_messages(*PROBE_CONVERSATIONS[0])
        return found, [await self.achat(messages, draw=draw) for draw in (0, 1)]

    def build_wire(
        self, route: ClassifierRoute, key: str | None, *, raw: bool = True
    ) -> ClassifierWire:
        """The wire of a route, for its raw outputs or not."""
        return ClassifierWire(route, key, encode=self._encoder, raw=raw)

    async def find_route(self, endpoint: Endpoint, key: str | None = None) -> ScalarRoute:
        """Ask the server behind ``endpoint``; raises as :meth:`RouteSearch.run`."""
        if self._encoder is not None:
            await asyncio.to_thread(self._encoder.load)

        async def ask(messages: ProbeMessages, route: ClassifierRoute, raw: bool) -> Reply:
            wire = self.build_wire(route, key, raw=raw)
            call = ChatCall(model=self.model, messages=messages, sampling=self.sampling)
            return await endpoint.ask(call, wire, price=self.price, keep=False)

        search = RouteSearch(ask, self.base_urls[0], has_template=self._encoder is not None)
        return await search.run(self.route)
