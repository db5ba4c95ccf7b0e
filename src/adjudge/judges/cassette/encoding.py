"""Calls and their outcomes as bytes: cache keys, exact JSON, and how two calls differ.

The key of a call is the SHA-256 of its canonical JSON. Two calls share a key when a server would
read the same question in both: the order of keys in messages and sampling does not count, nor does
tuple or list. Whatever else differs gives another key: ``1`` and ``1.0`` and ``true`` are three
values, ``-0.0`` is not ``0.0``, an absent parameter is not ``null``. The order of keys in a
*schema* does count, because servers generate properties in that order: a judge that is asked for
the score before the reason is asked another question.

Text may contain what UTF-8 cannot carry (lone surrogates), and log-probabilities may be infinite:
both are written in a superset of JSON (surrogates as three bytes each, ``NaN`` and ``Infinity`` by
name), so nothing is lost and nothing collides.

A call that is not in a cassette is shown beside the recorded call that is nearest to it: the one
that shares most parts (messages one by one, and all other parts of a key), then the one of most
similar length. Texts are told by length, by a short hash and by the place of their first
difference; never by their words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, Reply
from adjudge.text import encode_exactly, replace_surrogates

CALL_PARTS = (
    "provider",
    "model",
    "messages",
    "schema",
    "choices",
    "logprobs",
    "sampling",
    "draw",
    "attempt",
)
"""What a key is made of, in the order of the canonical JSON array."""

_CallParts = tuple[
    msgspec.Raw,
    msgspec.Raw,
    list[msgspec.Raw],
    msgspec.Raw,
    msgspec.Raw,
    msgspec.Raw,
    msgspec.Raw,
    msgspec.Raw,
    msgspec.Raw,
]


def _to_builtin(value: Any) -> Any:
    """Mappings and sequences of other types than ``dict`` and ``list``."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"objects of type {type(value).__name__} cannot be part of a call")


_sorted = msgspec.json.Encoder(order="deterministic", enc_hook=_to_builtin).encode
_in_order = msgspec.json.Encoder(enc_hook=_to_builtin).encode
_encode_reply = msgspec.json.Encoder().encode
_reply_decoder = msgspec.json.Decoder(Reply)
_call_decoder = msgspec.json.Decoder(_CallParts)


def canonical_call(call: ChatCall, provider: str) -> bytes:
    """The bytes that are hashed: a JSON array of :data:`CALL_PARTS`.

    Raises ``GradingFailure(invalid_input)`` for a call that JSON cannot express.
    """
    before = (provider, call.model, call.messages)
    after = (call.choices, call.logprobs, call.sampling, call.draw, call.attempt)
    parts = [
        *(_encode(part) for part in before),
        _encode(call.schema, in_order=True),
        *(_encode(part) for part in after),
    ]
    return b"[" + b",".join(parts) + b"]"


def encode_reply_form(call: ChatCall) -> bytes:
    """What ``call`` asks of the form of its reply, as JSON; empty when it asks nothing.

    Raises ``GradingFailure(invalid_input)`` for a schema or choices that JSON cannot express.
    """
    if call.schema is None and call.choices is None and not call.logprobs:
        return b""
    return _encode((call.schema, call.choices, call.logprobs), in_order=True)


def encode_judge(call: ChatCall, provider: str) -> bytes:
    """JSON of provider, model and sampling: what tells one recorded judge from another."""
    return _encode((provider, call.model, call.sampling))


def _encode(value: Any, *, in_order: bool = False) -> bytes:
    """``value`` as JSON, keys sorted unless ``in_order``; lone surrogates as three bytes each.

    Raises ``GradingFailure(invalid_input)`` for what JSON cannot express.
    """
    try:
        try:
            return _in_order(value) if in_order else _sorted(value)
        except UnicodeEncodeError:
            return encode_exactly(
                json.dumps(
                    value,
                    sort_keys=not in_order,
                    ensure_ascii=False,
                    separators=(",", ":"),
                    default=_to_builtin,
                )
            )
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"the call cannot be written as JSON: {type(error).__name__}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, problem) from None


def decode_judge(data: bytes) -> tuple[str, str, dict[str, Any]]:
    """The provider, model and sampling that :func:`encode_judge` wrote; else ``ValueError``."""
    try:
        return msgspec.convert(decode_json(data), tuple[str, str, dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise ValueError("not a recorded judge") from error


def decode_json(data: bytes) -> Any:
    """What any bytes written here say, as plain Python values; ``ValueError`` for other bytes."""
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def split_call(data: bytes) -> tuple[dict[str, bytes], list[bytes]]:
    """Canonical bytes as bytes per part (without the messages), and per message.

    Parts of two calls are equal exactly when their bytes are. Raises ``ValueError`` for bytes that
    are no canonical call.
    """
    try:
        raw = _call_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _split_with_surrogates(data)
    parts = {
        name: bytes(part)
        for name, part in zip(CALL_PARTS, raw, strict=True)
        if not isinstance(part, list)
    }
    return parts, [bytes(message) for message in raw[2]]


def _split_with_surrogates(data: bytes) -> tuple[dict[str, bytes], list[bytes]]:
    values = decode_json(data)
    if not isinstance(values, list) or len(values) != len(CALL_PARTS):
        raise ValueError("not a canonical call")
    if not isinstance(values[2], list):
        raise ValueError("not a canonical call")  # noqa: TRY004  (bytes of a file, not an argument)
    parts = {
        name: _encode(value, in_order=True) for name, value in zip(CALL_PARTS, values, strict=True)
    }
    del parts["messages"]
    return parts, [_encode(message, in_order=True) for message in values[2]]


def is_sampled(call: ChatCall) -> bool:
    """Whether chance has a say in the reply: a temperature above 0, or the server's own default."""
    temperature = call.sampling.get("temperature")
    return temperature is None or temperature != 0


def encode_reply(reply: Reply) -> bytes:
    """``reply`` as JSON from which :func:`decode_reply` makes an equal one, bit for bit."""
    try:
        data = _encode_reply(reply)
        if not _has_other_numbers(reply):
            return data
    except UnicodeEncodeError:
        pass
    plain = json.dumps(msgspec.to_builtins(reply), ensure_ascii=False, separators=(",", ":"))
    return encode_exactly(plain)


def _has_other_numbers(reply: Reply) -> bool:
    """Whether JSON lacks a number of ``reply``, making it null; may say yes for no reason."""
    cost = None if reply.usage is None else reply.usage.cost_usd
    if reply.logprobs is None and cost is None:
        return False
    return b"null" in _encode_reply((reply.logprobs or (), cost or 0.0))


def decode_reply(data: bytes) -> Reply:
    """The reply that :func:`encode_reply` wrote; raises ``ValueError`` for any other bytes."""
    try:
        return _reply_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            return msgspec.convert(decode_json(data), Reply)
        except msgspec.MsgspecError as error:
            raise ValueError("not a stored reply") from error


class _Failure(msgspec.Struct):
    """A :class:`~adjudge.errors.GradingFailure` of a call as it is stored."""

    kind: ErrorKind
    message: str
    metadata: dict[str, Any]


def encode_failure(failure: GradingFailure) -> bytes:
    """``failure`` as JSON: kind, message and metadata (of what JSON cannot hold, its type)."""
    plain = _Failure(failure.kind, str(failure), failure.metadata)
    try:
        return msgspec.json.encode(plain, enc_hook=lambda value: type(value).__name__)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError, RecursionError):
        # Nobody's reply depends on metadata; the kind and the message are what is repeated.
        words = replace_surrogates(str(failure))
        return msgspec.json.encode(_Failure(failure.kind, words, {}))


def decode_failure(data: bytes) -> GradingFailure:
    """A new failure equal to what :func:`encode_failure` wrote; else ``ValueError``."""
    try:
        stored = _failure_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not a stored failure") from error
    return GradingFailure(stored.kind, stored.message, stored.metadata)


_failure_decoder = msgspec.json.Decoder(_Failure)


def compute_checksum(key: str, reply: bytes) -> bytes:
    """The checksum of a stored outcome: of its bytes and of the key that it stands under."""
    return sha256(key.encode() + reply).digest()[:16]


_CANDIDATES = 256
_SHOWN = 6


class CallIndex:
    """Recorded calls by the messages that they hold, for finding the nearest one.

    ``calls`` are (key, canonical bytes); what is no canonical call is left out. Looking one up
    compares at most 256 candidates per message, however many calls share one.
    """

    def __init__(self, calls: Iterable[tuple[str, bytes]]) -> None:
        self._keys: list[str] = []
        self._parts: list[tuple[int, ...]] = []
        self._sizes: list[int] = []
        self._holders: dict[tuple[int, int], list[int]] = {}
        for key, call in calls:
            self._add(key, call)

    def __len__(self) -> int:
        return len(self._keys)

    def _add(self, key: str, call: bytes) -> None:
        try:
            parts = _hashes(call)
        except ValueError:
            return
        number = len(self._keys)
        self._keys.append(key)
        self._parts.append(parts)
        self._sizes.append(len(call))
        for place in enumerate(parts[_OTHERS:]):
            holders = self._holders.setdefault(place, [])
            if len(holders) < _CANDIDATES:
                holders.append(number)

    def nearest(self, call: bytes) -> str | None:
        """The key of the nearest recorded call; ``None`` when there is none to compare with."""
        try:
            parts = _hashes(call)
        except ValueError:
            return None
        candidates: set[int] = set()
        for place in enumerate(parts[_OTHERS:]):
            candidates.update(self._holders.get(place, ()))
        numbers = candidates or range(min(len(self._keys), _CANDIDATES))

        def rank(number: int) -> tuple[int, int, int]:
            shared = sum(a == b for a, b in zip(parts, self._parts[number], strict=False))
            return -shared, abs(len(call) - self._sizes[number]), number

        return self._keys[min(numbers, key=rank)] if numbers else None


_OTHERS = len(CALL_PARTS) - 1


def _hashes(call: bytes) -> tuple[int, ...]:
    parts, messages = split_call(call)
    return (*map(hash, parts.values()), *map(hash, messages))


def compare_calls(recorded: bytes, asked: bytes) -> dict[str, str]:
    """What differs between two canonical calls: the part's name, and how, as ``was → is``.

    Names are ``provider``, ``model``, ``messages``, ``messages[1].content``, ``schema``,
    ``choices``, ``logprobs``, ``sampling.temperature``, ``draw``, ``attempt``.
    """
    try:
        return _compare_parts(recorded, asked)
    except ValueError:  # bytes that are no canonical call: the file was altered
        return {}


def _compare_parts(recorded: bytes, asked: bytes) -> dict[str, str]:
    old_parts, old_messages = split_call(recorded)
    new_parts, new_messages = split_call(asked)
    found = {}
    if len(old_messages) != len(new_messages):
        found["messages"] = f"{len(old_messages)} → {len(new_messages)} messages"
    for number, (old, new) in enumerate(zip(old_messages, new_messages, strict=False)):
        if old != new:
            found |= _compare_fields(f"messages[{number}]", decode_json(old), decode_json(new))
    for name, new in new_parts.items():
        old = old_parts[name]
        if name == "sampling" and old != new:
            found |= _compare_fields(name, decode_json(old), decode_json(new))
        elif old != new:
            found[name] = _describe_change(name, decode_json(old), decode_json(new))
    return found


_MISSING = object()


def _compare_fields(name: str, old: Any, new: Any) -> dict[str, str]:
    """Differences of two mappings, field by field."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return {name: _describe_change(name, old, new)}
    found = {}
    for field in [*old, *(field for field in new if field not in old)]:
        before, after = old.get(field, _MISSING), new.get(field, _MISSING)
        if repr(before) != repr(after):
            found[f"{name}.{field}"] = _describe_change(f"{name}.{field}", before, after)
    return found


def _describe_change(name: str, old: Any, new: Any) -> str:
    change = f"{_describe_value(name, old)} → {_describe_value(name, new)}"
    if isinstance(old, str) and isinstance(new, str) and name != "model":
        change += f", first difference at {_first_difference(old, new):,}"
    return change


def _describe_value(name: str, value: Any) -> str:
    """Numbers, switches and the model's name as they are; anything else by length and hash."""
    if value is _MISSING:
        return "absent"
    if value is None or isinstance(value, bool | int | float) or name == "model":
        return str(value)[:80]
    text = value if isinstance(value, str) else repr(value)
    digest = sha256(encode_exactly(text)).hexdigest()[:8]
    if isinstance(value, str):
        return f"{len(value):,} characters ({digest})"
    return f"{type(value).__name__} of {len(value)} ({digest})"


def _first_difference(old: str, new: str) -> int:
    """How many leading characters two texts share."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[:middle] == new[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def describe_call(key: str, call: bytes | None) -> str:
    """One recorded call in a few words, without its text."""
    short = key[:12]
    try:
        parts, messages = split_call(call or b"")
        model, draw = decode_json(parts["model"]), decode_json(parts["draw"])
    except ValueError:
        return short
    size = f"{len(messages)} messages of {sum(map(len, messages)):,} bytes"
    return f"{short} (model {str(model)[:80]}, {size}, draw {draw})"


def describe_changes(changes: dict[str, str]) -> str:
    """Differences as one line of text."""
    shown = [f"{name} ({change})" for name, change in list(changes.items())[:_SHOWN]]
    if len(changes) > _SHOWN:
        shown.append(f"{len(changes) - _SHOWN} more")
    return ", ".join(shown)
