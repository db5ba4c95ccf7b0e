"""Missing rewards under versions of TRL that count them as 0, and under the newest.

Run by `make test-trl`, which puts the older versions into folders named by ADJUDGE_OLDER_TRL. Each
trains in a process of its own; what the trainer made of the rewards is compared with what it would
make of the present ones alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

REASON = "not installed here; run `make test-trl`"
pytest.importorskip("trl", reason=f"trl is {REASON}")

ROOT = Path(__file__).parents[3]
OLDER = Path(os.environ.get("ADJUDGE_OLDER_TRL", "/nonexistent"))
OLD = ["0.29.0", "1.0.0", "1.5.1"]


@pytest.fixture(scope="module", params=[*OLD, "newest"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `missing_rewards.py` found under one version."""
    version, folder = request.param, tmp_path_factory.mktemp("trl")
    if version in OLD and not (OLDER / version).is_dir():
        pytest.skip(f"TRL {version} is {REASON}")
    before = [str(OLDER / version)] if version in OLD else []
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*before, str(ROOT / "src")]),
    }
    script = Path(__file__).with_name("missing_rewards.py")
    command = [sys.executable, str(script), str(folder)]
    subprocess.run(command, check=True, timeout=300, env=environment, cwd=folder)
    said = json.loads((folder / "found.json").read_text())
    assert version in (said["version"], "newest")
    return said


def by_hand(group: list[float | None], scale: str) -> list[float]:
    """GRPO's advantages of one group from its present rewards alone; a missing one has none."""
    present = [reward for reward in group if reward is not None]
    if len(present) < 2:
        return [0.0] * len(group)
    centre = mean(present)
    divisor = 1.0 if scale == "none" else stdev(present) + 1e-4
    return [0.0 if reward is None else (reward - centre) / divisor for reward in group]


def assert_exact(case: dict[str, Any], scale: str = "group") -> None:
    assert any(None in group for group in case["judged"])
    for group, advantages in zip(case["judged"], case["made"], strict=True):
        assert advantages == pytest.approx(by_hand(group, scale), abs=1e-5)


@pytest.mark.parametrize("name", ["mask", "mask, none", "drop_group", "mask, batch", "mask, RLOO"])
def test_advantages_are_exact_or_the_training_is_refused(found: Any, name: str) -> None:
    case, old = found[name], found["version"] in OLD
    exact = {"1.0.0": ["mask, none", "drop_group"], "1.5.1": ["mask, none", "drop_group"]}
    if old and name not in exact.get(found["version"], []):
        assert f"of TRL {found['version']}, which counts a missing reward as 0" in case["refused"]
        assert not case["judged"]  # before the judge was asked
    elif name in ("mask, batch", "mask, RLOO"):  # their numbers are tested with the newest
        assert case["judged"]
        assert not case.get("refused")
    else:
        assert_exact(case, "none" if name == "mask, none" else "group")


def test_policy_raise_works_under_every_version(found: Any) -> None:
    assert "rewards are missing" in found["raise"]["refused"]
