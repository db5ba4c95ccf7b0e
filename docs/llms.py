"""Write ``llms.txt`` into the site: every page of the navigation, with its first sentence.

mkdocs calls :func:`on_post_build` after each build (``hooks`` in ``mkdocs.yml``). A page without a
sentence is a warning, which ends a strict build. Format: https://llmstxt.org.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_log = logging.getLogger("mkdocs.hooks")
_NO_PROSE = re.compile(r"<!--.*?-->|^```.*?^```", re.DOTALL | re.MULTILINE)
_SKIPPED = re.compile(r"\s*(?:[#~|>!<$]|---|:::|\s{4})")
"""What a paragraph of prose does not begin with: headings, code, tables, pictures, admonitions."""


def on_post_build(config: Any) -> None:
    """Write the file; mkdocs calls this by its name."""
    text = render_index(config.site_name, config.site_description, config.nav, config.docs_dir)
    (Path(config.site_dir) / "llms.txt").write_text(text, encoding="utf-8")


def render_index(
    name: str, description: str, nav: list[Mapping[str, Any]], docs: str | Path
) -> str:
    """The text of ``llms.txt``: a heading for each part of ``nav``, a line for each page."""
    parts = [f"# {name}\n\n> {description}\n"]
    for part in nav:
        for title, pages in part.items():
            lines = "\n".join(
                f"- [{words}]({_address(page)}): {_first_sentence(Path(docs, page))}"
                for words, page in _list_pages(title, pages)
            )
            parts.append(f"## {title}\n\n{lines}\n")
    return "\n".join(parts)


def _list_pages(title: str, pages: Any) -> Iterator[tuple[str, str]]:
    """Title and file of each page under an entry of the navigation."""
    if isinstance(pages, str):
        yield title, pages
        return
    for one in pages:
        for inner, deeper in one.items():
            yield from _list_pages(inner, deeper)


def _address(page: str) -> str:
    return f"./{page.removesuffix('.md')}/".removesuffix("index/")


def _first_sentence(page: Path) -> str:
    text = _NO_PROSE.sub("", page.read_text(encoding="utf-8"))
    paragraphs = (one for one in re.split(r"\n\s*\n", text) if one.strip())
    prose = next((one for one in paragraphs if not _SKIPPED.match(one)), "")
    if not prose:
        _log.warning("%s: has no sentence for llms.txt. Begin it with what it is about.", page.name)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())).replace("**", "")
    return re.split(r"(?<=[.!?])\s(?=[A-Za-z`])", plain, maxsplit=1)[0].rstrip(":")
