"""What a training method does in a run, and the two methods on rows as they are.

These are Bradley-Terry on preferences, and SFT on conversations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from adjudge.datasets.rows import render_transcript, split_answers
from adjudge.graders.llm.trained_judge_card import fit_normalisation
from adjudge.stats.agreement import calibrate_scores, measure_pairs
from adjudge_lab.judge_training.base_model import load_base_model
from adjudge_lab.judge_training.bradley_terry import (
    PairScores,
    row_margins,
    score_pairs,
    train_bradley_terry,
)
from adjudge_lab.judge_training.dataset import (
    ConversationEncoder,
    EncodedRows,
    JudgeDataset,
    digest_rows,
    encode_rows,
    load_demonstrations,
    load_preferences,
    token_lengths,
)
from adjudge_lab.judge_training.judge_file import JudgeFile, MetricRow
from adjudge_lab.judge_training.sft import template_marks_assistant, train_sft
from adjudge_lab.judge_training.trl_trainers import training_steps


class TrainerContext(Protocol):
    """Where a trainer saves, goes on from, and says what it found."""

    @property
    def folder(self) -> Path:
        """Where checkpoints go."""

    @property
    def resume(self) -> Path | None:
        """The checkpoint to go on from."""

    @property
    def on_row(self) -> Callable[[int, MetricRow], None]:
        """Hears of each step's metrics."""


class TrainingMethod(ABC):
    """One way of training: its rows, its trainer, its validation, its part of the card.

    Made from the file before any model is there; :meth:`encode` then makes ``train`` and ``val``.
    ``rows``: the metrics of all steps so far, which the run keeps. ``kept``: the step whose model
    is left, once it is known.
    """

    material: JudgeDataset[Any]
    tokenizer: Any
    rows: Sequence[MetricRow]
    best_step: int
    train: EncodedRows[Any]
    val: EncodedRows[Any]
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
    def encode(self, encoder: ConversationEncoder) -> None:
        """Make ``train``, ``val`` and ``lengths``; raises as :meth:`read` does.

        ``tokenizer`` is known by then.
        """

    @abstractmethod
    def learn(self, model: Any, told: TrainerContext) -> dict[str, Any]:
        """Train ``model`` in place; ``best_step``, ``tokens`` and what else was found."""

    @abstractmethod
    def validate(self, model: Any) -> dict[str, Any]:
        """Metrics of the model that is kept on held-out rows; needs ``kept``."""

    @abstractmethod
    def learning_target(self) -> str:
        """What of a row is learned from."""

    def base(self) -> tuple[Any, Any]:
        """Model and tokenizer to begin with."""
        return load_base_model(self.judge, self.texts())

    def steps(self) -> int:
        """Updates in the whole run; needs :meth:`encode`."""
        return training_steps(self.judge, len(self.train.rows))

    def tokens(self) -> int:
        """Tokens that the model must take at once."""
        return self.judge.data.max_length

    def complete_row(self, row: MetricRow, _model: Any) -> MetricRow:
        """A validated step's metrics, completed where the trainer knows only some."""
        return row

    @abstractmethod
    def data(self) -> dict[str, Any]:
        """Counts, hashes and lengths of the rows, for card and summary; needs :meth:`encode`."""

    def trained_ids(self) -> tuple[str, ...]:
        """Source ids of all rows that were used: held-out ones chose the step that is kept."""
        rows = (*self.train.rows, *self.val.rows)
        return tuple(sorted({one for row in rows for one in row.source_ids}))

    def card_fields(self) -> dict[str, Any]:
        """The method's own fields of the card; needs :meth:`validated`."""
        return {}

    def summary_fields(self) -> dict[str, Any]:
        """What else the summary says."""
        return {}


def message_texts(turns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The texts of messages."""
    return (turn["content"] for turn in turns if isinstance(turn["content"], str))


def best_step_metrics(rows: Sequence[MetricRow], step: int, judge: JudgeFile) -> dict[str, Any]:
    """What the validation of ``step``, whose model is kept, said.

    Raises :class:`~adjudge.errors.ConfigError` where it said no loss.
    """
    row = next((row for row in rows if row["step"] == step), {})
    if "val/loss" not in row:
        judge.refuse("optim.lr", "the validation loss became NaN. Lower the learning rate.")
    return {k.removeprefix("val/"): v for k, v in row.items() if k.startswith("val/")}


class _EncodedRowsMethod(TrainingMethod):
    """Rows that are encoded as they stand."""

    def encode(self, encoder: ConversationEncoder) -> None:
        """Cut at the maximum length."""
        self.train = encode_rows(self.material.train, encoder, self.judge, "data.train")
        self.val = encode_rows(self.material.val, encoder, self.judge, "data.val")
        self.lengths = token_lengths(self.train, encoder, self.judge)

    def data(self) -> dict[str, Any]:
        """Counts, hashes and lengths."""
        return {
            **self.material.facts,
            "train_rows": self.train.facts,
            "val_rows": self.val.facts,
            "train_sha256": digest_rows(self.train.rows),
            "val_sha256": digest_rows(self.val.rows),
            "lengths": self.lengths,
        }


class BradleyTerryMethod(_EncodedRowsMethod):
    """A scalar judge from preferences, by Bradley-Terry."""

    _scores: PairScores

    def read(self) -> None:
        """Preferences, from files or made up."""
        self.material = load_preferences(self.judge)

    def texts(self) -> Iterator[str]:
        """Both sides."""
        for row in self.material.train:
            yield from message_texts(row.chosen)
            yield from message_texts(row.rejected)

    def learn(self, model: Any, told: TrainerContext) -> dict[str, Any]:
        """Train on differences of scores."""
        return train_bradley_terry(
            model, self.tokenizer, self.train, self.val, self.judge,
            folder=told.folder, resume=told.resume, on_row=told.on_row, on_saved=lambda _: None,
        )  # fmt: skip

    def learning_target(self) -> str:
        """Which of two answers is better."""
        return "answers"

    def validate(self, model: Any) -> dict[str, Any]:
        """Scores of all held-out pairs, anew."""
        val, judge = self.val, self.judge
        # In float32, as the judge is saved.
        size = judge.data.micro_batch_size
        scores = score_pairs(model, self.tokenizer.pad_token_id, val.ids, size, nullcontext)
        if not all(math.isfinite(score) for pair in scores for score in pair):
            judge.refuse(
                "optim.lr",
                "the judge's outputs are no longer finite numbers. Lower the learning rate.",
            )
        self._scores = scores
        lengths = [(len(chosen), len(rejected)) for chosen, rejected in val.ids]
        subsets: dict[str, list[bool]] = {}
        for row, (chosen, rejected) in zip(val.rows, scores, strict=True):
            subsets.setdefault(row.subset or "all", []).append(chosen > rejected)
        by_subset = {
            name: {"rows": len(right), "accuracy": sum(right) / len(right)}
            for name, right in sorted(subsets.items())
        }
        metrics: dict[str, Any] = measure_pairs(scores, lengths, row_margins(val, judge))
        return {**metrics, "rows": len(scores), "subsets": by_subset}

    def card_fields(self) -> dict[str, Any]:
        """Ranks and probabilities from outputs."""
        asked = [render_transcript(split_answers(row)[0]) for row in self.val.rows]
        return {
            "normalisation": fit_normalisation([s for pair in self._scores for s in pair]),
            "calibration": calibrate_scores(self._scores, asked),
        }


class ConversationMethod(_EncodedRowsMethod):
    """Imitation of conversations as they are."""

    def read(self) -> None:
        """Conversations, from files or made up."""
        self.material = load_demonstrations(self.judge)

    def texts(self) -> Iterator[str]:
        """All turns."""
        for row in self.material.train:
            yield from message_texts(row.messages)

    def learn(self, model: Any, told: TrainerContext) -> dict[str, Any]:
        """Train on the assistant's turns."""
        return train_sft(
            model, self.tokenizer, self.train, self.val, self.judge,
            folder=told.folder, resume=told.resume, on_row=told.on_row, on_saved=lambda _: None,
        )  # fmt: skip

    def learning_target(self) -> str:
        """All turns where the chat template marks them."""
        return "all turns" if template_marks_assistant(self.tokenizer) else "last turns"

    def validate(self, _model: Any) -> dict[str, Any]:
        """What the step that is kept said."""
        return best_step_metrics(self.rows, self.best_step, self.judge)
