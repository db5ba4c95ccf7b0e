"""Put the pages of ``results/`` and CONTRIBUTING beside the site, so that links to them work there.

They are for readers of the code: no page of the navigation, not in its search. mkdocs calls the
functions by their names (``hooks`` in ``mkdocs.yml``). ``lab/tests/unit/test_docs.py`` checks the
links.
"""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import markdown

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r'(href="[^":]*(?:results/[\w-]+|CONTRIBUTING))\.md(?=["#])')
_INNER = re.compile(r'(href="[\w-]+)\.md(?=["#])')
_SITE = re.compile(r'href="\.\./docs/([\w/-]+)\.md(?=["#])')
_STYLE = "body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui}\
table{border-collapse:collapse;display:block;overflow-x:auto}\
td,th{border:1px solid #9998;padding:.2rem .5rem}\
pre{overflow-x:auto}img{max-width:100%}"


def on_page_content(html: str, **_: Any) -> str:
    """Let links to ``results/NAME.md`` lead to the pages that are written below."""
    return _LINK.sub(r"\1.html", html)


def on_post_build(config: Any) -> None:
    """Write the pages as HTML, and the data beside them as they are."""
    site = Path(config.site_dir)
    copytree(_ROOT / "results", site / "results", dirs_exist_ok=True)
    contributing = copy(_ROOT / "CONTRIBUTING.md", site)
    for page in (Path(contributing), *(site / "results").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        html = markdown.markdown(text, extensions=["tables", "fenced_code", "toc"])
        html = _SITE.sub(r'href="../\1/', _INNER.sub(r"\1.html", html))
        html = html.replace("../docs/", "../")  # assets, data
        head = (
            f'<!doctype html><meta charset="utf-8"><title>{page.stem}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        )
        page.with_suffix(".html").write_text(head + html, encoding="utf-8")
        page.unlink()
