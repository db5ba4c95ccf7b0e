"""The conformance suite on the real TRL."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
from adjudge_lab.conformance.checks import CheckEnd, TrainerVerdict, run_conformance
from adjudge_lab.conformance.drivers import build_driver


def test_the_newest_has_exact_advantages_and_counts_the_missing_in_its_loss() -> None:
    found = run_conformance(build_driver("trl"))
    one_of_two = "None of one of two functions"
    assert found.judge_way(one_of_two) is TrainerVerdict.WRONG
    ways = {way for way in found.ways if way != one_of_two}
    assert {found.judge_way(way) for way in ways} == {TrainerVerdict.UNBIASED}
    failed = [one for one in found.findings if one.outcome is CheckEnd.FAILS]
    assert {one.check for one in failed if one.way in ways} == {"normaliser", "divergence"}
