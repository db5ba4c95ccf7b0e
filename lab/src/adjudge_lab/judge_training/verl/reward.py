"""``reward_model.reward_manager=adjudge_judgements`` in verl 0.6.1: what judges' replies earn.

It gets a step's whole batch with both orders of each comparison, and reads every reply
by the strict form. ``reward_extra_info`` always has the same columns, by the run's mode:

======================  =======================================================================
``verdict``, ``fault``  text: what the reply says, or why it says nothing
``unread``              1 without a verdict, else 0; ``unread/FAULT`` the same for each fault
``accuracy``            1 where the verdict is the label, else 0
``error``               pointwise: the distance to the label, 0 to 4
``consistency``         pairwise: the share of the other order's verdicts that name the same answer
``first_share``         pairwise: 1 for the answer shown first, 0 for the other
``both_right``          pairwise: if it is right, the share of the other order's replies that are,
                        else, and without a verdict, 0
``judge_metrics``       in training: the batch's means in the first row, which our trainer logs
``details``             in validation: which of the numbers are placeholders
======================  =======================================================================

``accuracy``, ``error``, ``consistency`` and ``first_share`` are NaN where there is no verdict (or a
tie). verl's validation averages every number, so there they have placeholders that leave its means
alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import check_allowed, suggest_name
from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import JudgementForm, JudgeMode, ReplyFault
from adjudge.text import THINK_OPEN
from adjudge.trainers.verl.batches import BatchRows, RowReader
from adjudge.trainers.verl.rewards import (
    DETAILS_COLUMN,
    METRICS_COLUMN,
    MISSING_PARTS,
    impute_for_validation,
)
from adjudge.verdicts import UnreadableReply, Verdict
from adjudge_lab.judge_training.judge_questions import JudgeQuestion
from adjudge_lab.judge_training.judgement_rewards import (
    JudgedQuestion,
    batch_rewards,
    flip_preference,
    reply_metrics,
)

JUDGE_MANAGER_NAME = "adjudge_judgements"
"""The value of ``reward_model.reward_manager``."""

REGISTER_FILE = Path(__file__).with_name("register.py")
"""What makes it known to verl: the value of ``custom_reward_function.path``."""

_LETTER_VALUES = {"A": 1.0, "B": 0.0}
_MODE_COLUMNS = {
    "pointwise": ("accuracy", "error"),
    "pairwise": ("accuracy", "consistency", "first_share", "both_right"),
}


class JudgementRewardManager:
    """Rewards a ``DataProto`` of replies to questions that our own files asked.

    ``mode`` and ``ties`` are those of the run's form (``+reward_model.reward_kwargs.mode=…``). In
    each call ``num_examine`` replies are printed, cut. Raises
    :class:`~adjudge.errors.ConfigError` for other settings.
    """

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Any = None,  # noqa: ARG002  (verl hands it over; nothing is left to call)
        reward_fn_key: str = "data_source",
        *,
        mode: JudgeMode,
        ties: bool = False,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            hint = suggest_name(name, ["mode", "ties"])
            raise ConfigError(f"reward_kwargs.{name}: is unknown{hint} (allowed: mode, ties)")
        check_allowed("reward_kwargs.mode", mode, _MODE_COLUMNS)
        self.form = JudgementForm(mode=mode, ties=bool(ties))
        self.num_examine = num_examine
        self.reader = RowReader(tokenizer, reward_fn_key)
        self.metrics: dict[str, float] = {}

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """The reward tensor ``[B, R]``, or with ``return_dict`` that and ``reward_extra_info``.

        A reward, −0.25 to 1, is on the reply's last valid token. Raises
        :class:`~adjudge.errors.ConfigError` for rows that are not ours, and for a comparison of
        which one order is not in the batch.
        """
        import torch  # noqa: PLC0415  (heavy)

        rows = self.reader.read(data)
        judged, places = _group_replies(rows, self.form)
        rewards = [0.0] * len(rows.samples)
        for own, at in zip(batch_rewards(judged, self.form), places, strict=True):
            for place, reward in zip(at, own, strict=True):
                rewards[place] = reward
        tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        tensor[torch.arange(len(rewards)), torch.tensor(rows.last)] = torch.tensor(rewards)
        self._print(rows, rewards)
        if not return_dict:
            return tensor
        extra = self._columns(data, rows, judged, places, rewards)
        return {"reward_tensor": tensor, "reward_extra_info": extra}

    def _columns(
        self,
        data: Any,
        rows: BatchRows,
        judged: Sequence[JudgedQuestion],
        places: Sequence[Sequence[int]],
        rewards: Sequence[float],
    ) -> dict[str, Any]:
        size = len(rewards)
        info: list[dict[str, Any]] = [{} for _ in range(size)]
        others = _swapped_counterparts(judged)
        for one, other, at in zip(judged, others, places, strict=True):
            for place, reply in zip(at, one.replies, strict=True):
                info[place] = _reply_row(one.question, reply, other, self.form)
        numbers = [key for key in info[0] if key not in {"verdict", "fault"}] if info else []
        extra: dict[str, Any] = {
            key: [row[key] for row in info] for key in ("verdict", "fault") if info
        }
        measures = reply_metrics(judged, self.form)
        self.metrics = {f"train/{key}": value for key, value in measures.items()}
        if not data.meta_info.get("validate"):
            self.metrics["train/reward_mean"] = math.fsum(rewards) / size if size else math.nan
            extra |= {key: [_value_or_nan(row[key]) for row in info] for key in numbers}
            return {**extra, METRICS_COLUMN: [self.metrics, *({} for _ in rewards[1:])]}
        for key in numbers:
            column = [row[key] for row in info]
            extra[key] = impute_for_validation(column, rows.groups, rows.sources)
        gone = [[key for key in numbers if row[key] is None] for row in info]
        return {
            **extra,
            DETAILS_COLUMN: [msgspec.json.encode({MISSING_PARTS: one}).decode() for one in gone],
        }

    def _print(self, rows: BatchRows, rewards: Sequence[float]) -> None:
        for sample, reward in list(zip(rows.samples, rewards, strict=True))[: self.num_examine]:
            said = (sample.response or "")[:400]
            label = _question_fields(sample.extra)[0]
            print(f"[reward] {reward:g} [label] {label} [reply] {said!r}")  # noqa: T201  (verl's own log)


def _group_replies(
    rows: BatchRows, form: JudgementForm
) -> tuple[list[JudgedQuestion], list[list[int]]]:
    """Each question of a batch with its replies, and the places in the batch of those."""
    questions: dict[tuple[int, bool], JudgeQuestion] = {}
    places: dict[tuple[int, bool], list[int]] = {}
    replies: dict[tuple[int, bool], list[Verdict | UnreadableReply]] = {}
    for place, sample in enumerate(rows.samples):
        label, row, swapped, lengths = _question_fields(sample.extra)
        key = (row, swapped)
        if key not in questions:
            questions[key] = JudgeQuestion(
                messages=[], label=label, row=row, swapped=swapped, answer_lengths=lengths
            )
        opened = (sample.prompt or "").rstrip().endswith(THINK_OPEN)
        cut = (sample.extra or {}).get("finish_reason") == "length"
        places.setdefault(key, []).append(place)
        replies.setdefault(key, []).append(form.read(sample.response or "", opened=opened, cut=cut))
    judged = [JudgedQuestion(questions[key], replies[key]) for key in questions]
    return judged, [places[key] for key in questions]


def _question_fields(extra: Any) -> tuple[Any, int, bool, tuple[int, ...]]:
    """Label, row, order and lengths of the question that a sample answers."""
    try:
        lengths = tuple(int(one) for one in extra["answer_lengths"])
        return extra["reference"], int(extra["row"]), bool(extra["swapped"]), lengths
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            "a row has no extra_info with row, swapped and answer_lengths, or no ground_truth. "
            "Train on the files that adjudge train writes."
        ) from None


def _swapped_counterparts(judged: Sequence[JudgedQuestion]) -> list[JudgedQuestion | None]:
    """The same comparison in the other order, for each question."""
    by_order = {(one.question.row, one.question.swapped): one for one in judged}
    return [by_order.get((one.question.row, not one.question.swapped)) for one in judged]


def _reply_row(
    question: JudgeQuestion,
    reply: Verdict | UnreadableReply,
    other: JudgedQuestion | None,
    form: JudgementForm,
) -> dict[str, Any]:
    fault = ReplyFault(reply.why) if isinstance(reply, UnreadableReply) else None
    value = reply.value if isinstance(reply, Verdict) else None
    row: dict[str, Any] = {
        "verdict": "" if value is None else str(value),
        "fault": "" if fault is None else str(fault),
        "unread": float(fault is not None),
        **{f"unread/{one.name.lower()}": float(one is fault) for one in ReplyFault},
        **dict.fromkeys(_MODE_COLUMNS[form.mode]),
    }
    if value is None:
        return row if form.mode == "pointwise" else {**row, "both_right": 0.0}
    right = row["accuracy"] = float(value == question.label)
    if form.mode == "pointwise":
        row["error"] = float(abs(value - int(question.label)))
        return row
    row["first_share"] = _LETTER_VALUES.get(value)
    replies = other.replies if other else []
    wanted = flip_preference(str(question.label))
    also = [isinstance(one, Verdict) and one.value == wanted for one in replies]
    row["both_right"] = right * sum(also) / len(also) if also else None
    read = [one.value for one in other.replies if isinstance(one, Verdict)] if other else []
    if read:
        row["consistency"] = sum(flip_preference(one) == value for one in read) / len(read)
    return row


def _value_or_nan(value: float | None) -> float:
    return math.nan if value is None else value
