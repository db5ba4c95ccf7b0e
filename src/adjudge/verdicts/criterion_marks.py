"""Reading the marks that a judge gives to numbered criteria."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from adjudge.verdicts.json_text import WRAPPER_KEYS, normalize_key
from adjudge.verdicts.notation import normalize_signs
from adjudge.verdicts.reply import ReplyText, apply_reader, missing_verdict
from adjudge.verdicts.strict import DUPLICATE_KEY, UnreadableReply, Verdict, extract_reason

_MET = (
    "present", "met", "yes", "true", "1", "pass", "passed", "satisfied", "fulfilled", "correct",
    "y", "t", "✓", "✔", "✅", "是", "满足", "符合", "通过", "已满足", "存在", "正确", "对",
)  # fmt: skip
_UNMET = (
    "not present", "not met", "unmet", "no", "false", "0", "fail", "failed", "not satisfied",
    "unsatisfied", "not fulfilled", "unfulfilled", "absent", "missing", "incorrect", "n", "f", "✗",
    "✘", "❌", "否", "不满足", "不符合", "未满足", "未通过", "不通过", "不存在", "不是", "错误",
    "不对",
)  # fmt: skip
_NEITHER = ("n/a", "na", "not applicable", "inapplicable", "不适用", "无关")
_MARKS: dict[str, bool | None] = (
    dict.fromkeys(_MET, True) | dict.fromkeys(_UNMET, False) | dict.fromkeys(_NEITHER, None)
)
_UNREAD: Any = object()

_MARK_KEYS = frozenset({
    "verdict", "met", "criteriamet", "criterionmet", "present", "label", "answer", "result",
    "status", "judgment", "judgement", "satisfied", "score", "mark", "pass", "passed", "decision",
    "value", "evaluation", "ismet", "fulfilled", "判断", "结果", "结论", "是否满足",
})  # fmt: skip
_ID_KEYS = frozenset({
    "id", "criterion", "criterionid", "criteriaid", "index", "number", "rubric", "rubricid", "item",
    "no", "key", "k", "编号", "序号", "标准",
})  # fmt: skip
_NUMBERED = re.compile(
    r"(?:rubric|criterion|criteria|item|requirement|question|check|no|r|c|q|标准|准则|条目|条件|第)?"
    r"[\s_#.:(\[-]{0,4}([0-9]{1,6})[\s.)\]:条项个]{0,4}",
    re.IGNORECASE,
)
_WORD = "|".join(
    re.escape(w)
    for w in sorted(_MARKS, key=len, reverse=True)
    if len(w) > 1 or not w.isalpha() or not w.isascii()
)
_WORD = _WORD.replace(r"\ ", r"[\s_-]{1,3}")
_LINE = re.compile(
    # "1. PRESENT - because", "Criterion 2: not met", "| 3 | yes |"
    r"[\s#>*|`(-]{0,8}((?:(?:rubric|criterion|item|requirement|question|r|c|q|标准|准则|条目|第)[\s_#]{0,3})?"
    r"[0-9]{1,6}[条项]?|\w{1,40}?)[\s*`\"']{0,4}[.):|、,\]-][\s*`|:.\"'-]{0,6}(.*)",
    re.IGNORECASE,
)
_STOP = r"(?=[\s*`\"')\]]{0,4}(?:[.,;:!|()。，；：（-]|$))"
_MARKED = re.compile(
    rf"[\s*`\"'(\[]{{0,4}}({_WORD})(?:{_STOP}|(?<=[✓✔✅✗✘❌])(?=\s))", re.IGNORECASE
)
# Marks among the words behind a mark, or behind a criterion's text.
_LATER = re.compile(
    rf"(?:[.,;:!|()\[。，；：（/]|->|=|\s-|^)[\s*`\"'(\[]{{0,4}}({_WORD}){_STOP}", re.IGNORECASE
)
_CONDITION = re.compile(
    r"[\s,;(-]{0,4}(?:only\s)?(?:if|unless|provided|when|assuming)\b", re.IGNORECASE
)
_AT_END = re.compile(
    # Behind other words "yes" says nothing of its own: "1. Missing sources: yes"
    r"(?:[:：|]|->|=)[\s*`\"'(\[]{0,4}((?:not?[\s_-])?(?:met|present|satisfied|fulfilled|pass(?:ed)?)|unmet|"
    r"fail(?:ed)?|✓|✔|✅|✗|✘|❌|不?满足|未满足|不?符合|未?通过)[\s*`\"')\].!|。]{0,6}$",
    re.IGNORECASE,
)
_DEEPEST = 4
_MOST_LINES = 5_000
_LONGEST_LINE = 4_000


class _Mark(NamedTuple):
    key: str
    value: Any
    reason: str = ""


def read_mark(value: Any) -> bool | None:
    """One mark: true (met), false (not met), ``None`` (not applicable).

    Raises ``ValueError`` for what is no mark.

    >>> [read_mark(v) for v in ("PRESENT", "not_present", 1, "No.", "N/A")]
    [True, False, True, False, None]
    """
    mark = _mark(value)
    if mark is _UNREAD:
        raise ValueError("no mark: allowed are yes/no, met/unmet, PRESENT/NOT_PRESENT, 1/0 and N/A")
    return bool(mark) if mark is not None else None


def read_marks(
    text: str,
    ids: Sequence[str],
    *,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    """The marks of the criteria called ``ids``.

    Read are objects by id (``{"1": "PRESENT"}``, ``{"R1": {"verdict": "met", "reason": …}}``),
    lists of objects that name an id, a list of exactly as many marks as there are ids, and lines
    ("1. NOT PRESENT"). A mark is a boolean, 1 or 0, or one of the words for it, such as met, unmet,
    yes, no, PRESENT, "NOT PRESENT"; N/A is ``None``. Several objects are read together.

    ``quoted`` and ``cut``: as for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` maps ids to true, false or ``None`` (not applicable)
    in the order of ``ids``. **Ids without a mark, or with none that can be read, are absent**: an
    incomplete verdict is kept. ``fields`` has ``reasons`` by id. An :class:`UnreadableReply` when
    no id has a mark, when one has two that differ, and when a number beyond the ids is marked (a
    reply to another rubric). Raises nothing.

    >>> read_marks('{"1": "PRESENT", "R2": "NOT PRESENT"}', ["1", "2", "3"]).value
    {'1': True, '2': False}
    """
    return apply_reader(ReplyText(text, quoted, cut=cut), partial(_read, ids=ids))


def _read(reply: ReplyText, ids: Sequence[str]) -> Verdict | UnreadableReply:
    names = _Names(ids)
    form = "json"
    marks = [m for piece in reply.json_values.pieces for m in _in_value(piece.value, names)]
    if not marks and not reply.json_values.unclosed:
        form, marks = "phrase", list(_in_lines(reply, names))
    if any(names.of(key) is None and names.beyond(key) for key, _, _ in marks):
        return UnreadableReply(why="a mark for a number that no criterion has")
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for key, value, reason in marks:
        if (name := names.of(key)) is None:
            continue
        mark = DUPLICATE_KEY if value is DUPLICATE_KEY else _mark(value)
        if mark is DUPLICATE_KEY or found.setdefault(name, mark) is not mark:
            return UnreadableReply(why="the marks contradict each other")
        if reason:
            reasons[name] = reason
    value = {n: found[n] for n in names.ids if n in found and found[n] is not _UNREAD}
    if not value:
        return missing_verdict(reply)
    # Lines have no one end, so words that take something back count wherever they begin a line.
    first = 0 if form == "phrase" else reply.json_values.pieces[-1].end
    if not reply.is_only_json and reply.is_retracted(first):
        return UnreadableReply(why="words behind the verdict take it back")
    return Verdict(value=value, form=form, fields={"reasons": reasons})


def _mark(value: Any) -> Any:
    """True, false, ``None`` for not applicable, ``_UNREAD`` for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return bool(value) if value in (0, 1) else _UNREAD
    if not isinstance(value, str) or len(value) > 400:
        return _UNREAD
    text = normalize_signs(value).strip(" \t\n*`\"'.!。[]()<>")
    word = re.sub(r"[\s_-]+", " ", text).casefold()
    return _MARKS[word] if word in _MARKS else _opening_mark(text)[0]


def _opening_mark(text: str) -> tuple[Any, str]:
    """The mark with which ``text`` opens, and the words behind it; none with another or an "if"."""
    found = _MARKED.match(text)
    if found is None or _CONDITION.match(text, found.end()):
        return _UNREAD, ""
    behind = text[found.end() :]
    marks = {_word_mark(one) for one in (found[1], *_LATER.findall(behind))}
    alone = found[1] in "✓✔✅✗✘❌" or not _LATER.search(behind)  # "✅ yes" is one mark
    return (marks.pop() if alone and len(marks) == 1 else _UNREAD), behind


def _word_mark(word: str) -> bool | None:
    return _MARKS[re.sub(r"[\s_-]+", " ", word).casefold()]


class _Names:
    """The ids, and what a reply may call them: as they are, or by their number."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = tuple(ids)
        self._exact = {normalize_key(name): name for name in self.ids}
        numbers = [self._number(name) for name in self.ids]
        numbered = None not in numbers and len(set(numbers)) == len(numbers)
        self._by_number = dict(zip(numbers, self.ids, strict=True)) if numbered else {}

    def of(self, key: str) -> str | None:
        """The id that ``key`` means."""
        if (name := self._exact.get(normalize_key(key))) is not None:
            return name
        number = self._number(key)
        return None if number is None else self._by_number.get(number)

    def beyond(self, key: str) -> bool:
        """Whether ``key`` is a number that no id has."""
        return bool(self._by_number) and self._number(key) is not None and self.of(key) is None

    @staticmethod
    def _number(key: str) -> int | None:
        found = _NUMBERED.fullmatch(key.strip(" *`\"'")) if len(key) < 60 else None
        return int(found[1]) if found is not None else None


def _in_value(value: Any, names: _Names, depth: int = 0) -> Iterator[_Mark]:
    """The marks in a JSON value."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        yield from _in_list(value, names, depth)
        return
    if not isinstance(value, dict):
        return
    keyed = [(key, inner) for key, inner in value.items() if names.of(key) or names.beyond(key)]
    for key, inner in keyed:
        yield _of_item(key, inner)
    if keyed:
        return
    if len(names.ids) == 1 and (mark := _of_item(names.ids[0], value)).value is not _UNREAD:
        yield mark
        return
    for key, inner in value.items():
        if isinstance(inner, dict | list) and (
            len(value) == 1 or normalize_key(key) in WRAPPER_KEYS
        ):
            yield from _in_value(inner, names, depth + 1)


def _in_list(items: list[Any], names: _Names, depth: int) -> Iterator[_Mark]:
    named = [(_id_of(item), item) for item in items if isinstance(item, dict)]
    if named and all(key is not None for key, _ in named):
        for key, item in named:
            yield _of_item(key or "", item)
    elif len(items) == len(names.ids):
        for name, item in zip(names.ids, items, strict=True):
            yield _of_item(name, item)
    elif all(isinstance(item, dict) for item in items):
        for item in items:
            yield from _in_value(item, names, depth + 1)


def _id_of(item: dict[str, Any]) -> str | None:
    for key, value in item.items():
        if (
            normalize_key(key) in _ID_KEYS
            and isinstance(value, str | int)
            and not isinstance(value, bool)
        ):
            return str(value)
    return None


def _of_item(key: str, item: Any) -> _Mark:
    """The mark of one criterion, which may be an object with a reason."""
    if not isinstance(item, dict):
        return _Mark(key, item)
    values = [inner for name, inner in item.items() if normalize_key(name) in _MARK_KEYS]
    marks = {repr(_mark(value)): value for value in values}
    value = values[0] if len(marks) == 1 else _UNREAD if not marks else DUPLICATE_KEY
    return _Mark(key, value, extract_reason(item))


def _in_lines(reply: ReplyText, names: _Names) -> Iterator[_Mark]:
    """The marks of lines that begin with an id."""
    at = 0
    for line in islice(reply.prose.split("\n"), _MOST_LINES):
        start, at = at, at + len(line) + 1
        found = _LINE.match(line) if len(line) < _LONGEST_LINE else None
        if found is None or (names.of(found[1]) is None and not _short_beyond(names, found)):
            continue
        if reply.cut and at > len(reply.prose):
            continue
        mark, behind = _opening_mark(found[2])
        if mark is _UNREAD and (ending := _AT_END.search(found[2])) is not None:
            mark = _word_mark(ending[1])
        if mark is not _UNREAD and reply.is_own_statement(start, start + len(line), rests=True):
            yield _Mark(found[1], "n/a" if mark is None else mark, behind.strip(" \t*`|:.,;-()—"))


def _short_beyond(names: _Names, found: re.Match[str]) -> bool:
    return names.beyond(found[1]) and _MARKED.match(found[2]) is not None
