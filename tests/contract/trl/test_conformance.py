"""The conformance suite on the real TRL, new and old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
from adjudge_lab.conformance.checks import CheckEnd, TrainerVerdict, run_conformance
from adjudge_lab.conformance.drivers import build_driver

OLDER = Path(os.environ.get("ADJUDGE_OLDER_TRL", "no-such-folder"))


def test_the_newest_has_exact_advantages_and_counts_the_missing_in_its_loss() -> None:
    found = run_conformance(build_driver("trl"))
    assert {found.judge_way(way) for way in found.ways} == {TrainerVerdict.UNBIASED}
    counting = {one.check for one in found.findings if one.outcome is CheckEnd.FAILS}
    assert counting == {"normaliser", "divergence"}


@pytest.mark.skipif(not OLDER.is_dir(), reason="ADJUDGE_OLDER_TRL names no folder of older TRL")
@pytest.mark.parametrize("version", ["0.29.0", "1.0.0", "1.5.1"])
def test_before_1_6_a_missing_reward_is_0(version: str) -> None:
    found = run_conformance(build_driver("trl", OLDER / version))
    assert (found.version, found.verdict) == (version, TrainerVerdict.WRONG)
    seen = next(one for one in found.findings if one.check == "missing answer")
    assert seen.outcome is CheckEnd.FAILS
