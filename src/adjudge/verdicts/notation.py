"""How judges write a verdict: a number on a scale, or one label of a menu.

A number is ``3``, ``3.5``, ``3/5``, ``3 out of 5`` or ``4 分``; a label goes by its names, with a
noun before them ("Response B").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from adjudge.errors import ConfigError
from adjudge.verdicts.strict import NumberScale

_FLAT = (
    {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
    | dict.fromkeys((0x3000, 0xA0, 0x202F, 0x2009), " ")
    | dict.fromkeys(map(ord, "“”„‟＂«»「」『』"), '"')
    | dict.fromkeys(map(ord, "‘’‚‛′"), "'")
    | dict.fromkeys(map(ord, "【〖〔"), "[")
    | dict.fromkeys(map(ord, "】〗〕"), "]")
    | {
        ord("−"): "-",
        ord("≻"): ">",
        ord("≺"): "<",
        ord("。"): "。",
        ord("／"): "/",
        ord("⁄"): "/",
        ord("∶"): ":",
    }
)


def normalize_signs(text: str) -> str:
    """``text`` with full-width signs, typographic quotes and dashes as ASCII; same length.

    >>> normalize_signs("评分：［４］")
    '评分:[4]'
    """
    return text if text.isascii() else text.translate(_FLAT)


_NUMBER = r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{1,15})?|\.[0-9]{1,15})"
_SCORE = re.compile(
    # 3, 3.5, **3**, (3), 3 points, 3/5, 3 out of 5, 4 分
    rf"[\s*_`\"'(\[$]*(?P<number>{_NUMBER})\s?(?:points?|pts|stars?|分|星)?[\s*_`]*"
    rf"(?:\(?(?:/|out\sof)\s?(?P<scale>{_NUMBER})\s?(?:points?|stars?|分)?)?[\s*_`\"')\].。!$]*",
    re.IGNORECASE,
)
_YES = frozenset({"true", "yes", "是", "对"})
_NO = frozenset({"false", "no", "否", "不是"})


def parse_score(value: Any, scale: NumberScale) -> float | None:
    """A JSON value, or the text of a mark, as a score; ``None`` for what is no finite number.

    >>> [parse_score(v, NumberScale(1, 5)) for v in (3, "3/5", "4/10", True, "four", float("nan"))]
    [3.0, 3.0, None, None, None, None]
    """
    if isinstance(value, bool):
        return float(value) if scale.boolean else None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 else None  # NaN is below nothing
    if not isinstance(value, str) or len(value) > 80:
        return None
    text = normalize_signs(value)
    if (found := _SCORE.fullmatch(text)) is not None:
        same = found["scale"] is None or float(found["scale"]) == scale.high
        return float(found["number"]) if same else None
    word = text.strip(" \t\n*_`\"'.。!").lower()
    return float(word in _YES) if scale.boolean and word in _YES | _NO else None


ANSWER_NOUNS = (
    "answer", "response", "output", "option", "assistant", "candidate", "model", "reply", "choice",
    "completion", "solution", "summary", "translation", "text", "story", "essay", "version",
    "submission", "system", "chatbot", "agent", "generation", "passage", "sample", "trajectory",
    "回答", "答案", "选项", "助手", "候选", "回复", "输出", "模型", "响应", "答复", "方案", "版本",
    "文本",
)  # fmt: skip

TIE_NOT_ALLOWED = "\x00tied"
"""Stands for a tie where the menu has none, so that it is no verdict."""
LABEL_NOT_IN_MENU = "\x00outside"
"""Stands for a letter or number that the menu does not have."""

_TIES = ("tie", "tied", "draw", "equal", "same", "both", "neither", "平局", "平手", "相同", "一样")
_ORDINALS = (("first", "1st", "第一", "一", "甲"), ("second", "2nd", "第二", "二", "乙"))
_LIMIT = 60
_EMPHASIS = str.maketrans("*`", "  ")
_MOST_LABELS = 64


class Menu:
    """The labels of which a verdict is one.

    ``names``: how each label may be written, without case; words may be parted by blanks, ``_`` or
    ``-``. ``nouns`` may stand before a name ("Response B"). ``tie``: the label for a tie, if it may
    be given. Labels that are single letters or digits are *compared*: ``A>B`` is one, too.
    """

    def __init__(
        self,
        names: Mapping[str, Iterable[str]],
        *,
        nouns: Iterable[str] = ANSWER_NOUNS,
        tie: str | None = None,
    ) -> None:
        if not names or len(names) > _MOST_LABELS:
            raise ConfigError(f"a menu must have 1 to {_MOST_LABELS} labels (found {len(names)})")
        self.labels = tuple(names)
        self.tie = tie
        self.nouns = tuple(nouns)
        self.names = {label: _with(label, given) for label, given in names.items()}
        taken: dict[str, str] = {}
        for label, given in self.names.items():
            for name in given:
                if taken.setdefault(name, label) != label:
                    raise ConfigError(
                        f"the menu's labels {taken[name]!r} and {label!r} share the name {name!r}. "
                        "Give each name to one label."
                    )
        self._by_name = taken
        self._key = (tuple(self.names.items()), self.nouns, tie)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Menu) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @classmethod
    def pair(cls, first: str = "A", second: str = "B", *, tie: str | None = None) -> Menu:
        """Two answers, by letter, number or place ("B", "2", "second"); ``tie`` where allowed.

        >>> Menu.pair().match("Output (b)"), Menu.pair(tie="tie").match("[[C]]")
        ('B', 'tie')
        """
        names = {
            first: (first, "a", "1", *_ORDINALS[0]),
            second: (second, "b", "2", *_ORDINALS[1]),
        }
        return cls(names, tie=tie)

    @classmethod
    def of(cls, *labels: str, tie: str | None = None) -> Menu:
        """Labels that go by their own names.

        >>> Menu.of("PRESENT", "NOT_PRESENT").match("**not present**")
        'NOT_PRESENT'
        """
        return cls({label: (label,) for label in labels}, tie=tie)

    @cached_property
    def compared(self) -> bool:
        """Whether the labels are letters or digits for things that are compared."""
        return all(any(len(n) == 1 and n.isalnum() for n in self.names[x]) for x in self.labels)

    @cached_property
    def tie_names(self) -> frozenset[str]:
        """How a tie is written in place of a label."""
        third = ("c", "3") if len(self.labels) == 2 else ()
        own = () if self.tie is None else (_folded(self.tie), *third)
        return frozenset({*_TIES, *own} - set(self._by_name))

    def match(self, text: str) -> str | None:
        """The label that ``text`` names and does nothing else; ``None`` for any other text.

        :data:`TIE_NOT_ALLOWED` for a tie that the menu does not have, :data:`LABEL_NOT_IN_MENU`
        for another letter.
        """
        text = normalize_signs(text[: 4 * _LIMIT]).translate(_EMPHASIS).strip()
        if len(text) > _LIMIT:
            return None
        if (found := self._alone.fullmatch(text)) is not None:
            return self.label(found[1])
        if not self.compared:
            return None
        return self._compared_in(text) or (
            LABEL_NOT_IN_MENU if self._other.fullmatch(text) else None
        )

    def label(self, name: str) -> str | None:
        """The label called ``name``; a tie's where it names one."""
        folded = _folded(name)
        if (label := self._by_name.get(folded)) is not None:
            return label
        if folded in self.tie_names:
            return TIE_NOT_ALLOWED if self.tie is None else self.tie
        return None

    @cached_property
    def noun_pattern(self) -> str:
        """The source of a pattern for one noun."""
        return "(?:" + "|".join(map(re.escape, sorted(self.nouns, key=len, reverse=True))) + ")"

    @cached_property
    def name_pattern(self) -> str:
        """The source of a pattern for one name of a label, longest first."""
        return "|".join(map(_spelled, sorted(self._by_name, key=len, reverse=True)))

    @cached_property
    def _alone(self) -> re.Pattern[str]:
        ties = "|".join(map(_spelled, sorted(self.tie_names, key=len, reverse=True)))
        noun = rf"(?:(?:the\s)?{self.noun_pattern}s?\s{{0,2}}(?:number|no\.?|#|:)?\s{{0,2}})?"
        wrap = r"[\s*_`\"'(\[{]{0,8}"
        return re.compile(
            rf"{wrap}{noun}{wrap}(?:it's\s)?(?:the\s|an?\s)?({self.name_pattern}|{ties})"
            rf"(?:\s(?:{self.noun_pattern}|one))?[\s*_`\"')\]}}.。!]{{0,8}}",
            re.IGNORECASE,
        )

    @cached_property
    def _other(self) -> re.Pattern[str]:
        return re.compile(
            rf"\W{{0,8}}(?:{self.noun_pattern}\W{{0,4}})?[A-Za-z]\W{{0,8}}", re.IGNORECASE
        )

    def _compared_in(self, text: str) -> str | None:
        """``A>B``, ``A>>B``, ``B<A`` and ``A=B`` as verdicts."""
        found = _VERSUS.fullmatch(text.strip("[]*_` "))
        if found is None:
            return None
        one, sign, two = self.label(found[1]), found[2], self.label(found[3])
        if one not in self.labels or two not in self.labels or one == two:
            return None
        if sign.strip("~=") == "":
            return TIE_NOT_ALLOWED if self.tie is None else self.tie
        return one if sign[0] == ">" else two


_VERSUS = re.compile(r"\(?(\w{1,12})\)?\s?(>{1,3}|<{1,3}|={1,2}|~)\s?\(?(\w{1,12})\)?")


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip()).casefold()


def _spelled(name: str) -> str:
    return r"[\s_-]{0,6}".join(map(re.escape, name.split(" ")))


def _with(label: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ConfigError(f"the names of label {label!r} must be a list (found the text {names!r})")
    made = dict.fromkeys(_folded(name) for name in (label, *names))
    if "" in made:
        raise ConfigError(f"label {label!r} has an empty name")
    return tuple(made)
