"""Following a run's files: torn ends, files cut off and written anew, hostile bytes, large runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.runs.sample_index import MAX_SCORES, compute_advantages
from adjudge.runs.samples import describe_sample, explain_reward
from adjudge.runs.view.answers import build_overview, list_groups
from adjudge.runs.view.run_reader import (
    MAX_CURVE_POINTS,
    Curves,
    JsonlTail,
    RunReader,
    read_reward_settings,
)


def row(step: int, index: int, reward: float | None, **more: Any) -> dict[str, Any]:
    missing = None if reward is not None else {"kind": "timeout", "message": "too late"}
    return {
        "step": step,
        "index": index,
        "group": f"{step}/{index // 4}",
        "reward": reward,
        "missing": missing,
        "env_reward": 1.0,
        "reward_info": {"outcome": reward, "quality_score": reward},
        **more,
    }


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def whole(reading: RunReader) -> RunReader:
    reading.refresh()
    while reading.samples_file.unread_bytes:
        reading.refresh()
    return reading


def seen(reading: RunReader) -> dict[str, Any]:
    """What a page would show of it."""
    shown = build_overview(whole(reading))
    rollouts = reading.rollouts
    for private in ("version", "generation", "changed_at", "indexed"):
        del shown[private]
    return {
        "overview": shown,
        "offsets": list(rollouts.offsets),
        "groups": [(group.name, group.step, list(group.rows)) for group in rollouts.groups],
        "stories": [describe_sample(reading, place) for place in range(len(rollouts))],
    }


# --- the tail -------------------------------------------------------------------------------------


@given(
    pieces=st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"a\n", b"\xff\n\n", b""])),
    budget=st.integers(1, 50),
)
def test_every_line_is_read_once_and_whole_however_it_is_written(
    pieces: list[bytes], budget: int
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        tail = JsonlTail(path)
        found = []
        for piece in pieces:
            append(path, piece)
            found += list(tail.lines(budget))
        while tail.unread_bytes:
            found += list(tail.lines(budget))
    assert not tail.rewritten
    expected, at = [], 0
    for line in b"".join(pieces).split(b"\n")[:-1]:
        expected.append((at, line))
        at += len(line) + 1
    assert found == expected


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    (tmp_path / "rollouts.jsonl").mkdir()
    (tmp_path / "summary.json").symlink_to("/dev/zero")
    reading = whole(RunReader(tmp_path))
    assert (reading.state, len(reading.rollouts)) == ("running", 0)


# --- a run in any state ---------------------------------------------------------------------------


def test_a_folder_that_is_not_there_yet_becomes_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    reading = whole(RunReader(folder))
    assert build_overview(reading)["status"].startswith("waiting")
    folder.mkdir()
    plan = {"kind": "train", "label": "a", "steps_planned": 4, "pid": os.getpid()}
    (folder / "run.json").write_text(json.dumps(plan))
    assert build_overview(whole(reading))["status"] == "running: no step of 4 done yet"
    metric = {"step": 1, "mean_return": 0.5, "step_s": 20.0}
    append(folder / "metrics.jsonl", lines(metric))
    append(folder / "rollouts.jsonl", lines(row(1, 0, 0.5))[:-5])
    assert build_overview(whole(reading))["status"] == "running: step 1 of 4, about 1 min 0 s left"
    assert len(reading.rollouts) == 0
    append(folder / "rollouts.jsonl", lines(row(1, 0, 0.5))[-5:])
    assert len(whole(reading).rollouts) == 1
    (folder / "summary.json").write_text('{"steps": 1}')
    assert build_overview(whole(reading))["status"] == "done: step 1 of 4"


def test_a_run_without_process_is_stopped_unless_it_still_writes(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"kind": "train", "pid": 2147483646}')
    told = "its process 2147483646 is not on this machine"
    assert told in build_overview(whole(RunReader(tmp_path)))["status"]
    # Resumed: its manifest still names the first process.
    append(tmp_path / "metrics.jsonl", lines({"step": 1, "step_s": 2.0}))
    reading = whole(RunReader(tmp_path))
    assert reading.state == "running"
    os.utime(tmp_path / "metrics.jsonl", (1, 1))
    assert told in build_overview(whole(reading))["status"]


@pytest.mark.parametrize("pid", [0, -1, 10**30, True, "1", None, 1.5])
def test_a_strange_process_number_does_no_harm(tmp_path: Path, pid: object) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"kind": "train", "pid": pid}))
    assert whole(RunReader(tmp_path)).state in {"running", "stopped"}


@settings(max_examples=40)
@given(data=st.data())
def test_after_cuts_and_appends_it_shows_what_a_fresh_look_shows(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        reading = RunReader(folder, budget=data.draw(st.integers(64, 4096)))
        rewards = st.none() | st.floats(-2, 2)
        for step in range(data.draw(st.integers(1, 6))):
            rows = [row(step, i, data.draw(rewards)) for i in range(data.draw(st.integers(0, 9)))]
            new = lines(*rows)
            file = folder / "rollouts.jsonl"
            if file.exists() and data.draw(st.booleans()):
                os.truncate(file, data.draw(st.integers(0, file.stat().st_size)))
            append(file, new[: data.draw(st.integers(0, len(new)))])
            append(folder / "metrics.jsonl", lines({"step": step, "reward": 0.5}))
            reading.refresh()
        assert seen(reading) == seen(RunReader(folder))


def test_a_resumed_run_starts_over_and_is_told_apart(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    append(metrics, lines(*({"step": i, "reward": i / 10} for i in range(1, 9))))
    append(tmp_path / "rollouts.jsonl", lines(*(row(i, 0, i / 10) for i in range(1, 9))))
    reading = whole(RunReader(tmp_path))
    before, generation = reading.version, reading.generation
    kept = metrics.read_bytes().splitlines(keepends=True)[:5]
    metrics.write_bytes(b"".join(kept) + lines(*({"step": i, "reward": 9.0} for i in (6, 7, 8, 9))))
    whole(reading)
    assert (reading.generation, reading.curves.rows) == (generation + 1, 9)
    assert reading.curves.last["reward"] == 9.0
    assert len(reading.rollouts) == 8
    assert reading.version != before


HOSTILE = (
    {"step": 2**60},
    {"step": -1, "index": 2**70},
    {"step": True, "group": ["a"]},
    {"group": "half \ud800 a pair", "reward_info": {"\udfff": 1.0, "x": "y"}},
    {"reward": math.nan},
    {"reward": math.inf, "missing": {"kind": "\ud800"}},
    {"reward": 1e300},
    {"reward": "1.0", "missing": "timeout", "reward_info": [], "details": 3, "messages": {}},
    {"group": None, "turn_rewards": [1] * 9, "messages": [None, 3, {"role": "assistant"}]},
    {"reward_info": {f"k{i}": i / 2 for i in range(500)}},
    {"details": {"events": {"kind": "bug", "error": "x"}, "a": None, "b": {"score": "high"}}},
)


def test_rows_of_odd_types_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    for one in HOSTILE:
        append(file, lines({**row(1, 0, 1.0), **one}))
    append(file, b'{"step":1,"messages":' + b"[" * 5000 + b"]" * 5000 + b"}\n")
    append(file, b'{"step":1,"reward":1e999,"index":' + b"9" * 5000 + b"}\n")
    append(file, b"\xff no json\n" + lines(row(1, 0, 1.0)))
    reading = whole(RunReader(tmp_path))
    count = len(reading.rollouts)
    assert count + reading.rollouts.broken == len(HOSTILE) + 4
    assert len(reading.rollouts.scores) <= MAX_SCORES
    for place in range(count):
        json.dumps(describe_sample(reading, place), allow_nan=False)
    for show in ("all", "missing", "turned", "flat"):
        found = list_groups(reading, -(10**9), 10**9, show=show, page=0)
        json.dumps(found, allow_nan=False)


def test_what_nobody_was_to_judge_is_not_missing(tmp_path: Path) -> None:
    undrawn = {"missing": {"kind": "not_sampled", "message": "its group was not drawn"}}
    rows = [row(1, i, None, **undrawn) for i in range(4)] + [row(1, i, 1.0) for i in range(4, 7)]
    append(tmp_path / "rollouts.jsonl", lines(*rows, row(1, 7, None)))
    tiles = build_overview(whole(RunReader(tmp_path)))["tiles"]
    (found,) = (tile for tile in tiles if tile["name"] == "Rewards missing")
    assert found["value"] == "25.0\u202f%"
    assert found["note"] == "timeout 1; 4 not drawn"


# --- cost -----------------------------------------------------------------------------------------


def test_curves_keep_their_means_and_their_size_whatever_the_length() -> None:
    curves = Curves()
    for step in range(10_000):
        curves.add({"step": step, "x": float(step % 2), "late": 1.0} if step > 9_000 else
                   {"step": step, "x": float(step % 2)})  # fmt: skip
    points = curves.points("x")
    assert len(points) == len(curves.points("late")) == math.ceil(10_000 / curves.width)
    assert len(points) <= 1200
    assert curves.width == 16
    assert set(points) == {0.5}
    assert curves.points("late")[0] is None
    assert curves.total("x") == 5_000


def test_a_kind_of_failure_that_did_not_occur_counts_as_none_of_it() -> None:
    """Rows name the kinds that occurred; the mean of several steps is over all of them."""
    curves = Curves()
    for step in range(1, 2 * MAX_CURVE_POINTS + 2):
        failed = {"judge/missing_frac/timeout": 0.5} if step % 2 else {}
        row = {"step": step, "judge/missing_frac": 0.5 * (step % 2), **failed}
        curves.add({"step": step} if step > 2 * MAX_CURVE_POINTS - 2 else row)
    assert curves.width == 2
    assert curves.points("judge/missing_frac")[0] == 0.25
    shares = curves.points("judge/missing_frac/timeout", among="judge/missing_frac")
    assert shares[0] == 0.25
    assert shares[-1] is None  # of those steps nothing is known


def test_a_step_that_several_processes_record_is_one_point(tmp_path: Path) -> None:
    """Weighted by their samples, with the sum of their costs, once the run starts again, too."""
    few = {"samples": 1, "reward": 0.0, "judge/cost_usd": 0.5, "judge/missing_frac": 0.0}
    kind = {"judge/missing_frac/timeout": 0.5}
    many = {"samples": 3, "reward": 1.0, "judge/cost_usd": 1.0, "judge/missing_frac": 0.5, **kind}
    rows = [{"step": step, **one} for step in (1, 2) for one in (few, many)]
    again = [{"start": 2, **one} for one in rows[:2]]
    append(tmp_path / "run.json", b'{"kind": "train"}')
    append(tmp_path / "metrics.jsonl", lines(*rows[:3]))
    reading = whole(RunReader(tmp_path))
    seen_so_far = reading.version
    assert reading.curves.points("reward") == [0.75, 0.0]  # one of the two is still to come
    append(tmp_path / "metrics.jsonl", lines(*rows[3:], *again))
    curves = whole(reading).curves
    assert reading.version != seen_so_far
    assert curves.points("step") == [1, 2, 1]
    assert curves.points("reward") == [0.75] * 3
    assert curves.points("judge/missing_frac/timeout", "judge/missing_frac") == [0.375] * 3
    assert curves.total("judge/cost_usd") == 4.5
    (cost,) = (one for one in build_overview(reading)["tiles"] if one["name"] == "Judges’ cost")
    assert cost["value"] == "$4.50"


def test_equal_curves_of_returns_and_rewards_are_shown_once(tmp_path: Path) -> None:
    rows = [{"step": n, "mean_return": n / 9, "reward": n / 9, "reward_std": 0.1} for n in (1, 2)]
    append(tmp_path / "metrics.jsonl", lines(*rows))
    [chart] = build_overview(whole(RunReader(tmp_path)))["curves"]["charts"]
    assert (chart["title"], len(chart["values"])) == ("Return", 2)
    assert "mean = reward" in json.dumps(chart["figure"])


# --- numbers --------------------------------------------------------------------------------------


def test_after_a_group_step_nothing_is_said_of_failures_as_0(tmp_path: Path) -> None:
    """A 0 in the place of a missing z-score would be the mean, which no failure gets."""
    table = {"combine_mode": "replace", "group": "z_score"}
    run = {"spec_hash": "x", "spec_path": "reward.toml", "reward": table}
    (tmp_path / "run.json").write_text(json.dumps(run))
    rows = [row(0, i, x) for i, x in enumerate([-1.0, 0.0, 1.0, None])]
    append(tmp_path / "rewards.jsonl", lines(*rows))
    reading = whole(RunReader(tmp_path))
    found = describe_sample(reading, 0)
    assert found is not None
    assert [one["as_zero"] for one in found["story"]["members"]] == [None] * 4
    assert found["group"]["turned"] is None
    names = [tile["name"] for tile in build_overview(reading)["tiles"]]
    assert names == ["Samples", "Reward", "Rewards missing"]


def test_tiles_show_no_rounding(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"spec_hash": "x", "spec_path": "reward.toml"}')
    rewards = [0.1, 0.2, -0.3]
    assert 0.1 + 0.2 - 0.3 != 0
    append(tmp_path / "rewards.jsonl", lines(*(row(0, i, x) for i, x in enumerate(rewards))))
    reading = whole(RunReader(tmp_path))
    assert [tile["value"] for tile in build_overview(reading)["tiles"]][1] == "0.00"
    assert list_groups(reading, 0, 0, show="all", page=0)["groups"][0]["mean"] == 0


def test_recorded_rewards_that_differ_by_rounding_are_equal(tmp_path: Path) -> None:
    rewards = [0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2]
    assert compute_advantages(rewards) == [0.0] * 4
    append(tmp_path / "rollouts.jsonl", lines(*(row(1, i, x) for i, x in enumerate(rewards))))
    listed = list_groups(whole(RunReader(tmp_path)), 0, 9, show="flat", page=0)
    assert [one["std"] for one in listed["groups"]] == [0.0]


@pytest.mark.parametrize(
    ("mode", "reward"), [("weighted_sum", 1.0 + 5 * 1.4), ("multiply", 7.0), ("replace", 7.0)]
)
def test_a_reward_is_explained_only_where_the_formula_gives_it(mode: str, reward: float) -> None:
    how = read_reward_settings(
        {}, f'[judge]\ncombine_mode = "{mode}"\nevent_weight = 0.5\njudge_scale = 5.0\n'
    )
    info = {"events": 1.2, "outcome": 0.8, "env_reward": 1.0}
    found = explain_reward(how, {}, {"reward": reward, "reward_info": info})
    assert found[0] == ("judge part", "1.4 = 0.5 × 1.2 (events) + 1 × 0.8 (outcome)")
    assert found[-1].text.startswith(f"{reward:.4g} = ")
    assert explain_reward(how, {}, {"reward": reward + 0.1, "reward_info": info}) == []
    assert explain_reward({}, {}, {"reward": reward, "reward_info": info}) == []
    assert read_reward_settings({}, "not = [toml") == {}


def test_the_folder_of_a_probe_says_what_it_cannot_show(tmp_path: Path) -> None:
    for name in ("run.json", "probe.json"):
        (tmp_path / name).write_text('{"spec_hash": "x"}')
    append(tmp_path / "journal.jsonl", lines({"key": "a"}))
    assert "grades no samples" in build_overview(whole(RunReader(tmp_path)))["status"]


def test_verdicts_belong_to_the_last_replies(tmp_path: Path) -> None:
    messages = [{"role": role, "content": "x"} for role in ("assistant", "user", "assistant")]
    details = {"events": [{"quality": {"score": 0.5, "reason": "so"}}]}
    one = row(1, 0, 1.0, messages=messages, details=details, turn_rewards=[0.25, 0.75])
    append(tmp_path / "rollouts.jsonl", lines(one))
    found = describe_sample(whole(RunReader(tmp_path)), 0)
    assert found is not None
    first, last = found["story"]["turns"]
    assert (first["message"], first["env_reward"], first["graders"]) == (0, 0.25, [])
    assert (last["message"], last["env_reward"], last["advantage"]) == (2, 0.75, None)
    [quality] = last["graders"]
    assert (quality["name"], quality["score"], quality["reason"]) == ("quality", 0.5, "so")


def test_a_grading_run_is_counted_while_it_goes_on_and_shown_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"spec_hash": "x", "spec_path": "reward.toml"}')
    append(tmp_path / "journal.jsonl", b'{"journal": 1}\n{}\n{}\n')
    reading = whole(RunReader(tmp_path))
    assert build_overview(reading)["status"] == "running: 2 graders’ results so far"
    refused = {"kind": "refused", "message": "no"}
    rows = [
        {
            "index": i,
            "group": f"g{i // 4}",
            "reward": None if i == 1 else i / 8,
            "missing": refused if i == 1 else None,
            "reward_info": {"env_reward": 1.0, "answer_score": i / 8},
        }
        for i in range(8)
    ]
    append(tmp_path / "rewards.jsonl", lines(*rows))
    (tmp_path / "summary.json").write_text('{"samples": 8}')
    shown = build_overview(whole(reading))
    assert (shown["kind"], shown["status"]) == ("grade", "done: 8 samples graded")
    assert [tile["value"] for tile in shown["tiles"][:2]] == ["8", "0.48"]
    listed = list_groups(reading, 0, 0, show="missing", page=0)["groups"]
    assert [(one["name"], one["missing"]) for one in listed] == [("g0", 1)]
