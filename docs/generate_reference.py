"""Write the pages and tables that the code knows: graders, commands, formats.

    python docs/generate_reference.py [--check]

A grader's section is its docstring as Markdown, and its parameters as a table. A command's section
is its first sentence, its example and a table of its options. The tables of other pages are written
between their markers (:data:`TABLES`).
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import itertools
import json
import random
import re
import sys
import tempfile
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer
from docstrings import to_markdown
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from adjudge.audit import CHECKS, audit_run, read_run
from adjudge.audit.report import effect_text
from adjudge.audit.steps import LOG_CHECKS
from adjudge.cli.graders import (
    SHARED_PARAMETERS,
    describe,
    range_text,
    shipped_families,
)
from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS, command_line
from adjudge.cli.plugins import LAB_COMMANDS
from adjudge.client import settings as client_settings
from adjudge.client.settings import ClientSettings
from adjudge.config_tables import ConfigFile, ConfigTable
from adjudge.intake.columns import REWARD_COLUMNS
from adjudge.judges.table import JUDGE_TABLES
from adjudge.rewards.spec import (
    GraderEntry,
    MissingSettings,
    PanelSettings,
    RewardSettings,
)
from adjudge.rollouts.formats.agents import AGENT_FORMATS
from adjudge.rollouts.formats.api_results import API_FORMATS
from adjudge.rollouts.formats.columns import NAMES
from adjudge.rollouts.formats.evaluations import EVALUATION_FORMATS
from adjudge.rollouts.formats.exchanges import EXCHANGE_FORMATS
from adjudge.rollouts.formats.harbor import HARBOR_FORMATS
from adjudge.rollouts.formats.logs import LOG_FORMATS
from adjudge.rollouts.formats.openhands import OPENHANDS_FORMATS
from adjudge.rollouts.formats.preferences import PREFERENCE_FORMATS
from adjudge.rollouts.formats.telemetry import TELEMETRY_FORMATS
from adjudge.rollouts.formats.trainers import TRAINER_FORMATS
from adjudge.service.metrics import ServiceMetrics
from adjudge.service.settings import ServiceSettings
from adjudge.wire import JUDGE_KEY_VARIABLE

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
    rows = {}
    for model in models:
        for name, meaning in _documented_fields(model).items():
            if (field := model.model_fields.get(name)) is None:
                continue  # a class's own fact
            key = field.alias or name
            rows.setdefault(key, f"| `{key}` | {_key_default(field)} | {_cell(meaning)} |")
    return "\n".join(("| key | default | meaning |", _RULE, *rows.values()))


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
    root: Any = typer.main.get_command(command_line(_lab_commands()))
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
    rows = map(_option_row, shown)
    yield "\n".join(("|option|default|meaning|", "|---|---|---|", *rows)) + "\n"


_EVERYWHERE = {"--help", "--json", "--quiet"}
_DEFAULT = re.compile(r" \[default: (.*?)\](?=\W|$)")


def _option_row(one: Any) -> str:
    """Without spaces around the bars: they would count as words of the page."""
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
    cells = (", ".join(f"`{name}`" for name in names), default, text)
    return "|".join(("", *(cell.replace("|", "\\|") for cell in cells), ""))


def _allowed(one: Any) -> str:
    """The words that an option takes, where they are few."""
    kind = one.type_descriptor.annotation
    return "|".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ""


def _lab_commands() -> dict[str, str]:
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(project["project"]["entry-points"]["adjudge.commands"])


_FORMAT_FAMILIES = {
    "trainers": TRAINER_FORMATS,
    "agents": (*AGENT_FORMATS, *HARBOR_FORMATS, *OPENHANDS_FORMATS),
    "logs of coding agents and chats": LOG_FORMATS,
    "traces": TELEMETRY_FORMATS,
    "evaluations": EVALUATION_FORMATS,
    "providers' batches and exchanges": (*API_FORMATS, *EXCHANGE_FORMATS),
    "pairs and ratings": PREFERENCE_FORMATS,
}


def render_formats() -> str:
    """The formats of dumps that are recognised, a row for each kind of program."""
    rows = [
        f"| {family} | {', '.join(one.title for one in formats)} |"
        for family, formats in _FORMAT_FAMILIES.items()
    ]
    return "\n".join(("| from | read |", "| --- | --- |", *rows))


def _documented_settings(cls: type[msgspec.Struct]) -> dict[str, tuple[Any, str]]:
    """Default and meaning of each setting: those of the class, from the lines of its docstring."""
    text = " ".join((cls.__doc__ or "").split())
    starts = [(text.index(f" ``{name}``: "), name) for name in cls.__struct_fields__]
    bounds = [start for start, _ in starts[1:]] + [len(text)]
    found = {}
    for (start, name), end, field in zip(starts, bounds, msgspec.structs.fields(cls), strict=True):
        meaning = text[start:end].partition(": ")[2].strip()
        found[name] = field.default, meaning.replace("``", "`").rstrip(".")
    return found


def _default_text(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    return str(value).lower() if isinstance(value, bool) else f"{value}".removesuffix(".0")


def render_service_settings() -> str:
    """The options of ``adjudge serve`` that say how it listens, batches and refuses."""
    settings = _documented_settings(ServiceSettings)
    return _compact_table(
        ("option", "default", "meaning"),
        *(
            (f"`--{name.replace('_', '-')}`", _default_text(default), meaning)
            for name, (default, meaning) in settings.items()
        ),
    )


def render_client_settings() -> str:
    """The keys of a client's configuration."""
    settings = _documented_settings(ClientSettings)
    variables = {**client_settings.VARIABLES, "api_key_env": JUDGE_KEY_VARIABLE}
    return _compact_table(
        ("key", "default", "variable", "meaning"),
        *(
            (
                f"`{name}`",
                "" if name == "api_key_env" else _default_text(default),
                f"`{variables[name]}`" if name in variables else "",
                meaning,
            )
            for name, (default, meaning) in settings.items()
            if "(no config key)" not in meaning
        ),
    )


def render_service_metrics() -> str:
    """What ``/metrics`` of a judge service has."""

    async def collect() -> list[Metric]:
        metrics = ServiceMetrics()
        metrics.watch(_Idle())
        return [one for one in metrics.registry.collect() if one.name.startswith("judge_")]

    rows = []
    for family in asyncio.run(collect()):
        labels = ", ".join(f"`{name}`" for name in getattr(family, "_labelnames", ()))
        rows.append((f"`{family.name}`", family.type, labels, family.documentation))
    return _compact_table(("metric", "type", "labels", "meaning"), *rows)


def _compact_table(head: tuple[str, ...], *rows: tuple[str, ...]) -> str:
    """Without spaces around the bars: they would count as words of the page."""
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join(f"|{'|'.join(cells)}|" for cells in lines)


class _Idle:
    waiting = judging = 0


_CHECK_NEEDS = {
    "not_finite": "",
    "broken_rows": "",
    "missing": "",
    "lone_samples": "groups",
    "dead_groups": "",
    "recorded_advantages": "the trainer's advantages",
    "filled_rewards": "two different rewards",
    "outliers": "20 rewards",
    "scales": "two sources or groups",
    "saturation": "a scale without steps",
    "mixed_prompts": "a group column",
    "missing_pattern": "10 missing rewards",
    "stale_rewards": "texts",
    "repeated_rewards": "many values",
    "reference_in_prompt": "references",
    "length": "texts",
    "format": "texts",
    "position": "rows in the order of sampling",
    "components": "two parts of the reward",
    "phrases": "texts",
    "reward_jump": "8 steps",
    "judge_drift": "8 steps, `env_reward`",
    "duplicates": "texts of 8 words",
    "degenerate": "texts",
    "truncation": "texts, some cut off",
    "tool_loops": "tool calls with results",
    "judge_errors": "the judge's words",
    "contradictions": "8 reasons that state a score",
}
"""What an audit's check needs beside rewards, in a word: its own refusal says it in full."""

_CHECK_UNITS = {
    "missing_pattern": "share of the answers with the property",
    "components": "correlation of the two",
    "phrases": "advantage with it, minus without it, at equal length",
    "truncation": "standard deviations of the advantage",
    "tool_loops": "share of rollouts with tool calls",
    "judge_errors": "share of samples with a judge's words",
    "contradictions": "share of reasons that can be read",
}
"""Of the checks that do not apply to the run of the table."""


def render_checks() -> str:
    """The table of an audit's checks, with what each would have seen in a run of 576 samples."""
    if missing := {check.name for check in CHECKS} ^ _CHECK_NEEDS.keys():
        sys.exit(f"_CHECK_NEEDS: differs from the checks in {sorted(missing)}")
    seen = {one.name: one.result for one in audit_run(_audited_run())}
    lines = [
        "| check | looks for | needs | unit of the effect | seen from |",
        "|---|---|---|---|---:|",
    ]
    for check in CHECKS:
        unit = seen[check.name].unit or _CHECK_UNITS[check.name]
        size = effect_text(seen[check.name].detectable, unit)
        needs = _CHECK_NEEDS[check.name] or "–"
        lines.append(f"| `{check.name}` | {check.looks_for} | {needs} | {unit} | {size or '–'} |")
    return "\n".join(lines)


def _audited_run() -> Any:
    """12 steps of 8 groups of 6: answers and rewards by chance, so nothing is there to find."""
    draw = random.Random(0)  # noqa: S311  (no secret)
    words = ["so", "we", "add", "two", "and", "get", "the", "sum", "of", "**both**", "numbers"]
    rows = []
    for at in range(12 * 8 * 6):
        step, group = at // 48, at // 6
        text = " ".join(draw.choices(words, k=draw.randint(20, 60)))
        rows.append({
            "prompt": f"What is the answer to question {group}?", "response": f"{text}.",
            "step": step, "group": str(group), "reward": draw.random(),
            "env_reward": float(draw.random() < 0.5), "advantage": draw.gauss(0, 1),
            "reference": f"the answer to {group} is {group + 1}",
        })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.jsonl"
        dump.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return read_run([dump])


def render_step_rules() -> str:
    """The table of the rules over steps."""
    rows = [f"| `{one.name.removeprefix('steps_')}` | {one.looks_for} |" for one in LOG_CHECKS]
    return "\n".join(["| rule | looks for |", "|---|---|", *rows])


def render_columns() -> str:
    """The usual names of each field's column, as readers of rollouts know them."""
    rows = []
    for field, usual in {**NAMES, "env_reward": REWARD_COLUMNS}.items():
        columns = dict.fromkeys((field, *usual))
        rows.append(f"| `{field}` | {', '.join(f'`{column}`' for column in columns)} |")
    return "\n".join(("| field | columns that are found |", "| --- | --- |", *rows))


PAGES = {"grader-reference.md": render_graders, "cli.md": render_commands}
TABLES = {
    "audit.md": {"checks": render_checks, "rules over steps": render_step_rules},
    "grading.md": {"formats": render_formats},
    "judge-service.md": {"client-settings": render_client_settings},
    "many-machines.md": {"service-settings": render_service_settings},
    "metrics.md": {"service-metrics": render_service_metrics},
    "start/install.md": {"columns": render_columns},
    "spec.md": {
        "keys of a grader": lambda: render_keys(GraderEntry),
        "keys of a panel": lambda: render_keys(PanelSettings),
        "keys of a reward": lambda: render_keys(RewardSettings),
        "keys of missing": lambda: render_keys(MissingSettings),
        "keys of a judge": lambda: render_keys(*JUDGE_TABLES),
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
