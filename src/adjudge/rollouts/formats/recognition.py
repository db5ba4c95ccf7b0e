"""Which format the records of a file have: all formats, and how a file is read by one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.datasets.files import FileRow
from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.columns import REFERENCE_COLUMNS, is_nothing
from adjudge.rollouts.formats.agents import AGENT_FORMATS
from adjudge.rollouts.formats.api_results import API_FORMATS
from adjudge.rollouts.formats.base import RolloutFormat, Row, SplitLines
from adjudge.rollouts.formats.columns import (
    find_own_columns,
    find_response_list,
    fits_field,
    guess_mapping,
    has_own_columns,
    list_columns,
    split_responses,
)
from adjudge.rollouts.formats.evaluations import EVALUATION_FORMATS
from adjudge.rollouts.formats.exchanges import EXCHANGE_FORMATS
from adjudge.rollouts.formats.harbor import HARBOR_FORMATS
from adjudge.rollouts.formats.logs import LOG_FORMATS
from adjudge.rollouts.formats.openhands import OPENHANDS_FORMATS
from adjudge.rollouts.formats.preferences import PREFERENCE_FORMATS
from adjudge.rollouts.formats.telemetry import TELEMETRY_FORMATS
from adjudge.rollouts.formats.trainers import TRAINER_FORMATS
from adjudge.types import MISSING, get_path

FORMATS: tuple[RolloutFormat, ...] = (
    *AGENT_FORMATS,
    *HARBOR_FORMATS,
    *EVALUATION_FORMATS,
    *TRAINER_FORMATS,
    *API_FORMATS,
    *PREFERENCE_FORMATS,
    *OPENHANDS_FORMATS,
    *LOG_FORMATS,
    *TELEMETRY_FORMATS,
    *EXCHANGE_FORMATS,
)
"""All formats, the more special before the more general."""

CONTENT_FIELDS = ("messages", "response")
"""A sample has one of these at least."""


@dataclass(frozen=True)
class FileReading:
    """How the records of one file become rows.

    ``format``: theirs; without one, columns are read by name. ``mapping``: the column of a field,
    as users say with ``--map``. ``guessed``: the columns that are taken for fields by their names.
    """

    format: RolloutFormat | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    guessed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_by_name(self) -> bool:
        """Whether columns are read under their own names, and nothing else."""
        return self.format is None and not self.mapping and not self.guessed

    @property
    def file_is_task(self) -> bool:
        """Whether a file is named by the task that its samples are about."""
        return self.format is not None and self.format.file_is_task

    @property
    def title(self) -> str:
        """What the file is, for people."""
        if self.format is not None:
            return self.format.title
        used = {**self.guessed, **self.mapping}
        named = ", ".join(f"{name} from {column}" for name, column in used.items())
        return f"columns by name{f' ({named})' if named else ''}"

    def join_lines(self, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """A file's rows; the lines of a conversation as one row in the place of the first."""
        split = None if self.format is None else self.format.conversations
        return rows if split is None else _join_lines(rows, split)

    def rows(self, record: Mapping[str, Any], number: int) -> Iterator[Row | RolloutError]:
        """The rows of a file's record, ``number`` of all records; raises :class:`RolloutError`."""
        try:
            rows = list(self._split(record, f"row {number}"))
        except (LookupError, TypeError, AttributeError):
            form = self.format
            if form is None or form.conversations is not None or form.matches(record):
                raise
            raise RolloutError(f"is unlike the first rows: no record of {self.title}") from None
        by_name = self.format is None  # the row has all columns, some of them changed by splitting
        parts: Sequence[Mapping[str, Any]] = []
        if self.mapping and self.format is not None and self.format.parts is not None:
            parts = self.format.parts(record)
        for place, row in enumerate(rows):
            if isinstance(row, RolloutError):
                yield row
                continue
            is_log = self.format is not None and self.format.conversations is not None
            if not is_log and len(rows) > 1 and row.get("group") is None:
                row["group"] = f"row {number}"
            named = apply_mapping(row, row, self._guesses_for(row), drop=CONTENT_FIELDS)
            source = row if by_name else {**record, **parts[place]} if parts else record
            yield apply_mapping(named, source, self.mapping)

    def _guesses_for(self, row: Row) -> Mapping[str, str]:
        """The guesses that hold in a row: nobody said that its group and reward are there.

        The reference is chosen row by row where rows become samples, unless its column's name is
        written in another way.
        """
        return {
            name: column
            for name, column in self.guessed.items()
            if (name not in ("group", "env_reward") or fits_field(name, row.get(column)))
            and not (name == "reference" and column in REFERENCE_COLUMNS)
        }

    def _split(self, record: Mapping[str, Any], group: str) -> Iterable[Row | RolloutError]:
        if self.format is not None:
            return self.format.convert(record)
        mapped = any(name in self.mapping for name in CONTENT_FIELDS)
        if not mapped and find_response_list(record) is not None:
            return split_responses(record, group)
        return [dict(record)]


def _join_lines(rows: Iterator[FileRow], split: SplitLines) -> Iterator[FileRow]:
    places, lines = [], []
    for where, row in rows:
        if isinstance(row, RolloutError):
            yield where, row
        else:
            places.append(where)
            lines.append(row)
    for talk in split(lines) if lines else ():
        yield places[talk[0]], {"lines": [lines[place] for place in talk]}


def apply_mapping(
    row: Mapping[str, Any],
    record: Mapping[str, Any],
    mapping: Mapping[str, str],
    drop: Sequence[str] = (*CONTENT_FIELDS, "prompt"),
) -> Row:
    """``row`` with the fields of ``mapping``, from columns of the record, else of the row itself.

    A mapped column that is nowhere is null. One that is now a field of ``drop`` does not stay under
    its old name: it is the bulk of a row.
    """
    columns = dict(row)
    for name, path in mapping.items():
        value = get_path(record, path)
        value = get_path(row, path) if value is MISSING else value
        columns[name] = None if value is MISSING else value
        if name == "reference" and is_nothing(value):
            columns[name] = MISSING  # nothing stands in for a column that the user named
        if name in drop and path != name:
            columns.pop(path, None)
    return columns


def _has_format(record: Mapping[str, Any], form: RolloutFormat) -> bool:
    return form.matches(record) and find_own_columns(record) <= set(form.own)


def _is_table_by_column(record: Mapping[str, Any]) -> bool:
    """Whether each column is an object by row, as pandas writes a table by default."""
    return bool(record) and all(
        isinstance(column, Mapping) and "0" in column for column in record.values()
    )


def find_reading(records: Sequence[Mapping[str, Any]], mapping: Mapping[str, str]) -> FileReading:
    """How to read a file that begins with these records.

    Where ``mapping`` names the conversation or the response, columns are read by name. A field
    without a column of its name is then read from a usual one. Raises :class:`ConfigError` for
    records in which there is neither conversation nor response.
    """
    mapped = any(name in mapping for name in CONTENT_FIELDS)
    for one in FORMATS:
        fits = all if one.conversations is None else any
        if records and not mapped and fits(_has_format(record, one) for record in records):
            return FileReading(one, mapping)
    columns = dict.fromkeys(str(name) for record in records for name in record)
    guessed = {
        name: column
        for name, column in guess_mapping(records).items()
        if name not in mapping and column not in mapping.values()
    }
    if not records or mapped or has_own_columns(records):
        # Groups decide about advantages: beside an own response they are equal prompts until said.
        known = {*CONTENT_FIELDS, "group"}
        known |= {"prompt"} if "messages" in {*columns, *mapping} else set()
        # A run of adjudge's own: `reward` is the judge's, and `env_reward` is there, null or not.
        known |= {"env_reward"} if "reward_info" in columns else set()
        others = {name: guessed[name] for name in guessed if name not in known}
        return FileReading(mapping=mapping, guessed=others)
    if not any(name in guessed for name in CONTENT_FIELDS):
        if any("responses" in record for record in records):  # a list that has nothing so far
            return FileReading(mapping=mapping)
        if _is_table_by_column(records[0]):
            raise ConfigError(
                "is a table written column by column. Write its rows instead; in pandas: "
                'to_json(path, orient="records", lines=True).'
            )
        raise ConfigError(
            f"is in no known format, and no column looks like a conversation or a response "
            f"(columns: {list_columns(columns)}). Name them with -m messages=COLUMN, or with "
            "-m prompt=COLUMN -m response=COLUMN; the dump's own reward with -m env_reward=COLUMN."
        )
    return FileReading(mapping=mapping, guessed=guessed)
