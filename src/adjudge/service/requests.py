"""Who may ask, and a request's bytes as a request that is safe to judge.

The key comes from the environment and is compared in constant time. What is not safe to judge is
refused with its HTTP status (:class:`RequestRefused`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from adjudge.errors import ConfigError, ErrorKind
from adjudge.hosts import is_loopback, is_loopback_header
from adjudge.service.settings import ServiceSettings
from adjudge.wire import JUDGE_KEY_VARIABLE, MAX_NESTING_DEPTH, JudgeRequest

_T = TypeVar("_T")
AsgiReceive = Callable[[], Awaitable[dict[str, Any]]]
MAX_PARTS = 10_000
"""How many messages, images or keys of ``metadata`` one sample may have."""

_VALUES_PER_CONTAINER = 10  # a list or object costs the loop ten times what a number does
_NON_STRUCTURE_BYTES = bytes(set(range(256)) - set(b'",[{'))
_SLICE_BYTES = 1 << 20
_CONTAINERS: frozenset[type] = frozenset({list, dict})
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_IMAGE_PARTS = ("image_url", "input_image", "image")
_IMAGE_ADDRESS_MESSAGE = "images: must be base64 or data: URIs; addresses are never fetched"
_encode = msgspec.json.Encoder().encode


class RequestRefused(Exception):
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


def _invalid_body(status: int, message: str) -> RequestRefused:
    return RequestRefused(status, ErrorKind.INVALID_INPUT, message)


def error_body(kind: ErrorKind, message: str) -> bytes:
    """The body of every refusal."""
    return _encode({"error": {"kind": kind, "message": message}})


def content_length(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """What the header says; ``None`` when there is none."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


class BodyMemoryLimit:
    """The bytes of all bodies in memory, those that are still arriving too; at most ``most``."""

    __slots__ = ("bytes", "most")

    def __init__(self, most: int) -> None:
        self.bytes = 0
        self.most = most

    def add(self, size: int) -> None:
        """So much more, counted even where it is too much: :class:`RequestRefused` (429)."""
        self.bytes += size
        if self.bytes > self.most:
            message = "too many large bodies at once"
            raise RequestRefused(429, ErrorKind.RATE_LIMITED, message, retry_after=1)


async def read_body(
    headers: Sequence[tuple[bytes, bytes]], receive: AsgiReceive, limit: int, held: BodyMemoryLimit
) -> bytes:
    """The whole body, at most ``limit`` bytes; raises :class:`RequestRefused` (413, 429).

    A length that is announced is believed when it is too large, and counted all the same. The
    body's size stays in ``held``, for the caller to take off; nothing stays of one that is refused.
    """
    if (content_length(headers) or 0) > limit:
        raise _body_too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    try:
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise _invalid_body(400, "the client left before its request was complete")  # noqa: TRY301
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            held.add(len(parts[-1]))
            if size > limit:
                raise _body_too_large(limit)  # noqa: TRY301
            more = message.get("more_body", False)
    except BaseException:
        held.bytes -= size
        raise
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _body_too_large(limit: int) -> RequestRefused:
    return _invalid_body(413, f"the body is longer than max_body_mb allows ({limit / 1e6:g} MB)")


async def check_value_count(body: bytes, most: int) -> None:
    """Refuse (413) a body of more than ``most`` values, or of which over a tenth hold others.

    Decoding and walking through them would keep the event loop from all other requests for
    seconds. What stands inside texts does not count. Nothing is decoded here: a body with few
    commas and brackets is let through by their number alone, and longer work pauses for others.
    """
    containers = most // _VALUES_PER_CONTAINER
    if len(body) <= 2 * containers or _is_within_limits(body, most, containers):
        return
    bare = body
    if b"\\" in bare:
        bare = bare.replace(rb"\\", b"").replace(rb"\"", b"")
    bare = bare.translate(None, _NON_STRUCTURE_BYTES)
    if bare.count(b'"') <= 4 * most:  # a text has two, and an object's value may have a key
        await asyncio.sleep(0)
        if _is_within_limits(
            await _structure_outside_texts(bare.replace(b'""', b"")), most, containers
        ):
            return
    raise _invalid_body(
        413,
        f"the body has more values than max_body_mb allows ({most}, of which {containers} may be "
        "lists and objects)",
    )


def _is_within_limits(structure: bytes, most: int, containers: int) -> bool:
    """Whether so many commas and brackets hold few enough values; each value has one of them."""
    opened = structure.count(b"[") + structure.count(b"{")
    return opened <= containers and opened + structure.count(b",") < most


async def _structure_outside_texts(marks: bytes) -> bytes:
    """Commas and brackets that do not stand between quotation marks."""
    outside, is_text = [], 0
    for start in range(0, len(marks), _SLICE_BYTES):
        parts = marks[start : start + _SLICE_BYTES].split(b'"')
        outside.append(b"".join(parts[is_text::2]))
        is_text ^= (len(parts) - 1) & 1
        await asyncio.sleep(0)
    return b"".join(outside)


def decode_body(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """The body as its type; raises :class:`RequestRefused`: 400 for what is no JSON, else 422."""
    try:
        body.decode()  # msgspec does not look into what it skips
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal_from_error(error) from None


def refusal_from_error(error: Exception) -> RequestRefused:
    """What msgspec's complaint about a body means."""
    if isinstance(error, msgspec.ValidationError):
        return _invalid_body(422, str(error))
    if isinstance(error, RecursionError):
        return _nested_too_deep()
    if isinstance(error, UnicodeDecodeError):
        return _invalid_body(400, "the body is not UTF-8")
    return _invalid_body(400, str(error))


def _nested_too_deep() -> RequestRefused:
    return _invalid_body(400, f"lists and objects are nested deeper than {MAX_NESTING_DEPTH}")


def check_request(request: JudgeRequest, max_image: int) -> None:
    """Refuse what is nested too deep (400), images too large (413) or not base64 (422).

    Also parts of messages that give an image's address (422), which the judge's server would fetch,
    and more than :data:`MAX_PARTS` messages, images or keys of ``metadata`` (413).
    """
    for name in ("metadata", "messages", "images"):
        if (found := len(getattr(request, name) or ())) > MAX_PARTS:
            raise _invalid_body(413, f"{name}: found {found}, at most {MAX_PARTS} in one sample")
    for brought in (request.metadata, request.messages, request.answer):
        if brought.__class__ in _CONTAINERS:
            _check_depth(brought)
    for image in request.images or ():
        _check_image(image, max_image)


def _check_depth(value: Any) -> None:
    level: list[Any] = [value] if value else []
    for _ in range(MAX_NESTING_DEPTH):
        below: list[Any] = []
        for one in level:
            is_object = one.__class__ is dict
            if is_object and one.get("type") in _IMAGE_PARTS:
                _check_part(one)
            inner = one.values() if is_object else one
            below += [each for each in inner if each.__class__ in _CONTAINERS]
        if not below:
            return
        level = below
    raise _nested_too_deep()


def _check_part(part: dict[str, Any]) -> None:
    for name in ("image_url", "source"):
        said = part.get(name)
        address = said.get("url") if isinstance(said, dict) else said
        if isinstance(address, str) and not address.startswith("data:"):
            raise _invalid_body(422, _IMAGE_ADDRESS_MESSAGE)


def _check_image(image: str, max_image: int) -> None:
    text = image
    if image.startswith("data:"):
        head, comma, text = image.partition(",")
        if not comma or not head.endswith(";base64"):
            raise _invalid_body(422, "images: a data: URI must be data:TYPE;base64,DATA")
    if len(text) * 3 // 4 > max_image:
        raise _invalid_body(
            413, f"images: larger than half of max_body_mb allows ({max_image / 1e6:g} MB)"
        )
    if not text or not text.isascii() or text.encode().translate(None, _BASE64):
        raise _invalid_body(422, _IMAGE_ADDRESS_MESSAGE)


def read_service_keys(settings: ServiceSettings) -> dict[str, str]:
    """The keys that clients may show, by the variables that hold them; empty when none is set.

    Raises :class:`ConfigError` when other machines could ask and there is no key, when a variable
    was named that holds none, and when two hold the same.
    """
    keys: dict[str, str] = {}
    for name in dict.fromkeys((JUDGE_KEY_VARIABLE, *settings.client_weights)):
        key = os.environ.get(name, "").strip()
        if key in keys.values() or not (key or name == JUDGE_KEY_VARIABLE):
            raise ConfigError(
                f"--client {name}: this environment variable must be set to a key that no other "
                "client has."
            )
        if key:
            keys[name] = key
    if not keys and not is_loopback(settings.host):
        raise ConfigError(
            f"--host {settings.host}: other machines could use your judges without a key. Set the "
            f"environment variable {JUDGE_KEY_VARIABLE} to a key that clients must send, or use "
            "127.0.0.1."
        )
    return keys


class ApiKeyAuth:
    """Lets requests in by their headers; ``keys`` by the names of their clients."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = {name: key.encode() for name, key in keys.items()}

    @property
    def variable(self) -> str | None:
        """The first variable with a key, if there is one."""
        return next(iter(self._keys), None)

    def check(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """The client whose key is there; :class:`RequestRefused` (401) without any detail.

        As ``Bearer KEY``, or as ``Basic`` with the key for a password: trainers' clients make that
        of an address ``http://any:KEY@host`` and can send nothing else.

        Without a key, a web page in a browser of this machine is refused all the same: a page
        from anywhere could spend the user's money by posting here, or read what is here under a
        name of its own that was pointed to this machine.
        """
        if not self._keys:
            for name, value in headers:
                if name == b"origin":
                    raise _unauthorised("requests from web pages need a key")
                if name == b"host" and not is_loopback_header(value.decode("latin-1")):
                    raise _unauthorised("requests to another name than this machine's need a key")
            return ""
        shown = [_presented_key(value) for name, value in headers if name == b"authorization"]
        if len(shown) == 1:
            found = [name for name, key in self._keys.items() if hmac.compare_digest(shown[0], key)]
            if found:
                return found[0]
        raise _unauthorised("no key or a wrong one (Authorization: Bearer …)")


def _presented_key(value: bytes) -> bytes:
    """The key in a header; that of ``Basic`` is the password, whoever the user."""
    scheme, _, said = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return said.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(said.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def _unauthorised(message: str) -> RequestRefused:
    return RequestRefused(401, ErrorKind.AUTH, message)
