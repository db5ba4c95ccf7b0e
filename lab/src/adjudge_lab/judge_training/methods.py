"""What a training method does in a run, and the methods that there are.

On rows as they are: Bradley-Terry on preferences, and SFT on conversations. Of judges that write
verdicts: imitation of judgements, and GRPO on labels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.rows import (
    Demonstration,
    render_transcript,
    split_answers,
)
from adjudge.graders.llm.trained_judge_card import card_prompt
from adjudge.intake.rendered import template_opens_thinking
from adjudge.stats.predictions import RatingCalibration
from adjudge.verdicts import Verdict
from adjudge_lab.judge_training.base_model import load_base_model
from adjudge_lab.judge_training.calibration import (
    calibrate_ratings,
    calibrate_scores,
    fit_normalisation,
    measure_pairs,
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
from adjudge_lab.judge_training.distributed import barrier, distributed_rank, is_main_process
from adjudge_lab.judge_training.grpo import GrpoCallbacks, count_grpo_steps, train_grpo
from adjudge_lab.judge_training.judge_file import (
    JudgeFile,
    MetricRow,
    best_step_metrics,
)
from adjudge_lab.judge_training.judge_questions import (
    JudgeQuestion,
    LabelledDataset,
    check_form_tags,
    load_fence_key,
    load_labelled,
    make_demonstrations,
    make_questions,
    prompt_lengths,
    tokenize_prompts,
)
from adjudge_lab.judge_training.judgement_rewards import (
    SELECTION_METRICS,
    GreedyValidation,
    JudgedQuestion,
    question_baselines,
)
from adjudge_lab.judge_training.supervised import (
    PairScores,
    row_margins,
    score_pairs,
    template_marks_assistant,
    train_bradley_terry,
    train_sft,
)
from adjudge_lab.judge_training.trl_trainers import TrainerContext, training_steps


class TrainingMethod(ABC):
    """One way of training: its rows, its trainer, its validation, its part of the card.

    Made from the file before any model is there; :meth:`encode` then makes ``train`` and ``val``.
    ``rows``: the metrics of all steps so far, which the run keeps. ``best_step``: the step of the
    kept model, once it is known.
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
    def learn(self, model: Any, context: TrainerContext) -> dict[str, Any]:
        """Train ``model`` in place; ``best_step``, ``tokens`` and what else was found."""

    @abstractmethod
    def validate(self, model: Any) -> dict[str, Any]:
        """Metrics of the kept model on held-out rows; needs ``best_step``."""

    @property
    @abstractmethod
    def learned(self) -> str:
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

    def data_facts(
        self, train: tuple[Sequence[Any], Any], val: tuple[Sequence[Any], Any]
    ) -> dict[str, Any]:
        """What :meth:`data` says of rows, each part with its counts."""
        return {
            **self.material.facts,
            "train_rows": train[1],
            "val_rows": val[1],
            "train_sha256": digest_rows(train[0]),
            "val_sha256": digest_rows(val[0]),
            "lengths": self.lengths,
        }

    def card_fields(self) -> dict[str, Any]:
        """The method's own fields of the card; needs :meth:`validated`."""
        return {}

    def summary_fields(self) -> dict[str, Any]:
        """What else the summary says."""
        return {}


def message_texts(turns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The texts of messages."""
    return (turn["content"] for turn in turns if isinstance(turn["content"], str))


class _EncodedRowsMethod(TrainingMethod):
    """Rows that are encoded as they are."""

    def encode(self, encoder: ConversationEncoder) -> None:
        """Cut at the maximum length."""
        self.train = encode_rows(self.material.train, encoder, self.judge, "data.train")
        self.val = encode_rows(self.material.val, encoder, self.judge, "data.val")
        self.lengths = token_lengths(self.train, encoder, self.judge)

    def data(self) -> dict[str, Any]:
        """Counts, hashes and lengths."""
        train, val = ((one.rows, one.facts) for one in (self.train, self.val))
        return self.data_facts(train, val)


class BradleyTerryMethod(_EncodedRowsMethod):
    """A scalar judge from preferences, by Bradley-Terry."""

    learned = "answers"

    _scores: PairScores

    def read(self) -> None:
        """Preferences, from files or made up."""
        self.material = load_preferences(self.judge)

    def texts(self) -> Iterator[str]:
        """Both sides."""
        for row in self.material.train:
            yield from message_texts(row.chosen)
            yield from message_texts(row.rejected)

    def learn(self, model: Any, context: TrainerContext) -> dict[str, Any]:
        """Train on differences of scores."""
        return train_bradley_terry(model, self.tokenizer, self.train, self.val, self.judge, context)

    def validate(self, model: Any) -> dict[str, Any]:
        """Scores of all held-out pairs, anew."""
        val, judge = self.val, self.judge
        # In float32, as the judge is saved.
        size = judge.data.micro_batch_size
        scores = score_pairs(model, self.tokenizer.pad_token_id, val.ids, size, nullcontext)
        if not all(math.isfinite(score) for pair in scores for score in pair):
            problem = "the judge's outputs are no longer finite numbers. Lower the learning rate."
            judge.refuse("optim.lr", problem)
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

    def learn(self, model: Any, context: TrainerContext) -> dict[str, Any]:
        """Train on the assistant's turns."""
        return train_sft(model, self.tokenizer, self.train, self.val, self.judge, context)

    @property
    def learned(self) -> str:
        """All turns where the chat template marks them."""
        return "all turns" if template_marks_assistant(self.tokenizer) else "last turns"

    def validate(self, _model: Any) -> dict[str, Any]:
        """What the step that is kept said."""
        return best_step_metrics(self.rows, self.best_step, self.judge)


_EXTRA_REPLY_TOKENS = 8
"""Tokens that a reply may have beyond twice the longest that is imitated."""

_TOKENIZER_TEXTS = 2000
"""Questions that a tiny model's tokenizer is made from: more say the same words."""


class _GenerativeMethod(TrainingMethod):
    """What is common to judges that write: questions about labelled rows, greedy validation."""

    labelled: LabelledDataset
    validation: GreedyValidation
    questions: EncodedRows[JudgeQuestion]
    thinking_opened: bool
    _rating_calibration: RatingCalibration | None = None

    @abstractmethod
    def longest_reply(self) -> int:
        """Tokens that a reply may have in validation."""

    def read(self) -> None:
        self.labelled = load_labelled(self.judge, reasons=self.judge.method == "sft")
        self.material = self.labelled.material
        if is_main_process():
            load_fence_key(self.folder)
        barrier()  # the other processes read what the first has made
        key = load_fence_key(self.folder)
        form = self.labelled.form
        self._asked = make_questions(self.material.train, form, key)
        self._held_out = make_questions(self.material.val, form, key)

    def texts(self) -> Iterator[str]:
        for question in self._asked[0][:_TOKENIZER_TEXTS]:
            yield from message_texts(question.messages)

    def encode_questions(self, encoder: ConversationEncoder) -> None:
        """Encode the questions; raises :class:`~adjudge.errors.ConfigError`."""
        judge, rows = self.judge, self.material
        check_form_tags(encoder, judge)
        self.thinking_opened = template_opens_thinking(self.tokenizer)
        self.questions = tokenize_prompts(*self._asked, rows.train, encoder, judge, "data.train")
        self.val = tokenize_prompts(*self._held_out, rows.val, encoder, judge, "data.val")

    def make_validation(self) -> GreedyValidation:
        """What asks the held-out questions; needs :meth:`ask`."""
        judge = self.judge
        return GreedyValidation(
            self.val,
            self.labelled.form,
            most=self.longest_reply(),
            size=max(judge.data.micro_batch_size, 16),
            opened=self.thinking_opened,
        )

    def validate(self, model: Any) -> dict[str, Any]:
        """Greedy verdicts on all held-out questions, anew."""
        judged = self.validation.ask_questions(model, self.tokenizer, nullcontext)
        self._rating_calibration = self._calibrate_ratings(judged)
        return {
            **self.validation.metrics(judged),
            "rows": len({one.question.row for one in judged}),
            "subsets": self.validation.subsets(judged),
            "chosen_by": self.selection_text(),
        }

    def selection_text(self) -> str:
        """By what the best step is chosen, in words."""
        return SELECTION_METRICS[self.labelled.form.mode]

    def card_fields(self) -> dict[str, Any]:
        form = self.labelled.form
        return {
            "prompt": {**card_prompt(form), "max_tokens": self.longest_reply()},
            "verdict": form.verdict,
            "rating_calibration": self._rating_calibration,
        }

    def _calibrate_ratings(self, judged: Sequence[JudgedQuestion]) -> RatingCalibration | None:
        """What ratings of held-out rows are worth in labels; comparisons have none."""
        if self.labelled.form.mode == "pairwise":
            return None
        ratings, labels, prompts = [], [], []
        for one in judged:
            if isinstance(reply := one.replies[0], Verdict):
                ratings.append(float(reply.value))
                labels.append(float(one.question.label))
                prompts.append(render_transcript(self.material.val[one.question.row].messages[:-1]))
        return calibrate_ratings(ratings, labels, prompts)

    def summary_fields(self) -> dict[str, Any]:
        form = self.labelled.form
        return {
            "form": msgspec.to_builtins(form),
            "baselines": {
                "train": msgspec.to_builtins(question_baselines(self.questions.rows, form)),
                "val": msgspec.to_builtins(question_baselines(self.val.rows, form)),
            },
        }


class GrpoMethod(_GenerativeMethod):
    """GRPO: the judge draws replies, and is paid by the labels."""

    learned = "rewards of its own replies"

    def longest_reply(self) -> int:
        """As in training."""
        return self.judge.grpo.max_response_length

    def encode(self, encoder: ConversationEncoder) -> None:
        """Questions, none of them cut."""
        self.encode_questions(encoder)
        self.train = self.questions
        self.lengths = prompt_lengths(self.train)
        self.validation = self.make_validation()

    def steps(self) -> int:
        """Whole batches only."""
        return count_grpo_steps(self.judge, len(self.train.rows))

    def tokens(self) -> int:
        """A question and its reply."""
        return self.judge.data.max_length + self.judge.grpo.max_response_length

    def learn(self, model: Any, context: TrainerContext) -> dict[str, Any]:
        """Train on the rewards of drawn replies."""
        side = GrpoCallbacks(
            self.train.rows,
            self.labelled.form,
            self.validation,
            opened=self.thinking_opened,
            beta=self.judge.grpo.kl_loss_coef,
        )
        return train_grpo(model, self.tokenizer, self.train, side, self.judge, context)

    def data(self) -> dict[str, Any]:
        """Counts by rows and prompts, hashes and lengths."""
        train, val = (
            (rows, _encoding_counts(found, len(rows)))
            for found, known in ((self.train, self.material.train), (self.val, self.material.val))
            for rows in [[known[place] for place in dict.fromkeys(one.row for one in found.rows)]]
        )
        return self.data_facts(train, val)


class JudgementMethod(_GenerativeMethod):
    """SFT: the judge imitates judgements, made of labels and, where known, reasons."""

    learned = "judgements"

    _imitated: tuple[EncodedRows[Demonstration], EncodedRows[Demonstration]]
    _longest = 0

    def read(self) -> None:
        """Labelled rows and the judgements made of them."""
        super().read()
        form, reasons = self.labelled.form, self.labelled.reasons
        self._made = make_demonstrations(self._asked[0], self.material.train, form, reasons)
        self._made_val = make_demonstrations(self._held_out[0], self.material.val, form, reasons)
        self._made[2].extend(self._asked[1])
        self._made_val[2].extend(self._held_out[1])

    def texts(self) -> Iterator[str]:
        """Questions and judgements."""
        for row in self._made[0][:_TOKENIZER_TEXTS]:
            yield from message_texts(row.messages)

    def longest_reply(self) -> int:
        """Twice what is imitated: what is longer goes astray."""
        return 2 * self._longest + _EXTRA_REPLY_TOKENS

    def encode(self, encoder: ConversationEncoder) -> None:
        """Judgements to imitate, and questions to validate with."""
        self.encode_questions(encoder)
        # A judgement is never cut: without its verdict it would teach not to give one.
        data = self.judge.data.model_copy(update={"truncation": "error"})
        whole = self.judge.model_copy(update={"data": data})
        self.train = encode_rows(self._made[0], encoder, whole, "data.train", self._made[2])
        held_out = encode_rows(self._made_val[0], encoder, whole, "data.val", self._made_val[2])
        self._imitated = (self.train, held_out)
        self.lengths = token_lengths(self.train, encoder, self.judge)
        self._longest = max(len(encoder.text_ids(row.messages[-1:])) for row in self.train.rows)
        self.validation = self.make_validation()

    def tokens(self) -> int:
        """A question and its reply, once replies are known."""
        return self.judge.data.max_length + (self.longest_reply() if self._longest else 0)

    def learn(self, model: Any, context: TrainerContext) -> dict[str, Any]:
        """Train on the judge's turns."""
        return train_sft(model, self.tokenizer, *self._imitated, self.judge, context)

    def complete_row(self, row: MetricRow, model: Any) -> MetricRow:
        """With greedy verdicts beside the loss."""
        # Of a model in parts no process can draw a reply alone.
        if "val/loss" not in row or distributed_rank() is not None:
            return row
        judged = self.validation.ask_questions(model, self.tokenizer, nullcontext)
        found = self.validation.metrics(judged)
        return {**row, **{f"val/{name}": value for name, value in found.items()}}

    def validate(self, model: Any) -> dict[str, Any]:
        """The loss of the step that is kept, and greedy verdicts anew."""
        loss = best_step_metrics(self.rows, self.best_step, self.judge)["loss"]
        return {"loss": loss, **super().validate(model)}

    def selection_text(self) -> str:
        """By the loss alone."""
        return "least validation loss"

    def data(self) -> dict[str, Any]:
        """Counts by rows and prompts, hashes and lengths."""
        train, val = (
            (one.rows, _encoding_counts(one, len({row.where for row in one.rows})))
            for one in self._imitated
        )
        return {**self.data_facts(train, val), "with_reasons": len(self.labelled.reasons)}


def _encoding_counts(found: EncodedRows[Any], rows: int) -> dict[str, Any]:
    """The counts of what was encoded, by rows of the data; ``prompts``: how many were made."""
    return {**found.facts, "rows": rows, "prompts": len(found.rows)}
