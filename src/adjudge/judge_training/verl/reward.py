"""``reward_model.reward_manager=adjudge_judgements`` in verl 0.6.1: what judges' replies earn.

It gets a step's whole batch, in which both orders of each comparison stand, and reads every reply
by the strict form. ``reward_extra_info`` always has the same columns, by the run's mode:

======================  =======================================================================
``verdict``, ``fault``  text: what the reply says, or why it says nothing
``unread``              1 without a verdict, else 0; ``unread/FAULT`` the same for each fault
``accuracy``            1 where the verdict is the label, else 0
``error``               pointwise: the distance to the label, 0 to 4
``consistency``         pairwise: the share of the other order's verdicts that name the same answer
``first_share``         pairwise: 1 for what stood first, 0 for the other
``both_right``          pairwise: if it is right, the share of the other order's replies that are,
                        else, and without a verdict, 0
``judge_metrics``       in training: the batch's means in the first row, which our trainer logs
``details``             in validation: which of the numbers are stand-ins
======================  =======================================================================

``accuracy``, ``error``, ``consistency`` and ``first_share`` are NaN where there is no verdict (or a
tie). verl's validation averages every number, so there they have stand-ins that leave its means
alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.judge_training.generative.prompt import Mode
from adjudge.judge_training.generative.questions import Form, Question
from adjudge.judge_training.generative.replies import Fault
from adjudge.judge_training.generative.rewarding import Judged, measures_of, rewards_of
from adjudge.judge_training.generative.rewards import flipped
from adjudge.trainers.verl.columns import DETAILS, GONE, METRICS
from adjudge.trainers.verl.left_out import stand_in_for_validation
from adjudge.trainers.verl.rows import RowReader, Rows
from adjudge.verdicts import Unread, Verdict

__all__ = ["NAME", "REGISTER", "JudgementRewardManager"]

NAME = "adjudge_judgements"
"""The value of ``reward_model.reward_manager``."""

REGISTER = Path(__file__).with_name("register.py")
"""What makes it known to verl: the value of ``custom_reward_function.path``."""

_OPENED = "<think>"
_LETTERS = {"A": 1.0, "B": 0.0}
_OF_MODE = {
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
        mode: Mode,
        ties: bool = False,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            hint = nearest(name, ["mode", "ties"])
            raise ConfigError(f"reward_kwargs.{name}: no such setting; there are mode, ties{hint}")
        if mode not in _OF_MODE:
            raise ConfigError(
                f"reward_kwargs.mode: found {mode!r:.40} (allowed: {', '.join(_OF_MODE)})"
            )
        self.form = Form(mode=mode, ties=bool(ties))
        self.num_examine = num_examine
        self.reader = RowReader(tokenizer, reward_fn_key)
        self.metrics: dict[str, float] = {}

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """The reward tensor ``[B, R]``, or with ``return_dict`` that and ``reward_extra_info``.

        A reward, −0.25 to 1, stands on the reply's last valid token. Raises
        :class:`~adjudge.errors.ConfigError` for rows that are not ours, and for a comparison of
        which one order is not in the batch.
        """
        import torch  # noqa: PLC0415  (heavy)

        rows = self.reader.read(data)
        judged, places = _judged(rows, self.form)
        rewards = [0.0] * len(rows.samples)
        for own, at in zip(rewards_of(judged, self.form), places, strict=True):
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
        rows: Rows,
        judged: Sequence[Judged],
        places: Sequence[Sequence[int]],
        rewards: Sequence[float],
    ) -> dict[str, Any]:
        size = len(rewards)
        info: list[dict[str, Any]] = [{} for _ in range(size)]
        others = _others(judged)
        for one, other, at in zip(judged, others, places, strict=True):
            for place, reply in zip(at, one.replies, strict=True):
                info[place] = _row(one.question, reply, other, self.form)
        numbers = [key for key in info[0] if key not in {"verdict", "fault"}] if info else []
        extra: dict[str, Any] = {
            key: [row[key] for row in info] for key in ("verdict", "fault") if info
        }
        measures = measures_of(judged, self.form)
        self.metrics = {f"train/{key}": value for key, value in measures.items()}
        if not data.meta_info.get("validate"):
            self.metrics["train/reward_mean"] = math.fsum(rewards) / size if size else math.nan
            extra |= {key: [_or_nan(row[key]) for row in info] for key in numbers}
            return {**extra, METRICS: [self.metrics, *({} for _ in rewards[1:])]}
        for key in numbers:
            column = [row[key] for row in info]
            extra[key] = stand_in_for_validation(column, rows.groups, rows.sources)
        gone = [[key for key in numbers if row[key] is None] for row in info]
        return {**extra, DETAILS: [msgspec.json.encode({GONE: one}).decode() for one in gone]}

    def _print(self, rows: Rows, rewards: Sequence[float]) -> None:
        for sample, reward in list(zip(rows.samples, rewards, strict=True))[: self.num_examine]:
            said = (sample.response or "")[:400]
            print(f"[reward] {reward:g} [label] {_own(sample.extra)[0]} [reply] {said!r}")  # noqa: T201  (verl's own log)


def _judged(rows: Rows, form: Form) -> tuple[list[Judged], list[list[int]]]:
    """Each question of a batch with its replies, and the places in the batch of those."""
    questions: dict[tuple[int, bool], Question] = {}
    places: dict[tuple[int, bool], list[int]] = {}
    replies: dict[tuple[int, bool], list[Verdict | Unread]] = {}
    for place, sample in enumerate(rows.samples):
        label, row, swapped, lengths = _own(sample.extra)
        key = (row, swapped)
        if key not in questions:
            questions[key] = Question(
                messages=[], label=label, row=row, swapped=swapped, answer_lengths=lengths
            )
        opened = (sample.prompt or "").rstrip().endswith(_OPENED)
        cut = (sample.extra or {}).get("finish_reason") == "length"
        places.setdefault(key, []).append(place)
        replies.setdefault(key, []).append(form.read(sample.response or "", opened=opened, cut=cut))
    judged = [Judged(questions[key], replies[key]) for key in questions]
    return judged, [places[key] for key in questions]


def _own(extra: Any) -> tuple[Any, int, bool, tuple[int, ...]]:
    """Label, row, order and lengths of the question that a sample answers."""
    try:
        lengths = tuple(int(one) for one in extra["answer_lengths"])
        return extra["reference"], int(extra["row"]), bool(extra["swapped"]), lengths
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            "a row has no extra_info with row, swapped and answer_lengths, or no ground_truth; "
            "train on the files that adjudge train writes"
        ) from None


def _others(judged: Sequence[Judged]) -> list[Judged | None]:
    """The same comparison in the other order, for each question."""
    by_order = {(one.question.row, one.question.swapped): one for one in judged}
    return [by_order.get((one.question.row, not one.question.swapped)) for one in judged]


def _row(
    question: Question, reply: Verdict | Unread, other: Judged | None, form: Form
) -> dict[str, Any]:
    fault = Fault(reply.why) if isinstance(reply, Unread) else None
    value = reply.value if isinstance(reply, Verdict) else None
    row: dict[str, Any] = {
        "verdict": "" if value is None else str(value),
        "fault": "" if fault is None else str(fault),
        "unread": float(fault is not None),
        **{f"unread/{one.name.lower()}": float(one is fault) for one in Fault},
        **dict.fromkeys(_OF_MODE[form.mode]),
    }
    if value is None:
        return row if form.mode == "pointwise" else {**row, "both_right": 0.0}
    right = row["accuracy"] = float(value == question.label)
    if form.mode == "pointwise":
        row["error"] = float(abs(value - int(question.label)))
        return row
    row["first_share"] = _LETTERS.get(value)
    replies = other.replies if other else []
    wanted = flipped(str(question.label))
    also = [isinstance(one, Verdict) and one.value == wanted for one in replies]
    row["both_right"] = right * sum(also) / len(also) if also else None
    read = [one.value for one in other.replies if isinstance(one, Verdict)] if other else []
    if read:
        row["consistency"] = sum(flipped(one) == value for one in read) / len(read)
    return row


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
