"""A made-up grading run as a report, and a browser to open it in."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from adjudge.runs.page_rows import ReportRow
from adjudge.runs.report.page import write_grading_report
from adjudge.stats import group_spread, mean, missing_by_bin, missing_by_value, std
from adjudge.stats.predictions import concordance, within_group_concordance

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
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[ReportRow]]:
    """A report of 400 samples, and its rows."""
    return _written(tmp_path_factory.mktemp("small"), 400)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a small run's live page."""
    from tests.e2e.helpers.live_page import small_run

    with small_run(tmp_path_factory.mktemp("live")) as url:
        yield url


@pytest.fixture(scope="session")
def made_run() -> tuple[list[ReportRow], dict[str, Any]]:
    """64 rows and their summary."""
    rows = made_rows(64)
    return rows, made_summary(rows)


def _written(folder: Path, n: int) -> tuple[Path, list[ReportRow]]:
    rows = made_rows(n)
    write_grading_report(folder / "report.html", made_summary(rows), rows)
    return folder / "report.html", rows


def made_rows(n: int, seed: int = 0, group_size: int = 8) -> list[ReportRow]:
    rng = random.Random(seed)
    rows = []
    level = 0.0
    for i in range(n):
        if i % group_size == 0:
            level = rng.gauss(0, 1)
        rows.append(_made_row(rng, i, i // group_size, level))
    return rows


def _made_row(rng: random.Random, i: int, group: int, level: float) -> ReportRow:
    env = float(level + rng.gauss(0, 1) > 0.3)
    calls = rng.randrange(0, 18)
    failed = [rng.random() < 0.02, rng.random() < 0.01, rng.random() < 0.06]
    loop = min(1.0, max(0.0, round(0.55 + 0.25 * env + rng.gauss(0, 0.25), 1)))
    scores: list[float | None] = [
        loop,
        1 / (1 + 2.7 ** -(level + rng.gauss(0, 0.3))),
        rng.choice([0.0, 0.5, 1.0, 1.0]),
    ]
    notes = [
        f"{calls} calls, {round((1 - loop) * calls)} of them repeat an earlier one",
        "mean novelty of the observations",
        "every expected call was made" if scores[2] == 1 else "an expected call is missing",
    ]
    kinds = ["timeout", "unparsable", rng.choice(["rate_limited", "timeout", "refused"])]
    for g, gone in enumerate(failed):
        if gone:
            scores[g], notes[g] = None, f"{kinds[g]}: no verdict after 3 attempts"
    lost = next((g for g, gone in enumerate(failed) if gone), None)
    return ReportRow(
        index=i,
        group=f"task-{group:04d}",
        reward=None if lost is not None else sum(x or 0 for x in scores) / 3,
        missing_kind=None if lost is None else kinds[lost],
        missing_message=None if lost is None else f"{GRADERS[lost]}: no verdict after 3 attempts",
        env_reward=env,
        length=int(rng.lognormvariate(6.5, 0.8)),
        tool_calls=calls,
        scores=scores,
        notes=notes,
        evaluable=[calls > 0, calls > 0, True],
        prompt=f"Task {group}: " + " ".join(random.Random(group).choices(WORDS, k=40)),
        response=f"Answer {i}. " + " ".join(rng.choices(WORDS, k=60)),
    )


def made_summary(rows: list[ReportRow]) -> dict[str, Any]:
    groups = [row.group for row in rows]
    env = [row.env_reward for row in rows]
    rewards = [row.reward for row in rows]
    lost = [x is None for x in rewards]
    sizes = sorted(Counter(groups).values())
    lengths = [float(row.length) for row in rows]
    return {
        "adjudge": "0.1.0",
        "created": "2026-01-02T03:04:05Z",
        "spec": {"path": "reward.toml", "hash": "sha256:1f0c9a77d1c2e3b4"},
        "inputs": ["rollouts-000.jsonl", "rollouts-001.jsonl"],
        "map": {"messages": "traj", "group": "task_id", "env_reward": "reward"},
        "samples": len(rows),
        "groups": {
            "count": len(sizes),
            "source": "column",
            "size_min": sizes[0],
            "size_median": sizes[len(sizes) // 2],
            "size_max": sizes[-1],
        },
        "broken_rows": {
            "count": 3,
            "first": [
                {"where": "rollouts-000.jsonl:17", "message": "not JSON: unexpected end of data"},
                {"where": "rollouts-001.jsonl:4", "message": "</script><script>alert(5)</script>"},
            ],
        },
        "reward": _moments(rewards, groups) | {"present": lost.count(False), "missing": sum(lost)},
        "graders": {name: _grader(g, rows, env, groups) for g, name in enumerate(GRADERS)},
        "baselines": {
            "response_length": _agreements(lengths, env, groups),
            "tool_calls": _agreements([float(row.tool_calls) for row in rows], env, groups),
        },
        "env_reward": _moments(env, groups) | {"present": len(env), "binary": True},
        "missing": {
            "by_kind": dict(Counter(row.missing_kind for row in rows if row.missing_kind)),
            "by_length_decile": missing_by_bin(lengths, lost),
            "by_env_reward": missing_by_value(env, lost),
        },
        "elapsed_s": 12.3,
        "samples_per_s": len(rows) / 12.3,
    }


def _moments(values: list[float | None], groups: list[str]) -> dict[str, Any]:
    present = [x for x in values if x is not None]
    spread = group_spread(values, groups)
    return {
        "mean": mean(present),
        "std": std(present),
        "min": min(present),
        "max": max(present),
        "zero_spread_frac": spread.zero_frac,
        "within_group_std": spread.mean_std,
    }


def _agreements(
    values: list[float | None] | list[float], env: list[float | None], groups: list[str]
) -> dict[str, Any]:
    return {
        "auc": msgspec.to_builtins(concordance(values, env, groups)),
        "concordance": msgspec.to_builtins(within_group_concordance(values, env, groups)),
    }


def _grader(
    g: int, rows: list[ReportRow], env: list[float | None], groups: list[str]
) -> dict[str, Any]:
    values = [row.scores[g] for row in rows]
    kinds = Counter(row.notes[g].partition(":")[0] for row in rows if row.scores[g] is None)
    return {
        "type": ("action_loop", "information_gain", "tool_call_precision")[g],
        "role": "score",
        "weight": (0.3, 0.3, 0.4)[g],
        "score_range": [0.0, 1.0],
        "scored": sum(x is not None for x in values),
        "missing": sum(x is None for x in values),
        "missing_by_kind": dict(kinds),
        "not_evaluable": sum(not row.evaluable[g] for row in rows),
        **_moments(values, groups),
        **_agreements(values, env, groups),
    }
