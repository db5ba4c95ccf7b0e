"""``adjudge graders``: all grader types by family, or one type in full, its docstring as text."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adjudge.cli.console import clean, output, print_json
from adjudge.cli.options import JsonSummary
from adjudge.config import check_allowed
from adjudge.extensions import describe_package, find_entry_points
from adjudge.graders.base import GraderTraits, docstring_summary
from adjudge.graders.binding import list_fields
from adjudge.graders.registry import (
    GRADER_GROUP,
    SHIPPED,
    Parameter,
    load_grader_class,
    settable_parameters,
)
from adjudge.report.page import bold
from adjudge.report.table import Column, Table, styled
from adjudge.stats import collect
from adjudge.types import Role

if TYPE_CHECKING:
    from rich.console import Console

_FAMILIES = {
    "adjudge.graders.llm": "Judges",
    "adjudge.graders.rules.redundancy": "Tool calls",
    "adjudge.graders.rules.trajectory": "Tool calls",
    "adjudge.graders.rules.response_form": "Form",
    "adjudge.graders.ifeval": "Instructions",
    "adjudge.graders.verif": "Instructions",
    "adjudge.graders.answers": "Answers",
    "adjudge.graders.rules": "Answers",
    "adjudge.graders.code": "Code",
    "adjudge.graders.base": "Recorded",
}
"""The headings of the list, by the module of a type; the first that fits counts."""
SHARED_PARAMETERS: Mapping[str, tuple[Any, str]] = {
    "view": ("final", "``final`` reads what follows the thinking, ``full`` the whole response."),
    "truncated": ("judge", "``mask``: a response that was cut at its length limit has no score."),
    "language": ("en", "The language of the prompt, ``en`` or ``zh``."),
}
"""What these parameters mean, and their usual default, where a grader says nothing else."""


def graders(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show this type in full, or your own as 'module:name' [default: list all types]."
        ),
    ] = None,
    as_json: JsonSummary = False,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--try",
            metavar="REFERENCE ANSWER",
            help="With type answer: print how the answer compares, step by step.",
        ),
    ] = None,
) -> None:
    """List all graders: type, range, and whether each asks a judge.

    Example: adjudge graders action_loop

    A reward spec names the type, as in [[graders]] type = "action_loop". The parameters are keys of
    the same table of the spec. For a class or function of your own, write type = "my_module:name".
    Scores of one without a range count as they are; yours takes score_range = [low, high].
    Types of installed packages come last; they are imported when one is named.
    """
    if pair is not None:
        _print_tried(name, *pair, as_json)
        return
    described = {one: describe(one) for one in ([name] if name else SHIPPED)}
    if name is None:
        described |= {one: found for one, found in describe_installed() if one not in SHIPPED}
    if as_json:
        print_json(described)
    elif name is not None:
        _print_one(name, described[name])
    else:
        _print_all(described)


def _print_tried(name: str | None, reference: str, answer: str, as_json: bool) -> None:
    from adjudge.graders.answers.grader import try_answer  # noqa: PLC0415 (slow to load)

    check_allowed("--try", name or "answer", ["answer"], "belongs to another type")
    steps = asyncio.run(try_answer(reference, answer))
    if as_json:
        print_json(steps)
        return
    console = output()
    for step in [one for one in steps if one.islower()]:
        said = steps.pop(step)
        console.print(f"{step}: " + ", ".join(f"{one} {clean(text)}" for one, text in said.items()))
    rows = [[kind, *map(str, said.values())] for kind, said in steps.items()]
    console.print(Table(["type", "answer", "decision", "score"], rows, keep=("type", "decision")))


def describe(type_name: str) -> dict[str, Any]:
    """A grader type as plain data; raises :class:`ConfigError` for one that cannot be had."""
    cls = load_grader_class(type_name)
    traits = GraderTraits.of(cls)
    parameters = settable_parameters(type_name, cls)
    doc, _ = split_parameters(inspect.cleandoc(cls.__doc__ or ""))
    meanings = {name: meaning for name, (_, meaning) in SHARED_PARAMETERS.items()}
    for base in reversed(cls.__mro__):
        meanings |= split_parameters(inspect.cleandoc(base.__doc__ or ""))[1]
    return {
        "summary": docstring_summary(cls),
        "class": f"{cls.__module__}:{cls.__name__}",
        "role": str(traits.role),
        "range": list(traits.score_range) if traits.score_range else None,
        "mode": str(traits.mode),
        "asks_judge": any(parameter.is_judge for parameter in parameters),
        "fields": list_fields(type_name, cls),
        "parameters": [
            _describe_parameter(one, meanings.get(one.name))
            for one in parameters
            if not one.is_judge
        ],
        "doc": doc,
        "prompt": _shipped_prompt(type_name),
    }


def split_parameters(docstring: str) -> tuple[str, dict[str, str]]:
    r"""A docstring without its ``Args`` section, and what that says of each parameter.

    >>> split_parameters("Counts.\n\nArgs:\n    n: how many,\n        at most.\n\nSlow.")
    ('Counts.\n\nSlow.', {'n': 'how many, at most.'})
    """
    before, _, rest = docstring.partition("\nArgs:\n")
    section, _, after = rest.partition("\n\n")
    meanings: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if found := _ARGUMENT.match(line):
            name = found[1]
            meanings[name] = found[2]
        elif name:
            meanings[name] += f" {line.strip()}"
    return "\n\n".join(filter(None, (before.rstrip(), after.strip("\n")))), meanings


def _shipped_prompt(type_name: str) -> str | None:
    """The English prompt of a shipped type: its system message, a line of ``=``, the user's."""
    name = {"tournament": "pairwise"}.get(type_name, type_name)
    file = resources.files("adjudge.graders.llm").joinpath(f"prompts/{name}.en.txt")
    is_shipped = type_name in SHIPPED and file.is_file()
    return file.read_text(encoding="utf-8").strip() if is_shipped else None


def shipped_families() -> dict[str, list[str]]:
    """The shipped types under the headings of the list."""
    return collect((_family({"class": target}), name) for name, target in SHIPPED.items())


def describe_installed() -> Iterator[tuple[str, dict[str, Any]]]:
    """The grader types of installed packages; none is imported, so little is known of them."""
    for name, points in sorted(find_entry_points(GRADER_GROUP).items()):
        packages = " and ".join(map(describe_package, points))
        known = {"summary": f"From {packages}.", "class": points[0].value}
        unknown = ("role", "range", "mode", "asks_judge", "fields", "parameters", "doc", "prompt")
        yield name, {**known, **dict.fromkeys(unknown)}


def _describe_parameter(parameter: Parameter, meaning: str | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": parameter.name, "type": parameter.type_text}
    if parameter.required:
        shown["required"] = True
    else:
        default = parameter.default
        default = default.value if isinstance(default, Enum) else default
        plain = isinstance(default, str | int | float | bool | list | dict | None)
        shown["default"] = default if plain else str(default)
    return shown | ({"meaning": meaning} if meaning else {})


def range_text(described: dict[str, Any]) -> str:
    """A described type's range; empty for one without a scale."""
    if described["range"] is None:
        return "" if described["role"] != Role.SCORE else "by spec"
    low, high = ("∞" if end is None else f"{end:g}".replace("-", "−") for end in described["range"])
    return f"{'−' if low == '∞' else ''}{low} to {high}"


def _print_all(described: dict[str, dict[str, Any]]) -> None:
    families: dict[str, list[list[object]]] = {}
    for name, one in described.items():
        asks = "✓" if one["asks_judge"] else ""
        row = [styled(name, "name"), range_text(one), asks, plain_docstring(one["summary"])]
        families.setdefault(_family(one), []).append(row)
    rows: list[list[object]] = []
    for heading, members in families.items():
        rows += [[""], [bold(heading)], *members]
    columns = [Column("type", wrap=False), Column("range", wrap=False), Column("judge", "c"),
               Column("what it answers", "w")]  # fmt: skip
    console = output()
    answer = str(columns[-1].heading)
    console.print(Table(columns, rows, drop=("judge", "range"), keep=(answer,)))
    console.print(
        "\n[dim]judge ✓: asks a judge. range by spec: its parameters set it. Without a range "
        "scores count as they are. adjudge graders TYPE shows one in full.[/]"
    )


def _family(described: Mapping[str, Any]) -> str:
    module = described["class"].partition(":")[0]
    found = (heading for prefix, heading in _FAMILIES.items() if module.startswith(prefix))
    return next(found, "Packages")


def _print_one(name: str, one: dict[str, Any]) -> None:
    console = output()
    asks = ", asks a judge" if one["asks_judge"] else ""
    console.print(
        f"[bold cyan]{clean(name)}[/]  role {one['role']}, range {range_text(one)}{asks}\n"
    )
    if one["doc"]:
        _print_lines(console, reflow(plain_docstring(one["doc"])))
    if one["fields"] and not _NAMES_FIELDS.search(one["doc"]):
        console.print(f"\nFields: {clean(', '.join(one['fields']))}")
    if one["parameters"]:
        console.print()
        _print_lines(console, plain_docstring("\n".join(map(_parameter_line, one["parameters"]))))
    if one["prompt"]:
        console.print("\nThe prompt, in English (system message, =====, user message):\n")
        _print_lines(console, one["prompt"])


def _parameter_line(parameter: dict[str, Any]) -> str:
    default = "required" if parameter.get("required") else f"default {parameter['default']!r}"
    meaning = f": {parameter['meaning']}" if "meaning" in parameter else ""
    return f"* ``{parameter['name']}`` ({short_type_text(parameter['type'])}; {default}){meaning}"


def _print_lines(console: Console, text: str) -> None:
    for line in text.splitlines():
        console.print(clean(line))


def short_type_text(annotation: str) -> str:
    """A parameter's type without modules, a choice as its values.

    >>> short_type_text("Literal['all', 'each'] | adjudge.prompts.Language")
    "'all' | 'each' | Language"
    """
    choices = re.sub(r"Literal\[([^\]]*)\]", lambda one: one[1].replace(", ", " | "), annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", choices)


_ARGUMENT = re.compile(r"    (\w+)(?: \([^)]*\))?: (.*)")
_NAMES_FIELDS = re.compile(r"^Fields?:", re.MULTILINE)
_INLINE = re.compile(
    r"(?<!`)``(?!`)(?P<code>(?s:.+?))(?<!`)``(?!`)|:[a-z:]+:`(?P<short>~)?(?P<name>[^`]+)`"
)


def reflow(text: str) -> str:
    r"""``text`` with each paragraph and item in one line; examples and what is indented stay.

    >>> reflow("One\ntwo.\n\n* a\n  b\n\n>>> 1\n1")
    'One two.\n\n* a b\n\n>>> 1\n1'
    """
    return "\n\n".join(
        part if part.startswith((">>>", "  ")) else re.sub(r"\n(?:  )?(?![ *-]|\d+\. )", " ", part)
        for part in text.replace("::\n", ":\n").split("\n\n")
    )


def plain_docstring(docstring: str) -> str:
    """``docstring`` without the marks of code and roles, its lines as they are."""
    return _INLINE.sub(_inline_text, docstring)


def _inline_text(part: re.Match[str]) -> str:
    if part["code"] is not None:
        return part["code"]
    return part["name"].rpartition(".")[2] if part["short"] else part["name"]
