"""Answers that come after a later question's: the live page shows what was asked for last."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.e2e.helpers.live_page import opened

pytestmark = pytest.mark.slow


def held(page: Page, pattern: str) -> list[Route]:
    """The questions like ``pattern`` from now on, kept from the server until let go."""
    kept: list[Route] = []

    def keep(route: Route) -> None:
        kept.append(route)

    page.route(pattern, keep)
    return kept


def let_go(page: Page, kept: list[Route]) -> None:
    """Answer what was held, and wait until the page has dealt with it."""
    while not kept:
        page.wait_for_timeout(20)
    for route in kept:
        with page.expect_event("requestfinished", lambda one, r=route: one == r.request):
            route.continue_()
    page.evaluate("() => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 50))")


def test_a_slow_list_of_groups_does_not_replace_the_one_chosen_since(
    browser: Browser, live: str
) -> None:
    with opened(browser, live) as watched:
        page = watched.page
        rows = page.locator("#group-table tbody tr")
        expect(rows).to_have_count(6)
        kept = held(page, "**/api/groups?*show=flat*")
        page.select_option("#show", "flat")
        page.select_option("#show", "turned")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("3/0")
        let_go(page, kept)
        expect(rows).to_contain_text("3/0")


def test_a_slow_sample_does_not_replace_the_one_chosen_since(browser: Browser, live: str) -> None:
    with opened(browser, live) as watched:
        page, title = watched.page, watched.page.locator("#story-title")
        groups = page.locator("#group-table button")
        expect(groups).to_have_count(6)
        names = groups.all_inner_texts()
        kept = held(page, "**/api/sample?*row=16*")
        groups.nth(names.index("3/0")).click()
        groups.nth(names.index("3/1")).click()
        expect(title).to_have_text("Sample 4 of step 3, group 3/1")
        let_go(page, kept)
        expect(title).to_have_text("Sample 4 of step 3, group 3/1")
