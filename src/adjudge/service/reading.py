"""A request's bytes into requests that are safe to judge, or a refusal with its status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from adjudge.client.wire import JudgeRequest
from adjudge.errors import ErrorKind

__all__ = [
    "MAX_DEPTH",
    "Held",
    "Receive",
    "Refused",
    "check_request",
    "check_values",
    "content_length",
    "decode",
    "error_body",
    "read_body",
    "refusal",
]

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]

MAX_DEPTH = 64
"""How deep lists and objects may be nested in what a request brings along."""

MAX_PARTS = 10_000
"""How many messages, images or keys of ``metadata`` one sample may have."""

_VALUES_PER_CONTAINER = 10  # a list or object costs the loop ten times what a number does
_NO_STRUCTURE = bytes(set(range(256)) - set(b'",[{'))
_SLICE = 1 << 20
_CONTAINERS: frozenset[type] = frozenset({list, dict})
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_IMAGE_PARTS = ("image_url", "input_image", "image")
_NO_ADDRESSES = "images: must be base64 or data: URIs; addresses are never fetched"
_encode = msgspec.json.Encoder().encode


class Refused(Exception):
    """A request that is not taken: the HTTP status, a kind and what is wrong with it.

    ``retry_after`` in whole seconds where trying again helps. The message never quotes the request.
    """

    def __init__(
        self, status: int, kind: ErrorKind, message: str, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.retry_after = retry_after


def _invalid(status: int, message: str) -> Refused:
    return Refused(status, ErrorKind.INVALID_INPUT, message)


def error_body(kind: ErrorKind, message: str) -> bytes:
    """The body of every refusal."""
    return _encode({"error": {"kind": kind, "message": message}})


def content_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """What the header says; ``None`` when there is none."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


class Held:
    """The bytes of all bodies in memory, those that are still arriving too; at most ``most``."""

    __slots__ = ("bytes", "most")

    def __init__(self, most: int) -> None:
        self.bytes = 0
        self.most = most

    def add(self, size: int) -> None:
        """So much more; raises :class:`Refused` (429) when it is too much, and counts it anyway."""
        self.bytes += size
        if self.bytes > self.most:
            message = "too many large bodies at once"
            raise Refused(429, ErrorKind.RATE_LIMITED, message, retry_after=1)


async def read_body(
    headers: Sequence[tuple[bytes, bytes]], receive: Receive, limit: int, held: Held
) -> bytes:
    """The whole body, at most ``limit`` bytes; raises :class:`Refused` (413, 429).

    A length that is announced is believed when it is too large, and counted all the same. The
    body's size stays in ``held``, for the caller to take off; nothing stays of one that is refused.
    """
    if (content_length(headers) or 0) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    try:
        await _collect(parts, receive, limit, held)
    except BaseException:
        held.bytes -= sum(map(len, parts))
        raise
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _collect(parts: list[bytes], receive: Receive, limit: int, held: Held) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _invalid(400, "the client left before its request was complete")
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        held.add(len(part))
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return


def _too_large(limit: int) -> Refused:
    return _invalid(413, f"the body is longer than max_body_mb allows ({limit / 1e6:g} MB)")


async def check_values(body: bytes, most: int) -> None:
    """Refuse (413) a body of more than ``most`` values, or of which over a tenth hold others.

    Decoding and walking through them would keep the event loop from all other requests for
    seconds. What stands inside texts does not count. Nothing is decoded here: a body with few
    commas and brackets is let through by their number alone, and longer work pauses for others.
    """
    containers = most // _VALUES_PER_CONTAINER
    if len(body) <= 2 * containers or _within(body, most, containers):
        return
    bare = body
    if b"\\" in bare:
        bare = bare.replace(rb"\\", b"").replace(rb"\"", b"")
    bare = bare.translate(None, _NO_STRUCTURE)
    if bare.count(b'"') <= 4 * most:  # a text has two, and an object's value may have a key
        await asyncio.sleep(0)
        if _within(await _outside_texts(bare.replace(b'""', b"")), most, containers):
            return
    raise _invalid(
        413,
        f"the body has more values than max_values allows ({most}, of which {containers} may be "
        "lists and objects)",
    )


def _within(structure: bytes, most: int, containers: int) -> bool:
    """Whether so many commas and brackets hold few enough values; each value has one of them."""
    opened = structure.count(b"[") + structure.count(b"{")
    return opened <= containers and opened + structure.count(b",") < most


async def _outside_texts(marks: bytes) -> bytes:
    """Commas and brackets that do not stand between quotation marks."""
    outside, is_text = [], 0
    for start in range(0, len(marks), _SLICE):
        parts = marks[start : start + _SLICE].split(b'"')
        outside.append(b"".join(parts[is_text::2]))
        is_text ^= (len(parts) - 1) & 1
        await asyncio.sleep(0)
    return b"".join(outside)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as its type; raises :class:`Refused`: 400 when it is not JSON, 422 otherwise."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error) from None


def refusal(error: Exception) -> Refused:
    """What msgspec's complaint about a body means."""
    if isinstance(error, msgspec.ValidationError):
        return _invalid(422, str(error))
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, UnicodeDecodeError):
        return _invalid(400, "the body is not UTF-8")
    return _invalid(400, str(error))


def _too_deep() -> Refused:
    return _invalid(400, f"lists and objects are nested deeper than {MAX_DEPTH}")


def check_request(request: JudgeRequest, max_image: int) -> None:
    """Refuse what is nested too deep (400), images too large (413) or not base64 (422).

    Also parts of messages that give an image's address (422), which the judge's server would fetch,
    and more than :data:`MAX_PARTS` messages, images or keys of ``metadata`` (413).
    """
    for name in ("metadata", "messages", "images"):
        if (found := len(getattr(request, name) or ())) > MAX_PARTS:
            raise _invalid(413, f"{name}: found {found}, at most {MAX_PARTS} in one sample")
    if request.metadata or request.messages:
        _check_depth(request.metadata)
        _check_depth(request.messages)
    for image in request.images or ():
        _check_image(image, max_image)


def _check_depth(value: Any) -> None:
    level: list[Any] = [value] if value else []
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if one.__class__ is dict:
                if one.get("type") in _IMAGE_PARTS:
                    _check_part(one)
                below += [each for each in one.values() if each.__class__ in _CONTAINERS]
            else:
                below += [each for each in one if each.__class__ in _CONTAINERS]
        if not below:
            return
        level = below
    raise _too_deep()


def _check_part(part: dict[str, Any]) -> None:
    for name in ("image_url", "source"):
        said = part.get(name)
        address = said.get("url") if isinstance(said, dict) else said
        if isinstance(address, str) and not address.startswith("data:"):
            raise _invalid(422, _NO_ADDRESSES)


def _check_image(image: str, max_image: int) -> None:
    text = image
    if image.startswith("data:"):
        head, comma, text = image.partition(",")
        if not comma or not head.endswith(";base64"):
            raise _invalid(422, "images: a data: URI must be data:TYPE;base64,DATA")
    if len(text) * 3 // 4 > max_image:
        raise _invalid(413, f"images: larger than max_image_mb allows ({max_image / 1e6:g} MB)")
    if not text or not text.isascii() or text.encode().translate(None, _BASE64):
        raise _invalid(422, _NO_ADDRESSES)
