"""Bradley-Terry training of a scalar judge: TRL's ``RewardTrainer`` on rows that fit together.

Loss, optimiser, schedule and checkpoints are the trainer's. The run's own are the order of rows
(like lengths together, padded to the longest of a batch), an exact validation, and the choice of
the best checkpoint by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from adjudge.datasets.rows import Preference
from adjudge.judges.models.local_inference import batch_by_length
from adjudge.stats.agreement import measure_pairs, pair_length_correlation
from adjudge_lab.judge_training.base_model import gather_full_model, unwrap_model
from adjudge_lab.judge_training.dataset import EncodedRows
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

PairScores = list[tuple[float, float]]
"""Scores of chosen and rejected."""

_MAX_LOSS = 100.0
_TIE_BREAK = 1e-9
"""Weight of the loss in the choice of the best: below what one pair more is worth."""

_NEVER_BEST = -1.0
"""The choice where outputs are no numbers, so that nothing is measured: below any other."""


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
    import trl  # noqa: PLC0415

    plain = unwrap_model(model) if distributed_rank() else model
    steps = training_steps(judge, len(train.rows))
    side = _BradleyTerrySide(val, judge)
    trainer = _trainer_class()(
        model=model,
        processing_class=tokenizer,
        train_dataset=_dataset(train, judge),
        eval_dataset=_dataset(val, judge),
        args=trl.RewardConfig(
            metric_for_best_model=CHOICE_METRIC,
            greater_is_better=True,
            **trainer_arguments(judge, steps, context),
        ),
        callbacks=[metrics_callback(SUPERVISED_METRICS, side.batch_metrics, context.on_row)],
    )
    trainer.side = side
    trainer.order = LengthGroupedSampler(
        [max(map(len, sides)) for sides in train.ids],
        judge.data.micro_batch_size * world_size(),
        judge.trainer.seed,
    )
    _score_in_float32(model)
    return {
        "best_step": run_trainer(trainer, context.resume),
        "tokens": side.tokens,
        "model": gather_full_model(trainer, model, plain),
    }


def score_pairs(
    model: Any, pad: int, ids: Sequence[Sequence[Sequence[int]]], size: int, autocast: Any
) -> PairScores:
    """The scores of both sides of pairs, in batches of like length, padded on the right.

    ``size`` pairs at once; ``autocast`` makes a context for the arithmetic.
    """
    import torch  # noqa: PLC0415

    texts = [side for sides in ids for side in sides]
    scores = [math.nan] * len(texts)
    was_training = model.training
    model.eval()
    for places in batch_by_length([len(text) for text in texts], 2 * size):
        longest = max(len(texts[place]) for place in places)
        rows = [[*texts[place], *[pad] * (longest - len(texts[place]))] for place in places]
        mask = [[1] * len(texts[p]) + [0] * (longest - len(texts[p])) for p in places]
        device = next(model.parameters()).device
        with torch.inference_mode(), autocast():
            logits = model(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
            ).logits
        for place, score in zip(places, logits[:, 0].float().tolist(), strict=True):
            scores[place] = score
    model.train(was_training)
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
def _trainer_class() -> Any:
    import trl  # noqa: PLC0415

    class PairTrainer(OwnOrder, trl.RewardTrainer):  # type: ignore[misc]  # the base is untyped
        """``RewardTrainer`` with rows in the run's order, and the run's validation."""

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **given: Any
        ) -> Any:
            mask = inputs["attention_mask"]
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **given)
            self.side.record_batch(outputs.logits, mask)
            return (loss, outputs) if return_outputs else loss

    return PairTrainer


def _dataset(rows: EncodedRows[Preference], judge: JudgeFile) -> Any:
    import datasets  # noqa: PLC0415

    columns: dict[str, Any] = {
        "chosen_ids": [sides[0] for sides in rows.ids],
        "rejected_ids": [sides[1] for sides in rows.ids],
    }
    if (margins := row_margins(rows, judge)) is not None:
        columns["margin"] = margins
    return datasets.Dataset.from_dict(columns)


def row_margins(rows: EncodedRows[Preference], judge: JudgeFile) -> list[float] | None:
    """Each row's margin, 0 where nobody said one; ``None``: the file wants none."""
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
