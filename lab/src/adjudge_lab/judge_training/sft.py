"""Supervised fine-tuning of a generative judge: TRL's ``SFTTrainer`` on conversations.

Rows come as ids and labels that are cut already, so that a cut may keep the end; the order of rows
and an exact validation are the run's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from adjudge.datasets.rows import ChatMessages, Demonstration
from adjudge.judges.models.local_inference import batch_by_length
from adjudge.judges.models.local_loading import apply_chat_template
from adjudge_lab.judge_training.base_model import gather_full_model, unwrap_model
from adjudge_lab.judge_training.dataset import ConversationEncoder, EncodedRows, common_prefix
from adjudge_lab.judge_training.distributed import all_gather, distributed_rank, world_size
from adjudge_lab.judge_training.judge_file import JudgeFile, MetricRow
from adjudge_lab.judge_training.trl_trainers import (
    SUPERVISED_METRICS,
    LengthGroupedSampler,
    OwnOrder,
    TrainerContext,
    ValidationShare,
    metrics_callback,
    run_trainer,
    trainer_arguments,
    training_steps,
)

IGNORED_LABEL = -100
"""The label of a token that is read but not learned."""


def template_marks_assistant(tokenizer: Any) -> bool:
    """Whether the chat template says which tokens are the assistant's.

    If so, all of the assistant's turns are learned, else the last one only.
    """
    template = tokenizer.chat_template
    return isinstance(template, str) and "generation" in template and "endgeneration" in template


def token_labels(tokenizer: Any, turns: ChatMessages) -> list[int]:
    """The ids of a conversation, and :data:`IGNORED_LABEL` where a token is not to be learned."""
    if not template_marks_assistant(tokenizer):
        ids = apply_chat_template(tokenizer, turns, reply=False)
        asked = apply_chat_template(tokenizer, turns[:-1], reply=True)
        start = common_prefix(asked, ids)
        return [IGNORED_LABEL] * start + ids[start:]
    found = tokenizer.apply_chat_template(
        turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    pairs = zip(found["input_ids"], found["assistant_masks"], strict=True)
    return [token if learned else IGNORED_LABEL for token, learned in pairs]


def train_sft(
    model: Any,
    tokenizer: Any,
    train: EncodedRows[Demonstration],
    val: EncodedRows[Demonstration],
    judge: JudgeFile,
    context: TrainerContext,
) -> dict[str, Any]:
    """Train ``model`` in place on the assistant's turns; it then is the best of the validated ones.

    The result is as that of ``train_bradley_terry``. Raises :class:`ConfigError` for a row
    of which the cut at ``max_length`` leaves nothing to learn.
    """
    import trl  # noqa: PLC0415

    plain = unwrap_model(model) if distributed_rank() else model
    steps = training_steps(judge, len(train.rows))
    held_out = _dataset(val, tokenizer, judge)
    side = _SftSide(held_out, judge.data.micro_batch_size)
    trainer = _trainer_class()(
        model=model,
        processing_class=tokenizer,
        train_dataset=_dataset(train, tokenizer, judge),
        eval_dataset=held_out,
        args=trl.SFTConfig(
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            **trainer_arguments(judge, steps, context),
        ),
        callbacks=[metrics_callback(SUPERVISED_METRICS, side.batch_metrics, context.on_row)],
    )
    trainer.side = side
    trainer.order = LengthGroupedSampler(
        [len(sides[0]) for sides in train.ids],
        judge.data.micro_batch_size * world_size(),
        judge.trainer.seed,
    )
    return {
        "best_step": run_trainer(trainer, context.resume),
        "tokens": side.tokens,
        "model": gather_full_model(trainer, model, plain),
    }


class _SftSide:
    """The run's side of the trainer: what it validates, and what it measures on the way."""

    def __init__(self, rows: Any, size: int) -> None:
        self._rows, self._size = rows, size
        self.tokens = 0
        self._seen = self._cells = 0

    def validate(self, trainer: Any) -> dict[str, float]:
        """Mean −log p of the tokens that are learned, and the share that is the likeliest one.

        Over all tokens of all rows, however they lie in batches and processes.
        """
        import torch  # noqa: PLC0415

        share = ValidationShare(trainer, len(self._rows))
        model, places = share.model, share.places
        lengths = [len(self._rows[place]["input_ids"]) for place in places]
        was_training = model.training
        model.eval()
        loss = right = count = 0.0
        for batch in batch_by_length(lengths, self._size):
            rows = [self._rows[places[one]] for one in batch]
            inputs = trainer._prepare_inputs(trainer.data_collator(rows))  # noqa: SLF001
            with torch.inference_mode(), trainer.accelerator.autocast():
                # As the trainer computes its own loss: without the logits of all tokens at once.
                found = model(**inputs, use_cache=False, fused_lm_head=True)
            loss -= float(found.log_probs.double().sum())
            right += float(found.is_top1.sum())
            count += float(found.label_mask.sum())
        model.train(was_training)
        sums = share.gather([(loss, right, count)])
        loss, right, count = (sum(part) for part in zip(*sums, strict=True))
        return {"eval_loss": loss / count, "eval_token_accuracy": right / count}

    def record_batch(self, mask: Any) -> None:
        """One batch of training: which tokens are no padding."""
        self._seen += int(mask.sum())
        self._cells += mask.numel()

    def batch_metrics(self, _row: MetricRow) -> MetricRow:
        """Share of padding since the last time."""
        found = all_gather([(self._seen, self._cells)])
        seen, cells = (sum(part) for part in zip(*found, strict=True))
        self.tokens += seen
        self._seen = self._cells = 0
        return {"train/padding_frac": 1 - seen / cells if cells else 0.0}


@cache
def _trainer_class() -> Any:
    import trl  # noqa: PLC0415

    class GroupedTrainer(OwnOrder, trl.SFTTrainer):  # type: ignore[misc]  # the base is untyped
        """``SFTTrainer`` with rows in the run's order, and the run's validation."""

        def compute_loss(self, model: Any, inputs: Any, *more: Any, **given: Any) -> Any:
            self.side.record_batch(inputs["attention_mask"])
            return super().compute_loss(model, inputs, *more, **given)

    return GroupedTrainer


def _dataset(rows: EncodedRows[Demonstration], tokenizer: Any, judge: JudgeFile) -> Any:
    import datasets  # noqa: PLC0415

    encoder, most = ConversationEncoder(tokenizer), judge.data.max_length
    columns: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for row, (ids,) in zip(rows.rows, rows.ids, strict=True):
        labels = token_labels(tokenizer, encoder.clean_messages(row.messages))
        if (over := len(labels) - len(ids)) > 0:
            labels = _cut_labels(labels, over, ids, tokenizer, judge.data.truncation)
        if not any(label != IGNORED_LABEL for label in labels[1:]):
            judge.refuse(
                "data.max_length",
                f"{row.where}: its {most} tokens hold no text of the assistant. Raise it, or leave "
                "the row out.",
            )
        columns["input_ids"].append(ids)
        columns["labels"].append(labels)
    return datasets.Dataset.from_dict(columns)


def _cut_labels(
    labels: list[int], over: int, ids: Sequence[int], tokenizer: Any, truncation: str
) -> list[int]:
    """``labels`` without what the cut took of ids of which ``ids`` are left."""
    if truncation == "right":
        return labels[: len(ids)]
    kept = 1 if ids[0] == tokenizer.bos_token_id else 0  # as Encoder.cut does
    return labels[:kept] + labels[kept + over :]
