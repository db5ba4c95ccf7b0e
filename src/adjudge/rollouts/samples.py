"""Files of rollouts as samples: read, recognised, and what a sample must have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import suggest_name
from adjudge.datasets.files import FileRow, find_files, read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.messages import first_question, last_answer
from adjudge.rollouts.formats.columns import RESPONSE_LISTS, SAMPLE_FIELDS, list_columns
from adjudge.rollouts.formats.fields import is_not_finite_text
from adjudge.rollouts.formats.recognition import FileReading, apply_mapping, find_reading
from adjudge.text import encode_exactly, encode_json
from adjudge.types import MISSING, Sample, get_path

_CHECKED_ROWS = 1000
HEAD_ROWS = 20
"""Rows of a file by which its format is recognised."""

SampleOrError = tuple[str, Sample | RolloutError]
"""``FILE:ROW`` and the sample of a row, or what is wrong with the row."""


def read_samples(
    paths: Sequence[Path], mapping: Mapping[str, str] | None = None
) -> Iterator[SampleOrError]:
    """The sample of every row in order, or what is wrong with the row.

    ``paths`` are files, folders or patterns. Each file's format is recognised by its content
    (:mod:`adjudge.rollouts.formats`); ``mapping`` names where a field comes from instead:
    ``{"messages": "traj", "answer": "info.gold"}``. ``Sample.index`` counts samples over all files,
    broken rows included.
    """
    yield from SampleReader(paths, mapping or {}).read()


def check_mapping(rows: Iterable[FileRow], mapping: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` for a mapped column that none of the first rows has."""
    if "index" in mapping:
        raise ConfigError("--map index: cannot be mapped, since index counts the input rows")
    wanted, columns = dict(mapping), dict[str, None]()
    for _, row in islice(rows, _CHECKED_ROWS if wanted else 0):
        if not isinstance(row, RolloutError):
            columns |= dict.fromkeys(row)
            wanted = {f: path for f, path in wanted.items() if not _has_path(row, path)}
        if not wanted:
            return
    if columns:
        for name, path in wanted.items():
            raise ConfigError(
                f"--map {name}={path}: none of the first rows has {path!r}"
                f"{suggest_name(path, columns)} (columns: {list_columns(columns)})"
            )


def _has_path(row: Mapping[str, Any], path: str) -> bool:
    """Whether a row has it, or a sample in a list of the row, as a dump of many samples is."""
    if get_path(row, path) is not MISSING:
        return True
    lists = (value for value in row.values() if isinstance(value, list))
    parts = (one for value in lists for one in value[:_CHECKED_ROWS] if isinstance(one, Mapping))
    return any(get_path(one, path) is not MISSING for one in parts)


def sample_from_row(
    row: Mapping[str, Any],
    index: int,
    mapping: Mapping[str, str] | None = None,
    *,
    where: str = "",
) -> Sample:
    """One row as a :class:`~adjudge.Sample`, read from ``where``; raises :class:`RolloutError`.

    A row needs ``messages`` or ``response``. Without ``response`` the last assistant message is
    the response; without ``prompt`` the last user message before the first assistant's is. A mapped
    column that the row lacks is null. Columns stay available as extras under their own name, those
    mapped to messages, prompt or response excepted.
    """
    columns = apply_mapping(row, row, mapping) if mapping else dict(row)
    messages = _parse_messages(columns.pop("messages", None))
    prompt = _parse_prompt(columns.pop("prompt", None))
    response = _parse_text(columns.pop("response", None), "response")
    if messages is None and response is None:
        raise RolloutError(
            "has neither 'messages' nor 'response'; name the column with --map messages=COLUMN "
            f"(columns: {list_columns(sorted({*row} - {*SAMPLE_FIELDS}))})"
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
        where=where,
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
    if is_not_finite_text(value):  # null in a JSON file, too
        return None
    if isinstance(value, bool | int | float | Decimal | str):  # a CSV file's numbers are text
        with suppress(OverflowError, ValueError):
            if math.isfinite(number := float(value)):
                return number
    raise RolloutError(f"'env_reward' must be a finite number, got {_describe_value(value)}")


def _describe_value(value: Any) -> str:
    try:
        return f"{type(value).__name__}: {value!r:.60}"
    except (ValueError, RecursionError):  # an integer too long to print; too deep
        return type(value).__name__


@dataclass(frozen=True)
class BrokenInputRow:
    """A row that is no sample: ``where`` is ``FILE:ROW``."""

    where: str
    message: str


class SampleReader:
    """The samples of rollouts, as often as they are needed.

    ``paths`` are files, folders or patterns; ``rows`` rollouts in memory in their place, which with
    ``by_name`` are read by the names of their columns alone. ``broken`` lists the rows that are no
    samples, as far as they were read; with ``strict`` the first of them is raised. ``readings``
    says how each file was read, ``skipped`` why a file that only a folder named was not.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        mapping: Mapping[str, str],
        *,
        rows: Sequence[FileRow] | None = None,
        by_name: bool = False,
        strict: bool = False,
    ) -> None:
        self._paths, self._rows, self._by_name = paths, rows, by_name
        self._mapping, self._strict = mapping, strict
        self._named = {str(path) for path in paths}
        self.broken: list[BrokenInputRow] = []
        self.readings: dict[str, FileReading] = {}
        self.skipped: dict[str, str] = {}
        self._requests: dict[str, Mapping[str, Any]] | None = None

    def __iter__(self) -> Iterator[Sample]:
        """From the first one on; raises :class:`ConfigError` and :class:`RolloutError`."""
        self.broken.clear()
        for where, sample in self.read():
            if not isinstance(sample, RolloutError):
                yield sample
            elif self._strict:
                raise sample
            else:
                self.broken.append(BrokenInputRow(where, str(sample).removeprefix(f"{where}: ")))

    def read(self) -> Iterator[SampleOrError]:
        """Every row in order: its sample, or what is wrong with it."""
        self.readings.clear()
        self.skipped.clear()
        index = number = 0
        for reading, rows in self._read_files():
            by_name = reading.is_by_name
            for where, record in rows:
                one_row = isinstance(record, RolloutError) or (
                    by_name
                    and (record.get("response") is not None or RESPONSE_LISTS.isdisjoint(record))
                )
                for row in (record,) if one_row else self._convert(where, record, reading, number):
                    if reading.file_is_task and isinstance(row, dict) and row.get("group") is None:
                        row["group"] = Path(where.rpartition(":")[0]).stem
                    yield where, _as_sample(row, index, where)
                    index += 1
                number += 1
        if self.skipped and not self.readings:
            file, reason = next(iter(self.skipped.items()))
            raise ConfigError(f"{file}: {reason}")

    def _convert(
        self, where: str, record: Any, reading: FileReading, number: int
    ) -> Iterator[Mapping[str, Any] | RolloutError]:
        """The rows of a record; a request is none, and goes with its result."""
        join = None if reading.format is None else reading.format.join
        if reading.format is not None and (request_id := reading.format.request_id) is not None:
            if request_id(record) is not None:
                return
            if self._requests is None:
                self._requests = dict(self._read_requests(request_id))
            record = self._requests.get(str(record.get("custom_id")), {}) | record
        try:
            if join is not None and self._rows is None:
                record = join(Path(where.rpartition(":")[0]), record)
            if record is not None:
                yield from reading.rows(record, number)
        except RolloutError as error:
            yield error

    def _read_requests(
        self, request_id: Callable[[Mapping[str, Any]], str | None]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for _, rows in self._files():
            for _, record in rows:
                if isinstance(record, RolloutError):
                    continue
                if (name := request_id(record)) is None:
                    break  # a file of something else
                yield name, record

    def count_formats(self) -> dict[str, int]:
        """How many files were read as what."""
        return dict(Counter(reading.title for reading in self.readings.values()))

    def find_readings(self) -> dict[Path, FileReading]:
        """How each file that holds samples is read, by its first rows."""
        found = {
            file: self._find_reading(str(file), list(islice(self._rows_of(file), HEAD_ROWS)))
            for file in find_files(self._paths)
        }
        return {
            file: reading
            for file, reading in found.items()
            if reading is not None and str(file) not in self.skipped
        }

    def _read_files(self) -> Iterator[tuple[FileReading, Iterator[FileRow]]]:
        """How each file is read, and its rows."""
        check_mapping(chain.from_iterable(rows for _, rows in self._files()), self._mapping)
        for file, rows in self._files():
            head = list(islice(rows, HEAD_ROWS))
            reading = self._find_reading(file, head)
            if reading is not None:
                self.readings[file] = reading
                yield reading, chain(head, rows)

    def _files(self) -> Iterator[tuple[str, Iterator[FileRow]]]:
        """The name and the rows of each file, or of what is in memory."""
        if self._rows is not None:
            name = self._rows[0][0].rpartition(":")[0] if self._rows else ""
            yield name, iter(self._rows)
            return
        for file in find_files(self._paths):
            yield str(file), self._rows_of(file)

    def _rows_of(self, file: Path) -> Iterator[FileRow]:
        """A file's rows; what of a folder's file cannot be read is a broken row."""
        try:
            yield from read_rows([file])
        except ConfigError as error:
            if str(file) in self._named:
                raise
            yield str(file), RolloutError(str(error).removeprefix(f"{file}: "), where=str(file))

    def _find_reading(self, file: str, head: Sequence[FileRow]) -> FileReading | None:
        """How a file is read; ``None`` where it is skipped."""
        if self._by_name:
            return FileReading(mapping=self._mapping)
        try:
            records = [record for _, record in head if not isinstance(record, RolloutError)]
            return find_reading(records, self._mapping)
        except ConfigError as error:
            if self._rows is not None or file in self._named:
                name = file or "rollouts"
                raise ConfigError(f"{name}: {error}") from None
            self.skipped[file] = str(error)
            return None


def _as_sample(
    row: Mapping[str, Any] | RolloutError, index: int, where: str
) -> Sample | RolloutError:
    if isinstance(row, RolloutError):
        return row if str(row).startswith(where) else RolloutError(str(row), where=where)
    try:
        return sample_from_row(row, index, where=where)
    except RolloutError as error:
        return RolloutError(str(error), where=where)


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


def compute_rollout_key(sample: Sample) -> str:
    """What was judged, as 32 hexadecimal digits: equal for equal prompt, messages and response.

    Two runs over the same rollouts, and people's labels, are joined by it; references, groups and
    other columns play no part.
    """
    said = [sample.prompt, sample.messages, sample.response]
    return blake2b(encode_json(said, repr), digest_size=16).hexdigest()


class GroupNames:
    """Names each sample's group: its column, else one name per distinct prompt of a step.

    Where no row has a step, all are of one. Generated names stand in parentheses with a number, and
    are never those of a column: the counter skips names that rows have used. With ``split_steps``
    a column's group is divided, too, where its rows are of several steps.
    """

    def __init__(self, *, split_steps: bool = False) -> None:
        self._prompts: dict[bytes, str] = {}
        self._columns: set[str] = set()
        self._made: set[str] = set()
        self._by_column = self._by_prompt = self._alone = 0
        self._by_step = False
        self._first_steps: dict[str, int | None] | None = {} if split_steps else None

    def name(self, sample: Sample) -> str:
        """The name of the next sample's group."""
        if sample.group is not None:
            self._by_column += 1
            self._columns.add(sample.group)
            name = f"{sample.group} (column)" if sample.group in self._made else sample.group
            if self._first_steps is not None and (
                self._first_steps.setdefault(name, sample.step) != sample.step
            ):
                return f"{name} (step {sample.step})"
            return name
        key = compute_prompt_key(sample)
        if key is None:
            self._alone += 1
            return self._new("row", sample.index)
        self._by_prompt += 1
        if sample.step is not None:
            self._by_step = True
            key = f"{sample.step}\0{key}"
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
            "equal prompts of a step" if self._by_step else "equal prompts": self._by_prompt,
            "no prompt, each alone": self._alone,
        }
        used = {way: count for way, count in ways.items() if count}
        if len(used) == 1:
            return next(iter(used))
        return "; ".join(f"{way}: {count} rows" for way, count in used.items())
