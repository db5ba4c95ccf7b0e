"""Write ``docs/errors.md``: each message of a :class:`ConfigError`, its cause and its remedy.

    python docs/generate_errors.py [--check]

The messages are read from the source: the text that each ``raise ConfigError(…)`` is given, and
the texts of validators (``raise ValueError(…)`` in models of files), which become lines of one. A
message has the form ``where: key: what is wrong (found …; allowed …). What to do.``; the part after
the first sentence is the remedy. What varies stands as ``…``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "src" / "adjudge", ROOT / "lab" / "src" / "adjudge_lab")
PAGE = ROOT / "docs" / "errors.md"

_GAP = "\0"
_SHORTEST = 4
_MAKERS = ("ConfigError", "refuse", "validator")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")

_INTRODUCTION = """\
# Error messages

Every message about a file, a key or an option that adjudge prints before it stops, with its cause
and what to do. `…` stands for what varies: a file, a key, what was found, the command that installs
a missing package from where this copy came; – means that the cause says what must be written. The
exit code of all of them is 2. Failures of judges and graders while a run goes on are not here but
in [failures](failures.md).

This page is made from the source by `python docs/generate_errors.py`.
"""


@dataclass(frozen=True)
class Message:
    """One message as the source writes it, with a NUL character for what varies."""

    room: str
    template: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What a raised message must match."""
        parts = (re.escape(part) for part in self.template.split(_GAP))
        return re.compile(".*".join(parts), re.DOTALL)

    @property
    def shown(self) -> str:
        """The message as the page shows it."""
        return re.sub(r"…(?:\s*…)+", "…", self.template.replace(_GAP, "…")).strip()

    @property
    def parts(self) -> tuple[str, str]:
        """Cause and remedy."""
        first, *others = _SENTENCE_END.split(self.shown)
        return first.rstrip("."), " ".join(others).strip()


def find_messages() -> list[Message]:
    """All messages of the two packages, in the order of their rooms, each once."""
    found: dict[Message, None] = {}
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source.parent).with_suffix("").parts
            room = ".".join(parts[:2])
            for template in _templates_in(path.read_text(encoding="utf-8")):
                found[Message(room, template)] = None
    return list(found)


def _templates_in(text: str) -> Iterator[str]:
    if not any(word in text for word in _MAKERS):
        return
    nodes = list(ast.walk(ast.parse(text)))
    validators = {
        inner
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any("validator" in ast.unparse(one) for one in node.decorator_list)
        for inner in ast.walk(node)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in {"ConfigError", "refuse"} or (name == "ValueError" and node in validators):
                # `refuse(key, text)` of the models of files names the file before both.
                for template in _texts(node.args[-1]):
                    if _has_words(template):
                        yield template


def find_worded_lines(path: Path) -> set[int]:
    """Lines of calls that make a message; others pass on one that was made elsewhere."""
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ConfigError"
    ]
    return {
        line
        for call in calls
        if call.args and any(_has_words(template) for template in _texts(call.args[0]))
        for line in range(call.lineno, (call.end_lineno or call.lineno) + 1)
    }


def _has_words(template: str) -> bool:
    return len(template.replace(_GAP, "").strip(" :\n")) >= _SHORTEST


def _texts(node: ast.expr) -> Iterator[str]:
    """The templates that an expression can make; one for each branch of a condition."""
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=values):
            yield from _joined(values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from (a + b for a in _texts(left) for b in _texts(right))
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body)
            yield from _texts(orelse)
        case _:
            yield _GAP


def _joined(values: list[ast.expr]) -> Iterator[str]:
    texts = [""]
    for value in values:
        if isinstance(value, ast.Constant):
            texts = [text + str(value.value) for text in texts]
        else:
            texts = [text + _GAP for text in texts]
    yield from texts


def render_page(messages: list[Message]) -> str:
    """The page's Markdown."""
    lines = [_INTRODUCTION]
    room = ""
    for message in sorted(messages, key=lambda one: (one.room, one.shown)):
        if message.room != room:
            room = message.room
            lines += [f"\n## {room}\n", "| Cause | What to do |", "| --- | --- |"]
        cause, remedy = (_cell(part) for part in message.parts)
        lines.append(f"| {cause} | {remedy} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    safe = text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("${", "$\\{")
    return safe or "–"


def main() -> None:
    """Write the page, or say that it is old."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where the page is old")
    page = render_page(find_messages())
    if not parser.parse_args().check:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit("docs/errors.md is old: run python docs/generate_errors.py")


if __name__ == "__main__":
    main()
