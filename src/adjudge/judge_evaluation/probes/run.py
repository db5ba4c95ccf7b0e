"""A run of probes: the catalogue, the job with its questions, its expected cost, and the run.

The catalogue is in the order of the report card. The job plans every question and asks nobody; the
cost is in calls, tokens and money. A run asks, measures, decides and writes the card; what was
answered already, the judge's own failures included, is kept, so that a run resumes.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from adjudge.config import check_allowed
from adjudge.engine.loop import run_blocking
from adjudge.errors import PASSING_KINDS, ConfigError, ErrorKind, JudgeUnavailable
from adjudge.graders.binding import GraderConfig
from adjudge.judge_evaluation.benchmarks.judges import choose_grader
from adjudge.judge_evaluation.probes.bench import (
    ProbeBench,
    ProbedGrader,
    ProbeQuestion,
    reorder_criteria,
)
from adjudge.judge_evaluation.probes.bias_probes import ORDER_PROBES, SOURCE_PROBES, WORDING_PROBES
from adjudge.judge_evaluation.probes.items import (
    LanguageChoice,
    choose_topics,
    load_items,
    shipped_items,
)
from adjudge.judge_evaluation.probes.probe import (
    LEVEL,
    Probe,
    ProbeFinding,
    ProbeVerdict,
    evaluate_probe,
    family_wise_error,
    render_probe_page,
)
from adjudge.judge_evaluation.probes.reliability_probes import (
    ATTACK_PROBES,
    JUDGE_FAULTS,
    SCALE_PROBES,
)
from adjudge.judges.base import ChatModel
from adjudge.judges.cassette import ReplyCache
from adjudge.judges.endpoint.connections import own_calls
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Progress, Tally
from adjudge.runner.runner import GradingRequest, GradingRunner
from adjudge.runs.folder import JOURNAL_FILE, SPEC_IDENTITY, RunFolder, spec_facts
from adjudge.runs.grading import resume_recording
from adjudge.runs.judge_calls import JudgeCallEstimate, build_call_meters
from adjudge.runs.spending import FolderSpending
from adjudge.types import GraderError, GraderResult
from adjudge.version import __version__

PROBES: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        *SCALE_PROBES[:1],
        *WORDING_PROBES,
        *ORDER_PROBES,
        *SOURCE_PROBES,
        *ATTACK_PROBES,
        *SCALE_PROBES[1:],
    )
}
"""The probes by name."""


@dataclass
class ProbeJob:
    """What is to be probed and how, and what came of it: ``card`` is empty until it is done.

    ``grader``: which of the spec's, where there are several. ``items``: a file of the user's own.
    ``n``: topics (default all). ``thresholds``: by probe, in place of the defaults.
    ``budget_usd``: what the judge may
    cost, in all invocations of the folder; it then needs a price.
    """

    spec: RewardSpec
    folder: Path
    grader: str | None = None
    items: Path | None = None
    only: Sequence[str] = ()
    n: int | None = None
    repeats: int = 3
    language: LanguageChoice = "mixed"
    thresholds: Mapping[str, float] = field(default_factory=dict)
    family: str = ""
    gives_reference: bool = True
    cassette: ReplyCache | None = None
    budget_usd: float | None = None
    show_progress: bool = True
    card: dict[str, Any] = field(default_factory=dict)
    findings: list[ProbeFinding] = field(default_factory=list)

    @property
    def entry(self) -> GraderEntry:
        """The spec's entry of the grader; raises :class:`ConfigError`."""
        found = choose_grader(self.spec, self.grader)
        if found.scope == "event":
            raise ConfigError(
                f"{self.spec.where}: graders.{found.name}: judges events, but probes are about "
                "whole answers"
            )
        return found


@dataclass
class PreparedProbes:
    """The probes that were chosen, and every question that they have.

    ``graders``: the probed one by its name, and where a question needs it its twin, whose rubric
    has its criteria in another order, by :data:`_REORDERED`.
    """

    entry: GraderEntry
    graders: Mapping[str, Any]
    bench: ProbeBench
    probes: Sequence[Probe]
    max_concurrency: int

    async def ask(
        self, questions: Iterable[ProbeQuestion], **more: Any
    ) -> dict[ProbeQuestion, GraderResult]:
        """The answers to questions; ``more`` as of :class:`GradingRunner`."""
        graders = {n: GraderConfig(one, self.entry.mapper) for n, one in self.graders.items()}
        runner = GradingRunner(graders, self.max_concurrency, show_progress=False, **more)
        asked, requests = list(questions), []
        for one in asked:
            twin = _REORDERED.format(self.entry.name)
            name = twin if one.reordered and twin in graders else self.entry.name
            fields = self.bench.subject.fields(self.bench.item_of(one), one)
            requests.append(GradingRequest(name, fields, one.draw))
        return dict(zip(asked, await runner.aask(requests), strict=True))


_REORDERED = "{} (criteria reordered)"


def prepare_probes(job: ProbeJob, judges: Mapping[str, ChatModel] | None = None) -> PreparedProbes:
    """Build the grader and plan every question; asks nobody. Raises :class:`ConfigError`."""
    for name in (*job.thresholds, *job.only):
        check_allowed("probe", name, PROBES)
    if negative := [name for name, limit in job.thresholds.items() if not 0 <= limit < math.inf]:
        raise ConfigError(f"--threshold {negative[0]}: must be 0 or more")
    entry = job.entry
    probes = [one for one in PROBES.values() if not job.only or one.name in job.only]
    items = shipped_items() if job.items is None else load_items(job.items)
    topics = choose_topics(items, job.n, language=job.language)
    judges = job.spec.build_judges(job.cassette) if judges is None else judges
    grader = job.spec.build_grader(entry, judges)
    subject = ProbedGrader(grader, gives_reference=job.gives_reference)
    bench = ProbeBench(subject, topics, repeats=job.repeats, family=job.family)
    for probe in probes:
        if not probe.obstacle(bench):
            probe.measure(bench)
    if not bench.questions:
        why = "; ".join(f"{probe.name}: {probe.obstacle(bench)}" for probe in probes)
        raise ConfigError(f"{job.spec.where}: no probe applies to {entry.name!r} ({why})")
    graders = {entry.name: grader}
    if any(question.reordered for question in bench.questions) and not subject.rubric_field:
        graders[_REORDERED.format(entry.name)] = reorder_criteria(grader)
    return PreparedProbes(entry, graders, bench, probes, job.spec.max_concurrency)


def estimate_probe_calls(job: ProbeJob) -> JudgeCallEstimate:
    """What the grader would ask in all; asks nobody."""
    found = JudgeCallEstimate("outcome")
    if not job.spec.asks_judge(job.entry):
        return found
    prepared = prepare_probes(job, build_call_meters(job.spec.build_judges(), found))
    results = run_blocking(prepared.ask(prepared.bench.questions))
    errors = [one for one in results.values() if isinstance(one, GraderError)]
    lost = [one for one in errors if one.kind is not ErrorKind.NOT_SAMPLED]
    if lost and not found.calls:
        found.why = f"{lost[0].kind}: {lost[0].error}"
    return found


class ProbeJournal(Journal):
    """A journal that keeps failures of the judge's own making, too.

    They are what is measured here: asked again on every resumption, they would become fewer with
    each, and a judge that fails would pass in the end. Other failures are asked again.
    """

    keeps = JUDGE_FAULTS


_OUTAGE_SHARE = 0.5
_BAD_ITEMS = {
    ErrorKind.INVALID_INPUT,
    ErrorKind.TOO_LONG,
    ErrorKind.UNSUPPORTED,
    ErrorKind.BUG,
}


def run_probes(job: ProbeJob) -> list[ProbeFinding]:
    """Probe the job's grader and write its folder: the findings, one per probe.

    Writes ``probe.json``, ``report.html`` and ``answers.jsonl``;
    ``journal.jsonl`` grows while it works, and the same job resumes from it,
    also with other probes, thresholds or more topics. Raises ``ConfigError``, ``RunFolderError``,
    ``JudgeAuthError``, and ``JudgeUnavailable`` where more than half of the questions had no answer
    for a reason that passes.
    """
    started = time.perf_counter()
    with own_calls(job.budget_usd, job.cassette) as budget:
        prepared = prepare_probes(job, job.spec.build_judges(job.cassette, budget))
        tally = Tally(len(prepared.bench.questions))
        main = {prepared.entry.name: prepared.graders[prepared.entry.name]}
        job.spec.check_machine(main)
        items = [] if job.items is None else [job.items]
        facts = spec_facts(job.spec, main, items, {"probed": prepared.entry.name})
        with (
            RunFolder(
                job.folder, facts, SPEC_IDENTITY, outputs=("report.html",), journal=JOURNAL_FILE
            ) as folder,
            Progress(tally, show=job.show_progress, title="probing"),
            FolderSpending(job.folder, budget, tally) as spending,
        ):
            journal = ProbeJournal(folder.path / JOURNAL_FILE, folder.facts["spec_hash"])
            resume_recording(job.cassette, journal, main)
            answers = run_blocking(_ask_questions(prepared, journal, tally))
            _check_answers(job, answers)
            prepared.bench.answers = answers
            tally.note = "measuring"
            job.findings = [
                evaluate_probe(probe, prepared.bench, threshold=job.thresholds.get(probe.name))
                for probe in prepared.probes
            ]
            spent: dict[str, Any] = {}
            spending.on_end(spent)
            job.card = _card(job, prepared, answers, spent["spending"]["cost_usd"]) | {
                "calls": sum(one["calls"] for one in spent["endpoints"]),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "elapsed_s": time.perf_counter() - started,
                "resumed": tally.resumed,
                "cassette": job.cassette and msgspec.to_builtins(job.cassette.report()),
                **spent,
            }
            encoder = msgspec.json.Encoder(enc_hook=str)
            rows = (
                encoder.encode({"question": question._asdict(), "answer": answer})
                for question, answer in answers.items()
            )
            folder.write("answers.jsonl", b"\n".join(rows) + b"\n")
            folder.write("report.html", render_probe_page(job.card, job.findings).encode())
            folder.write_json("probe.json", job.card)
    return job.findings


async def _ask_questions(
    prepared: PreparedProbes, journal: ProbeJournal, tally: Tally
) -> dict[ProbeQuestion, GraderResult]:
    """The answers; what failed for a reason that passes is asked once more."""
    ask = partial(prepared.ask, journal=journal, tally=tally)
    answers = await ask(prepared.bench.questions)
    again = {q: one for q, one in answers.items() if isinstance(one, GraderError) and one.passing}
    for failed in again.values():
        tally.withdraw(failed)
    return answers | await ask(again)


def _check_answers(job: ProbeJob, answers: Mapping[ProbeQuestion, GraderResult]) -> None:
    """Refuse to judge a judge that was away, or one that could not be asked about these items."""
    errors = [one for one in answers.values() if isinstance(one, GraderError)]
    passing = [one for one in errors if one.kind in PASSING_KINDS]
    if len(passing) > _OUTAGE_SHARE * len(answers):
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
            f"({errors[0].kind}: {errors[0].error}). Give items that have what it needs in --items."
        )


def _card(
    job: ProbeJob,
    prepared: PreparedProbes,
    answers: Mapping[ProbeQuestion, GraderResult],
    spent_usd: float | None,
) -> dict[str, Any]:
    errors = [one for one in answers.values() if isinstance(one, GraderError)]
    paid = [one.provenance.paid for one in answers.values() if one.provenance is not None]
    costs = [usage.cost_usd for usage in paid if usage is not None and usage.cost_usd is not None]
    models = {one.provenance.model for one in answers.values() if one.provenance is not None}
    subject = prepared.bench.subject
    counts = Counter(one.verdict for one in job.findings)
    verdicts = {name: counts[name] for name in get_args(ProbeVerdict)}
    return {
        "adjudge": __version__,
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
        "seed": 0,
        "level": LEVEL,
        "questions": len(answers),
        "control_questions": prepared.bench.control_questions,
        "missing": {"count": len(errors), "by_kind": dict(Counter(str(e.kind) for e in errors))},
        "cost_usd": spent_usd or (0.0 if costs else None),
        "verdicts": verdicts,
        "family_wise_error": family_wise_error(verdicts, LEVEL),
        "probes": [msgspec.to_builtins(one) for one in job.findings],
    }
