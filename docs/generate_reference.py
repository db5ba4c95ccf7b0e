"""Write ``docs/grader-reference.md`` and ``docs/cli.md`` from the registry and the help pages.

    python docs/generate_reference.py [--check]

A grader's section is its docstring as Markdown, its parameters, an example that
``lab/tests/unit/test_docs.py`` builds, and the English text of its judge's prompt. A command's
section is what ``--help`` prints in a terminal of 80 columns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from docstrings import to_markdown
from typer.testing import CliRunner

from adjudge.audit import CHECKS, audit_run, read_run
from adjudge.audit.report import effect_text
from adjudge.audit.steps import LOG_CHECKS
from adjudge.cli.graders import describe, range_text, shipped_families, short_type_text
from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS, command_line
from adjudge.cli.plugins import LAB_COMMANDS
from adjudge.graders.registry import SHIPPED

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


PAGES = {"grader-reference.md": render_graders, "cli.md": render_commands}
PARTS = {"audit.md": {"checks": render_checks, "rules over steps": render_step_rules}}
"""Tables inside pages that are written by hand, by the name in their markers."""


def fill_parts(page: str, text: str) -> str:
    """``text`` with what stands between the markers of each made part as it is now."""
    for name, render in PARTS[page].items():
        begin, end = f"<!-- made: {name} -->\n", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"docs/{page}: must have {begin.strip()} and {end} once each")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{render()}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the pages, or say which is old."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where a page is old")
    check = parser.parse_args().check
    for name, render in PAGES.items():
        page, text = DOCS / name, render()
        if not check:
            page.write_text(text, encoding="utf-8")
        elif not page.is_file() or page.read_text(encoding="utf-8") != text:
            sys.exit(f"docs/{name} is old: run {COMMAND}")
    for name in PARTS:
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        if (new := fill_parts(name, text)) == text:
            continue
        if check:
            sys.exit(f"docs/{name} is old: run {COMMAND}")
        page.write_text(new, encoding="utf-8")
    if unknown := _EXAMPLES.keys() - SHIPPED.keys():
        sys.exit(f"_EXAMPLES: no shipped types: {sorted(unknown)}")


if __name__ == "__main__":
    main()
