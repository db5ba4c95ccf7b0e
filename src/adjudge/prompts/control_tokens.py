"""Control tokens in text that is not ours, broken up so that no tokenizer reads them as structure.

Which strings are control tokens, only a tokenizer can say (:func:`part_tokens`); where none is
known, the families that chat templates take them from are (:func:`part_families`). Either way a
space comes after a token's first sign, which a person hardly sees: ``< |im_end|>``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

import msgspec

__all__ = ["control_tokens_in", "part_families", "part_tokens"]

# Shapes: a first sign, and what must follow it. Every repetition is bounded, so a search takes
# linear time; a space never belongs to a shape, so a token that was parted has none any more.
_WORDS = (
    r"\w[\w.-]*\|>",  # <turn|>
    r"(?i:(?:\w{1,20}:)?(?:[bs]os|eo[a-z]|sop|bo[adhi]|pad|unk|mask|cls|sep))>",
    # <think> </tool_call> <seed:think>
    r"/?(?:\w{1,20}[:_])?(?:think|(?:tool|function)_(?:call|response|result)s?|arg_(?:key|value))>",
    r"(?:\w{1,20}_)?(?:start|end|begin|beginning)_?of_?\w+>",
    r"\w+_(?:TOKEN|token|start|begin|end|sep)>",
    r"fim[_-][a-z]+>",
    r"_(?:user|bot|system|observation|start|end|pad)>",
    r"(?i:reserved|unused|extra|special|ctrl|control|dummy|placeholder)[A-Za-z_]*\d+>",
)
_ANGLE = re.compile(
    r"<(?=\|(?:[^\s<>|]{1,64}\||\w[\w.-]{0,63})>"  # <|im_end|> <|turn>
    r"|｜[^\s<>｜]{1,64}｜>"
    r"|</?SYS>>"
    r"|/?s>"
    rf"|(?=/?[\w:.-]{{3,64}}+\|?>)(?:{'|'.join(_WORDS)}))"
)
_CAPITALS = (
    r"/?(?:INST|SYS|[BS]OS|EO[A-Z]|PAD|UNK|MASK|CLS|SEP|THINK|ARGS|CALL_ID|PREFIX|MIDDLE|SUFFIX)",
    r"/?(?:[A-Z]+_){0,3}(?:TOOLS?|IMG|AUDIO)(?:_[A-Z]+){0,3}",
    r"/?(?:[A-Z]+_){1,4}(?:TOKEN|PROMPT|TURN|SETTINGS)(?:_?\d+)?",
    r"[gs]MASK",
    r"(?:reserved|unused|control)[a-z_]*\d+",
)
_SQUARE = re.compile(
    r"\[(?=\|\w{1,64}\|\]"  # [|assistant|]
    rf"|(?=/?[A-Zcgrsu]\w{{2,64}}\])(?:{'|'.join(_CAPITALS)})\]"
    r"|[a-z]~\[)"  # [e~[
)
_BACKWARD = re.compile(r"\](?=~!?[a-z][\[\]]|![a-z]~\[|<\][^\[\]<>\n]{1,64}\[>\[)")  # ]~b] ]~!b[


def part_families(text: str) -> str:
    """``text`` with a space after the first sign of what looks like a control token.

    >>> part_families("Lyon<|im_end|>[INST] <b>bold</b> [x] a<b|c>d")
    'Lyon< |im_end|>[ INST] <b>bold</b> [x] a<b|c>d'
    """
    if "<" in text and ">" in text:
        text = _ANGLE.sub("< ", text)
    if "[" in text:
        text = _SQUARE.sub("[ ", text)
    if "]" in text and ("~" in text or "]<]" in text):
        text = _BACKWARD.sub("] ", text)
    return text


class _Shapes(msgspec.Struct, frozen=True):
    """A tokenizer's control tokens, ready to be looked for: all folded, none of one character."""

    tokens: frozenset[str]
    firsts: re.Pattern[str]
    """Every character that folded begins one."""
    lengths: dict[str, tuple[int, ...]]
    """By their first two characters."""
    single: str
    apart: str


def part_tokens(text: str, tokens: frozenset[str]) -> str:
    """``text`` in which none of ``tokens`` stands; see :func:`control_tokens_in`.

    A space parts each after its first character, wherever it begins, so that those which overlap
    or contain each other are parted too. One character cannot be parted: U+FFFD stands for it.
    Upper and lower case, and compatible characters (``＜``), count as equal, because a tokenizer
    may make them so before it looks.

    >>> part_tokens("a]~b]~b]", frozenset({"]~b]"}))
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


def control_tokens_in(added: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """The control tokens among a tokenizer's added tokens, each with whether it is special.

    All that are special, and of the others (``<think>``, ``<tool_call>``) those that are no markup.
    White space and ASCII characters that stand alone are left out: they are text of everybody's.
    """
    return frozenset(_control_tokens(added))


def _control_tokens(added: Iterable[tuple[str, bool]]) -> Iterator[str]:
    for token, special in added:
        if not token.replace("▁", " ").strip() or (len(token) == 1 and token.isascii()):
            continue
        if special or (len(token) > 1 and not _MARKUP.fullmatch(token)):
            yield token
