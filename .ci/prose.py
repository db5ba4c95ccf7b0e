"""Hold the words of the documentation to the house's list. `python .ci/prose.py [FILE …]`.

Read are README.md, CHANGELOG.md and the pages under docs/. Code, comments and names in backticks
are not prose. Spelling is codespell's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 50
"""Words in a sentence. A reader whose first language is not English loses a longer one."""

REFUSED = {
    r"\boutlast\w*": "say what is retried, and for how long",
    r"\b(has|have|had) said nothing\b": "a failed judge call yields no score",
    r"\b(which|that|it|'s) is none\b(?! of)": "is not one, is invalid, or is missing",
    r"\bgoes with no\b": "say which of the two to use",
    r"\b(which|that|it) (is|are|was) no (?!longer|more|such)\w+": "is not a …",
    r"\bin silence\b": "silently",
    r"\bun(asked|shown|said|told)\b": "without being asked, not shown",
    r"\b(simply|easily|obviously|of course|please)\b": "leave it out",
    r"\b(seamless\w*|powerful|blazing\w*|robust|battle-tested|cutting-edge)\b": "give a number",
    r"\bleverag\w+|\butili[sz]e\w*": "use",
    r"\bin order to\b": "to",
    r"\be\.g\.|\bi\.e\.|\betc\.": "for example, that is, and so on",
    r"\b(out of the box|under the hood|rule of thumb|first-class|once and for all)\b": "no idioms",
    r"\b(whitelist|blacklist|sanity check)\w*": "allow list, block list, check",
    r"\[(here|this|link)\]\(|click here": "name what the link leads to",
    r"(?<=\w)!(?=\s|$)": "no exclamation mark",
    r"\b(?!that\b|had\b)([a-z]{2,}) \1\b": "a word is there twice",
    r"^#+ .*[.:;]$": "a heading has no full stop",
}
"""What is refused → what to write; matched regardless of case."""

_NOT_PROSE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}).*?^(?P=indent)(?P=fence)\s*$|<!--.*?-->",
    re.DOTALL | re.MULTILINE,
)
_CODE = re.compile(r"``.+?``|`[^`\n]+(?:\n[^`\n]+)?`|\]\([^)\s]*\)")
_END = re.compile(r"(?<=[.!?:;])\s|\n\s*\n|\n\s*(?:[*#>-]|\d+\.)\s|\|")


def find_faults(text: str) -> Iterator[tuple[int, str]]:
    """Each fault of a page: its line, and what to write."""
    text = _NOT_PROSE.sub(_blank, text)
    worded = _CODE.sub(lambda code: code[0] if code[0][0] == "]" else _blank(code, "0"), text)
    for pattern, remedy in REFUSED.items():
        for found in re.finditer(pattern, worded, re.IGNORECASE | re.MULTILINE):
            yield _line(worded, found.start()), f"{' '.join(found[0].split())!r}: {remedy}"
    begin = 0
    for end in [*_END.finditer(worded), None]:
        sentence = worded[begin : end.start() if end else None]
        if (words := len(sentence.split())) > LONGEST:
            yield _line(worded, begin) + sentence.startswith("\n"), f"a sentence of {words} words"
        begin = end.end() if end else begin


def _blank(found: re.Match[str], sign: str = " ") -> str:
    return re.sub(r"[^\n]", sign, found[0])


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def list_pages() -> list[Path]:
    """The pages that are held."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Print the faults, and fail where there is one."""
    pages = [Path(name).resolve() for name in sys.argv[1:]] or list_pages()
    faults = [
        f"{page.relative_to(ROOT)}:{line}: {what}"
        for page in pages
        for line, what in sorted(find_faults(page.read_text(encoding="utf-8")))
    ]
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
