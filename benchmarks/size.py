"""How large the house is: files, code lines, statements and documentation, room by room.

    python benchmarks/size.py [--check]

A code line holds at least one token that is neither comment nor docstring; lines of TOML tables in
the packages count, too. Statements are those of the syntax tree, docstrings not counted: no
formatting changes them. Documentation is the lines of docstrings and comments, ``web`` the lines
of JS, CSS and templates. Rooms of one name in two packages are one row. The row *river* has the
modules that turn a rollout into a reward: those that ``pyproject.toml`` forbids to import others.

``--check`` fails where the repository is above a ceiling of ``benchmarks/size.toml``. It measures:

* code lines of Python, and lines of JS, CSS and templates in the two packages;
* code lines and files of the river;
* settings: distinct keys of the tables of configuration files, constructor parameters of each
  grader type, and options of each command;
* raises: each ``raise ConfigError``;
* refusals: raises, other raises that become a :class:`ConfigError` (of a function that returns one,
  of ``ValueError`` in a validator), and calls of functions whose task it is to raise one. The first
  call of such a function is not counted, since the raise in it is. So a check counts the same
  whether it is written out in each place or in a function of its own.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "benchmarks" / "size.toml"
PACKAGES = ("src", "lab/src")
RIVER_CONTRACT = "The river imports no bank"
RIVER_FILES = ("stats/__init__.py",)
"""What belongs to the river without the modules below it, so that no contract can name it."""
WEB_FILES = {".css", ".html", ".j2", ".jinja", ".js"}

Nodes = Sequence[ast.AST]
"""All nodes of a module's syntax tree."""

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)
_HELPER_NAMES = ("check_", "refuse_", "require_")


@dataclass
class Size:
    """What one room holds."""

    files: int = 0
    code: int = 0
    statements: int = 0
    documentation: int = 0
    longest: int = 0
    small: int = 0
    """Files of fewer than 60 lines, ``__init__`` and ``__main__`` not counted."""
    web: int = 0

    def add(self, other: Size) -> None:
        """Count another room's files as this one's."""
        self.files += other.files
        self.code += other.code
        self.statements += other.statements
        self.documentation += other.documentation
        self.longest = max(self.longest, other.longest)
        self.small += other.small
        self.web += other.web


@dataclass
class Refusals:
    """What of one module may raise a ``ConfigError``, by the names of functions and classes."""

    raised: Counter[str] = field(default_factory=Counter)
    validators: int = 0
    """Each ``raise ValueError`` in a validator."""
    calls: Counter[str] = field(default_factory=Counter)
    """Calls with an argument."""
    functions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Each function of the module, with what it raises if raising may be its task."""
    makers: set[str] = field(default_factory=set)
    """Functions that return a ``ConfigError``."""


def measure_file(path: Path) -> Size:
    """The size of one module."""
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    docstrings: set[int] = set()
    statements = 0
    for node in nodes:
        statements += isinstance(node, ast.stmt)
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= _lines(node.body[0])
            statements -= 1
    silent, comments = set(), set()
    for number, line in enumerate(text.split("\n"), 1):
        if not (bare := line.strip()) or bare[0] == "#":
            silent.add(number)
            if bare:
                comments.add(number)
    if any(silent & inside for inside in _texts(nodes, docstrings)):
        code, comments = _read_tokens(text)
    else:  # the same, and ten times as fast
        code = set(range(1, text.count("\n") + 2)) - silent
    code -= docstrings
    lines = len(text.splitlines())
    return Size(
        files=1,
        code=len(code),
        statements=statements,
        documentation=len(docstrings | (comments - code)),
        longest=lines,
        small=lines < 60 and not path.stem.startswith("__"),
    )


def _lines(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _texts(nodes: Nodes, docstrings: set[int]) -> Iterator[set[int]]:
    """The lines of each text of several lines: an empty one may be a part of it."""
    for node in nodes:
        if (
            isinstance(node, ast.Constant | ast.JoinedStr)
            and node.end_lineno != node.lineno
            and node.lineno not in docstrings
        ):
            yield _lines(node)


def _read_tokens(text: str) -> tuple[set[int], set[int]]:
    """The lines with code or a docstring, and those with a comment."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return code, comments


def measure(*folders: Path) -> dict[str, Size]:
    """The sizes of all rooms of the packages in ``folders``, by dotted name."""
    rooms: dict[str, Size] = defaultdict(Size)
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            room = ".".join(parts[:2]) if len(parts) > 2 else parts[0]
            if path.suffix == ".py":
                rooms[room].add(measure_file(path))
            elif path.suffix == ".toml" and folder.name == "src":  # or rows would hide
                table = path.read_text(encoding="utf-8").splitlines()
                rooms[room].code += sum(line != "" and line[0] != "#" for line in table)
            elif path.suffix in WEB_FILES:
                lines = path.read_text(encoding="utf-8").splitlines()
                rooms[room].add(Size(web=len(lines)))
    return dict(rooms)


def find_river(root: Path = ROOT) -> list[Path]:
    """The modules that turn a rollout into a reward, as the linter's contract names them."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    river = next(one for one in contracts if one["name"] == RIVER_CONTRACT)
    places = [root / "src" / name.replace(".", "/") for name in river["source_modules"]]
    listed = (sorted(one.rglob("*.py")) or [one.with_suffix(".py")] for one in places)
    return [*chain.from_iterable(listed), *(root / "src/adjudge" / name for name in RIVER_FILES)]


def total(rooms: Iterable[Size]) -> Size:
    """Many rooms as one."""
    whole = Size()
    for size in rooms:
        whole.add(size)
    return whole


def _name(node: ast.AST | None) -> str:
    """The last name of ``a.b``, ``b`` or a call of it."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "id", getattr(node, "attr", ""))


def _raised_in(node: ast.AST) -> list[str]:
    """What is raised in a function, by name."""
    return [_name(one.exc) for one in ast.walk(node) if isinstance(one, ast.Raise)]


def read_refusals(module: Nodes) -> Refusals:
    """What of a module may raise a ``ConfigError``."""
    found = Refusals()
    for node in module:
        if isinstance(node, ast.Raise):
            found.raised[_name(node.exc)] += 1
        elif isinstance(node, ast.Call) and node.args:
            found.calls[_name(node)] += 1
        elif isinstance(node, _FUNCTIONS):
            raised = found.functions[node.name]
            returned = _name(node.returns)
            if returned == "NoReturn" or node.name.lstrip("_").startswith(_HELPER_NAMES):
                raised |= set(_raised_in(node))
            if returned == "ConfigError":
                found.makers.add(node.name)
            if any("validator" in _name(one) for one in node.decorator_list):
                found.validators += _raised_in(node).count("ValueError")
    return found


def count_refusals(modules: Sequence[Refusals]) -> list[int]:
    """How many refusals each module has."""
    makers = {"ConfigError"}.union(*(module.makers for module in modules))
    helpers = {
        name for module in modules for name, raised in module.functions.items() if raised & makers
    }
    called = {name for module in modules for name in module.calls}
    counts = []
    for module in modules:
        # In its own module, a function comes before those of the same name elsewhere.
        own = {name: bool(raised & makers) for name, raised in module.functions.items()}
        calls = sum(
            number for name, number in module.calls.items() if own.get(name, name in helpers)
        )
        calls -= sum(is_helper and name in called for name, is_helper in own.items())
        raises = sum(module.raised[name] for name in makers)
        counts.append(raises + module.validators + calls)
    return counts


def find_table_keys(modules: Iterable[Nodes]) -> set[str]:
    """The names of the fields of all classes that a user's file fills."""
    fields: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for module in modules:
        for node in module:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {_name(base) for base in node.bases}
                fields[node.name] = {
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign)
                    and isinstance(one.target, ast.Name)
                    and not one.target.id.startswith("_")
                    and "ClassVar" not in ast.unparse(one.annotation)
                }
    tables = {"ConfigTable"}
    while derived := {name for name, above in bases.items() if above & tables} - tables:
        tables |= derived
    return set().union(*(fields[name] for name in tables))


def count_grader_parameters() -> int:
    """The parameters of all grader types that ship, ``name`` not counted."""
    from adjudge.graders.registry import SHIPPED, list_parameters, load_grader_class

    return sum(len(list_parameters(load_grader_class(name))) for name in SHIPPED)


def count_command_options() -> int:
    """The options of all commands of both packages, ``--help`` not counted."""
    from typer.main import get_command

    from adjudge.cli.main import command_line

    def count(command: Any) -> int:
        command = command.load() if hasattr(command, "load") else command
        inside = getattr(command, "commands", {}).values()
        return sum(map(count, inside)) or sum(
            one.param_type_name == "option" for one in command.params
        )

    return count(get_command(command_line()))


def count_settings(root: Path, modules: Iterable[Nodes]) -> dict[str, int]:
    """What a user can set, by where it is set."""
    sys.path[:0] = [str(root / folder) for folder in PACKAGES]  # before what is installed
    found = {
        "table_keys": len(find_table_keys(modules)),
        "grader_parameters": count_grader_parameters(),
        "command_options": count_command_options(),
    }
    return {"settings": sum(found.values()), **found}


def take_measures(root: Path = ROOT) -> dict[str, int]:
    """All measures of a checkout by the names that ``size.toml`` has for them, and the files."""
    sizes = {
        "core": total(measure(root / "src").values()),
        "lab": total(measure(root / "lab/src").values()),
        "tests": total(measure(root / "tests", root / "lab/tests").values()),
        "benchmarks": total(measure(root / "benchmarks").values()),
        "examples": total(measure(root / "examples").values()),
    }
    paths = [path for folder in PACKAGES for path in sorted((root / folder).rglob("*.py"))]
    modules = [list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths]
    refusing = [read_refusals(module) for module in modules]
    raises = [module.raised["ConfigError"] for module in refusing]
    refusals = count_refusals(refusing)
    core, river = sizes["core"].files, total(map(measure_file, find_river(root)))
    return {
        **{f"{name}_code": size.code for name, size in sizes.items()},
        "river_code": river.code,
        "river_files": river.files,
        "web": sizes["core"].web + sizes["lab"].web,
        **count_settings(root, modules),
        "core_raises": sum(raises[:core]),
        "raises": sum(raises),
        "core_refusals": sum(refusals[:core]),
        "refusals": sum(refusals),
        **{f"{name}_files": size.files for name, size in sizes.items()},
    }


def check(measures: Mapping[str, int], ceilings: Mapping[str, int]) -> bool:
    """Print each measure beside its ceiling, if it has one; whether none is above."""
    print(f"{'measure':<20}{'now':>10}{'ceiling':>10}")
    for name, number in measures.items():
        ceiling = f"{ceilings[name]:,}" if name in ceilings else "none"
        print(f"{name:<20}{number:>10,}{ceiling:>10}")
    above = {name: measures[name] - most for name, most in ceilings.items()}
    for name, difference in sorted(above.items(), key=itemgetter(1)):
        if difference < 0:
            print(f"{name}: the ceiling can be lowered to {measures[name]}")
        elif difference > 0:
            print(f"{name}: is {difference:,} above the ceiling {ceilings[name]:,}")
    return max(above.values()) <= 0


def print_table(rooms: Mapping[str, Size]) -> None:
    """A row for each room, one for each package, and one for the river."""
    width = max(map(len, rooms)) + 2
    print(f"{'room':<{width}}" + "".join(f"{name:>15}" for name in asdict(Size())))
    rows: list[tuple[str, Size]] = []
    for package, of_package in groupby(rooms.items(), lambda room: room[0].partition(".")[0]):
        found = list(of_package)
        rows += [*found, (f"= {package}", total(size for _, size in found))]
    river = total(map(measure_file, find_river()))
    for name, size in [*rows, ("= all", total(rooms.values())), ("river", river)]:
        print(f"{name:<{width}}" + "".join(f"{one:>15,}" for one in asdict(size).values()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or compare with the ceilings."""
    gc.disable()  # it would look at millions of nodes again and again, none of which is garbage
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail above benchmarks/size.toml")
    if parser.parse_args(arguments).check:
        ceilings = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))["ceilings"]
        sys.exit(0 if check(take_measures(), ceilings) else 1)
    print_table(measure(*(ROOT / one for one in PACKAGES)))


if __name__ == "__main__":
    main()
