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
from adjudge.checks.run import AuditedRun
from adjudge.errors import ConfigError
from adjudge.rollouts.samples import SampleReader

STEPS = range(1, 21)
CHANCE = random.Random(5)
REWARDS = [[n // 32, f"q{n // 8}", round(CHANCE.gauss(0.5, 0.2), 4)] for n in range(256)]
TEXTS = [[group, f"an answer {n}", one] for n, (_, group, one) in enumerate(REWARDS)]
STUCK = {"reward": 0.5, "frac_reward_zero_std": 1.0}
WANDB = {"_runtime": 1.5, "completions": {"_type": "table-file"}, "note": "a text of words"}
VERL = {"critic/score/mean": 0.5, "critic/score/max": 1.0, "judge/zero_std_frac": 1.0}


def lines(columns: str, rows: list[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns.split(), row, strict=True)) for row in rows]


def by_step(of: Any = "step", **row: Any) -> list[dict[str, Any]]:
    return [{of: n, **row} for n in STEPS]


def state(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"global_step": 20, "log_history": rows}


def write(path: Path, rows: Any) -> Path:
    """Rows as a table or as JSON lines, by the name of the file; an object as a document."""
    if path.suffix == ".csv":
        cells = [list(rows[0]), *(row.values() for row in rows)]
        text = "".join(",".join(map(str, row)) + "\n" for row in cells)
    elif isinstance(rows, list):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = json.dumps(rows, indent=1)
    path.write_text(text)
    return path


CHART = {"blue-sea-3 - train/" + name: value for name, value in STUCK.items()}
FILES: dict[str, Any] = {
    "prompt_id.csv": lines("step prompt_id reward", REWARDS),
    "group.jsonl": lines("step group reward", REWARDS),
    "alone.csv": lines("reward", [[one] for *_, one in REWARDS]),
    "prompts.csv": lines("prompt reward", [[f"why is {group} so", r] for _, group, r in REWARDS]),
    "rewards.table.json": {"columns": ["step", "uid", "reward"], "data": REWARDS, "ncols": 3},
    "texts.table.json": {"columns": ["prompt", "completion", "reward"], "data": TEXTS},
    "verl.jsonl": by_step(data=VERL),
    "scale.jsonl": by_step(data={**VERL, "critic/score/mean": 5.0}),
    "trainer_state.json": state([*by_step(**STUCK), {"eval_reward": 0.9, "step": 20}]),
    "nan.jsonl": [*by_step(**STUCK, loss=float("inf")), {"step": 21, "reward": float("nan")}],
    "history.jsonl": by_step("_step", **WANDB, **{"train/global_step": 7}, **STUCK),
    "chart.csv": by_step("Step", **CHART, **{"blue-sea-3 - train/reward__MAX": 0.5}),
    "metrics.jsonl": by_step(samples=8.0, **{"judge/missing_frac": 0.3}),
}
# A file; samples, groups, steps; checks that find something or nothing; checks that lack something.
EXPECTED = """
prompt_id.csv      | 256 32 8  | filled_rewards dead_groups position | length duplicates format
group.jsonl        | 256 32 8  | filled_rewards                      | length degenerate
alone.csv          | 256 256 0 | outliers                            | position length
prompts.csv        | 256 32 0  | dead_groups                         | length stale_rewards
rewards.table.json | 256 32 8  | outliers                            | length
texts.table.json   | 256 32 0  | length                              | tool_loops
verl.jsonl         | 0 0 20    | steps_no_spread!                         | outliers steps_missing
scale.jsonl        | 0 0 20    | steps_no_spread!                    | steps_length
trainer_state.json | 0 0 20    | steps_no_spread!                         | outliers steps_length
nan.jsonl          | 0 0 20    | steps_no_spread!                         | outliers
history.jsonl      | 0 0 20    | steps_no_spread!                         | outliers
chart.csv          | 0 0 20    | steps_no_spread!                         | outliers
metrics.jsonl      | 0 0 20    | steps_missing!                      | outliers steps_no_spread
"""


def states(report: AuditReport) -> dict[str, str]:
    return {one.name: one.state for one in report.outcomes}


@pytest.mark.parametrize("line", EXPECTED.strip().splitlines())
def test_what_can_be_checked_is_checked(line: str, tmp_path: Path) -> None:
    name, counts, asked, lacking = map(str.split, line.split("|"))
    path = write(tmp_path / name[0], FILES[name[0]])
    report = make_audit([path])
    assert [report.count, report.groups, report.steps] == list(map(int, counts))
    found = states(report)
    for one in asked:
        assert found[one.strip("!")] == ("found" if one.endswith("!") else "nothing_found"), one
    assert {found[one] for one in lacking} == {"not_applicable"}
    has_texts = "length" in asked
    assert any("Next time" in note for note in report.input.notes) != has_texts
    write_audit_page(tmp_path / "audit.html", report)
    if not has_texts:
        with pytest.raises(ConfigError):  # grading needs texts
            list(SampleReader([path], {}))


REFUSED: dict[str, tuple[Any, str]] = {
    "no_metric_of_a_reward.json": (state(by_step(loss=1.0)), "metrics"),
    "two_runs.csv": (by_step("Step", **{"a - train/reward": 0.5, "b - reward": 0.4}), "reward"),
    "sorted_by_prompt.csv": ([*by_step(reward=0.5), *by_step(reward=0.25)], "metrics"),
    "neither.jsonl": (by_step("size", name="a"), ""),
    "texts_in_another_column.csv": (by_step("reward", q="what is it", said="it is this"), ""),
    "a_score.csv": (by_step("score", item="a"), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_of_neither_rewards_nor_metrics_is_refused(name: str, tmp_path: Path) -> None:
    rows, key = REFUSED[name]
    path = write(tmp_path / name, rows)
    with refuses(key, str(path)):
        make_audit([path])


def test_what_a_user_names_is_read_as_rewards(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", [{"step": n, "score": n / 20} for n in STEPS])
    assert make_audit([path], {"env_reward": "score"}).mean_reward == pytest.approx(10.5 / 20)


def test_a_trainers_folder_has_rollouts_and_metrics(tmp_path: Path) -> None:
    rows = [
        {"step": n, "prompt": "p", "completion": f"c {n} {k}", "acc": k % 2, "advantage": 0.0}
        for n in STEPS
        for k in range(4)
    ]
    write(tmp_path / "completions.jsonl", rows)
    for last in (10, 20):
        write(tmp_path / f"trainer_state-{last}.json", state(by_step(**STUCK)[:last]))
    write(tmp_path / "all_results.json", {"epoch": 1.0, "step": 3, "reward": 0.1})
    write(tmp_path / "summary.csv", lines("data reward", [["a", 0.5], ["b", 0.25]]))
    write(tmp_path / "config.json", {"model_type": "tiny", "hidden_size": 8})
    report = make_audit([tmp_path])
    assert (report.count, report.groups, report.steps) == (80, 20, 20)
    assert states(report)["steps_no_spread"] == "found"
    other = by_step(data={"critic/score/mean": 0.75})
    with refuses("metrics"):
        make_audit([tmp_path, write(tmp_path / "other.jsonl", other)])


def fail(_: Any) -> Any:
    raise ZeroDivisionError("by hand")


def own_check(name: str, run: Any, **features: Any) -> Check[AuditedRun]:
    return Check(name=name, title=name, looks_for=name, run=run, features=features)


def test_a_check_of_ones_own_is_asked_and_its_errors_are_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n // 4}", "response": f"r {n}", "reward": n % 4} for n in range(16)]
    own = {
        "good": own_check("good", lambda run: CheckResult(), long=lambda one: len(one.response)),
        "raises": own_check("raises", fail),
        "measures": own_check("measures", lambda run: run.feature("bad"), bad=fail),
        "says_nothing": own_check("says_nothing", lambda run: run.feature("long")),
    }
    path = write(tmp_path / "dump.jsonl", rows)
    report = make_audit([path], checks=[*CHECKS, *own.values()])
    found = states(report)
    assert [found.pop(name) for name in own] == ["nothing_found", "failed", "failed", "failed"]
    assert found == states(make_audit([path]))
    for name in ("raises", "measures"):
        assert any(name in note and "ZeroDivisionError" in note for note in report.notes)
    write_audit_page(tmp_path / "audit.html", report)
    assert "by hand" in (tmp_path / "audit.html").read_text()
