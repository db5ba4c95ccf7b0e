"""Where a text names what a menu offers, as signs that patterns of phrases can be written in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from adjudge.verdicts.menu import Menu

__all__ = ["FILL", "FIRST", "label_at", "mark_mentions"]

FIRST = 0xE000
"""A mention of label *i* is the character ``FIRST + i``, then :data:`FILL` up to its length."""
FILL = "\x01"

_NOTHING = "\x00"  # stands in no plain text
# After "A", or "answer a", words that show that it is a name and no article.
_VERBS = (
    r"(?:is|isn't|was|wins|won|beats|over|and|or|nor|vs|versus|seems?|appears|looks|than|to|has|does|"
    r"would|because|since|as|by|provides|gives|offers|follows|answers|but|while|outperforms|better|"
    r"more|on|in|with|for|also|fails|lacks|contains|includes|addresses|should|deserves)\b"
)
# After any other word a capital letter is part of a name: "Plan B", "vitamin A".
_NAMING = re.compile(
    r"(?<![A-Za-z])(?!(?:i|so|that|then|thus|hence|therefore|overall|and|or|nor|but|yet|both|either|"
    r"neither|only|not|is|was|be|are|isn|than|over|to|for|of|by|in|on|with|as|from|like|unlike|against|"
    r"between|versus|vs|because|since|while|whereas|although|though|if|when|whether|where|which|choose|"
    r"chose|chosen|choosing|pick|picked|prefer|preferred|prefers|favou?r|select|selected|find|think|"
    r"believe|say|consider|declare|recommend|goe?s?|vote|lean|towards?|winner|verdict|preference|better|"
    r"best|conclude|judge|rate|rank|makes?|gives?|beats|outperforms|surpasses|compared|however|"
    r"also|still|even|means?|call|final|choice|decision|result|eliminate|reject|[a-z]+ly)\s)"
    r"[a-z]+[ \t]{1,3}\Z",
    re.IGNORECASE,
)
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_EMPHASIS = str.maketrans("*`", "  ")


def label_at(menu: Menu, sign: str) -> str:
    """The label that a mention's first character stands for."""
    return menu.labels[ord(sign) - FIRST]


def mark_mentions(menu: Menu, text: str) -> str:
    """``text``, equally long and in small letters, with mentions of labels as signs.

    Mentions are a noun and a name ("Response B", "Output (b)", "回答B"), a place ("the second
    answer"), a name in brackets, a capital letter of its own. Of other menus: the names as words.
    Emphasis becomes blanks.
    """
    text = text.translate(_EMPHASIS)
    signs = {label: chr(FIRST + number) for number, label in enumerate(menu.labels)}

    known: dict[tuple[str | None, str], str] = {}

    def sign(found: re.Match[str]) -> str:
        start = found.start()
        if found.lastgroup == "bare" and _NAMING.search(text, max(0, start - 24), start):
            return found[0]
        key = found.lastgroup, found[0]
        if (made := known.get(key)) is None:
            label = menu.label(found[found.lastgroup or 0])
            made = signs[label] + FILL * (len(key[1]) - 1) if label in signs else key[1]
            known[key] = made
        return made

    return _pattern(menu).sub(sign, text).translate(_LOWER)


@lru_cache(maxsize=64)
def _pattern(menu: Menu) -> re.Pattern[str]:
    if not menu.compared:
        return re.compile(
            rf"(?<![A-Za-z0-9_'])(?P<word>{menu.name_pattern})(?![A-Za-z0-9_'])", re.IGNORECASE
        )
    short = {name for names in menu.names.values() for name in names if len(name) == 1}
    lower = "".join(sorted(sign for sign in short if sign.isascii() and sign.isalpha())) or "\x00"
    digits = "".join(sorted(sign for sign in short if sign.isascii() and sign.isdigit())) or "\x00"
    upper = lower.upper()
    words = {name for names in menu.names.values() for name in names} - set(lower) - set(digits)
    nouns = _cased(menu.nouns)
    article = rf"(?![ ]+(?!{_VERBS})[a-z])"
    return re.compile(
        rf"(?<![A-Za-z])(?:(?:{nouns})s?\s{{0,2}}(?:[Nn]umber|[Nn]o\.?|#)?\s{{0,2}}(?:"
        # Output (b), Output "B", Response [A]
        rf"[(\[\"']{{1,2}}\s?(?P<wrapped>[{upper}{lower}{digits}])\s?[)\]\"']{{1,2}}"
        # Output B, Answer 2, output b
        rf"|(?P<plain>[{upper}{digits}]|(?!a)[{lower}]|(?=a)[{lower}]{article})"
        r"(?![A-Za-z0-9_]|[.,][0-9]|'[a-rt-z]))"
        # the second answer, the first one, 第二个回答, 回答一
        rf"|(?P<place>{_cased(words) or _NOTHING})\s(?:{nouns}|one)(?![A-Za-z])"
        rf"|(?P<nth>第[一二三四五])(?:个|份|条|篇)?(?:{nouns})?"
        rf"|(?:{_chinese(menu)})\s?(?P<number>[一二三四五甲乙])"
        # (b), [B]
        rf"|(?<![0-9_])[(\[\"']\s?(?P<bracket>[{upper}{lower}])\s?[)\]\"'](?![A-Za-z0-9_])"
        # B
        rf"|(?<![0-9_'.(\[-])(?P<bare>(?![AI])[{upper}]|(?=[AI])[{upper}]{article})"
        r"(?![A-Za-z0-9_'(\[-]|\.[A-Za-z]))"
    )


def _cased(words: Iterable[str]) -> str:
    """Alternatives for ``words`` in the three usual cases, which is quicker than ignoring case."""
    spelled = {form for word in words for form in (word.lower(), word.capitalize(), word.upper())}
    return "|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))


def _chinese(menu: Menu) -> str:
    return "|".join(noun for noun in menu.nouns if not noun.isascii()) or _NOTHING
