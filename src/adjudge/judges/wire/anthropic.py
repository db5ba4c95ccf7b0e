"""Anthropic's ``/v1/messages`` format: requests and replies.

Chat messages and content parts in OpenAI's format are rewritten as Anthropic wants them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from adjudge.errors import ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply, find_ignored_features
from adjudge.judges.presets import PRESETS
from adjudge.judges.wire import (
    ReplyBody,
    build_headers,
    cut_failure,
    decode_body,
    encode_body,
    malformed_failure,
    parse_token_count,
    parse_usage,
    part_thinking,
    refused_failure,
    response_failure,
)
from adjudge.text import THINK_OPEN
from adjudge.types import Usage

ContentBlocks = list[Metadata]

_CACHE_CONTROL = {"type": "ephemeral"}
_NATIVE_TYPES = frozenset({"image", "document"})


def convert_messages(messages: Sequence[object]) -> tuple[ContentBlocks, ContentBlocks]:
    """``(system blocks, user and assistant turns)``.

    ``system`` and ``developer`` messages are lifted out, and the last of their blocks is marked for
    the prompt cache, unless a caller has marked one. Empty texts, which the API refuses, are left
    out. Raises ``GradingFailure``: ``invalid_input`` for what is no chat message, ``unsupported``
    for roles and parts that the API has no form for here (tools, audio).
    """
    system: ContentBlocks = []
    turns: ContentBlocks = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str):
            raise GradingFailure(ErrorKind.INVALID_INPUT, "a message must be a mapping with a role")
        if role in ("system", "developer"):
            system += _convert_content(message.get("content"))
            continue
        if role not in ("user", "assistant") or message.get("tool_calls"):
            what = "with tool calls" if message.get("tool_calls") else f"of role {role!r:.40}"
            raise GradingFailure(
                ErrorKind.UNSUPPORTED, f"a message {what} cannot be sent to Anthropic"
            )
        if blocks := _convert_content(message.get("content")):
            turns.append({"role": role, "content": blocks})
    if system and not any("cache_control" in block for block in system):
        system[-1] = {**system[-1], "cache_control": _CACHE_CONTROL}
    return system, turns


def _convert_content(content: object) -> ContentBlocks:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list | tuple):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, "content must be text, null or a list of content parts"
        )
    return [block for part in content if (block := _convert_part(part)) is not None]


def _convert_part(part: object) -> Metadata | None:
    if not isinstance(part, Mapping):
        raise GradingFailure(ErrorKind.INVALID_INPUT, "a content part must be a mapping")
    kind = part.get("type")
    if kind == "text":
        return dict(part) if part.get("text") else None
    if kind == "image_url":
        return {"type": "image", "source": _image_source(part.get("image_url"))}
    if kind in _NATIVE_TYPES:
        return dict(part)
    raise GradingFailure(
        ErrorKind.UNSUPPORTED, f"a content part of type {kind!r:.40} cannot be sent to Anthropic"
    )


def _image_source(image: object) -> dict[str, str]:
    url = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(url, str):
        raise GradingFailure(ErrorKind.INVALID_INPUT, "an image part has no URL")
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    head, separator, data = url.partition(";base64,")
    if not separator or not head.startswith("data:image/"):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, "an image must be a web address or a base64 data URL"
        )
    return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}


DEFAULT_MAX_TOKENS = 1024
"""The API insists on a limit; this one stands where the sampling has none."""

_VERSION = "2023-06-01"
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_RENAMED = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"}
_UNSENT = frozenset({"seed", "top_logprobs", "n", "stream"})


class _Block(msgspec.Struct):
    type: object = None
    text: object = None
    thinking: object = None


class _Message(ReplyBody):
    content: list[_Block] | None = None
    stop_reason: object = None


_BOUNDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)
_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions"})


def _without_bounds(schema: object) -> object:
    """``schema`` without the keywords that the API answers with 400, as its own SDK sends it.

    ``minItems`` of 0 or 1 stays. What a reply says is checked when it is read.
    """
    if isinstance(schema, list | tuple):
        return [_without_bounds(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: Metadata = {}
    for key, part in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(part, Mapping):
            kept[key] = {name: _without_bounds(one) for name, one in part.items()}
        elif key in ("enum", "const", "default"):
            kept[key] = part
        elif key not in _BOUNDS or (key == "minItems" and part in (0, 1)):
            kept[key] = _without_bounds(part)
    return kept


class AnthropicWire:
    """Stateless. ``key`` goes into ``x-api-key``; ``features`` as in :mod:`adjudge.judges.base`.

    System messages are lifted out and marked for the prompt cache (``cache_control``); images are
    translated. ``max_tokens`` is 1024 unless the sampling says otherwise,
    ``stop`` and ``max_completion_tokens`` get their names here, ``seed`` does not exist here and is
    left out. A schema goes out as ``output_config.format``, without bounds. The API has no
    log-probabilities and no choice lists: choices are only checked, and ``Reply.ignored`` says so.

    ``Usage.input_tokens`` counts all input; the API's own number leaves out what came from or went
    into the cache.
    """

    def __init__(self, key: str | None = None, *, features: frozenset[str] | None = None) -> None:
        self._features = PRESETS["anthropic"].features if features is None else features
        self._headers = {**build_headers(None), "anthropic-version": _VERSION}
        if key:
            self._headers["x-api-key"] = key

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST for ``call``; ``GradingFailure(invalid_input)`` for what cannot be sent."""
        body: Metadata = {"model": call.model, "max_tokens": DEFAULT_MAX_TOKENS}
        for name, value in call.sampling.items():
            if name not in _UNSENT:
                body[_RENAMED.get(name, name)] = value
        if isinstance(stop := body.get("stop_sequences"), str):
            body["stop_sequences"] = [stop]
        system, turns = convert_messages(call.messages)
        if system:
            body["system"] = system
        body["messages"] = turns
        if call.schema is not None and "schema" in self._features:
            form = {"type": "json_schema", "schema": _without_bounds(call.schema)}
            given = body.get("output_config")
            own = given if isinstance(given, Mapping) else {}
            body["output_config"] = {**own, "format": form}
        return HttpRequest(path="/v1/messages", headers=self._headers, body=encode_body(body))

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        """The reply in ``response``, or the ``GradingFailure`` that it stands for."""
        if not 200 <= response.status < 300:
            raise response_failure(response)
        if response.cut:
            raise cut_failure(response)
        message = decode_body(response, response.body, _Message, "message")
        if message.content is None:
            raise malformed_failure(response, "its message has no content")
        if message.stop_reason == "refusal":
            raise refused_failure(response, "the model refused")
        return _build_reply(call, message)


def _build_reply(call: ChatCall, message: _Message) -> Reply:
    blocks = message.content or ()
    text = "".join(b.text for b in blocks if b.type == "text" and isinstance(b.text, str))
    thought = "".join(
        b.thinking for b in blocks if b.type == "thinking" and isinstance(b.thinking, str)
    )
    if text.lstrip().startswith(THINK_OPEN):
        text, thought = part_thinking(text, thought)
    stop = message.stop_reason if isinstance(message.stop_reason, str) else None
    finish = _FINISH.get(stop, stop) if stop is not None else None
    usage = _parse_usage(message.usage)
    return Reply(
        text=text,
        reasoning=thought,
        finish_reason=finish,
        usage=usage,
        model=message.model if isinstance(message.model, str) else None,
        ignored=find_ignored_features(call, text, finish, None, usage),
    )


def _parse_usage(raw: object) -> Usage | None:
    counts = raw if isinstance(raw, dict) else {}
    cached, written = (
        parse_token_count(counts.get(f"cache_{done}_input_tokens")) or 0
        for done in ("read", "creation")
    )
    return parse_usage(counts, "input_tokens", "output_tokens", cached, apart=cached + written)
