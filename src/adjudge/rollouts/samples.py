"""Rows as samples: which column is which, and what a sample must have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError, RolloutError
from adjudge.messages import first_question, last_answer, parse_conversation
from adjudge.rollouts.rows import (
    MISSING,
    FileRow,
    get_path,
    has_response_list,
    read_rows,
    split_responses,
)
from adjudge.text import encode_exactly
from adjudge.types import Sample

SAMPLE_FIELDS = ("messages", "prompt", "response", "reference", "group", "env_reward")
"""The columns that mean something by name; every other column is an extra."""

_RENAMED = ("messages", "prompt", "response")
_CHECKED_ROWS = 1000


def read_samples(
    paths: Sequence[Path], mapping: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Sample | RolloutError]]:
    """``FILE:LINE`` and the sample of every row in order, or what is wrong with the row.

    ``mapping`` names where a field comes from: ``{"messages": "traj", "answer": "info.gold"}``.
    ``Sample.index`` counts rows over all files, broken ones included. A row with a list
    ``responses`` is as many rows of one group (:mod:`adjudge.rollouts.rows`).
    """
    yield from samples_from_rows(read_rows(paths), mapping or {})


def samples_from_rows(
    rows: Iterable[FileRow], mapping: Mapping[str, str]
) -> Iterator[tuple[str, Sample | RolloutError]]:
    """:func:`read_samples` of rows that are here already, or come from elsewhere."""
    for index, (where, row) in enumerate(_each_response(rows, mapping)):
        if isinstance(row, RolloutError):
            yield where, row
            continue
        try:
            yield where, sample_from_row(row, index, mapping)
        except RolloutError as error:
            yield where, RolloutError(str(error), where=where)


def _each_response(rows: Iterable[FileRow], mapping: Mapping[str, str]) -> Iterator[FileRow]:
    """The rows; one with a list of responses once for each of them."""
    for number, (where, row) in enumerate(rows):
        if isinstance(row, RolloutError) or not has_response_list(row, mapping):
            yield where, row
            continue
        for one in split_responses(row, f"row {number}"):
            yield where, one if isinstance(one, dict) else RolloutError(str(one), where=where)


def check_mapping(paths: Sequence[Path], mapping: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` for a mapped column that none of the first rows has."""
    next(with_checked_mapping(read_rows(paths), mapping), None)


def with_checked_mapping(rows: Iterable[FileRow], mapping: Mapping[str, str]) -> Iterator[FileRow]:
    """``rows``, of which the first are looked at for the mapped columns before any is given.

    Raises :class:`ConfigError` for a column that none of them has. So a stream, which can be read
    only once, is checked too.
    """
    if "index" in mapping:
        raise ConfigError("--map index: cannot be mapped, since index counts the input rows")
    rows = iter(rows)
    wanted, columns, first = dict(mapping), dict[str, None](), list[FileRow]()
    while wanted and len(first) < _CHECKED_ROWS and (found := next(rows, None)) is not None:
        first.append(found)
        if not isinstance(row := found[1], RolloutError):
            columns |= dict.fromkeys(row)
            wanted = {f: path for f, path in wanted.items() if get_path(row, path) is MISSING}
    if columns:
        for field, path in wanted.items():
            raise ConfigError(
                f"--map {field}={path}: none of the first rows has {path!r}"
                f"{suggest_name(path, columns)} (columns: {', '.join(columns)[:300]})"
            )
    yield from first
    yield from rows


def sample_from_row(row: Mapping[str, Any], index: int, mapping: Mapping[str, str]) -> Sample:
    """One row as a :class:`~adjudge.Sample`; raises :class:`RolloutError`.

    A row needs ``messages`` or ``response``. Without ``response`` the last assistant message is
    the response; without ``prompt`` the last user message before the first assistant's is. A mapped
    column that the row lacks is null. Columns stay available as extras under their own name, those
    mapped to messages, prompt or response excepted.
    """
    columns = dict(row)
    for field, path in mapping.items():
        value = get_path(row, path)
        columns[field] = None if value is MISSING else value
        if field in _RENAMED and path != field:
            columns.pop(path, None)  # the bulk of a row is not kept twice
    messages = _parse_messages(columns.pop("messages", None))
    prompt = _parse_prompt(columns.pop("prompt", None))
    response = _parse_text(columns.pop("response", None), "response")
    if messages is None and response is None:
        raise RolloutError(
            "has neither 'messages' nor 'response'; name the column with --map messages=COLUMN "
            f"(columns: {', '.join(sorted(row))[:200]})"
        )
    columns.pop("index", None)
    return Sample(
        index=index,
        messages=messages,
        prompt=prompt if prompt is not None else first_question(messages),
        response=response if response is not None else last_answer(messages),
        reference=columns.pop("reference", None),
        group=_parse_group(columns.pop("group", None)),
        env_reward=_parse_number(columns.pop("env_reward", None)),
        extras=columns,
    )


def _parse_messages(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if isinstance(value, str):  # trainers often store the list as JSON text
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RolloutError(f"'messages' is text but not JSON: {error}") from None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RolloutError(
            f"'messages' must be a list of chat messages, got {_describe_value(value)}"
        )
    return value


def _parse_prompt(value: Any) -> str | None:
    """Text, or a conversation (the chat form of a prompt) as its canonical JSON."""
    if isinstance(value, list):
        return msgspec.json.encode(value).decode()
    return _parse_text(value, "prompt")


def _parse_text(value: Any, field: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if field == "response" and isinstance(value, list) and value:
        return last_answer(_parse_messages(value)) or ""
    raise RolloutError(f"{field!r} must be text, got {_describe_value(value)}")


def _parse_group(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None  # how pandas writes "none"
    if isinstance(value, str | int | float | bool):
        return str(value)
    raise RolloutError(f"'group' must be text or a number, got {_describe_value(value)}")


def _parse_number(value: Any) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool | int | float | Decimal):
        with suppress(OverflowError):
            if math.isfinite(number := float(value)):
                return number
    raise RolloutError(f"'env_reward' must be a finite number, got {_describe_value(value)}")


def _describe_value(value: Any) -> str:
    try:
        return f"{type(value).__name__}: {value!r:.60}"
    except ValueError:  # an integer too long to print
        return type(value).__name__


@dataclass(frozen=True)
class BrokenInputRow:
    """A row that is no sample: ``where`` is ``FILE:LINE``."""

    where: str
    message: str


class SampleReader:
    """The usable samples of files, or of ``rows`` that are in memory, as often as they are needed.

    ``broken`` lists the rows that are no samples, as far as they were read; with ``strict`` the
    first of them is raised.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        mapping: Mapping[str, str],
        *,
        rows: Sequence[FileRow] | None = None,
        strict: bool = False,
    ) -> None:
        self._paths, self._rows = paths, rows
        self._mapping, self._strict = mapping, strict
        self.broken: list[BrokenInputRow] = []

    def __iter__(self) -> Iterator[Sample]:
        """From the first one on; raises :class:`ConfigError` and :class:`RolloutError`."""
        self.broken.clear()
        rows = read_rows(self._paths) if self._rows is None else self._rows
        checked = with_checked_mapping(rows, self._mapping)
        for where, sample in samples_from_rows(checked, self._mapping):
            if not isinstance(sample, RolloutError):
                yield sample
            elif self._strict:
                raise sample
            else:
                self.broken.append(BrokenInputRow(where, str(sample).removeprefix(f"{where}: ")))


def compute_prompt_key(sample: Sample) -> str | None:
    """What makes two samples answers to the same prompt when no column says so.

    The conversation up to the first assistant message, else the prompt's text; ``None`` for a
    sample that has neither: it is like no other.
    """
    opening = []
    for message in sample.messages or []:
        if message.get("role") == "assistant":
            break
        opening.append((message.get("role"), message.get("content")))
    if opening:
        return msgspec.json.encode(opening, order="deterministic").decode()
    return sample.prompt or None


class GroupNames:
    """Names each sample's group: its column, else one name per distinct prompt.

    Generated names stand in parentheses with a number, and are never those of a column: the
    counter skips names that rows have used.
    """

    def __init__(self) -> None:
        self._prompts: dict[bytes, str] = {}
        self._columns: set[str] = set()
        self._made: set[str] = set()
        self._by_column = self._by_prompt = self._alone = 0

    def name(self, sample: Sample) -> str:
        """The name of the next sample's group."""
        if sample.group is not None:
            self._by_column += 1
            self._columns.add(sample.group)
            return f"{sample.group} (column)" if sample.group in self._made else sample.group
        key = compute_prompt_key(sample)
        if key is None:
            self._alone += 1
            return self._new("row", sample.index)
        self._by_prompt += 1
        # Prompts are long, and there may be as many as samples.
        digest = blake2b(encode_exactly(key), digest_size=16).digest()
        if digest not in self._prompts:
            self._prompts[digest] = self._new("prompt", len(self._prompts))
        return self._prompts[digest]

    def _new(self, kind: str, number: int) -> str:
        name = f"({kind} {number})"
        while name in self._columns:
            name = f"({name})"
        self._made.add(name)
        return name

    @property
    def source(self) -> str:
        """Where the names came from, in words."""
        ways = {
            "column": self._by_column,
            "equal prompts": self._by_prompt,
            "no prompt, each alone": self._alone,
        }
        used = {way: count for way, count in ways.items() if count}
        if len(used) == 1:
            return next(iter(used))
        return "; ".join(f"{way}: {count} rows" for way, count in used.items())


_NAMES: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "traj", "trajectory", "conversation", "conversations", "chat"),
    "prompt": ("prompt", "question", "query", "instruction", "problem", "input"),
    "response": ("response", "completion", "output", "generation", "prediction"),
    "reference": (
        "reference",
        "ground_truth",
        "gold",
        "solution",
        "target",
        "label",
        "expected",
        "reference_answer",
        "answer",
    ),
    "group": ("group", "group_id", "uid", "task_id", "prompt_id", "problem_id", "question_id"),
    "env_reward": ("env_reward", "reward", "score", "outcome", "success", "passed", "correct"),
}


def guess_mapping(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """``{field: column}`` for the fields whose column has another name; never two for one column.

    A name counts only where the values fit the field: messages are lists of chat messages,
    rewards are numbers, a group's values repeat or look like ids.
    """
    columns = [column for column, _ in Counter(c for row in rows for c in row).most_common()]
    by_lower = {column.lower(): column for column in reversed(columns)}
    guessed: dict[str, str] = {}
    for field, names in _NAMES.items():
        for name in names:
            column = by_lower.get(name)
            if column is None or column in guessed.values():
                continue
            if _FITS[field]([row[column] for row in rows if row.get(column) is not None]):
                guessed[field] = column
                break
    return {field: column for field, column in guessed.items() if field != column}


def _are_conversations(values: Sequence[Any]) -> bool:
    return bool(values) and all(parse_conversation(value) is not None for value in values)


def _are_texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _are_prompts(values: Sequence[Any]) -> bool:
    return _are_texts(values) or _are_conversations(values)


def _are_present(values: Sequence[Any]) -> bool:
    return bool(values)


def _are_ids(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | int) for value in values)


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, int | float) for value in values)


_FITS = {
    "messages": _are_conversations,
    "prompt": _are_prompts,
    "response": _are_texts,
    "reference": _are_present,
    "group": _are_ids,
    "env_reward": _are_numbers,
}
