"""One HTML file: head, security policy, facts, tiles, sections.

No network: a content security policy admits the page's own style, and its script where it has one,
by hash and nothing else. The frame and the prose are templates with autoescape; text from outside
is a value in them, never a template. What is put in unescaped is a package's own file, a template
that was rendered, and JSON whose markup characters are escaped: :func:`read_asset`,
:func:`render_prose` and :func:`embed_json` alone make it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from adjudge.report.elements import Element, Fragment, format_times, paragraph
from adjudge.text import escape_json, replace_surrogates

if TYPE_CHECKING:
    from jinja2 import Environment


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
