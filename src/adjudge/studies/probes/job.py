"""What a run of probes is to do, and every question that it has; nobody is asked here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.judges.base import ChatModel
from adjudge.judges.cache import ReplyCache
from adjudge.rewards.built import check_machine
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runner.runner import Ask
from adjudge.studies.probes.bench import Bench
from adjudge.studies.probes.card import Finding
from adjudge.studies.probes.catalogue import chosen_probes, probe_named
from adjudge.studies.probes.items import Wanted, choose, load_items, shipped_items
from adjudge.studies.probes.probe import Probe
from adjudge.studies.probes.subject import Question, Subject, reordered

__all__ = ["Prepared", "ProbeJob", "prepare"]


@dataclass
class ProbeJob:
    """What is to be probed and how, and what came of it: ``card`` is empty until it is done.

    ``grader``: which of the spec's, where there are several. ``items``: a file of the user's own.
    ``n``: topics (default all). ``thresholds``: by probe, in place of the defaults.
    ``family_wise``: the level of the intervals is 1 − 0.05/m for m probes (Bonferroni).
    ``strict``: an uncertain verdict fails in the JUnit file too. ``budget_usd``: what the judge may
    cost; it then needs a price.
    """

    spec: RewardSpec
    folder: Path
    grader: str | None = None
    items: Path | None = None
    only: Sequence[str] = ()
    n: int | None = None
    repeats: int = 3
    seed: int = 0
    language: Wanted = "mixed"
    thresholds: Mapping[str, float] = field(default_factory=dict)
    family: str = ""
    with_reference: bool | None = None
    family_wise: bool = False
    strict: bool = False
    cassette: ReplyCache | None = None
    budget_usd: float | None = None
    show_progress: bool = True
    card: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

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
                raise ConfigError(f"{where}: which grader? --grader NAME (there are: {listed})")
            found = judged
        if found[0].scope == "event":
            raise ConfigError(
                f"{where}: graders.{found[0].name}: judges events; probes are about whole answers"
            )
        return found[0]


@dataclass
class Prepared:
    """The probes that apply, and every question that they have."""

    entry: GraderEntry
    graders: Mapping[str, Any]
    bench: Bench
    probes: Sequence[Probe]

    @property
    def applying(self) -> int:
        """How many of the probes apply."""
        return sum(not probe.obstacle(self.bench) for probe in self.probes)

    @property
    def questions(self) -> list[Question]:
        """The questions, each once."""
        return list(self.bench.questions)

    def ask(self, question: Question) -> Ask:
        """A question as the runner takes it."""
        name = self.entry.name
        if question.reordered and not self.bench.subject.rubric_field:
            name = _twin(name)
        fields = self.bench.subject.fields(self.bench.item_of(question), question)
        return Ask(name, fields, question.draw)


def _twin(name: str) -> str:
    return f"{name} (criteria reordered)"


def prepare(job: ProbeJob, judges: Mapping[str, ChatModel] | None = None) -> Prepared:
    """Build the grader and plan every question; asks nobody. Raises :class:`ConfigError`."""
    for name, limit in job.thresholds.items():
        probe_named(name)
        if not 0 <= limit < math.inf:
            raise ConfigError(f"threshold {name}: found {limit:g}, must be 0 or more")
    if job.repeats < 1:
        raise ConfigError(f"repeats: found {job.repeats}, must be at least 1")
    entry, probes = job.entry, chosen_probes(job.only)
    items = shipped_items() if job.items is None else load_items(job.items)
    topics = choose(items, job.n, seed=job.seed, language=job.language)
    judges = job.spec.build_judges(job.cassette) if judges is None else judges
    grader = job.spec.build_grader(entry, judges)
    check_machine(job.spec, {entry.name: grader})
    subject = Subject(grader, with_reference=job.with_reference)
    bench = Bench(subject, topics, repeats=job.repeats, seed=job.seed, family=job.family)
    for probe in probes:
        if not probe.obstacle(bench):
            probe.measure(bench)
    if not bench.questions:
        why = "; ".join(f"{probe.name}: {probe.obstacle(bench)}" for probe in probes)
        raise ConfigError(f"{job.spec.where}: no probe applies to {entry.name!r} ({why})")
    graders = {entry.name: grader}
    if any(question.reordered for question in bench.questions) and not subject.rubric_field:
        graders[_twin(entry.name)] = reordered(grader)
    return Prepared(entry, graders, bench, probes)
