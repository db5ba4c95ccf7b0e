"""Answers with what the reward says of them, as samples files and reports show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.rewards.samples import RewardResult, RewardSample
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import Scorer
from adjudge.training.task import environment_reward

__all__ = ["Shown", "judged_answers"]

_MOST = 2000


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: ``when`` it was given (``before`` or ``after``) and its verdicts.

    ``reward`` is ``None`` where it is missing, and ``missing`` says why. ``verdicts`` has a
    grader's score and reason, or its failure, under its name.
    """

    when: str
    prompt: str
    response: str
    reference: str
    reward: float | None
    missing: str | None
    verdicts: dict[str, str]


def judged_answers(
    spec: RewardSpec, rows: Sequence[Mapping[str, Any]], answers: Sequence[str], when: str
) -> list[Shown]:
    """The reward's word on one answer to each row of the task.

    Raises what scoring raises: judges that stay away, a refused key.
    """
    samples = [
        RewardSample(
            place,
            0,
            row["prompt"][-1]["content"],
            answer,
            [*row["prompt"], {"role": "assistant", "content": answer}],
            {
                "reference": row["reference"],
                "env_reward": environment_reward(answer, row["reference"]),
            },
        )
        for place, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]
    scored = Scorer(spec).score(samples, [str(place) for place in range(len(samples))])
    return [
        _shown(sample, result, row["reference"], when)
        for sample, result, row in zip(samples, scored.results, rows, strict=True)
    ]


def _shown(sample: RewardSample, result: RewardResult, reference: str, when: str) -> Shown:
    verdicts = {
        name: _told(detail)
        for name, detail in (result.details or {}).items()
        if isinstance(detail, dict)
    }
    missing = result.missing
    return Shown(
        when=when,
        prompt=sample.prompt or "",
        response=(sample.response or "")[:_MOST],
        reference=reference,
        reward=result.score,
        missing=None if missing is None else f"{missing.kind}: {missing.error}"[:_MOST],
        verdicts=verdicts,
    )


def _told(detail: Mapping[str, Any]) -> str:
    if "kind" in detail:
        return f"{detail['kind']}: {detail['error']}"[:_MOST]
    value = detail.get("score", detail.get("rank"))
    return f"{value:g} {detail['reason']}".strip()[:_MOST]
