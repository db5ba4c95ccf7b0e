"""One HTML file: head, security policy, facts, tiles, sections, and the elements in them.

An element of HTML or SVG escapes its attributes and whatever text it holds, so a name, a judge's
words or a response can stand anywhere in it. What is markup already says so by ``__html__``, as
templates know it; only this room makes such things.

No network: a content security policy admits the page's own style, and its script where it has one,
by hash and nothing else. The frame and the prose are templates with autoescape; text from outside
is a value in them, never a template. What is put in unescaped is a package's own file, a template
that was rendered, and JSON whose markup characters are escaped: :func:`read_asset`,
:func:`render_prose` and :func:`embed_json` alone make it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from adjudge.text import escape_json, replace_surrogates

if TYPE_CHECKING:
    from jinja2 import Environment


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


# --- the page -------------------------------------------------------------------------------------

_FRAME = __package__ or ""
_MAX_EXACT = 2**53
"""The largest whole number that JavaScript has exactly."""
_DEPTH = 60


class SafeHtml(str):
    """Markup that stands on the page as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


class Section:
    """A part of a page under a heading.

    ``content``: elements, tables, charts and markup, one or a list; a text is a paragraph, and what
    is empty is left out, the section too where all is. ``link`` is what the page's head calls it.
    """

    def __init__(self, key: str, title: str, content: object, link: str = "") -> None:
        self.key, self.title, self.link = key, title, link
        parts = (
            content if isinstance(content, Iterable) and not isinstance(content, str) else [content]
        )
        blocks = [part for part in parts if part]
        self.content = Fragment(*(paragraph(one) if type(one) is str else one for one in blocks))

    def __bool__(self) -> bool:
        return bool(self.content.content)

    def html(self) -> SafeHtml:
        """The content as markup."""
        return SafeHtml(self.content.__html__())


class Tile(NamedTuple):
    """A number with what it is and what is to be said of it."""

    name: str
    value: str
    note: str
    alarm: bool = False


def render_page(
    title: str,
    facts: Iterable[tuple[str, str | Sequence[str]]],
    sections: Iterable[Section],
    *,
    tiles: Sequence[Tile] = (),
    above: object = (),
    styles: Iterable[tuple[str, str]] = (),
    script: SafeHtml | None = None,
    rows: SafeHtml | None = None,
) -> str:
    """A whole page, ready to be written as UTF-8.

    ``facts``: names, and a line or lines; those without any are left out. ``above``: what stands
    before the tiles. ``styles``: packages and the files in them that follow the style of all.
    ``script`` may read ``rows``, JSON in a data block.
    """
    style = _join_styles(styles)
    # Without the indentation and the comments of its lines: readers have the source.
    if script is not None:
        lines = map(str.strip, script.splitlines())
        script = SafeHtml("\n".join(line for line in lines if not line.startswith("//")))
    listed = [
        (name, list(map(format_times, [text] if isinstance(text, str) else text)))
        for name, text in facts
        if text
    ]
    page = (
        _environment(_FRAME)
        .get_template("page.html")
        .render(
            title=title,
            style=style,
            style_hash=_csp_hash(style),
            script=script,
            script_hash=script and _csp_hash(script),
            rows=rows,
            facts=listed,
            above=Fragment(above),
            tiles=tiles,
            sections=[one for one in sections if one],
        )
    )
    # What a file name or a policy said may hold lone surrogates, which UTF-8 does not have.
    return replace_surrogates(page)


def render_output(*content: object) -> str:
    """Elements as an output of a notebook's cell, with a style for it alone.

    Colours are the notebook's, which may be dark.
    """
    style = Element("style", read_asset(_FRAME, "output.css"))
    return replace_surrogates(str(Element("div", style, *content, class_="adjudge-output")))


def notes_section(
    package: str, name: str = "notes.html", link: str = "", **values: object
) -> Section:
    """What the numbers of a page mean: a template of ``package``."""
    return Section("notes", "How to read the numbers", render_prose(package, name, **values), link)


def render_prose(package: str, name: str, **values: object) -> SafeHtml:
    """A template of ``package``, with its ``values`` escaped."""
    return SafeHtml(_environment(package).get_template(name).render(values))


def read_asset(package: str, name: str) -> SafeHtml:
    """A text file of a package."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    # The browser hashes after its own newline normalisation.
    return SafeHtml(text.replace("\r\n", "\n"))


def read_script(package: str, name: str, shared: Sequence[str] = ()) -> SafeHtml:
    """A script of a package, after what makes elements for all of them, and other ``shared`` ones.

    They are modules of the live page; on a page without a server all is one script.
    """
    modules = [(_FRAME, f"{one}.js") for one in ("elements", *shared)]
    texts = [read_asset(*one) for one in (*modules, (package, name))]
    lines = (line for text in texts for line in text.splitlines() if not line.startswith("import "))
    return SafeHtml("\n".join(line.removeprefix("export ") for line in lines))


def to_browser_json(value: Any, depth: int = 0) -> Any:
    """``value`` from a file as JSON that a browser reads: no NaN, no bottomless nesting.

    A whole number that JavaScript would round is given as text.
    """
    if depth > _DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(key): to_browser_json(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_browser_json(inner, depth + 1) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if type(value) is int and abs(value) > _MAX_EXACT:
        return str(value) if value.bit_length() < 4000 else "a very large number"
    return value


def embed_json(data: Mapping[str, Any]) -> SafeHtml:
    """``data`` as JSON that holds no markup character and no character that UTF-8 lacks."""
    return SafeHtml(escape_json(data))


@cache
def _environment(package: str) -> Environment:
    """The templates of a package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 (slow to load)

    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: "" if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _join_styles(styles: Iterable[tuple[str, str]]) -> SafeHtml:
    """The style of all and ``styles``, without comments and spaces that mean nothing."""
    text = "".join(read_asset(*one) for one in [(_FRAME, "page.css"), *styles])
    plain = " ".join(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).split())
    for sign in "{};,":
        plain = plain.replace(f" {sign}", sign).replace(f"{sign} ", sign)
    return SafeHtml(plain.replace(": ", ":").replace(";}", "}\n"))


def _csp_hash(text: str) -> str:
    """What a content security policy calls a style or script by, without ``sha256-``."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
