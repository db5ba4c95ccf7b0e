"""Text and numbers for the pages that write their markup themselves."""

from __future__ import annotations

import html

from adjudge.report.numbers import format_integer, format_number, format_percent

__all__ = ["escape_html", "format_integer", "format_number", "format_percent"]


def escape_html(text: object) -> str:
    """``text`` for HTML content and quoted attributes."""
    return html.escape(str(text))
