"""What all pages of runs without a script share: head, security policy, facts, tiles, sections.

No script and no network: a content security policy admits the page's own style by hash and nothing
else. Titles, facts and tiles are text and escaped here; what stands in sections is HTML, whose
writers escape what others said. The section on judge calls is empty for a run without judges.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.report.page import Tile, read_asset
from adjudge.runs.judge_calls import judge_calls_section
from adjudge.runs.report.charts import escape_html
from adjudge.text import replace_surrogates

__all__ = [
    "Section",
    "Tile",
    "compute_csp_hash",
    "judge_calls_html",
    "notes_section",
    "render_page",
    "render_tiles",
]


_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{hash}'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
"""
_ALARM_ATTRIBUTE = ' class="alarm"'


class Section(NamedTuple):
    """A part of a page under a heading; ``link`` is what the page's head calls it, if it does."""

    key: str
    title: str
    html: str
    link: str = ""


def render_page(
    title: str,
    facts: Iterable[tuple[str, str]],
    body: Sequence[Section | str],
    *,
    styles: Iterable[tuple[str, str]] = (),
    above: str = "",
) -> str:
    """A whole page, ready to be written as UTF-8.

    ``body``: sections, those without content left out, and HTML as it is. ``styles``: packages and
    the files in them that follow the style of all. ``above``: HTML before the body.
    """
    style = "".join(read_asset(*one) for one in [("adjudge.report", "page.css"), *styles])
    shown = [one for one in body if isinstance(one, str) or one.html]
    links = (one for one in shown if isinstance(one, Section) and one.link)
    parts = (
        _HEAD.format(hash=compute_csp_hash(style), title=escape_html(title), style=style),
        f'<body>\n<header class="page">\n<h1>{escape_html(title)}</h1>\n',
        '<nav aria-label="Sections">',
        *(f'<a href="#{one.key}">{escape_html(one.link)}</a>' for one in links),
        '</nav>\n<dl class="facts">',
        *(
            f"<div><dt>{escape_html(a)}</dt><dd><span>{escape_html(b)}</span></dd></div>"
            for a, b in facts
        ),
        f"</dl>\n</header>\n{above}<main>\n",
        *(one + "\n" if isinstance(one, str) else _render_section(one) for one in shown),
        "</main>\n</body>\n</html>\n",
    )
    # What a file name or a policy said may hold lone surrogates, which UTF-8 does not have.
    return replace_surrogates("".join(parts))


def render_tiles(entries: Iterable[Tile]) -> str:
    """Numbers to be seen first."""
    found = (
        f"<div{_ALARM_ATTRIBUTE if one.alarm else ''}><dt>{escape_html(one.name)}</dt>"
        f"<dd>{escape_html(one.value)}</dd><dd>{escape_html(one.note)}</dd></div>"
        for one in entries
    )
    return f'<dl class="tiles">{"".join(found)}</dl>'


def notes_section(html: str, link: str = "") -> Section:
    """What the numbers of a page mean."""
    return Section("notes", "How to read the numbers", html, link)


def compute_csp_hash(text: str) -> str:
    """What a content security policy calls a style or script by, without ``sha256-``."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _render_section(one: Section) -> str:
    return f'<section id="{one.key}"><h2>{escape_html(one.title)}</h2>{one.html}</section>\n'


def judge_calls_html(summary: Mapping[str, Any]) -> str:
    """One table per endpoint."""
    found = judge_calls_section(summary)
    return _render_section(Section("calls", found.title, str(found.html()))) if found else ""
