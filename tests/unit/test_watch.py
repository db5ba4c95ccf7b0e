"""``adjudge watch``: steps of one writer and of several, alarms, the end, a stop."""

import json
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.helpers.command import invoke

from adjudge.cli import view as watch_command
from adjudge.cli.view import RunWatch
from adjudge.runs.records import STOP_FILE, RecorderRow

HACKED = [
    {"judge/outcome_mean": 0.5 + at / 80, "judge/gold_score_mean": 0.7 - 0.6 * at / 40}
    for at in range(40)
]
watch = partial(invoke, "watch")


def write(folder: Path, rows: Any, *, kind: str = "record", **facts: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"kind": kind, "pid": os.getpid(), **facts}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def hacked() -> list[dict[str, float]]:
    return [{"step": at, "samples": 8, **row} for at, row in enumerate(HACKED)]


def test_a_run_that_is_over_is_read_to_its_last_step(tmp_path: Path) -> None:
    write(tmp_path, hacked())
    done = watch(tmp_path, "--once", "--gold", "gold")
    assert done.exit_code == 1, done.output
    assert "alarm step 35: divergence: the gold fell" in done.stdout
    assert "or else: the prompts may" in done.stdout
    assert "\n40 steps: 1 alarm\nnot checked: " in done.stdout
    assert "1 for want of judge/len_corr_group (length)" in done.stdout
    assert "--gold" not in done.stdout
    calm = watch(tmp_path, "--once", "--json")
    assert calm.exit_code == 0
    found = json.loads(calm.stdout)
    assert found.pop("unchecked")["divergence"] == "gold"
    assert found == {"steps": 40, "alarms": [], "dropped": {}, "stopped": False}


def test_steps_of_several_processes_are_one(tmp_path: Path) -> None:
    """Rank 1 is a step behind, and has rows of its own numbers."""
    rows = []
    for row in hacked():
        here, there = dict(row), dict(row)
        here["judge/outcome_mean"] -= 0.1
        there["judge/outcome_mean"] += 0.1
        rows += [here, there]
    rows[2:-1:2], rows[1:-2:2] = rows[1:-2:2], rows[2:-1:2]
    write(tmp_path, rows)
    one = RunWatch(tmp_path, gold="gold")
    alarms = one.read(to_the_end=True)
    assert one.steps == 40
    assert [(alarm.step, alarm.rule) for alarm in alarms] == [(35, "divergence")]


def test_it_follows_what_is_appended_and_what_is_written_anew(tmp_path: Path) -> None:
    rows = hacked()
    watching = RunWatch(tmp_path, gold="gold")
    assert not watching.read()  # nothing is there yet
    write(tmp_path, rows[:10])
    assert not watching.read()
    assert watching.steps == 9  # of the last step there may be more
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(rows[10])[:20])
    watching.read()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(rows[10])[20:] + "\nno json\n")
    write(tmp_path, rows[11:])
    assert [alarm.rule for alarm in watching.read(to_the_end=True)] == ["divergence"]
    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path, rows[:12])
    assert not watching.read(to_the_end=True)
    assert watching.steps == 12


def test_it_ends_when_the_run_does(tmp_path: Path) -> None:
    write(tmp_path, hacked())
    (tmp_path / "summary.json").write_text("{}")
    done = watch(tmp_path)
    assert done.exit_code == 0
    wanted = "5 for want of --gold (divergence, collapse, too_harsh, too_lenient, solved)"
    assert done.stdout.startswith(f"40 steps: no alarm\nnot checked: {wanted}, 1 for want of ")


def test_stop_asks_a_recorded_run_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_command, "_INTERVAL_S", 0.05)
    found: list[Any] = []
    write(tmp_path, hacked()[:5])
    words = (tmp_path, "--stop", "--gold", "gold")
    watcher = threading.Thread(target=lambda: found.append(watch(*words)))
    watcher.start()
    time.sleep(0.3)
    assert not (tmp_path / STOP_FILE).exists()
    write(tmp_path, hacked()[5:])
    watcher.join(20)
    assert found[0].exit_code == 1
    assert json.loads((tmp_path / STOP_FILE).read_bytes())["rule"] == "divergence"


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--stop"], "train", "is not recorded by a trainer"),
        (["--stop", "--once"], "record", "not with --once"),
    ],
)
def test_a_stop_that_nobody_would_read_is_refused(
    tmp_path: Path, words: list[str], kind: str, message: str
) -> None:
    write(tmp_path, hacked(), kind=kind)
    done = watch(tmp_path, *words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    done = watch(tmp_path, "--once")
    assert done.exit_code == 2
    assert "has no metrics.jsonl" in done.stderr


def test_what_was_not_recorded_is_said(tmp_path: Path) -> None:
    write(tmp_path, hacked())
    (tmp_path / "rollouts.jsonl").write_text("")
    rows = [
        RecorderRow(writer="a", dropped={"queue_full": 3}),
        RecorderRow(writer="b", dropped={"byte_limit": 1000}),
        RecorderRow(writer="a", dropped={"queue_full": 7}),
    ]
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (tmp_path / "recorder.jsonl").write_bytes(lines)
    done = watch(tmp_path, "--once")
    assert "1,007 samples were not recorded: queue_full 7, byte_limit 1,000" in done.stdout
