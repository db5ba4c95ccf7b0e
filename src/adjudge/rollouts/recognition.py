"""Which format the records of a file have: all formats, and how a file is read by one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from adjudge.config import suggest_name
from adjudge.datasets.files import FileRow
from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.columns import (
    REFERENCE_COLUMNS,
    RewardColumns,
    describe_value,
    is_nothing,
    read_env_reward,
)
from adjudge.intake.conversation import looks_like_messages, read_messages
from adjudge.intake.rollouts import first_turn
from adjudge.rollouts.columns import (
    find_column,
    find_log,
    find_own_columns,
    find_response_list,
    find_reward_column,
    fits_field,
    guess_mapping,
    has_own_columns,
    is_list_of_texts,
    is_step_table,
    join_input,
    list_columns,
    read_log,
    split_responses,
)
from adjudge.rollouts.fields import RolloutFormat, Row, SplitLines
from adjudge.rollouts.nested import (
    OF_ATTEMPTS,
    describe_row_paths,
    find_attempts,
    has_conversations,
    head_rows,
    is_table_by_row,
    rows_at,
)
from adjudge.types import MISSING, get_path

_PLAIN_COLUMNS = frozenset({"prompt", "response", "reference", "group", "env_reward", "step"})
"""adjudge's own columns, which no format has alone: of such records no format is asked."""

_LOOKED_AT = 1000
"""Rows, or parts of them, in which a column may be."""

CONTENT_FIELDS = ("messages", "response")
"""A sample has one of these at least."""


@dataclass(frozen=True)
class FileReading:
    """How the records of one file become rows.

    ``format``: theirs; without one, columns are read by name. ``mapping``: the column of a field,
    as users say with ``--map``. ``guessed``: the columns that are taken for fields by their names.
    ``nested``: the path to the rows within each record, as users say with ``-m rows=PATH``.
    ``rewards``: which columns may be the reward, and which is; nothing where the user named it.
    ``texts`` is false where rows have rewards alone, and in a log of metrics by step, of which
    ``log`` says what it is.
    """

    format: RolloutFormat | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    guessed: Mapping[str, str] = field(default_factory=dict)
    nested: str | None = None
    rewards: RewardColumns = field(default_factory=RewardColumns)
    texts: bool = True
    log: str = ""

    @property
    def title(self) -> str:
        """What the file is, for people."""
        by_name = self.log or ("columns by name" if self.texts else "rewards without texts")
        what = by_name if self.format is None else self.format.title
        return f"{what}, rows under {self.nested}" if self.nested else what

    def read_own_reward(self, extra: Mapping[str, Any]) -> tuple[bool, float | None]:
        """Whether a row's reward is its ``reward``, with the environment's beside it; and which.

        ``None`` where the row has no number there. Where the column ``reward`` is the
        environment's, it is read as such.
        """
        said, named = extra.get("reward", ""), {*self.mapping, *self.guessed}
        if self.format is not None or "env_reward" in named:
            return False, None
        with suppress(RolloutError):
            return True, read_env_reward(said)
        return self.rewards.beside, None

    def join_lines(self, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """A file's rows; the lines of a conversation as one row in the place of the first."""
        split = None if self.format is None else self.format.conversations
        return rows if split is None else _join_lines(rows, split)

    def places(
        self, record: Mapping[str, Any], number: int
    ) -> Iterator[tuple[str, Row | RolloutError]]:
        """The rows of a file's record, ``number`` of all, each with its place in the record.

        The place of the record itself is ``""``. Raises :class:`RolloutError`.
        """
        if self.nested is None:
            rows = list(self._rows(record, number))
            sides = () if self.format is None else self.format.sides
            names = sides if len(sides) == len(rows) else range(len(rows))
            for name, one in zip(names, rows, strict=True):
                yield str(name) if len(rows) > 1 else "", one
            return
        inner, found = replace(self, nested=None), False
        for place, row in rows_at(record, self.nested, self.mapping, f"row {number}"):
            found = True
            try:
                yield from (
                    (".".join(filter(None, (place, at))), one)
                    for at, one in inner.places(row, number)
                )
            except RolloutError as error:
                yield place, error
        if not found:
            raise RolloutError(
                f"has no rows under {self.nested!r} (columns: {list_columns(record)})"
            )

    def _rows(self, record: Mapping[str, Any], number: int) -> Iterator[Row | RolloutError]:
        try:
            rows = list(self._split(record, f"row {number}"))
        except (LookupError, TypeError, AttributeError):
            form = self.format
            if form is None or form.conversations is not None or form.matches(record):
                raise
            raise RolloutError(f"is unlike the first rows: no record of {self.title}") from None
        by_name = self.format is None  # the row has all columns, some of them changed by splitting
        parts = self.format.split(record) if self.mapping and self.format is not None else None
        for place, row in enumerate(rows):
            if isinstance(row, RolloutError):
                yield row
                continue
            is_log = self.format is not None and self.format.conversations is not None
            if not is_log and len(rows) > 1 and row.get("group") is None:
                row["group"] = f"row {number}"
            for path in self.mapping.values() if is_log else ():
                if get_path(row, path) is MISSING:
                    columns = list_columns(row)
                    raise RolloutError(
                        f"has no {path!r}, as a sample of a log (columns: {columns})"
                    )
            source = row if by_name else {**record, **parts[place]} if parts else record
            yield self.name_fields(row, source)

    def name_fields(self, row: Row, record: Mapping[str, Any]) -> Row:
        """``row`` with the fields that were guessed, and those that the user named, of a record."""
        named = row
        if self.guessed:
            named = apply_mapping(row, row, self._guesses_for(row), drop=CONTENT_FIELDS)
        if self.guessed.get("prompt") == "instruction":
            named["prompt"] = join_input(row) or named["prompt"]
        return apply_mapping(named, record, self.mapping) if self.mapping else named

    def _guesses_for(self, row: Row) -> Mapping[str, str]:
        """The guesses that hold in a row: nobody said that its group and reward are there."""
        return {
            name: column
            for name, column in self.guessed.items()
            if (name not in ("group", "env_reward") or fits_field(name, get_path(row, column)))
            and (name != "env_reward" or row.get(name) is None)  # beside a list of responses, say
        }

    def _split(self, record: Mapping[str, Any], group: str) -> Iterable[Row | RolloutError]:
        if self.format is not None:
            if self.format.pairs and "prompt" in self.mapping:  # without it they have none
                record = apply_mapping(record, record, {"prompt": self.mapping["prompt"]}, drop=())
            return self.format.rows(record)
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
    own = (name for name in find_own_columns(record) if record[name] is not None)
    return form.matches(record) and all(name in form.own for name in own)


def list_formats() -> tuple[RolloutFormat, ...]:
    """All formats, the more special before the more general."""
    from adjudge.rollouts import (  # noqa: PLC0415  (many modules, and few rows need them)
        agents,
        api_results,
        evaluations,
        logs,
        preferences,
        telemetry,
        trainers,
    )

    return (
        *agents.AGENT_FORMATS,
        *evaluations.HARBOR_FORMATS,
        *evaluations.EVALUATION_FORMATS,
        *trainers.TRAINER_FORMATS,
        *api_results.API_FORMATS,
        *preferences.PREFERENCE_FORMATS,
        *logs.OPENHANDS_FORMATS,
        *logs.LOG_FORMATS,
        *telemetry.TELEMETRY_FORMATS,
        *api_results.EXCHANGE_FORMATS,
    )


def _is_plain(record: Mapping[str, Any]) -> bool:
    texts = record.get("prompt"), record.get("response")
    return record.keys() <= _PLAIN_COLUMNS and all(isinstance(one, str) for one in texts)


def find_reading(records: Sequence[Mapping[str, Any]], mapping: Mapping[str, str]) -> FileReading:
    """How to read a file that begins with these records.

    Where ``mapping`` names the conversation or the response, columns are read by name. A field
    without a column of its name is then read from a usual one. ``rows`` in it is the path to the
    rows within each record. Raises :class:`ConfigError` for records in which there is neither
    conversation nor response, nor a reward or a metric.
    """
    if mapping.keys().isdisjoint((*CONTENT_FIELDS, "rows")) and (log := find_log(records)):
        read_log(records)
        return FileReading(log=log, texts=False)
    if "rows" in mapping or (len(records) == 1 and is_table_by_row(records[0])):
        named = {name: one for name, one in mapping.items() if name != "rows"}
        return _find_nested(records, mapping.get("rows", "."), named)
    _check_columns(records, mapping)
    lists = not mapping and bool(records) and all(map(has_conversations, records))
    found = None if lists else _find_reading(records, mapping)
    if found is not None:
        return found
    if records and mapping.keys().isdisjoint(("env_reward", "group")) and is_step_table(records):
        return FileReading(log="metrics by step", texts=False)
    if (found := _read_rewards(records, mapping)) is not None:
        return found
    columns = dict.fromkeys(str(name) for record in records for name in record)
    lack = "is in no known format, and no column looks like a conversation or a response"
    if lists:
        lack = "has a column 'messages' with a list of conversations in each row"
    elif has_own_columns(records):
        lack = "has a column 'prompt' that is neither text nor a conversation"
    raise ConfigError(f"{lack} (columns: {list_columns(columns)}). {_remedy(records)}")


def _remedy(records: Sequence[Mapping[str, Any]]) -> str:
    """What to do with records in which neither conversation nor response was found."""
    return (
        "Name them with -m messages=COLUMN, or with -m prompt=COLUMN -m response=COLUMN; the "
        f"dump's own reward with -m env_reward=COLUMN.{describe_row_paths(records)}"
    )


def _read_rewards(
    records: Sequence[Mapping[str, Any]], mapping: Mapping[str, str]
) -> FileReading | None:
    """Rows that have rewards by that name, or as the user says, and nothing that may be a text."""
    rewards = _find_rewards(records, None, mapping)
    guessed = {n: one for n, one in guess_mapping(records).items() if n not in mapping}
    asked = {"prompt", *REFERENCE_COLUMNS, *mapping.values(), *guessed.values()}
    named = "env_reward" in mapping or "reward" in (rewards.column or "").lower()
    cells = (
        (isinstance(one, str) and n in asked, one) for row in records for n, one in row.items()
    )
    plain = all(known or _is_label(one) for known, one in cells)
    if len(records) < 2 or not (named and plain) or has_own_columns(records):
        return None
    return FileReading(mapping=mapping, guessed=guessed, rewards=rewards, texts=False)


def _is_label(value: Any) -> bool:
    """Whether a value is no part of a conversation: a number, or a name of a word or two."""
    return value is None or (isinstance(value, str | int | float) and len(str(value).split()) < 3)


def _find_nested(
    records: Sequence[Mapping[str, Any]], path: str, mapping: Mapping[str, str]
) -> FileReading:
    rows = head_rows(records, path, mapping)
    if records and not rows:
        columns = list_columns(dict.fromkeys(str(name) for one in records for name in one))
        raise ConfigError(
            f"--map rows={path}: leads to no objects in the first records (columns: {columns}). "
            f"{_remedy(records)}"
        )
    found = None
    if rows and find_column(rows[0], "prompt") is not None:
        found = _find_reading(rows, mapping, OF_ATTEMPTS)
    try:
        found = found or find_reading(rows, mapping)
    except ConfigError as error:
        raise ConfigError(f"--map rows={path}: what is there {error}") from None
    return replace(found, nested=path if found.nested is None else f"{path}.{found.nested}")


def _find_reading(
    records: Sequence[Mapping[str, Any]],
    mapping: Mapping[str, str],
    responses: Sequence[str] = (),
) -> FileReading | None:
    """The reading of records; ``None`` where neither conversation nor response is found."""
    mapped = any(name in mapping for name in CONTENT_FIELDS)
    for one in () if mapped or all(map(_is_plain, records)) else list_formats():
        fits = all if one.conversations is None else any
        if fits(_has_format(record, one) for record in records):
            rewards = _find_rewards(records, one, mapping)
            guessed = {} if rewards.column is None else {"env_reward": rewards.column}
            return FileReading(one, mapping, guessed, rewards=rewards)
    own = has_own_columns(records) and ("prompt" in mapping or not _have_other_prompts(records))
    if not (mapped or own or responses) and (path := find_attempts(records)) is not None:
        names = (*OF_ATTEMPTS, path.rpartition(".")[2])
        nested = _find_reading(head_rows(records, path, mapping), mapping, names)
        if nested is not None:
            return replace(nested, nested=path)
    columns = dict.fromkeys(str(name) for record in records for name in record)
    guessed = {
        name: column
        for name, column in guess_mapping(records, responses).items()
        if name not in mapping and column not in mapping.values()
    }
    rewards = _find_rewards(records, None, mapping)
    if not records or mapped or own:
        # Groups decide about advantages: beside an own response they are equal prompts until said,
        # where there are prompts.
        known = {*CONTENT_FIELDS}
        known |= {"group"} if {"messages", "prompt"} & {*columns, *mapping, *guessed} else set()
        if records and all(map(_only_asks, records)):
            known -= {"response"}
        known |= {"prompt"} if "messages" in {*columns, *mapping} else set()
        # A run of adjudge's own: `reward` is the judge's, and `env_reward` is there, null or not.
        known |= {"env_reward"} if "reward_info" in columns else set()
        others = {name: guessed[name] for name in guessed if name not in known}
        return FileReading(mapping=mapping, guessed=others, rewards=rewards)
    if any(name in guessed for name in CONTENT_FIELDS):
        return FileReading(mapping=mapping, guessed=guessed, rewards=rewards)
    if any("responses" in record for record in records):  # a list that has nothing so far
        return FileReading(mapping=mapping)
    return None


def _have_other_prompts(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the column ``prompt`` has objects and lists that are no prompts, and nothing else."""
    prompts = [one for record in records if (one := record.get("prompt"))]
    return bool(prompts) and not any(
        not isinstance(one, Mapping | list) or fits_field("prompt", one) for one in prompts
    )


def _only_asks(record: Mapping[str, Any]) -> bool:
    """Whether the conversation of a row has no turn of the assistant."""
    with suppress(RolloutError):
        messages = read_messages(record.get("messages"), "messages")
        return first_turn(messages) == len(messages)
    return False


def check_mapping(rows: Iterable[FileRow], mapping: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` for a mapped column that none of the first rows has."""
    if "index" in mapping:
        raise ConfigError("--map index: cannot be mapped, since index counts the input rows")
    wanted, columns = dict(mapping), dict[str, Any]()
    within = wanted.pop("rows", None)
    for _, record in islice(rows, _LOOKED_AT if wanted else 0):
        if isinstance(record, RolloutError):
            continue
        for row in (record,) if within is None else head_rows([record], within, wanted):
            columns = {**row, **{name: one for name, one in columns.items() if one is not None}}
            wanted = {f: path for f, path in wanted.items() if not _has_path(row, path)}
        if not wanted:
            return
    for name, path in wanted.items() if columns else ():
        raise ConfigError(
            f"--map {name}={path}: none of the first rows has {path!r}{suggest_name(path, columns)}"
            f" (columns: {list_columns(columns)}).{describe_row_paths([columns])}"
        )


def _has_path(row: Mapping[str, Any], path: str) -> bool:
    """Whether a row has it, or a sample in a list of the row, as a dump of many samples is."""
    if get_path(row, path) is not MISSING:
        return True
    lists = (value for value in row.values() if isinstance(value, list))
    parts = (one for value in lists for one in value[:_LOOKED_AT] if isinstance(one, Mapping))
    return any(get_path(one, path) is not MISSING for one in parts)


_STEP_KEYS = ("action", "done", "obs", "next_obs", "observation", "state", "next_state")
_STEP_COUNTERS = ("step_num", "step_idx", "step_id", "step")


def _check_columns(records: Sequence[Mapping[str, Any]], mapping: Mapping[str, str]) -> None:
    """Refuse records that are steps of one trajectory, and a mapped list of objects."""
    steps = [[name for name in _STEP_KEYS if name in record] for record in records]
    counter = next((one for one in _STEP_COUNTERS if records and one in records[0]), None)
    if counter is not None and all("action" in names and len(names) > 1 for names in steps):
        raise ConfigError(
            f"has a line for each step of a trajectory ({', '.join([counter, *steps[0]])}), and no "
            "line is a sample. Write one line for each trajectory, with its turns in 'messages'."
        )
    for name in CONTENT_FIELDS:
        for record in records:
            value = get_path(record, mapping[name]) if name in mapping else None
            if value is not None and not _is_column_of(name, value):
                path, found = mapping[name], describe_value(value)
                column = path.rpartition(".")[2] if is_list_of_texts(value) else "COLUMN"
                raise ConfigError(
                    f"--map {name}={path}: is no {'conversation' if name == 'messages' else 'text'}"
                    f" (found {found}). Name a column inside of an object: -m {name}={path}.COLUMN;"
                    f" each element of a list is a row: -m rows={path} -m {name}={column}."
                )


def _is_column_of(name: str, value: Any) -> bool:
    """Whether a value can be read as ``messages`` or ``response``, or is refused row by row."""
    if isinstance(value, Mapping):
        return name == "response" and fits_field(name, value)
    if name == "response" and is_list_of_texts(value):
        return False
    if not isinstance(value, list) or not value or not isinstance(value[0], Mapping):
        return True
    return looks_like_messages(value)


def _find_rewards(
    records: Sequence[Mapping[str, Any]], form: RolloutFormat | None, mapping: Mapping[str, str]
) -> RewardColumns:
    """Where the first records have their reward, if neither the format nor the user says that."""
    if "env_reward" in mapping or any("reward_info" in record for record in records):
        return RewardColumns()
    if form is None:
        return find_reward_column(records)
    if form.reward is None:
        return RewardColumns()
    parts = chain.from_iterable(form.split(one) or [one] for one in records)
    return form.reward(list(islice(parts, _LOOKED_AT)))
