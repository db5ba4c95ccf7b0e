"""The Python code in a response: its fenced blocks, the program that they make, and its syntax.

Nothing is executed. One block is what the tests call, or the program; of the others and of a
prelude that program gets what it uses and does not define itself.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

from adjudge.engine.processes import get_pool
from adjudge.engine.worker import WorkerPhase
from adjudge.errors import CandidateLimitExceeded, ErrorKind
from adjudge.graders.base import NO_FINAL_TEXT, ParametricRule, final_response
from adjudge.graders.code.analysis import CHANGES, find_root_name, parse_python, without_warnings
from adjudge.stats import collect
from adjudge.types import GraderScore

NO_CODE = "no Python code in the response"
_MAX_CODE = 1 << 20

_PYTHON = frozenset({"python", "python3", "py", "py3"})
_INLINE_CHARS = 20_000
"""About 50 ms of parsing; longer text goes to a worker process."""
_PARSE_DEADLINE_S = 30.0

_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"),
    *("statistics", "itertools", "functools", "operator", "io", "sys", "json", "typing"),
)
"""What LeetCode and the graders of APPS and LiveCodeBench import for every solution."""

# What can hold a fence inside of code is a string in three quotes.
_QUOTES = re.compile(r"""\\.|#.*|(?P<long>\"{3}|'{3})|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?""")
_LONG_END = {quotes: re.compile(rf"\\.|({quotes})", re.DOTALL) for quotes in ('"""', "'''")}


def split_fenced_blocks(text: str) -> list[tuple[str, str]]:
    r"""The fenced code blocks of Markdown ``text`` as (language, code), in order, in linear time.

    As CommonMark has it: backticks or tildes, at least three, closed by at least as many of the
    same, or by the end of the text. Any indentation is allowed, and removed from the code. In
    Python a fence inside a docstring closes nothing, if the docstring ends.

    >>> split_fenced_blocks("Here:\n```Python\nx = 1\n```\nand ~~~ not")
    [('python', 'x = 1\n')]
    """
    blocks: list[tuple[str, str]] = []
    lines = text.splitlines(keepends=True)
    code: list[str] = []
    fence, indent, language, quotes = "", 0, "", ""
    inner: tuple[int, int] | None = None  # a fence in a string: its line, and the lines before it
    at = 0
    while at < len(lines) or inner:
        if inner and at == len(lines):  # the string did not end, so the fence closed the block
            at, kept = inner
            blocks.append((language, "".join(code[:kept])))
            fence, code, quotes, inner = "", [], "", None
            continue
        line = lines[at]
        at += 1
        stripped = line.strip()
        if not fence:
            fence = _opening(stripped)
            if fence:
                indent = len(line) - len(line.lstrip())
                info = stripped[len(fence) :].split(maxsplit=1)
                language = info[0].lower() if info else ""
            continue
        if len(stripped) >= len(fence) and not stripped.strip(fence[0]):
            if not quotes:
                blocks.append((language, "".join(code)))
                fence, code, inner = "", [], None
                continue
            inner = inner or (at, len(code))
        code.append(line[min(indent, len(line) - len(line.lstrip(" \t"))) :])
        if language in _PYTHON or not language:
            quotes = _open_quotes(line, quotes)
            inner = inner if quotes else None
    if fence:
        blocks.append((language, "".join(code)))
    return blocks


def _opening(line: str) -> str:
    for sign in "`~":
        if line.startswith(sign * 3):
            rest = line.lstrip(sign)
            return "" if sign == "`" and "`" in rest else sign * (len(line) - len(rest))
    return ""


def _open_quotes(line: str, quotes: str) -> str:
    """The three quotes of a string that a line of code leaves open; ``quotes`` are open before."""
    at = 0
    while True:
        if quotes:
            end = next((one for one in _LONG_END[quotes].finditer(line, at) if one[1]), None)
            if end is None:
                return quotes
            at, quotes = end.end(), ""
        start = next((one for one in _QUOTES.finditer(line, at) if one["long"]), None)
        if start is None:
            return ""
        at, quotes = start.end(), start["long"]


def require_code_text(response: str) -> str:
    """The final text, where code is looked for.

    Raises :class:`~adjudge.errors.CandidateLimitExceeded` without one, and for more than 2**20
    characters.
    """
    text = final_response(response)
    if text is None:
        raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, NO_FINAL_TEXT)
    if len(text) > _MAX_CODE:
        message = f"the response is longer than {_MAX_CODE} characters"
        raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
    return text


async def extract_python(text: str) -> list[str]:
    """The Python code in ``text``, a source for each block; empty when no code is found.

    Blocks marked as Python; where there are none, blocks without a language; where there are no
    blocks at all, the whole text if it is code (:func:`looks_like_code`).
    """
    found = await _find_blocks(text)
    return [code for marked, code in found if marked] or [code for _, code in found]


async def _find_blocks(text: str) -> list[tuple[bool, str]]:
    """The blocks that may be Python, each with whether it is marked so."""
    found = split_fenced_blocks(text)
    if not found and text.strip() and await _in_place_or_worker("looks_like_code", text):
        found = [("py", text)]
    may_be = [(language in _PYTHON, code) for language, code in found if language in {*_PYTHON, ""}]
    return [(marked, code) for marked, code in may_be if code.strip()]


async def find_syntax_fault(source: str) -> str:
    """Why ``source`` is not Python for this interpreter; '' when it is. Nothing is executed.

    Long sources are parsed in a worker process and may raise ``GradingFailure`` as its calls do,
    :class:`~adjudge.errors.CandidateLimitExceeded` where it takes too long.
    """
    fault: str = await _in_place_or_worker("parse_fault", source)
    return fault


async def extract_solution(text: str, wanted: Collection[str]) -> str:
    """The program of all Python blocks in ``text``, '' without one; raises as its parsing does.

    The last block that defines one of the ``wanted`` names is the program (a class ``Solution``
    defines its methods); where nothing is wanted, the last block that reads standard input, or else
    does something. From the other blocks and from the prelude come the statements that bind or
    change a name which the program, or what it was given, uses and does not bind. A function or
    class that a later block defines again is the later one.
    """
    found = await _find_blocks(text)
    if not found:
        return ""
    source: str = await _in_place_or_worker("join_blocks", json.dumps([found, [*wanted]]))
    return source


def looks_like_code(source: str) -> bool:
    """Whether ``source`` parses and does something: prose of one word parses too.

    >>> looks_like_code("print(1)"), looks_like_code("Paris"), looks_like_code("I do not know.")
    (True, False, False)
    """
    tree = parse_python(source)
    return isinstance(tree, ast.Module) and any(not _idle(statement) for statement in tree.body)


def parse_fault(source: str) -> str:
    """:func:`find_syntax_fault` at once, whatever the length."""
    tree = parse_python(source)
    return tree if isinstance(tree, str) else ""


def _idle(statement: ast.stmt) -> bool:
    """Whether a statement only names, lists or adds up things, as a word or a number does."""
    values = ast.Name | ast.Constant | ast.Attribute | ast.BinOp | ast.UnaryOp | ast.Compare
    lists = ast.Tuple | ast.List | ast.Set | ast.Dict
    return isinstance(statement, ast.Expr) and isinstance(statement.value, values | lists)


async def _in_place_or_worker(
    function: Literal["looks_like_code", "parse_fault", "join_blocks"], text: str
) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"not Unicode text: {error.reason}" if function == "parse_fault" else False
    if len(text) <= _INLINE_CHARS:
        return globals()[function](text)
    return await get_pool().call(
        f"{__name__}:{function}", text, deadline_s=_PARSE_DEADLINE_S, phase=WorkerPhase.CANDIDATE
    )


@dataclass
class _Part:
    """Statements at the top of a block that share no line with others."""

    text: str
    end: int = 0
    names: set[str] = field(default_factory=set)  # that they bind or change
    function: str = ""  # or class that they define


class _Block:
    """A block by its parts; it has none where it does not parse."""

    def __init__(self, source: str) -> None:
        self.source = source.replace("\r\n", "\n").replace("\r", "\n")
        self.parts: list[_Part] = []
        self.future: list[str] = []
        self.defined: set[str] = set()
        tree = parse_python(self.source)
        self.parses = isinstance(tree, ast.Module) and find_names(self.source) is not None
        self.acts = not self.parses and not _SHELL.match(self.source)
        if isinstance(tree, ast.Module) and self.parses:
            lines = self.source.split("\n")
            for statement in tree.body:
                self._add(statement, lines)

    def _add(self, statement: ast.stmt, lines: list[str]) -> None:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            self.future.append(ast.unparse(statement))
            return
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(one.lineno for one in decorators)])
        last = statement.end_lineno or first
        if self.parts and first <= self.parts[-1].end:
            part = self.parts[-1]
            part.text += "".join(f"\n{line}" for line in lines[part.end : last])
        else:
            part = _Part("\n".join(lines[first - 1 : last]))
            self.parts.append(part)
        part.end = last
        part.names |= _given_names(statement)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            part.function = statement.name
            self.defined.add(statement.name)
            if isinstance(statement, ast.ClassDef) and statement.name == "Solution":
                self.defined |= {getattr(one, "name", "") for one in statement.body}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            self.defined |= part.names
        elif not isinstance(statement, ast.Import | ast.ImportFrom) and not _idle(statement):
            self.acts = True

    def defines(self, wanted: Collection[str]) -> bool:
        """Whether it defines one of the names, or would if it parsed."""
        if self.parses:
            return not self.defined.isdisjoint(wanted)
        return any(one in wanted for one in _DEFINITION.findall(self.source))


_SHELL = re.compile(r"\s*(?:>>>|[$%!]|pip |python)")
_DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_READS = re.compile(r"\binput\s*\(|stdin|\bopen\(0|\bfileinput\b")


_CHANGES = CHANGES | {"setrecursionlimit"}


def _given_names(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or changes the value of."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names |= _public_names(node.module)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            if not isinstance(node.ctx, ast.Load):
                names.add(find_root_name(node))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CHANGES:
            names.add(find_root_name(node.func))
    return names - {""}


def find_names(source: str) -> tuple[set[str], set[str]] | None:
    """The global names that ``source`` binds, and those that it uses and does not bind.

    ``None`` for what is no Python.
    """
    try:
        with without_warnings():
            top = symtable.symtable(source, "code", "exec")
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return None
    bound: set[str] = set()
    used: set[str] = set()
    tables = [top]
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
                    bound.add(symbol.get_name())
                if symbol.is_referenced():
                    used.add(symbol.get_name())
    return bound, used - bound


def join_blocks(given: str) -> str:
    """:func:`extract_solution` at once, of blocks and names as JSON text."""
    found, wanted = json.loads(given)
    blocks = [(marked, _Block(source)) for marked, source in found]
    marked = [block for is_marked, block in blocks if is_marked]
    pool = marked or [block for _, block in blocks]
    if not any(block.defines(wanted) for block in pool):
        pool = [block for _, block in blocks] if wanted else pool
    program = _choose_program(pool, wanted)
    if not program.parses:
        return program.source
    later = pool[pool.index(program) + 1 :]
    again = {part.function: part for block in later for part in block.parts if part.function}
    own = [again.get(part.function, part) for part in program.parts]
    body = program.source if own == program.parts else "\n".join(part.text for part in own)
    bound, used = find_names(body) or (set(), set())
    others = [part for block in pool if block is not program for part in block.parts]
    added = _add_parts(others, bound, used | {*wanted})
    if not added:
        return body
    future = [line for block in pool for line in block.future]
    return "\n".join([*future, *added, *(part.text for part in own)])


def _choose_program(blocks: list[_Block], wanted: Collection[str]) -> _Block:
    defining = [block for block in blocks if block.defines(wanted)]
    acting = [block for block in blocks if block.acts]
    reading = [block for block in acting if _READS.search(block.source)]
    return (defining or reading or acting or blocks)[-1]


def _add_parts(others: list[_Part], bound: set[str], needed: set[str]) -> list[str]:
    """What a program that binds ``bound`` gets of the other parts and of the prelude."""
    givers = collect((name, at) for at, part in enumerate(others) for name in part.names)
    offered = _offers()
    taken: set[int] = set()
    lines: set[str] = set()
    asked: set[str] = set(bound)
    rest = [*needed]
    while rest:
        name = rest.pop()
        if name in asked:
            continue
        asked.add(name)
        fresh = {others[at].text for at in givers.get(name, ()) if at not in taken}
        taken.update(givers.get(name, ()))
        if name not in givers and name in offered and not hasattr(builtins, name):
            fresh.add(offered[name])
            lines.add(offered[name])
        for text in fresh:
            rest += (find_names(text) or (set(), set()))[1]
    ordered = [line for line in dict.fromkeys(offered.values()) if line in lines]
    return [*ordered, *(others[at].text for at in sorted(taken))]


@cache
def _offers() -> dict[str, str]:
    """The statement of the prelude that binds a name, by the name; a module wins over a member."""
    # All names of a module would hide Python's own (`math.pow`).
    offers = {name: f"from {one} import {name}" for one in _MODULES for name in _public_names(one)}
    return offers | {one: f"import {one}" for one in _MODULES}


@cache
def _public_names(module: str | None) -> frozenset[str]:
    """What ``from module import *`` binds, of a module of the prelude."""
    if module not in _MODULES:
        return frozenset()
    found = import_module(module)
    return frozenset(getattr(found, "__all__", [one for one in dir(found) if one[0] != "_"]))


@dataclass(eq=False, repr=False)
class SyntaxCheckGrader(ParametricRule):
    r"""1 when all Python code in the response parses, else 0.

    Field: ``response``. Code is what fenced blocks marked as Python hold; without such blocks,
    those without a language; without any block, the whole text where it parses and does more than
    name things. Nothing runs. The grammar is that of the running interpreter. No code (comments
    alone are no code), an unclosed ``<think>`` and more than 2**20 characters are 0 with ``cause =
    "candidate"``.

    >>> import asyncio
    >>> response = "```python\nprint('a'\n```"
    >>> asyncio.run(SyntaxCheckGrader().aevaluate(response)).score
    0.0
    """

    type_name = "code_syntax"
    score_range = (0.0, 1.0)

    async def aevaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        try:
            found = await extract_python(require_code_text(response))
            sources = [source for source in found if _has_statements(source)]
            faults = [fault for source in sources if (fault := await find_syntax_fault(source))]
        except CandidateLimitExceeded as excess:
            return self._candidate_fault(str(excess), blocks=0)
        if not sources:
            return self._candidate_fault(NO_CODE, blocks=0)
        reason = faults[0] if faults else "all code parses"
        return self._score(float(not faults), reason, blocks=len(sources), faulty=len(faults))


def _has_statements(source: str) -> bool:
    """Whether there is more than comments."""
    lines = (line.strip() for line in source.splitlines())
    return any(line and not line.startswith("#") for line in lines)
