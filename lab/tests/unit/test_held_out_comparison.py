"""What a policy learned on held-out prompts, of one run."""

from pathlib import Path

import msgspec
import pytest

from adjudge_lab.rl.comparison import (
    HeldOutScores,
    compare_held_out,
    paired_difference,
    read_held_out,
)

pytest.importorskip("scipy", reason="intervals need scipy, of the extra full")


def score(seed: int, before: float | None, after: float | None, **more: object) -> HeldOutScores:
    return HeldOutScores(seed=seed, before=before, after=after, **more)  # type: ignore[arg-type]


def test_differences_are_paired_and_what_is_missing_counts_nowhere() -> None:
    rows = [(0.5 + n % 2 / 4, 0.25) for n in range(12)]
    whole = paired_difference(rows)
    assert whole.value == pytest.approx(0.375)
    assert whole.low is not None
    assert 0.25 <= whole.low < 0.375
    # A prompt without one of its numbers is no difference of 0, and none of the other number.
    lacking = paired_difference([*rows, (None, 0.0), (1.0, None)])
    assert msgspec.structs.replace(lacking, n=12) == whole
    assert lacking.n == 12


def test_splits_and_baselines_stand_apart() -> None:
    run = [
        score(n, 0.0, 1.0 if n < 10 else 0.0, split="old" if n < 10 else "new",
              baselines={"template": 0.5 if n % 2 else None})
        for n in range(20)
    ]  # fmt: skip
    whole, new, old = compare_held_out(run).splits
    assert [whole.split, new.split, old.split] == ["all", "new", "old"]
    assert (old.gain.value, new.gain.value, whole.gain.value) == (1.0, 0.0, 0.5)
    assert whole.baselines == {"template": 0.5}
    assert old.above["template"].value == 0.5
    assert old.above["template"].n == 5


def test_graders_that_report_are_compared_with_the_reward() -> None:
    run = [
        score(n, 0.0, 1.0, report_before={"judge": 1.0 + n % 2}, report_after={"judge": 4.0})
        for n in range(10)
    ]
    run[0] = msgspec.structs.replace(run[0], report_after={"judge": None})
    (judge,) = compare_held_out(run).graders
    assert (judge.n, judge.before, judge.after, judge.missing) == (20, 1.5, 4.0, 0.05)
    assert judge.agreement.value is not None
    assert judge.agreement.value > 0.8
    (few,) = compare_held_out(run[:2]).graders
    assert (few.agreement.value, few.agreement.why) == (None, "fewer than 3 prompts")


def test_a_run_is_read_from_its_first_and_last_evaluation(tmp_path: Path) -> None:
    rows = [
        {"step": step, "seed": seed, "reward": step / 10, "columns": {"kind": "a"},
         "report": {"judge": None}}
        for step in (0, 5, 10)
        for seed in (3, 4)
    ]  # fmt: skip
    file = tmp_path / "evaluation_rollouts.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    (tmp_path / "baselines.jsonl").write_text('{"name":"constant","seed":3,"reward":0.5}\n')
    first, second = read_held_out(tmp_path, "kind")
    assert (first.seed, first.split, first.before, first.after) == (3, "a", 0.0, 1.0)
    assert (first.baselines, second.baselines) == ({"constant": 0.5}, {})
    assert first.report_after == {"judge": None}
    file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows[:2]))
    assert read_held_out(tmp_path, "kind") == []
