"""A request's JSON body, whichever provider's it is, as the few things that matter here."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from adjudge.mock.http import BadRequest

__all__ = ["Api", "Asked", "last_user_text", "read_request"]

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


class Asked(msgspec.Struct, kw_only=True, gc=False):
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


_openai = msgspec.json.Decoder(_OpenAIRequest)
_anthropic = msgspec.json.Decoder(_AnthropicRequest)


def read_request(api: Api, body: bytes) -> Asked:
    """The body of a chat request; raises :class:`BadRequest` (400) for one that is none."""
    try:
        return _read_openai(body) if api == "openai" else _read_anthropic(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(400, f"the body is not a chat request: {str(error)[:200]}") from None


def _read_openai(body: bytes) -> Asked:
    sent = _openai.decode(body)
    asked = Asked(messages=sent.messages, size=len(body), stream=bool(sent.stream))
    if sent.stream_options is not None:
        asked.include_usage = bool(sent.stream_options.include_usage)
    if sent.logprobs:
        asked.logprobs = min(max(sent.top_logprobs or 0, 0), 20)
    if sent.response_format is not None:
        asked.schema = _schema_in(sent.response_format.get("json_schema"))
    if sent.structured_outputs is not None:
        asked.choices = _choices_in(sent.structured_outputs.get("choice"))
        if asked.schema is None:
            asked.schema = _table(sent.structured_outputs.get("json"))
    if sent.regex is not None and asked.choices is None:
        asked.choices = _alternatives(sent.regex)
    return asked


def _read_anthropic(body: bytes) -> Asked:
    sent = _anthropic.decode(body)
    asked = Asked(messages=sent.messages, size=len(body), stream=bool(sent.stream))
    form = sent.output_format or (sent.output_config or {}).get("format")
    asked.schema = _schema_in(form)
    if sent.tool_choice is not None and sent.tool_choice.get("type") == "tool":
        name = sent.tool_choice.get("name")
        for tool in sent.tools or []:
            if tool.get("name") == name:
                asked.tool = str(name)
                asked.schema = _table(tool.get("input_schema")) or {}
    return asked


def _table(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _schema_in(value: Any) -> dict[str, Any] | None:
    return _table(value.get("schema")) if isinstance(value, dict) else None


def _choices_in(value: Any) -> list[str] | None:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value
    return None


def _alternatives(regex: str) -> list[str] | None:
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


_message = msgspec.json.Decoder(_Message)


def last_user_text(messages: list[msgspec.Raw]) -> str:
    """The text of the last user message, its text parts joined; empty when there is none."""
    for raw in reversed(messages):
        try:
            message = _message.decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadRequest(400, f"not a chat message: {str(error)[:200]}") from None
        if message.role == "user":
            return _text_of(message.content)
    return ""


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(part for part in parts if isinstance(part, str))
