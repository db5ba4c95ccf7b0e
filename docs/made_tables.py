"""The tables that the code knows, in pages that are written by hand: keys, formats, checks.

``generate_reference.py`` writes each between its markers (:data:`TABLES`).
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import random
import re
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any, Literal

import msgspec
from docstrings import to_markdown
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from adjudge.audit import CHECKS, LOG_CHECKS, audit_run, read_run
from adjudge.audit.report import effect_text
from adjudge.client import settings as client_settings
from adjudge.client.settings import ClientSettings
from adjudge.config_tables import ConfigFile, ConfigTable
from adjudge.intake.columns import REWARD_COLUMNS
from adjudge.judges.endpoint.settings import EndpointSettings
from adjudge.judges.table import JUDGE_TABLES
from adjudge.rewards.spec import (
    GraderEntry,
    MissingSettings,
    PanelSettings,
    RewardSettings,
)
from adjudge.rollouts.agents import AGENT_FORMATS
from adjudge.rollouts.api_results import API_FORMATS, EXCHANGE_FORMATS
from adjudge.rollouts.columns import NAMES
from adjudge.rollouts.evaluations import EVALUATION_FORMATS, HARBOR_FORMATS
from adjudge.rollouts.logs import LOG_FORMATS, OPENHANDS_FORMATS
from adjudge.rollouts.preferences import PREFERENCE_FORMATS
from adjudge.rollouts.telemetry import TELEMETRY_FORMATS
from adjudge.rollouts.trainers import TRAINER_FORMATS
from adjudge.service import ServiceSettings
from adjudge.service.metrics import FAMILIES
from adjudge.wire import JUDGE_KEY_VARIABLE

ROOT = Path(__file__).parents[1]


def compact_table(head: tuple[str, ...], *rows: tuple[str, ...]) -> str:
    """A table without spaces around the bars: they would count as words of the page."""
    escaped = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows]
    lines = (head, ("---",) * len(head), *escaped)
    return "\n".join(f"|{'|'.join(cells)}|" for cells in lines)


def words_of(text: str) -> str:
    """A docstring's words as Markdown."""
    return to_markdown(text, examples=False)


def toml_text(value: Any) -> str:
    """A value as a user writes it in a file."""
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
            rows.setdefault(key, (f"`{key}`", _key_default(field), words_of(meaning)))
    return compact_table(("key", "default", "meaning"), *rows.values())


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
    return f"`{toml_text(value)}`"


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
        (family, ", ".join(one.title for one in formats))
        for family, formats in _FORMAT_FAMILIES.items()
    ]
    return compact_table(("from", "read"), *rows)


def _documented_settings(cls: type[Any]) -> dict[str, tuple[Any, str]]:
    """Default and meaning of each setting: those of the class, from the lines of its docstring."""
    if issubclass(cls, BaseModel):
        defaults = {
            name: msgspec.NODEFAULT if field.is_required() else field.default
            for name, field in cls.model_fields.items()
        }
    else:
        defaults = {one.name: one.default for one in msgspec.structs.fields(cls)}
    text = " ".join((cls.__doc__ or "").split())
    starts = [text.index(f" ``{name}``: ") for name in defaults]
    found = {}
    for start, end, (name, default) in zip(
        starts, [*starts[1:], len(text)], defaults.items(), strict=True
    ):
        meaning = text[start:end].partition(": ")[2].strip()
        found[name] = default, meaning.replace("``", "`").rstrip(".")
    return found


def _default_text(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    return str(value).lower() if isinstance(value, bool) else f"{value}".removesuffix(".0")


def render_service_settings() -> str:
    """The options of ``adjudge serve`` that say how it listens, batches and refuses."""
    settings = _documented_settings(ServiceSettings)
    return compact_table(
        ("option", "default", "meaning"),
        *(
            (f"`--{name.replace('_', '-')}`", _default_text(default), meaning)
            for name, (default, meaning) in settings.items()
        ),
    )


def render_endpoint_settings() -> str:
    """The keys of ``[judges.NAME.endpoint]``."""
    return compact_table(
        ("key", "default", "meaning"),
        *(
            (f"`{name}`", "none" if default is None else _default_text(default), meaning)
            for name, (default, meaning) in _documented_settings(EndpointSettings).items()
        ),
    )


def render_client_settings() -> str:
    """The keys of a client's configuration."""
    settings = _documented_settings(ClientSettings)
    variables = {**client_settings.VARIABLES, "api_key_env": JUDGE_KEY_VARIABLE}
    return compact_table(
        ("key", "default", "variable", "meaning"),
        *(
            (
                f"`{name}`",
                "" if name == "api_key_env" else _default_text(default),
                f"`{variables[name]}`" if name in variables else "",
                meaning,
            )
            for name, (default, meaning) in settings.items()
        ),
    )


def render_service_metrics() -> str:
    """What ``/metrics`` of a judge service has."""
    rows = []
    for family, label_names, meanings in FAMILIES:
        labels = ", ".join(f"`{name}`" for name in label_names)
        for name, meaning in meanings.items():
            rows.append((f"`judge_{name}`", family(name, meaning).type, labels, meaning))
    return compact_table(("metric", "type", "labels", "meaning"), *rows)


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
    rows = []
    for check in CHECKS:
        unit = seen[check.name].unit or _CHECK_UNITS[check.name]
        size = effect_text(seen[check.name].detectable, unit)
        needs = _CHECK_NEEDS[check.name] or "–"
        rows.append((f"`{check.name}`", check.looks_for, needs, unit, size or "–"))
    return compact_table(("check", "looks for", "needs", "unit of the effect", "seen from"), *rows)


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
    rows = [(f"`{one.name.removeprefix('steps_')}`", one.looks_for) for one in LOG_CHECKS]
    return compact_table(("rule", "looks for"), *rows)


def render_columns() -> str:
    """The usual names of each field's column, as readers of rollouts know them."""
    return compact_table(
        ("field", "columns that are found"),
        *(
            (f"`{field}`", ", ".join(f"`{one}`" for one in dict.fromkeys((field, *usual))))
            for field, usual in {**NAMES, "env_reward": REWARD_COLUMNS}.items()
        ),
    )


def render_river() -> str:
    """What each file of the river is about, as it says itself."""
    sys.path.append(str(ROOT))
    from benchmarks.size import find_river  # noqa: PLC0415  (beside this folder)

    rows = []
    for path in find_river():
        name = path.relative_to(ROOT / "src" / "adjudge").with_suffix("").as_posix()
        text = path.read_text(encoding="utf-8")
        # Others of the name hold names alone.
        if path.name != "__init__.py" or "\nclass " in text:
            about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
            rows.append((f"`{name.removesuffix('__init__')}`", words_of(about)))
    return compact_table(("file below `src/adjudge/`", "what it is about"), *rows)


TABLES = {
    "audit.md": {"checks": render_checks, "rules over steps": render_step_rules},
    "design.md": {"river": render_river},
    "grading.md": {"formats": render_formats},
    "judges.md": {"endpoint-settings": render_endpoint_settings},
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
