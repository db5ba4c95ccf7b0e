"""What keeps the house small: names, shards, circles. Only the source is read."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.size import RIVER_CONTRACT

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", ROOT / "lab" / "src")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGES = ("adjudge", "adjudge_lab")

RIDDLES = frozenset(
    {
        "told",
        "said",
        "asked",
        "kept",
        "given",
        "lesser",
        "foreseen",
        "honoured",
        "taught",
        "made_up",
        "left_undone",
        "leads",
        "whole",
        "moved",
        "adapted",
        "bare",
        "material",
        "trained",
        "planned",
        "watched",
        "silence",
        "landed",
        "leave",
        "heard",
        "stood",
        "unmet",
        "gate",
        "held",
        "flight",
        "wanted",
        "afford",
        "wanting",
        "seat",
        "marks",
        "marked",
        "came",
        "settle",
        "alike",
        "shown",
        "found",
        "both",
        "sheet",
        "working",
    }
)
"""Words that say nothing alone. As a part of a longer name each is fine."""

MOST_NAMES_TWICE = 20
SMALL = 60
SMALL_ON_PURPOSE = {
    "adjudge.hosts": "a security rule that many rooms ask",
    "adjudge.judges.models.llama_server": "run by its path, in a child process",
    "adjudge.trainers.trl_functions": "imported by users, by its path",
    "adjudge.trainers.verl.register": "loaded by verl as a file",
    "adjudge_lab.judge_training.verl.register": "loaded by verl as a file",
    "adjudge_lab.rl.verl.main_ppo": "run by `python -m`",
}


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of each module of both packages, by its dotted name."""
    found: dict[str, ast.Module] = {}
    gc.disable()  # it would look at a million nodes again and again, none of which is garbage
    try:
        for source in SOURCES:
            for path in sorted(source.rglob("*.py")):
                parts = path.relative_to(source).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()
    return found


def lines_of(name: str) -> int:
    """How long a module is."""
    body = modules()[name].body
    return max((node.end_lineno or 0 for node in body), default=0)


def public_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines at its top and that do not begin with an underscore."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [one.id for one in targets if isinstance(one, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def public_methods(tree: ast.Module) -> Iterator[str]:
    """Names of methods of a module's classes that do not begin with an underscore."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                name = inner.name if isinstance(inner, _FUNCTIONS) else "_"
                if not name.startswith("_"):
                    yield name


def imports() -> dict[str, set[str]]:
    """Which modules each module imports, anywhere in it: in functions and for types, too."""
    known = modules()
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in known.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found[name] |= {one.name for one in node.names if one.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                for one in node.names:
                    inner = f"{node.module}.{one.name}"
                    found[name].add(inner if inner in known else str(node.module))
        found[name].discard(name)
    return found


def test_no_name_is_a_riddle() -> None:
    """No module, public name or public method is a word that says nothing alone."""
    riddles = [
        f"{module}: {name}"
        for module, tree in modules().items()
        for name in {module.rpartition(".")[2], *public_names(tree), *public_methods(tree)}
        if name.lower() in RIDDLES
    ]
    assert riddles == []


def test_a_name_is_defined_once() -> None:
    """A public name has one home; few that every module may have, like ``main``, have more."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules().items():
        for name in set(public_names(tree)):
            homes[name].append(module)
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert len(twice) <= MOST_NAMES_TWICE, twice


def test_a_name_is_public_by_its_name() -> None:
    """A name without an underscore is public; a second list of them would only age beside them.

    Packages say what they offer; a module does where another program reads it, or re-exports.
    """
    packages = {name.rpartition(".")[0] for name in modules()}
    listed = {
        name
        for name, tree in modules().items()
        if name not in packages
        and any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for node in tree.body
        )
    }
    assert listed == {
        "adjudge.graders.code.candidate",
        "adjudge.graders.code.tester",
        "adjudge.graders.code.values",
        "adjudge.trainers.verifiers",
        "adjudge_lab.judge_training.verl.register",
    }


def test_no_module_is_a_shard() -> None:
    """A module that is small and has one importer belongs to that importer."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports().items():
        for target in targets:
            importers[target].add(name)
    packages = {name.rpartition(".")[0] for name in modules()}
    shards = [
        name
        for name in modules()
        if name not in packages
        and not name.endswith("__main__")
        and lines_of(name) < SMALL
        and len(importers[name]) <= 1
        and name not in SMALL_ON_PURPOSE
    ]
    assert shards == []


def test_imports_have_no_circle() -> None:
    """No module imports itself by way of others, imports in functions and for types counted."""
    graph = imports()
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*above, name))
            done.add(name)

    for name in modules():
        visit(name, ())


def test_every_module_is_of_the_river_or_a_bank() -> None:
    """The contract names all modules but packages that it splits, so the river imports itself."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    river = next(one for one in contracts if one["name"] == RIVER_CONTRACT)
    named = river["source_modules"] + river["forbidden_modules"]
    unnamed = [
        name
        for name in modules()
        if name.startswith("adjudge.")
        and not any(f"{name}.".startswith(f"{one}.") for one in named)
        and not any(one.startswith(f"{name}.") for one in named)
    ]
    assert unnamed == []


def test_core_tests_need_the_core_alone() -> None:
    """No test of the core names the lab; those of trainers run in environments that have both."""
    imported = re.compile(rf"^\s*(from|import) {PACKAGES[1]}\b", re.MULTILINE)
    named = [
        str(path.relative_to(ROOT))
        for folder in ("unit", "property", "integration", "e2e")
        for path in sorted((ROOT / "tests" / folder).rglob("*.py"))
        if imported.search(path.read_text(encoding="utf-8"))
    ]
    assert named == []


def test_pages_made_from_the_code_are_new() -> None:
    """Whole pages, and tables between markers, are what their script makes."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_design_draws_the_rooms_that_the_linter_holds_and_names_files_there_are() -> None:
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    drawn = re.findall(r"^ │ (.{44})│(?:.{6}│ (.{28})│)?", page, re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [one["layers"] for one in contracts["contracts"] if one["type"] == "layers"]
    for column, package in enumerate(("adjudge", "adjudge_lab")):
        rows = [row[column].strip() for row in drawn if row[column].strip()]
        rooms = [re.match(r"\w+(?: │ \w+)*", row) for row in rows]
        assert [sorted(found[0].split(" │ ")) for found in rooms if found] == [
            sorted(one.removeprefix(f"{package}.") for one in layer.split(" | "))
            for layer in layers[column]
        ]
    for name in re.findall(r"`(\w[\w.]*/[\w./]*)`", page):
        # `runs/folder` is a module, `runs/folder.RunFolder` something in it, `verl/` a folder.
        stem = name.rstrip("/")
        files = [f"{stem}.py", f"{stem.rpartition('.')[0] or stem}.py"]
        paths = [stem] if stem != name else [stem, *files]
        folders = [ROOT / "src" / "adjudge", ROOT / "lab" / "src" / "adjudge_lab"]
        inside = [found for folder in folders for path in paths for found in folder.rglob(path)]
        assert inside or any((ROOT / path).exists() for path in paths), f"{name} is not there"


def test_every_picture_of_the_docs_is_there_and_shown_with_words() -> None:
    """Those of pages are drawn by ``make screenshots``."""
    assets = ROOT / "docs" / "assets"
    shown = {}
    pages = [one for folder in ("docs", "results") for one in (ROOT / folder).rglob("*.md")]
    for page in (ROOT / "README.md", *pages):
        for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", page.read_text("utf-8")):
            shown[(page.parent / path).resolve()] = words
    pictures = {path for path in assets.iterdir() if path.suffix in {".png", ".svg"}}
    assert set(shown) == pictures
    assert min(map(len, shown.values())) > 15
    assert max(path.stat().st_size for path in pictures) <= 150_000
