"""The wire of the providers: what a chat request asks for, and the bodies of the replies.

OpenAI: ``chat.completion`` and ``chat.completion.chunk`` (with ``reasoning_content``, as DeepSeek,
DashScope and vLLM have it). Anthropic: ``message``, whole. Tokens and their log-probabilities are
made up; input tokens are a quarter of the request's bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
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
    max_tokens: int | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: _OutputConfig | None = None


_decoder = msgspec.json.Decoder(_Body)


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
        sent = _decoder.decode(body)
        if api == "anthropic" and (sent.max_tokens is None or sent.stream):
            raise BadRequest("max_tokens must be set, and stream must not: replies are sent whole")
        return _read(sent, len(body))
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


Finish = Literal["stop", "length", "content_filter", "refusal"]


class MockAnswer(msgspec.Struct, frozen=True):
    """A reply before it has a wire format."""

    text: str
    reasoning: str = ""
    finish: Finish = "stop"


MODEL = "mock"
"""The model's name in replies."""
_TOKEN = re.compile(r"\d+|[^\W\d]+|\s+|[^\w\s]")
_CHOSEN_PROBABILITY = 0.75
_REFUSAL_TEXT = "I'm sorry, but I can't help with that."

split_tokens = _TOKEN.findall
"""Words, numbers, marks and runs of white space, which join to the text again."""

_encode = msgspec.json.Encoder().encode
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatReply:
    """An answer to a request: which number, since when.

    A wrong id differs in every part of a stream.
    """

    answer: MockAnswer
    request: ChatRequest
    number: int
    created: int
    wrong_id: bool = False

    def body(self, api: Api) -> bytes:
        """The whole response body."""
        return _encode(self._message() if api == "anthropic" else self._completion())

    def events(self) -> list[bytes]:
        """OpenAI's response as server-sent events, the end mark included."""
        return [format_event(_encode(one)) for one in self._chunks()] + [format_event(b"[DONE]")]

    def _identity(self, prefix: str, part: int = 0) -> str:
        return f"{prefix}wrong-{part}" if self.wrong_id else f"{prefix}mock-{self.number}"

    def _tokens(self) -> list[str]:
        """The tokens of the text; a choice is one token, as where decoding is masked to choices."""
        text = self.answer.text
        return [text] if text in (self.request.choices or ()) else split_tokens(text)

    def _counts(self) -> tuple[int, int]:
        """Tokens in and out."""
        out = len(self._tokens()) + len(split_tokens(self.answer.reasoning))
        return -(-self.request.size // 4), out

    # --- OpenAI

    def _completion(self) -> Json:
        answer, refused = self.answer, self.answer.finish == "refusal"
        message: Json = {
            "role": "assistant",
            "content": None if refused else answer.text,
            "refusal": (answer.text or _REFUSAL_TEXT) if refused else None,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        logprobs = None if refused else self._logprobs(self._tokens())
        choice = {"message": message, "logprobs": logprobs, "finish_reason": self._finish()}
        return self._envelope("chat.completion", choice) | {"usage": self._usage()}

    def _chunks(self) -> list[Json]:
        answer = self.answer
        choices: list[Json] = [{"delta": {"role": "assistant", "content": ""}}]
        choices += [{"delta": {"reasoning_content": one}} for one in split_tokens(answer.reasoning)]
        if answer.finish == "refusal":
            pieces = split_tokens(answer.text or _REFUSAL_TEXT)
            choices += [{"delta": {"refusal": piece}} for piece in pieces]
        else:
            said = self._tokens()
            choices += [
                {"delta": {"content": one}, "logprobs": self._logprobs([one])} for one in said
            ]
        choices.append({"delta": {}, "finish_reason": self._finish()})
        kind, empty = "chat.completion.chunk", {"logprobs": None, "finish_reason": None}
        chunks = [self._envelope(kind, empty | one, n) for n, one in enumerate(choices)]
        if self.request.include_usage:
            last = self._envelope(kind, {}, len(chunks))
            chunks.append(last | {"choices": [], "usage": self._usage()})
        return chunks

    def _envelope(self, kind: str, choice: Json, part: int = 0) -> Json:
        return {
            "id": self._identity("chatcmpl-", part),
            "object": kind,
            "created": self.created,
            "model": MODEL,
            "choices": [{"index": 0} | choice],
        }

    def _finish(self) -> str:
        return "stop" if self.answer.finish == "refusal" else self.answer.finish

    def _usage(self) -> Json:
        sent, got = self._counts()
        return {
            "prompt_tokens": sent,
            "completion_tokens": got,
            "total_tokens": sent + got,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def _logprobs(self, pieces: Sequence[str]) -> Json | None:
        shown = self.request.logprobs
        if shown is None:
            return None
        items = []
        for piece in pieces:
            likely = _token_probabilities(piece, self.request.choices or ())
            top = [_logprob(token, p) for token, p in list(likely.items())[:shown]]
            items.append(_logprob(piece, likely[piece]) | {"top_logprobs": top})
        return {"content": items, "refusal": None}

    # --- Anthropic

    def _message(self) -> Json:
        answer, (sent, got) = self.answer, self._counts()
        blocks = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "mock"})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        ends = {"stop": "end_turn", "length": "max_tokens"}
        usage = {"input_tokens": sent, "output_tokens": got}
        return {
            "id": self._identity("msg_"),
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": blocks,
            "stop_reason": ends.get(answer.finish, "refusal"),
            "stop_sequence": None,
            "usage": usage | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
        }


def _logprob(token: str, probability: float) -> Json:
    return {"token": token, "logprob": math.log(probability)}


def _token_probabilities(piece: str, choices: Sequence[str]) -> dict[str, float]:
    """Made-up probabilities, the token's own first.

    Over choices they sum to 1; another token has no alternatives.
    """
    if piece in choices:
        others = [choice for choice in dict.fromkeys(choices) if choice != piece]
        own = _CHOSEN_PROBABILITY if others else 1.0
        return {piece: own} | {other: (1 - own) / len(others) for other in others}
    return {piece: 0.95}


_ERRORS = {
    401: ("invalid_request_error", "invalid_api_key", "authentication_error"),
    403: ("permission_error", None, "permission_error"),
    404: ("invalid_request_error", "model_not_found", "not_found_error"),
    429: ("requests", "rate_limit_exceeded", "rate_limit_error"),
    504: ("server_error", None, "timeout_error"),
    529: ("server_error", None, "overloaded_error"),
}
"""OpenAI's type and code of an error, and Anthropic's type."""


def provider_error_body(api: Api, status: int, message: str, *, money: bool = False) -> bytes:
    """The provider's error object; ``money`` marks a 429 that waiting does not cure."""
    other = ("invalid_request_error", None, "invalid_request_error")
    kind, code, anthropic = _ERRORS.get(
        status, ("server_error", None, "api_error") if status >= 500 else other
    )
    if money:
        kind, code, anthropic = "insufficient_quota", "insufficient_quota", "billing_error"
    if api == "anthropic":
        return _encode({"type": "error", "error": {"type": anthropic, "message": message}})
    return _encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def format_event(data: bytes) -> bytes:
    """One event of a stream."""
    return b"data: %b\n\n" % data
