"""Keep the addresses of pages that moved: each shows its readers the page that has its words now.

mkdocs calls :func:`on_post_build` after each build (``hooks`` in ``mkdocs.yml``). The pairs are
``extra.redirects`` there: an old page to a page of the navigation, with an anchor where one helps.
"""

from __future__ import annotations

import json
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.exceptions import PluginError

_PAGE = """\
<!doctype html><meta charset="utf-8"><title>Moved</title>
<link rel="canonical" href={to}><meta http-equiv="refresh" content="0; url={plain}">
<script>location.replace({to} + (location.hash || ""))</script>
<a href={to}>This page has moved.</a>
"""


def on_post_build(config: Any) -> None:
    """Write a page at each old address; mkdocs calls this by its name."""
    site = Path(config.site_dir)
    for old, new in config.extra["redirects"].items():
        page, _, anchor = new.partition("#")
        if not (Path(config.docs_dir) / page).exists() or (Path(config.docs_dir) / old).exists():
            raise PluginError(f"mkdocs.yml: extra.redirects: {old}: {new} must be there, {old} not")
        target = relpath(_folder(page) or ".", _folder(old)) + "/" + (anchor and f"#{anchor}")
        folder = site / _folder(old)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.html").write_text(_PAGE.format(to=json.dumps(target), plain=target), encoding="utf-8")


def _folder(page: str) -> str:
    """The folder of the site that has ``page``: mkdocs writes ``a.md`` to ``a/index.html``."""
    return page.removesuffix(".md").removesuffix("index")
