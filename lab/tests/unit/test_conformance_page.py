"""The table of the conformance page: it is that of the results, and they are made from sources."""

from __future__ import annotations

import datetime
import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adjudge_lab.conformance.drivers import DRIVERS

DOCS = Path(__file__).parents[3] / "docs"
NO_TRAINERS = {"reference", "zero-fill", "mean-fill"}


@pytest.fixture
def generator() -> Any:
    """``docs/generate_conformance.py`` as a module."""
    spec = importlib.util.spec_from_file_location("tabled", DOCS / "generate_conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_that_of_the_results(generator: Any) -> None:
    page = (DOCS / "conformance.md").read_text(encoding="utf-8")
    results = json.loads(generator.RESULTS.read_text(encoding="utf-8"))
    assert generator.insert_table(page, generator.format_table(results)) == page
    assert generator.format_results(results) == generator.RESULTS.read_text(encoding="utf-8")


def test_every_trainer_that_has_a_driver_has_a_row(generator: Any) -> None:
    results = json.loads(generator.RESULTS.read_text(encoding="utf-8"))
    trainers = tomllib.loads(generator.TRAINERS.read_text(encoding="utf-8"))["trainer"]
    assert list(results) == [one["name"] for one in trainers]
    assert {one["driver"] for one in trainers} == set(DRIVERS) - NO_TRAINERS


def test_rows_that_are_older_than_a_month_are_named(generator: Any) -> None:
    results = {
        "old": {"run": "2026-09-30"},
        "edge": {"run": "2026-10-01"},
        "new": {"run": "2026-10-31"},
    }
    [sentence] = generator.find_old_rows(results, datetime.date(2026, 11, 1))
    assert sentence.startswith("old: run on 2026-09-30")


def test_the_page_and_the_command_name_the_same_best_way(generator: Any) -> None:
    """A documented way comes before an undocumented one that stops the run."""
    found = {"fails": {}, "not judged": [], "functions": 1}
    ways = {
        "None": {**found, "documented": False, "verdict": "stops", "settings": {"grpo": "stops"}},
        "mask": {**found, "documented": True, "verdict": "wrong", "settings": {"grpo": "wrong"}},
    }
    row = {"title": "T", "version": "1", "run": "2026-11-01", "decided at": "t.py:1", "ways": ways}
    assert "| T | 1, 2026-11-01 | `mask` | **wrong** | – |" in generator.format_table({"t": row})
