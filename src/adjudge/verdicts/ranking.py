"""Reading a ranking of several samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.keys import first_under, same_key
from adjudge.verdicts.menu import NOUNS
from adjudge.verdicts.plain import flat
from adjudge.verdicts.reply import (
    MOST_FOUND,
    NO_VERDICT,
    Found,
    Reply,
    read_reply,
    settle,
    truncated,
)

__all__ = ["places_in", "read_ranking"]

_NOUN = "|".join(noun for noun in NOUNS if noun.isascii())
_NAME = rf"(?:(?i:{_NOUN})\s{{1,2}})?[(\[\"']{{0,2}}(?:[A-Z]|[0-9]{{1,4}})[)\]\"']{{0,2}}"
_ORDER = re.compile(rf"(?<![\w>=<])({_NAME}(?:\s?(?:>{{1,3}}|=|~)\s?{_NAME})+)")
_WORST_FIRST = re.compile(
    r"worst\s(?:to|first)|(?:least|lowest)\s(?:to|first)|ascending|最差到|从差", re.IGNORECASE
)
_NUMBER = re.compile(r"\D{0,16}([0-9]{1,4})\D{0,4}|\W{0,4}(?:[A-Za-z]{2,12}\W{1,3})?([A-Z])\W{0,4}")


def read_ranking(
    text: str,
    n: int,
    *,
    keys: Sequence[str] = ("rank", "ranking"),
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | Unread:
    """The places of ``n`` samples, in the samples' order.

    Read are, under one of ``keys``, a list of *n* places (``[2, 1, 3]``: the first sample is
    second), an object of places by sample number or letter, or letters from best to worst
    (``["B", "A"]``); an order ("B > A = C", "2 > 1 > 3"); and a bare list of numbers where it says
    the same read as places and as samples from best to worst.

    Places run from 1, the best; equal samples share a number, and the next place may be skipped or
    not. ``[1, 1, 3]`` and ``[1, 1, 2]`` are fine, ``[1, 3, 3]`` is not. ``quoted`` and ``cut``: as
    for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` is a list of *n* integers from 1 to *n*; else an
    :class:`Unread`. Raises nothing.

    >>> read_ranking('{"rank": [2, 1, 3], "reason": "…"}', 3).value
    [2, 1, 3]
    >>> read_ranking("B > C > A", 3).value
    [3, 1, 2]
    """
    return read_reply(Reply(text, quoted, cut=cut), partial(_read, n=n, keys=tuple(keys)))


def _read(reply: Reply, n: int, keys: tuple[str, ...]) -> Verdict | Unread:
    found = list(islice(_in_json(reply, n, keys), MOST_FOUND))
    if not reply.values.unclosed:
        found += islice(_in_text(reply, n), MOST_FOUND)
    settled = settle(reply, found)
    if not isinstance(settled, Found):
        return settled or truncated(reply)
    return reply.verdict(settled, settled.value)


def _in_json(reply: Reply, n: int, keys: tuple[str, ...]) -> Iterator[Found]:
    wanted = {same_key(key) for key in keys}
    for piece in reply.values.pieces:
        found = piece.value
        if isinstance(found, list) and all(isinstance(item, int | str) for item in found):
            places = _same_either_way(_places(found, n))
            yield Found(piece.start, piece.end, places or NO_VERDICT, "json")
            continue
        own = found.items() if isinstance(found, dict) else ()  # a ranking may be an object
        values = [(inner, found) for key, inner in own if same_key(key) in wanted]
        for value, fields in values or first_under(found, keys):
            yield Found(piece.start, piece.end, _places(value, n) or NO_VERDICT, "json", fields)


def _in_text(reply: Reply, n: int) -> Iterator[Found]:
    for found in _ORDER.finditer(reply.prose):
        behind = reply.prose[found.end() :].lstrip(" *)]")
        if behind[:1] in ("<", ">", "=") or (reply.cut and not behind):
            continue  # more follows, or could have followed, of which this makes nothing
        if reply.counts(*found.span()) and not reply.reported(found.start()):
            line = reply.prose[reply.prose.rfind("\n", 0, found.start()) + 1 : found.start()]
            value = None if _WORST_FIRST.search(line) else _ordered(found[0], n)
            yield Found(*found.span(), value or NO_VERDICT, "phrase")


def _same_either_way(places: list[int] | None) -> list[int] | None:
    """Numbers that may be places or name samples from best to worst: where both are the same."""
    if places is None or len(set(places)) < len(places):
        return places
    return places if all(places[place - 1] == at for at, place in enumerate(places, 1)) else None


def _ordered(text: str, n: int) -> list[int] | None:
    """Places from "B > A = C": equals share the first of their places."""
    places: dict[int | None, int] = {}
    place = 1
    for number, item in enumerate(re.split(r"(?<=[>=~])(?=[^>=~])", text), 1):
        sample = _sample(item.rstrip(">=~ "))
        if sample is None or sample in places:
            return None
        places[sample] = place
        if item[-1] == ">":
            place = number + 1
    return _by_sample(places, n)


def _places(value: Any, n: int) -> list[int] | None:
    """``value`` of a ranking key as places; ``None`` for what is none."""
    if isinstance(value, str):
        return _ordered(value, n) if _ORDER.fullmatch(value := flat(value).strip()) else None
    if isinstance(value, dict):
        by_name = {_sample(str(key)): _whole(place) for key, place in value.items()}
        return _by_sample(by_name, n) if len(by_name) == len(value) else None
    if not isinstance(value, list) or len(value) != n:
        return None
    if all(isinstance(item, str) and not item.strip().isdigit() for item in value):
        return _by_sample({_sample(item): place for place, item in enumerate(value, 1)}, n)
    return _valid([_whole(item) for item in value], n)


def _whole(place: Any) -> int | None:
    text = "" if isinstance(place, bool) else str(place).removesuffix(".0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None


def _sample(name: str) -> int | None:
    """The number of a sample from 1, by its number or letter ("Response 2", "B")."""
    found = _NUMBER.fullmatch(name) if len(name) < 40 else None
    if found is None:
        return None
    return int(found[1]) if found[1] else ord(found[2]) - ord("A") + 1


def _by_sample(places: Mapping[int | None, int | None], n: int) -> list[int] | None:
    if set(places) != set(range(1, n + 1)):
        return None
    return _valid([places[sample] for sample in range(1, n + 1)], n)


def places_in(value: Any, n: int) -> list[int] | None:
    """A JSON list of ``n`` places from 1, the best; ``None`` for anything else.

    >>> places_in([3, 1, 1], 3), places_in([2, 3, 4], 3), places_in([1, "2"], 2)
    ([3, 1, 1], None, None)
    """
    if not isinstance(value, list) or not all(type(place) is int for place in value):
        return None
    return _valid(value, n)


def _valid(places: Sequence[int | None], n: int) -> list[int] | None:
    """``places`` when they are a ranking: none missing but those that a tie takes."""
    whole = [place for place in places if place is not None]
    if len(whole) != n or len(places) != n:
        return None
    allowed = {1}
    different: set[int] = set()
    for number, place in enumerate(sorted(whole), 1):
        if place not in allowed:
            return None
        different.add(place)
        allowed = {place, number + 1, len(different) + 1}
    return whole
