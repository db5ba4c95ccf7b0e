"""Rows in adjudge's own columns: read from files, checked, and written to be read back.

Columns go by their own names (the keyword arguments say which) or by the usual ones:

================  ==========================================================================
demonstrations    ``messages``
preferences       ``chosen``, ``rejected``, perhaps ``margin``
ratings           ``messages``, or ``prompt`` and ``response``; ``label`` 0 to 4
comparisons       ``prompt``, ``a``, ``b``, ``label`` A, B or tie
all               perhaps ``subset``, and ``source_ids`` or ``id``
================  ==========================================================================

A conversation is a list of chat messages or the JSON text of one; a prompt may be plain text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adjudge.config import suggest_name
from adjudge.datasets import files as chat
from adjudge.datasets.files import RawColumns, RawRow, read_raw_rows
from adjudge.datasets.rows import (
    PREFERENCE_LABELS,
    RATINGS,
    BrokenRow,
    ChatMessages,
    Comparison,
    DatasetRow,
    Demonstration,
    LoadedRows,
    Preference,
    Rating,
    RowProblem,
    RowProblems,
    describe_found,
    shared_prompt_length,
)
from adjudge.errors import ConfigError, RolloutError
from adjudge.messages import parse_conversation as guessed_conversation

__all__ = [
    "DataPaths",
    "check_rating",
    "load_rows",
    "make_preference",
    "prompt_messages",
    "read_comparisons",
    "read_demonstrations",
    "read_preferences",
    "read_ratings",
    "source_fields",
    "unreadable_row_problem",
    "write_dataset_rows",
]


_T = TypeVar("_T")
DataPaths = Sequence[Path | str]

_ROWS_INSPECTED = 1000
_MAX_IDS = 64

_USUAL_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "conversation", "conversations"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "margin": ("margin",),
    "prompt": ("prompt", "question", "query", "instruction"),
    "response": ("response", "answer", "completion", "output"),
    "a": ("a", "response_a", "answer_a"),
    "b": ("b", "response_b", "answer_b"),
    "label": ("label", "rating", "better", "winner"),
    "subset": ("subset",),
    "source_ids": ("source_ids",),
    "id": ("id",),
}


def read_demonstrations(
    paths: DataPaths, *, messages_key: str | None = None
) -> LoadedRows[Demonstration]:
    """Conversations to imitate; ``messages_key`` is ``multiturn.messages_key`` of a run file.

    A row that is broken in any way gives no demonstration but a problem. Raises
    :class:`ConfigError` for files or columns that are not there.
    """
    names, rows = _find_columns(paths, {"messages": messages_key})
    column = names["messages"]

    def build(row: RawColumns, where: str) -> Demonstration:
        messages = chat.check_conversation(row.get(column), column)
        return Demonstration(
            messages=chat.check_ends_with_answer(messages, column),
            **source_fields(row, where, names),
        )

    return load_rows(rows, build)


def read_preferences(
    paths: DataPaths,
    *,
    chosen_key: str | None = None,
    rejected_key: str | None = None,
    margin_key: str | None = None,
) -> LoadedRows[Preference]:
    """Pairs of conversations of which one is better.

    Both must begin with the same question, differ, and end with an answer; ``margin`` must be
    finite and not negative. Raises as :func:`read_demonstrations` does.
    """
    given = {"chosen": chosen_key, "rejected": rejected_key}
    names, rows = _find_columns(paths, given, {"margin": margin_key})
    chosen, rejected = names["chosen"], names["rejected"]

    def build(row: RawColumns, where: str) -> Preference:
        margin = (
            _check_margin(row.get(names["margin"]), names["margin"]) if "margin" in names else None
        )
        return make_preference(
            chat.check_conversation(row.get(chosen), chosen),
            chat.check_conversation(row.get(rejected), rejected),
            margin,
            source_fields(row, where, names),
            (chosen, rejected),
        )

    return load_rows(rows, build)


def read_ratings(
    paths: DataPaths,
    *,
    messages_key: str | None = None,
    prompt_key: str | None = None,
    response_key: str | None = None,
    label_key: str | None = None,
) -> LoadedRows[Rating]:
    """Answers with a quality from 0 to 4 (whole numbers; ``3.0`` is one).

    The conversation is one column, or a prompt and a response. Raises as
    :func:`read_demonstrations` does.
    """
    given = {"messages": messages_key, "prompt": prompt_key, "response": response_key}
    names, rows = _find_columns(paths, {"label": label_key}, given)
    if "messages" not in names and not {"prompt", "response"} <= names.keys():
        raise _missing_column("messages (or prompt and response)", paths, rows)

    def build(row: RawColumns, where: str) -> Rating:
        if "messages" in names:
            messages = chat.check_conversation(row.get(names["messages"]), names["messages"])
        else:
            messages = prompt_messages(row.get(names["prompt"]), names["prompt"])
            answer = chat.check_column_text(row.get(names["response"]), names["response"])
            messages = [*messages, {"role": "assistant", "content": answer}]
        return Rating(
            messages=chat.check_ends_with_answer(messages, names.get("messages", "messages")),
            label=check_rating(row.get(names["label"]), names["label"]),
            **source_fields(row, where, names),
        )

    return load_rows(rows, build)


def read_comparisons(
    paths: DataPaths,
    *,
    prompt_key: str | None = None,
    a_key: str | None = None,
    b_key: str | None = None,
    label_key: str | None = None,
) -> LoadedRows[Comparison]:
    """Two answers to one prompt, and which is better: exactly ``A``, ``B`` or ``tie``.

    Raises as :func:`read_demonstrations` does.
    """
    given = {"prompt": prompt_key, "a": a_key, "b": b_key, "label": label_key}
    names, rows = _find_columns(paths, given)

    def build(row: RawColumns, where: str) -> Comparison:
        label = row.get(names["label"])
        if label not in PREFERENCE_LABELS:
            raise BrokenRow(
                names["label"], describe_found(label, label=True), ", ".join(PREFERENCE_LABELS)
            )
        return Comparison(
            prompt=prompt_messages(row.get(names["prompt"]), names["prompt"]),
            a=chat.check_column_text(row.get(names["a"]), names["a"]),
            b=chat.check_column_text(row.get(names["b"]), names["b"]),
            label=label,
            **source_fields(row, where, names),
        )

    return load_rows(rows, build)


def load_rows(rows: Iterable[RawRow], build: Callable[[RawColumns, str], _T]) -> LoadedRows[_T]:
    """What ``build`` makes of each row, and the problems of the rows it raised for."""
    good: list[_T] = []
    problems = RowProblems()
    for where, row in rows:
        if isinstance(row, RolloutError):
            problems.add(unreadable_row_problem(where, row))
            continue
        try:
            good.append(build(row, where))
        except BrokenRow as problem:
            problems.add(problem.problem_at(where))
    return LoadedRows(good, problems)


def unreadable_row_problem(where: str, error: RolloutError) -> RowProblem:
    """The problem of a row that is not even an object."""
    reason = str(error).removeprefix(f"{where}: ")
    return RowProblem(where, "row", f"something else ({reason})", "a JSON object")


def source_fields(row: RawColumns, where: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Where a row is from, by the columns of ``names``: ``where``, ``subset``, ``source_ids``."""
    subset = row.get(names["subset"]) if "subset" in names else None
    if subset is not None and not isinstance(subset, str):
        raise BrokenRow(names["subset"], describe_found(subset), "text")
    keys = [names[name] for name in ("source_ids", "id") if name in names]
    key = next((key for key in keys if row.get(key) is not None), "")
    ids = row.get(key)
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if len(ids) > _MAX_IDS or not all(type(one) in (str, int) for one in ids):
        raise BrokenRow(
            str(key), describe_found(ids), f"text or a whole number, or up to {_MAX_IDS} of them"
        )
    return {"where": where, "subset": subset, "source_ids": tuple(str(one)[:200] for one in ids)}


def prompt_messages(value: Any, key: str) -> ChatMessages:
    """A prompt as messages: plain text is a user's message; raises :class:`BrokenRow`.

    Text that is the JSON of a list of chat messages is that conversation.
    """
    if isinstance(value, str) and not _is_conversation_text(value):
        return [{"role": "user", "content": chat.check_column_text(value, key)}]
    messages = chat.check_conversation(value, key)
    if messages[-1]["role"] == "assistant":
        raise BrokenRow(
            f"{key}[-1].role", "text 'assistant'", "user, system or tool: who is answered"
        )
    return messages


def _is_conversation_text(value: str) -> bool:
    return value.lstrip()[:1] == "[" and guessed_conversation(value) is not None


def check_rating(value: Any, key: str) -> int:
    """``value`` as a label 0 to 4; raises :class:`BrokenRow`."""
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    if not whole or value not in RATINGS:
        raise BrokenRow(key, describe_found(value, label=True), "a whole number from 0 to 4")
    return int(value)


def make_preference(
    chosen: ChatMessages,
    rejected: ChatMessages,
    margin: float | None,
    fields: Mapping[str, Any],
    keys: tuple[str, str] = ("chosen", "rejected"),
) -> Preference:
    """A preference whose sides answer the same question differently, else :class:`BrokenRow`."""
    chat.check_ends_with_answer(chosen, keys[0])
    chat.check_ends_with_answer(rejected, keys[1])
    if chosen == rejected:
        raise BrokenRow(keys[1], f"the same as {keys[0]}", "another answer")
    asked = next(n for n, message in enumerate(chosen) if message["role"] == "user") + 1
    if shared_prompt_length(chosen, rejected) < asked:
        raise BrokenRow(keys[1], "another beginning", f"the question that {keys[0]} begins with")
    return Preference(chosen=chosen, rejected=rejected, margin=margin, **fields)


def _check_margin(value: Any, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenRow(key, describe_found(value), "a number, or null")
    if isinstance(value, float) and math.isnan(value):
        return None  # how pandas writes "none"
    if not 0 <= value < 1e9:
        raise BrokenRow(key, describe_found(value), "a finite number, 0 or more, or null")
    return float(value)


def _find_columns(
    paths: DataPaths,
    required: Mapping[str, str | None],
    optional: Mapping[str, str | None] | None = None,
) -> tuple[dict[str, str], Iterable[RawRow]]:
    """``{field: column}`` by given and usual names, and all the rows."""
    rows = iter(read_raw_rows(paths))
    first = list(islice(rows, _ROWS_INSPECTED))
    columns = list(dict.fromkeys(c for _, row in first if isinstance(row, dict) for c in row))
    names: dict[str, str] = {}
    about_rows = dict.fromkeys(("subset", "source_ids", "id"))
    wanted = dict(required) | dict(optional or {})
    for field, given in (wanted | about_rows).items():
        column = _find_column(field, given, columns, paths)
        if column is not None:
            names[field] = column
        elif field in required and columns:
            raise _missing_column(field, paths, first)
    if not columns:  # every row is broken, or there is none: the problems say so
        names |= {field: given or field for field, given in wanted.items()}
    return names, chain(first, rows)


def _find_column(
    field: str, given: str | None, columns: Sequence[str], paths: DataPaths
) -> str | None:
    if given is not None:
        if columns and given not in columns:
            raise ConfigError(
                f"{paths[0]}: there is no column {given!r} for "
                f"{field}{suggest_name(given, columns)} (columns: {', '.join(columns)[:300]})"
            )
        return given
    if field in columns:
        return field
    usual = [name for name in _USUAL_COLUMNS[field] if name in columns]
    if len(usual) > 1:
        raise ConfigError(
            f"{paths[0]}: several columns may be {field} (found {', '.join(usual)}). Rename the "
            f"one you mean to {field}, or, from Python, name it with {field}_key."
        )
    return usual[0] if usual else None


def _missing_column(field: str, paths: DataPaths, rows: Iterable[RawRow]) -> ConfigError:
    columns = dict.fromkeys(c for _, row in rows if isinstance(row, dict) for c in row)
    return ConfigError(
        f"{paths[0]}: there is no column for {field} (columns: {', '.join(columns)[:300]}). Rename "
        f"the one you mean, or, from Python, name it with {field.split(' ', maxsplit=1)[0]}_key."
    )


_CONVERSATION_COLUMNS = ("messages", "chosen", "rejected", "prompt")


def write_dataset_rows(path: Path | str, rows: Sequence[DatasetRow]) -> None:
    """One file of rows of one kind, its columns under their own names: ``.jsonl`` or ``.parquet``.

    Parquet has conversations as JSON text, which keeps messages as they are and is what
    Bradley-Terry data usually looks like. ``where`` is not written: it is the new file's to say.
    Raises :class:`ConfigError` for another ending, for no row, or without pyarrow.
    """
    path = Path(path)
    if not rows:
        raise ConfigError(f"{path}: there are no rows to write")
    columns = [_row_columns(row) for row in rows]
    if path.suffix == ".jsonl":
        encoder = msgspec.json.Encoder()
        path.write_bytes(b"".join(encoder.encode(row) + b"\n" for row in columns))
    elif path.suffix == ".parquet":
        _write_parquet(path, columns)
    else:
        raise ConfigError(
            f"{path}: rows cannot be written to a file of this kind (allowed: .jsonl, .parquet)"
        )


def _row_columns(row: DatasetRow) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    del fields["where"]
    return fields | {"source_ids": list(row.source_ids)}


def _write_parquet(path: Path, columns: Sequence[dict[str, Any]]) -> None:
    try:
        import pyarrow  # noqa: PLC0415  (an extra, heavy)
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow, which is not installed. Run: pip install "
            "'adjudge[parquet]'"
        ) from None
    encode = msgspec.json.encode
    texts = [
        row | {name: encode(row[name]).decode() for name in _CONVERSATION_COLUMNS if name in row}
        for row in columns
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(texts), path)
