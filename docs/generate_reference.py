"""Write ``docs/grader-reference.md`` and ``docs/cli.md`` from the registry and the help pages.

    python docs/generate_reference.py [--check]

A grader's section is its docstring as Markdown, and its parameters as a table. A command's section
is what ``--help`` prints in a terminal of 80 columns. The tables of :data:`TABLES` are written into
pages that are otherwise written by hand.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import typer
from docstrings import to_markdown
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from adjudge.cli.graders import SHARED_PARAMETERS, describe, range_text, shipped_families
from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS, command_line
from adjudge.cli.plugins import LAB_COMMANDS
from adjudge.config_tables import ConfigFile, ConfigTable
from adjudge.judges.table import JudgeTable
from adjudge.rewards.spec import (
    GraderEntry,
    MissingSettings,
    PanelSettings,
    RewardSettings,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMAND = "python docs/generate_reference.py"

_LAB = ", ".join(f"`{name.replace('.', ' ')}`" for name in LAB_COMMANDS)

_GRADERS_INTRODUCTION = f"""\
# Grader reference

Every grader that ships: what it reads, its formula, its parameters. [Choose a grader](graders.md)
helps to find one. `adjudge graders TYPE` prints the same in a terminal with the types of parameters
and the judge's prompt; `adjudge graders --json` has all as data.

* Under each name: mode, role, range. A pointwise grader scores one response, a listwise one ranks a
  group. A `score` enters the average, a `penalty` is added. `by spec`: parameters set the range.
* **Field**: a column that the grader reads. The spec's `mapper` names another column. A sample
  without a needed field, or with one of another type, has no score (`invalid_input`).
* The keys of all graders (`name`, `weight`, `scope`, …) are in [the reward spec](spec.md).
* These parameters have one meaning and are listed again only where it differs:

{{shared}}

This page is made from the code by `{COMMAND}`.
"""

_FAMILY_WORDS = {
    "Tool calls": "They read `messages` in OpenAI's format. Calls without a result and results "
    "without a call are counted as `unanswered_calls` and `orphan_results`.",
    "Answers": "A `<think>` that is never closed leaves no final text, which scores 0.",
    "Judges": "What a response answers is `query`, else the conversation before the response in "
    "`messages`, else `prompt`. Where a type does not say otherwise, a response that is empty or "
    "never ended its thinking gets the lowest score, marked as the candidate's fault, and no judge "
    "is asked. A call that fails leaves the score missing, with the call's kind.",
}

_CLI_INTRODUCTION = f"""\
# Commands

What `--help` of each command prints. All commands have the same exit codes: 0 done; 1 a threshold
was missed, or something was found; 2 bad input; 3 judge unavailable; 4 the budget is spent; 130
stopped by Ctrl-C; 143 stopped by SIGTERM. These need the package `adjudge-lab`: {_LAB}.

This page is made from the code by `{COMMAND}`.
"""


def render_graders() -> str:
    """The Markdown of the page of graders."""
    rows = [
        f"| `{name}` | {_default({'default': default})} | {_cell(meaning)} |"
        for name, (default, meaning) in SHARED_PARAMETERS.items()
    ]
    shared = "\n".join(("| parameter | default | meaning |", _RULE, *rows))
    parts = [_GRADERS_INTRODUCTION.format(shared=shared)]
    for family, names in shipped_families().items():
        parts.append(f"## {family}\n")
        parts += [f"{words}\n" for words in [_FAMILY_WORDS.get(family)] if words]
        parts += [part for name in names for part in _grader_section(name)]
    return "\n".join(parts)


_RULE = "|---|---|---|"


def _grader_section(name: str) -> Iterator[str]:
    one = describe(name)
    yield f"### {name}\n"
    reach = range_text(one) or "ranks, 1 is best"
    yield f"*{one['mode']}, {one['role']}, {reach}*\n"
    yield to_markdown(one["doc"], examples=False) + "\n"
    own = [parameter for parameter in one["parameters"] if not _is_shared(parameter)]
    if own:
        yield f"| parameter | default | meaning |\n{_RULE}"
        for parameter in own:
            meaning = _cell(parameter.get("meaning", ""))
            yield f"| `{parameter['name']}` | {_default(parameter)} | {meaning} |"
        yield ""


def _is_shared(parameter: dict[str, Any]) -> bool:
    shared = SHARED_PARAMETERS.get(parameter["name"])
    return shared == (parameter.get("default"), parameter.get("meaning"))


def _default(parameter: dict[str, Any]) -> str:
    if parameter.get("required"):
        return "required"
    value = parameter["default"]
    return "–" if value is None or value in ("", "()") else f"`{_toml(value)}`"


def _cell(text: str) -> str:
    """A docstring's words in a cell of a table."""
    return re.sub(r"(?<!\\)\|", r"\\|", to_markdown(text, examples=False))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"')


def render_keys(*models: type[BaseModel]) -> str:
    """The keys of settings classes: each key that has a line under it in its class."""
    rows = []
    for model in models:
        for name, meaning in _documented_fields(model).items():
            field = model.model_fields[name]
            rows.append(f"| `{field.alias or name}` | {_key_default(field)} | {_cell(meaning)} |")
    return "\n".join(("| key | default | meaning |", _RULE, *rows))


def _documented_fields(model: type[BaseModel]) -> dict[str, str]:
    """The line under each field of a class, and of the settings from which it derives."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, ConfigTable) or cls in (ConfigTable, ConfigFile):
            continue
        [body] = [
            one.body
            for one in ast.parse(inspect.getsource(cls)).body
            if isinstance(one, ast.ClassDef)
        ]
        for field, line in itertools.pairwise(body):
            match field, line:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = " ".join(words.split())
    return found


def _key_default(field: FieldInfo) -> str:
    kind = _KINDS.get(next(iter(_plain_types(field.annotation))), "")
    if field.is_required():
        return f"required, {kind}".rstrip(", ")
    value = field.default
    if value is None or value == {} or isinstance(value, BaseModel):
        return kind or "–"
    return f"`{_toml(value)}`"


_KINDS = {
    str: "text", int: "whole number", float: "number", bool: "true, false", list: "list",
    dict: "table",
}  # fmt: skip


def _plain_types(annotation: Any) -> list[Any]:
    """The types of an annotation's alternatives, tables of settings as ``dict``."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [one for part in typing.get_args(annotation) for one in _plain_types(part)]
    if origin is Literal:
        return [type(typing.get_args(annotation)[0])]
    plain = origin or annotation
    return [dict if isinstance(plain, type) and issubclass(plain, BaseModel) else plain]


def render_commands() -> str:
    """The Markdown of the page of commands."""
    parts = [_CLI_INTRODUCTION]
    os.environ["COLUMNS"] = "80"
    program = command_line(_lab_commands())
    sections: dict[str, list[str]] = {}
    for name in (*CORE_COMMANDS, *LAB_COMMANDS):
        group = name.rpartition(".")[0]
        listed = CORE_COMMANDS.get(name) or CORE_GROUPS.get(group)
        names = sections.setdefault(listed.heading if listed else "Lab", [])
        names += [one for one in (group, name) if one and one not in names]
    for section, names in sections.items():
        parts.append(f"## {section}\n")
        for name in names:
            words = name.replace(".", " ")
            parts.append(f"### adjudge {words}\n\n```\n{_help(program, words)}```\n")
    return "\n".join(parts)


def _lab_commands() -> dict[str, str]:
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(project["project"]["entry-points"]["adjudge.commands"])


def _help(program: typer.Typer, words: str) -> str:
    done = CliRunner().invoke(program, [*words.split(), "--help"], prog_name="adjudge")
    if done.exit_code:
        sys.exit(f"adjudge {words} --help: {done.output}")
    return re.sub(r"[ \t]+$", "", done.output, flags=re.MULTILINE)


PAGES = {"grader-reference.md": render_graders, "cli.md": render_commands}
TABLES = {
    "spec.md": {
        "keys of a grader": lambda: render_keys(GraderEntry),
        "keys of a panel": lambda: render_keys(PanelSettings),
        "keys of a reward": lambda: render_keys(RewardSettings),
        "keys of missing": lambda: render_keys(MissingSettings),
        "keys of a judge": lambda: render_keys(JudgeTable),
    },
}
"""The tables in pages that are written by hand: each is between ``made`` and ``end of``."""


def _with_tables(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    for name, render in tables.items():
        first, last = f"<!-- made: {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(first)
        text = f"{before}{first}\n{render()}\n\n{last}{rest.partition(last)[2]}"
    return text


def main() -> None:
    """Write the pages, or say which is old."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where a page is old")
    check = parser.parse_args().check
    pages = {name: render() for name, render in PAGES.items()}
    for name, tables in TABLES.items():
        pages[name] = _with_tables((DOCS / name).read_text(encoding="utf-8"), tables)
    for name, text in pages.items():
        page = DOCS / name
        if not check:
            page.write_text(text, encoding="utf-8")
        elif not page.is_file() or page.read_text(encoding="utf-8") != text:
            sys.exit(f"docs/{name} is old: run {COMMAND}")


if __name__ == "__main__":
    main()
