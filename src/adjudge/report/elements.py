"""What reports are made of: elements of HTML and SVG whose text is escaped, and numbers as text.

An element escapes its attributes and whatever text it holds, so a name, a judge's words or a
response can stand anywhere in it. What is markup already says so by ``__html__``, as templates
know it; only this room makes such things.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

_WITHOUT_CONTENT = frozenset({"br", "circle", "line", "polyline", "rect", "wbr"})


class Element:
    """``<tag attribute="…">content</tag>``.

    ``content``: text, numbers, elements, and lists of these; ``None`` is nothing. ``attributes``:
    ``class_`` is ``class`` and ``text_anchor`` is ``text-anchor``; those that are ``None`` or empty
    are left out, and numbers are written with two decimals at most.

    >>> Element("b", "1 < 2", class_="n").__html__()
    '<b class="n">1 &lt; 2</b>'
    """

    __slots__ = ("attributes", "content", "tag")

    def __init__(self, tag: str, /, *content: object, **attributes: object) -> None:
        self.tag, self.content, self.attributes = tag, content, attributes

    def __str__(self) -> str:
        return self.__html__()

    def __html__(self) -> str:
        named = "".join(f' {name}="{html.escape(text)}"' for name, text in self._named().items())
        if self.tag in _WITHOUT_CONTENT and not self.content:
            return f"<{self.tag}{named}/>"
        return f"<{self.tag}{named}>{_html(self.content)}</{self.tag}>"

    def _named(self) -> dict[str, str]:
        return {
            name.rstrip("_").replace("_", "-"): _attribute(value)
            for name, value in self.attributes.items()
            if value is not None and value != ""
        }

    def as_tree(self) -> list[Any]:
        """Tag, attributes, and the content as trees and texts: for a script that makes it anew."""
        return [self.tag, self._named(), *_trees(self.content)]


class Fragment(Element):
    """Things one after another, without an element around them."""

    __slots__ = ()

    def __init__(self, *content: object) -> None:
        super().__init__("", *content)

    def __html__(self) -> str:
        return _html(self.content)


def paragraph(*content: object, class_: str = "") -> Element:
    """``<p>``."""
    return Element("p", *content, class_=class_)


def bold(*content: object) -> Element:
    """``<b>``."""
    return Element("b", *content)


def small(*content: object) -> Element:
    """``<small>``: what is to be read second."""
    return Element("small", *content)


def code(name: str) -> Element:
    """``<code>`` of a name, which may break after an underscore where it is long."""
    first, *more = name.split("_")
    return Element("code", first, [["_", Element("wbr"), part] for part in more])


def below(*content: object) -> Fragment:
    """What is to be read second, on a line of its own."""
    return Fragment(Element("br"), small(*content))


def quote(text: str) -> Element:
    """``<q>``: what a policy or a judge wrote."""
    return Element("q", text)


def element_text(content: object) -> str:
    """The text of ``content`` without markup, for a terminal or another format."""
    if content is None:
        return ""
    if isinstance(content, Element):
        return element_text(content.content)
    if isinstance(content, Iterable) and not isinstance(content, str):
        return "".join(map(element_text, content))
    return str(content)


def _html(content: object) -> str:
    if type(content) is str:
        return html.escape(content)
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return "".join(map(_html, content))
    if (markup := getattr(content, "__html__", None)) is not None:
        return str(markup())
    if isinstance(content, Iterable) and not isinstance(content, str):
        return "".join(map(_html, content))
    return html.escape(str(content))


def _trees(content: object) -> Iterator[Any]:
    if isinstance(content, list | tuple):
        for part in content:
            yield from _trees(part)
    elif content is not None:
        yield content.as_tree() if isinstance(content, Element) else str(content)


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


# --- numbers as people read them ----------------------------------------------------------------


def format_sample_rate(per_second: float) -> str:
    """Samples a second, or a minute where there are fewer than one a second.

    >>> format_sample_rate(1234.5), format_sample_rate(0.057)
    ('1,234 samples/s', '3.4 samples/min')
    """
    if per_second < 1:
        return f"{60 * per_second:.1f} samples/min"
    return f"{per_second:,.0f} samples/s"


def format_times(text: str) -> str:
    """``text`` with its times, as runs write them, to the minute.

    >>> format_times("2026-11-29T02:54:42+00:00 · adjudge")
    '2026-11-29 02:54 UTC · adjudge'
    """
    return _TIME.sub(r"\1 \2 UTC", text)


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):[\d.]+(?:\+00:00|Z)")


def format_integer(value: float) -> str:
    """A whole number with thousands separators.

    >>> format_integer(12345.0)
    '12,345'
    """
    return f"{round(value):,}"


def format_number(value: float | None, digits: int = 3) -> str:
    """A number for reading: ``digits`` decimals, fewer for large ones; "–" for none.

    >>> format_number(0.12345), format_number(123.45), format_number(None)
    ('0.123', '123.5', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    text = f"{value:.{1 if abs(value) >= 100 else digits}f}"
    if float(text) == 0 and value != 0:
        text = f"{value:.1e}"
    return text.replace("-", "−")


def format_percent(part: float, whole: float = 1.0) -> str:
    """``part`` of ``whole`` with a unit; "–" of nothing. Never rounds something to 0 % or 100 %."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1\u202f%"
    if 99.9 < share < 100:
        return "> 99.9\u202f%"
    digits = 0 if share in (0, 100) else 1
    return f"{share:.{digits}f}\u202f%"


def format_range(low: float | None, high: float | None, why: str = "") -> str:
    """``low to high``; ``why`` there is no interval where one of them is missing.

    >>> format_range(0.25, 0.5), format_range(None, None, "one group")
    ('0.250 to 0.500', 'one group')
    """
    if low is None or high is None:
        return why
    return f"{format_number(low)} to {format_number(high)}"
