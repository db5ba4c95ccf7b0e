"""A small part of `benchmarks/audit_validation.py`: clean runs and planted defects."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.audit_plants import PLANTS, Plant, Rows
from benchmarks.audit_validation import (
    SIMULATED,
    audit_rollouts,
    audit_rows,
    found_names,
    make_rollouts,
)


def simulated_rows(plant: Plant, rng: random.Random) -> Rows:
    """Rows of a judge's scores, or of right and wrong, without any defect."""
    rows = [
        {"prompt": one.prompt, "response": one.response, "group": one.group, "reward": one.reward}
        for one in make_rollouts(
            rng,
            66,
            8,
            lambda p, _: round(min(0.95, max(0.05, rng.gauss(0.3 + 0.4 * p, 0.15))), 2),
            sentences=lambda _: rng.randint(3, 30),
        )
    ]
    if plant.dump == "ifeval":
        for row in rows:
            row["reward"] = float(row["reward"] >= 0.5)  # type: ignore[operator]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant", [one for one in PLANTS if one.dump != "tau"], ids=lambda one: one.name
)
def test_planted_defects_are_found(plant: Plant, tmp_path: Path) -> None:
    rng = random.Random(f"test:{plant.name}")
    rows = simulated_rows(plant, rng)
    plant.spoil(rows, rng)
    names = found_names(audit_rows(rows, tmp_path, as_folder=plant.as_folder))
    assert set(names[:2]) & set(plant.found_by), names


@pytest.mark.slow
def test_clean_runs_stay_clean() -> None:
    alarms = [
        (name, found_names(audit_rollouts(make(random.Random(f"test:{name}:{number}")))))
        for name, make in SIMULATED.items()
        for number in range(2)
    ]
    # At 5 % more than 4 of 20 happen once in 400 times.
    assert sum(bool(found) for _, found in alarms) <= 4, alarms
