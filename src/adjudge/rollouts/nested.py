"""Rows within the records of a file: where ``-m rows=PATH`` leads, and attempts at a question.

A path leads through objects and lists to a list of objects, to an object of objects by their ids,
or to columns that are lists of one length. A row has the columns beside the list, too, as far as
it has none of its own for the same field: what a run says of itself as a whole (its mean score, its
texts) is not said of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from adjudge.intake.columns import REWARD_COLUMNS, find_reference
from adjudge.intake.conversation import looks_like_messages
from adjudge.rollouts.columns import NAMES, find_column, list_columns
from adjudge.rollouts.fields import Row
from adjudge.types import get_path

ATTEMPTS = (
    *("completions", "responses", "generations", "outputs", "samples", "rollouts", "trials"),
    *("attempts", "choices", "response", "completion", "generation"),
    *("result.completions", "model_response.text", "response.choices"),
)
"""Columns whose objects, or dotted columns whose texts, are attempts at the question beside."""

OF_ATTEMPTS = ("text", "content", "message", "code")
"""What the response of an attempt may be called, too, beside the prompt."""

_NOT_SHARED = frozenset(NAMES["messages"] + NAMES["response"][:-1] + REWARD_COLUMNS)
"""Columns that a row does not inherit; ``answer``, the last of the responses, is a reference."""
_MOST_CHILDREN, _MOST_DEPTH = 200, 2

_Parents = tuple[tuple[Mapping[str, Any], str], ...]
"""The objects above a place, from the record on, each with the key that leads down."""


def rows_at(
    record: Mapping[str, Any], path: str, mapping: Mapping[str, str], group: str
) -> Iterator[tuple[str, Row]]:
    """Each row under ``path`` of a record (``.`` is the record itself) with its place there.

    ``mapping``: columns that the user named, which are always inherited. Rows that have the prompt
    of the object above them are attempts at it, and one group named after ``group``.
    """
    named = {column.split(".", 1)[0] for column in mapping.values()} | {*mapping.values()}
    steps = [] if path == "." else path.split(".")
    name = next((step for step in reversed(steps) if not step.isdecimal()), "value")
    for number, (place, parents, value) in enumerate(_walk(record, steps, "", ())):
        one_task = not parents and _begin_alike(value)
        for at, own, beside in _split(value, parents, name):
            there = f"{place}.{at}" if place and at else place or at
            if not parents and not beside:
                yield there, own
                continue
            asks = find_column(own, "prompt") is not None
            above = _shared((*parents, (beside, "")), named, mapping.get("prompt"), plain=asks)
            row = _inherit(own, above, named, asks=asks)
            if not asks and (one_task or _is_asked(above, mapping.get("prompt"))):
                row.setdefault("group", f"{group}.{number}" if number else group)
            yield there, row


def has_conversations(record: Any) -> bool:
    """Whether the column ``messages`` of a record is a list of conversations."""
    found = record.get("messages") if isinstance(record, Mapping) else None
    return isinstance(found, list) and bool(found) and all(map(looks_like_messages, found))


def _begin_alike(record: Any) -> bool:
    """Whether the conversations of a record begin with the same words."""
    talks = record["messages"] if has_conversations(record) else []
    return bool(talks) and all(talk[:2] == talks[0][:2] for talk in talks)


def _walk(
    here: Any, steps: Sequence[str], place: str, parents: _Parents
) -> Iterator[tuple[str, _Parents, Any]]:
    """The values at a path; a step that is no index goes on in each object of a list."""
    if not steps:
        yield place, parents, here
    elif isinstance(here, Mapping) and steps[0] in here:
        at = f"{place}.{steps[0]}".lstrip(".")
        yield from _walk(here[steps[0]], steps[1:], at, (*parents, (here, steps[0])))
    elif isinstance(here, list) and steps[0].isdecimal():
        for one in here[int(steps[0]) :][:1]:
            yield from _walk(one, steps[1:], f"{place}.{steps[0]}".lstrip("."), parents)
    else:
        items = here if isinstance(here, list) else _by_id(here)
        for number, one in enumerate(items):
            if isinstance(one, Mapping):
                yield from _walk(one, steps, f"{place}.{number}".lstrip("."), parents)


def _by_id(value: Any) -> list[Mapping[str, Any]]:
    """The objects of an object that has them, or lists of them, by id, each with its ``id``."""
    if not isinstance(value, Mapping):
        return []
    lists = {key: one for key, one in value.items() if _are_objects(one)}
    by_id = lists or {key: [one] for key, one in value.items()}
    if len(by_id) < len(value) or not all(map(_are_objects, by_id.values())):
        return []
    return [{**one, "id": one.get("id", key)} for key, ones in by_id.items() for one in ones]


def _are_objects(value: Any) -> bool:
    """Whether a value is a list of objects, and no conversation."""
    objects = isinstance(value, list) and all(isinstance(one, Mapping) for one in value)
    return objects and bool(value) and not looks_like_messages(value)


def _split(
    value: Any, parents: _Parents, name: str
) -> Iterator[tuple[str, Row, Mapping[str, Any]]]:
    """The rows of a value with their places, and what the value itself says of all of them."""
    if isinstance(value, list):
        beside = parents[-1][0] if parents else {}
        scores = {
            key: column
            for key, column in beside.items()
            if isinstance(column, list) and len(column) == len(value) and _are_scores(column)
        }
        for number, one in enumerate(value):
            own = dict(one) if isinstance(one, Mapping) else {name: one}
            own = {key: column[number] for key, column in scores.items()} | own
            yield str(number), own, {}
    elif isinstance(value, Mapping):
        columns, rest = _columns_of(value)
        if columns:
            for number in range(len(next(iter(columns.values())))):
                yield str(number), {key: columns[key][number] for key in columns}, rest
        elif items := _by_id(value):
            yield from ((str(number), {**one}, {}) for number, one in enumerate(items))
        else:
            yield "", dict(value), {}


def _are_scores(values: Sequence[Any]) -> bool:
    return all(one is None or isinstance(one, bool | int | float) for one in values)


def _columns_of(value: Mapping[str, Any]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The columns of a table that is written column by column, and what else is there.

    Its rows may be lists, too, as ``data`` beside the names of the ``columns``.
    """
    if is_table_by_row(value):
        columns = enumerate(map(str, value["columns"]))
        return {name: [one[n] for one in value["data"]] for n, name in columns}, {}
    if is_table_by_column(value):
        keys = next(iter(value.values()))
        return {name: [one.get(key) for key in keys] for name, one in value.items()}, {}
    lists = {name: one for name, one in value.items() if isinstance(one, list)}
    chats = any(map(looks_like_messages, lists.values()))
    if chats or len({*map(len, lists.values())}) != 1 or all(map(_are_objects, lists.values())):
        return {}, {}
    rest = {name: one for name, one in value.items() if name not in lists}
    return lists, {name: one for name, one in rest.items() if not isinstance(one, Mapping)}


def is_table_by_row(record: Mapping[str, Any]) -> bool:
    """Whether ``data`` is rows as lists, as W&B and pandas write a table beside its columns."""
    names, data = record.get("columns"), record.get("data")
    if not (isinstance(names, list) and isinstance(data, list) and data):
        return False
    return all(isinstance(one, list) and len(one) == len(names) for one in data)


def is_table_by_column(record: Mapping[str, Any]) -> bool:
    """Whether each column is an object by row, as pandas writes a table by default."""
    columns = list(record.values())
    return (
        bool(columns)
        and all(isinstance(column, Mapping) and "0" in column for column in columns)
        and all(column.keys() == columns[0].keys() for column in columns)
        and not any(isinstance(one, Mapping) for one in columns[0].values())
    )


def _is_asked(columns: Mapping[str, Any], prompt: str | None) -> bool:
    """Whether columns have a question, in the column ``prompt`` or by its name."""
    mapped = None if prompt is None else get_path(columns, prompt)
    return isinstance(mapped, str | list) or find_column(columns, "prompt") is not None


def _shared(parents: _Parents, named: set[str], prompt: str | None, *, plain: bool) -> Row:
    """The columns of the objects above, the nearest first; with ``plain`` no lists and objects.

    Lists and objects are a question's; of a run as a whole they are its settings and tables.
    """
    shared: Row = {}
    for parent, used in reversed(parents):
        question = not plain and _is_asked(parent, prompt)
        for name, value in parent.items():
            if name == used:
                continue
            if name in named or (
                name not in _NOT_SHARED and (question or not isinstance(value, list | Mapping))
            ):
                shared.setdefault(name, value)
    return shared


def _inherit(own: Row, above: Mapping[str, Any], named: set[str], *, asks: bool) -> Row:
    """A row with what the objects above say, except of fields for which it has its own column."""
    taken = {*own}
    if asks:
        taken.update(NAMES["prompt"])
    if find_column(own, "group") is not None:
        taken.update(NAMES["group"])
    if find_reference(own) is not None:
        taken.update(NAMES["reference"])
    rest = {key: one for key, one in above.items() if key in named - {*own} or key not in taken}
    return {**rest, **own}


HEAD_ROWS = 20
"""Rows of a file by which its format is recognised."""


def head_rows(
    records: Sequence[Mapping[str, Any]], path: str, mapping: Mapping[str, str]
) -> list[Row]:
    """The first rows under a path of records."""
    rows = (row for one in records for _, row in islice(rows_at(one, path, mapping, ""), HEAD_ROWS))
    return list(islice(rows, HEAD_ROWS))


def find_attempts(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The column with a list of attempts as objects in every record, beside their prompt."""
    for path in ATTEMPTS:
        values = [value for one in records if (value := get_path(one, path)) not in (None, [])]
        given = bool(values) and all(_are_attempts(one, path) for one in values)
        if given and all(find_column(record, "prompt") is not None for record in records):
            return path
    return None


def _are_attempts(value: Any, path: str) -> bool:
    if not isinstance(value, list) or not value or looks_like_messages(value):
        return False
    if not all(isinstance(one, Mapping) for one in value):
        return "." in path and all(isinstance(one, str) for one in value)
    # Parts of one message have types; examples of a task have inputs; a question has choices.
    others = any("type" in one or find_column(one, "prompt") is not None for one in value)
    made = all("message" in one or "finish_reason" in one for one in value)  # by an API
    return not others and (made or not path.endswith("choices"))


def describe_row_paths(records: Sequence[Mapping[str, Any]]) -> str:
    """Where rows lie inside of records, for messages; ``""`` where nowhere."""
    found = list_columns(dict.fromkeys(path for one in records for path in _row_paths(one)))
    return f" Objects inside the records are rows with -m rows=PATH (found {found})." * bool(found)


def _row_paths(value: Any, path: str = "") -> Iterator[str]:
    """The paths under which a list of objects lies that is no conversation."""
    if _are_objects(value):
        yield path
    elif isinstance(value, Mapping) and path.count(".") < _MOST_DEPTH:
        for key, one in islice(value.items(), _MOST_CHILDREN):
            yield from _row_paths(one, f"{path}.{key}" if path else str(key))
