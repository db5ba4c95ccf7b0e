"""The table of the conformance page: it is that of the results, and they are made from sources."""

from __future__ import annotations

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
