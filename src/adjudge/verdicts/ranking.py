"""Reading a ranking of several samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.keys import first_under, same_key
from adjudge.verdicts.plain import flat
from adjudge.verdicts.reply import (
    MOST_FOUND,
    NO_VERDICT,
    Found,
    Reply,
    read_blocks,
    reason_in,
    settle,
    truncated,
)

__all__ = ["read_ranking"]

_LABEL = re.compile(
    r"(?:\b(?:rank(?:s|ing|ings)?|order|places?)|排名|排序|名次)[\s*_`\"']{0,4}(?:\s(?:is|are)|[:=]|为|是)\s{0,3}"
    r"[*_`]{0,3}\[?\s?([0-9]{1,4}(?:\s?[,;]\s?[0-9]{1,4}){1,200})\s?\]?(?![0-9.,])",
    re.IGNORECASE,
)
_NAME = r"(?:[A-Za-z]{2,12}\s{1,2})?[(\[\"']{0,2}(?:[A-Z]|[0-9]{1,4})[)\]\"']{0,2}"
_ORDER = re.compile(rf"(?<![\w>=<])({_NAME}(?:\s?(?:>{{1,3}}|=|~)\s?{_NAME})+)")
_ITEM = re.compile(r"([A-Z]|[0-9]{1,4})[)\]\"']{0,2}\s?(>{1,3}|=|~)?")
_LIST = re.compile(r"[\[\s]*[0-9]{1,4}(?:[\s,;]+[0-9]{1,4})*[\]\s]*")
_NUMBER = re.compile(r"\D{0,16}([0-9]{1,4})\D{0,4}|\W{0,4}(?:[A-Za-z]{2,12}\W{1,3})?([A-Z])\W{0,4}")


def read_ranking(
    text: str,
    n: int,
    *,
    keys: Sequence[str] = ("rank", "ranking"),
    block: str | None = None,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | Unread:
    """The places of ``n`` samples, in the samples' order.

    Read are, under one of ``keys``, a list of *n* places (``[2, 1, 3]``: the first sample is
    second), an object of places by sample number or letter, or letters from best to worst
    (``["B", "A"]``); a labelled list ("Rank: [2, 1, 3]"); and an order ("B > A = C", "2 > 1 > 3").

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

    def read(reply: Reply) -> Verdict | Unread:
        return _read(reply, n, tuple(keys))

    return read_blocks(Reply(text, quoted, cut=cut), block, read)


def _read(reply: Reply, n: int, keys: tuple[str, ...]) -> Verdict | Unread:
    if reply.values.given_up:
        return Unread(why="too much JSON, or too much that is broken")
    settled = settle(reply, list(islice(_in_json(reply, n, keys), MOST_FOUND)))
    if settled is None and not reply.values.unclosed:
        settled = settle(reply, list(islice(_in_text(reply, n), MOST_FOUND)))
    if settled is None:
        return truncated(reply)
    if isinstance(settled, Unread):
        return settled
    reason = reason_in(settled.fields) or reply.around(settled)
    return Verdict(value=settled.value, reason=reason, form=settled.form, fields=settled.fields)


def _in_json(reply: Reply, n: int, keys: tuple[str, ...]) -> Iterator[Found]:
    for piece in reply.values.pieces:
        values = list(_under(piece.value, keys))
        if not values and isinstance(piece.value, list) and _all_places(piece.value):
            values = [(piece.value, {})]
        for value, fields in values:
            places = _places(value, n)
            yield Found(piece.start, piece.end, places or NO_VERDICT, "json", fields)


def _under(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Like ``first_under``, but a ranking may itself be an object."""
    if isinstance(value, dict):
        wanted = {same_key(key) for key in keys}
        direct = [inner for key, inner in value.items() if same_key(key) in wanted]
        if direct:
            yield from ((inner, value) for inner in direct)
            return
    yield from first_under(value, keys)


def _all_places(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, int | str) for item in items)


def _in_text(reply: Reply, n: int) -> Iterator[Found]:
    for pattern, places in ((_LABEL, _listed), (_ORDER, _ordered)):
        for found in pattern.finditer(reply.prose):
            if reply.prose[found.end() : found.end() + 2].strip()[:1] in tuple(">=<"):
                continue  # more follows, of which this makes nothing
            if reply.cut and not reply.prose[found.end() :].strip(" ]*"):
                continue
            if reply.counts(*found.span(1)):
                value = places(found[1], n)
                yield Found(*found.span(1), value or NO_VERDICT, "phrase")


def _listed(text: str, n: int) -> list[int] | None:
    return _valid([int(number) for number in re.findall(r"[0-9]{1,4}", text)], n)


def _ordered(text: str, n: int) -> list[int] | None:
    """Places from "B > A = C": equals share the first of their places."""
    places: dict[int | None, int | None] = {}
    place = 1
    for number, item in enumerate(_ITEM.finditer(_without_nouns(text)), 1):
        sample = _sample(item[1])
        if sample is None or sample in places:
            return None
        places[sample] = place
        if (item[2] or ">")[0] == ">":
            place = number + 1
    return _by_sample(places, n)


def _without_nouns(text: str) -> str:
    return re.sub(r"[A-Za-z]{2,12}\s", "", text)


def _places(value: Any, n: int) -> list[int] | None:
    """``value`` of a ranking key as places; ``None`` for what is none."""
    if isinstance(value, str):
        return _written(flat(value).strip(), n)
    if isinstance(value, dict):
        by_name = {_sample(str(key)): _whole(place) for key, place in value.items()}
        return _by_sample(by_name, n) if len(by_name) == len(value) else None
    if not isinstance(value, list) or len(value) != n:
        return None
    if all(isinstance(item, str) and not item.strip().isdigit() for item in value):
        return _by_sample({_sample(item): place for place, item in enumerate(value, 1)}, n)
    return _valid([_whole(item) for item in value], n)


def _written(text: str, n: int) -> list[int] | None:
    if (order := _ORDER.fullmatch(text)) is not None:
        return _ordered(order[1], n)
    return _listed(text, n) if _LIST.fullmatch(text) else None


def _whole(place: Any) -> int | None:
    if isinstance(place, bool):
        return None
    if isinstance(place, str):
        return int(place) if place.isascii() and place.isdigit() and len(place) < 5 else None
    if isinstance(place, int | float) and math.isfinite(place) and place == int(place):
        return int(place)
    return None


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
