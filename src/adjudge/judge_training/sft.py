"""Supervised fine-tuning of a generative judge: TRL's ``SFTTrainer`` on conversations.

Rows come as ids and labels that are cut already, so that a cut may keep the end; the order of rows
and an exact validation are the run's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from adjudge.judge_training.base import bare, whole
from adjudge.judge_training.data.rows import Demonstration, Messages
from adjudge.judge_training.distributed import everyone, launched, world
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.material import Encoded, Encoder
from adjudge.judge_training.sampling import LengthGrouped, share
from adjudge.judge_training.trainer_settings import Row, settings_of, steps_of, watch
from adjudge.judges.local.batches import by_length
from adjudge.judges.local.conversation import templated
from adjudge.training.rl import silence

__all__ = ["IGNORED", "labels_of", "learns_all_turns", "train_sft"]

IGNORED = -100
"""The label of a token that is read but not learned."""


def learns_all_turns(tokenizer: Any) -> bool:
    """Whether the chat template says which tokens are the assistant's.

    If so, all of the assistant's turns are learned, else the last one only.
    """
    template = tokenizer.chat_template
    return isinstance(template, str) and "generation" in template and "endgeneration" in template


def labels_of(tokenizer: Any, turns: Messages) -> list[int]:
    """The ids of a conversation, and :data:`IGNORED` where a token is not to be learned."""
    if not learns_all_turns(tokenizer):
        ids = templated(tokenizer, turns, reply=False)
        asked = templated(tokenizer, turns[:-1], reply=True)
        start = _common(asked, ids)
        return [IGNORED] * start + ids[start:]
    found = tokenizer.apply_chat_template(
        turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    pairs = zip(found["input_ids"], found["assistant_masks"], strict=True)
    return [token if learned else IGNORED for token, learned in pairs]


def train_sft(
    model: Any,
    tokenizer: Any,
    train: Encoded[Demonstration],
    val: Encoded[Demonstration],
    judge: JudgeFile,
    *,
    folder: Path,
    resume: Path | None,
    on_row: Callable[[int, Row], None],
    on_saved: Callable[[int], None],
) -> dict[str, Any]:
    """Train ``model`` in place on the assistant's turns; it then is the best of the validated ones.

    Arguments and result as those of ``train_bradley_terry``. Raises :class:`ConfigError` for a row
    of which the cut at ``max_length`` leaves nothing to learn.
    """
    import trl  # noqa: PLC0415

    plain = bare(model) if launched() else model
    steps = steps_of(judge, len(train.rows))
    settings = settings_of(judge, steps, folder, resumed=resume is not None)
    held_out = _dataset(val, tokenizer, judge)
    side = _Side(held_out, judge.data.micro_batch_size)
    trainer = _trainer_class()(
        model=model,
        processing_class=tokenizer,
        train_dataset=_dataset(train, tokenizer, judge),
        eval_dataset=held_out,
        args=trl.SFTConfig(
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            **settings,
        ),
        callbacks=[watch(side.measured, on_row, on_saved)],
    )
    trainer.side = side
    trainer.order = LengthGrouped(
        [len(sides[0]) for sides in train.ids],
        judge.data.micro_batch_size * world(),
        judge.trainer.seed,
    )
    silence(trainer)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    state = trainer.state
    return {
        "best_step": state.best_global_step or state.global_step,
        "tokens": side.tokens,
        "model": whole(trainer, model, plain),
    }


class _Side:
    """The run's side of the trainer: what it validates, and what it measures on the way."""

    def __init__(self, rows: Any, size: int) -> None:
        self._rows, self._size = rows, size
        self.tokens = 0
        self._seen = self._cells = 0

    def validated(self, trainer: Any) -> dict[str, float]:
        """Mean −log p of the tokens that are learned, and the share that is the likeliest one.

        Over all tokens of all rows, however they lie in batches and processes.
        """
        import torch  # noqa: PLC0415

        # A model in parts is computed by all processes at once, on the same rows.
        parts = trainer.is_fsdp_enabled
        model = trainer.model_wrapped if parts else trainer.model
        places = range(len(self._rows)) if parts else share(len(self._rows))
        lengths = [len(self._rows[place]["input_ids"]) for place in places]
        was_training = model.training
        model.eval()
        loss = right = count = 0.0
        for batch in by_length(lengths, self._size):
            rows = [self._rows[places[one]] for one in batch]
            inputs = trainer._prepare_inputs(trainer.data_collator(rows))  # noqa: SLF001
            with torch.inference_mode(), trainer.accelerator.autocast():
                # As the trainer computes its own loss: without the logits of all tokens at once.
                found = model(**inputs, use_cache=False, fused_lm_head=True)
            loss -= float(found.log_probs.double().sum())
            right += float(found.is_top1.sum())
            count += float(found.label_mask.sum())
        model.train(was_training)
        sums = [(loss, right, count)] if parts else everyone([(loss, right, count)])
        loss, right, count = (sum(part) for part in zip(*sums, strict=True))
        return {"eval_loss": loss / count, "eval_mean_token_accuracy": right / count}

    def saw(self, mask: Any) -> None:
        """One batch of training: which tokens are no padding."""
        self._seen += int(mask.sum())
        self._cells += mask.numel()

    def measured(self) -> Row:
        """Share of padding since the last time."""
        found = everyone([(self._seen, self._cells)])
        seen, cells = (sum(part) for part in zip(*found, strict=True))
        self.tokens += seen
        self._seen = self._cells = 0
        return {"train/padding_frac": 1 - seen / cells if cells else 0.0}


@cache
def _trainer_class() -> Any:
    import trl  # noqa: PLC0415

    class GroupedTrainer(trl.SFTTrainer):  # type: ignore[misc]  # the base is untyped
        """``SFTTrainer`` with rows in the run's order, and the run's validation."""

        side: _Side
        order: LengthGrouped
        control: Any

        def _get_train_sampler(self, _dataset: Any = None) -> Any:
            return self.order

        def compute_loss(self, model: Any, inputs: Any, *more: Any, **given: Any) -> Any:
            self.side.saw(inputs["attention_mask"])
            return super().compute_loss(model, inputs, *more, **given)

        def evaluate(self, *_: Any, **_given: Any) -> Mapping[str, float]:
            metrics = self.side.validated(self)
            self.control = self.callback_handler.on_evaluate(
                self.args, self.state, self.control, metrics
            )
            return metrics

    return GroupedTrainer


def _dataset(rows: Encoded[Demonstration], tokenizer: Any, judge: JudgeFile) -> Any:
    import datasets  # noqa: PLC0415

    encoder, most = Encoder(tokenizer), judge.data.max_length
    columns: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for row, (ids,) in zip(rows.rows, rows.ids, strict=True):
        labels = labels_of(tokenizer, encoder.turns(row.messages))
        if (over := len(labels) - len(ids)) > 0:
            labels = _cut(labels, over, ids, tokenizer, judge.data.truncation)
        if not any(label != IGNORED for label in labels[1:]):
            judge.refuse(
                "data.max_length",
                f"{row.where}: its {most} tokens have nothing of the assistant's; raise it, or "
                "leave the row out",
            )
        columns["input_ids"].append(ids)
        columns["labels"].append(labels)
    return datasets.Dataset.from_dict(columns)


def _cut(
    labels: list[int], over: int, ids: Sequence[int], tokenizer: Any, truncation: str
) -> list[int]:
    """``labels`` without what the cut took of ids of which ``ids`` are left."""
    if truncation == "right":
        return labels[: len(ids)]
    kept = 1 if ids[0] == tokenizer.bos_token_id else 0  # as Encoder.cut does
    return labels[:kept] + labels[kept + over :]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
