"""Bradley-Terry on preferences, and imitation of conversations as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from adjudge.judge_training.card import normalisation_of
from adjudge.judge_training.data.rows import answers_of, spoken
from adjudge.judge_training.material import (
    Encoder,
    demonstrations_of,
    encoded,
    lengths_of,
    preferences_of,
    rows_digest,
)
from adjudge.judge_training.method import Method, Told, kept_row, said_in
from adjudge.judge_training.scalar.bradley_terry import (
    PairScores,
    margins_of,
    score_pairs,
    train_bradley_terry,
)
from adjudge.judge_training.scalar.calibration import calibrate
from adjudge.judge_training.scalar.pair_metrics import pair_metrics
from adjudge.judge_training.sft import learns_all_turns, train_sft

__all__ = ["Conversations", "Pairs"]


class _Rows(Method):
    """Rows that are encoded as they stand."""

    def encode(self, encoder: Encoder) -> None:
        """Cut at the maximum length."""
        self.train = encoded(self.material.train, encoder, self.judge, "data.train")
        self.val = encoded(self.material.val, encoder, self.judge, "data.val")
        self.lengths = lengths_of(self.train, encoder, self.judge)

    def data(self) -> dict[str, Any]:
        """Counts, hashes and lengths."""
        return {
            **self.material.facts,
            "train_rows": self.train.facts,
            "val_rows": self.val.facts,
            "train_sha256": rows_digest(self.train.rows),
            "val_sha256": rows_digest(self.val.rows),
            "lengths": self.lengths,
        }


class Pairs(_Rows):
    """A scalar judge from preferences, by Bradley-Terry."""

    _scores: PairScores

    def read(self) -> None:
        """Preferences, from files or made up."""
        self.material = preferences_of(self.judge)

    def texts(self) -> Iterator[str]:
        """Both sides."""
        for row in self.material.train:
            yield from said_in(row.chosen)
            yield from said_in(row.rejected)

    def learn(self, model: Any, told: Told) -> dict[str, Any]:
        """Train on differences of scores."""
        return train_bradley_terry(
            model, self.tokenizer, self.train, self.val, self.judge,
            folder=told.folder, resume=told.resume, on_row=told.on_row, on_saved=lambda _: None,
        )  # fmt: skip

    def learned(self) -> str:
        """Which of two answers is better."""
        return "answers"

    def validated(self, model: Any) -> dict[str, Any]:
        """Scores of all held-out pairs, anew."""
        val, judge = self.val, self.judge
        # In float32, as the judge is saved.
        size = judge.data.micro_batch_size
        scores = score_pairs(model, self.tokenizer.pad_token_id, val.ids, size, nullcontext)
        if not all(math.isfinite(score) for pair in scores for score in pair):
            judge.refuse("optim.lr", "the judge's outputs are no numbers any more; lower it")
        self._scores = scores
        lengths = [(len(chosen), len(rejected)) for chosen, rejected in val.ids]
        subsets: dict[str, list[bool]] = {}
        for row, (chosen, rejected) in zip(val.rows, scores, strict=True):
            subsets.setdefault(row.subset or "all", []).append(chosen > rejected)
        by_subset = {
            name: {"rows": len(right), "accuracy": sum(right) / len(right)}
            for name, right in sorted(subsets.items())
        }
        metrics: dict[str, Any] = pair_metrics(scores, lengths, margins_of(val, judge))
        return {**metrics, "rows": len(scores), "subsets": by_subset}

    def on_card(self) -> dict[str, Any]:
        """Ranks and probabilities from outputs."""
        asked = [spoken(answers_of(row)[0]) for row in self.val.rows]
        return {
            "normalisation": normalisation_of([s for pair in self._scores for s in pair]),
            "calibration": calibrate(self._scores, asked),
        }


class Conversations(_Rows):
    """Imitation of conversations as they are."""

    def read(self) -> None:
        """Conversations, from files or made up."""
        self.material = demonstrations_of(self.judge)

    def texts(self) -> Iterator[str]:
        """All turns."""
        for row in self.material.train:
            yield from said_in(row.messages)

    def learn(self, model: Any, told: Told) -> dict[str, Any]:
        """Train on the assistant's turns."""
        return train_sft(
            model, self.tokenizer, self.train, self.val, self.judge,
            folder=told.folder, resume=told.resume, on_row=told.on_row, on_saved=lambda _: None,
        )  # fmt: skip

    def learned(self) -> str:
        """All turns where the chat template marks them."""
        return "all turns" if learns_all_turns(self.tokenizer) else "last turns"

    def validated(self, _model: Any) -> dict[str, Any]:
        """What the step that is kept said."""
        return kept_row(self.rows, self.kept, self.judge)
