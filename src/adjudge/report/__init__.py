"""Reports: one page frame, one stylesheet, one table for terminal and page, charts as SVG.

Whole pages and their prose are templates with autoescape; tables, charts and single marks are
:class:`~adjudge.report.page.Element`, which escapes what it holds. Nothing here needs the
network, and jinja2 is imported when a page is written.
"""
