"""The page of two runs compared in a real browser: hostile text in it, a desktop and a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect
from tests.e2e.helpers.command import run_here
from tests.e2e.helpers.hostile import hostile_run
from tests.e2e.helpers.layout import layout_faults
from tests.e2e.helpers.live_page import opened
from tests.e2e.test_pages_browser import inert, unfold

pytestmark = pytest.mark.slow

RULES = """
[[graders]]
name = "a_grader_with_quite_a_long_name"
type = "length_penalty"
min_length = 40
max_length = 60
"""


@pytest.fixture(scope="module")
def page_of_two_runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("diff")
    run = hostile_run(folder)
    (folder / "rules.toml").write_text(RULES)
    (rollouts,) = folder.glob("*.jsonl")
    for words in (
        ("grade", rollouts, "--spec", "rules.toml", "-o", "rules"),
        ("diff", run, "rules", "-o", "diff.html"),
    ):
        done = run_here(*words, folder=folder)
        assert done.returncode in {0, 1}, done.stderr
    return (folder / "diff.html").as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_two_hostile_runs_compared(browser: Browser, page_of_two_runs: str, width: int) -> None:
    with opened(browser, page_of_two_runs, viewport={"width": width, "height": 900}) as watched:
        page = watched.page
        expect(page.locator("table tbody tr").first).to_be_visible()
        expect(page.locator("details").first).to_be_visible()
        unfold(page)
        inert(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert width > 600 or layout_faults(page) == []
