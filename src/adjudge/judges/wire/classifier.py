"""Scalar judges behind HTTP: a conversation as a request, one raw number out of the response.

=============  ================  ===========================================================
route          path              conversations go out as
=============  ================  ===========================================================
``classify``   ``/classify``     messages, or token ids: vLLM
``pooling``    ``/pooling``      messages, or token ids: vLLM, for heads that answer by token
``sglang``     ``/classify``     token ids: SGLang's own route (its ``/v1/classify`` answers with
                                 a softmax, which is 1.0 for every single output)
``score``      ``/score``        prompt and response as a pair of texts: vLLM
``judge``      ``/judge``        prompt, response and messages: ``adjudge serve``
=============  ================  ===========================================================

A response without exactly one finite number is a failure, never a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from adjudge.errors import ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import (
    ChatCall,
    HttpRequest,
    HttpResponse,
    Reply,
    RouteName,
    ScalarReading,
    read_text_turns,
)
from adjudge.judges.wire import (
    ReplyBody,
    build_headers,
    cut_failure,
    decode_body,
    encode_body,
    malformed_failure,
    parse_token_count,
    response_failure,
)
from adjudge.prompts import break_token_patterns
from adjudge.types import Message, Usage

InputForm = Literal["messages", "tokens", "pair"]

TokenEncoder = Callable[[Sequence[Message]], list[int]]
"""A conversation's token ids, as the judge's own chat template writes it."""


class ClassifierRoute(msgspec.Struct, frozen=True):
    """One way to ask for a score: ``forms`` are what it takes, the first that is possible is sent.

    ``activation``: the field of its request that is sent as false, so that the output is raw.
    """

    name: RouteName
    path: str
    server: str
    forms: tuple[InputForm, ...]
    activation: str | None = None


_ACTIVATION = "use_activation"

ROUTES: dict[str, ClassifierRoute] = {
    route.name: route
    for route in (
        ClassifierRoute("classify", "/classify", "vLLM", ("tokens", "messages"), _ACTIVATION),
        ClassifierRoute("sglang", "/classify", "SGLang", ("tokens",)),
        ClassifierRoute("pooling", "/pooling", "vLLM", ("tokens", "messages"), _ACTIVATION),
        ClassifierRoute("score", "/score", "vLLM", ("pair",), _ACTIVATION),
        ClassifierRoute("judge", "/judge", "adjudge serve", ("pair",)),
    )
}
"""By name, in the order in which a server is asked for them."""

UNSENT = ("temperature", "max_tokens", "tokenizer", "route")
"""What the model notes for cassettes and limits."""


_Row = list[float | None]


class _Item(msgspec.Struct):
    probs: _Row | None = None
    data: list[float | _Row | None] | None = None
    score: float | msgspec.UnsetType | None = msgspec.UNSET


class _Body(ReplyBody):
    """The answer of any route: ``data`` is vLLM's, ``embedding`` SGLang's, ``score`` our own."""

    data: list[_Item] | None = None
    embedding: _Row | None = None
    score: float | msgspec.UnsetType | None = msgspec.UNSET
    meta_info: object = None

    @property
    def values(self) -> Sequence[float | None] | None:
        """The numbers of one conversation; ``None`` where it has none, or those of several."""
        if self.embedding is not None:
            return self.embedding
        if self.data is None:
            return None if self.score is msgspec.UNSET else [self.score]
        if len(self.data) != 1:
            return None
        [item] = self.data
        if item.probs is not None:
            return item.probs
        if item.data is not None:
            return _last_output(item.data)
        return None if item.score is msgspec.UNSET else [item.score]

    @property
    def tokens(self) -> int | None:
        """How many were read."""
        counts = self.meta_info if self.usage is None else self.usage
        return parse_token_count(counts.get("prompt_tokens")) if isinstance(counts, dict) else None


class _ServiceError(msgspec.Struct):
    kind: ErrorKind
    message: str = ""
    local: bool = False


class _ServiceFailure(msgspec.Struct):
    error: _ServiceError


class ClassifierWire:
    """Stateless. One route's format; ``encode`` applies the chat template here.

    Without ``encode`` messages go out for the server's own template, with what looks like a control
    token in their texts broken up (:func:`~adjudge.prompts.break_token_patterns`).
    ``raw``: ask for the output before the activation, where the route has a field for that.
    """

    def __init__(
        self,
        route: ClassifierRoute,
        key: str | None = None,
        *,
        encode: TokenEncoder | None = None,
        raw: bool = True,
    ) -> None:
        self.route = route
        self._encode = encode
        self._form = find_form(route, has_template=encode is not None)
        self._activation = route.activation if raw else None
        self._headers = build_headers(key)

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST for ``call``; ``GradingFailure`` for a conversation that cannot be sent."""
        body: Metadata = {
            name: value for name, value in call.sampling.items() if name not in UNSENT
        }
        if self.route.name != "judge":
            body["model"] = call.model
        if self._activation is not None:
            body[self._activation] = False
        body |= self._conversation(call.messages)
        return HttpRequest(path=self.route.path, headers=self._headers, body=encode_body(body))

    def _conversation(self, messages: Sequence[Message]) -> Metadata:
        if self._encode is not None and self._form == "tokens":
            ids = self._encode(messages)
            return {"input_ids" if self.route.name == "sglang" else "input": ids}
        # Our own service breaks up what its own judge's tokenizer takes for structure.
        clean = str if self.route.name == "judge" else break_token_patterns
        turns = read_text_turns(messages, clean)
        if self._form == "messages":
            return {"messages": turns, "add_generation_prompt": False}
        pair = [turn["content"] for turn in turns]
        is_pair = [turn["role"] for turn in turns] == ["user", "assistant"]
        if self.route.name == "judge":
            before = {} if is_pair else {"messages": turns}
            prompt = pair[0] if is_pair else ""
            return {"prompt": prompt, "completion": pair[-1], **before}
        if not is_pair:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"the route {self.route.name!r} takes a prompt and a completion only",
            )
        return {"text_1": pair[0], "text_2": pair[1]}

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        """The score in ``response`` as JSON (finish reason ``score``), or its failure."""
        if not 200 <= response.status < 300:
            raise _status_failure(self.route, response)
        if response.cut:
            raise cut_failure(response)
        name = f"answer of {self.route.path} of {self.route.server}"
        output = decode_body(response, response.body, _Body, name)
        values = output.values
        if values is None:
            raise malformed_failure(response, "its body is not about one conversation")
        if len(values) != 1:
            raise GradingFailure(
                ErrorKind.UNSUPPORTED,
                f"the model has {len(values)} outputs; a scalar judge has one",
                {"status": response.status, "outputs": len(values)},
            )
        [score] = values
        if score is None or not math.isfinite(score):
            raise GradingFailure(
                ErrorKind.OUT_OF_RANGE, "the judge's output is not a finite number"
            )
        tokens = output.tokens
        if self._encode is not None and self._form == "tokens" and tokens is not None:
            sent = len(self._encode(call.messages))
            if tokens < sent:
                raise GradingFailure(
                    ErrorKind.TOO_LONG,
                    f"the server read {tokens} of {sent} tokens, so it cuts what is too long",
                )
        reading = ScalarReading(score, tokens or 0)
        return Reply(
            text=msgspec.json.encode(reading).decode(),
            finish_reason="score",
            usage=None if tokens is None else Usage(input_tokens=tokens, output_tokens=0),
            model=output.model if isinstance(output.model, str) else None,
        )


def find_form(route: ClassifierRoute, *, has_template: bool) -> InputForm | None:
    """What ``route`` is sent, with a chat template here or without; ``None`` if it takes neither.

    >>> find_form(ROUTES["classify"], has_template=False), find_form(ROUTES["sglang"],
    ...     has_template=False)
    ('messages', None)
    """
    return next((form for form in route.forms if form != "tokens" or has_template), None)


def _status_failure(route: ClassifierRoute, response: HttpResponse) -> GradingFailure:
    if route.name == "judge" and (failure := _service_failure(response)) is not None:
        return failure
    failure = response_failure(response)
    if response.status == 501:  # it will not come into being by asking again
        return GradingFailure(ErrorKind.UNSUPPORTED, str(failure), failure.metadata)
    return failure


def _service_failure(response: HttpResponse) -> GradingFailure | None:
    """What ``adjudge serve`` says about a judge of its own that failed."""
    try:
        error = msgspec.json.decode(response.body, type=_ServiceFailure).error
    except (ValueError, RecursionError):
        return None
    metadata: Metadata = response_failure(response).metadata
    if error.local:
        metadata["local"] = True
    return GradingFailure(error.kind, f"the service's judge failed: {error.message}", metadata)


def _last_output(data: list[float | _Row | None]) -> _Row | None:
    """One row of outputs; of a head that answers token by token the last, which has read all."""
    rows = [one for one in data if isinstance(one, list)]
    if len(rows) == len(data):
        return rows[-1] if rows else None
    return None if rows else [one for one in data if not isinstance(one, list)]
