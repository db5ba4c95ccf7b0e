"""The ``/chat/completions`` format: what is sent, and to which field each wish goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.presets import PRESETS, Preset
from adjudge.judges.wire_errors import failure_of
from adjudge.judges.wire_openai_reply import read_reply
from adjudge.judges.wire_text import encode_body

__all__ = ["OpenAIWire"]

_KEPT_SCHEMAS = 64


class OpenAIWire:
    """Stateless: what to send is fixed at construction, the rest is in the call.

    ``key`` goes into the ``Authorization`` header; ``None`` sends none. ``stream`` asks for a
    stream, which some models insist on; either way a reply is read as what it is, a JSON object or
    events. ``features`` as in :mod:`adjudge.judges.presets`.

    With ``seed`` in the sampling, draw *k* is sent ``seed + k``: with one seed, k votes would be
    one vote.
    """

    def __init__(
        self,
        preset: Preset = PRESETS["openai"],
        key: str | None = None,
        *,
        features: frozenset[str] | None = None,
        stream: bool = False,
    ) -> None:
        self._features = preset.features if features is None else features
        self._choices_field = preset.choices_field if "choices" in self._features else None
        self._top = preset.max_top_logprobs
        self._stream = stream
        self._formats: dict[bytes, msgspec.Raw] = {}
        self._headers = {"content-type": "application/json", "user-agent": "adjudge"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST for ``call``; ``GradingFailure(invalid_input)`` for what cannot be sent."""
        body: dict[str, Any] = {**call.sampling, "model": call.model, "messages": call.messages}
        if call.draw and type(seed := body.get("seed")) is int:
            body["seed"] = seed + call.draw
        if call.schema is not None and "schema" in self._features:
            body["response_format"] = self._response_format(call.schema)
        if call.choices is not None and self._choices_field is not None:
            body[self._choices_field] = _choice_list(self._choices_field, call.choices)
        if call.logprobs and "logprobs" in self._features:
            body["logprobs"] = True
            body.setdefault("top_logprobs", self._top)
        if self._stream:
            body["stream"] = True
            if "stream_usage" in self._features:
                body["stream_options"] = {"include_usage": True}
        return HttpRequest(
            path="/chat/completions",
            headers=self._headers,
            body=encode_body(body),
            stream=self._stream,
        )

    def _response_format(self, schema: Mapping[str, Any]) -> msgspec.Raw:
        """The encoded form of a schema, kept for the next call: judges ask with few schemas."""
        encoded = encode_body(schema)
        form = self._formats.get(encoded)
        if form is None:
            form = msgspec.Raw(encode_body(_response_format(schema)))
            if len(self._formats) < _KEPT_SCHEMAS:
                self._formats[encoded] = form
        return form

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        """The reply in ``response``, or the ``GradingFailure`` that it stands for."""
        if not 200 <= response.status < 300:
            raise failure_of(response)
        return read_reply(call, response, streamed=self._stream)


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    name = schema.get("title")
    if not (isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= 64):
        name = "verdict"
    # Strict mode is answered with 400 unless every object in the schema is closed.
    form = {"name": name, "schema": schema, "strict": _closed(schema)}
    return {"type": "json_schema", "json_schema": form}


def _closed(schema: Any) -> bool:
    """Whether every object in ``schema`` forbids further keys and requires all of its own."""
    if isinstance(schema, list | tuple):
        return all(_closed(part) for part in schema)
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or properties is not None:
        if schema.get("additionalProperties") is not False:
            return False
        if set(properties or ()) - set(schema.get("required") or ()):
            return False
    return all(_closed(part) for part in schema.values())


def _choice_list(field: str, choices: Sequence[str]) -> Any:
    if field == "structured_outputs":
        return {"choice": list(choices)}
    return "(" + "|".join("".join(map(_literal, choice)) for choice in choices) + ")"


def _literal(character: str) -> str:
    # Not re.escape: it escapes spaces and dashes too, which other regular expressions refuse.
    return f"\\{character}" if character in r"\.^$*+?{}[]|()" else character
