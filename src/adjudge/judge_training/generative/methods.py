"""Judges that write verdicts: imitation of judgements, and GRPO on labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from adjudge.judge_training.data.rows import Comparison, Demonstration, Rating, spoken
from adjudge.judge_training.distributed import launched, leads, wait
from adjudge.judge_training.generative.asked import (
    asked,
    check_tags,
    opens_thinking,
    prompt_lengths,
)
from adjudge.judge_training.generative.batching import grpo_steps
from adjudge.judge_training.generative.demonstrating import judgements
from adjudge.judge_training.generative.fence_key import fence_key
from adjudge.judge_training.generative.grpo import GrpoSide, train_grpo
from adjudge.judge_training.generative.labelled import Labelled, labelled_of
from adjudge.judge_training.generative.questions import Question, questions_of
from adjudge.judge_training.generative.rewarding import Judged, baselines_of
from adjudge.judge_training.generative.taught import prompt_of
from adjudge.judge_training.generative.tiny import tiny_judge
from adjudge.judge_training.generative.validation import CHOICE, Validation
from adjudge.judge_training.judge_tables import TINY
from adjudge.judge_training.material import (
    Encoded,
    Encoder,
    encoded,
    lengths_of,
    rows_digest,
)
from adjudge.judge_training.method import Method, Told, kept_row, said_in
from adjudge.judge_training.scalar.calibration import RatingCalibration, calibrate_ratings
from adjudge.judge_training.sft import train_sft
from adjudge.judge_training.trainer_settings import Row
from adjudge.verdicts import Verdict

__all__ = ["Grpo", "Judgements"]

_SPARE = 8
"""Tokens that a reply may have beyond twice the longest that is imitated."""

_TEXTS = 2000
"""Questions that a tiny model's tokenizer is made from: more say the same words."""


class _Judging(Method):
    """What is common to judges that write: questions about labelled rows, greedy validation."""

    labelled: Labelled
    validation: Validation
    questions: Encoded[Question]
    opened: bool
    _rated: RatingCalibration | None = None

    @abstractmethod
    def longest_reply(self) -> int:
        """Tokens that a reply may have in validation."""

    def read(self) -> None:
        self.labelled = labelled_of(self.judge, reasons=self.judge.method == "sft")
        self.material = self.labelled.material
        if leads():
            fence_key(self.folder)
        wait()  # the other processes read what the first has made
        key = fence_key(self.folder)
        form = self.labelled.form
        self._asked = questions_of(self.material.train, form, key)
        self._held_out = questions_of(self.material.val, form, key)

    def texts(self) -> Iterator[str]:
        for question in self._asked[0][:_TEXTS]:
            yield from said_in(question.messages)

    def base(self) -> tuple[Any, Any]:
        if self.judge.model.path == TINY:
            return tiny_judge(self.texts(), self.judge.trainer.seed, self.judge.model.size)
        return super().base()

    def ask(self, encoder: Encoder) -> None:
        """Encode the questions; raises :class:`~adjudge.errors.ConfigError`."""
        judge, rows = self.judge, self.material
        check_tags(encoder, judge)
        self.opened = opens_thinking(self.tokenizer)
        self.questions = asked(*self._asked, rows.train, encoder, judge, "data.train")
        self.val = asked(*self._held_out, rows.val, encoder, judge, "data.val")

    def validates(self) -> Validation:
        """What asks the held-out questions; needs :meth:`ask`."""
        judge = self.judge
        return Validation(
            self.val,
            self.labelled.form,
            most=self.longest_reply(),
            size=max(judge.data.micro_batch_size, 16),
            opened=self.opened,
        )

    def validated(self, model: Any) -> dict[str, Any]:
        """Greedy verdicts on all held-out questions, anew."""
        judged = self.validation.judged(model, self.tokenizer, nullcontext)
        self._rated = self._worth(judged)
        return {
            **self.validation.metrics(judged),
            "rows": len({one.question.row for one in judged}),
            "subsets": self.validation.subsets(judged),
            "chosen_by": self.chosen_by(),
        }

    def chosen_by(self) -> str:
        """By what the best step is chosen, in words."""
        return CHOICE[self.labelled.form.mode]

    def trained_ids(self) -> tuple[str, ...]:
        learned, held_out = self.material.train, self.material.val
        rows = (*_used(self.questions.rows, learned), *_used(self.val.rows, held_out))
        return tuple(sorted({one for row in rows for one in row.source_ids}))

    def on_card(self) -> dict[str, Any]:
        form = self.labelled.form
        return {
            "prompt": {**prompt_of(form), "max_tokens": self.longest_reply()},
            "verdict": form.verdict,
            "rating_calibration": self._rated,
        }

    def _worth(self, judged: Sequence[Judged]) -> RatingCalibration | None:
        """What ratings of held-out rows are worth in labels; comparisons have none."""
        if self.labelled.form.mode == "pairwise":
            return None
        ratings, labels, prompts = [], [], []
        for one in judged:
            if isinstance(reply := one.replies[0], Verdict):
                ratings.append(float(reply.value))
                labels.append(float(one.question.label))
                prompts.append(spoken(self.material.val[one.question.row].messages[:-1]))
        return calibrate_ratings(ratings, labels, prompts)

    def in_summary(self) -> dict[str, Any]:
        form = self.labelled.form
        return {
            "form": msgspec.to_builtins(form),
            "baselines": {
                "train": msgspec.to_builtins(baselines_of(self.questions.rows, form)),
                "val": msgspec.to_builtins(baselines_of(self.val.rows, form)),
            },
        }


class Grpo(_Judging):
    """GRPO: the judge draws replies, and is paid by the labels."""

    def longest_reply(self) -> int:
        """As in training."""
        return self.judge.grpo.max_response_length

    def encode(self, encoder: Encoder) -> None:
        """Questions, none of them cut."""
        self.ask(encoder)
        self.train = self.questions
        self.lengths = prompt_lengths(self.train)
        self.validation = self.validates()

    def steps(self) -> int:
        """Whole batches only."""
        return grpo_steps(self.judge, len(self.train.rows))

    def tokens(self) -> int:
        """A question and its reply."""
        return self.judge.data.max_length + self.judge.grpo.max_response_length

    def learn(self, model: Any, told: Told) -> dict[str, Any]:
        """Train on the rewards of drawn replies."""
        side = GrpoSide(self.train.rows, self.labelled.form, self.validation, opened=self.opened)
        return train_grpo(
            model, self.tokenizer, self.train, side, self.judge,
            folder=told.folder, resume=told.resume, on_row=told.on_row, on_saved=lambda _: None,
        )  # fmt: skip

    def learned(self) -> str:
        """What is learned from."""
        return "rewards of its own replies"

    def data(self) -> dict[str, Any]:
        """Counts by rows and prompts, hashes and lengths."""
        train = _used(self.train.rows, self.material.train)
        val = _used(self.val.rows, self.material.val)
        return {
            **self.material.facts,
            "train_rows": _counted(self.train, len(train)),
            "val_rows": _counted(self.val, len(val)),
            "train_sha256": rows_digest(train),
            "val_sha256": rows_digest(val),
            "lengths": self.lengths,
        }


class Judgements(_Judging):
    """SFT: the judge imitates judgements, made of labels and, where known, reasons."""

    _told: tuple[Encoded[Demonstration], Encoded[Demonstration]]
    _longest = 0

    def read(self) -> None:
        """Labelled rows and the judgements made of them."""
        super().read()
        form, reasons = self.labelled.form, self.labelled.reasons
        self._made = judgements(self._asked[0], self.material.train, form, reasons)
        self._made_val = judgements(self._held_out[0], self.material.val, form, reasons)
        self._made[2].extend(self._asked[1])
        self._made_val[2].extend(self._held_out[1])

    def texts(self) -> Iterator[str]:
        """Questions and judgements."""
        for row in self._made[0][:_TEXTS]:
            yield from said_in(row.messages)

    def longest_reply(self) -> int:
        """Twice what is imitated: what is longer goes astray."""
        return 2 * self._longest + _SPARE

    def encode(self, encoder: Encoder) -> None:
        """Judgements to imitate, and questions to validate with."""
        self.ask(encoder)
        # A judgement is never cut: without its verdict it would teach not to give one.
        data = self.judge.data.model_copy(update={"truncation": "error"})
        whole = self.judge.model_copy(update={"data": data})
        self.train = encoded(self._made[0], encoder, whole, "data.train", self._made[2])
        held_out = encoded(self._made_val[0], encoder, whole, "data.val", self._made_val[2])
        self._told = (self.train, held_out)
        self.lengths = lengths_of(self.train, encoder, self.judge)
        self._longest = max(len(encoder.text(row.messages[-1:])) for row in self.train.rows)
        self.validation = self.validates()

    def tokens(self) -> int:
        """A question and its reply, once replies are known."""
        return self.judge.data.max_length + (self.longest_reply() if self._longest else 0)

    def learn(self, model: Any, told: Told) -> dict[str, Any]:
        """Train on the judge's turns."""
        return train_sft(
            model, self.tokenizer, *self._told, self.judge,
            folder=told.folder, resume=told.resume, on_row=told.on_row, on_saved=lambda _: None,
        )  # fmt: skip

    def noted(self, row: Row, model: Any) -> Row:
        """With greedy verdicts beside the loss."""
        # Of a model in parts no process can draw a reply alone.
        if "val/loss" not in row or launched() is not None:
            return row
        judged = self.validation.judged(model, self.tokenizer, nullcontext)
        found = self.validation.metrics(judged)
        return {**row, **{f"val/{name}": value for name, value in found.items()}}

    def validated(self, model: Any) -> dict[str, Any]:
        """The loss of the step that is kept, and greedy verdicts anew."""
        loss = kept_row(self.rows, self.kept, self.judge)["loss"]
        return {"loss": loss, **super().validated(model)}

    def chosen_by(self) -> str:
        """By the loss alone."""
        return "least validation loss"

    def learned(self) -> str:
        """What is learned from."""
        return "judgements"

    def data(self) -> dict[str, Any]:
        """Counts by rows and prompts, hashes and lengths."""
        train, val = self._told
        return {
            **self.material.facts,
            "train_rows": _counted(train, len({row.where for row in train.rows})),
            "val_rows": _counted(val, len({row.where for row in val.rows})),
            "train_sha256": rows_digest(train.rows),
            "val_sha256": rows_digest(val.rows),
            "with_reasons": len(self.labelled.reasons),
            "lengths": self.lengths,
        }


def _used(questions: Sequence[Question], rows: Sequence[Rating | Comparison]) -> list[Any]:
    """The rows that ``questions`` ask about."""
    return [rows[place] for place in dict.fromkeys(one.row for one in questions)]


def _counted(found: Encoded[Any], rows: int) -> dict[str, Any]:
    """The counts of what was encoded, by rows of the data; ``prompts``: how many were made."""
    return {**found.facts, "rows": rows, "prompts": len(found.rows)}
