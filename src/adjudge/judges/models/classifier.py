"""``ClassifierModel``: a scalar judge (a reward model) behind a server.

On the first call that no cassette answers the server is asked, by a few small calls, which of its
routes gives scores, and whether they are raw outputs. A server that applies a softmax to a single
output gives 1.0 to everything; one that applies a sigmoid gives an order, but no logits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from adjudge.config import check_allowed
from adjudge.engine.loop import on_engine, run_on_engine
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import (
    ChatCall,
    HttpRequest,
    HttpResponse,
    Reply,
    RouteName,
    ScalarReading,
    TextTurns,
    Wire,
    check_scored_conversation,
)
from adjudge.judges.models.http import HttpChatModel
from adjudge.judges.models.local_loading import (
    apply_chat_template,
    compute_model_digest,
    convert_to_turns,
    get_special_tokens,
    read_tokenizer,
)
from adjudge.judges.wire.classifier import (
    ROUTES,
    UNSENT,
    ClassifierRoute,
    ClassifierWire,
    find_form,
)
from adjudge.judges.wire.transport import normalize_url
from adjudge.types import Message

if TYPE_CHECKING:
    from adjudge.judges.endpoint.endpoint import Endpoint

_log = logging.getLogger("adjudge")

_NO_ROUTE = (400, 404, 405, 415, 422, 501)
"""What a server answers where it has not this route, or reads another form of request there."""

_SAME = 0.01
"""Scores of one conversation that differ by less may differ by rounding in a batch."""

PROBE_CONVERSATIONS = tuple(
    [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
    for prompt, response in (
        ("What is the capital of France?", "The capital of France is Paris."),
        ("Name three colours.", "zq zq 77 no no no"),
    )
)
"""Two conversations that no reward model gives the same output."""


class ScalarRoute(msgspec.Struct, frozen=True):
    """What was found out about a server.

    ``is_raw``: its numbers are outputs before any activation; ``None``: that cannot be told.
    ``template``: who applies the chat template, ``server`` or ``here``; ``none``: a pair of texts
    is sent. ``scores``: of two very different conversations. ``probes``: calls that this took.
    """

    route: RouteName
    server: str
    template: str
    is_raw: bool | None
    scores: tuple[float, ...]
    probes: int

    @property
    def facts(self) -> dict[str, str]:
        """For summaries."""
        return {
            "route": f"{ROUTES[self.route].path} ({self.server})",
            "output": "raw outputs" if self.is_raw else "not known to be raw outputs",
            "template": self.template,
            "probes": str(self.probes),
        }


class _RoutedWire:
    """The wire of the route that gives scores, which is found with the first call."""

    def __init__(self, model: ClassifierModel, endpoint: Endpoint) -> None:
        self._model, self._endpoint = model, endpoint
        self._url, self._encoder = model.base_urls[0], model.encoder
        self._probes = 0
        self._search: asyncio.Task[tuple[ScalarRoute, ClassifierWire]] | None = None

    async def request(self, call: ChatCall) -> HttpRequest:
        return (await self.find())[1].request(call)

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        if self._search is None:
            raise RuntimeError("unreachable: found before the request")
        return self._search.result()[1].reply(call, response)

    async def find(self) -> tuple[ScalarRoute, ClassifierWire]:
        """The server's route and its wire; one search for all calls that wait.

        Raises ``ConfigError`` where no route gives one number a conversation, or the numbers
        cannot be raw outputs; ``GradingFailure`` where the server cannot be asked.
        """
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
        if self._encoder is not None:
            await asyncio.to_thread(self._encoder.load)
        self._probes = 0
        found = await self._find_route()
        self._endpoint.classifiers[self._model.model] = found.facts
        return found, ClassifierWire(ROUTES[found.route], self._endpoint.key, encode=self._encoder)

    async def _find_route(self) -> ScalarRoute:
        """The route that the model names, else the first that answers with a score."""
        problems = []
        for route in self._candidates():
            try:
                scores = await self._probe(route)
            except GradingFailure as failure:
                if "outputs" in failure.metadata:
                    raise ConfigError(
                        f"model: {failure}. Serve a model with one output (num_labels = 1)."
                    ) from None
                status = failure.metadata.get("status")
                is_malformed = failure.kind is ErrorKind.SERVER_ERROR and status == 200
                if status not in _NO_ROUTE and not is_malformed:
                    raise  # another route would not answer either
                problems.append(f"{route.path} ({route.server}): {failure}")
            else:
                return await self._examine(route, scores)
        remedy = "Start it with a reward model (vLLM: --runner pooling)"
        if self._encoder is None:
            remedy += (
                ", and set tokenizer to the model's folder for SGLang (its /classify takes token "
                "ids)"
            )
        raise ConfigError(
            f"base_url: {self._url} has no route for a scalar judge ({'; '.join(problems)}). "
            f"{remedy}."
        )

    def _candidates(self) -> list[ClassifierRoute]:
        if self._model.route is not None:
            return [ROUTES[self._model.route]]
        if self._encoder is not None:  # a pair of texts would leave the template out without a word
            return [route for route in ROUTES.values() if "tokens" in route.forms]
        return [route for route in ROUTES.values() if find_form(route, has_template=False)]

    async def _probe(self, route: ClassifierRoute, *, raw: bool = True) -> tuple[float, ...]:
        """The scores of :data:`PROBE_CONVERSATIONS`."""
        model, endpoint = self._model, self._endpoint
        wire = ClassifierWire(route, endpoint.key, encode=self._encoder, raw=raw)
        scores = []
        for messages in PROBE_CONVERSATIONS:
            self._probes += 1
            call = ChatCall(model=model.model, messages=messages, sampling=model.sampling)
            reply = await endpoint.ask(call, wire, price=model.price, keep=False)
            scores.append(msgspec.json.decode(reply.text, type=ScalarReading).score)
        return tuple(scores)

    async def _examine(self, route: ClassifierRoute, scores: tuple[float, ...]) -> ScalarRoute:
        """Whether ``scores`` are raw outputs."""
        is_raw = not all(0.0 <= score <= 1.0 for score in scores) and len(set(scores)) > 1
        if not is_raw and route.activation is not None:
            # Raw outputs may lie between 0 and 1 by chance: does the field change anything?
            active = await self._probe(route, raw=False)
            pairs = zip(scores, active, strict=True)
            is_raw = any(abs(one - other) > _SAME for one, other in pairs)
        if not is_raw and len(set(scores)) == 1:
            raise ConfigError(
                f"base_url: {self._url} gives every conversation the score {scores[0]:g}: "
                f"{route.path} of {route.server} seems to answer with a softmax over one output. "
                f"{_advise_raw(route)}"
            )
        if not is_raw:
            _log.warning(
                "%s: the scores %s lie between 0 and 1, so they may be probabilities and no raw "
                "outputs. %s",
                self._url,
                " and ".join(f"{score:.4g}" for score in scores),
                _advise_raw(route),
            )
        form = find_form(route, has_template=self._encoder is not None)
        template = {"tokens": "here", "messages": "server"}.get(form or "", "none")
        if route.name == "judge":
            template = "server"
        return ScalarRoute(route.name, route.server, template, is_raw or None, scores, self._probes)


def _advise_raw(route: ClassifierRoute) -> str:
    if route.name == "judge":
        return "Its spec needs one grader of type 'scalar' and [reward] normalise = false."
    if route.server == "vLLM":
        return "Use a version of vLLM that knows the request's field use_activation."
    return (
        f"Serve a model whose outputs {route.server} leaves as they are, or use another server: "
        "vLLM gives raw outputs."
    )


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

    def __call__(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation."""
        self.load()
        turns = convert_to_turns(messages, self._special)
        return self._encode(tuple((turn["role"], turn["content"]) for turn in turns))

    def _encode_turns(self, pairs: tuple[tuple[str, str], ...]) -> list[int]:
        turns: TextTurns = [{"role": role, "content": content} for role, content in pairs]
        return apply_chat_template(self._tokenizer, turns, reply=False)


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
    long for it is ``too_long``: nothing is cut.

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
        self.encoder = None if tokenizer is None else TemplateEncoder(tokenizer)
        # Not sent. No chance has a say in a score, so it is kept, and equal calls in flight share
        # one; limits of tokens and money need not reserve a reply.
        self.sampling = {**self.sampling, "temperature": 0.0, "max_tokens": 1}
        if route is not None:  # another may give a probability where this one gives a logit
            self.sampling["route"] = route
        if tokenizer is not None:
            self.sampling["tokenizer"] = compute_model_digest(tokenizer)[:16] or tokenizer

    def __getstate__(self) -> Metadata:
        state = super().__getstate__()
        if self.encoder is not None:
            state["encoder"] = TemplateEncoder(self.encoder.place)
        return state

    @staticmethod
    def _normalize(url: str) -> str:
        return normalize_url(url.rstrip("/").removesuffix("/v1"))

    async def answer(self, call: ChatCall) -> Reply:
        """The score of a conversation; ``ConfigError`` when it is asked a question instead."""
        check_scored_conversation(call)
        return await super().answer(call)

    def _make_wires(self, endpoint: Endpoint) -> tuple[Wire, None]:
        return _RoutedWire(self, endpoint), None

    async def inspect_server(self) -> tuple[ScalarRoute, list[Reply]]:
        """What was found out about the server, and two replies to one conversation.

        Raises as :meth:`_RoutedWire.find`.
        """
        return await (self._inspect() if on_engine() else run_on_engine(self._inspect()))

    async def _inspect(self) -> tuple[ScalarRoute, list[Reply]]:
        _, wire, _ = await self._connect(self._key())
        if not isinstance(wire, _RoutedWire):
            raise ConfigError("wire: a classifier with a wire of its own has no route")
        found, _ = await wire.find()
        return found, [await self.achat(PROBE_CONVERSATIONS[0], draw=draw) for draw in (0, 1)]
