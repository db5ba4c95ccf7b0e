"""Rubric files of every kind, what is refused in them, and rubrics by id."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tests.refusals import refuses

from adjudge.rubrics import (
    GlobalRubric,
    Rubric,
    RubricBundle,
    find_bundle,
    load_bundle,
    load_rubric,
)

TOML = """
id = "game@v1"
criteria = [
    { id = "dose", criterion = "Names a dose of ${AMOUNT}", points = 5 },
    { criterion = "Alarms", points = -2, veto = true },
]
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_kind_of_file_gives_the_same_rubric(tmp_path: Path) -> None:
    files = {"a.toml": TOML, "a.json": "\ufeff" + json.dumps(tomllib.loads(TOML), indent=2)}
    found = [load_rubric(write(tmp_path, name, text)) for name, text in files.items()]
    assert isinstance(found[0], Rubric)
    assert found[0].criteria[0].text == "Names a dose of ${AMOUNT}"
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a.txt", b""),
        ("a.toml", b"criteria = ["),
        ("a.json", b'{"criteria": [}'),
        ("a.json", b'{"criteria": ["a"], "criteria": ["b"]}'),
        ("a.json", b"[" * 100_000),
        ("latin.json", '["é"]'.encode("latin-1")),
        ("big.json", b" " * ((2 << 20) + 1)),
        ("none.toml", None),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, written: bytes | None
) -> None:
    path = tmp_path / name
    if written is not None:
        path.write_bytes(written)
    with refuses("", str(path)):
        load_rubric(path)


def test_any_rubric_becomes_a_bundle(tmp_path: Path) -> None:
    guide = '{"criteria": ["a"], "scoring_guide": {"0-1": "x"}}'
    bundle = load_bundle(write(tmp_path, "guide.json", guide))
    assert isinstance(bundle.global_rubric, GlobalRubric)
    assert isinstance(load_bundle(write(tmp_path, "list.json", '["a"]')).outcome, Rubric)
    both = load_bundle(write(tmp_path, "both.json", '{"event": ["a"], "outcome": ["b"]}'))
    assert isinstance(both.events, Rubric)


@pytest.fixture
def rubrics(tmp_path: Path) -> Path:
    write(tmp_path, "rubrics/game/bundle@v1.toml", '[global_rubric]\ncriteria = ["Explores"]\n')
    write(
        tmp_path,
        "rubrics/game/bundle@v2.json",
        '{"id": "game/bundle@v2", "criteria": ["Survives"]}',
    )
    write(tmp_path, "secret@v1.json", '["outside"]')
    return tmp_path / "rubrics"


def test_rubrics_by_id(rubrics: Path) -> None:
    found = find_bundle("game/bundle@v1", rubrics)
    assert isinstance(found, RubricBundle)
    assert found.global_rubric == GlobalRubric(criteria=("Explores",))
    assert find_bundle("game/bundle@v2", rubrics).outcome is not None


@pytest.mark.parametrize(
    ("rubric_id", "hint"),
    [
        ("game/bundle", "did you mean 'game/bundle@v"),
        ("game/bundel@v1", "did you mean 'game/bundle@v1'?"),
        ("zzz@v9", "allowed: game/bundle@v1, game/bundle@v2"),
        ("../secret@v1", "out of"),
        ("game/../../secret@v1", "out of"),
        ("/etc/passwd@v1", ""),
        ("game\\bundle@v1", ""),
        ("game/bundle@v1/../x", ""),
        ("@v1", ""),
        ("a\x00b@v1", ""),
        ("a" * 2_000, ""),
    ],
)
def test_ids_that_lead_nowhere_or_out(rubrics: Path, rubric_id: str, hint: str) -> None:
    with refuses("rubric_id") as caught:
        find_bundle(rubric_id, rubrics)
    assert hint in str(caught.value)


def test_ids_that_are_ambiguous_or_lie(rubrics: Path, tmp_path: Path) -> None:
    write(rubrics, "game/bundle@v1.json", '["Explores"]')
    with refuses("rubric_id"):
        find_bundle("game/bundle@v1", rubrics)
    write(rubrics, "other@v1.json", '{"id": "game/bundle@v1", "criteria": ["a"]}')
    with refuses("id"):
        find_bundle("other@v1", rubrics)
    write(rubrics, "split@v1.json", '{"id": "split", "version": "v1", "criteria": ["a"]}')
    assert find_bundle("split@v1", rubrics).outcome is not None
    (rubrics / "link@v1.json").symlink_to(tmp_path / "secret@v1.json")
    with refuses("rubric_id"):
        find_bundle("link@v1", rubrics)
    with refuses("rubric_id"):
        find_bundle("a@v1", tmp_path / "none")
