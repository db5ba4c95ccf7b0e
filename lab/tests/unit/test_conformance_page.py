"""The table of the conformance page: it is that of the results, and they are made from sources."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import tarfile
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


ROW = """
[[trainer]]
title = "{driver}"
name = "{driver}-1"
driver = "{driver}"
package = "src"
repositories = [{{ name = "owner/{driver}", commit = "{driver}", date = 2026-08-21 }}]
"""


def test_a_source_that_cannot_be_had_keeps_its_row(
    generator: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "sources" / "reference-1" / "src").mkdir(parents=True)
    with tarfile.open(tmp_path / "zero-fill.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("zero-fill-abc/src/trainer.py")
        archive.addfile(member, io.BytesIO())
    found = {"documented": True, "verdict": "wrong", "settings": {"grpo": "wrong"}}
    kept = {"title": "mean-fill", "version": "old", "driver": "mean-fill", "run": "2026-01-01"}
    kept |= {"decided at": "a.py:1"}
    ways = {"None": {**found, "fails": {"advantages": ["grpo"]}, "not judged": ["NaN"]}}
    before: dict[str, Any] = {**kept, "ways": ways}
    for name, file, text in (
        (
            "TRAINERS",
            "trainers.toml",
            "".join(ROW.format(driver=one) for one in sorted(NO_TRAINERS)),
        ),
        ("RESULTS", "results.json", json.dumps({"mean-fill-1": before})),
        ("PAGE", "page.md", "Before.\n<!-- results -->\nold\n<!-- end of results -->\nAfter.\n"),
    ):
        (tmp_path / file).write_text(text, encoding="utf-8")
        monkeypatch.setattr(generator, name, tmp_path / file)
    monkeypatch.setattr(generator, "_ARCHIVE", f"file://{tmp_path}/{{commit}}.tar.gz")
    monkeypatch.setattr(sys, "argv", ["generate", "--sources", str(tmp_path / "sources")])
    generator.main()
    said = capsys.readouterr().out
    assert "mean-fill-1: not run, its row stays as it was (" in said
    assert "reference-1: None: exact" in said
    assert "zero-fill-1: None: wrong" in said
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["mean-fill-1"] == before
    assert results["reference-1"]["ways"]["None"]["settings"]["rloo"] == "exact"
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("Before.\n<!-- results -->\n| trainer |")
    assert page.endswith("\n<!-- end of results -->\nAfter.\n")
    assert (
        "| mean-fill | old | `None` | **wrong** | advantages; not judged: NaN | `a.py:1` | – |"
        in page
    )
    assert "| reference | referen (2026-08-21) | `None` | exact | – |" in page
