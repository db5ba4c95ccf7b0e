"""Text that a policy, a judge or a dataset wrote: what UTF-8 cannot hold, its end, its thinking.

A policy can write half of a surrogate pair (a lone surrogate), which is a Python string and no
UTF-8. Here is what is done with it: replaced where people or programs read the text, kept byte for
byte where a digest tells texts apart.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import overload

import msgspec

from adjudge.errors import Metadata

SURROGATES = "\ud800-\udfff"
"""For a character class of a pattern."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
THINK_TAGS = {THINK_OPEN: THINK_OPEN, THINK_CLOSE: THINK_CLOSE}
THINK_TAGS |= {"[THINK]": THINK_OPEN, "[/THINK]": THINK_CLOSE}  # Mistral's
"""Tags of thinking, and the usual ones for them."""

_SURROGATE = re.compile(f"[{SURROGATES}]")


def has_surrogates(text: str) -> bool:
    """Whether UTF-8 cannot hold ``text``."""
    return not text.isascii() and _SURROGATE.search(text) is not None


@overload
def replace_surrogates(value: str) -> str: ...
@overload
def replace_surrogates(value: Metadata) -> Metadata: ...
@overload
def replace_surrogates(value: object) -> object: ...
def replace_surrogates(value: object) -> object:
    r"""A text, or data with texts inside, with a question mark for each lone surrogate.

    Keys of objects included; tuples become lists. Raises ``RecursionError`` for what is nested
    without end.

    >>> replace_surrogates(["half \ud83d"])
    ['half ?']
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_surrogates(item) for item in value]
    return value


def compose_letters(text: str) -> str:
    r"""``text`` in Unicode's form C, in which a letter and its accent are one character.

    >>> compose_letters("e\u0301") == "\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text)


def encode_exactly(text: str) -> bytes:
    """The bytes of ``text`` for a digest or a size: texts that differ have bytes that differ."""
    return text.encode("utf-8", "surrogatepass")


def encode_json(value: object, enc_hook: Callable[[object], object] | None = None) -> bytes:
    """``value`` as JSON, lone surrogates replaced; ``enc_hook`` as in ``msgspec.json.encode``."""
    try:
        return msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=enc_hook)
        return msgspec.json.encode(replace_surrogates(plain))


# Named one by one: a policy's own markup (`</answer>`, a tool call's closing tag) must stay.
PAD_TOKENS = ("<pad>", "<|pad|>", "[PAD]", "<|endoftext|>", "<|finetune_right_pad_id|>", "<unk>")
END_TOKENS = (
    *PAD_TOKENS,
    *("</s>", "<eos>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<|return|>", "<|eot|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>"),
    *("<|endofassistant|>", "<｜end▁of▁sentence｜>"),
    *("<|user|>", "<|observation|>"),  # where GLM stops
)


LAST_SIGNS = tuple({token[-1] for token in END_TOKENS})


def strip_end_tokens(text: str) -> str:
    """``text`` without the end-of-turn and padding tokens after its last word.

    >>> strip_end_tokens("It is <b>four</b>.<|im_end|><|endoftext|>")
    'It is <b>four</b>.'
    """
    if not text.rstrip().endswith(END_TOKENS):
        return text
    end, opened = len(text), text.find("<s>")
    while True:
        last = end
        while last and text[last - 1].isspace():
            last -= 1
        token = next((one for one in END_TOKENS if text.endswith(one, 0, last)), None)
        if token is None or (token.startswith("</") and 0 <= opened < last):
            return text[:end]  # markup that was opened, or no token
        end = last - len(token)


def shorten_text(text: object, limit: int = 200) -> str:
    """Text of unknown length and content, cut and made encodable, for a reason or message."""
    whole = str(text)
    return replace_surrogates(whole if len(whole) <= limit else whole[:limit] + "…")


def mark_thinking(text: str, opened: bool = False) -> str:
    r"""A turn's text with ``<think>`` where its thinking begins.

    ``opened``: the prompt opened it, as :func:`~adjudge.intake.rendered.opens_thinking` says.

    >>> mark_thinking("So 4.</think>4", opened=True)
    '<think>\nSo 4.</think>4'
    >>> mark_thinking("[THINK]So 4.[/THINK]4")
    '<think>So 4.</think>4'
    """
    if "THINK]" in text and ("[/THINK]" in text or text.lstrip().startswith("[THINK]")):
        for tag, usual in THINK_TAGS.items():
            text = text.replace(tag, usual)
    if opened and not text.lstrip().startswith(THINK_OPEN):
        return f"{THINK_OPEN}\n{text}"
    return text


def final_text(response: str) -> str | None:
    """What stands after the last ``</think>``; ``None`` when a ``<think>`` was never closed.

    An unclosed ``<think>`` means that the policy never got to an answer. A response without
    thinking is its own final text.
    """
    close = response.rfind(THINK_CLOSE)
    rest = response if close < 0 else response[close + len(THINK_CLOSE) :]
    return None if THINK_OPEN in rest else rest


def split_thinking(text: str) -> tuple[str, str]:
    """``(text, reasoning)`` of a reply with inline thinking.

    Thinking ends at the last ``</think>``: what the judge quotes of a candidate may hold one too,
    and only what follows the last is certainly its own verdict. Without an opening tag (some chat
    templates write it into the prompt) everything before is thinking all the same. A ``<think>``
    that begins the text, or what is left of it, and never closes makes all of it reasoning. A text
    that is one JSON object from its first sign to its last has no thinking around it, only
    quotations inside.

    >>> split_thinking("<think>2 is even</think> yes")
    ('yes', '2 is even')
    >>> split_thinking("<think>2 is")
    ('', '2 is')
    >>> split_thinking('{"reason": "it wrote </think>", "score": 1}')
    ('{"reason": "it wrote </think>", "score": 1}', '')
    """
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}"):
        return text, ""
    if THINK_CLOSE not in text:
        opened = text.lstrip()
        return (
            ("", opened[len(THINK_OPEN) :].strip()) if opened.startswith(THINK_OPEN) else (text, "")
        )
    thought, _, rest = text.rpartition(THINK_CLOSE)
    rest, thought = rest.strip(), thought.strip()
    if rest.startswith(THINK_OPEN):
        rest, thought = "", f"{thought}\n{rest[len(THINK_OPEN) :]}"
    return rest, thought.removeprefix(THINK_OPEN).strip()


_NAMES = r"\s{0,4}(?:think|thinking|thought|thoughts|reasoning)\s{0,4}>"
# Quoted tags are spoken of. Thinking may end in a quotation, so an end is quoted on both sides.
_THINK = re.compile(
    rf"<(?:(?<![`\"'“「]<)\s{{0,4}}(?P<end>/?){_NAMES}|\s{{0,4}}(?P<after>/){_NAMES}(?![`\"'”」]))",
    re.IGNORECASE,
)


def separate_thinking(text: str) -> tuple[str, str]:
    """``(text, thinking)``: what stands outside and inside thinking tags.

    An opening tag that never closes makes all that follows thinking; a closing tag without an
    opening one all that precedes. A tag in quotation marks or code is only spoken of.

    >>> separate_thinking("<think>4, no: 5</think>[[3]]")
    ('[[3]]', '4, no: 5')
    """
    if "<" not in text:
        return text, ""
    shown: list[str] = []
    hidden: list[str] = []
    depth = 0
    start = 0
    for tag in _THINK.finditer(text):
        piece = text[start : tag.start()]
        start = tag.end()
        ends = bool(tag["end"] or tag["after"])
        if ends and not depth:
            hidden += [*shown, piece]
            shown = []
            continue
        (hidden if depth else shown).append(piece)
        depth = max(0, depth - 1) if ends else depth + 1
    if not start:
        return text, ""
    (hidden if depth else shown).append(text[start:])
    return "\n".join(shown).strip(), "\n".join(hidden).strip()


def printable(text: object) -> str:
    r"""``text`` with control characters (terminal escapes, line breaks) shown by their numbers.

    >>> printable("red\x1b[31m")
    'red\\x1b[31m'
    """
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))


def escape_json(data: object) -> str:
    """``data`` as JSON that holds no markup character and no character that UTF-8 lacks."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    # Of what UTF-8 lacks there are only lone surrogates: each becomes its escape.
    return text.encode(errors="backslashreplace").decode()


# Scripts without spaces: Han with its extensions, kana, Thai, Lao, Burmese, Khmer; and the vowels
# and tones that stand at a letter of the last four.
SPACELESS = (
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0edc-\u0edf"
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081\u108e"
    "\u1780-\u17b3\u17d7\u17dc\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
"""For a character class of a pattern."""

_ATTACHED = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059"
    "\u105e-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d"
    "\u17b4-\u17d3\u17dd\u200b-\u200d"
)
# Combining marks are not \w in ``re``, so without them Indic words would fall to pieces; the
# blocks from 0590 on hold nearly all of these marks.
_MARKS = (
    "\u0300-\u036f\u0590-\u060b\u060d-\u061a\u061c-\u061e\u0620-\u0963\u0966-\u0e00\u0f00-\u0fff"
)
_CHARACTER = f"[{SPACELESS}][{_ATTACHED}]*+"
_WORD = f"{_CHARACTER}|(?:[^\\W{SPACELESS}]++|[{_MARKS}]++)++"
_WORDS = re.compile(_WORD)
_CHUNKS = re.compile(f"{_CHARACTER}|[^\\s{SPACELESS}]+")
_WORDS_AND_SIGNS = re.compile(f"{_WORD}|[^\\w\\s]")


def split_words(text: str, *, signs: bool = False) -> list[str]:
    """The lower-cased words of ``text``, in order and in linear time.

    A word is a run of letters, digits, underscores and combining marks; in scripts without spaces
    (Chinese, Japanese, Thai, Lao, Burmese, Khmer) each character is a word. With ``signs`` every
    other visible character is a token too.

    >>> split_words("It's 今天, ok!")
    ['it', 's', '今', '天', 'ok']
    >>> split_words("ok!!", signs=True)
    ['ok', '!', '!']
    """
    pattern = _WORDS_AND_SIGNS if signs else _WORDS
    return pattern.findall(text.lower())


def split_chunks(text: str) -> list[str]:
    """What white space separates in ``text``; scripts without spaces character by character.

    >>> split_chunks("U.S.A. 今天")
    ['U.S.A.', '今', '天']
    """
    return _CHUNKS.findall(text)
