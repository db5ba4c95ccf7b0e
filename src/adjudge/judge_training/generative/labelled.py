"""The labelled rows that judges are trained and validated on: ratings, or comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, RolloutError
from adjudge.judge_training.data import synthetic
from adjudge.judge_training.data.convert import (
    Shape,
    comparisons_from,
    preferences_from,
    ratings_from,
    shape_of_rows,
)
from adjudge.judge_training.data.files import raw_rows
from adjudge.judge_training.data.gold import reason_of
from adjudge.judge_training.data.problems import Loaded
from adjudge.judge_training.data.read import read_comparisons, read_preferences, read_ratings
from adjudge.judge_training.data.rows import Comparison, Rating, answers_of
from adjudge.judge_training.data.swap import comparisons_of
from adjudge.judge_training.generative.prompt import Mode
from adjudge.judge_training.generative.questions import Form
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.material import Material, from_files, made_up

__all__ = ["Labelled", "Reasons", "labelled_of"]

Reasons = Mapping[str, tuple[str | None, str | None]]
"""By ``where`` of a row: the reasons for its label, and those with A and B swapped, where known."""

_LOOKED_AT = 100


@dataclass
class Labelled:
    """Rows to train on and held-out ones, the form in which they are asked, and known reasons."""

    material: Material[Any]
    form: Form
    reasons: Reasons = field(default_factory=dict)


def labelled_of(judge: JudgeFile, *, reasons: bool = False) -> Labelled:
    """The rows of a run with a ``mode``; ``reasons``: also why, for those who learn to say it.

    Files hold ratings or comparisons by their usual columns, preferences (comparisons are made of
    them), or what :mod:`~adjudge.judge_training.data.convert` knows; reasons are in the columns
    ``reason`` and ``reason_swapped``; those of preferences, which have no A and B, are written as
    if ``chosen`` was A. Raises :class:`~adjudge.errors.ConfigError`.
    """
    mode: Mode = judge.mode or "pointwise"
    made = judge.data.synthetic
    if made is not None:
        make: Any = synthetic.ratings if mode == "pointwise" else synthetic.comparisons
        material: Material[Any] = made_up(judge, make(made.settings()))
        # A label that goes to a place belongs to the order in which it was given.
        both = not made.position_bias
        why: Reasons = (
            {row.where: _spelled(row, both) for row in _rows(material)} if reasons else {}
        )
    else:
        read = _ratings if mode == "pointwise" else partial(_comparisons, judge.trainer.seed)
        material = from_files(judge, read)
        why = _reasons(judge, {row.where: row for row in _rows(material)}) if reasons else {}
    return Labelled(material, Form.of(mode, _rows(material)), why)


def _rows(material: Material[Any]) -> list[Any]:
    return [*material.train, *material.val]


def _ratings(files: Sequence[Path]) -> Loaded[Rating]:
    shape, _ = _looked_at(files)
    return read_ratings(files) if shape is None else ratings_from(files, shape)


def _comparisons(seed: int, files: Sequence[Path]) -> Loaded[Comparison]:
    shape, columns = _looked_at(files)
    if not _are_preferences(shape, columns):
        return read_comparisons(files) if shape is None else comparisons_from(files, shape)
    rows = read_preferences(files) if shape is None else preferences_from(files, shape)
    return rows.then(lambda preferences: comparisons_of(preferences, seed))


def _are_preferences(shape: Shape | None, columns: set[str]) -> bool:
    if shape is None:
        return {"chosen", "rejected"} <= columns
    return shape != "llmbar"


def _looked_at(files: Sequence[Path]) -> tuple[Shape | None, set[str]]:
    """The shape of foreign files (``None``: our own columns), and the columns there are."""
    rows = [
        row for _, row in islice(raw_rows(files), _LOOKED_AT) if not isinstance(row, RolloutError)
    ]
    columns = {column for row in rows for column in row}
    try:
        return shape_of_rows(rows, str(files[0])), columns
    except ConfigError:
        return None, columns  # the readers say what is missing


def _reasons(judge: JudgeFile, rows: Mapping[str, Rating | Comparison]) -> Reasons:
    found: dict[str, tuple[str | None, str | None]] = {}
    for files in (judge.files(judge.data.train), judge.files(judge.data.val)):
        placed = judge.mode == "pairwise" and bool(files) and _are_preferences(*_looked_at(files))
        for where, row in raw_rows(files):
            if isinstance(row, RolloutError) or not isinstance(row.get("reason"), str):
                continue
            swapped = row.get("reason_swapped")
            both = (row["reason"], swapped if isinstance(swapped, str) else None)
            # Half of the preferences were given the better answer as B.
            turned = placed and where in rows and rows[where].label == "B"
            found[where] = (both[1], both[0]) if turned else both
    return found


def _spelled(row: Rating | Comparison, both: bool) -> tuple[str, str | None]:
    """What the gold function counts in a synthetic row's answers."""
    _, answers = answers_of(row)
    said = [reason_of(row.subset or "", turns[0]["content"]) for turns in answers]
    if len(said) == 1:
        return said[0], None
    return f"A: {said[0]} B: {said[1]}", f"A: {said[1]} B: {said[0]}" if both else None
