"""An audit as data and as a page: the verdict, findings worst first, and samples to read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.audit import CHECKS, audit_run, read_run
from adjudge.audit.rollouts import AuditProgress, read_judges, read_samples
from adjudge.checks.check import (
    FALSE_ALARM_RATE,
    STATED_POWER,
    AdvantageImpact,
    Check,
    CheckOutcome,
    CheckResult,
    Finding,
    list_found,
    share_text,
)
from adjudge.checks.rewards import series_by_step
from adjudge.checks.run import AuditedRollout, AuditedRun
from adjudge.files import atomic_write
from adjudge.report.charts import (
    ChartLine,
    histogram_chart,
    line_chart,
    signed_strip,
)
from adjudge.report.page import (
    Element,
    Section,
    Tile,
    bold,
    format_number,
    notes_section,
    paragraph,
    quote,
    render_page,
    small,
)
from adjudge.report.table import Column, Table, lost, numeric, styled
from adjudge.rollouts.input_report import InputReport
from adjudge.stats import Histogram, bins_for, histogram
from adjudge.stats.estimates import np, require_stats

MAX_SHOWN = 8
"""Samples of a finding that can be read on the page."""

_MAX_PREVIEW = 200


AuditVerdict = Literal["broken", "suspicious", "nothing_seen"]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit came to.

    ``verdict``: ``broken`` where the run's own numbers show a fault, ``suspicious`` where an honest
    run may have what was found, ``nothing_seen``; ``sentence`` says it in words. ``outcomes``:
    worst findings first, then checks that failed, what was not found, what does not apply.
    ``samples`` are those of the findings that can be read, by their row, their long texts cut.
    """

    verdict: AuditVerdict
    sentence: str
    paths: list[str]
    input: InputReport
    count: int
    groups: int
    steps: int
    broken_rows: int
    missing: int
    mean_reward: float | None
    notes: list[str]
    outcomes: list[CheckOutcome]
    rewards: Histogram | None
    reward_by_step: tuple[tuple[float, float], ...]
    samples: dict[int, AuditedRollout]

    @property
    def findings(self) -> list[tuple[CheckOutcome, Finding]]:
        """What was found, worst first."""
        return list_found(self.outcomes)

    def in_state(self, state: str) -> list[CheckOutcome]:
        """The checks that ended so, such as ``nothing_found``."""
        return [one for one in self.outcomes if one.state == state]


def make_audit(
    paths: Sequence[Path],
    mapping: Mapping[str, str] | None = None,
    *,
    checks: Sequence[Check[AuditedRun]] = CHECKS,
    progress: AuditProgress = lambda _stage, _done, _of: None,
) -> AuditReport:
    """Read dumps, run folders and logs, ask every check, and read again the samples to be shown.

    Args:
        paths: files, folders or patterns of rollouts, of rewards, or of metrics by step.
        mapping: the columns of fields.
        checks: those of adjudge by default; ``[*CHECKS, mine]`` has one more.
        progress: hears what is done.

    Raises:
        ConfigError: for files that have neither rollouts nor metrics.
    """
    require_stats()
    run = read_run(paths, mapping, checks, progress)
    progress("checking", len(run), len(run))
    outcomes = audit_run(run, checks, read_judges(paths, run))
    present = run.reward[np.isfinite(run.reward)].tolist()
    found = [finding for _, finding in list_found(outcomes)]
    shown = {row for finding in found for row in finding.rows[:MAX_SHOWN]}
    steps = {*run.metrics, *run.step[np.isfinite(run.step)].tolist()}
    means = ((step, row.get("judge/outcome_mean")) for step, row in run.metrics.items())
    log = tuple((float(step), mean) for step, mean in means if mean is not None)
    failed = [one for one in outcomes if one.state == "failed"]
    verdict: AuditVerdict = "suspicious" if found else "nothing_seen"
    if any(one.broken for one in found):  # no honest run has it
        verdict = "broken"
    sentence = say_verdict(verdict, outcomes)
    if (
        not found
        and not run.metrics
        and not (np.isfinite(run.reward) | np.isfinite(run.advantage)).any()
    ):
        sentence = f"{_NO_REWARDS} {sentence}"
    return AuditReport(
        verdict=verdict,
        sentence=sentence,
        paths=[str(path) for path in paths],
        input=run.input,
        count=len(run),
        groups=len(run.group_sizes),
        steps=len(steps),
        broken_rows=run.broken_count,
        missing=len(run) - len(present),
        mean_reward=math.fsum(present) / len(present) if present else None,
        notes=[f"the check {one.name} failed: {one.result.failed}" for one in failed] + run.notes,
        outcomes=outcomes,
        rewards=histogram(present, bins_for(present)) if present else None,
        reward_by_step=series_by_step(run, run.reward) or log,
        samples=read_samples(paths, mapping or {}, run, shown, progress),
    )


_NO_REWARDS = (
    "These rows have no rewards, so nothing can be seen of them. Name their column: -m "
    "env_reward=COLUMN."
)


def say_verdict(verdict: AuditVerdict, outcomes: Sequence[CheckOutcome]) -> str:
    """The verdict in one sentence."""
    found = [finding for _, finding in list_found(outcomes)]
    applied = sum(one.state in ("found", "nothing_found") for one in outcomes)
    if not applied:
        return "Nothing could be checked. For each check the report names what it needs."
    if not found:
        sentence = f"Nothing seen in {applied} checks"
        if left := len(outcomes) - applied:
            sentence += f"; {left} others could not be made"
        unknown = sum(
            one.state == "nothing_found" and one.result.detectable is None for one in outcomes
        )
        if unknown:
            sentence += f", and of {unknown} it is not known what they would see"
        return f"{sentence}."
    worst = next(one for one in found if one.broken or verdict != "broken")
    begin = {
        "broken": "Do not train on this as it is: ",
        "suspicious": "Look at this before you train on it: ",
        "nothing_seen": "",
    }[verdict]
    first, _, rest = worst.sentence.partition(" ")
    first = first.lower() if first in {"In", "Within", "At", "The", "Of", "All"} else first
    more = len(found) - 1
    also = f" ({more} more finding{'s' if more > 1 else ''}.)" if more else ""
    return f"{begin}{first} {rest}{also}"


def audit_as_json(report: AuditReport) -> dict[str, Any]:
    """``audit.json``: everything but the texts of samples."""
    return {
        "verdict": report.verdict,
        "sentence": report.sentence,
        "paths": report.paths,
        "formats": report.input.formats,
        "input": report.input.as_json(),
        "samples": report.count,
        "groups": report.groups,
        "steps": report.steps,
        "broken_rows": report.broken_rows,
        "missing_rewards": report.missing,
        "mean_reward": report.mean_reward,
        "notes": report.notes,
        "false_alarm_rate": FALSE_ALARM_RATE,
        "power": STATED_POWER,
        "checks": [_check_as_json(one, report.samples) for one in report.outcomes],
    }


def _check_as_json(one: CheckOutcome, shown: Mapping[int, AuditedRollout]) -> dict[str, Any]:
    result, size = one.result, one.result.detectable
    common: dict[str, Any] = {
        "name": one.name,
        "title": one.title,
        "state": one.state,
        "effect": msgspec.to_builtins(result.effect),
        "unit": result.unit,
        "p_value": result.p_value,
        "smallest_visible_effect": size if size and math.isfinite(size) else None,
        "why": result.skipped or result.failed,
    }
    if one.state != "found" or result.finding is None:
        return common
    found: dict[str, Any] = msgspec.to_builtins(result.finding)
    rows = found.pop("rows")
    places = [{"row": row, "where": shown[row].where if row in shown else None} for row in rows]
    return common | {"advantages": found.pop("impact"), "rows": places} | found


def effect_text(value: float | None, unit: str) -> str:
    """A number in its unit: shares in per cent."""
    if value is None:
        return "–"
    return share_text(value) if unit.startswith("share") else format_number(value, 2)


def effect_texts(result: CheckResult) -> tuple[str, str]:
    """What a check measured, and its interval or why it is missing."""
    one, unit = result.effect, result.unit
    interval = one.why
    if one.low is not None and one.high is not None:
        interval = f"{effect_text(one.low, unit)} to {effect_text(one.high, unit)}"
    return effect_text(one.value, unit), interval


def impact_text(impact: AdvantageImpact) -> str:
    """What was done to advantages, in a few words."""
    if impact.turned is None or impact.change is None:
        return impact.why
    return (
        f"without it {share_text(impact.turned)} of the advantages turn their sign; they change "
        f"by {impact.change:.2f} standard deviations on average"
    )


_PACKAGE = "adjudge.audit"
_STYLES = {"high": "worst", "medium": "lost", "low": "soft"}
_VERDICT_STYLES = {"broken": "high", "suspicious": "medium", "nothing_seen": "none"}


def write_audit_page(path: Path, report: AuditReport) -> None:
    """Write ``audit.html``: UTF-8, no script, no network."""
    files = report.input.formats
    read_as = [f"{name}: {n:,} files" if n > 1 else name for name, n in files.items()]
    read_as += [f"{label}: {text}" for label, text in report.input.lines()]
    notes = [*report.input.notes, *report.notes]
    about = [("rollouts", report.paths), ("read as", read_as), ("notes", notes)]
    drawn = None
    if report.rewards is not None:
        bins = report.rewards.bins
        label = f"Rewards from {bins.edges[0]:.3g} to {bins.edges[-1]:.3g}"
        drawn = Element("figure", histogram_chart(report.rewards.counts, bins, label))
    curve = _curve("Mean reward over steps", "mean reward", report.reward_by_step)
    page = render_page(
        "Audit",
        [],
        [
            Section("findings", "Findings, worst first", [_drawn_findings(report)], "Findings"),
            *_finding_sections(report),
            Section(
                "nothing",
                "Nothing found",
                [
                    paragraph(_POWER) if report.in_state("nothing_found") else None,
                    nothing_table(report),
                ],
                "Nothing found",
            ),
            Section("rewards", "Rewards", [drawn, curve], "Rewards"),
            Section("not-applicable", "Not applicable", [skipped_table(report)], "Not applicable"),
            notes_section(
                _PACKAGE,
                link="How to read it",
                rate=f"{FALSE_ALARM_RATE:.0%}",
                power=f"{STATED_POWER:.0%}",
                shown=MAX_SHOWN,
            ),
        ],
        tiles=list(_tiles(report)),
        above=[
            paragraph(report.sentence, class_=f"verdict {_VERDICT_STYLES[report.verdict]}"),
            _facts([(name, lines) for name, lines in about if lines]),
        ],
        styles=[(_PACKAGE, "page.css")],
    )
    atomic_write(path, page.encode())


def _tiles(report: AuditReport) -> Iterator[Tile]:
    broken = sum(finding.broken for _, finding in report.findings)
    yield Tile("findings", f"{len(report.findings)}", f"{broken} broken", bool(broken))
    yield Tile("samples", f"{report.count:,}", f"{report.broken_rows:,} broken rows")
    yield Tile("groups", f"{report.groups:,}", f"{report.steps:,} steps" if report.steps else "")
    share = share_text(report.missing / report.count) if report.count else ""
    yield Tile("rewards missing", f"{report.missing:,}", share)
    yield Tile("mean reward", format_number(report.mean_reward), "")


def findings_table(report: AuditReport) -> Table:
    """What was found, for page and terminal."""
    rows = [
        [
            [
                Element("a", one.title, href=f"#finding-{one.name}"),
                small(f" ({one.result.unit})" if one.result.unit else ""),
            ],
            styled(finding.severity, _STYLES[finding.severity]),
            *effect_texts(one.result),
            f"{finding.affected:,}",
            "–" if finding.impact.turned is None else share_text(finding.impact.turned),
            "–" if finding.impact.change is None else f"{finding.impact.change:.2f}",
        ]
        for one, finding in report.findings
    ]
    columns = [
        Column("finding", "w"),
        "severity",
        *numeric("effect"),
        Column("95 % interval", "i"),
        *numeric("samples", "signs turned", "mean change"),
    ]
    drop = ("mean change", "95 % interval", "signs turned")
    return Table(columns, rows, keep=("effect", "samples"), drop=drop)


def _drawn_findings(report: AuditReport) -> Table:
    """:func:`findings_table` with a mark for each effect on a scale that all of them share."""
    table = findings_table(report)
    columns = [*table.columns[:2], Column("size", "plot"), *table.columns[2:]]
    rows = []
    for row, (outcome, _) in zip(table.rows, report.findings, strict=True):
        one, mark = outcome.result.effect, None
        ends = [end for end in (one.value, one.low, one.high) if end is not None]
        if one.value is not None and all(-1 <= end <= 1 for end in ends):
            label = ", ".join(effect_texts(outcome.result))
            mark = signed_strip(one, label)
        rows.append([*row[:2], mark, *row[2:]])
    return Table(columns, rows)


def _facts(named: Sequence[tuple[str, Sequence[object]]]) -> Element:
    listed = [
        Element(
            "div", Element("dt", name), Element("dd", [Element("span", text) for text in lines])
        )
        for name, lines in named
    ]
    return Element("dl", listed, class_="facts")


def nothing_table(report: AuditReport) -> Table:
    """The checks that found nothing, with what they would have seen."""
    rows: list[list[object]] = []
    for one in report.in_state("nothing_found"):
        result = one.result
        visible: object = effect_text(result.detectable, result.unit)
        if result.detectable is None:
            why = f": {result.detectable_why}" if result.detectable_why else ""
            visible = lost(f"not known{why}")
        elif result.detectable > 1 and result.unit.startswith(
            ("share", "correlation", "rank corr")
        ):
            visible = lost("too few samples")
        unit = small(f" ({result.unit})" if result.unit else "")
        rows.append([[one.title, unit], effect_text(result.effect.value, result.unit), visible])
    columns = [Column("checked", "w"), *numeric("measured", "smallest that would be seen")]
    return Table(columns, rows, keep=("smallest that would be seen",))


def skipped_table(report: AuditReport) -> Table:
    """The checks that do not apply, and why."""
    titles: dict[str, list[str]] = {}
    for one in (*report.in_state("failed"), *report.in_state("not_applicable")):
        why = one.result.skipped or f"it failed: {one.result.failed}"
        titles.setdefault(why, []).append(one.title)
    rows = [["; ".join(several), why] for why, several in titles.items()]
    return Table([Column("check", "w"), Column("why not", "w")], rows)


_POWER = (
    f"An effect of the size in the third column would be found in {STATED_POWER:.0%} of runs such "
    "as this one. A smaller one may be there."
)


def _finding_sections(report: AuditReport) -> Iterator[Section]:
    """Each finding with its samples; a sample of several stands under the first."""
    home: dict[int, str] = {}
    for number, (one, finding) in enumerate(report.findings, 1):
        shown = [report.samples[row] for row in finding.rows[:MAX_SHOWN] if row in report.samples]
        fresh = [sample for sample in shown if sample.index not in home]
        home |= {sample.index: one.name for sample in fresh}
        above = [
            [Element("a", f"sample {sample.index}", href=f"#sample-{sample.index}"), " "]
            for sample in shown
            if home[sample.index] != one.name
        ]
        (effect, interval), unit = effect_texts(one.result), one.result.unit
        severity = styled(finding.severity, _STYLES[finding.severity])
        facts: list[tuple[str, Sequence[object]]] = [
            ("severity", [severity]),
            ("effect", [f"{effect} ({interval})" if interval else effect, unit]),
            ("samples", [f"{finding.affected:,} of {report.count:,}"] if finding.affected else []),
            ("advantages", [impact_text(finding.impact)]),
        ]
        how_many = f"The worst {len(shown)} of {finding.affected:,} samples"
        yield Section(
            f"finding-{one.name}",
            f"{number}. {one.title}",
            [
                paragraph(finding.sentence, class_="sentence"),
                paragraph(bold("Or: "), finding.otherwise) if finding.otherwise else None,
                paragraph(bold("What to do: "), finding.advice) if finding.advice else None,
                _facts([fact for fact in facts if fact[1]]),
                _curve("Over steps", unit, finding.series),
                Element("h3", how_many if len(shown) < finding.affected else "Samples")
                if shown
                else None,
                paragraph("Shown above, too: ", above) if above else None,
                [_sample(sample, is_open=place == 0) for place, sample in enumerate(fresh)],
            ],
        )


def _curve(title: str, unit: str, series: Sequence[tuple[float, float]]) -> Element | None:
    if not series:
        return None
    steps = [round(step) for step, _ in series]
    line = ChartLine(unit, [value for _, value in series])
    return Element("div", line_chart(title, [line], steps), class_="curves")


def _sample(sample: AuditedRollout, *, is_open: bool) -> Element:
    reward = format_number(sample.reward)
    if sample.reward is None:
        reward = f"missing ({sample.missing.replace('_', ' ')})" if sample.missing else "missing"
    facts = [f"reward {reward}"]
    if sample.advantage is not None:
        facts.append(f"advantage {format_number(sample.advantage, 2)}")
    if sample.env_reward is not None:
        facts.append(f"environment {format_number(sample.env_reward)}")
    facts.append(f"group {sample.group}")
    if sample.step is not None:
        facts.append(f"step {sample.step}")
    said = [
        [Element("h5", f"What {name} said"), quote(text)] for name, text in sample.reasons.items()
    ]
    return Element(
        "article",
        Element("h4", f"Sample {sample.index}", " ", small(sample.where)),
        paragraph(" · ".join(facts), class_="soft"),
        _folded("Prompt", sample.prompt, is_open=False),
        _folded("Response", sample.response, is_open=is_open),
        Element("details", Element("summary", "Reasons"), said, open="open" if is_open else None)
        if said
        else None,
        id=f"sample-{sample.index}",
    )


def _folded(name: str, text: str, *, is_open: bool) -> Element:
    shown = quote(text) if text else small("none")
    line = Element("span", " ".join(text[:_MAX_PREVIEW].split()), class_="preview")
    summary = Element("summary", name, " ", line)
    return Element("details", summary, shown, open="open" if is_open else None)
