"""Labelling with the keyboard in a real browser: a round of the queue, blind, undone, by two."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.e2e.helpers.layout import layout_faults
from tests.e2e.helpers.live_page import opened, served, start_view, write

from adjudge.runs.labels import LabelLog, select_current

pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=alert(1)> \u202e =cmd()"


def graded_run(folder: Path, groups: int = 30) -> None:
    """Groups of four samples with two graders that do not always agree, and an environment."""
    folder.mkdir()
    (folder / "run.json").write_text('{"spec_hash": "x", "label": "graded"}')
    rows = []
    for index in range(4 * groups):
        good = float((index * 7 + index // 4) % 3 == 0)
        other = (index * 5 % 11) / 10
        rows.append(
            {"index": index, "group": f"g{index // 4}", "key": f"key{index}",
             "reward": (good + other) / 2, "env_reward": float(index % 2),
             "reward_info": {"correct_score": good, "style_score": other},
             "details": {"correct": {"score": good, "reason": "THE JUDGE'S REASON"},
                         "style": {"score": other, "reason": HOSTILE}}}
        )  # fmt: skip
    write(folder, "rewards.jsonl", rows)
    (folder / "summary.json").write_text("{}")


def progress(page: Page, text: str) -> None:
    expect(page.locator("#label-progress")).to_contain_text(text)


def labels(folder: Path) -> list[Any]:
    return LabelLog(folder).read()


def test_a_round_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    graded_run(folder)
    with served(folder) as (url, _), opened(browser, url) as watched:
        page = watched.page
        page.locator("#labelling > summary").click()
        name = page.locator("#label-author")
        name.fill("ada")
        name.press("Enter")
        page.locator("h1").click()
        page.keyboard.press("q")
        progress(page, "0 of 50 labelled")
        for done in range(1, 5):
            page.keyboard.press("y" if done % 2 else "w")
            progress(page, f"{done} of 50 labelled")
        page.keyboard.press("0")
        expect(page.locator("#label-score")).to_be_focused()
        page.keyboard.type(".75")
        page.keyboard.press("Enter")
        progress(page, "5 of 50 labelled")
        page.locator("#story-title").click()
        page.keyboard.press("u")
        progress(page, "4 samples labelled by you")
        expect(page.locator("#label-said")).to_have_text("Taken back.")
        page.keyboard.press("m")
        page.keyboard.type(HOSTILE + " y w u")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#label-said")).to_have_text("Saved: the note.")
        expect(page.locator(".labelled")).to_contain_text("=cmd() y w u")
        expect(page.locator("#labels img, #labels script")).to_have_count(0)
        assert layout_faults(page) == []
        # It is remembered who labels, and what was labelled.
        page.reload()
        expect(page.locator("#label-author")).to_have_value("ada")
        progress(page, "5 samples labelled by you")
    rows = labels(folder)
    assert [one.kind for one in rows if one.withdrawn is None] == [
        *["verdict"] * 4, "score", "note",
    ]  # fmt: skip
    assert {one.author for one in rows} == {"ada"}
    assert [one.verdict for one in rows[:4]] == ["right", "wrong", "right", "wrong"]
    assert rows[4].score == 0.75
    assert rows[-1].note == HOSTILE + " y w u"
    current = select_current(rows)
    assert Counter(one.kind for one in current) == {"verdict": 4, "note": 1}
    assert {one.queue for one in current if one.verdict} == {"random", "disagreement", "near tie"}


def test_blind_until_it_is_labelled(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    graded_run(folder)
    with served(folder) as (url, _), opened(browser, url) as watched:
        page = watched.page
        page.locator("#labelling > summary").click()
        expect(page.locator("#label-progress")).to_be_visible()
        page.locator("h1").click()
        page.keyboard.press("q")
        progress(page, "0 of 50 labelled")
        reason = page.get_by_text("THE JUDGE'S REASON")
        expect(reason).to_be_visible()
        page.keyboard.press("b")
        expect(reason).not_to_be_visible()
        page.keyboard.press("y")
        expect(page.locator("#label-said")).to_contain_text("type a score")
        page.locator("#label-about").select_option("correct")
        expect(reason).not_to_be_visible()
        page.keyboard.press("y")
        progress(page, "1 of 50 labelled")
        expect(reason).not_to_be_visible()
        page.keyboard.press("p")
        progress(page, "2 of 50 labelled")
        # Going back to what is labelled shows what the judge said.
        page.keyboard.press("u")
        expect(page.locator("#label-said")).to_have_text("Taken back.")
        expect(reason).not_to_be_visible()
        page.keyboard.press("1")
        progress(page, "2 samples labelled by you")
    first, second, back, third = labels(folder)
    assert (first.grader, first.score, first.blind) == ("correct", 1.0, True)
    assert second.preferred_over is not None
    assert back.withdrawn == second.id
    assert (third.score, third.blind) == (1.0, True)
    assert json.loads((folder / "summary.json").read_text()) == {}


def begin_round(page: Page, name: str) -> None:
    page.locator("#labelling > summary").click()
    page.locator("#label-author").fill(name)
    page.locator("#label-author").press("Enter")
    page.locator("h1").click()
    page.keyboard.press("q")
    progress(page, "0 of 50 labelled")


def test_a_killed_server_loses_what_was_being_typed_and_nothing_else(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    graded_run(folder)
    with (
        start_view(folder, "--port", "0") as (process, url),
        browser.new_context(reduced_motion="reduce") as context,
    ):
        page = context.new_page()
        page.goto(url)
        begin_round(page, "ada")
        for done in range(1, 6):
            page.keyboard.press("y")
            progress(page, f"{done} of 50 labelled")
        page.keyboard.press("m")
        page.keyboard.type("half a no")
        process.kill()
        process.wait()
        page.keyboard.press("Control+Enter")
        expect(page.locator("#label-said")).to_contain_text("Not saved")
        assert [one.verdict for one in labels(folder)] == ["right"] * 5
        with start_view(folder, "--port", url.rsplit(":", 1)[1].strip("/")):
            page.reload()
            progress(page, "5 samples labelled by you")
            page.locator("h1").click()
            page.keyboard.press("q")
            progress(page, "5 of 50 labelled")
            page.keyboard.press("w")
            progress(page, "6 of 50 labelled")
    assert [one.verdict for one in labels(folder)] == ["right"] * 5 + ["wrong"]
