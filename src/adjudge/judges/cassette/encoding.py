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

A call that is not in a cassette is compared, part by part, with the recorded call that shares most
parts with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from adjudge.errors import ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import ChatCall, Reply
from adjudge.text import encode_exactly

CALL_PARTS = (
    *("provider", "model", "messages", "schema", "choices", "logprobs", "sampling", "draw"),
    "attempt",
)
"""What a key is made of, in the order of the canonical JSON array."""


T = TypeVar("T")


def _to_builtin(value: Any) -> Any:
    """Mappings and sequences of other types than ``dict`` and ``list``."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"objects of type {type(value).__name__} cannot be part of a call")


_sorted = msgspec.json.Encoder(order="deterministic", enc_hook=_to_builtin).encode
_in_order = msgspec.json.Encoder(enc_hook=_to_builtin).encode


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
            return _dump(value, _to_builtin, by_key=not in_order)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"the call cannot be written as JSON: {type(error).__name__}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, problem) from None


def is_sampled(call: ChatCall) -> bool:
    """Whether chance has a say in the reply: a temperature above 0, or the server's own default."""
    temperature = call.sampling.get("temperature")
    return temperature is None or temperature != 0


def _type_name(value: Any) -> str:
    return type(value).__name__


def _dump(value: Any, default: Callable[[Any], Any] = _type_name, *, by_key: bool = False) -> bytes:
    """``value`` as JSON with all texts and numbers."""
    form: Any = {"sort_keys": by_key, "separators": (",", ":"), "default": default}
    return encode_exactly(json.dumps(value, ensure_ascii=False, **form))


def _load(data: bytes, kind: type[T]) -> T:
    """What :func:`_dump` wrote; ``ValueError`` for other bytes."""
    try:
        return msgspec.convert(json.loads(data.decode("utf-8", "surrogatepass")), kind)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def decode_judge(data: bytes) -> tuple[str, str, Metadata]:
    """The provider, model and sampling that :func:`encode_judge` wrote; else ``ValueError``."""
    return _load(data, tuple[str, str, Metadata])


def encode_outcome(outcome: Reply | GradingFailure) -> bytes:
    """A reply or failure as JSON from which :func:`decode_outcome` makes an equal one.

    Of what JSON cannot hold in the metadata of a failure, its type is written.
    """
    if isinstance(outcome, Reply):
        return _dump(msgspec.to_builtins(outcome))
    try:
        return _dump((outcome.kind, str(outcome), outcome.metadata))
    except (TypeError, ValueError, RecursionError):  # nobody's reply depends on the metadata
        return _dump((outcome.kind, str(outcome), {}))


def decode_outcome(data: bytes, *, failed: bool) -> Reply | GradingFailure:
    """What :func:`encode_outcome` wrote, a new object; raises ``ValueError`` for other bytes."""
    if failed:
        return GradingFailure(*_load(data, tuple[ErrorKind, str, Metadata]))
    return _load(data, Reply)


def compute_checksum(key: str, outcome: bytes) -> bytes:
    """The checksum of a stored outcome: of its bytes and of the key that it has."""
    return sha256(key.encode() + outcome).digest()[:16]


# -- how two calls differ ----------------------------------------------------------------------


def flatten_call(data: bytes) -> Metadata:
    """The parts of a canonical call by name, messages and mappings field by field.

    ``messages`` is how many there are. Raises ``ValueError`` for bytes that are no canonical call.

    >>> flatten_call(b'["p","m",[{"role":"user"}],null,null,false,{"seed":1},0,0]')["sampling.seed"]
    1
    """
    parts = dict(zip(CALL_PARTS, _load(data, list[Any]), strict=True))
    messages = msgspec.convert(parts["messages"], list[Any])
    parts["messages"] = len(messages)
    flat: Metadata = {}
    for name, part in (parts | {f"messages[{i}]": one for i, one in enumerate(messages)}).items():
        if isinstance(part, dict) and name != "schema":
            flat |= {f"{name}.{field}": value for field, value in part.items()}
        else:
            flat[name] = part
    return flat


def describe_parts(call: bytes) -> dict[str, str]:
    """The parts of a call to compare by; none of bytes that are no call."""
    try:
        return {name: repr(part) for name, part in flatten_call(call).items()}
    except ValueError:
        return {}
