"""How large the house is: files, code lines, statements and documentation, room by room.

    python benchmarks/size.py [--json] [FOLDER …]

A code line holds at least one token that is neither comment nor docstring. Statements are those of
the syntax tree, docstrings not counted: no formatting changes them. Documentation is the lines of
docstrings and comments. FOLDER is a folder of packages [default: src lab/src].
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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

    def add(self, other: Size) -> None:
        """Count another room's files as this one's."""
        self.files += other.files
        self.code += other.code
        self.statements += other.statements
        self.documentation += other.documentation
        self.longest = max(self.longest, other.longest)
        self.small += other.small


def measure_file(path: Path) -> Size:
    """The size of one module."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstrings: set[int] = set()
    statements = 0
    for node in ast.walk(tree):
        statements += isinstance(node, ast.stmt)
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            first = node.body[0]
            docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
            statements -= 1
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
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


def measure(folder: Path) -> dict[str, Size]:
    """The sizes of all rooms of the packages in ``folder``, by dotted name."""
    rooms: dict[str, Size] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        room = ".".join(parts[:2]) if len(parts) > 2 else parts[0]
        rooms.setdefault(room, Size()).add(measure_file(path))
    return rooms


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("src"), Path("lab/src")])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rooms: dict[str, Size] = {}
    for folder in options.folders:
        rooms |= measure(folder)
    totals: dict[str, Size] = {}
    for room, size in rooms.items():
        totals.setdefault(room.partition(".")[0], Size()).add(size)
    total = Size()
    for size in totals.values():
        total.add(size)
    if options.json:
        everything = {**rooms, **{f"{name} (all)": size for name, size in totals.items()}}
        print(json.dumps({name: asdict(size) for name, size in everything.items()}, indent=2))
        return
    columns = list(asdict(total))
    width = max(map(len, rooms)) + 2
    print(f"{'room':<{width}}" + "".join(f"{name:>15}" for name in columns))
    sections: list[tuple[str, Size]] = []
    for name, size in totals.items():
        sections += [(room, one) for room, one in rooms.items() if room.partition(".")[0] == name]
        sections.append((f"= {name}", size))
    for name, size in [*sections, ("= all", total)]:
        values = Counter(asdict(size))
        print(f"{name:<{width}}" + "".join(f"{values[column]:>15,}" for column in columns))


if __name__ == "__main__":
    main()
