"""The conformance suite on the real TRL."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
from adjudge_lab.conformance.checks import CheckEnd, TrainerVerdict, run_conformance
from adjudge_lab.conformance.drivers import build_driver


def test_the_newest_has_exact_advantages_and_counts_the_missing_in_its_loss() -> None:
    found = run_conformance(build_driver("trl"))
    assert {found.judge_way(way) for way in found.ways} == {TrainerVerdict.UNBIASED}
    counting = {one.check for one in found.findings if one.outcome is CheckEnd.FAILS}
    assert counting == {"normaliser", "divergence"}
