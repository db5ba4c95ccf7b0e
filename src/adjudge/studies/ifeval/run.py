"""A whole evaluation: responses generated or read, judged, compared, written down."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.errors import PASSING_KINDS, ConfigError, GradingFailure, JudgeUnavailable
from adjudge.graders.instructions.report import JoinBy
from adjudge.judge_training.benchmarks.intervals import RESAMPLES
from adjudge.judges.base import Reply
from adjudge.rollouts.rows import is_parquet
from adjudge.studies.ifeval.comparing import compare_models
from adjudge.studies.ifeval.files import Problem, Response, read_prompts, read_responses
from adjudge.studies.ifeval.folder import IfevalFolder, open_folder
from adjudge.studies.ifeval.generating import Generation, Wanted, check, generate, identity_of
from adjudge.studies.ifeval.kept import ResponsesFile
from adjudge.studies.ifeval.page import write_page
from adjudge.studies.ifeval.scoring import READINGS, Judged, judge_responses, metrics_of
from adjudge.studies.ifeval.verl_file import check_maker, check_parquet, write_parquet
from adjudge.training.evaluating.targets import Target

__all__ = ["IfevalJob", "evaluate_ifeval"]

RESPONSES = "responses.jsonl"
_MOST_NAMED = 20


@dataclass
class IfevalJob:
    """What is to be evaluated, and where it goes.

    ``candidates``: models to generate with, and files of responses. ``responses_to``: where the
    responses of the one model are kept, instead of its folder (a Parquet file: where they also go,
    as verl writes them). ``on_progress(stage, done, total)`` hears of responses; ``summary`` is
    what all comes to.
    """

    data: Path
    folder: Path
    candidates: Sequence[Target | Path]
    by: JoinBy = "prompt"
    how: Generation = field(default_factory=Generation)
    responses_to: Path | None = None
    resamples: int = RESAMPLES
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    prompts: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def evaluate_ifeval(job: IfevalJob) -> dict[str, Any]:
    """Generate what is missing, judge, compare; the summary.

    Writes ``responses.jsonl`` of a model, ``eval_results_strict.jsonl`` and ``…_loose.jsonl`` (with
    several candidates in a folder each), ``summary.json`` and ``report.html``. The same folder is
    gone on with: nothing is generated twice, what failed is tried again. Raises
    :class:`~adjudge.errors.RunFolderError` for a folder or file of anything else,
    :class:`~adjudge.errors.ConfigError` for what cannot be evaluated,
    :class:`~adjudge.errors.JudgeAuthError` and :class:`~adjudge.errors.JudgeUnavailable` for a
    server that refuses or is away.
    """
    started = time.perf_counter()
    job.prompts = read_prompts(job.data, job.by)
    _check(job)
    with open_folder(job.folder, _manifest(job)) as folder:
        entries, models = [], []
        for place, candidate in enumerate(job.candidates):
            entry, judged = _evaluated(job, folder, candidate, place)
            entries.append(entry)
            models.append((entry["name"], judged))
        job.summary = {
            "adjudge": adjudge.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "benchmark": "ifeval",
            "data": str(job.data),
            "prompts": len(job.prompts),
            "by": job.by,
            "models": entries,
            "compared": compare_models(models, resamples=job.resamples),
            "seconds": round(time.perf_counter() - started, 1),
        }
        folder.write_json("summary.json", job.summary)
        write_page(folder.path / "report.html", job.summary)
    return job.summary


def _check(job: IfevalJob) -> None:
    """What is wrong is said before anything is generated."""
    whole = [_identity(one) for one in job.candidates]
    if twice := [one for one in whole if whole.count(one) > 1]:
        raise ConfigError(f"{twice[0]}: is given twice")
    if job.responses_to is not None and is_parquet(job.responses_to):
        check_parquet(job.responses_to, job.prompts)
    for one in job.candidates:
        if isinstance(one, Target):
            check(one, job.how)
        elif not one.is_file():
            raise ConfigError(f"{one}: no such file")


def _identity(candidate: Target | Path) -> str:
    return candidate.identity if isinstance(candidate, Target) else str(candidate.resolve())


def _names(candidates: Sequence[Target | Path]) -> list[str]:
    """What each is called: short where that tells them apart."""
    whole = [one.name if isinstance(one, Target) else str(one) for one in candidates]
    short = [
        name
        if isinstance(one, Target) and one.kind != "folder"
        else Path(name).stem
        if isinstance(one, Path)
        else Path(name).name
        for one, name in zip(candidates, whole, strict=True)
    ]
    return short if len(set(short)) == len(short) and all(short) else whole


def _manifest(job: IfevalJob) -> dict[str, Any]:
    prompts = sha256(json.dumps(job.prompts, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "kind": "ifeval",
        "adjudge": adjudge.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "label": " against ".join(_names(job.candidates)),
        "models": [_identity(one) for one in job.candidates],
        "prompts": prompts,
        "by": job.by,
    }


def _evaluated(
    job: IfevalJob, folder: IfevalFolder, candidate: Target | Path, place: int
) -> tuple[dict[str, Any], Judged]:
    """One candidate's entry in the summary, its files written."""
    name = _names(job.candidates)[place]
    own = folder.of(place, name, len(job.candidates))
    made: dict[str, Any] | None = None
    if isinstance(candidate, Target):
        table = job.responses_to if job.responses_to and is_parquet(job.responses_to) else None
        path = own / RESPONSES if table else job.responses_to or own / RESPONSES
        responses, problems, made = _generated(job, candidate, path, table)
    else:
        path = candidate
        responses, problems = read_responses(path, job.by)

    def heard(done: int, total: int) -> None:
        job.on_progress(_stage(job, "judging", place), done, total)

    judged = judge_responses(job.prompts, responses, by=job.by, on_progress=heard)
    _refuse_nothing(job, name, judged)
    _write_results(own, job, judged)
    entry = {
        "name": name,
        "kind": candidate.kind if isinstance(candidate, Target) else "file",
        "responses": str(path),
        "generated": made,
        **_coverage(judged, problems),
        **metrics_of(judged, resamples=job.resamples),
    }
    return entry, judged


def _stage(job: IfevalJob, what: str, place: int) -> str:
    return what if len(job.candidates) == 1 else f"{what} {place + 1}"


def _generated(
    job: IfevalJob, target: Target, path: Path, table: Path | None
) -> tuple[list[Response], list[Problem], dict[str, Any]]:
    """The model's responses to all prompts, made now as far as the file does not have them."""
    file = ResponsesFile(path, identity_of(target, job.how))
    if table is not None:
        check_maker(table, file.made_by)
    keys = {row["prompt"]: row.get("key") for row in job.prompts}
    wanted: list[Wanted] = [(p, k) for k in range(job.how.n_samples) for p in keys]
    todo = [one for one in wanted if not file.has(one)]
    stage = _stage(job, "generating", job.candidates.index(target))
    done = len(wanted) - len(todo)
    job.on_progress(stage, done, len(wanted))

    def keep(one: Wanted, said: Reply | GradingFailure) -> None:
        nonlocal done
        file.keep(keys[one[0]], one, said)
        done += 1
        job.on_progress(stage, done, len(wanted))

    generate(target, job.how, todo, keep)
    file.sort(wanted)
    failures = file.failures(wanted)
    if len(failures) == len(wanted):
        _refuse_failure(target, failures)
    asked = {row[job.by] for row in job.prompts}
    found, _ = read_responses(path, job.by)
    ours = [one for one in found if one.place in asked and one.sample < job.how.n_samples]
    if table is not None:
        write_parquet(table, job.prompts, ours, job.by, made_by=file.made_by)
    made = {**msgspec.to_builtins(job.how), "made": len(todo), "kept": len(wanted) - len(todo)}
    return ours, file.problems, made


def _refuse_failure(target: Target, failures: Sequence[Mapping[str, Any]]) -> None:
    message = f"{target.name}: gave no response: {failures[0]['message']}"
    if {one["kind"] for one in failures} <= {kind.value for kind in PASSING_KINDS}:
        raise JudgeUnavailable(message)
    raise ConfigError(message)


def _refuse_nothing(job: IfevalJob, name: str, judged: Judged) -> None:
    if judged.rows:
        return
    if judged.failed:
        raise ConfigError(f"{name}: no response could be judged: {judged.failed[0]}")
    other = "key" if job.by == "prompt" else "prompt"
    raise ConfigError(
        f"{name}: none of its responses belongs to a prompt of {job.data} by {job.by} "
        f"(--by {other} joins by the other)"
    )


def _coverage(judged: Judged, problems: Sequence[Problem]) -> dict[str, Any]:
    """What is in the accuracies, and what is in none."""
    return {
        "prompts": len(judged.rows),
        "responses_judged": sum(map(len, judged.rows.values())),
        "samples": list(judged.samples),
        "cut_by_length": judged.cut,
        "without_response": _some(judged.without_response),
        "failures": {"by_kind": dict(judged.failures), "first": judged.failed[:_MOST_NAMED]},
        "strays": _some(judged.strays),
        "problems": [msgspec.to_builtins(one) for one in problems],
    }


def _some(values: Sequence[Any]) -> dict[str, Any]:
    return {"count": len(values), "first": list(values[:_MOST_NAMED])}


def _write_results(own: Path, job: IfevalJob, judged: Judged) -> None:
    """The rows as the published code writes them; with several samples each has its number."""
    own.mkdir(parents=True, exist_ok=True)
    several = judged.samples[1] > 1
    for reading in READINGS:
        with (own / f"eval_results_{reading}.jsonl").open("w", encoding="utf-8") as file:
            for prompt in job.prompts:
                for sample, row in sorted(judged.rows.get(prompt[job.by], {}).items()):
                    number = {"sample": sample} if several else {}
                    file.write(json.dumps(row.output(reading) | number) + "\n")
