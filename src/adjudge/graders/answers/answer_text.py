r"""The text of an answer: where it is in a response, and one way of writing it.

The answer is the last ``<answer>`` or ``\boxed{}``, or a last line ``#### 42``; without them, for
maths, the formula or the bold text that a response ends on. These functions take linear time: no
pattern can backtrack over more than it has just matched.

What is written in many ways (Unicode, LaTeX, Markdown) gets one. :func:`to_latex` keeps prose as it
is and only replaces signs. :func:`normalize` is for an answer: fonts, sizes and spaces go, and a
command with several names has one. :func:`comparable_text` is what two answers are compared by as
texts. Nothing that has a meaning is dropped.

Last come the texts of a reference, and what a comparison with it says.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any, NamedTuple

from adjudge.errors import InvalidInput
from adjudge.graders.base import is_nan
from adjudge.text import shorten_text

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE | re.ASCII)
_HASHES = re.compile(r"\s*####\s*([-+]?\$?[\d.,]*\d%?)\.?", re.ASCII)
_TEX = re.compile(r"(\\(?:boxed|fbox)\s*+\{)|\\.|([{}])", re.DOTALL)
_JOINED_BOXES = re.compile(r"[\s$]*+(?:[,;/]|(?:\\text\{\s?)?(?:or|and)\b\s?\}?)[\s$]*+")
_MATH = re.compile(r"\$\$?|\\[\[\]()]|\\.", re.DOTALL)
_WRAPPED = re.compile(
    r"(?:\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*|`(.*)`"
    r"|\\(?:text|textbf|mathrm|mathbf|textit|mbox|boxed|fbox)\s*\{(.*)\}|\{(.*)\})",
    re.DOTALL,
)
_MAX_WRAPPERS = 5
_MATH_CLOSE = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}


class MarkedText(NamedTuple):
    """A stretch of a response: its text and where it begins."""

    start: int
    text: str


def find_last_marked(text: str, *, hashes: bool = False) -> str | None:
    r"""What the last ``<answer>…</answer>`` or ``\boxed{…}`` holds, whichever begins later.

    With ``hashes`` a last line ``#### 42`` marks its number, too, as in GSM8K. ``None`` without a
    closed marker. Tag names are read in any case; braces of a box balance, and ``\fbox`` counts as
    a box.

    >>> find_last_marked(r"<answer>1</answer> or rather <answer>so \boxed{\frac{3}{4}}</answer>")
    '\\frac{3}{4}'
    >>> find_last_marked("6 * 7 = 42\n#### 42", hashes=True)
    '42'
    """
    mark = find_last_mark(text, hashes)
    return mark and mark.text.strip()


def find_last_mark(text: str, hashes: bool) -> MarkedText | None:
    """As :func:`find_last_marked`, with the place."""
    marks = (_last_tag(text), _last_box(text), _last_hashes(text) if hashes else None)
    return max((mark for mark in marks if mark is not None), default=None)


def _last_hashes(text: str) -> MarkedText | None:
    line = text.rstrip().rpartition("\n")[2]
    hashes = _HASHES.fullmatch(line)
    return None if hashes is None else MarkedText(len(text.rstrip()) - len(line), hashes[1])


def _last_tag(text: str) -> MarkedText | None:
    best, opened = None, -1
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened >= 0:
            best, opened = MarkedText(opened, text[opened : tag.start()]), -1
    return best and _last_begun(text, best, opened)


def _last_begun(text: str, closed: MarkedText, begun: int) -> MarkedText:
    """The mark that is closed last, or an empty one where another answer is cut off behind it."""
    rest = text[begun:].strip(" \n.$}") if begun > closed.start else ""
    return closed if rest in ("", closed.text.strip()) else MarkedText(begun, "")


def _last_box(text: str) -> MarkedText | None:
    r"""The box that begins last among those that close; boxes left open do not hide others.

    Boxes that are joined ("\boxed{5} or \boxed{6}") are one answer, from the first to the last.
    """
    first = min((at for at in (text.find(r"\boxed"), text.find(r"\fbox")) if at >= 0), default=-1)
    if first < 0:
        return None
    opened: list[tuple[int, int]] = []  # where a group and its content begin; 0 for no box
    begun = start = end = 0
    joined = -1  # where the first of the boxes joined to the last one begins
    for token in _TEX.finditer(text, first):
        if token[1]:
            opened.append((token.start(), token.end()))
        elif token[2] == "{":
            opened.append((0, 0))
        elif token[2] and opened and (group := opened.pop())[1] > start:
            together = end and _JOINED_BOXES.fullmatch(text, end + 1, group[0])
            joined = (begun if joined < 0 else joined) if together else -1
            (begun, start), end = group, token.start()
    if not start:
        return None
    cut = max((content for _, content in opened), default=0)
    last = MarkedText(start, text[joined : end + 1] if joined >= 0 else text[start:end])
    return _last_begun(text, last, cut)


def find_last_math(text: str) -> MarkedText | None:
    r"""The last formula between ``$ $``, ``$$ $$``, ``\( \)`` or ``\[ \]``; ``None`` without one.

    >>> find_last_math(r"from \(x = 2\) follows $x^2 = 4$.")
    MarkedText(start=24, text='x^2 = 4')
    """
    best, closing, start = None, None, 0
    for token in _MATH.finditer(text):
        if closing is None:
            closing, start = _MATH_CLOSE.get(token[0]), token.end()
        elif token[0] == closing:
            content = text[start : token.start()].strip()
            best = MarkedText(start, content) if content else best
            closing = None
    return best


def strip_wrappers(text: str) -> str:
    r"""``text`` without the wrappers that enclose all of it: ``$…$``, ``\text{…}``, ``**…**``, ….

    >>> strip_wrappers(r"$\text{(B)}$ ")
    '(B)'
    """
    text = text.strip()
    for _ in range(_MAX_WRAPPERS):
        match = _WRAPPED.fullmatch(text)
        inner = next((group for group in match.groups() if group is not None), "") if match else ""
        if not match or not _balanced(inner):
            break
        text = inner.strip()
    return text


def _balanced(inner: str) -> bool:
    """False when a wrapper's ends belong to two different groups, as in ``{a} and {b}``."""
    if "$" in inner.replace(r"\$", "") or "**" in inner or "`" in inner:
        return False
    depth = 0
    for token in _TEX.finditer(inner):
        if token[1] or token[2] == "{":
            depth += 1
        elif token[2]:
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


_SIGNS = (
    "−|- ⁄|/ ∗|* ⋅|\\cdot~ ·|\\cdot~ ∙|\\cdot~ ×|\\times~ ✕|\\times~ ÷|\\div~ π|\\pi~ ∞|\\infty~ "
    "≤|\\le~ ⩽|\\le~ ≥|\\ge~ ⩾|\\ge~ ≠|\\ne~ ±|\\pm~ ≈|\\approx~ ≅|\\approx~ °|^\\circ~ √|\\sqrt "
    "∛|\\sqrt[3] 。|. 、|, ∪|\\cup~ ∩|\\cap~ ∅|\\emptyset~ ∈|\\in~ ℝ|\\mathbb{R} ℤ|\\mathbb{Z} "
    "→|\\to~ ∧|\\land~ ∨|\\lor~ ′|' ⟨|\\langle~ ⟩|\\rangle~ µ|μ Ω|Ω"
)
_WRITTEN = {sign: to.replace("~", " ") for sign, to in (one.split("|") for one in _SIGNS.split())}
# Not CJK, kana or Hangul letters, which long responses are full of.
_NOT_ASCII = re.compile(r"[^\x00-\x7f\u3041-\u9fff\uac00-\ud7a3]")
_UNSEEN = "\u200b\u200c\u200d\u2060\ufeff"
_RAISED = re.compile(r"(?:\^\{[-+\d]\})+")
_DASH = re.compile(r"(\A|[=(,{+*/^:])(\s*)[–‒—](?=\s?[\d.\\$(])")
_BARE_ROOT = re.compile(r"(?:\\|(?<![A-Za-z\\]))sqrt(\[\d+\])?\s*(?:(\d+(?:\.\d+)?)|\(([^()]*)\))")
_THOUSANDS = re.compile(r"(?a)(?<=\d)(?:,?(?:\\[,!;:]\s?)+|,\\ |\{,\})(?=\d{3}(?!\d))")
_BLANK = re.compile(r"(?<!\\)(?:\\[,;:!> ]|~|\\q?quad(?![A-Za-z]))")


def to_latex(text: str) -> str:
    r"""``text`` with Unicode digits, fractions, powers, roots and signs written as LaTeX has them.

    >>> to_latex("½ × √16 − ３²")
    '\\frac{1}{2} \\times  \\sqrt{16} - 3^{2}'
    >>> to_latex(r"15,\!400\ \mathrm{cm}")
    '15,400 \\mathrm{cm}'
    """
    if not text.isascii():
        text = _NOT_ASCII.sub(lambda match: _sign(match[0]), unicodedata.normalize("NFC", text))
        text = _DASH.sub(r"\1\2-", _RAISED.sub(_one_power, text))
    if "\\" in text or "~" in text or "{,}" in text:
        text = _BLANK.sub(" ", _THOUSANDS.sub(",", text))
    return _BARE_ROOT.sub(r"\\sqrt\1{\2\3}", text) if "sqrt" in text else text


def _one_power(match: re.Match[str]) -> str:
    return "^{" + re.sub(r"[^-+\d]", "", match[0]) + "}"


@lru_cache(maxsize=1024)
def _sign(sign: str) -> str:
    kind, *parts = unicodedata.decomposition(sign).split() or [""]
    written = "".join(chr(int(part, 16)) for part in parts if kind[:1] == "<").replace("−", "-")
    if sign in _WRITTEN or sign in _UNSEEN:
        return _WRITTEN.get(sign, "")
    if kind in ("<super>", "<sub>") and written in tuple("0123456789+-"):
        return f"{'^' if kind == '<super>' else '_'}{{{written}}}"
    if kind == "<fraction>" and written[-1] != "⁄":
        return r"\frac{%s}{%s}" % (*written.split("⁄"),)  # noqa: UP031  braces abound
    if kind in ("<wide>", "<small>"):  # full-width forms and their like
        return written
    if kind == "<noBreak>" or unicodedata.category(sign) == "Zs":
        return " "
    return str(unicodedata.decimal(sign, sign))


# Names of one thing: the first is written.
_SAME = (
    r"\le leq leqslant|\ge geq geqslant|\ne neq|\emptyset varnothing|\to rightarrow longrightarrow"
    r"|\land wedge|\lor vee|\frac dfrac tfrac cfrac|\binom dbinom tbinom|... ldots dots cdots hdots"
    r"|\setminus backslash|\vec overrightarrow|\iff Leftrightarrow|\implies Rightarrow"
    r"|\sim thicksim|\approx simeq|\{ lbrace|\} rbrace|| lvert rvert vert lVert rVert|< lt|> gt"
    r"|: colon|* ast|T top intercal mathsf{T}|^\circ degree|μ mu|Ω Omega|\mod bmod"
)
_ONE_NAME = {
    name: names[0] or "|"
    for names in (one.split(" ") for one in re.split(r"(?<!\|)\|", _SAME))
    for name in names[1:]
}
_ONE_NAME |= dict.fromkeys(re.findall(r"\w+", "left right middle big Big bigg Bigg bigl bigr"), "")
_ONE_NAME |= dict.fromkeys(("Bigl", "Bigr", "displaystyle", "textstyle", "limits"), "")
FUNCTIONS = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|lg|log|exp|max|min|gcd|lcm|mod"
)
_BRACED = r"\{((?:[^{}\\]|\\.|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_SHOWN = re.compile(r"\\(?:boxed|fbox|underline|(?:text)?color\s*\{\w+\})\s*" + _BRACED)
_FONT = re.compile(
    r"\\(?:text(?:rm|bf|it|normal|sf|tt|up)?|math(?:bf|rm|it|sf|cal|normal)|boldsymbol|bm|[mh]box"
    r"|operatorname\*?)\s*" + _BRACED
)
_DIFFERENTIAL = r"(?:d|\\partial)(?:\s*\^\s*\{?\w\}?)?\s*\\?"
_NO_LETTER = re.compile(r"\\frac|[^\w]")
_RULES: tuple[tuple[str, Any], ...] = (
    (r"(?<!\\)\$+|\\[()\[\]]|(?<![\w*)])\*\*(?=[^\s*])|(?<=[^\s*])\*\*(?![\w*({\\-])", ""),
    (r"\\(?:begin|end)\s*\{(?:aligned|align\*?|gathered|split)\}", ""),
    (r"\\(?:mathbf|boldsymbol|bm|vec|hat)\s*\{\s*\\?(i|j|k)(?:math)?\s*\}", r"\\word{vec \1}"),
    (r"\\left\s*\\\{\s*\\begin\s*\{array\}(?:\s*\{[lcr| ]+\})?", r"\\begin{cases}"),
    (r"\\end\s*\{array\}\s*\\right\s*\.", r"\\end{cases}"),
    (r"\\(begin|end)\s*\{(?:array|[bBpvV]?matrix)\}(?:\s*\{[lcr| ]+\})?", r"\\\1{matrix}"),
    (r"\^\s*\{?((?:\s*\\prime)+)\s*\}?", lambda found: "'" * found[1].count("p")),
    (r"\*\*", "^"),
    (r"\\([A-Za-z]+)", lambda found: _ONE_NAME.get(found[1], found[0])),
    (rf"(?<![\\A-Za-z])(?:{FUNCTIONS}|pi|infty)(?![A-Za-z])", r"\\\g<0>"),
    (
        rf"\\frac\s*\{{\s*{_DIFFERENTIAL}\w*\s*\}}\s*\{{\s*{_DIFFERENTIAL}[A-Za-z][^{{}}]*\}}",
        lambda found: rf"\word{{{_NO_LETTER.sub('', found[0])}}}",
    ),
    (r"(?<![A-Za-z\\])(d[a-z])\s?/\s?(d[a-z])(?![A-Za-z])", r"\\word{\1\2}"),
)


def normalize(text: str) -> str:
    r"""The normal form of an answer: LaTeX without fonts and sizes, words as ``\word{…}``.

    >>> normalize(r"$\left(\dfrac{1}{2}, \mathbf{3}\,\mathrm{cm^2}\right)$")
    '(\\frac{1}{2}, 3 \\word{cm^2})'
    """
    text = to_latex(text)
    for pattern, written in _RULES:
        text = re.sub(pattern, written, text)
    for _ in range(4):
        text, shown = _SHOWN.subn(r"\1", text)
        text, fonts = _FONT.subn(_plain_font, text)
        if not shown + fonts:
            break
    return " ".join(text.split())


def _plain_font(match: re.Match[str]) -> str:
    inner = " ".join(match[1].split())
    if inner.lstrip("\\") in FUNCTIONS.split("|"):
        return "\\" + inner.lstrip("\\") + " "
    letters = sum(one.isalpha() for one in re.sub(r"\\[A-Za-z]+", "", inner))
    several = letters > 1 or not inner.isascii()
    return rf" \word{{{re.sub('[{}]', '', inner)}}}" if several else f" {inner} "


_WORD = re.compile(r"\\word\s*\{([^{}]*)\}")
_LONE_BRACES = re.compile(r"(?<!\\)\{(\\[A-Za-z]+|[^{}\\])\}")
_LOOSE_SPACE = re.compile(r"(?<![^\W_])\s+|\s+(?![^\W_])")


def comparable_text(normal: str) -> str:
    r"""A normal form as characters, for a comparison as text: no loose spaces, braces, full stop.

    >>> comparable_text(normalize(r"\text{No solution.}"))
    'no solution'
    """
    text = _WORD.sub(r" \1 ", normal).strip(" .,;")
    text = _LONE_BRACES.sub(r"\1", _LOOSE_SPACE.sub("", text))
    while text[:1] == "{" and text[-1:] == "}" and "{" not in text[1:]:
        text = text[1:-1]
    words = text.replace(" ", "").replace("'", "")
    return text.casefold() if words.isalpha() and (len(words) > 2 or words == "No") else text


class AnswerMatch(NamedTuple):
    """A score in [0, 1], the answer that was read (``None``: nothing found), how it was decided.

    ``decision``: ``equal_text``, ``equal_value``, ``equal_symbolic``, ``differs``, ``no_answer``
    or ``undecided``.
    """

    score: float
    answer: str | None
    decision: str
    reason: str = ""

    @classmethod
    def decide(cls, equal: bool, answer: str, decision: str = "equal_value") -> AnswerMatch:
        """1 or 0."""
        return cls(float(equal), answer, decision if equal else "differs")

    @classmethod
    def rate(cls, score: float, answer: str, reason: str) -> AnswerMatch:
        """How much of the reference an answer is."""
        return cls(score, answer, "equal_value" if score == 1.0 else "differs", reason)

    @classmethod
    def miss(cls, wanted: str) -> AnswerMatch:
        """No answer of the type was found."""
        return cls(0.0, None, "no_answer", f"no {wanted}")


def read_reference_texts(reference: Any) -> list[str]:
    r"""The references as texts; what ``<answer>`` or ``\boxed{}`` in one holds replaces it."""
    return [find_last_marked(one) or one for one in list_texts(reference)]


def raise_unusable_reference(wanted: str, reference: Any) -> Any:
    """Raise ``GradingFailure(invalid_input)`` for a reference that is not ``wanted``."""
    found = f"{type(reference).__name__} {shorten_text(reference, 80)!r}"
    raise InvalidInput(f"the reference must be {wanted}, got {found}")


def list_each(reference: Any) -> list[Any]:
    """The references, one or several; none are ``GradingFailure(invalid_input)``."""
    several = list(reference) if isinstance(reference, list | tuple) else [reference]
    return several or raise_unusable_reference("present", reference)


def list_texts(reference: Any) -> list[str]:
    """The references as texts; ``GradingFailure(invalid_input)`` where one is none."""
    several = list_each(reference)
    for one in several:
        if not isinstance(one, str | int | float) or not str(one).strip() or is_nan(one):
            raise_unusable_reference("text that is not empty", one)
    return [str(one) for one in several]
