"""What a format of rollout files is: how its records are recognised, and the rows they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import RewardColumns

SAMPLE_FIELDS = (
    *("messages", "opening_turns", "prompt", "response", "reference", "group", "env_reward"),
)
"""The columns that mean something by name; every other column is an extra."""

Row = dict[str, Any]
"""The columns of one sample, named as :data:`SAMPLE_FIELDS` are."""


def shape(**kinds: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a record has columns of these types; ``object`` is any, a tuple several."""
    return lambda record: all(
        name in record and isinstance(record[name], kind) for name, kind in kinds.items()
    )


SplitLines = Callable[[Sequence[Mapping[str, Any]]], Iterable[Sequence[int]]]
"""The places of each conversation's lines among the lines of a file."""


@dataclass(frozen=True)
class RolloutFormat:
    """One format of records: a JSON line, an element of a JSON array, a document, a table's row.

    ``name`` is what users write, ``title`` what people call the format. ``matches`` tells from a
    record's keys and types whether it is one, and never raises. ``convert`` gives the rows of a
    record, one a sample; it raises :class:`~adjudge.errors.RolloutError` for a record without a
    sample, such as one whose run failed. In a record of several samples, each that failed comes as
    a ``RolloutError`` at its place, so that the others are read. ``pairs``: its rows answer one
    prompt, and the data says which is better; ``sides``: the columns of the two answers.
    ``file_is_task``: a file is named by its task, which is the group where a record does not say
    it. ``request_id``: its prompts are in records of their own, often in another file; the id of
    such a record, ``None`` for a result. A result with that ``custom_id`` is converted together
    with it. ``join``: a record with what stands in files beside its own; ``None`` where it is a
    part of another file's record. ``own``: the columns of adjudge's own names that its records
    have; a record with another of them is a row under these names, and of no format. ``parts``: the
    record's part of each sample, in the order of its rows, where it has several; a mapped column is
    looked for there first. ``reward``: which column of the rows is the reward, by the first records
    or such parts, where the format leaves a choice. ``conversations``: its records are lines of a
    log, and ``convert`` gets those of a conversation together, under ``lines``; the places of each
    one's lines in the file. A file is a log where one of its first lines is.
    """

    name: str
    title: str
    matches: Callable[[Mapping[str, Any]], bool]
    convert: Callable[[Mapping[str, Any]], Iterable[Row | RolloutError]]
    pairs: bool = False
    sides: tuple[str, ...] = ()
    file_is_task: bool = False
    request_id: Callable[[Mapping[str, Any]], str | None] | None = None
    join: Callable[[Path, Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    own: tuple[str, ...] = ()
    parts: Callable[[Mapping[str, Any]], list[Mapping[str, Any]]] | None = None
    reward: Callable[[Sequence[Mapping[str, Any]]], RewardColumns] | None = None
    conversations: SplitLines | None = None
