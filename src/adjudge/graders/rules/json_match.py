"""Does the JSON of a response equal the reference, in whole or in part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Literal

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.json_check import NotJson, TooLong, decode, too_deep
from adjudge.graders.rules.json_format import check_reading, response_value
from adjudge.graders.rules.params import chosen, flag
from adjudge.graders.rules.text import shown
from adjudge.graders.view import View
from adjudge.types import GraderScore

__all__ = ["JsonMatchGrader"]

_Path = tuple[str | int, ...]
_Measure = Literal["exact", "share"]
_ANYWHERE = -1


class JsonMatchGrader(RuleGrader):
    """How far the JSON of the response equals the reference: 1 or 0, or the share of its leaves.

    Range [0, 1]. Fields: ``response`` (text) and ``reference`` (JSON text, or the value itself).
    A response that is not JSON, or empty, scores 0; one of more than 200,000 characters is 0 with
    ``cause = "candidate"``. Objects are compared without regard to the
    order of their members, numbers by value (1 equals 1.0, true does not equal 1), and a missing
    member differs from ``null``. Time is linear in the length of both.

    ``measure``: ``exact`` (default) gives 1 for equal values, else 0: the py-openjudge 0.2.4
    definition (``JsonMatchGrader``), save that there a missing member equals ``null`` and true
    equals 1. ``share`` compares the leaves, a leaf being a path with the text, number, boolean,
    null or empty container that stands there: |A ∩ B| / |A ∪ B| over the multisets of leaves of
    response and reference.
    ``strict_order`` (default true): the order of lists counts. Otherwise ``exact`` compares lists
    as multisets, and ``share`` leaves the index out of a leaf's path.
    ``ignore_extra_keys`` (default false): what the reference lacks costs nothing. ``exact`` then
    passes over such object members, and ``share`` is |A ∩ B| / |B|, the recall of the reference's
    leaves. ``exact`` does not take it together with ``strict_order = false``: which item of a
    list belongs to which would have to be searched.
    ``view``, ``allow_fence``, ``strict``: as in :class:`JsonValidatorGrader`.

    Raises ``ConfigError`` as said; ``GradingFailure(invalid_input)`` for a reference that is not
    JSON and for a response that is not text. Metadata of ``share``: ``matched``, ``leaves``.

    >>> JsonMatchGrader().evaluate('{"b": 2, "a": 1.0}', '{"a": 1, "b": 2}').score
    1.0
    >>> JsonMatchGrader(measure="share").evaluate("[1, 2, 4]", [1, 2, 3]).score
    0.5
    """

    type_name = "json_match"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        measure: _Measure = "exact",
        strict_order: bool = True,
        ignore_extra_keys: bool = False,
        view: View = "final",
        allow_fence: bool = False,
        strict: bool = True,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        chosen(self.type_name, "measure", measure, _Measure)
        flag(self.type_name, "strict_order", strict_order)
        flag(self.type_name, "ignore_extra_keys", ignore_extra_keys)
        check_reading(self.type_name, view, allow_fence, strict)
        if measure == "exact" and ignore_extra_keys and not strict_order:
            raise ConfigError(
                "json_match: measure = 'exact' takes ignore_extra_keys or strict_order = false, "
                "not both; measure = 'share' takes both"
            )
        self.measure = measure
        self.strict_order = strict_order
        self.ignore_extra_keys = ignore_extra_keys
        self.view: View = view
        self.allow_fence = allow_fence
        self.strict = strict

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Judge one response against its reference."""
        wanted = _reference_value(reference)
        try:
            value = response_value(response, self.view, self.allow_fence, self.strict)
        except TooLong as excess:
            return self._candidate_fault(str(excess))
        except NotJson as fault:
            return self._score(0.0, f"not JSON: {fault}")
        return self._share(value, wanted) if self.measure == "share" else self._exact(value, wanted)

    def _exact(self, value: Any, wanted: Any) -> GraderScore:
        if self.strict_order:
            path = _first_difference(value, wanted, self.ignore_extra_keys)
            fault = "" if path is None else f"differs at {_shown(path)}"
        else:
            fault = "" if _digest(value) == _digest(wanted) else "differs"
        return self._score(0.0 if fault else 1.0, fault or "equal")

    def _share(self, value: Any, wanted: Any) -> GraderScore:
        has = Counter(_leaves(value, self.strict_order))
        wants = Counter(_leaves(wanted, self.strict_order))
        matched = (has & wants).total()
        leaves = (wants if self.ignore_extra_keys else has | wants).total()
        reason = f"{matched} of {leaves} leaves match"
        return self._score(matched / leaves, reason, matched=matched, leaves=leaves)


def _reference_value(reference: Any) -> Any:
    """The reference as a JSON value; ``GradingFailure(invalid_input)`` when it is none."""
    fault = ""
    if isinstance(reference, str):
        try:
            return decode(reference)
        except NotJson as error:
            fault = str(error)
    elif too_deep(reference):
        fault = "nested deeper than 64 levels"
    else:
        strange = [leaf for _, kind, leaf in _leaves(reference, ordered=True) if kind == "other"]
        fault = shown(repr(strange[0])) if strange else ""
    if fault:
        raise GradingFailure(ErrorKind.INVALID_INPUT, f"reference is not JSON: {fault}")
    return reference


def _kind(value: Any) -> str:
    """The JSON type of ``value``, so that true and 1 differ and 1 and 1.0 do not."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "other" if value != value else "number"  # noqa: PLR0124  (NaN is not JSON)
    if isinstance(value, dict):
        return "object" if all(isinstance(key, str) for key in value) else "other"
    if isinstance(value, str | list):
        return "text" if isinstance(value, str) else "array"
    return "other"


def _leaves(value: Any, ordered: bool) -> Iterator[tuple[_Path, str, Any]]:
    """Path, type and value of every leaf; an empty container is a leaf without a value."""
    stack: list[tuple[_Path, Any]] = [((), value)]
    while stack:
        path, node = stack.pop()
        kind = _kind(node)
        if kind == "object" and node:
            stack += [((*path, key), child) for key, child in node.items()]
        elif kind == "array" and node:
            stack += [((*path, i if ordered else _ANYWHERE), child) for i, child in enumerate(node)]
        else:
            yield path, kind, None if kind in ("object", "array") else node


def _first_difference(value: Any, wanted: Any, ignore_extra: bool) -> _Path | None:
    """The path of a difference, ``None`` when there is none."""
    stack: list[tuple[_Path, Any, Any]] = [((), value, wanted)]
    while stack:
        path, ours, theirs = stack.pop()
        kind = _kind(ours)
        if kind != _kind(theirs):
            return path
        if kind == "object":
            if not (theirs.keys() <= ours.keys() if ignore_extra else theirs.keys() == ours.keys()):
                return path
            stack += [((*path, key), ours[key], theirs[key]) for key in theirs]
        elif kind == "array":
            if len(ours) != len(theirs):
                return path
            pairs = zip(ours, theirs, strict=True)
            stack += [((*path, i), mine, other) for i, (mine, other) in enumerate(pairs)]
        elif ours != theirs:
            return path
    return None


def _digest(value: Any) -> bytes:
    """128 bits that equal values share, lists taken as multisets; depth is bounded by decode."""
    kind = _kind(value)
    if kind == "object":
        parts = sorted(_digest(key) + _digest(child) for key, child in value.items())
    elif kind == "array":
        parts = sorted(_digest(child) for child in value)
    elif kind == "text":
        parts = [value.encode("utf-8", "surrogatepass")]
    else:
        parts = [_canonical(value).encode()]
    return blake2b(kind.encode() + b"".join(parts), digest_size=16).digest()


def _canonical(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and not value.is_integer():
        return str(value)
    # Hexadecimal, because decimal text of a long integer takes quadratic time.
    return f"{int(value):x}"


def _shown(path: _Path) -> str:
    text = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return shown(text)
