"""What the audit makes of files that are no rollouts with texts, and of checks of one's own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.audit import CHECKS
from adjudge.audit.report import AuditReport, make_audit, write_audit_page
from adjudge.checks.check import Check, CheckResult
from adjudge.checks.run import AuditedRollout, AuditedRun
from adjudge.errors import ConfigError
from adjudge.rollouts.samples import SampleReader

STEPS = range(1, 21)
CHANCE = random.Random(5)
REWARDS = [[n // 32, f"q{n // 8}", round(CHANCE.gauss(0.5, 0.2), 4)] for n in range(256)]
STUCK = {"reward": 0.5, "frac_reward_zero_std": 0.8}
STATE = [{**STUCK, "loss": 0.0, "step": n} for n in STEPS]
WANDB = {"_runtime": 1.5, "completions": {"_type": "table-file"}, "note": "a text of words"}


def write(path: Path, content: Any) -> Path:
    """A list of lists as a table, of objects as JSON lines; an object as a document."""
    if path.suffix == ".csv":
        text = "".join(",".join(map(str, row)) + "\n" for row in content)
    elif isinstance(content, list):
        text = "".join(json.dumps(row) + "\n" for row in content)
    else:
        text = json.dumps(content, indent=1)
    path.write_text(text)
    return path


def states(report: AuditReport) -> dict[str, str]:
    return {one.name: one.state for one in report.outcomes}


# A file; samples, groups, steps; what is found or not found, and what lacks something.
FILES: dict[str, tuple[str, Any, tuple[int, int, int], str, str]] = {
    "rewards in a table": (
        *("rewards.csv", [["step", "prompt_id", "reward"], *REWARDS], (256, 32, 8)),
        *("filled_rewards dead_groups position", "length duplicates degenerate format"),
    ),
    "rewards in lines": (
        "rewards.jsonl",
        [{"step": step, "group": group, "reward": one} for step, group, one in REWARDS],
        *((256, 32, 8), "filled_rewards", "length"),
    ),
    "rewards alone": (
        *("rewards.csv", [["reward"], *([one] for *_, one in REWARDS)], (256, 256, 0)),
        *("outliers", "position length"),
    ),
    "rewards and prompts": (
        "rewards.csv",
        [["prompt", "reward"], *([f"what is {name} and why", one] for _, name, one in REWARDS)],
        *((256, 32, 0), "dead_groups", "length"),
    ),
    "a table of W&B": (
        "rewards.table.json",
        {"columns": ["step", "uid", "reward"], "data": REWARDS, "ncols": 3},
        *((256, 32, 8), "outliers", "length"),
    ),
    "a table of W&B with texts": (
        "completions.table.json",
        {
            "columns": ["prompt", "completion", "reward"],
            "data": [[group, f"an answer {n}", one] for n, (_, group, one) in enumerate(REWARDS)],
        },
        *((256, 32, 0), "length", "tool_loops"),
    ),
    "verl's file logger": (
        "run.jsonl",
        [
            {
                "step": n,
                "data": {
                    "critic/score/mean": 0.5,
                    "critic/score/max": 1.0,
                    "critic/score/min": 0.0,
                    "judge/zero_std_frac": 0.8,
                    **({"val-core/x/reward/mean@1": 0.4} if n % 5 == 0 else {}),
                },
            }
            for n in STEPS
        ],
        *((0, 0, 20), "steps_flat!", "outliers steps_missing"),
    ),
    "rewards on another scale": (
        "run.jsonl",
        [
            {"step": n, "data": {"critic/score/mean": 5.0, "frac_reward_zero_std": 0.8}}
            for n in STEPS
        ],
        *((0, 0, 20), "", "steps_flat steps_length"),
    ),
    "a trainer's state": (
        "trainer_state.json",
        {
            "global_step": 20,
            "log_history": [
                *STATE,
                {"eval_reward": 0.9, "step": 20},
                {"train_loss": 0.1, "step": 20},
            ],
        },
        *((0, 0, 20), "steps_flat!", "outliers steps_length"),
    ),
    "W&B's history": (
        "history.jsonl",
        [
            {
                "_step": n,
                "train/global_step": 7,
                **WANDB,
                "train/reward": 0.5,
                "train/frac_reward_zero_std": 0.8,
            }
            for n in STEPS
        ],
        *((0, 0, 20), "steps_flat!", "outliers"),
    ),
    "W&B's chart": (
        "chart.csv",
        [
            [
                "Step",
                "blue-sea-3 - train/frac_reward_zero_std",
                "blue-sea-3 - train/reward",
                "blue-sea-3 - train/reward__MAX",
            ],
            *([n, 0.8, 0.5, 0.5] for n in STEPS),
        ],
        *((0, 0, 20), "steps_flat!", "outliers"),
    ),
    "metrics of two processes": (
        "metrics.jsonl",
        [
            {"step": n, "samples": 8.0, "judge/missing_frac": share}
            for n in STEPS
            for share in (0.2, 0.4)
        ],
        *((0, 0, 20), "steps_missing!", "outliers steps_flat"),
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_can_be_checked_is_checked(kind: str, tmp_path: Path) -> None:
    name, content, counts, asked, lacking = FILES[kind]
    path = write(tmp_path / name, content)
    report = make_audit([path])
    assert (report.count, report.groups, report.steps) == counts
    found = states(report)
    for one in asked.split():
        assert found[one.strip("!")] == ("found" if one.endswith("!") else "nothing_found"), one
    assert {found[one] for one in lacking.split()} == {"not_applicable"}
    assert len(report.reward_by_step) in (0, counts[2])
    has_texts = "length" in asked
    assert any("Next time" in note for note in report.input.notes) != has_texts
    write_audit_page(tmp_path / "audit.html", report)
    if not has_texts:
        with pytest.raises(ConfigError):  # grading needs texts
            list(SampleReader([path], {}))


REFUSED: dict[str, tuple[str, Any, str]] = {
    "no metric of a reward": (
        "trainer_state.json",
        {"global_step": 2, "log_history": [{"loss": 1.0, "step": n} for n in STEPS]},
        "metrics",
    ),
    "two runs in a chart": (
        "chart.csv",
        [["Step", "a - train/reward", "b - train/reward"], *([n, 0.5, 0.4] for n in STEPS)],
        "reward",
    ),
    "single rewards without a group, sorted by prompt": (
        "rewards.csv",
        [["step", "reward"], *([n, p + n / 100] for p in range(2) for n in range(30))],
        "judge",
    ),
    "neither": ("other.jsonl", [{"name": "a", "size": n} for n in STEPS], ""),
    "texts in an unknown column": (
        "texts.csv",
        [["q", "said", "reward"], *(["what is it", "it is this one", n] for n in STEPS)],
        "",
    ),
    "a score that nobody calls a reward": (
        *("scores.csv", [["item", "score"], *(["a", n] for n in STEPS)], ""),
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_of_neither_rewards_nor_metrics_is_refused(kind: str, tmp_path: Path) -> None:
    name, content, key = REFUSED[kind]
    path = write(tmp_path / name, content)
    with refuses(key, str(path)):
        make_audit([path])


def test_what_a_user_names_is_read_as_rewards(tmp_path: Path) -> None:
    rows = [["step", "score"], *([n, n / 30] for n in range(30))]
    report = make_audit([write(tmp_path / "rows.csv", rows)], {"env_reward": "score"})
    assert (report.count, report.mean_reward) == (30, pytest.approx(29 / 60))


def test_a_trainers_folder_has_rollouts_and_metrics(tmp_path: Path) -> None:
    rows = [{"step": n, "prompt": "p", "completion": f"c {n} {k}", "acc": k % 2, "advantage": 0.0}
            for n in STEPS for k in range(4)]  # fmt: skip
    write(tmp_path / "completions.jsonl", rows)
    for last in (10, 20):
        (tmp_path / f"checkpoint-{last}").mkdir()
        state = {"global_step": last, "log_history": STATE[:last]}
        write(tmp_path / f"checkpoint-{last}" / "trainer_state.json", state)
    write(tmp_path / "all_results.json", {"epoch": 1.0, "step": 3, "reward": 0.1})
    write(tmp_path / "config.json", {"model_type": "tiny", "hidden_size": 8})
    report = make_audit([tmp_path])
    assert (report.count, report.groups, report.steps) == (80, 20, 20)
    assert states(report)["steps_flat"] == "found"
    other = [{"step": n, "data": {"critic/score/mean": 0.75}} for n in STEPS]
    with refuses("judge"):
        make_audit([tmp_path, write(tmp_path / "other.jsonl", other)])


def test_a_tables_own_reward_is_audited_beside_the_environments(tmp_path: Path) -> None:
    rows = [["uid", "reward", "env_reward"], *(["q", one, 1] for one in (0.5, "", 0.25, 0.75))]
    report = make_audit([write(tmp_path / "rows.csv", rows)])
    assert (report.missing, report.mean_reward) == (1, 0.5)


def fail(_: Any) -> Any:
    raise ZeroDivisionError("by hand")


def own_check(name: str, run: Any, **features: Any) -> Check[AuditedRun]:
    return Check(name=name, title=name, looks_for=name, run=run, features=features)


def test_a_check_of_ones_own_is_asked_and_its_errors_are_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n // 4}", "response": f"r {n}", "reward": n % 4} for n in range(16)]

    def measure(rollout: AuditedRollout) -> float:
        return float(len(rollout.response))

    def look(run: AuditedRun) -> CheckResult:
        assert run.feature("own")[0] == 3
        return CheckResult()

    own = [
        own_check("good", look, own=measure),
        own_check("raises", fail),
        own_check("measures", lambda run: run.feature("bad"), bad=fail),
        own_check("says_nothing", lambda _: None),
    ]
    path = write(tmp_path / "dump.jsonl", rows)
    report = make_audit([path], checks=[*CHECKS, *own])
    found = states(report)
    assert [found[one.name] for one in own] == ["nothing_found", "failed", "failed", "failed"]
    assert {name: state for name, state in found.items() if name not in {c.name for c in own}} == (
        states(make_audit([path]))
    )
    for name in ("raises", "measures"):
        assert any(name in note and "ZeroDivisionError" in note for note in report.notes)
    write_audit_page(tmp_path / "audit.html", report)
    assert "by hand" in (tmp_path / "audit.html").read_text()
