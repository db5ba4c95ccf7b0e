"""The tables of trainers: they are those of the results, and these are made from sources."""

from __future__ import annotations

import datetime
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.scripts import load_script

from adjudge.trainers import TRAINERS
from adjudge_lab.conformance.drivers import DRIVERS, STAND_INS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def generator() -> Any:
    """``docs/generate_conformance.py`` as a module."""
    return load_script(DOCS / "generate_conformance.py")


def declare(generator: Any) -> Any:
    """The declaration of all trainers."""
    return tomllib.loads(generator.TRAINERS.read_text(encoding="utf-8"))


def test_the_tables_are_those_of_the_results(generator: Any) -> None:
    results = json.loads(generator.RESULTS.read_text(encoding="utf-8"))
    for page, name, table in generator.make_tables(results):
        text = page.read_text(encoding="utf-8")
        assert table in text
        assert generator.insert_table(text, table, name) == text
    assert generator.format_results(results) == generator.RESULTS.read_text(encoding="utf-8")


def test_a_row_says_whether_its_adapter_sees_groups(generator: Any) -> None:
    """What refuses specs about whole groups is in the adapter's code (``call_holds``)."""
    for row in TRAINERS:
        if not row.install or {"openrlhf", "verl"} & {
            *row.install
        }:  # which have ways of both kinds
            continue
        name = next(iter(row.install)).replace("-", "_")
        file = generator.ROOT / "src" / "adjudge" / "trainers" / f"{name}.py"
        alone = 'call_holds = "one sample"' in file.read_text(encoding="utf-8")
        said = row.refused.startswith("whole-group specs")
        assert said == alone, row.title
        assert all(one.startswith("pip install ") for one in row.install.values()), row.title


def test_every_result_is_in_the_row_of_an_adapter(generator: Any) -> None:
    shown = {name for row in TRAINERS for name in row.measured}
    assert shown == {one["name"] for one in declare(generator)["trainer"]}


def test_every_trainer_that_has_a_driver_has_a_row(generator: Any) -> None:
    results = json.loads(generator.RESULTS.read_text(encoding="utf-8"))
    trainers = declare(generator)["trainer"]
    assert list(results) == [one["name"] for one in trainers]
    assert {one["driver"] for one in trainers} == set(DRIVERS) - STAND_INS


def test_rows_that_are_older_than_a_month_are_named(generator: Any) -> None:
    results = {
        "old": {"run": "2026-09-30"},
        "edge": {"run": "2026-10-01"},
        "new": {"run": "2026-10-31"},
    }
    [sentence] = generator.find_old_rows(results, datetime.date(2026, 11, 1))
    assert sentence.startswith("old: run on 2026-09-30")
