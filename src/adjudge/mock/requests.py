"""A request's JSON body, whichever provider's it is, as the few things that matter here."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from adjudge.messages import content_text
from adjudge.mock.http import BadRequest

Api = Literal["openai", "anthropic"]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _OpenAIRequest(msgspec.Struct):
    messages: list[msgspec.Raw]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    regex: str | None = None


class _AnthropicRequest(msgspec.Struct):
    messages: list[msgspec.Raw]
    max_tokens: int
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


class ChatRequest(msgspec.Struct, kw_only=True, gc=False):
    """What a chat request asks for.

    ``logprobs`` is the number of alternatives wanted per token, ``None`` when none are wanted;
    ``tool`` the name of the one tool that an Anthropic request insists on, whose input schema is
    then ``schema``; ``size`` the bytes of the body.
    """

    messages: list[msgspec.Raw]
    size: int
    stream: bool = False
    include_usage: bool = False
    logprobs: int | None = None
    schema: dict[str, Any] | None = None
    choices: list[str] | None = None
    tool: str | None = None

    @property
    def plain(self) -> bool:
        """Whether any text would do: no stream, form or probabilities are asked for."""
        return (
            not self.stream
            and self.logprobs is None
            and self.schema is None
            and self.choices is None
        )


_openai_decoder = msgspec.json.Decoder(_OpenAIRequest)
_anthropic_decoder = msgspec.json.Decoder(_AnthropicRequest)


def read_chat_request(api: Api, body: bytes) -> ChatRequest:
    """The body of a chat request; raises :class:`BadRequest` (400) for one that is none."""
    try:
        return _read_openai(body) if api == "openai" else _read_anthropic(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(400, f"the body is not a chat request: {str(error)[:200]}") from None


def _read_openai(body: bytes) -> ChatRequest:
    sent = _openai_decoder.decode(body)
    request = ChatRequest(messages=sent.messages, size=len(body), stream=bool(sent.stream))
    if sent.stream_options is not None:
        request.include_usage = bool(sent.stream_options.include_usage)
    if sent.logprobs:
        request.logprobs = min(max(sent.top_logprobs or 0, 0), 20)
    if sent.response_format is not None:
        request.schema = _find_schema(sent.response_format.get("json_schema"))
    if sent.structured_outputs is not None:
        request.choices = _find_choices(sent.structured_outputs.get("choice"))
        if request.schema is None:
            request.schema = _as_object(sent.structured_outputs.get("json"))
    if sent.regex is not None and request.choices is None:
        request.choices = _regex_alternatives(sent.regex)
    return request


def _read_anthropic(body: bytes) -> ChatRequest:
    sent = _anthropic_decoder.decode(body)
    request = ChatRequest(messages=sent.messages, size=len(body), stream=bool(sent.stream))
    form = sent.output_format or (sent.output_config or {}).get("format")
    request.schema = _find_schema(form)
    if sent.tool_choice is not None and sent.tool_choice.get("type") == "tool":
        name = sent.tool_choice.get("name")
        for tool in sent.tools or []:
            if tool.get("name") == name:
                request.tool = str(name)
                request.schema = _as_object(tool.get("input_schema")) or {}
    return request


def _as_object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _find_schema(value: Any) -> dict[str, Any] | None:
    return _as_object(value.get("schema")) if isinstance(value, dict) else None


def _find_choices(value: Any) -> list[str] | None:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value
    return None


def _regex_alternatives(regex: str) -> list[str] | None:
    """The texts of ``(one|two)``, SGLang's way to a choice list; ``None`` for any other regex."""
    if not (regex.startswith("(") and regex.endswith(")")):
        return None
    found, escaped = [""], False
    for character in regex[1:-1]:
        if escaped or character not in r"\|.^$*+?{}[]()":
            found[-1] += character
            escaped = False
        elif character == "|":
            found.append("")
        elif character == "\\":
            escaped = True
        else:
            return None
    return None if escaped else found


class _Message(msgspec.Struct):
    role: str = ""
    content: Any = None


_message_decoder = msgspec.json.Decoder(_Message)


def last_user_text(messages: list[msgspec.Raw]) -> str:
    """The text of the last user message, its text parts joined; empty when there is none."""
    for raw in reversed(messages):
        try:
            message = _message_decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadRequest(400, f"not a chat message: {str(error)[:200]}") from None
        if message.role == "user":
            return content_text(message.content)
    return ""
