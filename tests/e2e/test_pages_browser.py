"""Every page of a run in a real browser: text that means harm, both schemes, a desktop and a phone.

The pages are made by the commands themselves from one run folder (see ``helpers/hostile``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.e2e.helpers.colours import contrast
from tests.e2e.helpers.command import run_here
from tests.e2e.helpers.hostile import HOSTILE, MARKS, hostile_run
from tests.e2e.helpers.large import judged_otherwise, large_run
from tests.e2e.helpers.layout import layout_faults
from tests.e2e.helpers.live_page import Watched, opened, served
from tests.rows import write_jsonl

pytestmark = pytest.mark.slow

Pages = dict[str, str]
PAGES = ("report", "view", "diff", "align", "audit")


def write_pages(run: Path, other: Path, labels: int, audited: Path) -> Pages:
    """The pages of commands that read run folders; of ``labels`` samples people said something."""
    folder = run.parent
    with (folder / "labels.jsonl").open("w") as file:
        for index in range(labels):
            text = HOSTILE[index % len(HOSTILE)]
            author = "".join(filter(str.isprintable, text))[:60]  # others are refused
            row = {"index": index, "author": author, "note": text}
            file.write(json.dumps(row | {"verdict": ("right", "wrong")[index % 2]}) + "\n")
    commands = {
        "diff.html": ("diff", run, other, "-o", "diff.html"),
        "align/align.html": ("align", run, "-l", "labels.jsonl", "-o", "align"),
        "audit/audit.html": ("audit", audited, "-o", "audit"),
    }
    found = {"report": (run / "report.html").as_uri()}
    for path, words in commands.items():
        done = run_here(*words, folder=folder)
        broken = words == commands["audit/audit.html"] and audited.name == "dump.jsonl"
        assert done.returncode == int(broken), done.stdout + done.stderr
        found[Path(path).stem] = (folder / path).as_uri()
    return found


@pytest.fixture(scope="module")
def hostile_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The addresses of all pages of a hostile run."""
    folder = tmp_path_factory.mktemp("hostile")
    run, other = hostile_run(folder), hostile_run(folder, "other", first=4)
    dump = folder / "dump.jsonl"
    rows = [{"input": text, "output": text, "score": math.nan, "step": 1} for text in HOSTILE[:8]]
    rows += [{**row, "score": 1.0} for row in rows[:2]]  # those without a number are shown
    write_jsonl(dump, rows)
    with served(run) as (url, _):
        yield write_pages(run, other, len(HOSTILE), dump) | {"view": url}


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


def colour_pairs(page: Page) -> list[tuple[str, str]]:
    """The colours of the texts that are shown, each with that of its ground."""
    found = page.evaluate(
        """() => [...new Set([...document.querySelectorAll("main *, header *")]
            .filter((one) => one.checkVisibility() && !one.closest("svg, :disabled")
                && [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
            .map((one) => {
                let ground = one, colour;
                do colour = getComputedStyle(ground).backgroundColor;
                while (/, 0\\)$|transparent/.test(colour) && (ground = ground.parentElement));
                return JSON.stringify([getComputedStyle(one).color, colour]);
            }))].map((pair) => JSON.parse(pair))"""
    )
    return [
        (ink, ground)
        for ink, ground in found
        if all(one.startswith("rgb(") for one in (ink, ground))
    ]


@pytest.mark.parametrize("name", PAGES)
def test_hostile_text_is_shown_and_nothing_else(
    browser: Browser, hostile_pages: Pages, name: str
) -> None:
    """One load for both widths and both schemes."""
    with opened(browser, hostile_pages[name]) as watched:
        page = watched.page
        expect(page.locator("table tbody tr").first).to_be_visible()
        unfold(page)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=cast("Any", scheme), reduced_motion="reduce")
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_timeout(100)
                assert page.evaluate("document.documentElement.scrollWidth") == width
                assert width > 600 or layout_faults(page) == []
            assert {
                pair: ratio for pair in colour_pairs(page) if (ratio := contrast(*pair)) < 4.5
            } == {}
        inert(page)
        text = page.locator("body").inner_text()
        assert [mark for mark in MARKS if mark not in text] == []


def test_each_sample_of_a_hostile_run_can_be_read(browser: Browser, hostile_pages: Pages) -> None:
    with opened(browser, hostile_pages["view"]) as watched:
        page = watched.page
        expect(page.locator("#story-title")).to_contain_text("Sample ")
        page.locator("h1").click()
        title = page.locator("#story-title")
        for key, last in (("k", 0), ("j", 2 * len(HOSTILE) - 1)):
            while not (before := title.inner_text()).startswith(f"Sample {last},"):
                page.keyboard.press(key)
                expect(title).not_to_have_text(before)
                unfold(page)
                inert(page)
                assert page.evaluate("document.documentElement.scrollWidth") == 1280
                assert page.evaluate("document.querySelectorAll('*').length") < MOST_NODES


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
        yield write_pages(run, other, 500, run) | {"view": url}


@pytest.mark.timeout(400)  # with what makes the pages, on a busy machine
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
        expect(page.locator("body")).to_contain_text("500" if name == "align" else "20,000")
        page.wait_for_timeout(500)
        assert page.evaluate("document.querySelectorAll('*').length") < MOST_NODES
        assert len(got) < MOST_ASKED
        assert sum(got) < LARGEST
        assert watched.said == []
