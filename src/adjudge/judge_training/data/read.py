"""Rows of judge training from files: which column is which, and what each must hold.

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

from adjudge.config import nearest
from adjudge.errors import ConfigError, RolloutError
from adjudge.judge_training.data import conversation as chat
from adjudge.judge_training.data.files import Columns, RawRow, raw_rows
from adjudge.judge_training.data.problems import BrokenRow, Loaded, RowProblem, RowProblems, found
from adjudge.judge_training.data.rows import (
    LABELS,
    RATINGS,
    Comparison,
    Demonstration,
    Messages,
    Preference,
    Rating,
    shared_prompt,
)
from adjudge.rollouts.guess import conversation as guessed_conversation

__all__ = [
    "about",
    "broken",
    "checked_preference",
    "loaded",
    "prompt_messages",
    "rating",
    "read_comparisons",
    "read_demonstrations",
    "read_preferences",
    "read_ratings",
]

T = TypeVar("T")
Paths = Sequence[Path | str]

_LOOKED_AT = 1000
_MAX_IDS = 64

_USUAL: Mapping[str, tuple[str, ...]] = {
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


def read_demonstrations(paths: Paths, *, messages_key: str | None = None) -> Loaded[Demonstration]:
    """Conversations to imitate; ``messages_key`` is ``multiturn.messages_key`` of a run file.

    A row that is broken in any way gives no demonstration but a problem. Raises
    :class:`ConfigError` for files or columns that are not there.
    """
    names, rows = _columns(paths, {"messages": messages_key})
    column = names["messages"]

    def build(row: Columns, where: str) -> Demonstration:
        messages = chat.conversation(row.get(column), column)
        return Demonstration(
            messages=chat.ends_with_answer(messages, column), **about(row, where, names)
        )

    return loaded(rows, build)


def read_preferences(
    paths: Paths,
    *,
    chosen_key: str | None = None,
    rejected_key: str | None = None,
    margin_key: str | None = None,
) -> Loaded[Preference]:
    """Pairs of conversations of which one is better.

    Both must begin with the same question, differ, and end with an answer; ``margin`` must be
    finite and not negative. Raises as :func:`read_demonstrations` does.
    """
    given = {"chosen": chosen_key, "rejected": rejected_key}
    names, rows = _columns(paths, given, {"margin": margin_key})
    chosen, rejected = names["chosen"], names["rejected"]

    def build(row: Columns, where: str) -> Preference:
        margin = _margin(row.get(names["margin"]), names["margin"]) if "margin" in names else None
        return checked_preference(
            chat.conversation(row.get(chosen), chosen),
            chat.conversation(row.get(rejected), rejected),
            margin,
            about(row, where, names),
            (chosen, rejected),
        )

    return loaded(rows, build)


def read_ratings(
    paths: Paths,
    *,
    messages_key: str | None = None,
    prompt_key: str | None = None,
    response_key: str | None = None,
    label_key: str | None = None,
) -> Loaded[Rating]:
    """Answers with a quality from 0 to 4 (whole numbers; ``3.0`` is one).

    The conversation is one column, or a prompt and a response. Raises as
    :func:`read_demonstrations` does.
    """
    given = {"messages": messages_key, "prompt": prompt_key, "response": response_key}
    names, rows = _columns(paths, {"label": label_key}, given)
    if "messages" not in names and not {"prompt", "response"} <= names.keys():
        raise _missing_column("messages (or prompt and response)", paths, rows)

    def build(row: Columns, where: str) -> Rating:
        if "messages" in names:
            messages = chat.conversation(row.get(names["messages"]), names["messages"])
        else:
            messages = prompt_messages(row.get(names["prompt"]), names["prompt"])
            answer = chat.text(row.get(names["response"]), names["response"])
            messages = [*messages, {"role": "assistant", "content": answer}]
        return Rating(
            messages=chat.ends_with_answer(messages, names.get("messages", "messages")),
            label=rating(row.get(names["label"]), names["label"]),
            **about(row, where, names),
        )

    return loaded(rows, build)


def read_comparisons(
    paths: Paths,
    *,
    prompt_key: str | None = None,
    a_key: str | None = None,
    b_key: str | None = None,
    label_key: str | None = None,
) -> Loaded[Comparison]:
    """Two answers to one prompt, and which is better: exactly ``A``, ``B`` or ``tie``.

    Raises as :func:`read_demonstrations` does.
    """
    given = {"prompt": prompt_key, "a": a_key, "b": b_key, "label": label_key}
    names, rows = _columns(paths, given)

    def build(row: Columns, where: str) -> Comparison:
        label = row.get(names["label"])
        if label not in LABELS:
            raise BrokenRow(names["label"], found(label, label=True), ", ".join(LABELS))
        return Comparison(
            prompt=prompt_messages(row.get(names["prompt"]), names["prompt"]),
            a=chat.text(row.get(names["a"]), names["a"]),
            b=chat.text(row.get(names["b"]), names["b"]),
            label=label,
            **about(row, where, names),
        )

    return loaded(rows, build)


def loaded(rows: Iterable[RawRow], build: Callable[[Columns, str], T]) -> Loaded[T]:
    """What ``build`` makes of each row, and the problems of the rows it raised for."""
    good: list[T] = []
    problems = RowProblems()
    for where, row in rows:
        if isinstance(row, RolloutError):
            problems.add(broken(where, row))
            continue
        try:
            good.append(build(row, where))
        except BrokenRow as problem:
            problems.add(problem.at(where))
    return Loaded(good, problems)


def broken(where: str, error: RolloutError) -> RowProblem:
    """The problem of a row that is not even an object."""
    reason = str(error).removeprefix(f"{where}: ")
    return RowProblem(where, "row", f"something else ({reason})", "a JSON object")


def about(row: Columns, where: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Where a row is from, by the columns of ``names``: ``where``, ``subset``, ``source_ids``."""
    subset = row.get(names["subset"]) if "subset" in names else None
    if subset is not None and not isinstance(subset, str):
        raise BrokenRow(names["subset"], found(subset), "text")
    keys = [names[name] for name in ("source_ids", "id") if name in names]
    key = next((key for key in keys if row.get(key) is not None), "")
    ids = row.get(key)
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if len(ids) > _MAX_IDS or not all(type(one) in (str, int) for one in ids):
        raise BrokenRow(
            str(key), found(ids), f"text or a whole number, or up to {_MAX_IDS} of them"
        )
    return {"where": where, "subset": subset, "source_ids": tuple(str(one)[:200] for one in ids)}


def prompt_messages(value: Any, key: str) -> Messages:
    """A prompt as messages: plain text is a user's message; raises :class:`BrokenRow`.

    Text that is the JSON of a list of chat messages is that conversation.
    """
    if isinstance(value, str) and not _is_conversation(value):
        return [{"role": "user", "content": chat.text(value, key)}]
    messages = chat.conversation(value, key)
    if messages[-1]["role"] == "assistant":
        raise BrokenRow(
            f"{key}[-1].role", "text 'assistant'", "user, system or tool: who is answered"
        )
    return messages


def _is_conversation(value: str) -> bool:
    return value.lstrip()[:1] == "[" and guessed_conversation(value) is not None


def rating(value: Any, key: str) -> int:
    """``value`` as a label 0 to 4; raises :class:`BrokenRow`."""
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    if not whole or value not in RATINGS:
        raise BrokenRow(key, found(value, label=True), "a whole number from 0 to 4")
    return int(value)


def checked_preference(
    chosen: Messages,
    rejected: Messages,
    margin: float | None,
    fields: Mapping[str, Any],
    keys: tuple[str, str] = ("chosen", "rejected"),
) -> Preference:
    """A preference whose sides answer the same question differently, else :class:`BrokenRow`."""
    chat.ends_with_answer(chosen, keys[0])
    chat.ends_with_answer(rejected, keys[1])
    if chosen == rejected:
        raise BrokenRow(keys[1], f"the same as {keys[0]}", "another answer")
    asked = next(n for n, message in enumerate(chosen) if message["role"] == "user") + 1
    if shared_prompt(chosen, rejected) < asked:
        raise BrokenRow(keys[1], "another beginning", f"the question that {keys[0]} begins with")
    return Preference(chosen=chosen, rejected=rejected, margin=margin, **fields)


def _margin(value: Any, key: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenRow(key, found(value), "a number, or null")
    if isinstance(value, float) and math.isnan(value):
        return None  # how pandas writes "none"
    if not 0 <= value < 1e9:
        raise BrokenRow(key, found(value), "a finite number, 0 or more, or null")
    return float(value)


def _columns(
    paths: Paths,
    required: Mapping[str, str | None],
    optional: Mapping[str, str | None] | None = None,
) -> tuple[dict[str, str], Iterable[RawRow]]:
    """``{field: column}`` by given and usual names, and all the rows."""
    rows = iter(raw_rows(paths))
    first = list(islice(rows, _LOOKED_AT))
    columns = list(dict.fromkeys(c for _, row in first if isinstance(row, dict) for c in row))
    names: dict[str, str] = {}
    about_rows = dict.fromkeys(("subset", "source_ids", "id"))
    wanted = dict(required) | dict(optional or {})
    for field, given in (wanted | about_rows).items():
        column = _column(field, given, columns, paths)
        if column is not None:
            names[field] = column
        elif field in required and columns:
            raise _missing_column(field, paths, first)
    if not columns:  # every row is broken, or there is none: the problems say so
        names |= {field: given or field for field, given in wanted.items()}
    return names, chain(first, rows)


def _column(field: str, given: str | None, columns: Sequence[str], paths: Paths) -> str | None:
    if given is not None:
        if columns and given not in columns:
            raise ConfigError(
                f"{paths[0]}: no column {given!r} for {field}{nearest(given, columns)} "
                f"(columns: {', '.join(columns)[:300]})"
            )
        return given
    if field in columns:
        return field
    usual = [name for name in _USUAL[field] if name in columns]
    if len(usual) > 1:
        raise ConfigError(
            f"{paths[0]}: {field} may be {' or '.join(usual)}; rename the one that is meant "
            f"{field} (from Python: {field}_key)"
        )
    return usual[0] if usual else None


def _missing_column(field: str, paths: Paths, rows: Iterable[RawRow]) -> ConfigError:
    columns = dict.fromkeys(c for _, row in rows if isinstance(row, dict) for c in row)
    return ConfigError(
        f"{paths[0]}: no column for {field}; rename the one that is meant (from Python: "
        f"{field.split(' ', maxsplit=1)[0]}_key) (columns: {', '.join(columns)[:300]})"
    )
