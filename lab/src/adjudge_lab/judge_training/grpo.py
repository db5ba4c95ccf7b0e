"""GRPO of a judge: TRL's ``GRPOTrainer`` on questions with known labels.

Generation, loss, optimiser and checkpoints are the trainer's. The run's own are the order of the
questions (both orders of a comparison in one batch, always), what replies are paid, the reference
that the KL term is taken to, and a validation by greedy verdicts, which also chooses the best
checkpoint.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from adjudge.graders.llm.trained_judge_card import JudgementForm
from adjudge_lab.judge_training.base_model import decode_reply_tokens, end_token_ids
from adjudge_lab.judge_training.dataset import ConversationEncoder, EncodedRows
from adjudge_lab.judge_training.judge_file import JudgeFile, MetricRow
from adjudge_lab.judge_training.judge_questions import JudgeQuestion
from adjudge_lab.judge_training.judgement_rewards import (
    GreedyValidation,
    JudgedQuestion,
    batch_rewards,
    reply_metrics,
    selection_metric,
)
from adjudge_lab.judge_training.trl_trainers import (
    CHOICE_METRIC,
    OwnValidation,
    TrainerContext,
    metrics_callback,
    run_trainer,
    trainer_arguments,
)
from adjudge_lab.rl.trainer_settings import merge_trl_settings


def count_grpo_steps(judge: JudgeFile, prompts: int) -> int:
    """Updates in the whole run: whole batches only, ``train_batch_size`` prompts each.

    Raises :class:`~adjudge.errors.ConfigError` for fewer prompts than one batch has.
    """
    size = judge.data.train_batch_size
    if prompts < size:
        kind = "prompts, two for each comparison" if judge.mode == "pairwise" else "prompts"
        judge.refuse(
            "data.train_batch_size",
            f"must be at most the number of {kind}: {prompts} (found {size})",
        )
    return judge.trainer.total_epochs * (prompts // size)


def grpo_question_order(
    questions: Sequence[JudgeQuestion], *, size: int, epochs: int, seed: int
) -> list[int]:
    """Places of ``questions``, batch after batch of ``size``, for all epochs.

    Rows are shuffled anew in each epoch by ``seed``; a row's questions stay next to each other and
    begin at an even place, so that an even ``size`` never parts them. What is left at an epoch's
    end and fills no batch is left out of it: another part of the rows each time.
    """
    rows: dict[int, list[int]] = {}
    for place, question in enumerate(questions):
        rows.setdefault(question.row, []).append(place)
    order: list[int] = []
    for epoch in range(epochs):
        units = list(rows.values())
        random.Random(f"{seed} {epoch}").shuffle(units)  # noqa: S311  (no secret)
        laid = [place for unit in units for place in unit]
        order += laid[: len(laid) // size * size]
    return order


_TRAINER_METRICS = {
    "reward": "train/reward_mean",
    "reward_std": "train/reward_std",
    "frac_reward_zero_std": "train/zero_std_frac",
    "kl": "train/kl_divergence",
    "loss": "train/loss",
    "entropy": "train/entropy",
    "completions/mean_length": "train/response_length",
    "completions/clipped_ratio": "train/clipped",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "num_tokens": "tokens",
}


class GrpoCallbacks:
    """The run's side of the trainer: what replies are paid, and what they show."""

    def __init__(
        self,
        questions: Sequence[JudgeQuestion],
        form: JudgementForm,
        validation: GreedyValidation,
        *,
        opened: bool,
        beta: float,
    ) -> None:
        self.questions, self.form, self.validation = questions, form, validation
        self._opened, self._beta = opened, beta
        self._found: MetricRow = {}
        self.tokenizer: Any = None
        self.ends: set[int] = set()

    def rewards(
        self, *, completion_ids: Sequence[Sequence[int]], place: Sequence[int], **_: Any
    ) -> list[float]:
        """TRL's reward function: the whole batch's replies, those to one prompt together.

        ``place``: the question that each is a reply to.
        """
        judged: list[JudgedQuestion] = []
        for number, (where, tokens) in enumerate(zip(place, completion_ids, strict=True)):
            text, cut = decode_reply_tokens(self.tokenizer, tokens, self.ends)
            read = self.form.read(text, opened=self._opened, cut=cut)
            if number and place[number - 1] == where:
                judged[-1] = JudgedQuestion(judged[-1].question, [*judged[-1].replies, read])
            else:
                judged.append(JudgedQuestion(self.questions[where], [read]))
        self._found = {f"train/{k}": v for k, v in reply_metrics(judged, self.form).items()}
        return [reward for row in batch_rewards(judged, self.form) for reward in row]

    def batch_metrics(self, row: MetricRow) -> MetricRow:
        """What the last batch showed."""
        found, self._found = self._found, {}
        return {**found, **policy_loss(row, self._beta)}

    def validate(self, trainer: Any) -> dict[str, float]:
        """Metrics of held-out questions, and by what the best step is chosen."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        autocast = trainer.accelerator.autocast
        judged = self.validation.ask_questions(model, self.tokenizer, autocast)
        metrics = self.validation.metrics(judged).items()
        found = {f"eval_{name}": value for name, value in metrics}
        return {**found, CHOICE_METRIC: selection_metric(judged, self.form)}


def grpo_arguments(judge: JudgeFile, steps: int, context: TrainerContext) -> dict[str, Any]:
    """The ``GRPOConfig`` that a training file means, by TRL's names; needs torch.

    ``beta`` is 0 here: the trainer would load its reference by the model's name, which a model that
    was built has not; :func:`train_grpo` sets both.
    """
    data, grpo = judge.data, judge.grpo
    replies = data.train_batch_size * grpo.rollout_n
    return {
        **trainer_arguments(judge, steps, context),
        "max_steps": steps,
        "per_device_train_batch_size": data.micro_batch_size,
        "per_device_eval_batch_size": grpo.rollout_n,  # validation is the run's own
        "gradient_accumulation_steps": replies // data.micro_batch_size,
        "num_generations": grpo.rollout_n,
        "max_completion_length": grpo.max_response_length,
        "temperature": grpo.temperature,
        "beta": 0.0,
        "shuffle_dataset": False,
        "metric_for_best_model": CHOICE_METRIC,
        "greater_is_better": True,
    }


def train_grpo(
    model: Any,
    tokenizer: Any,
    train: EncodedRows[JudgeQuestion],
    side: GrpoCallbacks,
    judge: JudgeFile,
    context: TrainerContext,
) -> dict[str, Any]:
    """Train ``model`` in place, which then is the best of the validated ones.

    The reference of the KL term is the model as it was given; of adapters, the model without them.
    The result is as that of ``train_bradley_terry``, without ``model``.
    """
    import trl  # noqa: PLC0415

    steps = count_grpo_steps(judge, len(train.rows))
    wanted = grpo_arguments(judge, steps, context)
    known = {one.name for one in fields(trl.GRPOConfig)}
    tokenizer.padding_side = "left"
    side.tokenizer, side.ends = tokenizer, end_token_ids(model, tokenizer)
    reference = copy.deepcopy(model) if judge.grpo.kl_loss_coef and judge.lora is None else None
    dataset = _dataset(train, ConversationEncoder(tokenizer), judge)
    watch = metrics_callback(_TRAINER_METRICS, side.batch_metrics, context.on_row)
    trainer = type("JudgeTrainer", (OwnValidation, trl.GRPOTrainer), {})(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[side.rewards],
        train_dataset=dataset,
        eval_dataset=dataset.select([0]),  # the trainer wants one; validation is the run's own
        args=trl.GRPOConfig(
            **merge_trl_settings(
                {name: value for name, value in wanted.items() if name in known}, judge.trl
            )
        ),
        callbacks=[watch],
    )
    trainer.side = side
    trainer.beta = judge.grpo.kl_loss_coef
    if reference is not None:
        _set_reference(trainer, reference)
    best_step = run_trainer(trainer, context.resume)
    # Since the run went on, as its time is.
    tokens = int(trainer.state.num_input_tokens_seen) - watch.tokens_before
    return {"best_step": best_step, "tokens": tokens}


def _set_reference(trainer: Any, reference: Any) -> None:
    """Take the KL term to ``reference``, made ready as the trainer makes its own."""
    utils = import_module("trl.trainer.utils")
    reference.requires_grad_(False)
    if (scored := getattr(utils, "add_fused_lm_head", None)) is not None:
        # The trainer asks it for log-probabilities of tokens, at the temperature of the replies.
        scored(reference, temperature=trainer.temperature)
    trainer.ref_model = trainer.accelerator.prepare_model(reference, evaluation_mode=True)


def _dataset(
    train: EncodedRows[JudgeQuestion], encoder: ConversationEncoder, judge: JudgeFile
) -> Any:
    import datasets  # noqa: PLC0415

    order = grpo_question_order(
        train.rows,
        size=judge.data.train_batch_size,
        epochs=judge.trainer.total_epochs,
        seed=judge.trainer.seed,
    )
    turns = [encoder.clean_messages(question.messages) for question in train.rows]
    return datasets.Dataset.from_dict({"prompt": [turns[place] for place in order], "place": order})


def policy_loss(row: MetricRow, beta: float) -> MetricRow:
    """The loss without its KL term, as a metric; none where either is unknown.

    >>> policy_loss({"train/loss": 0.5, "train/kl_divergence": 1.0}, 0.25)
    {'train/policy_loss': 0.25}
    >>> policy_loss({"train/loss": 0.5}, 0.25), policy_loss({"train/loss": 0.5}, 0.0)
    ({}, {'train/policy_loss': 0.5})
    """
    loss = row.get("train/loss")
    divergence = row.get("train/kl_divergence") if beta else 0.0
    if loss is None or divergence is None:
        return {}
    return {"train/policy_loss": loss - beta * divergence}
