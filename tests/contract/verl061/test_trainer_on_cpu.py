"""verl's real RayPPOTrainer through two GRPO steps and two validations, each in a process."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from verl_words import run_script  # type: ignore[import-not-found]  # above

HERE = Path(__file__).parent
MODULES = "VERL_USE_EXTERNAL_MODULES"


def train(folder: Path, spec: str, *overrides: str, **variables: str) -> list[dict[str, Any]]:
    """What the run's own logger got, step by step."""
    log = {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    run_script(HERE / "train_on_cpu.py", spec, folder, *overrides, **log, **variables)
    return [row["data"] for row in read(folder / "metrics.jsonl")]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_dump(rows: list[dict[str, Any]], step: int) -> None:
    for row in rows:
        assert row["step"] == step
        assert [m["role"] for m in row["messages"]] == ["user", "assistant"]
        assert row["messages"][1]["content"] == row["output"]
        failed = "fail" in row["output"]
        assert row["reward_missing"] == float(failed)
        assert (row["score"] is None) == (row["quality_score"] is None) == failed
        assert row["details"].get("missing", {}).get("kind") == ("unparsable" if failed else None)
        assert "missing_parts" not in row["details"]
        assert {"input", "outcome", "env_reward"} <= row.keys()
        assert not {"uid", "judge_metrics"} & row.keys()


def check_metrics(steps: list[dict[str, Any]], folder: Path) -> None:
    """Each step's judge metrics are those of what was dumped."""
    for number, step in enumerate(steps):
        rows = read(folder / "rollouts" / f"{number + 1}.jsonl")
        assert len(rows) == 16
        missing = sum(row["score"] is None for row in rows)
        scores = [row["score"] for row in rows if row["score"] is not None]
        assert step["judge/missing_frac"] == pytest.approx(missing / 16)
        assert step["judge/score_mean"] == pytest.approx(sum(scores) / len(scores))
        assert math.isfinite(step["critic/score/mean"])
        assert math.isfinite(step["actor/pg_loss"])
        check_dump(rows, number + 1)


def test_two_grpo_steps_and_validations(tmp_path: Path, spec: str) -> None:
    before, *steps = train(tmp_path, spec)
    assert len(steps) == 2
    check_metrics(steps, tmp_path)
    for number, found in ((0, before), (2, steps[-1])):
        rows = read(tmp_path / "validation" / f"{number}.jsonl")
        assert len(rows) == 16
        missing = sum(row["score"] is None for row in rows) / 16
        assert found["val-aux/judge/missing_frac"] == pytest.approx(missing)
        assert found["val-aux/judge/x/reward_missing/mean@2"] == pytest.approx(missing)
        assert math.isfinite(found["val-core/judge/x/reward/mean@2"])
        check_dump(rows, number)


def test_rewards_in_a_ray_task_under_stock_grpo(tmp_path: Path, spec: str) -> None:
    """``launch_reward_fn_async`` loads the manager anew in a Ray process, every step."""
    mine = tmp_path / "mine.py"
    mine.write_text("compute_score = object\n")  # so that nothing but the import hook registers
    steps = train(
        tmp_path,
        spec,
        "reward_model.launch_reward_fn_async=True",
        "algorithm.adv_estimator=grpo",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        f"custom_reward_function.path={mine}",
        **{MODULES: "adjudge.trainers.verl.register"},
    )
    check_metrics(steps, tmp_path)
    for step in steps:
        if step["judge/missing_frac"] > 0:
            assert step.get("judge/inflation_max", 1.1) > 1.0
