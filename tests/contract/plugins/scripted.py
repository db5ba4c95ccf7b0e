"""What the tests of plug-ins share: a judge that fails on cue, and where trainers' sources are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from adjudge.rewards import RewardSpec
from adjudge_lab.conformance.checks import CheckEnd, Conformance, run_conformance
from adjudge_lab.conformance.driver import Batch, TrainerDriver, Way

ROOT = Path(__file__).parents[3]
SCALE = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The rewards that the conformance suite gives."""

WAY: tuple[Way, ...] = (Way("adjudge's plug-in"),)

SPEC: dict[str, Any] = {
    "graders": [
        {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]}
    ],
    "judges": {
        "main": {
            "type": "scripted",
            "script": {
                **{f"worth {value}.": f'{{"score": {value}}}' for value in SCALE},
                "": "no verdict",
            },
        }
    },
}


def make_spec(**more: Any) -> RewardSpec:
    """A judge whose score the response says, and which fails where it says none."""
    return RewardSpec.from_dict({**SPEC, **more})


def write_response(reward: float | None) -> str:
    """The response that the judge gives ``reward``; ``None`` and NaN make it fail."""
    return f"This one is worth {reward}."


def find_source(name: str) -> Path:
    """A trainer's checkout or unpacked wheel; skips the module where it is not there.

    Names are those of ``docs/conformance/trainers.toml``; NeMo-Gym's is ``nemo-gym-07d6b0d``.
    """
    given = os.environ.get("ADJUDGE_TRAINER_SOURCES")
    if given is None:
        pytest.skip(
            "ADJUDGE_TRAINER_SOURCES names no folder of trainers' sources", allow_module_level=True
        )
    if not (path := Path(given) / name).is_dir():
        pytest.skip(f"{given}: has no folder {name}", allow_module_level=True)
    return path


def patch_source(name: str, package: str, folder: Path) -> Path:
    """A copy of a trainer's package in ``folder``, with the patch of ``docs/conformance``."""
    copytree(find_source(name) / package, folder / package)
    patch = ROOT / "docs" / "conformance" / f"{name.rpartition('-')[0]}.diff"
    subprocess.run(["patch", "--quiet", "-p1", "-i", str(patch)], cwd=folder, check=True)
    return folder


def check_failures(driver: TrainerDriver) -> tuple[Conformance, set[str]]:
    """What the suite finds, and the names of the checks that fail."""
    found = run_conformance(driver)
    return found, {one.check for one in found.findings if one.outcome is not CheckEnd.PASSES}


def check_own_advantages(driver: TrainerDriver, base: TrainerDriver, way: str, size: int) -> None:
    """That groups of ``size`` without a missing reward have the advantages of ``base``."""
    rewards = (1.0, 0.0, 0.5, 0.25, 1.0, 0.75, 0.0, 0.0)[:size]
    batch = Batch(groups=(rewards, rewards[::-1]), lengths=((3,) * size,) * 2)
    for setting in driver.settings:
        want = base.run_step(batch, way, setting)
        made = driver.run_step(batch, WAY[0].name, setting)
        for one, other in zip(made.advantages, want.advantages, strict=True):
            assert one == pytest.approx(other, abs=2e-5)
