"""Markup whose text is escaped: elements of HTML and SVG.

An element escapes its attributes and whatever text it holds, so a name, a judge's words or a
response can stand anywhere in it. What is markup already says so by ``__html__``, as templates
know it; only this room makes such things.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = [
    "Element",
    "Fragment",
    "below",
    "bold",
    "code",
    "element_text",
    "paragraph",
    "quote",
    "small",
]

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
        named = "".join(
            f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
            for name, value in self.attributes.items()
            if value is not None and value != ""
        )
        if self.tag in _WITHOUT_CONTENT and not self.content:
            return f"<{self.tag}{named}/>"
        return f"<{self.tag}{named}>{_html(self.content)}</{self.tag}>"


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
    if content is None:
        return ""
    if (markup := getattr(content, "__html__", None)) is not None:
        return str(markup())
    if isinstance(content, Iterable) and not isinstance(content, str):
        return "".join(map(_html, content))
    return html.escape(str(content))


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return html.escape(str(value))
