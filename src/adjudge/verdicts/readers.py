"""Readers of replies that have no form of ours: a score, a choice, a ranking, marks, an object.

All read the same places (:mod:`adjudge.verdicts.reply`): JSON, else one mark at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ErrorKind
from adjudge.verdicts.notation import (
    ANSWER_NOUNS,
    LABEL_NOT_IN_MENU,
    TIE_NOT_ALLOWED,
    Menu,
    normalize_signs,
    parse_score,
)
from adjudge.verdicts.reply import ReplyText, find_under_keys, normalize_key, takes_back
from adjudge.verdicts.strict import (
    Ending,
    NumberScale,
    UnreadableReply,
    Verdict,
    check_places,
    extract_reason,
)


def _read(
    reply: ReplyText, keys: Sequence[str], value_of: Callable[[Any], Any]
) -> Verdict | UnreadableReply:
    """JSON with one of ``keys``, else a mark."""

    def under_keys(found: Any) -> Any:
        values = [value_of(one) for one in find_under_keys(found, keys)]
        return values[0] if values and all(one == values[0] for one in values) else None

    read = reply.read_json(under_keys)
    if read is None:
        return reply.read_ending_mark(value_of)
    if isinstance(read, Verdict):
        others = reply.find_marks(reply.before, value_of)
        if any(one.value != read.value for one in others if not one.quoted):
            return reply.unreadable("several verdicts that differ")
    return read


def read_ending(
    text: str, ending: Ending, *, quoted: Sequence[str] = (), cut: bool = False
) -> str | UnreadableReply:
    r"""The text that stands at the place that ``ending`` declares; several must say the same.

    The place is the first or the last line, or a tag with which the reply begins or ends: what
    stands between is spoken of. Emphasis is left out, thinking is not searched. A place that one of
    ``quoted`` (the candidate's texts) has, too, does not count.

    Returns an :class:`UnreadableReply` without exactly one such text; raises nothing.

    >>> read_ending("Right, but short.\n**Score:** 4/5", Ending(line="Score:"))
    '4/5'
    """
    words = ending.tag or _plain(ending.line).rstrip(": ")
    reply = ReplyText(text, (words,), quoted, cut=cut)
    if ending.tag:
        places = list(
            re.finditer(rf"<{re.escape(words)}>([^<]{{0,400}})</{re.escape(words)}>", reply.text)
        )
        if len(places) != reply.text.count(f"<{words}>"):
            places = []
        own = [one for one in places if not reply.is_quoted(one[0])]
    else:
        line = rf"^[ \t*_`#]*{re.escape(words)}[ \t*_`]*:?(?![^\W_])(.*)$"
        places = list(re.finditer(line, reply.text, re.IGNORECASE | re.MULTILINE))
        if cut and places and places[-1].end() == len(reply.text):
            places.pop()
        own = [one for one in places if not reply.is_labelled(words, one[1])]
    if not own:
        why = "the place declared for the verdict is not there"
        return reply.unreadable(why) if not places else UnreadableReply(why=_ALSO_JUDGED)
    if len({_plain(one[1]) for one in own}) > 1:
        return UnreadableReply(why="several verdicts that differ")
    behind = reply.text[own[-1].end() :].strip(" \n*_`.")
    value = _plain(own[0][1])
    opens = not reply.text[: own[0].start()].strip(" \n*_`#") and not behind[:1].islower()
    opens = opens and not takes_back(behind, value)
    if not opens and (behind or reply.is_announced(own[-1].start())):
        return UnreadableReply(why="the verdict neither begins nor ends the reply")
    return value


_ALSO_JUDGED = "the text that is judged has the same verdict"


def _plain(text: str) -> str:
    return normalize_signs(text).translate(_EMPHASIS).strip(" \t\n_")


_EMPHASIS = str.maketrans("", "", "*`#")


_STATED = re.compile(
    r"(?i)\"(?:max[\w\s]*|(?:\w+[\s_])?(?:scale|range|max|maximum)|out[\s_]?of)\"\s*:\s*"
    r"(?:\[[^\]]{0,40}|\"[^\"]{0,40})?(?<![0-9.])([0-9]+(?:\.[0-9]+)?)"
)
"""The highest number of a scale that an object names."""
_SCORE_NOUNS = ("score", "rating", "grade", "总分", "评分", "得分", "分数", "打分")


def read_score(
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    integer: bool = False,
    keys: Sequence[str] = ("score", "rating", "final_score", "overall_score"),
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    r"""The one score that a judge's reply gives, where no form of ours was asked for.

    Read are JSON with one of ``keys`` that is the reply or ends it; else the one mark with which
    the reply ends: ``[[3]]``, ``<score>3</score>``, ``\boxed{3}``, a line or sentence that is
    nothing but a label and the score ("Final score: 3/5", "评分：4"), a number that is the whole
    reply. ``[[1]]`` and ``[[0]]`` may be the first line instead. Marks that differ, a mark that
    ``quoted`` holds, too, and anything else are refused. With ``low, high = 0, 1`` yes, no and
    booleans are scores.

    ``quoted``: the candidate's texts. ``cut``: the reply ran into its length limit, so that only
    what is complete counts.

    Returns a :class:`Verdict` whose ``value`` lies from ``low`` to ``high`` (an ``int`` with
    ``integer``); else an :class:`UnreadableReply`. Raises nothing.

    >>> read_score("Right, but curt.\nScore: 3/5", low=1, high=5).value
    3.0
    >>> read_score("[[3]] or [[4]]", low=1, high=5).why
    'several verdicts that differ'
    """
    scale = NumberScale(low, high, integer)
    reply = ReplyText(text, (*keys, *_SCORE_NOUNS), quoted, cut=cut, scale=scale)
    read = _read(reply, keys, lambda value: parse_score(value, scale))
    if isinstance(read, UnreadableReply):
        return read
    stated = _STATED.findall(reply.text) if read.form == "json" else ()
    if any(high is None or float(one) != high for one in stated):
        return reply.unreadable("the JSON names another scale")
    if not scale.holds(read.value):
        return UnreadableReply(kind=ErrorKind.OUT_OF_RANGE, why="a score outside the scale")
    return msgspec.structs.replace(read, value=int(read.value)) if integer else read


CHOICE_KEYS = (
    "verdict", "better", "winner", "choice", "answer", "preference", "preferred", "label",
    "decision", "final_verdict", "final_answer", "better_response", "better_answer",
    "better_output", "judgment", "judgement", "result", "选择", "结论", "答案", "裁决", "获胜者",
)  # fmt: skip


def read_choice(
    text: str,
    menu: Menu,
    *,
    keys: Sequence[str] = CHOICE_KEYS,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    """The one label of ``menu`` that a judge's reply chooses.

    The places, ``quoted`` and ``cut`` are those of :func:`~adjudge.verdicts.read_score`:
    ``[[A]]``, ``<better>A</better>``, ``Final verdict: Output (b)``. "Both", "neither" and ties are
    the menu's tie where it has one and no verdict otherwise.

    Returns a :class:`Verdict` whose ``value`` is one of the menu's labels; else an
    :class:`UnreadableReply`. Raises nothing.

    >>> pair = Menu.pair()
    >>> read_choice("A is curt. My verdict: Response B", pair).value
    'B'
    >>> read_choice("If brevity counts [[A]], else [[B]]", pair).why
    'several verdicts that differ'
    """

    def label_of(value: Any) -> str | None:
        if isinstance(value, bool):
            return menu.match(str(value)) or menu.match("yes" if value else "no")
        return menu.match(str(value)) if isinstance(value, int | str) else None

    scale = NumberScale(0, 1) if set(menu.labels) == {"0", "1"} else NumberScale()
    read = _read(ReplyText(text, keys, quoted, cut=cut, scale=scale), keys, label_of)
    if isinstance(read, UnreadableReply):
        return read
    if read.value == LABEL_NOT_IN_MENU:
        why = "a choice that the menu does not offer"
        return UnreadableReply(kind=ErrorKind.OUT_OF_RANGE, why=why)
    if read.value == TIE_NOT_ALLOWED:
        return UnreadableReply(why="a tie or both, which the menu does not offer")
    return read


def read_ranking(
    text: str,
    n: int,
    *,
    keys: Sequence[str] = ("rank", "ranking"),
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    """The places of ``n`` samples, in the samples' order.

    Read are, under one of ``keys``, a list of *n* places (``[2, 1, 3]``: the first sample is
    second), an object of places by sample number or letter, or letters from best to worst
    (``["B", "A"]``); an order with which the reply ends ("Ranking: B > A = C"); and a bare list of
    numbers where it says the same read as places and as samples from best to worst.

    Places run from 1, the best; equal samples share a number, and the next place may be skipped or
    not. ``[1, 1, 3]`` and ``[1, 1, 2]`` are fine, ``[1, 3, 3]`` is not. ``quoted`` and ``cut``: as
    for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` is a list of *n* integers from 1 to *n*; else an
    :class:`UnreadableReply`. Raises nothing.

    >>> read_ranking('{"rank": [2, 1, 3], "reason": "…"}', 3).value
    [2, 1, 3]
    >>> read_ranking("B > C > A", 3).value
    [3, 1, 2]
    """
    reply = ReplyText(text, (*keys, "rank", "ranking", "排名"), quoted, cut=cut)
    if isinstance(found := reply.found, list) and not any(isinstance(one, dict) for one in found):
        places = _places(found, n)
        # Numbers may be places, or name samples from best to worst.
        if places is not None and len(set(places)) == n and all(type(one) is int for one in found):
            same = all(places[place - 1] == at for at, place in enumerate(places, 1))
            places = places if same else None
        return reply.read_json(lambda _: places) or reply.unreadable("no ranking was found")
    return _read(reply, keys, lambda value: _places(value, n))


_NAME = r"(?:[A-Za-z]{2,12}\s{1,2}#?)?[(\[\"']{0,2}(?:[A-Z]|[0-9]{1,4})[)\]\"']{0,2}"
_ORDER = re.compile(rf"{_NAME}(?:\s?(?:>{{1,3}}|=|~)\s?{_NAME})+")
_SAMPLE = re.compile(
    rf"(?:(?i:{'|'.join(ANSWER_NOUNS)})[\s_#]{{0,3}})?[\s*`(\[\"']{{0,4}}(?:([0-9]{{1,4}})|([A-Z]))\W{{0,4}}"
)


def _places(value: Any, n: int) -> list[int] | None:
    """``value`` of a ranking key, or the words of a mark, as places; ``None`` for what is none."""
    if isinstance(value, str):
        value = normalize_signs(value).strip()
        return _ordered(value, n) if _ORDER.fullmatch(value) else None
    if isinstance(value, dict):
        by_name = {_sample(str(key)): _read_place(place) for key, place in value.items()}
        return _by_sample(by_name, n) if len(by_name) == len(value) else None
    if not isinstance(value, list) or len(value) != n:
        return None
    if all(isinstance(item, str) and not item.strip().isdigit() for item in value):
        return _by_sample({_sample(item): place for place, item in enumerate(value, 1)}, n)
    return check_places([_read_place(item) for item in value], n)


def _ordered(text: str, n: int) -> list[int] | None:
    """Places from "B > A = C": equals share the first of their places."""
    places: dict[int | None, int] = {}
    place = 1
    for number, item in enumerate(re.split(r"(?<=[>=~])(?=[^>=~])", text), 1):
        sample = _sample(item.rstrip(">=~ ").strip())
        if sample is None or sample in places:
            return None
        places[sample] = place
        if item[-1] == ">":
            place = number + 1
    return _by_sample(places, n)


def _read_place(place: Any) -> int | None:
    text = "" if isinstance(place, bool) else str(place).removesuffix(".0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None


def _sample(name: str) -> int | None:
    """The number of a sample from 1, by its number or letter ("Response 2", "B")."""
    found = _SAMPLE.fullmatch(name) if len(name) < 40 else None
    if found is None:
        return None
    return int(found[1]) if found[1] else ord(found[2]) - ord("A") + 1


def _by_sample(places: Mapping[int | None, int | None], n: int) -> list[int] | None:
    if set(places) != set(range(1, n + 1)):
        return None
    return check_places([places[sample] for sample in range(1, n + 1)], n)


def read_fields(
    text: str,
    required: Sequence[str] = (),
    *,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    r"""The JSON object that a reply is or ends with, with all ``required`` keys.

    ``quoted`` and ``cut``: as for :func:`~adjudge.verdicts.read_score`. Returns a :class:`Verdict`
    whose ``value`` is the object; else an :class:`UnreadableReply`. Raises nothing.

    >>> read_fields('Sure:\n{"steps": [1, 2], "ok": true}', ["steps"]).why
    "the JSON is announced as somebody else's words"
    >>> read_fields('Here is my verdict:\n{"steps": [1, 2], "ok": true}', ["steps"]).value
    {'steps': [1, 2], 'ok': True}
    """

    def having(found: Any) -> Any:
        return found if isinstance(found, dict) and all(key in found for key in required) else None

    reply = ReplyText(text, required, quoted, cut=cut)
    if isinstance(reply.found, dict) and having(reply.found) is None:
        return reply.unreadable("the object lacks a key that was asked for")
    return reply.read_json(having) or reply.unreadable("no verdict was found")


_MET = (
    "present", "met", "yes", "true", "1", "pass", "passed", "satisfied", "fulfilled", "correct",
    "t", "✓", "✔", "✅", "是", "满足", "符合", "通过", "存在", "正确",
)  # fmt: skip
_UNMET = (
    "not present", "not met", "unmet", "no", "false", "0", "fail", "failed", "not satisfied",
    "unsatisfied", "not fulfilled", "absent", "missing", "incorrect", "f", "✗", "✘", "❌", "否",
    "不满足", "不符合", "未满足", "未通过", "不通过", "不存在", "错误",
)  # fmt: skip
_MARKS: dict[str, bool | None] = (
    dict.fromkeys(_MET, True)
    | dict.fromkeys(_UNMET, False)
    | dict.fromkeys(("n/a", "na", "not applicable", "不适用"), None)
)
_MARK_KEYS = frozenset({
    "verdict", "met", "criteriamet", "criterionmet", "present", "label", "answer", "result",
    "status", "judgment", "judgement", "satisfied", "score", "mark", "pass", "passed", "value",
})  # fmt: skip
_ID_KEYS = frozenset({
    "id", "criterion", "criterionid", "criteriaid", "index", "number", "rubric", "rubricid", "item"
})  # fmt: skip
_NUMBERED = re.compile(
    r"(?:rubric|criterion|criteria|item|requirement|r|c|q|标准|第)?[\s_#.:-]{0,4}([0-9]{1,6})\W{0,4}条?",
    re.IGNORECASE,
)


def read_mark(value: Any) -> bool | None:
    """One mark: true (met), false (not met), ``None`` (not applicable).

    Raises ``ValueError`` for what is no mark.

    >>> [read_mark(v) for v in ("PRESENT", "not_present", 1, "No.", "N/A")]
    [True, False, True, False, None]
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    text = normalize_signs(value).strip(" \t\n*`\"'[]()<>") if isinstance(value, str) else ""
    word = re.sub(r"[\s_-]+", " ", text[:40].rstrip(".!。")).casefold()
    if word not in _MARKS:
        raise ValueError("no mark: allowed are yes/no, met/unmet, PRESENT/NOT_PRESENT, 1/0 and N/A")
    return _MARKS[word]


def read_marks(
    text: str,
    ids: Sequence[str],
    *,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    """The marks of the criteria called ``ids``, in the JSON that a reply is or ends with.

    Read are objects by id (``{"1": "PRESENT"}``, ``{"R1": {"verdict": "met", "reason": …}}``),
    lists of objects that name an id and a list of exactly as many marks as there are ids; each may
    be the one entry of an object. A mark is a boolean, 1 or 0, or one of the words for it, such as
    met, unmet, yes, no, PRESENT, "NOT PRESENT"; N/A is ``None``.

    ``quoted`` and ``cut``: as for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` maps ids to true, false or ``None`` (not applicable)
    in the order of ``ids``. **Ids without a mark, or with none that can be read, are absent**: an
    incomplete verdict is kept. ``fields`` has ``reasons`` by id. An :class:`UnreadableReply` when
    no id has a mark, when one has two that differ, and when a number beyond the ids is marked (a
    reply to another rubric). Raises nothing.

    >>> read_marks('{"1": "PRESENT", "R2": "NOT PRESENT"}', ["1", "2", "3"]).value
    {'1': True, '2': False}
    """
    reply = ReplyText(text, (), quoted, cut=cut)
    names = _Names(ids)
    marks: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for key, item in _marked_items(reply.found, names):
        if (name := names.of(key)) is None:
            if names.number(key) is not None:
                return reply.unreadable("a mark for a number that no criterion has")
            continue
        for value in _marks_of(item):
            try:
                mark = read_mark(value)
            except ValueError:
                continue
            if marks.setdefault(name, mark) is not mark:
                return reply.unreadable("the marks contradict each other")
        if isinstance(item, dict) and (reason := extract_reason(item)):
            reasons[name] = reason
    ordered = {name: marks[name] for name in names.ids if name in marks}
    read = reply.read_json(lambda _: ordered or None) or reply.unreadable("no verdict was found")
    if isinstance(read, UnreadableReply):
        return read
    return Verdict(value=ordered, form="json", fields={"reasons": reasons})


def _marks_of(item: Any) -> Iterator[Any]:
    """The values of one criterion that may be its mark."""
    if not isinstance(item, dict):
        yield item
        return
    yield from (inner for key, inner in item.items() if normalize_key(key) in _MARK_KEYS)


class _Names:
    """The ids, and what a reply may call them: as they are, or by their number."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = tuple(ids)
        self._exact = {normalize_key(name): name for name in self.ids}
        numbers = {_number(name): name for name in self.ids}
        self._by_number = numbers if None not in numbers and len(numbers) == len(ids) else {}

    def of(self, key: str) -> str | None:
        """The id that ``key`` means."""
        name = self._exact.get(normalize_key(key))
        return name or self._by_number.get(_number(key))

    def number(self, key: str) -> int | None:
        """The number that ``key`` is, where the ids have numbers."""
        return _number(key) if self._by_number else None


def _number(key: str) -> int | None:
    found = _NUMBERED.fullmatch(key.strip(" *`\"'")) if len(key) < 60 else None
    return int(found[1]) if found is not None else None


def _marked_items(value: Any, names: _Names, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What a JSON value says, by the name that it gives a criterion."""
    if isinstance(value, list):
        named = [(_id_of(item, names), item) for item in value]
        if named and all(key is not None for key, _ in named):
            yield from ((key or "", item) for key, item in named)
        elif len(value) == len(names.ids):
            yield from zip(names.ids, value, strict=True)
    elif isinstance(value, dict):
        keyed = [(k, v) for k, v in value.items() if names.of(k) or names.number(k) is not None]
        if keyed:
            yield from keyed
        elif len(names.ids) == 1 and list(_marks_of(value)):
            yield names.ids[0], value
        elif len(value) == 1 and depth < 3:
            yield from _marked_items(next(iter(value.values())), names, depth + 1)


def _id_of(item: Any, names: _Names) -> str | None:
    """What the keys for an id say; no name at all where two of them name different criteria."""
    pairs = item.items() if isinstance(item, dict) else ()
    ids = (one for key, one in pairs if normalize_key(key) in _ID_KEYS)
    given = [str(one) for one in ids if type(one) in (str, int)]
    known = {names.of(one) or one for one in given if names.of(one) or names.number(one)}
    return "\n".join(sorted(known) or given[:1]) or None
