"""Write ``docs/grader-reference.md`` and ``docs/cli.md`` from the registry and the help pages.

    python docs/generate_reference.py [--check]

A grader's section is its docstring as Markdown, its parameters, an example that
``lab/tests/unit/test_docs.py`` builds, and the English text of its judge's prompt. A command's
section is what ``--help`` prints in a terminal of 80 columns.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from docstrings import to_markdown
from typer.testing import CliRunner

from adjudge.cli.graders import describe, range_text, shipped_families, short_type_text
from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS, command_line
from adjudge.cli.plugins import LAB_COMMANDS
from adjudge.graders.registry import SHIPPED
from adjudge.intake.columns import REWARD_COLUMNS
from adjudge.rollouts.formats.columns import NAMES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PROMPTS = ROOT / "src" / "adjudge" / "graders" / "llm" / "prompts"
_WIDTH = 100
COMMAND = "python docs/generate_reference.py"

_LAB = ", ".join(f"`{name.replace('.', ' ')}`" for name in LAB_COMMANDS)

_GRADERS_INTRODUCTION = f"""\
# Grader reference

Every `type` of a `[[graders]]` table that ships, with its fields, parameters and prompt.
[Graders](graders.md) helps to choose one and says what all share. `adjudge graders TYPE` prints the
same in a terminal; `adjudge graders --json` has it as data.

* **Field**: what a grader reads of a sample. A column of that name is enough; another one is named
  in `mapper`, such as `mapper = {{ response = "answer" }}`. A sample without a needed field gets no
  score (`invalid_input`).
* **Mode**: a pointwise grader scores one response; a listwise one ranks a whole group.
* **Range**: `by spec` where the parameters set it. Where they do not, the scores count as they are.
* **Role**: a `score` enters the average, a `gate` multiplies it, a `penalty` is added to it.
* Keys that each table takes beside its parameters (`name`, `weight`, `scope`, `mapper`, `judge`, …)
  are in [the reward spec](spec.md#graders).
* **Prompt**: above the line of `=` stands the system message, below it the user message. A part
  whose field a sample lacks is left out. `{{reply_form}}` becomes the form of the reply. Long lines
  are wrapped here. `language = "zh"` asks in Chinese.

This page is made from the code by `{COMMAND}`.
"""

_CLI_INTRODUCTION = f"""\
# Commands

What `--help` of each command prints. All commands have the same exit codes: 0 done; 1 a threshold
was missed, or something was found; 2 bad input; 3 judge unavailable; 4 the budget is spent; 130
stopped by Ctrl-C; 143 stopped by SIGTERM. These need the package `adjudge-lab`: {_LAB}.

This page is made from the code by `{COMMAND}`.
"""

_JUDGE = """\
[judges.main]
type = "vllm"
model = "Qwen/Qwen3-8B"
base_url = "http://127.0.0.1:8000/v1"

"""
_SCALAR_JUDGE = """\
[judges.main]
type = "classifier"
model = "my-reward-model"
base_url = "http://127.0.0.1:8000"

"""

_EXAMPLES: dict[str, str] = {
    "answer": 'answer_type = "NUMBER"\nrel_tol = 1e-6\n',
    "code_execution": 'score = "all"\ndeadline_s = 10.0\n',
    "expected_score": 'criterion = "how clear the response is"\nlow = 1\nhigh = 5\n',
    "ifeval": 'level = "prompt"\n',
    "ifeval_repaired": 'level = "prompt"\n',
    "json_match": "ignore_extra_keys = true\n",
    "json_schema": 'schema = { type = "object", required = ["answer"] }\n',
    "language": 'language = "de"\n',
    "length_penalty": "max_length = 4000\n",
    "llm": 'template = "From 1 to 5, how clear is this? {response} {reply_form}"\n'
    "score_range = [1, 5]\n",
    "ngram_repetition": "n = 3\n",
    "pairwise": 'against = "reference"\n',
    "recorded": 'path = "results.jsonl"\n',
    "rubric": "criteria = [\n"
    '    { criterion = "Names a dose", points = 3 },\n'
    '    { criterion = "Says when to call a doctor", points = 1 },\n'
    "]\n",
    "scalar": 'activation = "sigmoid"\n',
    "similarity": 'metric = "rouge_l"\n',
    "soft_overlong": "max_length = 4096\ncache_length = 1024\n",
    "string_match": 'match = "contains"\n',
    "tool_call_match": 'metric_type = "f1"\nmatch_arguments = true\n',
    "tournament": "pairs_per_response = 3\n",
    "verif": 'field = "ground_truth"\n',
}
"""The parameters that an example shows; the others need none."""

_PROMPT_FILES = {"tournament": "pairwise"}
"""Types that ask with another type's prompt."""
_OWN_WORDS = {
    "llm": "The prompt is your `template`.",
    "scalar": "A scalar judge has no prompt: it reads the conversation and gives a number.",
}


def render_graders() -> str:
    """The Markdown of the page of graders."""
    parts = [_GRADERS_INTRODUCTION]
    for family, names in shipped_families().items():
        parts.append(f"## {family}\n")
        parts += [part for name in names for part in _grader_section(name)]
    return "\n".join(parts)


def example(name: str) -> str:
    """A reward spec with one grader of this type, as TOML."""
    judge = _SCALAR_JUDGE if name == "scalar" else _JUDGE
    asks = describe(name)["asks_judge"]
    return (
        f'{judge if asks else ""}[[graders]]\nname = "{name}"\ntype = "{name}"\n'
        f"{_EXAMPLES.get(name, '')}"
    )


def _grader_section(name: str) -> Iterator[str]:
    one = describe(name)
    asks = "yes" if one["asks_judge"] else "no"
    yield f"### {name}\n"
    reach = range_text(one) or "ranks, 1 is best"
    yield f"Mode {one['mode']} · role {one['role']} · range {reach} · asks a judge: {asks}\n"
    yield to_markdown(one["doc"], examples=False) + "\n"
    yield from _parameter_rows(one["parameters"])
    title = ' title="beside results.jsonl"' if name == "recorded" else ""
    yield f"```toml{title}\n{example(name)}```\n"
    if one["asks_judge"]:
        yield from _prompt(name)


def _parameter_rows(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if not parameters:
        return
    yield "| parameter | type | default |\n| --- | --- | --- |"
    for one in parameters:
        kind = short_type_text(one["type"]).replace("|", "\\|")
        default = "required" if one.get("required") else f"`{_toml(one['default'])}`"
        yield f"| `{one['name']}` | `{kind}` | {default} |"
    yield ""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else repr(value).replace("'", '"').replace("|", "\\|")


def _prompt(name: str) -> Iterator[str]:
    if name in _OWN_WORDS:
        yield f"{_OWN_WORDS[name]}\n"
        return
    file = PROMPTS / f"{_PROMPT_FILES.get(name, name)}.en.txt"
    text = file.read_text(encoding="utf-8").strip()
    yield '??? note "The prompt"\n'
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, _WIDTH) or [""]]
    yield "    ```text"
    yield "\n".join(f"    {line}".rstrip() for line in lines)
    yield "    ```\n"


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


def render_columns() -> str:
    """The usual names of each field's column, as readers of rollouts know them."""
    rows = []
    for field, usual in {**NAMES, "env_reward": REWARD_COLUMNS}.items():
        columns = dict.fromkeys((field, *usual))
        rows.append(f"| `{field}` | {', '.join(f'`{column}`' for column in columns)} |")
    return "\n".join(("| field | columns that are found |", "| --- | --- |", *rows))


PAGES = {"grader-reference.md": render_graders, "cli.md": render_commands}
TABLES = {"start/install.md": {"columns": render_columns}}
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
    if unknown := _EXAMPLES.keys() - SHIPPED.keys():
        sys.exit(f"_EXAMPLES: no shipped types: {sorted(unknown)}")


if __name__ == "__main__":
    main()
