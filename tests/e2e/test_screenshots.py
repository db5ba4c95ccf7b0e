"""The pictures of the docs, made from runs of this repository: ``make screenshots``.

Without ``ADJUDGE_SCREENSHOTS`` they are made and thrown away, so that what makes them goes on
working.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from contextlib import chdir
from io import StringIO
from pathlib import Path

import pytest
from benchmarks.judge_bugs import chosen_runs, judge_server, make_run
from benchmarks.judge_faults import BUGS
from playwright.sync_api import Browser, Page, expect
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from tests.e2e.helpers.command import run_here, run_process
from tests.e2e.helpers.live_page import opened, served
from tests.e2e.helpers.png import compress_png

pytestmark = pytest.mark.slow

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
MOST_BYTES = 150_000
SEED, GROUPS = 1, 10


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of judges with planted faults, by the name of the fault."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = {"quoted verdict", "healthy"}
    sizes = ["--seed", str(SEED), "--bugs", str(len(BUGS)), "--groups", str(GROUPS)]
    found = {}
    with judge_server([str(folder), *sizes]) as url:
        for place, run in enumerate(chosen_runs(SEED, len(BUGS)), 1):
            if run.name in wanted and run.name not in found:
                with chdir(folder):  # so that the pictures name files as their user did
                    make_run(Path(), place, run, url, SEED, GROUPS)
                found[run.name] = folder / f"run-{place:02}"
    return found


def keep(name: str, page: Page) -> None:
    """The window as a picture of the docs."""
    data = compress_png(page.screenshot(type="png", animations="disabled"))
    assert len(data) < MOST_BYTES
    if os.environ.get("ADJUDGE_SCREENSHOTS"):
        (ASSETS / f"{name}.png").write_bytes(data)


def test_a_sample(browser: Browser, runs: dict[str, Path]) -> None:
    size = {"width": 1280, "height": 900}
    with served(runs["quoted verdict"]) as (url, _), opened(browser, url, viewport=size) as watched:
        page = watched.page
        expect(page.locator("#story-title")).to_contain_text("Sample ")
        page.locator("#story-title").evaluate("one => one.scrollIntoView()")
        keep("sample", page)


def test_labels(browser: Browser, runs: dict[str, Path]) -> None:
    size = {"width": 1280, "height": 900}
    with served(runs["healthy"]) as (url, _), opened(browser, url, viewport=size) as watched:
        page = watched.page
        page.locator("#labelling > summary").click()
        name = page.locator("#label-author")
        name.fill("ada")
        name.press("Enter")
        page.locator("h1").click()
        page.keyboard.press("q")
        progress = page.locator("#label-progress")
        for done in range(4):
            expect(progress).to_contain_text(f"{done} of ")
            page.keyboard.press("y")
        expect(progress).to_contain_text("4 of ")
        page.locator("#story-title").evaluate("one => { one.blur(); one.scrollIntoView(); }")
        keep("labels", page)


def test_the_terminal(tmp_path: Path) -> None:
    """The group that ``adjudge demo`` shows, as the picture of README and of the first page."""
    done = run_process("demo", "-o", "runs/demo", folder=tmp_path, FORCE_COLOR="1", COLUMNS="84")
    assert done.returncode == 0
    lines = done.stdout.partition("\n\n")[0]
    assert "turned" in lines
    assert "64 samples" not in lines
    console = Console(record=True, width=84, file=StringIO())
    console.print(Text.assemble(("$ ", "dim"), "adjudge demo\n", Text.from_ansi(lines)))
    # No font from elsewhere: a page that shows the picture asks nobody.
    frame = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    frame = frame.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    drawn = console.export_svg(title="adjudge demo", code_format=frame, unique_id="terminal")
    assert "http" not in re.sub(r"xmlns=\S+|<!--.*?-->", "", drawn)
    if os.environ.get("ADJUDGE_SCREENSHOTS"):
        (ASSETS / "demo.svg").write_text(drawn)


_TWO_JUDGES = """
import json
from dataclasses import replace
from benchmarks import judge_bugs, judge_faults

run = judge_faults.HEALTHY[1]
tasks = judge_bugs.make_tasks(replace(run, change=judge_faults.pad_wrong_answers), 0, 0, 10)
rollouts = judge_bugs.make_rows(run, tasks)

def reply(judge, messages):
    asked = judge_bugs.Judge(replace(run, reply=judge), tasks)
    messages = [{"content": one["content"]} for one in messages]
    return asked.reply({"messages": messages})["choices"][0]["message"]["content"]

def strict(messages):
    return reply(judge_faults.honest, messages)

def careless(messages):
    return reply(judge_faults.contradict_reason, messages)
"""
_SPEC = """
version = 1
[[graders]]
name = "quality"
type = "{kind}"
[judges.main]
type = "scripted"
model = "{model}"
function = "two_judges:{function}"
"""


def test_a_diff(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "two_judges.py").write_text(_TWO_JUDGES)
    rollouts = importlib.import_module("two_judges").rollouts
    lines = "".join(json.dumps(row) + "\n" for row in rollouts)
    (tmp_path / "rollouts.jsonl").write_text(lines)
    for name, kind, model, function in (
        ("old", "helpfulness", "judge-small", "careless"),
        ("new", "correctness", "judge-large", "strict"),
    ):
        spec = _SPEC.format(kind=kind, model=model, function=function)
        (tmp_path / f"{name}.toml").write_text(spec)
        words = ("grade", "rollouts.jsonl", "--spec", f"{name}.toml", "-o", f"runs/{name}")
        assert run_here(*words, "--quiet", folder=tmp_path).returncode == 0
    done = run_here("diff", "runs/old", "runs/new", "-o", "diff.html", folder=tmp_path)
    assert done.returncode == 0
    url = (tmp_path / "diff.html").as_uri()
    with opened(browser, url, viewport={"width": 1100, "height": 900}) as watched:
        keep("diff", watched.page)
