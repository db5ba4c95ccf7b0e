"""``adjudge init``: a first reward spec that fits the rollouts there are, and runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adjudge.cli.console import clean, errors, print_input, print_json
from adjudge.cli.options import ColumnMap, JsonSummary, parse_map
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.judges.discovery import FoundJudge, describe_search, find_judge
from adjudge.rollouts.fields import SAMPLE_FIELDS
from adjudge.rollouts.input_report import InputReport
from adjudge.rollouts.samples import SampleReader
from adjudge.text import printable, replace_surrogates
from adjudge.types import Sample

_INIT_ROWS = 50
_LONG_REFERENCE = 80
_DEFAULT_OUTPUT = Path("reward.toml")


def init(
    rollouts: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Rollouts to fit the spec to: files, folders or patterns, as adjudge grade takes "
            "them [default: none: a spec to start from]."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The spec to write.")
    ] = _DEFAULT_OUTPUT,
    mapping: ColumnMap = None,
    as_json: JsonSummary = False,
) -> None:
    """Write a first reward spec that fits your rollouts.

    Example: adjudge init rollouts.jsonl -o reward.toml

    Prints the command to run next. Graders are chosen by what the rollouts have: tool calls,
    reference answers. The judge is the first that is found: the server of
    OPENAI_BASE_URL, a local server (vLLM on port 8000, SGLang on 30000, Ollama on 11434), or a
    provider with an API key set. Without one, the parts that need a judge are written as comments.
    """
    inputs = rollouts or []
    if output.exists():
        raise ConfigError(f"{output}: exists already. Remove it, or name another file with -o.")
    facts = _read_facts(inputs, parse_map(mapping, SAMPLE_FIELDS)) if inputs else RolloutFacts()
    judge = run_blocking(find_judge())
    text, command, note = draft_spec(facts, judge, output)
    output.write_text(text, encoding="utf-8")
    if as_json:
        print_json(
            {
                "spec": replace_surrogates(str(output)),
                "format": facts.report.title,
                "map": facts.mapping,
                "input": facts.report.as_json(),
                "judge": None if judge is None else judge.table,
                "command": command,
            }
        )
        return
    if facts.samples:
        part = f"; the first {_INIT_ROWS} rows" if len(facts.samples) == _INIT_ROWS else ""
        print_input(errors(), facts.report, part)
    errors().print(f"[dim]{clean(note)}[/]")
    typer.echo(f"Wrote {printable(output)}. Now run:\n  {command}")


@dataclass(frozen=True)
class RolloutFacts:
    """The first rollouts.

    ``mapping``: what ``--map`` said. ``report``: what they were read as.
    """

    inputs: Sequence[Path] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    report: InputReport = field(default_factory=InputReport)

    @property
    def references(self) -> list[Any]:
        """Those that there are."""
        return [one.reference for one in self.samples if one.reference is not None]

    def count(self, holds: Callable[[Sample], object]) -> int:
        """Of how many samples something holds."""
        return sum(map(bool, map(holds, self.samples)))


def _read_facts(inputs: Sequence[Path], mapping: dict[str, str]) -> RolloutFacts:
    report = InputReport()
    reader = SampleReader(inputs, mapping, say=report.hear)
    samples = list(islice(reader, _INIT_ROWS))
    if not samples:
        first = f": {reader.broken[0].where}: {reader.broken[0].message}" if reader.broken else ""
        raise ConfigError(f"{', '.join(map(str, inputs))}: has no usable row{first}")
    for sample in samples:
        report.add(sample)
    report.add_files(reader)
    return RolloutFacts(inputs, mapping, samples, report)


def _has_env_reward(sample: Sample) -> bool:
    return sample.env_reward is not None


def _calls_tools(sample: Sample) -> bool:
    return any(message.get("tool_calls") for message in sample.messages or ())


def _is_dialogue(sample: Sample) -> bool:
    """Whether the policy has several turns and calls no tools: an agent that acts in text."""
    said = (sample.messages or [])[sample.opening_turns or 0 :]
    turns = sum(message.get("role") == "assistant" for message in said)
    return turns > 1 and not _calls_tools(sample)


_WITHOUT_A_JUDGE = """\
# Set one of them and run `adjudge init` again, or remove the # of the blocks below.
# Without a key or a server: type = "embedded" and model = "smollm2" (a weak judge) or a
# GGUF file, with the extra `embedded` and after adjudge models fetch smollm2."""


def draft_spec(facts: RolloutFacts, judge: FoundJudge | None, output: Path) -> tuple[str, str, str]:
    """A spec for rollouts of which these facts are known, the command to run, and its judge."""
    inputs = [_as_argument(one) for one in facts.inputs] or ["rollouts.jsonl"]
    words = ["adjudge", "grade", *inputs, "--spec", _as_argument(output)]
    words += [word for one in facts.mapping.items() for word in ("--map", "=".join(one))]
    command = printable(shlex.join(words))
    rules, judged = _rollout_graders(facts)
    seen = [f"# Rollouts: {one}" for one in _describe_facts(facts)]
    judge_blocks = "\n".join(map(_format_table, [*judged, _judge_table(judge)]))
    if judge is None:
        found = f"No judge was found (looked at {describe_search()})"
        looked = f"# {found}.\n{_WITHOUT_A_JUDGE}"
        note = f"{found}; its blocks are comments."
        judge_blocks = re.sub("(?m)^(?=.)", "# ", judge_blocks)
    else:
        looked = f"# The judge: {judge.reason}."
        note = f"Judge: {judge.table['type']}, model {judge.table['model']} ({judge.reason})."
    text = "\n".join(
        [
            "# A reward spec: graders look at a rollout, and their scores become one reward.",
            *seen,
            f"# Run it:  {command}",
            "",
            "version = 1",
            "",
            "# One table a grader. `adjudge graders` lists the types, with a TYPE one in full.",
            '# Your own: type = "my_module:MyGrader" (my_module.py beside this file).',
            *map(_format_table, rules),
            looked,
            judge_blocks,
            _format_table(_reward_table(facts)),
            _format_table(_MISSING),
        ]
    )
    return text, command, note


def _as_argument(path: Path) -> str:
    """A path as a command line takes it: one that begins with a dash would be an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def _describe_facts(facts: RolloutFacts) -> Iterable[str]:
    if not facts.samples:
        yield "none were given; `adjudge init ROLLOUTS` fits the spec to a file"
        return
    shown = ", ".join(map(printable, facts.inputs[:3]))
    more = f" and {len(facts.inputs) - 3} more" if len(facts.inputs) > 3 else ""
    yield f"{shown}{more}: {facts.report.title}"
    counts = {
        "call tools": facts.count(_calls_tools),
        "have a reference": len(facts.references),
        "have a reward of their own": facts.count(_has_env_reward),
    }
    has = [f"{count} {what}" for what, count in counts.items() if count]
    has += [] if any(one.prompt for one in facts.samples) else ["none has a prompt"]
    told = ", ".join(has) or "none has tool calls or a reference"
    yield f"of the first {len(facts.samples)} rows, {told}"


_Entry = tuple[str, Any, str]
"""A key, its value, and what it means."""

_Table = tuple[str, Sequence[_Entry]]
"""A table's header and its entries."""

_GRADER = "[[graders]]"


def _rollout_graders(facts: RolloutFacts) -> tuple[list[_Table], list[_Table]]:
    """Graders that follow rules, and graders that ask a judge."""
    rules: list[_Table] = []
    most = len(facts.samples) // 2 + 1  # the others of a mixed file would have no reward
    if facts.count(_calls_tools) >= most or not facts.samples:
        rules += [
            _grader("loop", "action_loop", "1: no tool call is repeated", 0.5),
            _grader("info", "information_gain", "1: every tool result says something new", 0.5),
        ]
    if facts.references and len(facts.references) >= most:
        rules.append(_reference_grader(facts.references))
    if not rules:
        limit = _round_up(max(len(one.response or "") for one in facts.samples) or 1000)
        rules = [
            _grader("repetition", "ngram_repetition", "a penalty (at most 0) for repetition", 1.0),
            _grader(
                "overlong",
                "soft_overlong",
                "a penalty: 0 up to a length, then down to -1",
                1.0,
                ("unit", "chars", "or words, tokens"),
                ("max_length", 2 * limit, "-1 from here on"),
                ("cache_length", limit, "so much below max_length it begins"),
            ),
        ]
    return rules, [_rubric_stub(facts)]


def _round_up(number: int) -> int:
    """To one significant digit."""
    unit = int(10 ** (len(str(number)) - 1))
    return -(-number // unit) * unit


def _grader(name: str, kind: str, meaning: str, weight: float, *more: _Entry) -> _Table:
    entries = [
        ("name", name, "its column in the results"),
        ("type", kind, meaning),
        *more,
        ("weight", weight, "its part of the reward; 0: only in the report"),
    ]
    return _GRADER, entries


def _reference_grader(references: Sequence[Any]) -> _Table:
    """What compares a response with references of this kind."""
    texts = [one.strip() for one in references if isinstance(one, str)]
    if any(isinstance(one, dict) for one in references):
        return _grader("json", "json_match", "the response is the JSON of the reference", 1.0)
    answer_type = _answer_type(references, texts)
    long = len(texts) == len(references) and max(map(len, texts)) > _LONG_REFERENCE
    if long and answer_type != "NUMBER":
        return _grader("similar", "similarity", "ROUGE-L with the reference", 1.0)
    return _grader(
        "answer",
        "answer",
        "1: the final answer is the row's reference",
        1.0,
        ("answer_type", answer_type, "how answers are compared"),
    )


_ANSWER_TYPES = {
    "NUMBER": re.compile(r"(?s)(.*####\s*)?[-+]?[\d,]*\.?\d+%?"),  # GSM8K ends with #### 18
    "MULTIPLE_CHOICE": re.compile(r"\(?[A-J]\)?"),
    "BOOLEAN": re.compile(r"(?i)yes|no|true|false"),
}
_FORMULA = re.compile(r"\\[a-z]+|\^|\$")


def _answer_type(references: Sequence[Any], texts: Sequence[str]) -> str:
    if len(texts) < len(references):
        return "auto"
    for name, pattern in _ANSWER_TYPES.items():
        if all(pattern.fullmatch(one) for one in texts):
            return name
    formulas = any(map(_FORMULA.search, texts)) and find_spec("math_verify") is not None
    return "MATH_EXPRESSIONS" if formulas else "auto"


def _rubric_stub(facts: RolloutFacts) -> _Table:
    dialogues = facts.count(_is_dialogue) if all(one.messages for one in facts.samples) else 0
    acts_in_text = 2 * dialogues > len(facts.samples)
    whole = facts.count(_calls_tools) or acts_in_text
    seen = "the whole trajectory" if whole else "the response"
    criteria = [
        {"id": "task", "criterion": "Does what the user asked for, completely", "points": 5},
        {"id": "true", "criterion": "States nothing false or made up", "points": 3},
        {"id": "padded", "criterion": "Is padded with what nobody asked for", "points": -2},
    ]
    prompts = sum(bool(one.prompt) for one in facts.samples)
    if facts.samples and 2 * prompts <= len(facts.samples):  # the judge sees no question
        criteria = [
            {"id": "true", "criterion": "States nothing false or made up", "points": 5},
            {"id": "whole", "criterion": "Is complete: it does not break off", "points": 3},
            {"id": "padded", "criterion": "Says the same thing more than once", "points": -2},
        ]
    show = [("show", "trajectory", "or response: its last turn alone")] if acts_in_text else []
    return _grader(
        "quality",
        "rubric",
        f"the judge sees {seen} and marks each criterion",
        1.0,
        *show,
        ("criteria", criteria, "a stub: write what matters to you; negative points are faults"),
        ("clip", True, "the score is between 0 and 1"),
    )


def _judge_table(judge: FoundJudge | None) -> _Table:
    table = {"type": "openai", "model": "gpt-4o-mini"} if judge is None else judge.table
    meanings = {
        "type": "openai, vllm, sglang, anthropic, groq, dashscope; serverless: embedded, local",
        "model": "its name at the server",
        "base_url": "where the server is",
        "api_key_env": "the environment variable that has the key",
    }
    entries: list[_Entry] = [(key, value, meanings[key]) for key, value in table.items()]
    entries.append(("temperature", 0.0, "the same question, the same answer"))
    if table["type"] not in ("vllm", "sglang") and "base_url" not in table:
        meaning = "USD per million tokens, for --dry-run and --budget-usd: put the model's in"
        entries.append(("# price", {"input": 0.15, "output": 0.6}, meaning))
    return "[judges.main]", entries


def _reward_table(facts: RolloutFacts) -> _Table:
    step = "or centre, z_score, gdpo, rank: inside each group of samples to a prompt"
    own = "replace: the graders' reward takes the place of the row's own (weighted_sum, multiply)"
    entries: list[_Entry] = [("aggregate", "weighted_mean", "or points, min")]
    entries.append(("group", "none", step))
    entries += [("combine_mode", "replace", own)] if facts.count(_has_env_reward) else []
    return "[reward]", entries


_FAILED = "a failed judge call is a missing reward, never a number (or drop_group, raise)"
_MISSING: _Table = ("[missing]", [("policy", "mask", _FAILED)])
_COMMENT_COLUMN = 34


def _format_table(table: _Table) -> str:
    header, entries = table
    return "\n".join([header, *(_format_entry(*one) for one in entries), ""])


def _format_entry(key: str, value: Any, meaning: str) -> str:
    if isinstance(value, list):
        items = [f"    {_format_value(one)}," for one in value]
        return "\n".join([f"# {meaning}", f"{key} = [", *items, "]"])
    return f"{f'{key} = {_format_value(value)}  ':<{_COMMENT_COLUMN}}# {meaning}"


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_format_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}"
    return msgspec.json.encode(value).decode()  # a JSON string, number or boolean is one of TOML
