"""A run of probes: plan the questions, ask them, measure, decide, write the card."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

import adjudge
from adjudge.engine.loop import run_blocking
from adjudge.errors import PASSING_KINDS, ConfigError, ErrorKind, JudgeUnavailable
from adjudge.judges.base import ChatModel
from adjudge.judges.budget import SpendCeiling
from adjudge.judges.calls import CallCount
from adjudge.judges.connections import aclose_owned
from adjudge.rewards.built import fingerprint
from adjudge.runner.progress import Progress, Tally
from adjudge.runner.question import GraderConfig
from adjudge.runner.runner import GradingRunner
from adjudge.runs.folder import RunFolder
from adjudge.studies.probes.card import Finding, find, overall
from adjudge.studies.probes.job import Prepared, ProbeJob, prepare
from adjudge.studies.probes.junit import junit
from adjudge.studies.probes.kept import ProbeJournal
from adjudge.studies.probes.markdown import markdown
from adjudge.studies.probes.page import page
from adjudge.studies.probes.subject import Question
from adjudge.types import GraderError, GraderResult

__all__ = ["run_probes"]

_OUTAGE = 0.5
_BAD_ITEMS = {ErrorKind.INVALID_INPUT, ErrorKind.UNSUPPORTED, ErrorKind.BUG}


def run_probes(job: ProbeJob) -> list[Finding]:
    """Probe the job's grader and write its folder: the findings, one per probe.

    Writes ``probe.json``, ``probe.xml`` (JUnit), ``probe.md``, ``report.html`` and
    ``answers.jsonl``; ``journal.jsonl`` grows while it works, and the same job resumes from it,
    also with other probes, thresholds or more topics. Raises ``ConfigError``, ``RunFolderError``,
    ``JudgeAuthError``, and ``JudgeUnavailable`` where more than half of the questions had no answer
    for a reason that passes.
    """
    budget = None if job.budget_usd is None else SpendCeiling(job.budget_usd)
    try:
        return _probed(job, budget)
    finally:
        run_blocking(aclose_owned(budget, job.cassette))
        if job.cassette is not None:
            job.cassette.close()


def _probed(job: ProbeJob, budget: SpendCeiling | None) -> list[Finding]:
    started = time.perf_counter()
    prepared = prepare(job, _judges(job, budget))
    calls = run_blocking(_count_calls())
    tally = Tally(len(prepared.questions))
    main = {prepared.entry.name: prepared.graders[prepared.entry.name]}
    with (
        RunFolder(
            job.folder,
            version=adjudge.__version__,
            spec_path=job.spec.where,
            spec_hash=fingerprint(job.spec, main),
            inputs=[] if job.items is None else [job.items],
            mapping={"probed": prepared.entry.name},
        ) as folder,
        Progress(tally, show=job.show_progress, title="probing"),
    ):
        journal = ProbeJournal(folder.path / "journal.jsonl", folder.spec_hash)
        answers = run_blocking(_asked(job, prepared, journal, tally))
        _check(job, answers)
        prepared.bench.learn(answers)
        tally.note = "measuring"
        level = 1 - 0.05 / prepared.applying if job.family_wise else 0.95
        job.findings = [
            find(probe, prepared.bench, threshold=job.thresholds.get(probe.name), level=level)
            for probe in prepared.probes
        ]
        job.card = _card(job, prepared, answers, level) | {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "elapsed_s": time.perf_counter() - started,
            "resumed": tally.resumed,
            "cassette": job.cassette and msgspec.to_builtins(job.cassette.report()),
            "endpoints": run_blocking(_call_table(calls)),
        }
        _write(job, folder, answers)
    return job.findings


def _judges(job: ProbeJob, budget: SpendCeiling | None) -> dict[str, ChatModel]:
    if budget is not None:
        for name, table in job.spec.judges.items():
            if table.has_server and table.price is None:
                raise ConfigError(
                    f"{job.spec.where}: judges.{name}.price: is needed under a budget "
                    "(US dollars per million tokens: input, output)"
                )
    return job.spec.build_judges(job.cassette, budget)


async def _count_calls() -> CallCount:
    return CallCount()


async def _call_table(calls: CallCount) -> list[dict[str, Any]]:
    return calls.table()


async def _asked(
    job: ProbeJob, prepared: Prepared, journal: ProbeJournal, tally: Tally
) -> dict[Question, GraderResult]:
    """The answers; what failed for a reason that passes is asked once more."""
    mapper = prepared.entry.mapper
    runner = GradingRunner(
        {name: GraderConfig(grader, mapper) for name, grader in prepared.graders.items()},
        job.spec.max_concurrency,
        show_progress=False,
        journal=journal,
        tally=tally,
    )
    questions = prepared.questions
    found, _ = await runner.aask([prepared.ask(question) for question in questions])
    answers = dict(zip(questions, found, strict=True))
    again = [q for q, one in answers.items() if isinstance(one, GraderError) and one.passing]
    for question in again:
        failed = answers[question]
        if isinstance(failed, GraderError):
            tally.withdraw(failed)
    found, _ = await runner.aask([prepared.ask(question) for question in again])
    return answers | dict(zip(again, found, strict=True))


def _check(job: ProbeJob, answers: Mapping[Question, GraderResult]) -> None:
    """Refuse to judge a judge that was away, or one that could not be asked about these items."""
    errors = [one for one in answers.values() if isinstance(one, GraderError)]
    passing = [one for one in errors if one.kind in PASSING_KINDS]
    if len(passing) > _OUTAGE * len(answers):
        last = f"{passing[-1].kind}: {passing[-1].error}"
        raise JudgeUnavailable(
            f"{len(passing):,} of {len(answers):,} questions had no answer ({last}); nothing was "
            "learned from it"
        )
    if job.cassette is not None and job.cassette.report().misses:
        return  # a call that is not in the cassette is no fault of the items
    if len(errors) == len(answers) and all(one.kind in _BAD_ITEMS for one in errors):
        raise ConfigError(
            f"{job.spec.where}: graders.{job.entry.name}: cannot be asked about these items "
            f"({errors[0].kind}: {errors[0].error}); give items that have what it needs in --items"
        )


def _card(
    job: ProbeJob, prepared: Prepared, answers: Mapping[Question, GraderResult], level: float
) -> dict[str, Any]:
    errors = [one for one in answers.values() if isinstance(one, GraderError)]
    paid = [one.provenance.paid for one in answers.values() if one.provenance is not None]
    costs = [usage.cost_usd for usage in paid if usage is not None and usage.cost_usd is not None]
    models = {one.provenance.model for one in answers.values() if one.provenance is not None}
    subject = prepared.bench.subject
    return {
        "adjudge": adjudge.__version__,
        "spec": {"path": job.spec.where, "hash": job.spec.hash},
        "grader": {
            "name": prepared.entry.name,
            "type": prepared.entry.type,
            "kind": subject.kind,
            "judge": prepared.entry.judge,
            "models": sorted(model for model in models if model),
        },
        "items": "shipped" if job.items is None else str(job.items),
        "topics": len(prepared.bench.topics),
        "language": job.language,
        "repeats": job.repeats,
        "seed": job.seed,
        "level": level,
        "family_wise": job.family_wise,
        "questions": len(answers),
        "missing": {"count": len(errors), "by_kind": dict(Counter(str(e.kind) for e in errors))},
        "cost_usd": sum(costs) if costs else None,
        "verdicts": overall(job.findings),
        "probes": [msgspec.to_builtins(one) for one in job.findings],
    }


def _write(job: ProbeJob, folder: RunFolder, answers: Mapping[Question, GraderResult]) -> None:
    encoder = msgspec.json.Encoder(enc_hook=str)
    rows = [
        encoder.encode({"question": question._asdict(), "answer": answer})
        for question, answer in answers.items()
    ]
    folder.write("answers.jsonl", b"\n".join(rows) + b"\n")
    folder.write("probe.xml", junit(job.card, job.findings, strict=job.strict).encode())
    folder.write("probe.md", markdown(job.card, job.findings).encode())
    folder.write("report.html", page(job.card, job.findings).encode())
    folder.write_json("probe.json", job.card)
