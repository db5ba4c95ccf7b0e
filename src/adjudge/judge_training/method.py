"""What a way of training a judge brings to the run that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from adjudge.judge_training.base import load_base
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.material import Encoded, Encoder, Material
from adjudge.judge_training.trainer_settings import Row, steps_of

__all__ = ["Method", "Told", "kept_row", "said_in"]


class Told(Protocol):
    """Where a trainer saves, goes on from, and says what it found."""

    @property
    def folder(self) -> Path:
        """Where checkpoints go."""

    @property
    def resume(self) -> Path | None:
        """The checkpoint to go on from."""

    @property
    def on_row(self) -> Callable[[int, Row], None]:
        """Hears of each step's metrics."""


class Method(ABC):
    """One way of training: its rows, its trainer, its validation, its part of the card.

    Made from the file before any model is there; :meth:`encode` then makes ``train`` and ``val``.
    ``rows``: the metrics of all steps so far, which the run keeps. ``kept``: the step whose model
    is left, once it is known.
    """

    material: Material[Any]
    tokenizer: Any
    rows: Sequence[Row]
    kept: int
    train: Encoded[Any]
    val: Encoded[Any]
    lengths: Any

    def __init__(self, judge: JudgeFile, folder: Path) -> None:
        self.judge, self.folder = judge, folder
        self.read()

    @abstractmethod
    def read(self) -> None:
        """Read or make the rows; raises :class:`~adjudge.errors.ConfigError`."""

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """All that is said in the training rows, for a tiny model's tokenizer."""

    @abstractmethod
    def encode(self, encoder: Encoder) -> None:
        """Make ``train``, ``val`` and ``lengths``; raises as :meth:`read` does.

        ``tokenizer`` is known by then.
        """

    @abstractmethod
    def learn(self, model: Any, told: Told) -> dict[str, Any]:
        """Train ``model`` in place; ``best_step``, ``tokens`` and what else was found."""

    @abstractmethod
    def validated(self, model: Any) -> dict[str, Any]:
        """Metrics of the model that is kept on held-out rows; needs ``kept``."""

    @abstractmethod
    def learned(self) -> str:
        """What of a row is learned from."""

    def base(self) -> tuple[Any, Any]:
        """Model and tokenizer to begin with."""
        return load_base(self.judge, self.texts())

    def steps(self) -> int:
        """Updates in the whole run; needs :meth:`encode`."""
        return steps_of(self.judge, len(self.train.rows))

    def tokens(self) -> int:
        """Tokens that the model must take at once."""
        return self.judge.data.max_length

    def noted(self, row: Row, _model: Any) -> Row:
        """A validated step's metrics, completed where the trainer knows only some."""
        return row

    @abstractmethod
    def data(self) -> dict[str, Any]:
        """Counts, hashes and lengths of the rows, for card and summary; needs :meth:`encode`."""

    def trained_ids(self) -> tuple[str, ...]:
        """Source ids of all rows that were used: held-out ones chose the step that is kept."""
        rows = (*self.train.rows, *self.val.rows)
        return tuple(sorted({one for row in rows for one in row.source_ids}))

    def on_card(self) -> dict[str, Any]:
        """The method's own fields of the card; needs :meth:`validated`."""
        return {}

    def in_summary(self) -> dict[str, Any]:
        """What else the summary says."""
        return {}


def said_in(turns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The texts of messages."""
    return (turn["content"] for turn in turns if isinstance(turn["content"], str))


def kept_row(rows: Sequence[Row], step: int, judge: JudgeFile) -> dict[str, Any]:
    """What the validation of ``step``, whose model is kept, said.

    Raises :class:`~adjudge.errors.ConfigError` where it said no loss.
    """
    row = next((row for row in rows if row["step"] == step), {})
    if "val/loss" not in row:
        judge.refuse("optim.lr", "the validation loss was no number in the end; lower it")
    return {k.removeprefix("val/"): v for k, v in row.items() if k.startswith("val/")}
