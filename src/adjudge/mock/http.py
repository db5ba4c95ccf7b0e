"""Just enough HTTP/1.1, and what a chat request asks for.

Requests out of bytes, response heads and chunks into bytes; a request's JSON body, whichever
provider's it is, as the few things that matter here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from adjudge.messages import content_text
from adjudge.mock.stated_forms import find_stated_choices, find_stated_form

MAX_HEAD_SIZE = 64 * 1024
MAX_BODY_SIZE = 64 * 1024 * 1024
CONTINUE_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}


class BadRequest(Exception):
    """Bytes that are no request this server takes; ``status`` is the answer before closing."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """A request's line and headers; ``size`` is the body's bytes, ``None`` for a chunked one.

    ``text`` as sent, without the blank line; ``lower`` the same in lower case.
    """

    method: bytes
    target: bytes
    text: bytes
    lower: bytes
    size: int | None
    keep_alive: bool
    expects_continue: bool

    def header(self, name: bytes) -> bytes | None:
        """The value of the header ``name`` (given in lower case), or ``None``."""
        return _header(self.text, self.lower, name)


class HttpRequestMessage(msgspec.Struct, gc=False):
    """One whole request."""

    head: RequestHead
    body: bytes


class RequestParser:
    """Bytes as they arrive, cut into requests; pipelined ones come out one by one.

    Linear in what arrives: parts are joined only when what is needed next is there.
    """

    def __init__(self) -> None:
        self.buffered = 0
        """Bytes held that belong to no request handed out yet."""
        self.wants_continue = False
        self._parts: list[bytes] = []
        self._at = 0
        self._need = 1
        self._chunked: _ChunkedBody | None = None

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        self._parts.append(data)
        self.buffered += len(data)

    def next(self) -> HttpRequestMessage | None:
        """The next whole request, or ``None`` when more bytes are needed.

        Raises :class:`BadRequest`; nothing sensible can follow it on this connection.
        """
        if self.buffered < self._need:
            return None
        if len(self._parts) > 1:
            self._parts[0] = self._parts[0][self._at :]
            self._parts = [b"".join(self._parts)]
            self._at = 0
        data = self._parts[0]
        if self._chunked is not None:
            return self._next_chunked(self._chunked, data)
        at = self._at
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            self._wait_for_head(len(data) - at)
            return None
        head = read_head(data[at:end])
        if head.size is None:
            return self._start_chunked(data, head, end + 4)
        stop = end + 4 + head.size
        left = len(data) - stop
        if left < 0:
            self.wants_continue = head.expects_continue
            self._need = stop - at
            return None
        self.buffered = left
        self._need = 1
        if left:
            self._at = stop
        else:
            self._parts.clear()
            self._at = 0
        return HttpRequestMessage(head, data[end + 4 : stop])

    def _wait_for_head(self, size: int) -> None:
        if size > MAX_HEAD_SIZE:
            raise BadRequest(431, "the header is too long")
        self._need = size + 1

    def _start_chunked(
        self, data: bytes, head: RequestHead, start: int
    ) -> HttpRequestMessage | None:
        self.wants_continue = head.expects_continue and len(data) == start
        self._chunked = _ChunkedBody(head)
        self._drop(data, start)
        return self._next_chunked(self._chunked, self._parts[0])

    def _next_chunked(self, chunked: _ChunkedBody, data: bytes) -> HttpRequestMessage | None:
        used, need = chunked.read(data)
        self._drop(data, used)
        if need:
            self._need = need
            return None
        self._chunked = None
        self._need = 1
        return HttpRequestMessage(chunked.head, b"".join(chunked.pieces))

    def _drop(self, data: bytes, stop: int) -> None:
        self._parts = [data[stop:]]
        self.buffered = len(data) - stop
        self._at = 0


class _ChunkedBody:
    """A chunked body being read."""

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.pieces: list[bytes] = []
        self._size = 0

    def read(self, data: bytes) -> tuple[int, int]:
        """Bytes used up, and how many must be there to go on (0: the body is whole)."""
        at = 0
        while True:
            line = data.find(b"\r\n", at)
            if line < 0:
                if len(data) - at > MAX_HEAD_SIZE:
                    raise BadRequest(400, "a chunk size line is too long")
                return at, len(data) - at + 1
            size = self._chunk_size(data[at:line])
            if size == 0:
                return self._trailer(data, at, line)
            stop = line + 2 + size
            if len(data) < stop + 2:
                return at, stop + 2 - at
            if data[stop : stop + 2] != b"\r\n":
                raise BadRequest(400, "a chunk is longer than it says")
            self.pieces.append(data[line + 2 : stop])
            self._size += size
            at = stop + 2

    def _chunk_size(self, line: bytes) -> int:
        text = line.partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(text):
            raise BadRequest(400, "a chunk size is not a number")
        size = int(text, 16)
        if self._size + size > MAX_BODY_SIZE:
            raise BadRequest(413, "the body is too long")
        return size

    @staticmethod
    def _trailer(data: bytes, at: int, line: int) -> tuple[int, int]:
        # The blank line that ends the trailers may follow the last size line at once.
        end = data.find(b"\r\n\r\n", line)
        if end < 0:
            if len(data) - at > MAX_HEAD_SIZE:
                raise BadRequest(431, "the trailer is too long")
            return at, len(data) - at + 1
        return end + 4, 0


@lru_cache(maxsize=1024)
def read_head(text: bytes) -> RequestHead:
    """A head without its blank line; raises :class:`BadRequest`. A client's hardly ever change."""
    lower = text.lower()
    parts = text.partition(b"\r\n")[0].split(b" ")
    if len(parts) != 3 or parts[2] not in {b"HTTP/1.1", b"HTTP/1.0"}:
        raise BadRequest(400, "this is not an HTTP/1.1 request")
    connection = (_header(text, lower, b"connection") or b"").lower()
    newer = parts[2] == b"HTTP/1.1"
    return RequestHead(
        method=parts[0],
        target=parts[1],
        text=text,
        lower=lower,
        size=_body_size(text, lower),
        keep_alive=b"close" not in connection if newer else b"keep-alive" in connection,
        expects_continue=b"\r\nexpect: 100-continue" in lower,
    )


def _header(text: bytes, lower: bytes, name: bytes) -> bytes | None:
    at = lower.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = text.find(b"\r\n", start)
    return text[start : end if end >= 0 else len(text)].strip()


def _body_size(text: bytes, lower: bytes) -> int | None:
    coding = _header(text, lower, b"transfer-encoding")
    lengths = lower.count(b"\r\ncontent-length:")
    if coding is not None:
        if coding.lower() != b"chunked" or lengths:
            raise BadRequest(400, "this transfer-encoding is not supported")
        return None
    if not lengths:
        return 0
    length = _header(text, lower, b"content-length") or b""
    if lengths > 1 or not length.isdigit() or len(length) > 12:
        raise BadRequest(400, "the content-length is not one number")
    if int(length) > MAX_BODY_SIZE:
        raise BadRequest(413, "the body is too long")
    return int(length)


def format_response(
    status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b""
) -> bytes:
    """A whole response; ``extra`` are header lines that each end with a line break."""
    reason = _REASONS.get(status, "Unknown").encode()
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status, reason, content_type, extra, len(body), body,
    )  # fmt: skip


def format_stream_head(extra: bytes = b"") -> bytes:
    """The head of a chunked stream of server-sent events."""
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
        b"%btransfer-encoding: chunked\r\n\r\n" % extra
    )


def format_chunk(data: bytes) -> bytes:
    """``data`` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


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
    system: Any = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


class ChatRequest(msgspec.Struct, kw_only=True, gc=False):
    """What a chat request asks for.

    ``logprobs`` is the number of alternatives wanted per token, ``None`` when none are wanted;
    ``tool`` the name of the one tool that an Anthropic request insists on, whose input schema is
    then ``schema``; ``size`` the bytes of the body. ``block``: where neither has a form, the block
    that the prompt asks for and the example in it.
    """

    messages: list[msgspec.Raw]
    size: int
    stream: bool = False
    include_usage: bool = False
    logprobs: int | None = None
    schema: dict[str, Any] | None = None
    choices: list[str] | None = None
    tool: str | None = None
    block: tuple[str, str] | None = None


_openai_decoder = msgspec.json.Decoder(_OpenAIRequest)
_anthropic_decoder = msgspec.json.Decoder(_AnthropicRequest)


def read_chat_request(api: Api, body: bytes) -> ChatRequest:
    """The body of a chat request; raises :class:`BadRequest` (400) for one that is none."""
    try:
        request = _read_openai(body) if api == "openai" else _read_anthropic(body)
        if request.schema is None and request.choices is None:
            if b"verdict-" in body:
                request.block = find_stated_form(last_text(request.messages))
            if request.logprobs is not None:
                texts = [last_text(request.messages, role) for role in ("system", "user")]
                request.choices = find_stated_choices("\n".join(texts))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(400, f"the body is not a chat request: {str(error)[:200]}") from None
    return request


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
    if sent.system is not None:
        system = msgspec.json.encode({"role": "system", "content": sent.system})
        request.messages = [msgspec.Raw(system), *sent.messages]
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


def last_text(messages: list[msgspec.Raw], role: str = "user") -> str:
    """The text of the last message of ``role``, its text parts joined; empty without one."""
    for raw in reversed(messages):
        try:
            message = _message_decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadRequest(400, f"not a chat message: {str(error)[:200]}") from None
        if message.role == role:
            return content_text(message.content)
    return ""
