"""A made-up grading run as a report, and a browser to open it in."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import adjudge
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader
from adjudge.runs.job import GradedRun
from adjudge.runs.rows import GradedRow
from adjudge.types import GraderScore

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
GRADERS = ("loop", "information_gain", "tool_call_precision")
WORDS = ("flight", "moved", "weather", "airport", "agent", "refund", "voucher", "seat", "policy")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of the machine; skipped without it unless everything is required."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = "chromium is not installed (apt install chromium)"
        if os.environ.get("ADJUDGE_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # a busy machine is slow; what never comes still fails
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=ARGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[GradedRow]]:
    """A report of 400 samples, and its rows."""
    run = made(400)
    return run.report(tmp_path_factory.mktemp("small") / "report.html"), list(run._page[0])


@pytest.fixture(scope="session")
def made_run() -> tuple[list[GradedRow], dict[str, Any]]:
    """64 rows and their summary."""
    run = made(64)
    return list(run._page[0]), dict(run.summary)


class Said(BaseGrader):
    """Says of a sample what its column ``said`` has for the grader."""

    score_range = (0.0, 1.0)

    async def aevaluate(self, said: dict[str, dict[str, Any]]) -> GraderScore:
        mine = said[self.name]
        if "kind" in mine:
            raise GradingFailure(ErrorKind(mine["kind"]), "no verdict after 3 attempts")
        metadata = {"evaluable": mine.get("evaluable", True)}
        return GraderScore(self.name, mine["score"], mine["reason"], metadata, (0.0, 1.0))


def made(n: int) -> GradedRun:
    """A run in groups of eight, of which some graders fail."""
    rng, level, rows = random.Random(0), 0.0, []
    for index in range(n):
        level = rng.gauss(0, 1) if index % 8 == 0 else level
        rows.append(made_row(rng, index, level))
    graders = [{"name": name, "type": f"{__name__}:Said"} for name in GRADERS]
    missing = {"max_missing": 1.0, "patience_s": 0.0}
    return adjudge.grade(rows, {"graders": graders, "missing": missing}, progress=False)


def made_row(rng: random.Random, index: int, level: float) -> dict[str, Any]:
    env = float(level + rng.gauss(0, 1) > 0.3)
    calls, group = rng.randrange(0, 18), index // 8
    kinds = ("timeout", "unparsable", rng.choice(["rate_limited", "refused"]))
    scores = (
        min(1.0, max(0.0, round(0.55 + 0.25 * env + rng.gauss(0, 0.25), 1))),
        1 / (1 + 2.7 ** -(level + rng.gauss(0, 0.3))),
        rng.choice([0.0, 0.5, 1.0, 1.0]),
    )
    said = {
        name: {"kind": kind}
        if rng.random() < share
        else {"score": score, "reason": f"{name} of {calls} calls", "evaluable": calls > 0}
        for name, kind, score, share in zip(GRADERS, kinds, scores, (0.02, 0.01, 0.06), strict=True)
    }
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    words = random.Random(group).choices(WORDS, k=40)
    answer = f"Answer {index}. {' '.join(rng.choices(WORDS, k=60))}"
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"Task {group}: {' '.join(words)}"},
        {"role": "assistant", "content": "", "tool_calls": [call] * calls},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": messages, "group": f"task-{group:04d}", "env_reward": env, "said": said}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a small run's live page."""
    from tests.e2e.helpers.live_page import small_run

    with small_run(tmp_path_factory.mktemp("live")) as url:
        yield url
