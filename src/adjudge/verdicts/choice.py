"""Reading a choice from a menu."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind
from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.mentions import label_at, mark_mentions
from adjudge.verdicts.menu import OUTSIDE, TIED, Menu
from adjudge.verdicts.phrases import (
    FIRST_SENTENCE,
    LINE,
    Firmness,
    Kind,
    Statement,
    labelled,
    statements,
)
from adjudge.verdicts.reply import (
    MOST_FOUND,
    NO_VERDICT,
    Found,
    Reply,
    read_reply,
    settle,
    truncated,
)

__all__ = ["CHOICE_KEYS", "read_choice"]

CHOICE_KEYS = (
    "verdict", "better", "winner", "choice", "answer", "preference", "preferred", "label",
    "decision", "final_verdict", "final_answer", "better_response", "better_answer",
    "better_output", "judgment", "judgement", "result", "选择", "结论", "答案", "裁决", "获胜者",
)  # fmt: skip
_TAGS = "better|verdict|answer|choice|winner|decision|final_answer|result"
_LONGEST_VALUE = 4_000


def read_choice(
    text: str,
    menu: Menu,
    *,
    keys: Sequence[str] = CHOICE_KEYS,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | Unread:
    """The one label of ``menu`` that a judge's reply chooses.

    Looked for, in this order: inside the tagged ``block`` that our prompt asked for; JSON with one
    of ``keys``, ``<better>A</better>`` and ``[[A]]``, which must agree; the
    whole reply; then what its sentences say. There a label ("Verdict: B") outweighs a conclusion
    ("Therefore, Output (b) is better"), and that a plain statement ("Response A is worse, so I pick
    B"); what is equally firm must agree, and nothing firm may follow that says otherwise. "Better"
    in one respect, questions, conditions, denials and reports of what others say choose nothing.
    "Both", "neither" and ties are the menu's tie where it has one and no verdict otherwise.

    ``quoted`` and ``cut``: as for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` is one of the menu's labels; else an
    :class:`Unread`. Raises nothing.

    >>> pair = Menu.pair()
    >>> read_choice("Response A is worse, so I pick B.", pair).value
    'B'
    >>> read_choice("A is better here but B is better there.", pair).why
    'several verdicts that differ'
    """
    return read_reply(Reply(text, quoted, cut=cut), partial(_read, menu=menu, keys=tuple(keys)))


def _read(reply: Reply, menu: Menu, keys: tuple[str, ...]) -> Verdict | Unread:
    marked = reply.marked(keys, _TAGS, partial(_label_of, menu))
    settled = settle(reply, list(islice(marked, MOST_FOUND + 1)))
    if settled is None:
        if reply.values.unclosed:
            return truncated(reply)
        settled = _alone(reply, menu) or _weigh(reply, _said(reply, menu))
    elif isinstance(settled, Found) and not reply.bare:
        said = [
            one.found
            for one in _said(reply, menu)
            if one.own
            and one.firmness
            >= (Firmness.SAID if one.found.start >= settled.end else Firmness.FINAL)
        ]
        if any(one.value != settled.value for one in said):
            return Unread(why="several verdicts that differ")
    if not isinstance(settled, Found):
        return settled or truncated(reply)
    if settled.value == OUTSIDE:
        return Unread(kind=ErrorKind.OUT_OF_RANGE, why="a choice that the menu does not offer")
    if settled.value == TIED:
        return Unread(why="a tie or both, which the menu does not offer")
    return reply.verdict(settled, settled.value)


def _label_of(menu: Menu, value: Any) -> Any:
    """The label that a JSON value, or the text of a mark, stands for."""
    if isinstance(value, bool):
        return menu.match(str(value)) or menu.match("yes" if value else "no") or NO_VERDICT
    if not isinstance(value, int | str) or len(str(value)) > _LONGEST_VALUE:
        return NO_VERDICT
    if (label := menu.match(str(value))) is not None:
        return label
    inner = Reply(str(value))
    said = _weigh(inner, _said(inner, menu))
    return said.value if isinstance(said, Found) else NO_VERDICT


def _alone(reply: Reply, menu: Menu) -> Found | None:
    """The whole reply as a name."""
    if len(reply.text) > 200 or reply.cut or reply.flat.startswith(">"):
        return None
    label = menu.match(reply.flat)
    return None if label is None else Found(0, len(reply.text), label, "bare")


class _Said(NamedTuple):
    """What one statement chooses, how firmly; ``tie``: nothing; ``own``: not as a quotation."""

    found: Found
    firmness: Firmness
    tie: bool
    sentence: int
    own: bool


def _said(reply: Reply, menu: Menu) -> list[_Said]:
    """What the reply's labels, lines and sentences choose, in the reply's order."""
    text = _without_quotations(mark_mentions(menu, reply.prose))
    found = list(islice(labelled(text, headings=menu.compared), 4 * MOST_FOUND))
    if menu.compared:
        found += islice(statements(text), 4 * MOST_FOUND)
    else:
        found += islice(_leading(text), 1)
    made: list[_Said] = []
    for one in sorted(found):
        value = _value(one, menu)
        if (
            value is not None
            and reply.complete(one.start, one.end, firm=one.firmness >= Firmness.CONCLUDED)
            and reply.affirmed(one.start)
        ):
            form = "bare" if one.sentence == LINE else "phrase"
            place = Found(one.start, one.end, value, form)
            own = reply.own(*(one.words or (one.start, one.end)))
            made.append(_Said(place, one.firmness, one.kind is Kind.TIE, one.sentence, own))
    return made


def _value(one: Statement, menu: Menu) -> str | None:
    if one.kind is Kind.TIE:
        return TIED if menu.tie is None else menu.tie
    label = label_at(menu, one.sign)
    return menu.other(label) if one.kind is Kind.AGAINST else label


def _weigh(reply: Reply, said: list[_Said]) -> Found | Unread | None:
    """The firmest statements' choice, if they agree and none that follows says otherwise.

    One that may be a quotation chooses nothing, but it can contradict.
    """
    said = _without_overcome_ties(said)
    firmest = max((one.firmness for one in said if one.own), default=None)
    if firmest is None:
        return None
    first = [one.found for one in said if one.firmness >= firmest]
    chosen = [one.found for one in said if one.own and one.firmness is firmest][-1]
    # A reply that begins or ends with another plain verdict has two.
    beside = [
        one.found
        for one in said
        if one.firmness >= Firmness.SAID
        and one.found.form != "bare"
        and (one.found.start > chosen.end or one.sentence == FIRST_SENTENCE)
    ]
    if any(one.value != chosen.value for one in (*first, *beside)):
        return Unread(why="several verdicts that differ")
    if reply.retracted(chosen.end):
        return Unread(why="words behind the verdict take it back")
    return chosen


def _without_overcome_ties(said: list[_Said]) -> list[_Said]:
    """``said`` less the ties after which a choice is concluded all the same."""
    last = max(
        (s.found.start for s in said if not s.tie and s.firmness >= Firmness.CONCLUDED), default=-1
    )
    return [s for s in said if not s.tie or s.found.start > last or s.firmness is Firmness.FINAL]


_QUOTATION = re.compile(r'"[^"\n]{2,400}"')
_LEADING = re.compile(
    "[\\s#>\"'(\\[-]{0,8}(?P<x>[\ue000-\ue0ff])\x01*[\\s\"')\\]]{0,4}(?=[.,;:!。，；！\n(-]|$)"
)


def _without_quotations(text: str) -> str:
    """Blanks in place of what stands in quotation marks, unless that is a mention or a line."""

    def blank(found: re.Match[str]) -> str:
        inner = found[0][1:-1].strip()
        line = text.rfind("\n", 0, found.start()) + 1
        end = text.find("\n", found.end())
        around = text[line : found.start()] + text[found.end() : end if end >= 0 else len(text)]
        if not inner.strip("\x01 .")[1:] or not around.strip(" .*#"):
            return found[0]
        return '"' + " " * (len(found[0]) - 2) + '"'

    return _QUOTATION.sub(blank, text) if '"' in text else text


def _leading(text: str) -> Iterator[Statement]:
    """A name with which the reply begins: "Yes, because …"; no other name in its sentence."""
    found = _LEADING.match(text)
    if found is not None and len({*_SIGN.findall(_ENDS.split(text, maxsplit=1)[0])}) < 2:
        yield Statement(0, found.end(), Kind.FOR, found["x"], Firmness.CONCLUDED, -3)


_SIGN = re.compile("[\ue000-\ue0ff]")
_ENDS = re.compile(r"[.。!！?\n]")
