"""Every page of a run in a real browser: text that means harm, both schemes, a desktop and a phone.

The pages are made by the commands themselves from one run folder (see ``helpers/hostile``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.e2e.helpers.command import run_here
from tests.e2e.helpers.hostile import MARKS, hostile_run
from tests.e2e.helpers.large import judged_otherwise, large_run
from tests.e2e.helpers.layout import layout_faults
from tests.e2e.helpers.live_page import Watched, opened, served

pytestmark = pytest.mark.slow

Pages = dict[str, str]
PAGES = ("report", "view", "diff")


def write_pages(run: Path, other: Path) -> Pages:
    """The pages of commands that read run folders."""
    commands = {"diff": ("diff", run, other, "-o", "diff.html")}
    for words in commands.values():
        done = run_here(*words, folder=run.parent)
        assert done.returncode == 0, done.stderr
    return {"report": (run / "report.html").as_uri()} | {
        name: (run.parent / f"{name}.html").as_uri() for name in commands
    }


@pytest.fixture(scope="module")
def hostile_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The addresses of all pages of a hostile run."""
    folder = tmp_path_factory.mktemp("hostile")
    run, other = hostile_run(folder), hostile_run(folder, "other", first=4)
    with served(run) as (url, _):
        yield write_pages(run, other) | {"view": url}


def unfold(page: Page) -> None:
    """Open what is folded, until nothing more opens."""
    for _ in range(4):
        page.evaluate(
            """() => {
                for (const one of document.querySelectorAll("details")) one.open = true;
                for (const one of document.querySelectorAll("button[aria-expanded=false]"))
                    one.click();
            }"""
        )


def inert(page: Page) -> None:
    """No element, attribute or link on the page was made by a text."""
    made = page.evaluate(
        """() => [...document.querySelectorAll("*")].filter((one) =>
            one.matches("img, iframe, object, embed, base, form[action], meta[http-equiv=refresh]")
            || [...one.attributes].some((a) => a.name.startsWith("on")
                || /^(href|src|action|formaction)$/.test(a.name) && !/^[#?]|^data:,/.test(a.value)
                   && new URL(a.value, location).origin !== location.origin)
        ).map((one) => one.outerHTML.slice(0, 200))"""
    )
    assert made == []


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_text_is_shown_and_nothing_else(
    browser: Browser, hostile_pages: Pages, name: str, width: int, scheme: str
) -> None:
    viewport = {"width": width, "height": 900}
    url = hostile_pages[name]
    with opened(browser, url, viewport=viewport, color_scheme=scheme) as watched:
        page = watched.page
        expect(page.locator("table tbody tr").first).to_be_visible()
        unfold(page)
        page.wait_for_timeout(100)
        inert(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert width > 600 or layout_faults(page) == []
        text = page.locator("body").inner_text()
        assert [mark for mark in MARKS if mark not in text] == []


# --- 20,000 samples -----------------------------------------------------------------------------

SAMPLES = 20_000
LARGEST = 5_000_000
MOST_NODES = 8_000
"""Elements on a page when its first table is there: what a browser lays out without waiting."""
MOST_ASKED = 40
"""Requests of the live page until then."""


@pytest.fixture(scope="module")
def large_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The addresses of all pages of a run of 20,000 samples."""
    folder = tmp_path_factory.mktemp("large")
    run = large_run(folder, SAMPLES)
    other = judged_otherwise(run, folder / "other")
    with served(run) as (url, _):
        yield write_pages(run, other) | {"view": url}


@pytest.mark.parametrize("name", PAGES)
def test_twenty_thousand_samples(browser: Browser, large_pages: Pages, name: str) -> None:
    url = large_pages[name]
    if url.startswith("file:"):
        assert Path(url.removeprefix("file://")).stat().st_size < LARGEST
    got: list[int] = []
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        watched = Watched(context.new_page(), url)
        page = watched.page
        page.on("response", lambda response: got.append(len(response.body())))
        page.goto(url)
        expect(page.locator("table tbody tr").first).to_be_visible()
        expect(page.locator("body")).to_contain_text("20,000")
        page.wait_for_timeout(500)
        assert page.evaluate("document.querySelectorAll('*').length") < MOST_NODES
        assert len(got) < MOST_ASKED
        assert sum(got) < LARGEST
        assert watched.said == []
