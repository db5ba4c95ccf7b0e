"""TRL's trainers of judges that learn from given answers: ``SFTTrainer`` and ``RewardTrainer``.

Loss, optimiser, schedule and checkpoints are the trainer's. The run's own are the order of rows
(like lengths together, padded to the longest of a batch), an exact validation, and the choice of
the best checkpoint by it. Conversations of SFT come as ids and labels that are cut already, so that
a cut may keep the end; a scalar judge learns by Bradley-Terry's loss from rows that fit together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from adjudge.datasets.rows import ChatMessages, Demonstration, Preference
from adjudge.judges.models.local_inference import batch_by_length
from adjudge.judges.models.local_loading import apply_chat_template
from adjudge_lab.judge_training.base_model import ask_by_length, gather_full_model, unwrap_model
from adjudge_lab.judge_training.calibration import measure_pairs, pair_length_correlation
from adjudge_lab.judge_training.dataset import ConversationEncoder, EncodedRows, common_prefix
from adjudge_lab.judge_training.distributed import all_gather, distributed_rank, world_size
from adjudge_lab.judge_training.judge_file import JudgeFile, MetricRow
from adjudge_lab.judge_training.trl_trainers import (
    CHOICE_METRIC,
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
from adjudge_lab.rl.trainer_settings import merge_trl_settings

IGNORED_LABEL = -100
"""The label of a token that is read but not learned."""

PairScores = list[tuple[float, float]]
"""Scores of chosen and rejected."""

_MAX_LOSS = 100.0
_TIE_BREAK = 1e-9
"""Weight of the loss in the choice of the best: below what one pair more is worth."""

_NEVER_BEST = -1.0
"""The choice where outputs are no numbers, so that nothing is measured: below any other."""


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

    The result is as that of :func:`train_bradley_terry`. Raises :class:`ConfigError` for a row
    of which the cut at ``max_length`` leaves nothing to learn.
    """
    held_out = _sft_dataset(val, tokenizer, judge)
    side = _SftSide(held_out, judge.data.micro_batch_size)
    rows = _sft_dataset(train, tokenizer, judge)
    return _train(_sft_trainer(), model, tokenizer, side, (rows, held_out), train, judge, context)


def train_bradley_terry(
    model: Any,
    tokenizer: Any,
    train: EncodedRows[Preference],
    val: EncodedRows[Preference],
    judge: JudgeFile,
    context: TrainerContext,
) -> dict[str, Any]:
    """Train ``model`` in place, which then is the best of the validated ones.

    −log σ(r_chosen − r_rejected), less the margin where the file wants it. Returns ``best_step``,
    ``tokens``, of which padding is not part, and ``model``: the trained one, which is another
    object where several GPUs had it in parts.
    """
    side = _BradleyTerrySide(val, judge)
    rows = _pair_dataset(train, judge), _pair_dataset(val, judge)
    return _train(_pair_trainer(), model, tokenizer, side, rows, train, judge, context)


def _train(
    trainer_class: Any,
    model: Any,
    tokenizer: Any,
    side: _SftSide | _BradleyTerrySide,
    datasets: tuple[Any, Any],
    train: EncodedRows[Any],
    judge: JudgeFile,
    context: TrainerContext,
) -> dict[str, Any]:
    """Train on the first of ``datasets``, which is ``train``, and validate on the second."""
    plain = unwrap_model(model) if distributed_rank() else model
    steps = training_steps(judge, len(train.rows))
    trainer = trainer_class(
        model=model,
        processing_class=tokenizer,
        train_dataset=datasets[0],
        eval_dataset=datasets[1],
        args=trainer_class.settings(
            **merge_trl_settings(trainer_arguments(judge, steps, context), judge.trl)
        ),
        callbacks=[metrics_callback(SUPERVISED_METRICS, side.batch_metrics, context.on_row)],
    )
    trainer.side = side
    lengths = [max(map(len, sides)) for sides in train.ids]
    trainer.order = LengthGroupedSampler(
        lengths, judge.data.micro_batch_size * world_size(), judge.trainer.seed
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
def _sft_trainer() -> Any:
    import trl  # noqa: PLC0415

    class GroupedTrainer(OwnOrder, trl.SFTTrainer):  # type: ignore[misc]  # the base is untyped
        """``SFTTrainer`` with rows in the run's order, and the run's validation."""

        settings = staticmethod(
            partial(trl.SFTConfig, metric_for_best_model="eval_loss", greater_is_better=False)
        )

        def compute_loss(self, model: Any, inputs: Any, *more: Any, **given: Any) -> Any:
            self.side.record_batch(inputs["attention_mask"])
            return super().compute_loss(model, inputs, *more, **given)

    return GroupedTrainer


def _sft_dataset(rows: EncodedRows[Demonstration], tokenizer: Any, judge: JudgeFile) -> Any:
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


def score_pairs(
    model: Any, pad: int, ids: Sequence[Sequence[Sequence[int]]], size: int, autocast: Any
) -> PairScores:
    """The scores of both sides of pairs, in batches of like length, padded on the right.

    ``size`` pairs at once; ``autocast`` makes a context for the arithmetic.
    """
    texts = [side for sides in ids for side in sides]
    scores: list[float] = ask_by_length(
        model,
        texts,
        lambda **batch: model(**batch).logits[:, 0].float().tolist(),
        pad=pad,
        size=2 * size,
        autocast=autocast,
    )
    return list(zip(scores[::2], scores[1::2], strict=True))


class _BradleyTerrySide:
    """The run's side of the trainer: what it validates, and what it measures on the way."""

    def __init__(self, val: EncodedRows[Preference], judge: JudgeFile) -> None:
        self._val = val
        self._margins = row_margins(val, judge)
        self.size = judge.data.micro_batch_size
        self.tokens = 0
        self._differences: list[Any] = []
        self._lengths: list[Any] = []
        self._cells = 0

    def validate(self, trainer: Any) -> dict[str, float]:
        """Metrics of the validation rows, and by what the best step is chosen."""
        share = ValidationShare(trainer, len(self._val.ids))
        pad, autocast = trainer.processing_class.pad_token_id, trainer.accelerator.autocast
        ids = [self._val.ids[place] for place in share.places]
        mine = score_pairs(share.model, pad, ids, self.size, autocast)
        placed = share.gather(list(zip(share.places, mine, strict=True)))
        scores = [pair for _, pair in sorted(placed)]
        if not all(math.isfinite(score) for pair in scores for score in pair):
            return {CHOICE_METRIC: _NEVER_BEST}
        lengths = [(len(chosen), len(rejected)) for chosen, rejected in self._val.ids]
        found = measure_pairs(scores, lengths, self._margins)
        found["choice"] = found["accuracy"] - _TIE_BREAK * min(found["loss"], _MAX_LOSS)
        return {f"eval_{name}": value for name, value in found.items()}

    def record_batch(self, scores: Any, mask: Any) -> None:
        """One batch of training: scores, chosen first, and which tokens are no padding."""
        chosen, rejected = scores.detach().float().squeeze(-1).chunk(2)
        lengths = mask.sum(dim=1)
        longer = lengths.chunk(2)
        self._differences.append(chosen - rejected)
        self._lengths.append((longer[0] - longer[1], lengths.sum()))
        self._cells += mask.numel()

    def batch_metrics(self, _row: MetricRow) -> MetricRow:
        """Correlation with length and share of padding since the last time."""
        mine = (
            [d for batch in self._differences for d in batch.tolist()],
            [n for batch, _ in self._lengths for n in batch.tolist()],
            sum(int(total) for _, total in self._lengths),
            self._cells,
        )
        found = all_gather([mine])
        differences = [d for one in found for d in one[0]]
        lengths = [n for one in found for n in one[1]]
        tokens, cells = sum(one[2] for one in found), sum(one[3] for one in found)
        row: MetricRow = {"train/padding_frac": 1 - tokens / cells if cells else 0.0}
        correlation = pair_length_correlation(differences, lengths)
        if correlation is not None:
            row["train/length_corr"] = correlation
        self.tokens += tokens
        self._differences, self._lengths, self._cells = [], [], 0
        return row


@cache
def _pair_trainer() -> Any:
    import trl  # noqa: PLC0415

    class PairTrainer(OwnOrder, trl.RewardTrainer):  # type: ignore[misc]  # the base is untyped
        """``RewardTrainer`` with rows in the run's order, and the run's validation."""

        settings = staticmethod(
            partial(trl.RewardConfig, metric_for_best_model=CHOICE_METRIC, greater_is_better=True)
        )

        def __init__(self, model: Any, **given: Any) -> None:
            super().__init__(model, **given)
            _score_in_float32(model)

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **given: Any
        ) -> Any:
            mask = inputs["attention_mask"]
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **given)
            self.side.record_batch(outputs.logits, mask)
            return (loss, outputs) if return_outputs else loss

    return PairTrainer


def _pair_dataset(rows: EncodedRows[Preference], judge: JudgeFile) -> Any:
    import datasets  # noqa: PLC0415

    columns: dict[str, Any] = {
        "chosen_ids": [sides[0] for sides in rows.ids],
        "rejected_ids": [sides[1] for sides in rows.ids],
    }
    if (margins := row_margins(rows, judge)) is not None:
        columns["margin"] = margins
    return datasets.Dataset.from_dict(columns)


def row_margins(rows: EncodedRows[Preference], judge: JudgeFile) -> list[float] | None:
    """Each row's margin, 0 where it is missing; ``None``: the file asks for no margins."""
    return [row.margin or 0.0 for row in rows.rows] if judge.data.use_margin else None


def _score_in_float32(model: Any) -> None:
    """Keep the one output in float32 under autocast: bfloat16 would make near scores equal."""
    import torch  # noqa: PLC0415

    def in_full(output: Any) -> Callable[[Any], Any]:
        def forward(hidden: Any) -> Any:
            bias = None if output.bias is None else output.bias.float()
            with torch.autocast(hidden.device.type, enabled=False):
                return torch.nn.functional.linear(hidden.float(), output.weight.float(), bias)

        return forward

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and {"score", "classifier"} & set(name.split(".")):
            module.forward = in_full(module)
