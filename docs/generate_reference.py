"""Write the pages that the code knows: graders, commands; and the tables of other pages.

    python docs/generate_reference.py [--check]

A grader's section is its docstring as Markdown, and its parameters as a table. A command's section
is its first sentence, its example and a table of its options. The tables of other pages are written
between their markers (``made_tables.py``).
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from docstrings import to_markdown
from made_tables import TABLES, compact_table, toml_text, words_of

from adjudge.cli.graders import (
    SHARED_PARAMETERS,
    describe,
    range_text,
    shipped_families,
)
from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS, LAB_COMMANDS, command_line

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

This page lists every command with its options. `adjudge COMMAND --help` says more. An empty default
is "off" or "none". Where a command has `--json`, it prints the result as JSON; `--quiet` (`-q`)
shows no progress bar. The tables leave these two out. These commands need the package
`adjudge-lab`: {_LAB}.

All commands have the same exit codes: 0 done; 1 a threshold was missed, or something was found;
2 bad input; 3 a judge was unavailable; 4 the budget is spent; 130 stopped by Ctrl-C; 143 stopped by
SIGTERM. [Files in and out](grading.md) has those of `grade` in full.

This page is made from the code by `{COMMAND}`.
"""


def render_graders() -> str:
    """The Markdown of the page of graders."""
    shared = _parameter_table(
        {"name": name, "default": default, "meaning": meaning}
        for name, (default, meaning) in SHARED_PARAMETERS.items()
    )
    parts = [_GRADERS_INTRODUCTION.format(shared=shared)]
    for family, names in shipped_families().items():
        parts.append(f"## {family}\n")
        parts += [f"{words}\n" for words in [_FAMILY_WORDS.get(family)] if words]
        parts += [part for name in names for part in _grader_section(name)]
    return "\n".join(parts)


def _grader_section(name: str) -> Iterator[str]:
    one = describe(name)
    yield f"### {name}\n"
    reach = range_text(one) or "ranks, 1 is best"
    yield f"*{one['mode']}, {one['role']}, {reach}*\n"
    yield to_markdown(one["doc"], examples=False) + "\n"
    own = [parameter for parameter in one["parameters"] if not _is_shared(parameter)]
    if own:
        yield _parameter_table(own) + "\n"


def _parameter_table(parameters: Iterable[dict[str, Any]]) -> str:
    rows = (
        (f"`{one['name']}`", _default(one), words_of(one.get("meaning", "")))
        for one in parameters
    )  # fmt: skip
    return compact_table(("parameter", "default", "meaning"), *rows)


def _is_shared(parameter: dict[str, Any]) -> bool:
    shared = SHARED_PARAMETERS.get(parameter["name"])
    return shared == (parameter.get("default"), parameter.get("meaning"))


def _default(parameter: dict[str, Any]) -> str:
    if parameter.get("required"):
        return "required"
    value = parameter["default"]
    return "–" if value is None or value in ("", "()") else f"`{toml_text(value)}`"


def render_commands() -> str:
    """The Markdown of the page of commands."""
    parts = [_CLI_INTRODUCTION]
    root: Any = typer.main.get_command(command_line())
    sections: dict[str, list[str]] = {}
    for name in (*CORE_COMMANDS, *LAB_COMMANDS):
        group = name.rpartition(".")[0]
        listed = CORE_COMMANDS.get(name) or CORE_GROUPS.get(group)
        names = sections.setdefault(listed.heading if listed else "Lab", [])
        names += [name] if name not in names else []
    for section, names in sections.items():
        parts.append(f"## {section}\n")
        parts += [part for name in names for part in _command_section(root, name.split("."))]
    return "\n".join(parts)


def _command_section(root: Any, words: list[str]) -> Iterator[str]:
    command, path = root, ""
    for word in words:
        command = command.commands[word]
        command = command.load() if hasattr(command, "load") else command
        path = f"{path} {word}"
    if hasattr(command, "commands"):
        for word in command.commands:
            yield from _command_section(root, [*words, word])
        return
    help_text = textwrap.dedent(command.help or "")
    example = re.search(r"^Example: (.+?)$", help_text, re.MULTILINE)
    yield f"### adjudge{path}\n"
    yield help_text.strip().splitlines()[0] + (f" `{example[1]}`" if example else "") + "\n"
    shown = [one for one in command.params if not one.hidden and not _EVERYWHERE & {*one.opts}]
    yield compact_table(("option", "default", "meaning"), *map(_option_row, shown)) + "\n"


_EVERYWHERE = {"--help", "--json", "--quiet"}
_DEFAULT = re.compile(r" \[default: ((?:[^\[\]]|\[\w+\])*)\]")


def _option_row(one: Any) -> tuple[str, str, str]:
    value = one.metavar or _allowed(one)
    names = [value or one.name.upper() + ("…" if one.nargs != 1 else "")]
    if one.param_type_name == "option":
        names = sorted((*one.opts, *one.secondary_opts), key=len, reverse=True)
        names[0] = f"{names[0]} {value}".strip()
    text = one.help or ""
    default = "required" if one.required else ""
    if stated := _DEFAULT.search(text):
        text, default = text.replace(stated[0], ""), stated[1]
    elif one.show_default and one.default not in (None, "", False, [], ()):
        default = f"`{getattr(one.default, 'value', one.default)}`"
    return ", ".join(f"`{name}`" for name in names), default, text


def _allowed(one: Any) -> str:
    """The words that an option takes, where they are few."""
    kind = one.type_descriptor.annotation
    return "|".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ""


PAGES = {"grader-reference.md": render_graders, "cli.md": render_commands}


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
