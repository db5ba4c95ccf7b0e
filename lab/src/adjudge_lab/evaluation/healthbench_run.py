"""A whole HealthBench evaluation: answers joined, marked, aggregated, and written as a page.

The marks are those of a reward spec's rubric grader, asked about the rows' own rubrics. Whatever
files, tags and keys are called is escaped everywhere on the page.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from adjudge.config import load_toml, suggest_name
from adjudge.errors import ConfigError
from adjudge.files import JsonlLog
from adjudge.judge_evaluation.benchmarks.page import score_cells
from adjudge.report.page import Section, format_integer, format_number, notes_section, render_page
from adjudge.report.table import Column, Table, numeric
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.rubrics import rubric_digest
from adjudge.runs.grading import grade_rollouts, read_first_samples
from adjudge.runs.job import GradedRun, GradingJob
from adjudge.runs.judge_calls import JudgeCallEstimate, estimate_run_calls
from adjudge.text import encode_exactly
from adjudge.version import describe_writer
from adjudge_lab.evaluation.healthbench import (
    HealthbenchItem,
    MarkedSample,
    build_missing_sample,
    mark_sample,
    read_healthbench_answers,
    read_healthbench_items,
    summarise_healthbench,
)
from adjudge_lab.evaluation.ifeval.files import open_benchmark_folder
from adjudge_lab.evaluation.responses import (
    MOST_NAMED,
    JoinBy,
    JoinKey,
    PromptResponse,
    count_and_first,
    plural,
    problem_lines,
    unjoined_error,
)

_OWN_RUBRIC_KEYS = ("rubric", "rubric_id", "criteria", "part")


def load_rubric_grader_spec(target: str) -> tuple[RewardSpec, str]:
    """The spec of ``FILE.toml`` or ``FILE.toml#GRADER`` with that grader alone, and its name.

    Its rubric is each row's, its formula HealthBench's (``points``, not clipped), whatever the spec
    says; how it asks, and whom, is the spec's. Raises :class:`ConfigError` for a spec without a
    rubric grader or with several of which none is named, and for one with a rubric of its own.
    """
    file, _, wanted = target.partition("#")
    path = Path(file)
    if path.suffix.lower() != ".toml":
        raise ConfigError(f"{target}: must be a reward spec (allowed: SPEC.toml, SPEC.toml#GRADER)")
    whole = RewardSpec.load(path)
    entry = _choose_rubric_grader(whole, wanted)
    if isinstance(entry.judge, list) or entry.panel is not None:
        raise ConfigError(f"{target}: {entry.name} has several judges. Give it one judge.")
    if own := [key for key in _OWN_RUBRIC_KEYS if (entry.model_extra or {}).get(key) is not None]:
        raise ConfigError(
            f"{target}: {entry.name}.{own[0]}: cannot be set, because every row has its own "
            "rubric. Leave it out."
        )
    data = load_toml(path)
    table = next(one for one in data["graders"] if one["name"] == entry.name)
    kept = {key: value for key, value in table.items() if key not in ("mapper", "scope")}
    data["graders"] = [{**kept, "field": "rubric", "clip": False, "weight": 1.0}]
    data["reward"] = {"normalise": False}
    data["missing"] = {
        key: value
        for key, value in data.get("missing", {}).items()
        if key in ("max_missing", "patience_s")
    }
    return RewardSpec.from_dict(data, where=str(path), folder=path.parent), entry.name


def _choose_rubric_grader(spec: RewardSpec, wanted: str) -> GraderEntry:
    rubrics = {entry.name: entry for entry in spec.graders if entry.type == "rubric"}
    if wanted:
        if wanted not in rubrics:
            raise ConfigError(
                f"{spec.where}#{wanted}: there is no grader of type rubric with this "
                f"name{suggest_name(wanted, rubrics)}"
            )
        return rubrics[wanted]
    if len(rubrics) == 1:
        return next(iter(rubrics.values()))
    named = f". Name one: {spec.where}#GRADER ({', '.join(rubrics)})." if rubrics else ""
    raise ConfigError(
        f"{spec.where}: must have one grader of type rubric, which marks the criteria (found "
        f"{len(rubrics)}){named}"
    )


USUAL_TAGS = ("theme", "axis", "level")
"""The tags that HealthBench is reported by."""

_SummaryEntry = Mapping[str, Any]


def group_tags(tags: Mapping[str, _SummaryEntry]) -> dict[str, dict[str, _SummaryEntry]]:
    """``{"axis": {"accuracy": …}}``: the usual names first, then the others as they come."""
    groups: dict[str, dict[str, _SummaryEntry]] = {}
    for tag, one in tags.items():
        name, _, value = tag.partition(":")
        groups.setdefault(name, {})[value or name] = one
    order = [name for name in USUAL_TAGS if name in groups]
    return {name: groups[name] for name in [*order, *(n for n in groups if n not in order)]}


def healthbench_missing_lines(summary: _SummaryEntry) -> list[str]:
    """What is in no score, or is not what it seems, a line each."""
    lines = []
    if kinds := summary["missing_by_kind"]:
        said = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
        low, high = summary["bounds"]
        lines.append(
            f"{plural(sum(kinds.values()), 'sample')} without a score: {said}; with them the "
            f"score lies between {low:.4f} and {high:.4f}"
        )
    if unsaid := summary["unsaid"]:
        lines.append(f"{plural(unsaid, 'response')} empty or still thinking, judged as such")
    if gone := summary["without_response"]["count"]:
        named = ", ".join(str(key)[:40] for key in summary["without_response"]["first"])
        more = ", …" if gone > len(summary["without_response"]["first"]) else ""
        lines.append(f"{plural(gone, 'prompt')} without a response (key {named}{more})")
    if strays := summary["strays"]["count"]:
        lines.append(f"{plural(strays, 'response')} to no prompt of the benchmark")
    if cut := summary["cut_by_length"]:
        lines.append(f"{plural(cut, 'response')} ended by the length limit")
    return lines + problem_lines(summary["problems"])


def write_healthbench_page(path: Path, summary: _SummaryEntry) -> None:
    """Write the page to ``path``, UTF-8."""
    tags = [health_scores_table(name, of) for name, of in group_tags(summary["tags"]).items()]
    overall = {"HealthBench": summary["overall"]}
    html = render_page(
        "HealthBench",
        _facts(summary),
        [
            Section("score", "Score", health_scores_table("", overall), "Score"),
            Section("tags", "By tag", tags, "By tag"),
            Section("missing", "Not counted", _missing_parts(summary), "Not counted"),
            notes_section("adjudge_lab.evaluation", "healthbench_notes.html"),
        ],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: _SummaryEntry) -> list[tuple[str, str]]:
    judge, scored = summary["judge"], f"{summary['scored']:,} of {summary['samples']:,}"
    return [
        ("Responses", summary["responses"]),
        ("Prompts", f"{format_integer(summary['prompts'])} of {summary['data']}"),
        ("Judge", f"{judge['grader']} of {judge['spec']}"),
        ("Samples with a score", scored),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _missing_parts(summary: _SummaryEntry) -> list[object]:
    rows = [
        [
            f"{one['key']} #{one['sample']}",
            one["kind"],
            *(format_number(one[end], 4) for end in ("low", "high")),
            one["reason"][:300],
        ]
        for one in summary["missing"]
    ]
    columns = ["", "kind", *numeric("at least", "at most"), ""]
    return [*healthbench_missing_lines(summary), Table(columns, rows)]


def health_scores_table(caption: str, entries: Mapping[str, _SummaryEntry]) -> Table:
    """Scores with their spread and interval."""
    rows = []
    for name, one in entries.items():
        score, *interval = score_cells(one["score"], one["low"], one["high"], one["why"], name)
        spread = format_number(one["bootstrap_std"], 4)
        rows.append([name, score, spread, *interval, format_integer(one["n_samples"])])
    columns = [
        *numeric("score", "SD"),
        Column("95 %", "i"),
        Column("0 to 1", "plot"),
        *numeric("n"),
    ]
    return Table(["", *columns], rows, caption=caption, drop=("SD", "n"))


_GRADING = "grading"

_ItemAnswer = tuple[HealthbenchItem, PromptResponse]


_ESTIMATE_ROWS = 200


@dataclass
class HealthbenchJob:
    """What is to be evaluated, and where it goes; ``summary`` is the result.

    ``target``: ``SPEC.toml`` or ``SPEC.toml#GRADER``; its rubric grader marks the criteria.
    ``budget_usd``: what its judge may cost. ``startup_patience_s``: how long to wait for a judge
    that has never been reached.
    """

    target: str
    data: Path
    responses: Path
    folder: Path
    by: JoinBy = "prompt"
    budget_usd: float | None = None
    startup_patience_s: float = 0.0
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
    spec, grader = load_rubric_grader_spec(job.target)
    items = read_healthbench_items(job.data, job.by)
    answers, problems = read_healthbench_answers(job.responses, job.by)
    pairs = _join_answers(job, items, answers)
    manifest = _build_manifest(job, items, spec.hash)
    with open_benchmark_folder(job.folder, manifest) as folder:
        asked = [pair for pair in pairs if not pair[1].failure]
        graded = grade_rollouts(_build_grading_job(job, spec, asked)) if asked else None
        details = {} if graded is None else _grader_details(graded, asked, grader)
        samples = [_score_sample(item, one, details) for item, one in pairs]
        JsonlLog(folder.path / "scores.jsonl").rewrite(samples)
        judge = {"spec": spec.where, "grader": grader, "hash": spec.hash}
        job.summary = {
            **describe_writer(),
            "benchmark": "healthbench",
            "data": str(job.data),
            "responses": str(job.responses),
            "by": job.by,
            "judge": judge,
            "prompts": len(items),
            **summarise_healthbench(samples),
            "missing": _first_missing(samples),
            **_coverage(items, answers),
            "problems": [msgspec.to_builtins(one) for one in problems],
            "calls": [] if graded is None else graded.summary["endpoints"],
            "spending": {} if graded is None else graded.summary["spending"],
            "resumed_results": 0 if graded is None else graded.summary["resumed_results"],
            "seconds": round(time.perf_counter() - started, 1),
        }
        folder.write_json("summary.json", job.summary)
        write_healthbench_page(folder.path / "report.html", job.summary)
    return job.summary


def _build_manifest(
    job: HealthbenchJob, items: Sequence[HealthbenchItem], spec_hash: str
) -> dict[str, Any]:
    content = "\n".join(f"{one.place} {rubric_digest(one.rubric)}" for one in items)
    return {
        "kind": "healthbench",
        "label": job.responses.stem,
        "models": [str(job.responses.resolve()), spec_hash],
        "prompts": sha256(encode_exactly(content)).hexdigest()[:16],
        "by": job.by,
    }


def estimate_healthbench(job: HealthbenchJob) -> JudgeCallEstimate:
    """What the judge would be asked; no call is made, and nothing is kept.

    Raises as :func:`evaluate_healthbench` does for what cannot be evaluated.
    """
    spec, _ = load_rubric_grader_spec(job.target)
    answers, _ = read_healthbench_answers(job.responses, job.by)
    pairs = _join_answers(job, read_healthbench_items(job.data, job.by), answers)
    with TemporaryDirectory() as folder:
        asked = [pair for pair in pairs if not pair[1].failure]
        grading = _build_grading_job(replace(job, folder=Path(folder)), spec, asked)
        samples, groups, rows = read_first_samples(grading, _ESTIMATE_ROWS)
        return estimate_run_calls(spec, samples, groups, rows)


def _join_answers(
    job: HealthbenchJob, items: Sequence[HealthbenchItem], answers: Sequence[PromptResponse]
) -> list[_ItemAnswer]:
    places: dict[JoinKey, HealthbenchItem] = {item.place: item for item in items}
    pairs = [(places[one.place], one) for one in answers if one.place in places]
    if not pairs:
        raise unjoined_error(job.responses, job.data, job.by)
    return pairs


def _build_grading_job(job: HealthbenchJob, spec: Any, pairs: Sequence[_ItemAnswer]) -> GradingJob:
    rollouts = job.folder / "rollouts.jsonl"
    JsonlLog(rollouts).rewrite(_rollout_row(item, one) for item, one in pairs)
    return GradingJob(
        paths=[rollouts],
        spec=spec,
        folder=job.folder / _GRADING,
        show_progress=job.show_progress,
        budget_usd=job.budget_usd,
        startup_patience_s=job.startup_patience_s,
    )


def _rollout_row(item: HealthbenchItem, answer: PromptResponse) -> dict[str, Any]:
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


def _grader_details(
    graded: GradedRun, pairs: Sequence[_ItemAnswer], grader: str
) -> dict[tuple[str, int], dict[str, Any]]:
    """What the grader said of each sample that could be asked about."""
    found = {}
    for (item, answer), row in zip(pairs, graded, strict=True):
        found[item.place, answer.sample] = (row.result.details or {}).get(grader) or {}
    return found


def _score_sample(
    item: HealthbenchItem, answer: PromptResponse, details: dict[tuple[str, int], dict[str, Any]]
) -> MarkedSample:
    if answer.failure:
        return build_missing_sample(item, answer, answer.failure, "the response could not be made")
    return mark_sample(item, answer, details[item.place, answer.sample])


def _first_missing(samples: Sequence[MarkedSample]) -> list[dict[str, Any]]:
    """The samples without a score, the widest interval first."""
    without = [one for one in samples if one.score is None]
    without.sort(key=lambda one: (one.low - one.high, one.key, one.sample))
    named = ("key", "sample", "kind", "reason", "low", "high")
    return [{name: getattr(one, name) for name in named} for one in without[:MOST_NAMED]]


def _coverage(
    items: Sequence[HealthbenchItem],
    answers: Sequence[PromptResponse],
) -> dict[str, Any]:
    places = {item.place for item in items}
    answered = {one.place for one in answers}
    without = [item.key for item in items if item.place not in answered]
    strays = sorted(one.line for one in answers if one.place not in places)
    return {
        "without_response": count_and_first(without),
        "strays": count_and_first(strays),
        "cut_by_length": sum(one.cut for one in answers if one.place in places),
    }
