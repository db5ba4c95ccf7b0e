"""Reading the one JSON object of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.json_text import clashes
from adjudge.verdicts.reply import Found, Reply, read_reply, reason_in, settle, truncated

__all__ = ["read_fields"]


def read_fields(
    text: str,
    required: Sequence[str] = (),
    *,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | Unread:
    """The one JSON object that a reply gives, with all ``required`` keys.

    Objects without them are passed over when there is one with them. Several objects must be equal,
    or the last one be called final. An object, at any depth, with a key that has two different
    values is none. ``quoted`` and ``cut``: as for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` is the object (keys are strings; values as JSON has
    them, ``nan`` and ``inf`` included where the judge wrote such); else an :class:`Unread`. Raises
    nothing.

    >>> read_fields("Sure: {'steps': [1, 2], 'ok': True,}", ["steps"]).value
    {'steps': [1, 2], 'ok': True}
    """
    return read_reply(Reply(text, quoted, cut=cut), partial(_read, required=required))


def _read(reply: Reply, required: Sequence[str]) -> Verdict | Unread:
    objects: list[tuple[int, int, dict[str, Any]]] = [
        (start, end, value) for start, end, value in reply.values.pieces if isinstance(value, dict)
    ]
    having = [one for one in objects if all(key in one[2] for key in required)]
    if objects and not having:
        return Unread(why="the object lacks a key that was asked for")
    settled = settle(reply, [Found(start, end, value, "json") for start, end, value in having])
    if settled is None:
        return truncated(reply)
    if isinstance(settled, Unread):
        return settled
    if clashes(settled.value):
        return Unread(why="a key has two different values")
    value = settled.value
    return Verdict(value=value, reason=reason_in(value), form="json", fields=value)
