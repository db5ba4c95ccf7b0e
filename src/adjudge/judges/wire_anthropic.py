"""The ``/v1/messages`` format of Anthropic, from and to OpenAI's chat format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.anthropic_messages import system_and_turns, tools
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.presets import PRESETS
from adjudge.judges.wire_errors import error_in_success, failure_of, malformed
from adjudge.judges.wire_text import count, encode_body, not_honoured, split_thinking
from adjudge.types import Usage

__all__ = ["DEFAULT_MAX_TOKENS", "AnthropicWire"]

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
    type: Any = None
    text: Any = None
    thinking: Any = None


class _Message(msgspec.Struct):
    content: list[_Block] | None = None
    stop_reason: Any = None
    model: Any = None
    usage: Any = None
    error: Any = None


_message = msgspec.json.Decoder(_Message)


class AnthropicWire:
    """Stateless. ``key`` goes into ``x-api-key``; ``features`` as in :mod:`adjudge.judges.presets`.

    System messages are lifted out and marked for the prompt cache (``cache_control``); tools,
    images and tool calls are translated. ``max_tokens`` is 1024 unless the sampling says otherwise,
    ``stop`` and ``max_completion_tokens`` get their names here, ``seed`` does not exist here and is
    left out. A schema goes out as ``output_config.format``. The API has no log-probabilities and
    no choice lists: choices are only checked, and ``Reply.ignored`` says so.

    ``Usage.input_tokens`` counts all input; the API's own number leaves out what came from or went
    into the cache.
    """

    def __init__(self, key: str | None = None, *, features: frozenset[str] | None = None) -> None:
        self._features = PRESETS["anthropic"].features if features is None else features
        self._headers = {
            "content-type": "application/json",
            "user-agent": "adjudge",
            "anthropic-version": _VERSION,
        }
        if key:
            self._headers["x-api-key"] = key

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST for ``call``; ``GradingFailure(invalid_input)`` for what cannot be sent."""
        body: dict[str, Any] = {"model": call.model, "max_tokens": DEFAULT_MAX_TOKENS}
        for name, value in call.sampling.items():
            if name not in _UNSENT:
                body[_RENAMED.get(name, name)] = value
        if isinstance(stop := body.get("stop_sequences"), str):
            body["stop_sequences"] = [stop]
        if "tools" in body:
            body["tools"] = tools(body["tools"])
        system, turns = system_and_turns(call.messages)
        if system:
            body["system"] = system
        body["messages"] = turns
        if call.schema is not None and "schema" in self._features:
            form = {"type": "json_schema", "schema": call.schema}
            body["output_config"] = {**_mapping(body.get("output_config")), "format": form}
        return HttpRequest(path="/v1/messages", headers=self._headers, body=encode_body(body))

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        """The reply in ``response``, or the ``GradingFailure`` that it stands for."""
        if not 200 <= response.status < 300:
            raise failure_of(response)
        if response.cut:
            raise GradingFailure(
                ErrorKind.CONNECTION,
                "the connection ended in the middle of the response",
                {"status": response.status, "headers": {}},
            )
        message = _decode(response)
        if message.stop_reason == "refusal":
            raise GradingFailure(
                ErrorKind.REFUSED, "the model refused", {"status": response.status, "headers": {}}
            )
        return _reply(call, message)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _decode(response: HttpResponse) -> _Message:
    try:
        message = _message.decode(response.body)
    except msgspec.ValidationError:
        raise malformed(response, "its body is no message") from None
    except (ValueError, RecursionError):
        raise malformed(response, "its body is not complete JSON") from None
    if message.error:
        raise error_in_success(response, {"error": message.error})
    if message.content is None:
        raise malformed(response, "its message has no content")
    return message


def _reply(call: ChatCall, message: _Message) -> Reply:
    blocks = message.content or ()
    text = "".join(b.text for b in blocks if b.type == "text" and isinstance(b.text, str))
    thought = "".join(
        b.thinking for b in blocks if b.type == "thinking" and isinstance(b.thinking, str)
    )
    if text.lstrip().startswith("<think>"):
        text, inline = split_thinking(text)
        thought = f"{thought}\n{inline}" if thought else inline
    stop = message.stop_reason if isinstance(message.stop_reason, str) else None
    finish = _FINISH.get(stop, stop) if stop is not None else None
    usage = _usage(message.usage)
    return Reply(
        text=text,
        reasoning=thought,
        finish_reason=finish,
        usage=usage,
        model=message.model if isinstance(message.model, str) else None,
        ignored=not_honoured(call, text, finish, None, usage),
    )


def _usage(raw: Any) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    fresh, received = count(raw.get("input_tokens")), count(raw.get("output_tokens"))
    if fresh is None and received is None:
        return None
    cached = count(raw.get("cache_read_input_tokens")) or 0
    written = count(raw.get("cache_creation_input_tokens")) or 0
    return Usage(
        input_tokens=(fresh or 0) + cached + written,
        output_tokens=received or 0,
        cached_tokens=cached,
    )
