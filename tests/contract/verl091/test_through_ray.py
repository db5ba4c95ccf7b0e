"""verl's reward actors, V1 rollout, replay buffer and advantages, each in a process with Ray."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tiny import last_line  # beside this file

PROMPTS = [["good", "poor", "fail", "fine"], ["good", "good", "poor", "poor"]]
WITHOUT = [["fail"] * 4] * 2
CASES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync", "prompts": PROMPTS},
    "stock": {"mode": "sync", "prompts": PROMPTS, "overrides": ["algorithm.adv_estimator=grpo"]},
    "sync without a judge": {"mode": "sync", "prompts": WITHOUT},
    "async": {"mode": "colocate_async", "prompts": PROMPTS},
    "async without a judge": {"mode": "colocate_async", "prompts": WITHOUT},
}


def test_one_missing_reward_does_not_crash_a_batch_as_the_rate_limiter_does(
    tmp_path: Path, spec: str
) -> None:
    ours, theirs = last_line(spec, "batches_on_cpu.py", tmp_path)
    assert [answer.get("error", "")[:8] for answer in theirs] == ["", "KeyError", "KeyError"]
    missing = [[], [0], [3]]
    for answer, gone in zip(ours, missing, strict=True):
        assert answer["keys"] == ours[0]["keys"]
        assert [i for i in range(4) if answer["reward_missing"][i] == 1.0] == gone
        sums = [sum(row) for row in answer["scores"]]
        assert [i for i in range(4) if math.isnan(sums[i])] == gone
        assert [s for s in sums if not math.isnan(s)] == [
            s for i, s in enumerate([1.0, 0.0, 0.75, 1.0]) if i not in gone
        ]
        assert [value is None for value in answer["quality_score"]] == [i in gone for i in range(4)]


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory, spec: str) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("v1")
    hasty = folder / "reward.toml"
    hasty.write_text(f"{Path(spec).read_text()}\n[missing]\npatience_s = 2.0\n")
    found = last_line(str(hasty), "v1_on_cpu.py", folder, json.dumps(list(CASES.values())))
    return dict(zip(CASES, found, strict=True))


def expected(words: list[str]) -> dict[str, float]:
    """GRPO's z-scores over the answers that have a reward."""
    worth = {"good": 1.0, "poor": 0.0, "fine": 0.75}
    values = [worth[word] for word in words]
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return {word: (worth[word] - mean) / (std + 1e-6) for word in words}


def check_advantages(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["padding"] or row["word"] == "fail":
            assert not any(row["advantages"])
            continue
        present = ["good", "poor", "fine"] if row["prompt"] == 0 else PROMPTS[1]
        assert row["advantages"][0] == pytest.approx(expected(present)[row["word"]], abs=1e-4)


@pytest.mark.parametrize("case", ["sync", "stock"])
def test_sync_a_rollout_without_reward_is_absent(v1: dict[str, Any], case: str) -> None:
    step = v1[case]["step"]
    rows = step["rows"]
    check_advantages(rows)
    assert step["refilled"] == 0
    real = [row for row in rows if not row["padding"]]
    assert len(real) == 7
    assert "fail" not in [row["word"] for row in real]
    [padding] = [row for row in rows if row["padding"]]
    assert not any(padding["mask"])


def test_async_a_rollout_without_reward_stays_with_advantage_zero(v1: dict[str, Any]) -> None:
    step = v1["async"]["step"]
    rows = step["rows"]
    check_advantages(rows)
    assert step["refilled"] == 0
    assert len(rows) == 8
    assert [row["word"] for row in rows if math.isnan(row["reward"])] == ["fail"]
    assert {tuple(row["info"]) for row in rows} == {tuple(rows[0]["info"])}
    [missing] = [row["info"] for row in rows if row["info"]["reward_missing"] == 1.0]
    assert missing["quality_score"] is None


def test_validation_counts_what_is_there(v1: dict[str, Any]) -> None:
    sync, later = v1["sync"]["validation"], v1["async"]["validation"]
    for found in (sync, later):
        assert found["val-aux/judge/x/quality_score/mean@3"] == pytest.approx(1.75 / 3)
        assert found["val-aux/judge/x/quality_score/mean@4"] == 0.5
    assert sync["val-core/judge/x/reward/mean@4"] == 0.5
    assert math.isnan(later["val-core/judge/x/reward/mean@4"])
    assert later["val-aux/judge/x/reward_missing/mean@4"] == 0.125


@pytest.mark.parametrize("case", ["sync", "stock", "async"])
def test_a_steps_metrics_are_in_verls_own(v1: dict[str, Any], case: str) -> None:
    """Also of rewards that V1 `sync` leaves out of the step: the reward actors counted them."""
    found = v1[case]["step"]["metrics"]
    rewards = [1.0, 0.0, 0.75, 1.0, 1.0, 0.0, 0.0]
    assert found["judge/missing_frac"] == found["judge/missing_frac/unparsable"] == 1 / 8
    assert found["judge/score_mean"] == pytest.approx(sum(rewards) / 7)
    assert found["judge/quality_score_mean"] == pytest.approx(sum(rewards) / 7)
    assert found["judge/zero_std_frac"] == 0.0


def test_validation_in_sync_counts_its_own_missing_rewards(v1: dict[str, Any]) -> None:
    found = v1["sync"]["validation"]
    assert found["val-aux/judge/missing_frac/unparsable"] == 1 / 8
    assert "val-aux/judge/missing_frac" not in v1["async"]["validation"]


def test_without_any_reward_the_run_ends(v1: dict[str, Any]) -> None:
    """In both modes at the first step, by an exception in the trainer; none refills for ever."""
    assert "no materializable" in v1["sync without a judge"]["step"]["error"]
    assert "MissingRewardError" in v1["async without a judge"]["step"]["error"]
