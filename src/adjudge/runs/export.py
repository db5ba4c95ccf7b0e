"""Training data from a graded run: preference pairs, best of n, and good answers to imitate.

A missing reward is in no pair and is never the best, and a pair's two answers are to exactly the
same prompt. What is left out is counted by its reason. Rows are conversations as TRL reads them, or
columns as verl's data sets do. The rollouts are held in memory.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from adjudge.errors import ConfigError
from adjudge.files import atomic_path, atomic_write
from adjudge.installation import install_command
from adjudge.intake.rollouts import first_turn
from adjudge.messages import read_prompt
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.stats import snap_ties
from adjudge.text import encode_json, replace_surrogates
from adjudge.types import Sample

ExportKind = Literal["dpo", "best-of-n", "sft"]
ExportFormat = Literal["trl", "verl"]
EXPORT_SUFFIXES = (".jsonl", ".parquet")

Row = dict[str, Any]

MISSING, ALONE, TIE, MARGIN = "missing reward", "alone in its group", "tie", "below the margin"
PROMPTS, SAME, EMPTY = "different prompts in its group", "same answer", "no prompt or no answer"
NOT_BEST, REWARD = "not the best of its group", "below the reward"

_ROUNDING = 1e-9
"""0.3 − 0.1 is a margin of 0.2, whatever a computer makes of it."""


class ExportSettings(NamedTuple):
    """What is exported, and how.

    ``pairs``: 1 for the best with the worst answer of a group, 0 for all pairs, else as many, those
    of the largest margin. ``min_margin``: the least difference of rewards in a pair.
    ``min_reward``: what is imitated has at least that reward.
    """

    kind: ExportKind
    form: ExportFormat = "trl"
    pairs: int = 1
    min_margin: float = 0.0
    min_reward: float = -math.inf


@dataclass
class ExportReport:
    """What came of an export: rows written, and what was left out by reason.

    ``left_out`` counts samples; ``pairs_left_out`` pairs of samples that are there; ``tied_best``
    groups of which several samples are the best: the first of them was taken.
    """

    path: str
    written: int = 0
    samples: int = 0
    groups: int = 0
    tied_best: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    pairs_left_out: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        counts = {"left_out": self.left_out, "pairs_left_out": self.pairs_left_out}
        return vars(self) | {name: dict(one.most_common()) for name, one in counts.items()}


class _Answer(NamedTuple):
    """A rewarded sample as a prompt and an answer to it, both as messages."""

    place: int
    reward: float
    record: RunRecord
    prompt: list[Row]
    answer: list[Row]
    tools: Any
    reference: Any


def export_run(run: Path, target: Path, settings: ExportSettings) -> ExportReport:
    """Write the training data of the run in ``run`` to ``target``, JSONL or Parquet by its suffix.

    Raises :class:`~adjudge.errors.ConfigError`, and :class:`~adjudge.errors.RunFolderError` for a
    folder that is none and for rollouts that are gone or changed.
    """
    records, report = RunRecords(run), ExportReport(str(target))
    _check(target, records, settings)
    make = _pair_row if settings.kind == "dpo" else _answer_row
    groups = _read_groups(records, report)
    rows = [make(one, settings) for one in _choose(groups, settings, report)]
    report.written = len(rows)
    if target.suffix.lower() == ".parquet":
        _write_table(target, list(map(_table_row, rows)))
    else:
        atomic_write(target, (encode_json(row, repr) + b"\n" for row in rows))
    return report


def _check(target: Path, records: RunRecords, settings: ExportSettings) -> None:
    """The export takes the place of what is at ``target``, which must be no file that it reads."""
    if not 0 <= settings.min_margin < math.inf:
        raise ConfigError(f"--min-margin: must be 0 or more (found {settings.min_margin})")
    if math.isnan(settings.min_reward):
        raise ConfigError("--min-reward: must be a number (found nan)")
    if target.suffix.lower() not in EXPORT_SUFFIXES:
        raise ConfigError(
            f"-o {target}: must end with one of {', '.join(EXPORT_SUFFIXES)} (found "
            f"{target.suffix or 'no suffix'!r})"
        )
    if target.is_dir():
        raise ConfigError(f"-o {target}: is a folder. Give the name of a file.")
    own = [*records.path.glob("*.jsonl"), *records.inputs]
    if any(one.exists() and target.exists() and target.samefile(one) for one in own):
        raise ConfigError(
            f"-o {target}: is a file of the run or its rollouts, and would be replaced. Give "
            "another name."
        )


def _read_groups(records: RunRecords, report: ExportReport) -> list[list[_Answer]]:
    """The rewarded samples of each group in their order; ties by rounding are ties."""
    groups: dict[tuple[int | None, str], list[_Answer]] = {}
    for place, (record, sample) in enumerate(records.with_samples()):
        report.samples += 1
        members = groups.setdefault(record.group_key, [])
        prompt, answer = _split_turns(sample)
        tools = sample.extra.get("tools")  # a list of schemas, or as JSON text
        if isinstance(tools, str):
            with suppress(msgspec.MsgspecError):
                tools = msgspec.json.decode(tools)
        if not isinstance(tools, list) or not tools:
            tools = None
        if record.reward is None:
            report.left_out[MISSING] += 1
        elif not prompt or not answer:
            report.left_out[EMPTY] += 1
        else:
            members.append(
                _Answer(place, record.reward, record, prompt, answer, tools, sample.reference)
            )
    report.groups = len(groups)
    return [
        [
            one._replace(reward=reward)
            for one, reward in zip(of, snap_ties([one.reward for one in of]), strict=True)
        ]
        for of in groups.values()
    ]


def _split_turns(sample: Sample) -> tuple[list[Row], list[Row]]:
    """The prompt, and the assistant's answer with what lies between its turns."""
    if sample.messages is None:
        said: list[Row] = [{"role": "assistant", "content": sample.response}]
        said = said if sample.response else []
        return list(read_prompt(sample.prompt) or ()), said
    messages = list(sample.messages)
    start = first_turn(messages) if sample.opening_turns is None else sample.opening_turns
    answer = messages[start:]
    while answer and answer[-1].get("role") != "assistant":
        answer.pop()  # nobody answered it
    return messages[:start], answer


def _choose(
    groups: Iterable[Sequence[_Answer]], settings: ExportSettings, report: ExportReport
) -> Iterator[Sequence[_Answer]]:
    """The samples of each row to be written."""
    if settings.kind == "sft":
        for one in sorted((one for of in groups for one in of), key=lambda one: one.place):
            if one.reward >= settings.min_reward - _ROUNDING:
                yield [one]
            else:
                report.left_out[REWARD] += 1
        return
    for members in groups:
        if len(members) == 1:
            report.left_out[ALONE] += 1
        elif any(
            (one.prompt, one.tools) != (members[0].prompt, members[0].tools) for one in members
        ):
            report.left_out[PROMPTS] += len(members)
        elif members and settings.kind == "dpo":
            yield from _group_pairs(members, settings, report)
        elif members:
            best = max(members, key=lambda one: (one.reward, -one.place))
            report.tied_best += sum(one.reward == best.reward for one in members) > 1
            report.left_out[NOT_BEST] += len(members) - 1
            yield [best]


def _group_pairs(
    members: Sequence[_Answer], settings: ExportSettings, report: ExportReport
) -> list[Sequence[_Answer]]:
    """A group's pairs, the largest margin first; of equal ones those that come first in the run."""
    ranked = sorted(members, key=lambda one: (-one.reward, one.place))
    if settings.pairs == 1:  # of several best or worst ones the first
        worst = min(members, key=lambda one: (one.reward, one.place))
        candidates: list[Sequence[_Answer]] = [(ranked[0], worst)]
    else:
        candidates = list(combinations(ranked, 2))
    found = []
    for pair in candidates:
        margin = pair[0].reward - pair[1].reward
        if margin <= 0:
            report.pairs_left_out[TIE] += 1
        elif margin < settings.min_margin - _ROUNDING:
            report.pairs_left_out[MARGIN] += 1
        elif pair[0].answer == pair[1].answer:
            report.pairs_left_out[SAME] += 1
        else:
            found.append(pair)
    found.sort(key=lambda pair: (pair[1].reward - pair[0].reward, pair[0].place, pair[1].place))
    return found[: settings.pairs or None]


def _pair_row(pair: Sequence[_Answer], _: ExportSettings) -> Row:
    chosen, rejected = pair
    row: Row = {
        "prompt": chosen.prompt,
        "chosen": chosen.answer,
        "rejected": rejected.answer,
        "margin": chosen.reward - rejected.reward,
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
        "group": str(chosen.record.group),
        "chosen_where": chosen.record.where,
        "rejected_where": rejected.record.where,
    }
    return _with_tools(row, chosen.tools)


def _answer_row(chosen: Sequence[_Answer], settings: ExportSettings) -> Row:
    (one,) = chosen
    facts = {"reward": one.reward, "group": str(one.record.group), "where": one.record.where}
    row: Row = {"messages": [*one.prompt, *one.answer]}
    if settings.form == "trl":
        return _with_tools({**row, **facts}, one.tools)
    truth = one.reference
    row |= {
        "prompt": one.prompt,
        "data_source": "adjudge",
        "ability": "",
        "reward_model": {
            "style": "rule",
            "ground_truth": truth
            if isinstance(truth, str | None)
            else encode_json(truth, repr).decode(),
        },
        "extra_info": {"index": one.place, **facts},
    }
    return row if one.tools is None else {**row, "tools": one.tools}


def _with_tools(row: Row, tools: Any) -> Row:
    """As JSON text: as a table, each tool would get the parameters of all as nulls."""
    return row if tools is None else {**row, "tools": msgspec.json.encode(tools).decode()}


_CONVERSATIONS = {"prompt", "chosen", "rejected", "messages"}


def _table_row(row: Row) -> Row:
    """A row whose messages have the same columns: arguments of tool calls as JSON text."""
    found = dict(row)
    for key in _CONVERSATIONS & row.keys():
        found[key] = []
        for message in row[key]:
            calls = message.get("tool_calls")
            if isinstance(calls, list):
                message = {**message, "tool_calls": list(map(_table_call, calls))}  # noqa: PLW2901
            found[key].append(message)
    return found


def _table_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str | None):
        return call
    arguments = encode_json(function["arguments"], repr).decode()
    return {**call, "function": {**function, "arguments": arguments}}


def _write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as Parquet, whose columns are those that the rows have.

    Raises :class:`~adjudge.errors.ConfigError` without pyarrow, for rows whose columns have several
    types, and for schemas of tools that a table would change: in one column, all get the keys of
    each as nulls. verl gives the column to the chat template as it is, so the policy would be shown
    those nulls.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{path}: needs pyarrow. Run: {install_command('full')}")
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    tools = [row["tools"] for row in rows if isinstance(row.get("tools"), list)]
    try:
        same = pa.array(tools).to_pylist() == tools
    except (pa.ArrowException, TypeError, OverflowError):
        same = False
    if not same:
        raise ConfigError(
            f"{path}: tools: their schemas do not fit one table: each would have the keys of all "
            "as nulls, which verl shows to the policy. Use --format trl, which writes tools as "
            "text, or a file that ends with .jsonl."
        )
    try:
        table = pa.Table.from_pylist([replace_surrogates(row) for row in rows])
        with atomic_path(path) as part:
            pq.write_table(table, part)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ConfigError(
            f"{path}: the rows do not fit one table: {error}. Write JSON lines: a file that ends "
            "with .jsonl."
        ) from None
