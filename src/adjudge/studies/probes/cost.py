"""What a run of probes would ask of its judge: calls, tokens and money, nothing sent."""

from __future__ import annotations

from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.rewards.samples import RewardSample
from adjudge.runs.estimate import estimate
from adjudge.studies.probes.job import Prepared, ProbeJob

__all__ = ["Cost", "expected"]

_LOOKED_AT = 150


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of all questions: ``output_tokens`` and ``cost_usd`` are the most that the limits allow.

    ``cost_usd`` is ``None`` without a price. Repairs and retries come on top, and what a cache or
    a journal knows already is not subtracted.
    """

    questions: int
    calls: float
    input_tokens: float
    output_tokens: float
    cost_usd: float | None


def expected(job: ProbeJob, prepared: Prepared) -> Cost:
    """Estimated from 150 questions spread over all of them; raises :class:`ConfigError`."""
    questions = prepared.questions
    step = max(1, len(questions) // _LOOKED_AT)
    seen = questions[::step]
    if not job.spec.asks_judge(prepared.entry):
        return Cost(
            questions=len(questions), calls=0, input_tokens=0, output_tokens=0, cost_usd=0.0
        )
    samples: list[RewardSample] = []
    groups: list[str] = []
    for number, question in enumerate(seen):
        for member in _members(prepared.ask(question).fields):
            samples.append(_sample(member, len(samples)))
            groups.append(str(number))
    alone = job.spec.model_copy(update={"graders": [prepared.entry]})
    asked = estimate(alone, samples, groups)[prepared.entry.name]
    if asked.why:
        raise ConfigError(
            f"{job.spec.where}: graders.{prepared.entry.name}: cannot be asked about these items "
            f"({asked.why}); give items that have what it needs in --items"
        )
    scale = len(questions) / len(seen)
    return Cost(
        questions=len(questions),
        calls=asked.calls * scale,
        input_tokens=asked.input_tokens * scale,
        output_tokens=asked.output_tokens * scale,
        cost_usd=None if asked.cost_usd is None else asked.cost_usd * scale,
    )


def _members(fields: Any) -> list[dict[str, Any]]:
    """One mapping of fields per response: a ranking's question has lists."""
    if isinstance(fields["response"], str):
        return [dict(fields)]
    count = len(fields["response"])
    return [{name: value[place] for name, value in fields.items()} for place in range(count)]


def _sample(fields: dict[str, Any], place: int) -> RewardSample:
    extra = {k: v for k, v in fields.items() if k not in ("prompt", "response", "messages")}
    return RewardSample(
        place, place, fields["prompt"], fields["response"], fields["messages"], extra
    )
