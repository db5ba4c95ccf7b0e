"""What a chat request asks for, whichever provider's it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from adjudge.errors import GradingFailure
from adjudge.messages import content_text
from adjudge.mock.forms import Schema, find_stated_choices, find_stated_form, read_schema

Api = Literal["openai", "anthropic", "classify"]
"""OpenAI's chat, Anthropic's messages, or a scalar judge of vLLM."""


class BadRequest(Exception):
    """A body that is no chat request; the mock answers it with status 400."""


class _Message(msgspec.Struct):
    role: str = ""
    content: Any = None


class _Format(msgspec.Struct):
    schema: dict[str, Any] | None = None
    json_schema: _Format | None = None  # OpenAI's is one level further in


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Structure(msgspec.Struct):
    choice: list[str] | None = None
    json: dict[str, Any] | None = None


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None


class _Body(msgspec.Struct):
    """A chat request of either provider."""

    messages: list[_Message]
    stream: bool | None = None
    # OpenAI's
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: _Format | None = None
    structured_outputs: _Structure | None = None
    regex: str | None = None
    # Anthropic's
    system: Any = None
    tool_choice: dict[str, Any] | None = None
    output_config: _OutputConfig | None = None


class _AnthropicBody(_Body, kw_only=True):
    max_tokens: int


_decoders: dict[Api, msgspec.json.Decoder[Any]] = {
    "openai": msgspec.json.Decoder(_Body),
    "anthropic": msgspec.json.Decoder(_AnthropicBody),
    "classify": msgspec.json.Decoder(_Body),
}


@dataclass(slots=True)
class ChatRequest:
    """What a chat request asks for.

    ``system``, ``user`` and ``assistant``: the last text of each role. ``size``: the bytes of the
    body. ``logprobs``: the number of alternatives wanted per token. ``block``: the name of the
    block that a prompt asks for, where the prompt alone has the form.
    """

    system: str
    user: str
    assistant: str
    size: int
    stream: bool = False
    include_usage: bool = False
    logprobs: int | None = None
    schema: Schema | None = None
    choices: list[str] | None = None
    block: str = ""


def read_chat_request(api: Api, body: bytes) -> ChatRequest:
    """The body of a chat request; raises :class:`BadRequest`."""
    try:
        return _read(_decoders[api].decode(body), len(body))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, GradingFailure) as error:
        raise BadRequest(f"the body is not a chat request: {str(error)[:200]}") from None


def _read(sent: _Body, size: int) -> ChatRequest:
    texts = dict.fromkeys(("system", "user", "assistant"), "")
    texts |= {one.role: content_text(one.content) for one in sent.messages if one.role in texts}
    if sent.system is not None:
        texts["system"] = content_text(sent.system)
    request = ChatRequest(
        texts["system"], texts["user"], texts["assistant"], size, stream=bool(sent.stream)
    )
    if sent.stream_options is not None:
        request.include_usage = bool(sent.stream_options.include_usage)
    if sent.logprobs:
        request.logprobs = min(max(sent.top_logprobs or 0, 0), 20)
    schema = None
    if sent.structured_outputs is not None:
        request.choices = sent.structured_outputs.choice
        schema = sent.structured_outputs.json
    elif sent.regex is not None:
        request.choices = _regex_alternatives(sent.regex)
    form = sent.response_format or (sent.output_config and sent.output_config.format)
    if form:
        schema = (form.json_schema or form).schema
    if (sent.tool_choice or {}).get("type") in {"tool", "any"}:
        raise BadRequest("tool_choice: the mock calls no tools")
    if schema is not None:
        request.schema = read_schema(schema)
    elif request.choices is None:
        request.block, request.schema = find_stated_form(request.user, request.system)
        if request.logprobs is not None:
            request.choices = find_stated_choices(f"{request.system}\n{request.user}")
    return request


def _regex_alternatives(regex: str) -> list[str] | None:
    """The texts of ``(one|two)``, SGLang's way to a choice list; ``None`` for any other regex."""
    if not re.fullmatch(r"\((\\.|[^\\|.^$*+?{}\[\]()]|\|)*\)", regex, re.DOTALL):
        return None
    parts = re.findall(r"(?:\\.|[^|\\])+", regex[1:-1], re.DOTALL)
    return [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in parts]
