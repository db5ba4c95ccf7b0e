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
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import suggest_name
from adjudge.engine.loop import run_blocking
from adjudge.errors import PASSING_KINDS, ConfigError, ErrorKind, JudgeUnavailable
from adjudge.graders.binding import GraderConfig
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
    count_verdicts,
    evaluate_probe,
)
from adjudge.judge_evaluation.probes.reliability_probes import (
    ATTACK_PROBES,
    JUDGE_FAULTS,
    SCALE_PROBES,
)
from adjudge.judge_evaluation.probes.report import (
    family_wise_error,
    render_probe_page,
)
from adjudge.judges.base import ChatModel
from adjudge.judges.cassette.cache import ReplyCache
from adjudge.judges.endpoint.connections import own_calls
from adjudge.judges.endpoint.settings import SpendCeiling
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Progress, Tally
from adjudge.runner.runner import GradingRequest, GradingRunner
from adjudge.runs.folder import JOURNAL_FILE, SPEC_IDENTITY, RunFolder, spec_facts
from adjudge.runs.grading import resume_recording
from adjudge.runs.judge_calls import JudgeCallEstimate, estimate_calls
from adjudge.runs.spending import FolderSpending
from adjudge.types import GraderError, GraderResult, Sample
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


def find_probe(name: str) -> Probe:
    """A probe; raises :class:`ConfigError` naming the nearest one."""
    if name not in PROBES:
        raise ConfigError(
            f"there is no probe {name!r}{suggest_name(name, PROBES)} (probes: {', '.join(PROBES)})"
        )
    return PROBES[name]


def select_probes(names: Iterable[str]) -> list[Probe]:
    """The probes of these names in the catalogue's order; all where none is named."""
    wanted = {find_probe(name).name for name in names}
    return [probe for probe in PROBES.values() if not wanted or probe.name in wanted]


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
    seed: int = 0
    language: LanguageChoice = "mixed"
    thresholds: Mapping[str, float] = field(default_factory=dict)
    family: str = ""
    with_reference: bool | None = None
    cassette: ReplyCache | None = None
    budget_usd: float | None = None
    show_progress: bool = True
    card: dict[str, Any] = field(default_factory=dict)
    findings: list[ProbeFinding] = field(default_factory=list)

    @property
    def entry(self) -> GraderEntry:
        """The spec's entry of the grader; raises :class:`ConfigError`."""
        where, names = self.spec.where, [entry.name for entry in self.spec.graders]
        listed = ", ".join(names)
        if self.grader is not None and self.grader not in names:
            raise ConfigError(f"{where}: there is no grader {self.grader!r} (there are: {listed})")
        found = [e for e in self.spec.graders if self.grader in (None, e.name)]
        if len(found) > 1:
            judged = [entry for entry in found if self.spec.asks_judge(entry)]
            if len(judged) != 1:
                raise ConfigError(
                    f"{where}: exactly one grader must be chosen (there are: {listed}). Set "
                    "--grader NAME."
                )
            found = judged
        if found[0].scope == "event":
            raise ConfigError(
                f"{where}: graders.{found[0].name}: judges events, but probes are about whole "
                "answers"
            )
        return found[0]


@dataclass
class PreparedProbes:
    """The probes that apply, and every question that they have."""

    entry: GraderEntry
    graders: Mapping[str, Any]
    bench: ProbeBench
    probes: Sequence[Probe]

    @property
    def questions(self) -> list[ProbeQuestion]:
        """The questions, each once."""
        return list(self.bench.questions)

    def ask(self, question: ProbeQuestion) -> GradingRequest:
        """A question as the runner takes it."""
        name = self.entry.name
        if question.reordered and not self.bench.subject.rubric_field:
            name = _reordered_name(name)
        fields = self.bench.subject.fields(self.bench.item_of(question), question)
        return GradingRequest(name, fields, question.draw)


def _reordered_name(name: str) -> str:
    return f"{name} (criteria reordered)"


def prepare_probes(job: ProbeJob, judges: Mapping[str, ChatModel] | None = None) -> PreparedProbes:
    """Build the grader and plan every question; asks nobody. Raises :class:`ConfigError`."""
    for name, limit in job.thresholds.items():
        find_probe(name)
        if not 0 <= limit < math.inf:
            raise ConfigError(f"threshold {name}: must be 0 or more (found {limit:g})")
    if job.repeats < 1:
        raise ConfigError(f"repeats: must be at least 1 (found {job.repeats})")
    entry, probes = job.entry, select_probes(job.only)
    items = shipped_items() if job.items is None else load_items(job.items)
    topics = choose_topics(items, job.n, seed=job.seed, language=job.language)
    judges = job.spec.build_judges(job.cassette) if judges is None else judges
    grader = job.spec.build_grader(entry, judges)
    subject = ProbedGrader(grader, with_reference=job.with_reference)
    bench = ProbeBench(subject, topics, repeats=job.repeats, seed=job.seed, family=job.family)
    for probe in probes:
        if not probe.obstacle(bench):
            probe.measure(bench)
    if not bench.questions:
        why = "; ".join(f"{probe.name}: {probe.obstacle(bench)}" for probe in probes)
        raise ConfigError(f"{job.spec.where}: no probe applies to {entry.name!r} ({why})")
    graders = {entry.name: grader}
    if any(question.reordered for question in bench.questions) and not subject.rubric_field:
        graders[_reordered_name(entry.name)] = reorder_criteria(grader)
    return PreparedProbes(entry, graders, bench, probes)


_SAMPLE_SIZE = 150


def estimate_probe_calls(job: ProbeJob) -> JudgeCallEstimate:
    """What the grader would ask, from 150 questions spread over all; asks nobody."""
    prepared = prepare_probes(job)
    found = JudgeCallEstimate("outcome")
    if not job.spec.asks_judge(prepared.entry):
        return found
    questions = prepared.questions
    seen = questions[:: max(1, len(questions) // _SAMPLE_SIZE)]
    samples: list[Sample] = []
    groups: list[str] = []
    for number, question in enumerate(seen):
        for member in _response_fields(prepared.ask(question).fields):
            samples.append(_reward_sample(member, len(samples)))
            groups.append(str(number))
    alone = job.spec.model_copy(update={"graders": [prepared.entry]})
    asked = estimate_calls(alone, samples, groups)[prepared.entry.name]
    found.add_all(asked, len(questions) / len(seen))
    return found


def _response_fields(fields: Any) -> list[dict[str, Any]]:
    """One mapping of fields per response: a ranking's question has lists."""
    if isinstance(fields["response"], str):
        return [dict(fields)]
    count = len(fields["response"])
    return [{name: value[place] for name, value in fields.items()} for place in range(count)]


def _reward_sample(fields: dict[str, Any], place: int) -> Sample:
    extra = {k: v for k, v in fields.items() if k not in ("prompt", "response", "messages")}
    return Sample(place, place, fields["prompt"], fields["response"], fields["messages"], extra)


class ProbeJournal(Journal):
    """A journal that keeps failures of the judge's own making, too.

    They are what is measured here: asked again on every resumption, they would become fewer with
    each, and a judge that fails would pass in the end. Other failures are asked again.
    """

    keeps = JUDGE_FAULTS


_OUTAGE_SHARE = 0.5
_BAD_ITEMS = {ErrorKind.INVALID_INPUT, ErrorKind.UNSUPPORTED, ErrorKind.BUG}


def run_probes(job: ProbeJob) -> list[ProbeFinding]:
    """Probe the job's grader and write its folder: the findings, one per probe.

    Writes ``probe.json``, ``report.html`` and ``answers.jsonl``;
    ``journal.jsonl`` grows while it works, and the same job resumes from it,
    also with other probes, thresholds or more topics. Raises ``ConfigError``, ``RunFolderError``,
    ``JudgeAuthError``, and ``JudgeUnavailable`` where more than half of the questions had no answer
    for a reason that passes.
    """
    with own_calls(job.budget_usd, job.cassette) as budget:
        return _run(job, budget)


def _run(job: ProbeJob, budget: SpendCeiling) -> list[ProbeFinding]:
    started = time.perf_counter()
    prepared = prepare_probes(job, job.spec.build_judges(job.cassette, budget))
    tally = Tally(len(prepared.questions))
    main = {prepared.entry.name: prepared.graders[prepared.entry.name]}
    job.spec.check_machine(main)
    with (
        RunFolder(
            job.folder,
            spec_facts(
                job.spec,
                main,
                [] if job.items is None else [job.items],
                {"probed": prepared.entry.name},
            ),
            SPEC_IDENTITY,
            outputs=("report.html",),
            journal=JOURNAL_FILE,
        ) as folder,
        Progress(tally, show=job.show_progress, title="probing"),
        FolderSpending(job.folder, budget, tally) as spending,
    ):
        journal = ProbeJournal(folder.path / JOURNAL_FILE, folder.facts["spec_hash"])
        resume_recording(job.cassette, journal, main)
        answers = run_blocking(_ask_questions(job, prepared, journal, tally))
        _check_answers(job, answers)
        prepared.bench.set_answers(answers)
        tally.note = "measuring"
        job.findings = [
            evaluate_probe(probe, prepared.bench, threshold=job.thresholds.get(probe.name))
            for probe in prepared.probes
        ]
        endpoints = spending.read()
        spent = spending.summarise(endpoints)
        job.card = _card(job, prepared, answers, spent["cost_usd"]) | {
            "calls": sum(one["calls"] for one in endpoints),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "elapsed_s": time.perf_counter() - started,
            "resumed": tally.resumed,
            "cassette": job.cassette and msgspec.to_builtins(job.cassette.report()),
            "endpoints": endpoints,
            "spending": spent,
        }
        _write(job, folder, answers)
    return job.findings


async def _ask_questions(
    job: ProbeJob, prepared: PreparedProbes, journal: ProbeJournal, tally: Tally
) -> dict[ProbeQuestion, GraderResult]:
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
    found = await runner.aask([prepared.ask(question) for question in questions])
    answers = dict(zip(questions, found, strict=True))
    again = [q for q, one in answers.items() if isinstance(one, GraderError) and one.passing]
    for question in again:
        failed = answers[question]
        if isinstance(failed, GraderError):
            tally.withdraw(failed)
    found = await runner.aask([prepared.ask(question) for question in again])
    return answers | dict(zip(again, found, strict=True))


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
        "seed": job.seed,
        "level": LEVEL,
        "questions": len(answers),
        "control_questions": prepared.bench.control_questions,
        "missing": {"count": len(errors), "by_kind": dict(Counter(str(e.kind) for e in errors))},
        "cost_usd": spent_usd or (0.0 if costs else None),
        "verdicts": (verdicts := count_verdicts(job.findings)),
        "family_wise_error": family_wise_error(verdicts, LEVEL),
        "probes": [msgspec.to_builtins(one) for one in job.findings],
    }


def _write(job: ProbeJob, folder: RunFolder, answers: Mapping[ProbeQuestion, GraderResult]) -> None:
    encoder = msgspec.json.Encoder(enc_hook=str)
    rows = [
        encoder.encode({"question": question._asdict(), "answer": answer})
        for question, answer in answers.items()
    ]
    folder.write("answers.jsonl", b"\n".join(rows) + b"\n")
    folder.write("report.html", render_probe_page(job.card, job.findings).encode())
    folder.write_json("probe.json", job.card)
