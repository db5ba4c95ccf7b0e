"""The report in a real browser: search, sort, samples that open, both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.e2e.helpers.layout import layout_faults
from tests.e2e.helpers.live_page import opened

from adjudge.report.charts import bar_chart
from adjudge.report.page import Section, Tile, render_page
from adjudge.report.table import Column, Table, numeric
from adjudge.runs.rows import GradedRow

pytestmark = pytest.mark.slow

Made = tuple[Path, list[GradedRow]]


@pytest.fixture
def page(browser: Browser, small: Made) -> Iterator[Page]:
    """The report of 400 samples."""
    with opened(browser, small[0].as_uri()) as watched:
        expect(watched.page.locator("#status")).not_to_be_empty()
        yield watched.page


def status(page: Page, text: str) -> None:
    expect(page.locator("#status")).to_contain_text(text)


def column(page: Page, name: str) -> list[str]:
    """The shown cells under the heading ``name``, opened details apart."""
    place = page.evaluate(
        """name => [...document.querySelectorAll(".samples > thead th")]
            .findIndex(th => th.textContent.replace(/[\\u00a0↑↓]/g, "") === name)""",
        name,
    )
    cells: list[str] = page.evaluate(
        """place => [...document.querySelectorAll(".samples > tbody > tr:not(.detail)")]
            .map(tr => tr.children[place].textContent)""",
        place,
    )
    return cells


# --- what it must do ------------------------------------------------------------------------------


def notes(row: GradedRow) -> list[str]:
    return list(map(row.note, row.scores))


def test_search_finds_words_in_any_text_and_phrases_in_quotes(page: Page, small: Made) -> None:
    rows = small[1]
    status(page, "400 of 400 samples")
    page.fill("#search", "Answer 123.")
    status(page, f"{sum('answer 123.' in r.response.lower() for r in rows)} of 400")
    page.fill("#search", "task-0007")
    status(page, "8 of 400")
    page.fill("#search", '"no verdict" UNPARSABLE')
    expected = sum(
        any("no verdict" in note for note in notes(r))
        and any("unparsable" in text for text in [*notes(r), str(r.missing and r.missing.kind)])
        for r in rows
    )
    assert 0 < expected < 400
    status(page, f"{expected} of 400")
    page.fill("#search", "nothing says this")
    status(page, "0 of 400")
    page.fill("#search", "")
    status(page, "400 of 400")


def test_filters_show_missing_failed_and_not_evaluable(page: Page, small: Made) -> None:
    rows = small[1]
    page.select_option("#show", "missing")
    status(page, f"{sum(r.reward is None for r in rows)} of 400")
    page.select_option("#show", "not_evaluable")
    status(page, f"{sum(not all(map(r.is_evaluable, r.scores)) for r in rows)} of 400")
    page.select_option("#show", "failed")
    status(page, f"{sum(None in r.scores.values() for r in rows)} of 400")
    page.select_option("#grader", label="tool_call_precision")
    status(page, f"{sum(r.scores['tool_call_precision'] is None for r in rows)} of 400")
    assert set(column(page, "tool_call_precision")) == {"failed"}
    assert all("no verdict" in reason for reason in column(page, "Reason"))


def test_columns_sort_both_ways_with_missing_values_last(page: Page, small: Made) -> None:
    rewards = [r.reward for r in small[1]]
    present = [f"{x:.3f}" for x in sorted(x for x in rewards if x is not None)]
    heading = page.get_by_role("button", name="Reward", exact=True)
    heading.click()
    assert column(page, "Reward") == present[::-1][:50]
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.locator("th[aria-sort] button").click()
    assert column(page, "Reward") == present[:50]
    page.select_option("#size", "200")
    page.fill("#page", "2")
    page.press("#page", "Enter")
    status(page, "201 to 400")
    assert set(column(page, "Reward")[-5:]) <= {"timeout", "unparsable", "rate_limited", "refused"}


def test_a_row_opens_by_keyboard_and_shows_every_grader(page: Page, small: Made) -> None:
    row = small[1][9]
    page.keyboard.press("/")
    page.keyboard.type('"answer 9."')
    status(page, "1 of 400")
    toggle = page.locator(".toggle")
    toggle.focus()
    page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-expanded", "true")
    expect(toggle).to_be_focused()
    detail = page.locator(".detail")
    for text in (row.prompt, row.response, "information_gain", *notes(row)):
        expect(detail).to_contain_text(text)
    detail.get_by_role("button", name="Show this group only").click()
    page.fill("#search", "")
    status(page, "8 of 400")
    page.locator("#group").click()
    status(page, "400 of 400")
    page.keyboard.press("Tab")
    toggle.nth(9).click()
    expect(page.locator(".detail")).to_have_count(0)


WIDE = [Column("policy", "w"), "plain", Column("0 to 1", "plot"), *numeric(*map(str, range(9)))]
LONG = ["https://example.com/" + "x" * 200, "報酬は欠けている" * 30, '{"key":"' + "v" * 200 + '"}']


def test_a_page_of_wide_tables_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    rows = [[one, one, bar_chart(0.5, "half"), *["0.123"] * 9] for one in LONG]
    said = Table(["Question", "Before", "After"], [LONG], kind="said", row_heads=False)
    sections = [
        Section("a", "Wide", [Table(WIDE, rows, caption=LONG[0]), said, *LONG], "Wide"),
        Section("b", LONG[0], Table(["one", *numeric("two", "three")], [[LONG[2], "1", "2"]])),
    ]
    html = render_page(LONG[0], [("Rollouts", LONG)], sections, tiles=[Tile("n", "1", LONG[2])])
    (tmp_path / "page.html").write_text(html)
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        assert layout_faults(page) == []
        label = "getComputedStyle(document.querySelectorAll('td.n')[0], '::before').content"
        assert page.evaluate(label) == '"0"'


def test_without_script_the_numbers_remain(browser: Browser, small: Made) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(small[0].as_uri())
        expect(page.locator("svg.strip").first).to_be_visible()
        expect(page.locator("#table")).to_be_hidden()
