"""A whole HealthBench evaluation: answers joined, marked, aggregated, written down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.errors import ConfigError
from adjudge.rubrics import digest
from adjudge.runs.grading import GradingJob, grade_rollouts
from adjudge.runs.whole import write_whole
from adjudge.studies.healthbench.items import Answer, Item, JoinBy, read_answers, read_items
from adjudge.studies.healthbench.judge import rubric_spec
from adjudge.studies.healthbench.page import write_page
from adjudge.studies.healthbench.scoring import Marked, marked, missing_sample, summarised
from adjudge.studies.ifeval.folder import open_folder

__all__ = ["HealthbenchJob", "evaluate_healthbench"]

_MOST_NAMED = 20
_GRADING = "grading"

Pair = tuple[Item, Answer]


@dataclass
class HealthbenchJob:
    """What is to be evaluated, and where it goes; ``summary`` is what it comes to.

    ``target``: ``SPEC.toml`` or ``SPEC.toml#GRADER``, whose rubric grader marks the criteria.
    ``budget_usd``: what its judge may cost.
    """

    target: str
    data: Path
    responses: Path
    folder: Path
    by: JoinBy = "prompt"
    concurrency: int | None = None
    budget_usd: float | None = None
    show_progress: bool = True
    summary: dict[str, Any] = field(default_factory=dict)


def evaluate_healthbench(job: HealthbenchJob) -> dict[str, Any]:
    """Mark every answer, aggregate; the summary.

    Writes ``rollouts.jsonl`` (what the judge is asked about), ``grading/`` (a run folder of
    ``adjudge grade``, with every mark and reason), ``scores.jsonl`` (a row a sample),
    ``summary.json`` and ``report.html``. The same folder is gone on with: only what has no answer
    yet is asked. Raises :class:`~adjudge.errors.ConfigError` for what cannot be evaluated,
    :class:`~adjudge.errors.RunFolderError` for a folder of anything else, and as
    :func:`~adjudge.runs.grading.grade_rollouts`.
    """
    started = time.perf_counter()
    spec, grader = rubric_spec(job.target, concurrency=job.concurrency)
    items = read_items(job.data, job.by)
    answers, problems = read_answers(job.responses, job.by)
    places = {item.place: item for item in items}
    pairs = [(places[one.place], one) for one in answers if one.place in places]
    if not pairs:
        other = "key" if job.by == "prompt" else "prompt"
        raise ConfigError(
            f"{job.responses}: none of its responses belongs to a prompt of {job.data} by {job.by} "
            f"(--by {other} joins by the other)"
        )
    manifest = _manifest(job, items, spec.hash)
    with open_folder(job.folder, manifest) as folder:
        asked = [pair for pair in pairs if not pair[1].failure]
        grading = _grading(job, spec, asked)
        details = _details(grading, asked, grader)
        samples = [_sample(item, one, details) for item, one in pairs]
        write_whole(folder.path / "scores.jsonl", map(_line, map(msgspec.to_builtins, samples)))
        judge = {"spec": spec.where, "grader": grader, "hash": spec.hash}
        job.summary = {
            "adjudge": adjudge.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "benchmark": "healthbench",
            "data": str(job.data),
            "responses": str(job.responses),
            "by": job.by,
            "judge": judge,
            "prompts": len(items),
            **summarised(samples),
            "missing": _missing(samples),
            **_coverage(items, answers, places),
            "problems": [msgspec.to_builtins(one) for one in problems],
            "calls": grading.summary.get("endpoints", []),
            "resumed_results": grading.resumed,
            "seconds": round(time.perf_counter() - started, 1),
        }
        folder.write_json("summary.json", job.summary)
        write_page(folder.path / "report.html", job.summary)
    return job.summary


def _manifest(job: HealthbenchJob, items: Sequence[Item], spec_hash: str) -> dict[str, Any]:
    content = "\n".join(f"{one.place} {digest(one.rubric)}" for one in items)
    return {
        "kind": "healthbench",
        "adjudge": adjudge.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "label": job.responses.stem,
        "models": [str(job.responses.resolve()), spec_hash],
        "prompts": sha256(content.encode("utf-8", "replace")).hexdigest()[:16],
        "by": job.by,
    }


def _grading(job: HealthbenchJob, spec: Any, pairs: Sequence[Pair]) -> GradingJob:
    rollouts = job.folder / "rollouts.jsonl"
    write_whole(rollouts, (_line(_row(item, one)) for item, one in pairs))
    return GradingJob(
        paths=[rollouts],
        spec=spec,
        folder=job.folder / _GRADING,
        show_progress=job.show_progress,
        budget_usd=job.budget_usd,
    )


def _row(item: Item, answer: Answer) -> dict[str, Any]:
    rubric = [
        {"criterion": one.text, "id": one.id, "points": one.worth, "tags": one.tags}
        for one in item.rubric.criteria
    ]
    row = {
        "group": item.key,
        "sample": answer.sample,
        "messages": [*item.turns, {"role": "assistant", "content": answer.text}],
        "response": answer.text,
        "rubric": rubric,
    }
    return {**row, "finish_reason": "length"} if answer.cut else row


def _details(
    grading: GradingJob, pairs: Sequence[Pair], grader: str
) -> dict[tuple[str, int], dict[str, Any]]:
    """What the grader told of each sample that could be asked about."""
    results = grade_rollouts(grading) if pairs else []
    found = {}
    for (item, answer), result in zip(pairs, results, strict=True):
        found[item.place, answer.sample] = (result.details or {}).get(grader) or {}
    return found


def _sample(item: Item, answer: Answer, details: dict[tuple[str, int], dict[str, Any]]) -> Marked:
    if answer.failure:
        return missing_sample(item, answer, answer.failure, "the response could not be made")
    return marked(item, answer, details[item.place, answer.sample])


def _missing(samples: Sequence[Marked]) -> list[dict[str, Any]]:
    """The samples without a score, the widest interval first."""
    without = [one for one in samples if one.score is None]
    without.sort(key=lambda one: (one.low - one.high, one.key, one.sample))
    named = ("key", "sample", "kind", "reason", "low", "high")
    return [{name: getattr(one, name) for name in named} for one in without[:_MOST_NAMED]]


def _coverage(
    items: Sequence[Item], answers: Sequence[Answer], places: dict[str, Item]
) -> dict[str, Any]:
    answered = {one.place for one in answers}
    without = [item.key for item in items if item.place not in answered]
    strays = sorted(one.line for one in answers if one.place not in places)
    return {
        "without_response": {"count": len(without), "first": without[:_MOST_NAMED]},
        "strays": {"count": len(strays), "first": strays[:_MOST_NAMED]},
        "cut_by_length": sum(one.cut for one in answers if one.place in places),
    }


def _line(row: Any) -> bytes:
    try:
        return msgspec.json.encode(row) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate of a response has no UTF-8
        return msgspec.json.encode(_mended(row)) + b"\n"


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _mended(inner) for key, inner in value.items()}
    return [_mended(inner) for inner in value] if isinstance(value, list | tuple) else value
