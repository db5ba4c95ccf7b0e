"""Who may ask, and a request's bytes as a request that is safe to judge.

The key comes from the environment and is compared in constant time. What is not safe to judge is
refused with its HTTP status (:class:`RequestRefused`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError, ErrorKind, Fields, GradingFailure, Metadata
from adjudge.hosts import is_loopback, is_loopback_header
from adjudge.intake.rollouts import read_conversation
from adjudge.service import ServiceSettings
from adjudge.service.backend import log_once
from adjudge.wire import JUDGE_KEY_VARIABLE, MAX_NESTING_DEPTH, JudgeRequest

_T = TypeVar("_T")
Headers = Sequence[tuple[bytes, bytes]]
AsgiReceive = Callable[[], Awaitable[dict[str, Any]]]
MAX_PARTS = 10_000
"""How many messages, images or keys of ``metadata`` one sample may have."""

REQUEST_FAULTS = frozenset({ErrorKind.INVALID_INPUT, ErrorKind.TOO_LONG, ErrorKind.UNSUPPORTED})
"""What is answered with 422, since no judge will do better with the same request."""

_MAX_NAMED_KEYS, _NAME_LENGTH = 10, 60
_CONTAINER_WEIGHT = 10  # a list or object costs the loop ten times what a number does
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
CONTAINERS: frozenset[type] = frozenset({list, dict})
_IMAGE_PARTS = ("image_url", "input_image", "image")
_IMAGE_TYPES = {"iVBORw0KGgo": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
"""How images of each type begin, in base64."""
_IMAGE = re.compile(
    rf"(data:image/[^,]*;base64,)?(({'|'.join(_IMAGE_TYPES)})[A-Za-z0-9+/]*+={{0,2}})"
)


class RequestRefused(GradingFailure):
    """A request that is not taken: the HTTP status, a kind and what is wrong with it.

    ``retry_after`` in seconds where trying again helps. The message never quotes the request.
    """

    def __init__(
        self,
        status: int,
        kind: ErrorKind,
        message: str,
        retry_after: float | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        super().__init__(kind, message, metadata)
        self.status = status
        self.retry_after = retry_after


def invalid_request(message: str, status: int = 422) -> RequestRefused:
    """A request that says something which cannot be judged."""
    return RequestRefused(status, ErrorKind.INVALID_INPUT, message)


class BodyReader:
    """Reads bodies of at most ``limit`` bytes each, and ``most`` of all that are in memory."""

    def __init__(self, limit: int, most: int) -> None:
        self.limit = limit
        self.most = most
        self.held = 0
        """Bytes of the bodies in memory, those that are still arriving too."""

    async def read(self, headers: Headers, receive: AsgiReceive) -> bytes:
        """The whole body; raises :class:`RequestRefused` (413, 429).

        A length that is announced is believed when it is too large, and counted all the same. The
        body's size stays in ``held``, for the caller to take off; nothing stays of one refused.
        """
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value) > self.limit:
                raise self._too_large()
        body, more = bytearray(), True
        try:
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise invalid_request("the client left before its request was complete", 400)  # noqa: TRY301
                body += (part := message.get("body", b""))
                self.hold(len(part), len(body))
                more = message.get("more_body", False)
        except BaseException:
            self.held -= len(body)
            raise
        return bytes(body)

    def hold(self, more: int, size: int) -> None:
        """So much more of a body of ``size``, counted even where it is refused."""
        self.held += more
        if size > self.limit:
            raise self._too_large()
        if self.held > self.most:
            raise RequestRefused(429, ErrorKind.RATE_LIMITED, "too many large bodies at once", 1)

    def _too_large(self) -> RequestRefused:
        most = self.limit / 1e6
        return invalid_request(f"the body is longer than max_body_mb allows ({most:g} MB)", 413)


def check_value_count(body: bytes, most: int) -> None:
    """Refuse (413) a body of more than ``most`` values; a list or an object counts as ten.

    Decoding and walking through them would keep the event loop from all other requests for
    seconds. What stands inside texts does not count. Nothing is decoded here: a body with few
    commas and brackets is let through by their number alone.
    """
    is_small = _CONTAINER_WEIGHT * len(body) <= 2 * most  # a list is two bytes at least
    if is_small or _weigh_values(body) <= most:
        return
    # Of more texts than that, each a value or its key, the rest need not be looked at.
    if _weigh_values(_TEXT.sub(b"", body, count=2 * most)) <= most:
        return
    raise invalid_request(
        f"the body has more values than max_body_mb allows ({most}, where a list or an object "
        f"counts as {_CONTAINER_WEIGHT})",
        413,
    )


def _weigh_values(structure: bytes) -> int:
    opened = structure.count(b"[") + structure.count(b"{")
    return _CONTAINER_WEIGHT * opened + structure.count(b",")


def decode_body(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """What msgspec makes of a body; :class:`RequestRefused`: 400 for what is no JSON, else 422."""
    try:
        body.decode()  # msgspec does not look into what it skips
        return decode(body)
    except UnicodeDecodeError:
        raise invalid_request("the body is not UTF-8", 400) from None
    except RecursionError:
        raise _nested_too_deep() from None
    except msgspec.MsgspecError as error:
        status = 422 if isinstance(error, msgspec.ValidationError) else 400
        raise invalid_request(str(error), status) from None


def _nested_too_deep() -> RequestRefused:
    return invalid_request(f"lists and objects are nested deeper than {MAX_NESTING_DEPTH}", 400)


# Values of keys that nothing reads are not made: no number there is too large.
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_rows = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_NO_KEYS: Fields = {}


class StrictReader(Generic[_T]):
    """Reads a body; also as its keys where it has unknown ones, which most have not.

    What is wrong with a body is said by the ``loose`` decoder. Keys that nothing reads are named to
    the client, and once each in the log: a misspelt ``answer`` would else be judged without a
    reference, and nobody would know.
    """

    def __init__(self, strict: type[_T], loose: type[_T]) -> None:
        self._decode = msgspec.json.Decoder(strict).decode
        self._decode_loose = msgspec.json.Decoder(loose).decode
        self._known: Sequence[str] = loose.__struct_fields__  # type: ignore[attr-defined]

    def read(self, body: bytes) -> tuple[_T, Fields]:
        """The body, and its keys unless all are known."""
        try:
            return self._decode(body), _NO_KEYS
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return decode_body(self._decode_loose, body), decode_body(_decode_keys, body)

    def warnings(self, found: Fields) -> list[str] | None:
        """What is said of the keys ``found`` that are unknown; ``None`` where all are known."""
        unknown = [key for key in found if key not in self._known]
        said = []
        for key in unknown[:_MAX_NAMED_KEYS]:
            name = key[:_NAME_LENGTH]
            said.append(f"unknown key {name!r} was ignored{suggest_name(name, self._known)}")
            log_once(logging.WARNING, f"a request: {said[-1]}")
        if (more := len(unknown) - _MAX_NAMED_KEYS) > 0:
            said.append(f"{more} more unknown keys were ignored")
        return said or None


def check_request(request: JudgeRequest, max_image: int) -> None:
    """Refuse what is nested too deep (400), images too large (413) or not base64 (422).

    Also parts of messages that give an image's address (422), which the judge's server would fetch,
    and more than :data:`MAX_PARTS` messages, images or keys of ``metadata`` (413). Images become
    ``data:`` URIs, and messages of any maker those that graders read. Raises
    :class:`~adjudge.errors.RolloutError` (422) for messages that cannot be read.
    """
    for name in ("metadata", "messages", "images"):
        if (found := len(getattr(request, name) or ())) > MAX_PARTS:
            raise invalid_request(f"{name}: found {found}, at most {MAX_PARTS} in one sample", 413)
    if request.messages:  # before the rest: an image of another maker is then known as one
        _read_messages(request, request.messages)
    for brought in (request.metadata, request.messages, request.answer):
        if brought.__class__ in CONTAINERS:
            _check_depth(brought)
    if request.images:
        request.images = [to_data_uri(image, max_image) for image in request.images]


def _read_messages(request: JudgeRequest, messages: list[Metadata]) -> None:
    """Put them into the form of all doors; ``opening_turns`` counts them as they were sent."""
    turns = (request.metadata or {}).get("opening_turns")
    read = read_conversation(messages, turns if type(turns) is int and turns >= 0 else None)
    request.messages = read.messages
    if request.metadata and turns is not None:
        request.metadata["opening_turns"] = read.opening_turns
    if request.prompt is None and not request.completion:  # only the conversation was sent
        if read.response is None:
            raise invalid_request("messages: have no turn of the assistant: nothing was answered")
        request.prompt, request.completion = read.prompt, read.response


def _check_depth(value: Any) -> None:
    level: list[Any] = [value] if value else []
    for _ in range(MAX_NESTING_DEPTH):
        below: list[Any] = []
        for one in level:
            is_object = one.__class__ is dict
            if is_object and one.get("type") in _IMAGE_PARTS:
                _check_part(one)
            inner = one.values() if is_object else one
            below += [each for each in inner if each.__class__ in CONTAINERS]
        if not below:
            return
        level = below
    raise _nested_too_deep()


def _check_part(part: dict[str, Any]) -> None:
    for name in ("image_url", "source"):
        said = part.get(name)
        address = said.get("url") if isinstance(said, dict) else said
        if isinstance(address, str) and not address.startswith("data:"):
            raise invalid_request("images: must be data: URIs; addresses are never fetched")


def to_data_uri(image: str, most: int) -> str:
    """``image``, base64 or a URI of at most ``most`` bytes, as ``data:image/…;base64,…``.

    The type of plain base64 is that of its first bytes (PNG, JPEG, GIF, WebP). Raises
    :class:`RequestRefused` for anything else: addresses and files are never fetched.

    >>> to_data_uri("iVBORw0KGgo=", 99)
    'data:image/png;base64,iVBORw0KGgo='
    """
    if len(image.rpartition(",")[2]) * 3 // 4 > most:
        allowed = f"{most / 1e6:g} MB"
        raise invalid_request(f"images: larger than half of max_body_mb allows ({allowed})", 413)
    if (found := _IMAGE.fullmatch(image)) is None:
        raise invalid_request(
            "images: must be PNG, JPEG, GIF or WebP in base64, or data:image/TYPE;base64, URIs of "
            "them; addresses are never fetched"
        )
    head, body, start = found.groups()
    return image if head else f"data:image/{_IMAGE_TYPES[start]};base64,{body}"


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

    def check(self, headers: Headers) -> str:
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
                if name == b"host" and not _is_here(value):
                    raise _unauthorised("requests to another name than this machine's need a key")
            return ""
        shown = [_presented_key(value) for name, value in headers if name == b"authorization"]
        if len(shown) == 1:
            for client, key in self._keys.items():
                if hmac.compare_digest(shown[0], key):
                    return client
        raise _unauthorised("no key or a wrong one (Authorization: Bearer …)")


@lru_cache(maxsize=64)
def _is_here(host: bytes) -> bool:
    return is_loopback_header(host.decode("latin-1"))


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
