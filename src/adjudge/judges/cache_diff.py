"""What changed: a call that is not in a cassette, beside the recorded call that is nearest to it.

Nearest is the recorded call that shares most parts (messages one by one, and all other parts of a
key), then the one of most similar length. Texts are told by length, by a short hash and by the
place of their first difference; never by their words.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from adjudge.judges.cache_key import loads, split_call

__all__ = ["CallIndex", "describe_call", "differences", "told"]

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


_OTHERS = 7


def _hashes(call: bytes) -> tuple[int, ...]:
    parts, messages = split_call(call)
    return (*map(hash, parts.values()), *map(hash, messages))


def differences(recorded: bytes, asked: bytes) -> dict[str, str]:
    """What differs between two canonical calls: the part's name, and how, as ``was → is``.

    Names are ``provider``, ``model``, ``messages``, ``messages[1].content``, ``schema``,
    ``choices``, ``logprobs``, ``sampling.temperature``, ``draw``.
    """
    try:
        return _differences(recorded, asked)
    except ValueError:  # bytes that are no canonical call: the file was altered
        return {}


def _differences(recorded: bytes, asked: bytes) -> dict[str, str]:
    old_parts, old_messages = split_call(recorded)
    new_parts, new_messages = split_call(asked)
    found = {}
    if len(old_messages) != len(new_messages):
        found["messages"] = f"{len(old_messages)} → {len(new_messages)} messages"
    for number, (old, new) in enumerate(zip(old_messages, new_messages, strict=False)):
        if old != new:
            found |= _fields(f"messages[{number}]", loads(old), loads(new))
    for name, new in new_parts.items():
        old = old_parts[name]
        if name == "sampling" and old != new:
            found |= _fields(name, loads(old), loads(new))
        elif old != new:
            found[name] = _change(name, loads(old), loads(new))
    return found


_MISSING = object()


def _fields(name: str, old: Any, new: Any) -> dict[str, str]:
    """Differences of two mappings, field by field."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return {name: _change(name, old, new)}
    found = {}
    for field in [*old, *(field for field in new if field not in old)]:
        before, after = old.get(field, _MISSING), new.get(field, _MISSING)
        if repr(before) != repr(after):
            found[f"{name}.{field}"] = _change(f"{name}.{field}", before, after)
    return found


def _change(name: str, old: Any, new: Any) -> str:
    change = f"{_shown(name, old)} → {_shown(name, new)}"
    if isinstance(old, str) and isinstance(new, str) and name != "model":
        change += f", first difference at {_first_difference(old, new):,}"
    return change


def _shown(name: str, value: Any) -> str:
    """Numbers, switches and the model's name as they are; anything else by length and hash."""
    if value is _MISSING:
        return "absent"
    if value is None or isinstance(value, bool | int | float) or name == "model":
        return str(value)[:80]
    text = value if isinstance(value, str) else repr(value)
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
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
        model, draw = loads(parts["model"]), loads(parts["draw"])
    except ValueError:
        return short
    size = f"{len(messages)} messages of {sum(map(len, messages)):,} bytes"
    return f"{short} (model {str(model)[:80]}, {size}, draw {draw})"


def told(changes: dict[str, str]) -> str:
    """Differences as one line of text."""
    shown = [f"{name} ({change})" for name, change in list(changes.items())[:_SHOWN]]
    if len(changes) > _SHOWN:
        shown.append(f"{len(changes) - _SHOWN} more")
    return ", ".join(shown)
