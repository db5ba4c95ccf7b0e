"""CONTRIBUTING's table "to add X, touch Y": each row works in a copy of the tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ADDITIONS = tomllib.loads((ROOT / "tests" / "data" / "additions.toml").read_text("utf-8"))
COPIED = ("src", "lab/src", "lab/pyproject.toml", "docs", "mkdocs.yml")
PROVE = """
import asyncio, json, os, sys, tomllib
from pathlib import Path
from typer.testing import CliRunner
import adjudge, adjudge.graders
from adjudge.cli.main import command_line
from adjudge.judges.discovery import find_judge

def run(*words):
    return CliRunner().invoke(command_line(), words).output

def grade(kind, judges={}, **keys):
    spec = {"graders": [{"name": "a", "type": kind, **keys}], "judges": judges}
    return adjudge.grade([{"prompt": "Hi", "response": "please, thanks"}], spec).rewards

def judge(kind):
    table = {"main": {"type": kind, "model": "m"}}
    entry = {"name": "a", "type": "relevance"}
    spec = adjudge.RewardSpec.from_dict({"graders": [entry], "judges": table})
    return spec.build_graders()["a"].model.base_urls

def find(variable):
    os.environ[variable] = "k"
    try:
        return asyncio.run(find_judge(ports=())).table["type"]
    finally:
        del os.environ[variable]

assert Path(adjudge.__file__).is_relative_to(Path.cwd())
wrong = {}
for row, proof in json.load(sys.stdin).items():
    try:
        exec(proof, globals())
    except BaseException as error:
        wrong[row] = f"{type(error).__name__}: {error}"
print(json.dumps(wrong))
"""


def prove(tree: Path) -> dict[str, str]:
    """Which additions do not work there, and why."""
    done = subprocess.run(
        [sys.executable, "-c", PROVE], cwd=tree, capture_output=True, text=True, check=False,
        input=json.dumps({row: one["proof"] for row, one in ADDITIONS.items()}),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tree}/src:{tree}/lab/src",
             "HOME": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrong: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return wrong


def read_rows() -> dict[str, list[str]]:
    """The cells of the table after the first, by the first."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = page.partition("| to add |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    return {first: others for first, *others in cells}


def list_paths(cell: str, name: str) -> dict[str, str]:
    """The files that a cell names, as paths of the tree, and the words in brackets after each."""
    found = {}
    for path, words in re.findall(r"`([\w./-]+[./][\w./-]*)`(?: \((.*?)\))?", cell):
        is_whole = (ROOT / path.partition("/")[0]).exists()
        found[(path if is_whole else f"src/adjudge/{path}").replace("X", name)] = words
    return found


def test_each_addition_works_in_a_copy_of_the_tree_and_not_without_its_files(
    tmp_path: Path,
) -> None:
    left = shutil.ignore_patterns("__pycache__", "*.png")
    for path in COPIED:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, tmp_path / path, ignore=left)
        else:
            shutil.copy(ROOT / path, tmp_path / path)
    assert prove(tmp_path).keys() == ADDITIONS.keys()
    for one in ADDITIONS.values():
        for path, text in one.get("files", {}).items():
            assert not (tmp_path / path).exists(), f"{path} is there"
            (tmp_path / path).write_text(text)
        for path, edits in one["edits"].items():
            text = (tmp_path / path).read_text()
            for place, added in edits:
                assert text.count(place) == 1, f"{path}: {place!r}"
                text = text.replace(place, place + added)
            (tmp_path / path).write_text(text)
    assert prove(tmp_path) == {}


@pytest.mark.parametrize("row", ADDITIONS)
def test_a_row_names_the_files_that_its_addition_touches(row: str) -> None:
    one = ADDITIONS[row]
    touched = {*one.get("files", {}), *one["edits"]}
    assert list_paths(read_rows()[row][0], one["name"]).keys() == touched


def test_contributors_are_sent_to_files_and_names_that_are_there() -> None:
    rows = read_rows()
    assert rows.keys() == ADDITIONS.keys()
    for cells in rows.values():
        for path, words in list_paths(" ".join(cells), "X").items():
            assert (ROOT / path).exists() or "X" in path, f"{path} is not there"
            if (ROOT / path).is_file():
                text = (ROOT / path).read_text("utf-8")
                missing = [name for name in re.findall(r"`(\w+)`", words) if name not in text]
                assert missing == [], f"{path} has no {missing}"
