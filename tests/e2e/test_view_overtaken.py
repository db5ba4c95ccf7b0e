"""Answers that come after a later question's: the live page shows what was asked for last."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.e2e.helpers.live_page import opened, row, small_run, state, write

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


def test_a_slow_group_or_sample_does_not_replace_the_one_chosen_since(
    browser: Browser, live: str
) -> None:
    with opened(browser, live) as watched:
        page = watched.page
        groups, members = page.locator("#group-table button"), page.locator("#members button")
        kept = held(page, "**/api/group?*id=5*")
        expect(groups).to_have_count(6)
        at = groups.all_inner_texts().index("3/1")
        groups.nth(at).click()
        groups.nth(1 - at).click()
        expect(page.locator("#group-title")).to_have_text("Group 3/0, step 3")
        let_go(page, kept)
        expect(page.locator("#group-title")).to_have_text("Group 3/0, step 3")
        page.unroute("**/api/group?*id=5*")
        kept = held(page, "**/api/sample?*row=16*")
        members.nth(0).click()
        members.nth(1).click()
        title = page.locator("#story-title")
        expect(title).to_have_text("Sample 1 of step 3, group 3/0")
        let_go(page, kept)
        expect(title).to_have_text("Sample 1 of step 3, group 3/0")


def left_for_the_first_two(page: Page) -> list[Route]:
    """All steps were shown, two of them were asked for, and the answer is held."""
    state(page, "running")
    expect(page.locator("#spread-of")).to_have_text("24 samples of steps 1 to 3")
    kept = held(page, "**/api/histograms?*to=2*")
    page.fill("#to", "2")
    page.press("#to", "Enter")
    return kept


def test_slow_histograms_do_not_replace_those_of_the_steps_chosen_since(
    browser: Browser, live: str
) -> None:
    with opened(browser, live) as watched:
        page, of = watched.page, watched.page.locator("#spread-of")
        kept = left_for_the_first_two(page)
        page.fill("#to", "1")
        page.press("#to", "Enter")
        expect(of).to_have_text("8 samples of steps 1 to 1")
        let_go(page, kept)
        expect(of).to_have_text("8 samples of steps 1 to 1")
        expect(page.locator("#groups-of")).to_have_text("2 groups, the latest first")


def test_a_slow_group_of_a_run_that_was_written_anew_is_not_shown(
    browser: Browser, tmp_path: Path
) -> None:
    with small_run(tmp_path / "run") as url, opened(browser, url) as watched:
        page = watched.page
        state(page, "running")
        kept = held(page, "**/api/group?*")
        page.locator("#group-table button").first.click()
        while not kept:
            page.wait_for_timeout(20)
        answer = kept[0].fetch()
        for name in ("rollouts.jsonl", "metrics.jsonl", "alarms.jsonl"):
            (tmp_path / "run" / name).unlink()
        write(tmp_path / "run", "metrics.jsonl", [{"step": 1, "mean_return": 0.5}])
        write(tmp_path / "run", "rollouts.jsonl", [row(1, i, i / 8) for i in range(4)])
        expect(page.locator("#group-table tbody tr")).to_have_count(1)
        with page.expect_event("requestfinished", lambda one: one == kept[0].request):
            kept[0].fulfill(response=answer)
        page.wait_for_timeout(100)
        expect(page.locator("#group")).to_be_hidden()
