"""A whole IFEval evaluation: responses generated or read, judged, compared, and written as a page.

Whatever prompts, files and models are called is escaped everywhere on the page.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.files import is_parquet
from adjudge.errors import PASSING_KINDS, ConfigError, GradingFailure, JudgeUnavailable
from adjudge.judge_evaluation.benchmarks.page import score_cells, score_columns
from adjudge.judges.base import Reply
from adjudge.report.page import (
    Element,
    Section,
    bold,
    format_integer,
    format_number,
    format_range,
    notes_section,
    paragraph,
    render_page,
)
from adjudge.report.table import Column, Table, numeric
from adjudge.stats.estimates import DEFAULT_RESAMPLES
from adjudge.version import describe_writer
from adjudge_lab.evaluation.ifeval.files import (
    ResponsesFile,
    check_parquet_origin,
    check_parquet_prompts,
    open_benchmark_folder,
    read_ifeval_prompts,
    read_ifeval_responses,
    write_response_parquet,
)
from adjudge_lab.evaluation.ifeval.generation import (
    GenerationSettings,
    check_generation,
    generate_responses,
    generation_identity,
)
from adjudge_lab.evaluation.ifeval.scoring import (
    IFEVAL_READINGS,
    JudgedResponses,
    compare_ifeval_models,
    compute_ifeval_metrics,
    judge_responses,
)
from adjudge_lab.evaluation.responses import (
    MOST_LINES,
    MOST_NAMED,
    FileProblem,
    JoinBy,
    PromptResponse,
    ReplyKey,
    count_and_first,
    plural,
    problem_lines,
    unjoined_error,
)
from adjudge_lab.evaluation.targets import PolicyTarget

_SummaryEntry = Mapping[str, Any]


def model_headline(one: _SummaryEntry) -> str:
    """A model's name, and over what it was judged."""
    fewest, most = one["samples"]
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    means = "" if most <= 1 else f", {count} samples each, their mean"
    return f"{one['name']}: {plural(one['prompts'], 'prompt')}{means}"


def ifeval_missing_lines(one: _SummaryEntry) -> list[str]:
    """What of a model's responses is in no accuracy, or was read in part, a line each."""
    lines = []
    if gone := one["without_response"]["count"]:
        named = _first_names(one["without_response"])
        lines.append(f"{plural(gone, 'prompt')} without a response (key {named})")
    if kinds := one["failures"]["by_kind"]:
        said = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
        total = plural(sum(kinds.values()), "response")
        lines.append(f"{total} could not be made or judged: {said}")
        lines += one["failures"]["first"][:MOST_LINES]
    if strays := one["strays"]["count"]:
        named = _first_names(one["strays"])
        lines.append(f"{plural(strays, 'response')} to no prompt of the benchmark (line {named})")
    if one["samples"][0] != one["samples"][1]:
        lines.append("not every prompt has as many samples; each counts with its own mean")
    if cut := one["cut_by_length"]:
        lines.append(f"{plural(cut, 'judged response')} ended by the length limit")
    return lines + problem_lines(one["problems"])


def _first_names(some: _SummaryEntry) -> str:
    named = ", ".join(str(value)[:40] for value in some["first"][:MOST_LINES])
    return named + (", …" if some["count"] > MOST_LINES else "")


_LEVELS = (("prompt", "Pr"), ("instruction", "Ins"))
_SHARES = (*_LEVELS, ("mean", "Mean"))
_READINGS = (("strict", "S"), ("loose", "L"))


def write_ifeval_page(path: Path, summary: _SummaryEntry) -> None:
    """Write the page to ``path``, UTF-8."""
    models = summary["models"]
    found: list[tuple[str, str, object]] = [
        ("scores", "Accuracies", map(accuracy_table, models)),
        ("compared", "Compared", difference_table(summary)),
        ("types", "By category and type", map(parts_table, models)),
        ("missing", "Not counted", _missing_lines(summary)),
    ]
    sections = [Section(key, title, content, title) for key, title, content in found]
    html = render_page(
        "IFEval", _facts(summary), [*sections, notes_section("adjudge_lab.evaluation.ifeval")]
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: _SummaryEntry) -> list[tuple[str, str]]:
    return [
        ("Models", ", ".join(one["name"] for one in summary["models"])),
        ("Prompts", f"{format_integer(summary['prompts'])} of {summary['data']}"),
        ("Joined by", summary["by"]),
        ("Took", f"{summary['seconds']:g} s"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def accuracy_table(one: _SummaryEntry) -> Table:
    """A model's accuracies."""
    rows = [
        [
            name,
            *_share_cells(share, name),
            f"{format_number(share['least'])} to {format_number(share['most'])}",
        ]
        for reading, letter in _READINGS
        for level, short in _SHARES
        for name, share in [(f"{short}({letter})", one[reading][level])]
    ]
    columns = ["", *score_columns("share"), *numeric("of"), Column("least to most", "i")]
    return Table(columns, rows, caption=model_headline(one), keep=("share", "of"))


def _share_cells(one: _SummaryEntry, label: str) -> list[object]:
    cells = score_cells(one["value"], one["low"], one["high"], one["why"], label)
    return [*cells, format_integer(one["n"])]


def parts_table(one: _SummaryEntry) -> Table:
    """A category a row, its types under it."""
    rows = []
    for category in one["strict"]["by_category"]:
        cells = _strict_and_loose_cells(one, "by_category", category)
        rows.append([bold(category), *cells])
        for name in one["strict"]["by_type"]:
            own, _, rest = name.partition(":")
            if own == category:
                rows.append([rest, *_strict_and_loose_cells(one, "by_type", name)])
    columns = [*score_columns("strict"), *numeric("loose"), Column("95 %", "i"), *numeric("of")]
    return Table(["", *columns], rows, caption=one["name"], keep=("strict", "loose"))


def _strict_and_loose_cells(one: _SummaryEntry, part: str, name: str) -> list[object]:
    *strict, of = _share_cells(one["strict"][part][name], name)
    loose = one["loose"][part][name]
    interval = format_range(loose["low"], loose["high"], loose["why"])
    return [*strict, format_number(loose["value"], 4), interval, of]


def difference_table(summary: _SummaryEntry) -> Table:
    """The differences of each two models."""
    columns = ["", "", *numeric("first", "second", "difference"), Column("95 %", "i"),
               *numeric("p", "only it / only other", "McNemar p", "prompts")]  # fmt: skip
    rows = [
        [
            f"{one['a']} against {one['b']}",
            f"{dict(_LEVELS)[one['level']]}({dict(_READINGS)[one['reading']]})",
            *(format_number(one[key], 4) for key in ("value_a", "value_b", "difference")),
            format_range(one["low"], one["high"], one["why"]),
            format_number(one["p"], 4),
            "–" if one["only_a"] is None else f"{one['only_a']:,} / {one['only_b']:,}",
            format_number(one["mcnemar_p"], 4),
            format_integer(one["prompts"]),
        ]
        for one in summary["compared"]
    ]
    return Table(columns, rows, drop=("McNemar p", "prompts", "first", "second"))


def _missing_lines(summary: _SummaryEntry) -> list[Element]:
    return [
        paragraph(bold(one["name"]), f": {line}")
        for one in summary["models"]
        for line in ifeval_missing_lines(one)
    ]


RESPONSES_FILE = "responses.jsonl"
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


@dataclass
class IfevalJob:
    """What is to be evaluated, and where it goes.

    ``candidates``: models to generate with, and files of responses. ``responses_to``: where the
    responses of the one model are kept, instead of its folder (a Parquet file: where they also go,
    as verl writes them). ``on_progress(stage, done, total)`` hears of responses; ``summary`` is
    the result.
    """

    data: Path
    folder: Path
    candidates: Sequence[PolicyTarget | Path]
    by: JoinBy = "prompt"
    how: GenerationSettings = field(default_factory=GenerationSettings)
    responses_to: Path | None = None
    resamples: int = DEFAULT_RESAMPLES
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
    job.prompts = read_ifeval_prompts(job.data, job.by)
    _check_job(job)
    with open_benchmark_folder(job.folder, _build_manifest(job)) as folder:
        entries, models = [], []
        for place, candidate in enumerate(job.candidates):
            entry, judged = _evaluate_candidate(job, candidate, place)
            entries.append(entry)
            models.append((entry["name"], judged))
        metrics = compute_ifeval_metrics([one for _, one in models], resamples=job.resamples)
        entries = [entry | one for entry, one in zip(entries, metrics, strict=True)]
        job.summary = {
            **describe_writer(),
            "benchmark": "ifeval",
            "data": str(job.data),
            "prompts": len(job.prompts),
            "by": job.by,
            "models": entries,
            "compared": compare_ifeval_models(models, resamples=job.resamples),
            "seconds": round(time.perf_counter() - started, 1),
        }
        folder.write_json("summary.json", job.summary)
        write_ifeval_page(folder.path / "report.html", job.summary)
    return job.summary


def _check_job(job: IfevalJob) -> None:
    """What is wrong is said before anything is generated."""
    whole = [_candidate_identity(one) for one in job.candidates]
    if twice := [one for one in whole if whole.count(one) > 1]:
        raise ConfigError(f"{twice[0]}: is given twice. Give it once.")
    if job.responses_to is not None and is_parquet(job.responses_to):
        check_parquet_prompts(job.responses_to, job.prompts)
    for one in job.candidates:
        if isinstance(one, PolicyTarget):
            check_generation(one, job.how)
        elif not one.is_file():
            raise ConfigError(f"{one}: no such file")


def _candidate_identity(candidate: PolicyTarget | Path) -> str:
    return candidate.identity if isinstance(candidate, PolicyTarget) else str(candidate.resolve())


def _candidate_names(candidates: Sequence[PolicyTarget | Path]) -> list[str]:
    """What each is called: short where that tells them apart."""
    whole = [one.name if isinstance(one, PolicyTarget) else str(one) for one in candidates]
    short = [
        name
        if isinstance(one, PolicyTarget) and one.kind not in ("folder", "embedded")
        else Path(name).stem
        if isinstance(one, Path)
        else Path(name).name
        for one, name in zip(candidates, whole, strict=True)
    ]
    return short if len(set(short)) == len(short) and all(short) else whole


def _build_manifest(job: IfevalJob) -> dict[str, Any]:
    prompts = sha256(json.dumps(job.prompts, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "kind": "ifeval",
        "label": " against ".join(_candidate_names(job.candidates)),
        "models": [_candidate_identity(one) for one in job.candidates],
        "prompts": prompts,
        "by": job.by,
    }


def _evaluate_candidate(
    job: IfevalJob, candidate: PolicyTarget | Path, place: int
) -> tuple[dict[str, Any], JudgedResponses]:
    """One candidate's entry in the summary, its files written."""
    name = _candidate_names(job.candidates)[place]
    own = _model_folder(job, place, name)
    made: dict[str, Any] | None = None
    if isinstance(candidate, PolicyTarget):
        table = job.responses_to if job.responses_to and is_parquet(job.responses_to) else None
        path = own / RESPONSES_FILE if table else job.responses_to or own / RESPONSES_FILE
        responses, problems, made = _generate_missing(job, candidate, path, table)
    else:
        path = candidate
        responses, problems = read_ifeval_responses(path, job.by)

    def report_progress(done: int, total: int) -> None:
        job.on_progress(_stage_name(job, "judging", place), done, total)

    judged = judge_responses(job.prompts, responses, by=job.by, on_progress=report_progress)
    _refuse_unjudged(job, name, judged)
    _write_results(own, job, judged)
    entry = {
        "name": name,
        "kind": candidate.kind if isinstance(candidate, PolicyTarget) else "file",
        "responses": str(path),
        "generated": made,
        **_coverage(judged, problems),
    }
    return entry, judged


def _model_folder(job: IfevalJob, place: int, name: str) -> Path:
    """Where the files of one model go: the job's folder, or with several one in it for each."""
    if len(job.candidates) == 1:
        return job.folder
    slug = _UNSAFE.sub("-", name)[-60:].strip("-.") or "model"
    return job.folder / f"{place + 1}-{slug}"


def _stage_name(job: IfevalJob, what: str, place: int) -> str:
    return what if len(job.candidates) == 1 else f"{what} {place + 1}"


def _generate_missing(
    job: IfevalJob, target: PolicyTarget, path: Path, table: Path | None
) -> tuple[list[PromptResponse], list[FileProblem], dict[str, Any]]:
    """The model's responses to all prompts, made now as far as the file does not have them."""
    file = ResponsesFile(path, generation_identity(target, job.how))
    if table is not None:
        check_parquet_origin(table, file.origin)
    keys = {row["prompt"]: row.get("key") for row in job.prompts}
    wanted: list[ReplyKey] = [(p, k) for k in range(job.how.n_samples) for p in keys]
    todo = [one for one in wanted if not file.has(one)]
    stage = _stage_name(job, "generating", job.candidates.index(target))
    done = len(wanted) - len(todo)
    job.on_progress(stage, done, len(wanted))

    def keep(one: ReplyKey, said: Reply | GradingFailure) -> None:
        nonlocal done
        file.append_response(keys[one[0]], one, said)
        done += 1
        job.on_progress(stage, done, len(wanted))

    generate_responses(target, job.how, todo, keep)
    file.sort(wanted)
    failures = file.failures(wanted)
    if len(failures) == len(wanted):
        _refuse_failures(target, failures)
    asked = {row[job.by] for row in job.prompts}
    found, _ = read_ifeval_responses(path, job.by)
    ours = [one for one in found if one.place in asked and one.sample < job.how.n_samples]
    if table is not None:
        write_response_parquet(table, job.prompts, ours, job.by, made_by=file.origin)
    made = {**msgspec.to_builtins(job.how), "made": len(todo), "kept": len(wanted) - len(todo)}
    return ours, file.problems, made


def _refuse_failures(target: PolicyTarget, failures: Sequence[Mapping[str, Any]]) -> None:
    message = f"{target.name}: the model gave no response: {failures[0]['message']}"
    if {one["kind"] for one in failures} <= {kind.value for kind in PASSING_KINDS}:
        raise JudgeUnavailable(message)
    raise ConfigError(message)


def _refuse_unjudged(job: IfevalJob, name: str, judged: JudgedResponses) -> None:
    if judged.rows:
        return
    if judged.failed:
        raise ConfigError(f"{name}: no response could be judged: {judged.failed[0]}")
    raise unjoined_error(name, job.data, job.by)


def _coverage(judged: JudgedResponses, problems: Sequence[FileProblem]) -> dict[str, Any]:
    """What is in the accuracies, and what is in none."""
    return {
        "prompts": len(judged.rows),
        "responses_judged": sum(map(len, judged.rows.values())),
        "samples": list(judged.samples),
        "cut_by_length": judged.cut,
        "without_response": count_and_first(judged.without_response),
        "failures": {"by_kind": dict(judged.failures), "first": judged.failed[:MOST_NAMED]},
        "strays": count_and_first(judged.strays),
        "problems": [msgspec.to_builtins(one) for one in problems],
    }


def _write_results(own: Path, job: IfevalJob, judged: JudgedResponses) -> None:
    """The rows as the published code writes them; with several samples each has its number."""
    own.mkdir(parents=True, exist_ok=True)
    several = judged.samples[1] > 1
    for reading in IFEVAL_READINGS:
        with (own / f"eval_results_{reading}.jsonl").open("w", encoding="utf-8") as file:
            for prompt in job.prompts:
                for sample, row in sorted(judged.rows.get(prompt[job.by], {}).items()):
                    number = {"sample": sample} if several else {}
                    file.write(json.dumps(row.output(reading) | number) + "\n")
