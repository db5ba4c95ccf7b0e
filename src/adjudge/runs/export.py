"""Training data from a graded run: preference pairs, best of n, and good answers to imitate.

A missing reward is in no pair and is never the best, and a pair's two answers are to exactly the
same prompt. What is left out is counted by its reason. Rows are conversations as TRL reads them, or
columns as verl's data sets do.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from adjudge.errors import ConfigError
from adjudge.files import write_rows
from adjudge.intake.rollouts import first_turn
from adjudge.messages import read_prompt
from adjudge.runs.records import RunRecords
from adjudge.stats import snap_ties
from adjudge.text import encode_json
from adjudge.types import Sample

ExportKind = Literal["dpo", "best-of-n", "sft"]
ExportFormat = Literal["trl", "verl"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = ("trl", "verl")
EXPORT_SUFFIXES = (".jsonl", ".parquet")

Row = dict[str, Any]
_GroupKey = tuple[int | None, str]

MISSING, ALONE, TIE, MARGIN = "missing reward", "alone in its group", "tie", "below the margin"
PROMPTS, SAME, EMPTY = "different prompts in its group", "same answer", "no prompt or no answer"
NOT_BEST, REWARD = "not the best of its group", "below the reward"

_ROUNDING = 1e-9
"""0.3 − 0.1 is a margin of 0.2, whatever a computer makes of it."""


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is exported, and how.

    ``pairs``: of a group the best with the worst answer (``best-worst``), ``all`` pairs, or as many
    as a number says, those of the largest margin. ``min_margin``: the least difference of rewards
    in a pair. ``min_reward`` and ``top_share`` choose what is imitated: from that reward on, and
    that share of all rewarded samples with the highest rewards (ties with the last are in).
    Raises :class:`~adjudge.errors.ConfigError`.
    """

    kind: ExportKind
    form: ExportFormat = "trl"
    pairs: str = "best-worst"
    min_margin: float = 0.0
    min_reward: float | None = None
    top_share: float | None = None

    def __post_init__(self) -> None:
        if self.kind == "dpo" and self.form == "verl":
            raise ConfigError(
                "--format verl: verl has no trainer for pairs. Use --format trl, or export "
                "best-of-n or sft."
            )
        self.most_pairs()  # raises for what is none
        share = self.top_share
        for option, value, fits, allowed in (
            ("--min-margin", self.min_margin, self.min_margin >= 0, "0 or more and finite"),
            ("--min-reward", self.min_reward, True, "finite"),
            ("--top-share", share, share is None or 0 < share <= 1, "above 0 and at most 1"),
        ):
            if value is not None and not (math.isfinite(value) and fits):
                raise ConfigError(f"{option}: must be {allowed} (found {value})")
        if self.kind == "sft" and self.min_reward is None and self.top_share is None:
            raise ConfigError(
                "export sft: needs --min-reward or --top-share: which samples are good enough?"
            )

    def most_pairs(self) -> int | None:
        """How many pairs a group gives at most; ``None`` for all."""
        if self.pairs == "all":
            return None
        if self.pairs == "best-worst":
            return 1
        if self.pairs.isascii() and self.pairs.isdecimal() and int(self.pairs) > 0:
            return int(self.pairs)
        raise ConfigError(
            "--pairs-per-group: is no number of pairs (found "
            f"{self.pairs!r:.40}; allowed: best-worst, all, or a whole number from 1 on)"
        )


@dataclass
class ExportReport:
    """What came of an export: rows written, and what was left out by reason.

    ``left_out`` counts samples; ``pairs_left_out`` pairs of samples that are there; ``tied_best``
    groups of which several samples are the best: the first of them was taken.
    """

    path: Path
    written: int = 0
    samples: int = 0
    groups: int = 0
    tied_best: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    pairs_left_out: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "path": str(self.path),
            "written": self.written,
            "samples": self.samples,
            "groups": self.groups,
            "tied_best": self.tied_best,
            "left_out": dict(self.left_out.most_common()),
            "pairs_left_out": dict(self.pairs_left_out.most_common()),
        }


class _Candidate(NamedTuple):
    """A rewarded sample without its texts: digests of its prompt and its answer."""

    place: int
    reward: float
    prompt: bytes
    answer: bytes


class _Pair(NamedTuple):
    chosen: _Candidate
    rejected: _Candidate

    @property
    def margin(self) -> float:
        return self.chosen.reward - self.rejected.reward


def export_run(run: Path, target: Path, settings: ExportSettings) -> ExportReport:
    """Write the training data of the run in ``run`` to ``target``, JSONL or Parquet by its suffix.

    The rollouts are read twice: to choose, and for the texts of what was chosen. Raises
    :class:`~adjudge.errors.ConfigError`, and :class:`~adjudge.errors.RunFolderError` for a folder
    that is none and for rollouts that are gone or changed.
    """
    if target.suffix.lower() not in EXPORT_SUFFIXES:
        raise ConfigError(
            f"-o {target}: must end with one of {', '.join(EXPORT_SUFFIXES)} (found "
            f"{target.suffix or 'no suffix'!r})"
        )
    records, report = RunRecords(run), ExportReport(target)
    _check_target(target, records)
    groups = _read_groups(records, report)
    chosen = list(_choose(groups, settings, report))
    wanted = {one.place for row in chosen for one in row}
    texts = {
        place: _Texts.of(sample, record.where)
        for place, (record, sample) in enumerate(records.with_samples())
        if place in wanted
    }
    make = _pair_row if settings.kind == "dpo" else _answer_row
    names = {one.place: name for (_, name), members in groups.items() for one in members}
    rows = (make(row, texts, names, settings) for row in chosen)
    if target.suffix.lower() == ".parquet":
        table = [_table_row(row) for row in rows]
        _check_tools(target, table)
        report.written = write_rows(target, table)
    else:
        report.written = write_rows(target, rows)
    return report


def _check_target(target: Path, records: RunRecords) -> None:
    """The export takes the place of what is at ``target``, which must be no file that it reads."""
    if target.is_dir():
        raise ConfigError(f"-o {target}: is a folder. Give the name of a file.")
    own = [*records.path.glob("*.jsonl"), *records.inputs]
    if any(one.exists() and target.exists() and target.samefile(one) for one in own):
        raise ConfigError(
            f"-o {target}: is a file of the run or its rollouts, and would be replaced. Give "
            "another name."
        )


def _read_groups(records: RunRecords, report: ExportReport) -> dict[_GroupKey, list[_Candidate]]:
    """The rewarded samples of each group in their order; ties by rounding are ties."""
    groups: dict[_GroupKey, list[_Candidate]] = {}
    for place, (record, sample) in enumerate(records.with_samples()):
        report.samples += 1
        members = groups.setdefault(record.group_key, [])
        if record.reward is None:
            report.left_out[MISSING] += 1
            continue
        texts = _Texts.of(sample, record.where)
        if texts is None:
            report.left_out[EMPTY] += 1
            continue
        members.append(
            _Candidate(
                place, record.reward, _digest(texts.prompt, texts.tools), _digest(texts.answer)
            )
        )
    report.groups = len(groups)
    return {name: _snap(members) for name, members in groups.items()}


def _snap(members: Sequence[_Candidate]) -> list[_Candidate]:
    rewards = snap_ties([one.reward for one in members])
    return [one._replace(reward=reward) for one, reward in zip(members, rewards, strict=True)]


def _digest(*said: Any) -> bytes:
    return blake2b(encode_json(list(said), repr), digest_size=16).digest()


def _choose(
    groups: Mapping[_GroupKey, Sequence[_Candidate]], settings: ExportSettings, report: ExportReport
) -> Iterator[Sequence[_Candidate]]:
    """The samples of each row to be written."""
    if settings.kind == "sft":
        yield from _good_answers([one for of in groups.values() for one in of], settings, report)
        return
    for members in groups.values():
        if len(members) == 1:
            report.left_out[ALONE] += 1
        elif len({one.prompt for one in members}) > 1:
            report.left_out[PROMPTS] += len(members)
        elif members and settings.kind == "dpo":
            yield from _group_pairs(members, settings, report)
        elif members:
            best = max(one.reward for one in members)
            report.tied_best += sum(one.reward == best for one in members) > 1
            report.left_out[NOT_BEST] += len(members) - 1
            yield [next(one for one in members if one.reward == best)]


def _good_answers(
    members: Sequence[_Candidate], settings: ExportSettings, report: ExportReport
) -> Iterator[Sequence[_Candidate]]:
    least = -math.inf if settings.min_reward is None else settings.min_reward
    if settings.top_share is not None and members:
        ordered = sorted((one.reward for one in members), reverse=True)
        least = max(least, ordered[max(1, round(settings.top_share * len(ordered))) - 1])
    for one in sorted(members):
        if one.reward >= least - _ROUNDING:
            yield [one]
        else:
            report.left_out[REWARD] += 1


def _group_pairs(
    members: Sequence[_Candidate], settings: ExportSettings, report: ExportReport
) -> list[_Pair]:
    """A group's pairs, the largest margin first; of equal ones those that come first in the run."""
    most = settings.most_pairs()
    if settings.pairs == "best-worst":  # of several best or worst ones the first
        best = max(members, key=lambda one: (one.reward, -one.place))
        worst = min(members, key=lambda one: (one.reward, one.place))
        candidates = [_Pair(best, worst)]
    else:
        candidates = [
            _Pair(*sorted(pair, key=lambda one: -one.reward)) for pair in combinations(members, 2)
        ]
    found = []
    for pair in candidates:
        reason = _why_no_pair(pair, settings)
        if reason is None:
            found.append(pair)
        else:
            report.pairs_left_out[reason] += 1
    found.sort(key=lambda pair: (-pair.margin, pair.chosen.place, pair.rejected.place))
    return found[:most]


def _why_no_pair(pair: _Pair, settings: ExportSettings) -> str | None:
    if pair.margin <= 0:
        return TIE
    if pair.margin < settings.min_margin - _ROUNDING:
        return MARGIN
    return SAME if pair.chosen.answer == pair.rejected.answer else None


class _Texts(NamedTuple):
    """A sample as a prompt and an answer to it, both as messages."""

    prompt: list[Row]
    answer: list[Row]
    tools: Any
    reference: Any
    where: str

    @classmethod
    def of(cls, sample: Sample, where: str) -> _Texts | None:
        """``None`` where there is no prompt, or no answer of the assistant."""
        prompt = read_prompt(sample.prompt)
        if sample.messages is None:
            answer = [{"role": "assistant", "content": sample.response}] if sample.response else []
        else:
            messages = list(sample.messages)
            start = sample.opening_turns
            start = first_turn(messages) if start is None else start
            prompt, answer = messages[:start], messages[start:]
            while answer and answer[-1].get("role") != "assistant":
                answer.pop()  # nobody answered it
        if not prompt or not answer:
            return None
        return cls(prompt, answer, _read_tools(sample), sample.reference, where)


def _read_tools(sample: Sample) -> Any:
    """The tools that the policy had, as a list of schemas; ``None`` where the row has none."""
    tools = sample.extra.get("tools")
    if isinstance(tools, str):
        try:
            tools = msgspec.json.decode(tools)
        except msgspec.MsgspecError:
            return None
    return tools if isinstance(tools, list) and tools else None


def _pair_row(
    pair: Sequence[_Candidate],
    texts: Mapping[int, _Texts | None],
    names: Mapping[int, str],
    settings: ExportSettings,  # noqa: ARG001  (as :func:`_answer_row`)
) -> Row:
    chosen, rejected = (_texts_of(texts, one) for one in pair)
    row: Row = {
        "prompt": chosen.prompt,
        "chosen": chosen.answer,
        "rejected": rejected.answer,
        "margin": pair[0].reward - pair[1].reward,
        "chosen_reward": pair[0].reward,
        "rejected_reward": pair[1].reward,
        "group": names[pair[0].place],
        "chosen_where": chosen.where,
        "rejected_where": rejected.where,
    }
    return _with_tools(row, chosen.tools)


def _texts_of(texts: Mapping[int, _Texts | None], one: _Candidate) -> _Texts:
    found = texts[one.place]
    if found is None or _digest(found.answer) != one.answer:
        raise ConfigError("export: the rollouts changed while they were read. Run it again.")
    return found


def _answer_row(
    chosen: Sequence[_Candidate],
    texts: Mapping[int, _Texts | None],
    names: Mapping[int, str],
    settings: ExportSettings,
) -> Row:
    one = chosen[0]
    found = _texts_of(texts, one)
    facts = {"reward": one.reward, "group": names[one.place], "where": found.where}
    row: Row = {"messages": [*found.prompt, *found.answer]}
    if settings.form == "trl":
        return _with_tools({**row, **facts}, found.tools)
    truth = found.reference
    row |= {
        "prompt": found.prompt,
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
    return row if found.tools is None else {**row, "tools": found.tools}


def _with_tools(row: Row, tools: Any) -> Row:
    """As JSON text: as a table, each tool would get the parameters of all as nulls."""
    return row if tools is None else {**row, "tools": msgspec.json.encode(tools).decode()}


def _table_row(row: Row) -> Row:
    """A row whose messages have the same columns: arguments of tool calls as JSON text."""
    return {
        key: [_table_message(one) for one in value] if key in _CONVERSATIONS else value
        for key, value in row.items()
    }


def _check_tools(target: Path, rows: Sequence[Row]) -> None:
    """Refuse schemas that a table would change: in one column, all get the keys of each as nulls.

    verl gives the column to the chat template as it is, so the policy would be shown those nulls.
    """
    tools = [row["tools"] for row in rows if isinstance(row.get("tools"), list)]
    if not tools or importlib.util.find_spec("pyarrow") is None:
        return
    import pyarrow as pa  # noqa: PLC0415

    try:
        same = pa.array(tools).to_pylist() == tools
    except (pa.ArrowException, TypeError, OverflowError):
        same = False
    if not same:
        kinds = {_digest(tool) for of in tools for tool in of}
        raise ConfigError(
            f"{target}: tools: their schemas do not fit one table (found {len(kinds)} different "
            "ones): each would have the keys of all as nulls, which verl shows to the policy. "
            "Use --format trl, which writes tools as text, or a file that ends with .jsonl."
        )


_CONVERSATIONS = ("prompt", "chosen", "rejected", "messages")


def _table_message(message: Row) -> Row:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_table_call(call) for call in calls]}


def _table_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str | None):
        return call
    arguments = encode_json(function["arguments"], repr).decode()
    return {**call, "function": {**function, "arguments": arguments}}


def describe_export(report: ExportReport) -> Iterable[tuple[str, int]]:
    """What was left out, the most frequent reason first: reason and count."""
    yield from ((f"samples: {why}", count) for why, count in report.left_out.most_common())
    yield from ((f"pairs: {why}", count) for why, count in report.pairs_left_out.most_common())
