"""Calls and their outcomes as bytes: the cache key of a call, the exact JSON of a reply or failure.

The key of a call is the SHA-256 of its canonical JSON. Two calls share a key when a server would
read the same question in both: the order of keys in messages and sampling does not count, nor does
tuple or list. Whatever else differs gives another key: ``1`` and ``1.0`` and ``true`` are three
values, ``-0.0`` is not ``0.0``, an absent parameter is not ``null``. The order of keys in a
*schema* does count, because servers generate properties in that order: a judge that is asked for
the score before the reason is asked another question.

Text may contain what UTF-8 cannot carry (lone surrogates), and log-probabilities may be infinite:
both are written in a superset of JSON (surrogates as three bytes each, ``NaN`` and ``Infinity`` by
name), so nothing is lost and nothing collides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, Reply

__all__ = [
    "CALL_PARTS",
    "asked_form",
    "canonical_call",
    "decode_failure",
    "decode_judge",
    "decode_reply",
    "digest_of",
    "encode_failure",
    "encode_judge",
    "encode_reply",
    "is_sampled",
    "loads",
    "split_call",
]

CALL_PARTS = (
    "provider",
    "model",
    "messages",
    "schema",
    "choices",
    "logprobs",
    "sampling",
    "draw",
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
]


def _plain(value: Any) -> Any:
    """Mappings and sequences of other types than ``dict`` and ``list``."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"objects of type {type(value).__name__} cannot be part of a call")


_sorted = msgspec.json.Encoder(order="deterministic", enc_hook=_plain).encode
_in_order = msgspec.json.Encoder(enc_hook=_plain).encode
_encode_reply = msgspec.json.Encoder().encode
_reply_decoder = msgspec.json.Decoder(Reply)
_call_decoder = msgspec.json.Decoder(_CallParts)


def canonical_call(call: ChatCall, provider: str) -> bytes:
    """The bytes that are hashed: a JSON array of :data:`CALL_PARTS`.

    Raises ``GradingFailure(invalid_input)`` for a call that JSON cannot express.
    """
    messages = call.messages
    schema = call.schema
    try:
        return _sorted(
            (
                provider,
                call.model,
                messages,
                None if schema is None else msgspec.Raw(_in_order(schema)),
                call.choices,
                call.logprobs,
                call.sampling,
                call.draw,
            )
        )
    except UnicodeEncodeError:
        return _canonical_with_surrogates(call, provider, messages)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _not_json(error) from None


def _canonical_with_surrogates(
    call: ChatCall, provider: str, messages: Sequence[Mapping[str, Any]]
) -> bytes:
    before = (provider, call.model, messages)
    after = (call.choices, call.logprobs, call.sampling, call.draw)
    try:
        parts = [
            *(_dumps(part, sort_keys=True) for part in before),
            _dumps(call.schema, sort_keys=False),
            *(_dumps(part, sort_keys=True) for part in after),
        ]
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(error) from None
    return f"[{','.join(parts)}]".encode("utf-8", "surrogatepass")


def asked_form(call: ChatCall) -> bytes:
    """What ``call`` asks of the form of its reply, as JSON; empty when it asks nothing.

    Raises ``GradingFailure(invalid_input)`` for a schema or choices that JSON cannot express.
    """
    if call.schema is None and call.choices is None and not call.logprobs:
        return b""
    form = (call.schema, call.choices, call.logprobs)
    try:
        return _in_order(form)
    except UnicodeEncodeError:
        return _dumps(form, sort_keys=False).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _not_json(error) from None


def encode_judge(call: ChatCall, provider: str) -> bytes:
    """JSON of provider, model and sampling: what tells one recorded judge from another."""
    judge = (provider, call.model, call.sampling)
    try:
        return _sorted(judge)
    except UnicodeEncodeError:
        return _dumps(judge, sort_keys=True).encode("utf-8", "surrogatepass")


def decode_judge(data: bytes) -> tuple[str, str, dict[str, Any]]:
    """The provider, model and sampling that :func:`encode_judge` wrote; else ``ValueError``."""
    try:
        return msgspec.convert(loads(data), tuple[str, str, dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise ValueError("not a recorded judge") from error


def _dumps(value: Any, *, sort_keys: bool) -> str:
    return json.dumps(
        value, sort_keys=sort_keys, ensure_ascii=False, separators=(",", ":"), default=_plain
    )


def _not_json(error: Exception) -> GradingFailure:
    return GradingFailure(
        ErrorKind.INVALID_INPUT, f"the call cannot be written as JSON: {type(error).__name__}"
    )


def loads(data: bytes) -> Any:
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
    values = loads(data)
    if not isinstance(values, list) or len(values) != len(CALL_PARTS):
        raise ValueError("not a canonical call")
    if not isinstance(values[2], list):
        raise ValueError("not a canonical call")  # noqa: TRY004  (bytes of a file, not an argument)
    parts = {name: _bytes(value) for name, value in zip(CALL_PARTS, values, strict=True)}
    del parts["messages"]
    return parts, [_bytes(message) for message in values[2]]


def _bytes(value: Any) -> bytes:
    try:
        return _in_order(value)
    except UnicodeEncodeError:
        return _dumps(value, sort_keys=False).encode("utf-8", "surrogatepass")


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
    return plain.encode("utf-8", "surrogatepass")


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
            return msgspec.convert(loads(data), Reply)
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
        words = str(failure).encode(errors="replace").decode()
        return msgspec.json.encode(_Failure(failure.kind, words, {}))


def decode_failure(data: bytes) -> GradingFailure:
    """A new failure equal to what :func:`encode_failure` wrote; else ``ValueError``."""
    try:
        stored = _failure_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not a stored failure") from error
    return GradingFailure(stored.kind, stored.message, stored.metadata)


_failure_decoder = msgspec.json.Decoder(_Failure)


def digest_of(key: str, reply: bytes) -> bytes:
    """The checksum of a stored outcome: of its bytes and of the key that it stands under."""
    return sha256(key.encode() + reply).digest()[:16]
