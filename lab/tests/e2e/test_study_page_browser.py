"""A study's report in a real browser: nothing runs or loads, and it fits and reads both ways."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab.tests.unit.helpers.made_study import made_result, made_summary
from playwright.sync_api import Browser
from tests.e2e.helpers.layout import layout_faults

from adjudge_lab.studies.report import render_plan_figures, write_study_report

pytestmark = pytest.mark.slow

HOSTILE = "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which whatever a file can name is hostile, and a plan's figure as a file."""
    folder = tmp_path_factory.mktemp("study")
    result = made_result(failed={HOSTILE: HOSTILE})
    result = msgspec.structs.replace(
        result, arms=[msgspec.structs.replace(one, mitigation=HOSTILE) for one in result.arms]
    )
    summary = made_summary(result, label=HOSTILE, warnings=[HOSTILE], pilot=True)
    write_study_report(folder / "report.html", summary, result)
    (folder / "plan.svg").write_text(render_plan_figures(summary)["bias"], encoding="utf-8")
    return folder / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_window_and_does_nothing(
    browser: Browser, report: Path, scheme: Any, width: int
) -> None:
    with browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    ) as context:
        page, said = context.new_page(), list[str]()
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: said.append(request.url))
        page.goto(report.as_uri())
        assert said == [report.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for details in page.locator("details").all():
            details.evaluate("e => { e.open = true; }")
        assert width > 600 or layout_faults(page) == []
        assert page.locator("script, img").count() == 0
        assert page.locator("h1").inner_text() == HOSTILE
        strokes = {
            name: page.evaluate(
                "s => getComputedStyle(document.querySelector(s)).stroke", f"#curves svg {name}"
            )
            for name in ("polyline.c0", "polyline.c1", "line.grid")
        }
        assert len(set(strokes.values())) == 3
        assert all(re.match(r"rgb", one) for one in strokes.values())


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_a_figure_alone_follows_the_scheme(
    browser: Browser, report: Path, scheme: Any, dark: bool
) -> None:
    with browser.new_context(color_scheme=scheme) as context:
        page = context.new_page()
        page.goto((report.parent / "plan.svg").as_uri())
        ink = page.evaluate("getComputedStyle(document.querySelector('text.head')).fill")
        assert (sum(map(int, re.findall(r"\d+", ink)[:3])) > 380) is dark
