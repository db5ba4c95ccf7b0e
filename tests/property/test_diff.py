"""Two runs compared: B against A is A against B with the sign of each difference changed."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.judge_evaluation.diff.numbers import summarise_diff
from adjudge.judge_evaluation.diff.pairing import DiffRun, PairedRuns

REWARDS = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.0]))
SAMPLES = st.lists(
    st.tuples(st.integers(0, 9), REWARDS, REWARDS, st.sampled_from([None, 0.0, 1.0])),
    min_size=1,
    max_size=40,
)
CHANGES = [("reward", "change"), ("missing", "change"), ("graders", "judge", "change")]
SHARED = ("kendall", "within_kendall", "sign_flips", "best_changes", "advantage_pearson")


def write(folder: Path, rows: list[dict[str, Any]]) -> DiffRun:
    folder.mkdir()
    (folder / "rewards.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DiffRun(folder)


def row(index: int, group: int, reward: float | None, env: float | None) -> dict[str, Any]:
    missing = {"kind": "timeout", "message": ""} if reward is None else None
    said = {"group": group, "reward": reward, "missing": missing, "env_reward": env}
    return {"index": index, "key": f"{index:03}", **said, "reward_info": {"judge_score": reward}}


def value(found: Any, *keys: str) -> Any:
    for key in keys:
        found = found[key]
    return found


def check_mirrored(one: Any, other: Any) -> None:
    for end, opposite in (("value", "value"), ("low", "high")):
        if one[end] is None:
            assert other[opposite] is None
        else:
            assert one[end] == pytest.approx(-other[opposite], abs=1e-12)


@settings(max_examples=25)
@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_mirror_image_and_the_order_of_rows(
    samples: list[tuple[int, float | None, float | None, float | None]], chance: random.Random
) -> None:
    rows_a = [row(at, group, a, env) for at, (group, a, _, env) in enumerate(samples)]
    rows_b = [row(at, group, b, env) for at, (group, _, b, env) in enumerate(samples)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a, b = write(folder / "a", rows_a), write(folder / "b", rows_b)
        chance.shuffle(rows_b)
        shuffled = write(folder / "c", rows_b)
    there, back = summarise_diff(PairedRuns(a, b)), summarise_diff(PairedRuns(b, a))
    for keys in CHANGES:
        check_mirrored(value(there, *keys), value(back, *keys))
    for source in there["truth"]:
        for kind in ("within", "pooled"):
            one, other = (found["truth"][source][kind] for found in (there, back))
            check_mirrored(one["change"], other["change"])
            assert one["a"] == other["b"]
    for name in SHARED:
        one, other = (found["advantages"][name] for found in (there, back))
        assert one["value"] == pytest.approx(other["value"], abs=1e-12)
    again = summarise_diff(PairedRuns(a, shuffled))
    for key in ("reward", "graders", "advantages", "truth", "missing"):
        assert again[key] == there[key]
    # What is missing is in no number.
    common = [(x, y) for _, x, y, _ in samples if x is not None and y is not None]
    assert there["reward"]["common"] == len(common)
    if common:
        mean = sum(y - x for x, y in common) / len(common)
        assert there["reward"]["change"]["value"] == pytest.approx(mean)
