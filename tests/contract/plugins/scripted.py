"""What the tests of plug-ins share: a judge that fails on cue, and where trainers' sources are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from adjudge.rewards import RewardSpec
from adjudge_lab.conformance.checks import CheckEnd, Conformance, run_conformance
from adjudge_lab.conformance.driver import TrainerDriver, Way

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


def find_source(*folders: str) -> Path:
    """A trainer's checkout or unzipped wheel, the first there is; skips the module without it.

    Folders have the names of ``docs/conformance/trainers.toml``, where ``make conformance`` fetches
    them, or others.
    """
    given = os.environ.get("ADJUDGE_TRAINER_SOURCES")
    if given is None:
        pytest.skip(
            "ADJUDGE_TRAINER_SOURCES names no folder of trainers' sources", allow_module_level=True
        )
    for folder in folders:
        if (path := Path(given) / folder).is_dir():
            return path
    pytest.skip(f"{given}: has no folder {' or '.join(folders)}", allow_module_level=True)


def check_failures(driver: TrainerDriver) -> tuple[Conformance, set[str]]:
    """What the suite finds, and the names of the checks that fail."""
    found = run_conformance(driver)
    return found, {one.check for one in found.findings if one.outcome is not CheckEnd.PASSES}
