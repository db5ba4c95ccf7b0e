"""What is here runs in environments of its own: `make test-verl`, `make test-verl091`."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
LOOKUPS = {
    "0.6.1": "from verl.experimental.reward.reward_loop import get_reward_loop_manager_cls as "
    "loop\n"
    "from verl.workers.reward_manager import get_reward_manager_cls as batch\n"
    "assert batch('adjudge').__name__ == 'JudgeRewardManager'\n",
    "0.9.1": "from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls as "
    "loop\n",
}


def run_script(script: str, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(SRC), **env},
        timeout=300, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_verls_own_import_hook_registers_without_a_patch() -> None:
    try:
        lookup = LOOKUPS[version("verl")]
    except (PackageNotFoundError, KeyError):
        pytest.skip("no verl of ours is installed here; run `make test-verl test-verl091`")
    script = (
        f"import verl\n{lookup}"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as estimator\n"
        "print(loop('adjudge').__name__, estimator('adjudge_grpo').__name__)"
    )
    found = run_script(script, VERL_USE_EXTERNAL_MODULES="adjudge.trainers.verl.register")
    assert found == ["JudgeRewardLoopManager", "adjudge_grpo"]


def test_importing_the_adapter_loads_no_heavy_library() -> None:
    script = (
        "import sys, adjudge.trainers.verl as v\n"
        "v.JudgeRewardManager, v.JudgeRewardLoopManager, v.JudgeTrainerMixin, v.adjudge_grpo\n"
        "print(*{'torch', 'verl', 'ray', 'numpy', 'transformers'} & set(sys.modules))"
    )
    assert run_script(script) == []
