"""The order in which GRPO meets its questions: both orders of a comparison in one batch, always."""

from __future__ import annotations

import random
from collections.abc import Sequence

from adjudge.judge_training.generative.questions import Question
from adjudge.judge_training.judgefile import JudgeFile

__all__ = ["grpo_order", "grpo_steps"]


def grpo_steps(judge: JudgeFile, prompts: int) -> int:
    """Updates in the whole run: whole batches only, ``train_batch_size`` prompts each.

    Raises :class:`~adjudge.errors.ConfigError` for fewer prompts than one batch has.
    """
    size = judge.data.train_batch_size
    if prompts < size:
        kind = "prompts, two for each comparison" if judge.mode == "pairwise" else "prompts"
        judge.refuse(
            "data.train_batch_size", f"is {size}, but there are {prompts} {kind}: lower it"
        )
    return judge.trainer.total_epochs * (prompts // size)


def grpo_order(questions: Sequence[Question], *, size: int, epochs: int, seed: int) -> list[int]:
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
