"""What reading a judge's reply comes to: a verdict, or why there is none."""

from __future__ import annotations

from typing import Any

import msgspec

from adjudge.errors import ErrorKind

__all__ = ["TooManyError", "Unread", "Verdict"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The one verdict that a reply gives.

    ``value``: a number (:func:`~adjudge.verdicts.read_score`), a menu's label
    (:func:`~adjudge.verdicts.read_choice`), marks by item (:func:`~adjudge.verdicts.read_marks`), a
    list of places (:func:`~adjudge.verdicts.read_ranking`) or the object itself
    (:func:`~adjudge.verdicts.read_fields`). ``reason``: the judge's own words for it, as far as the
    reply parts them. ``form``: the shape it was read from (``json``, ``tag``,
    ``brackets``, ``phrase``, ``bare``, ``ending``). ``fields``: the whole object where it was JSON.
    """

    value: Any
    reason: str = ""
    form: str = ""
    fields: dict[str, Any] = {}


class TooManyError(Exception):
    """A reply has too many places to read; within this package only, where it becomes ``Unread``.

    Passing over the rest of them could leave the wrong verdict.
    """


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """No verdict: ``why`` in a few fixed words of ours, never a quotation of the reply.

    ``kind``: ``unparsable`` (none, several that differ, hedged, only quoted), ``out_of_range`` (one
    clear verdict outside the scale or the menu) or ``truncated`` (the reply was cut before one).
    """

    why: str
    kind: ErrorKind = ErrorKind.UNPARSABLE
