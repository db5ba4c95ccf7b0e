"""The control tokens that a tokenizer says it has, broken up in a text that is not ours."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

import msgspec


class _Shapes(msgspec.Struct, frozen=True):
    """A tokenizer's control tokens, ready to be looked for: all folded, none of one character."""

    tokens: frozenset[str]
    firsts: re.Pattern[str]
    """Every character that folded begins one."""
    lengths: dict[str, tuple[int, ...]]
    """By their first two characters."""
    single: str
    apart: str


def break_control_tokens(text: str, tokens: frozenset[str]) -> str:
    """``text`` in which none of ``tokens`` stands; see :func:`select_control_tokens`.

    A space parts each after its first character, wherever it begins, so that those which overlap
    or contain each other are parted too. One character cannot be parted: U+FFFD stands for it.
    Upper and lower case, and compatible characters (``＜``), count as equal, because a tokenizer
    may make them so before it looks.

    >>> break_control_tokens("a]~b]~b]", frozenset({"]~b]"}))
    'a] ~b] ~b]'
    """
    shapes = _shapes(tokens)
    if shapes.single:
        text = text.translate(dict.fromkeys(map(ord, shapes.single), "\ufffd"))
    if not shapes.firsts.search(text):
        return text
    folded = _folded(text)
    pieces, done = [], 0
    for found in shapes.firsts.finditer(text):
        at = found.start()
        for length in shapes.lengths.get(folded[at : at + 2], ()):
            if folded[at : at + length] in shapes.tokens:
                pieces.append(text[done : at + 1])
                done = at + 1
                break
    return shapes.apart.join((*pieces, text[done:])) if pieces else text


@lru_cache(maxsize=64)
def _shapes(tokens: frozenset[str]) -> _Shapes:
    longer = frozenset(_folded(one) for one in tokens if len(one) > 1)
    lengths: defaultdict[str, set[int]] = defaultdict(set)
    for one in longer:
        lengths[one[:2]].add(len(one))
    firsts = {one[0] for one in longer}
    firsts |= {chr(code) for code, plain in _plain().items() if plain in firsts}
    any_first = "".join(map(re.escape, sorted(firsts)))
    # A sign that none of them has makes no new one of two pieces of text.
    has_space = any(re.search(r"\s", one) for one in longer)
    return _Shapes(
        tokens=longer,
        firsts=re.compile(f"[{any_first}]" if firsts else r"(?!)"),
        lengths={start: tuple(sorted(found)) for start, found in lengths.items()},
        single="".join(sorted(one for one in tokens if len(one) == 1)),
        apart="·" if has_space else " ",
    )


def _folded(text: str) -> str:
    """``text`` in lower case, with plain characters for compatible ones; as long as before."""
    return text.lower() if text.isascii() else text.translate(_plain())


@cache
def _plain() -> dict[int, str]:
    """ASCII characters, in lower case, for those that normalisation makes one."""
    plain = {}
    for code in range(0x1FC00):  # none further on
        lower = unicodedata.normalize("NFKC", chr(code)).lower()
        if len(lower) == 1 and lower.isascii() and ord(lower) != code:
            plain[code] = lower
    return plain


# Words of HTML that some vocabularies have as tokens of their own, and white space: to part these
# would change what a person sees and keep nothing from being said.
_MARKUP = re.compile(
    r"</?(?:a|p|br|b|i|u|em|strong|sub|sup|code|pre|blockquote|h[1-6]|[uod]l|li|caption"
    r"|table|thead|tbody|tfoot|tr|th|td|div|span|img)>",
    re.IGNORECASE,
)


def select_control_tokens(added: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """The control tokens among a tokenizer's added tokens, each with whether it is special.

    All that are special, and of the others (``<think>``, ``<tool_call>``) those that are no markup.
    White space and ASCII characters that stand alone are left out: they are text of everybody's.
    """
    return frozenset(
        token
        for token, special in added
        if token.replace("▁", " ").strip()
        and (len(token) > 1 or (special and not token.isascii()))
        and (special or not _MARKUP.fullmatch(token))
    )
