"""What is here runs in an environment of its own: `make test-verl`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"


def test_verls_own_import_hook_registers_without_a_patch() -> None:
    pytest.importorskip("verl", reason="verl is not installed here; run `make test-verl`")
    script = (
        "import verl\n"
        "from verl.workers.reward_manager import get_reward_manager_cls as batch\n"
        "from verl.experimental.reward.reward_loop import get_reward_loop_manager_cls as loop\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as estimator\n"
        "print(batch('adjudge').__name__, loop('adjudge').__name__,"
        " estimator('adjudge_grpo').__name__)"
    )
    env = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "VERL_USE_EXTERNAL_MODULES": "adjudge.trainers.verl.register",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env, timeout=300, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["JudgeRewardManager", "JudgeRewardLoopManager", "adjudge_grpo"]


def test_importing_the_adapter_loads_no_heavy_library() -> None:
    script = (
        "import sys, adjudge.trainers.verl as v\n"
        "v.JudgeRewardManager, v.JudgeRewardLoopManager, v.JudgeTrainerMixin, v.adjudge_grpo\n"
        "print(*{'torch', 'verl', 'ray', 'numpy', 'transformers'} & set(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env, timeout=300, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == []
