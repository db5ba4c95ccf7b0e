"""The conformance suite on the installed verl says what the documentation does."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed here; run `make test-verl`")
from adjudge_lab.conformance.checks import run_conformance
from adjudge_lab.conformance.drivers import build_driver

RESULTS = Path(__file__).parents[3] / "docs" / "conformance" / "results.json"


def test_the_verdicts_are_those_of_the_table() -> None:
    row = json.loads(RESULTS.read_text(encoding="utf-8"))[f"verl-{version('verl')}"]
    found = run_conformance(build_driver("verl"))
    settings = list(dict.fromkeys(one.setting for one in found.findings))
    assert found.decided_at == row["decided at"]
    assert {way: one["settings"] for way, one in row["ways"].items()} == {
        way: {setting: found.judge_way(way, setting) for setting in settings} for way in found.ways
    }
