"""`adjudge eval judge` as a run: its folder, its job, and asking, scoring and comparing the judges.

The folder is claimed for one set of judges and items, and gone on with by the same. The job
(judges, items, how they are asked) is checked before anybody is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import check_allowed
from adjudge.datasets.files import hash_content
from adjudge.datasets.sources import resolve_data_file
from adjudge.engine.loop import run_blocking
from adjudge.errors import PASSING_KINDS, ConfigError, ErrorKind, JudgeUnavailable
from adjudge.files import JsonlLog
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BenchmarkItem,
    Judgement,
    MissingJudgement,
    PairItem,
    PairVerdict,
    benchmark_as_pairs,
    first_failure_messages,
    item_digest,
    pair_verdicts,
)
from adjudge.judge_evaluation.benchmarks.judges import (
    JUDGEMENTS_FILE,
    Candidate,
    EvaluationMode,
    RecordedJudgement,
    ask_judge,
    find_candidate,
)
from adjudge.judge_evaluation.benchmarks.page import write_validation_report
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge.judge_evaluation.benchmarks.scoring import (
    benchmark_entry,
    compare_judges,
    comparison_entry,
    judge_entry,
    judged_pairs,
    score_benchmark,
)
from adjudge.judge_evaluation.benchmarks.statistics import (
    ScoreScale,
    calibration_metrics,
    score_differences,
)
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Progress, Tally
from adjudge.runs.folder import RunFolder
from adjudge.runs.judge_calls import JudgeCallEstimate
from adjudge.runs.spending import FolderSpending
from adjudge.version import __version__

ITEMS_FILE = "rewards.jsonl"
"""Named as in the folder of a graded run, which readers of runs look for."""

_IDENTITY = {
    "judges": "other judges",
    "items": "other items (--data, --benchmark)",
    "asked": "other settings (--as-pairs)",
}


@dataclass
class ValidationJob:
    """Which judges are validated on what, and where it goes.

    ``judges``: one, or several on the same items: names as
    :func:`~adjudge.judge_evaluation.benchmarks.judges.find_candidate` takes them.
    ``data``: files; may be left out where a judge is a recording with its items.
    ``kind``: that of the benchmark, told from the files by default. ``as_pairs``: of RewardBench-2
    its right and wrong answers in pairs. ``scale``: of scores whose judge does not say.
    ``summary`` and ``judgements`` (by judge) are what comes out.
    """

    judges: Sequence[str]
    folder: Path
    data: Sequence[str] = ()
    kind: str | None = None
    as_pairs: bool = False
    scale: ScoreScale | None = None
    show_progress: bool = False
    summary: dict[str, Any] = field(default_factory=dict)
    judgements: dict[str, list[Judgement]] = field(default_factory=dict)


def find_candidates(
    job: ValidationJob, meters: Sequence[JudgeCallEstimate] | None = None
) -> list[Candidate]:
    """The judges, each under a name of its own; raises :class:`ConfigError` for one twice.

    ``meters``: one for each of them, where their calls are only counted.
    """
    found = [
        find_candidate(one, meter)
        for one, meter in zip(job.judges, meters or repeat(None), strict=False)
    ]
    seen: dict[str, str] = {}
    names: set[str] = set()
    for one in found:
        if one.identity in seen:
            raise ConfigError(f"--against {one.name}: is the same judge as {seen[one.identity]}")
        seen[one.identity] = one.name
        one.name = _unique_name(one.name, names)
    return found


def _unique_name(name: str, names: set[str]) -> str:
    number, free = 2, name
    while free in names:
        number, free = number + 1, f"{name} ({number})"
    names.add(free)
    return free


def find_benchmark(job: ValidationJob, candidates: Sequence[Candidate]) -> Benchmark:
    """The items; raises :class:`ConfigError` where there are none, or not of the kind asked for."""
    found = _read_files(job) if job.data else _recorded_items(job, candidates)
    found = benchmark_as_pairs(found) if job.as_pairs else found
    if not found.items:
        raise ConfigError("--as-pairs: the Ties subset has no pairs. Leave --as-pairs out.")
    return found


def _read_files(job: ValidationJob) -> Benchmark:
    paths = [resolve_data_file(name, Path()) for name in job.data]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("--data: names the same file twice")
    found = read_benchmark(paths, job.kind)
    files = [{"file": str(path)} | hash_content(path) for path in paths]
    return msgspec.structs.replace(found, files=files)


def _recorded_items(job: ValidationJob, candidates: Sequence[Candidate]) -> Benchmark:
    """The items that a recording brings along."""
    recordings = [one.recording for one in candidates if one.recording is not None]
    found = next((one.benchmark for one in recordings if one.benchmark is not None), None)
    if found is None:
        raise ConfigError(
            "--data: is required, because only recorded verdicts of LLMBar or JudgeBench bring "
            "their items along. Give files of the benchmark."
        )
    if job.kind is not None:
        check_allowed("--benchmark", job.kind, [found.kind], "is not that of the recorded items")
    files = [{"file": "recorded", "bytes": 0, "sha256": _items_hash(found)}]
    return msgspec.structs.replace(found, files=files)


def _items_hash(benchmark: Benchmark) -> str:
    return sha256("".join(map(item_digest, benchmark.items)).encode()).hexdigest()


def candidate_mode(one: Candidate, benchmark: Benchmark) -> EvaluationMode:
    """How a judge is asked, or was; raises :class:`ConfigError` where it cannot be."""
    if one.judge is None:
        return "pointwise" if one.recording and one.recording.scores else "pairwise"
    if one.judge.mode == "pairwise" and benchmark.kind == "rewardbench2":
        raise ConfigError(
            f"judge {one.name}: compares pairs, but rewardbench2 scores every answer by itself. "
            "Use --as-pairs to ask about its items as pairs (not the benchmark's own protocol)."
        )
    return one.judge.mode


def evaluate_judge(
    job: ValidationJob,
    folder: RunFolder,
    benchmark: Benchmark,
    one: Candidate,
    mode: EvaluationMode,
    place: int,
) -> dict[str, Any]:
    """One judge asked (or read) and scored: its entry of the summary."""
    tally = Tally(sum(len(item.conversations) for item in benchmark.items))
    if one.recording is not None:
        judgements = one.recording.judgements_for(benchmark)
    else:
        judgements = _ask_or_resume(job, folder, benchmark, one, place, tally)
    job.judgements[one.name] = judgements
    scale = one.scale or job.scale
    return judge_entry(
        score_benchmark(benchmark, judgements, judge=one.name, scale=scale),
        benchmark,
        calibrated=_card_calibration(one, benchmark, judgements),
        kind=one.kind,
        mode=mode,
        scale=scale,
        folder=None if one.folder is None else str(one.folder),
        questions=tally.total,
        resumed=tally.resumed,
        first_failures=first_failure_messages(judgements),
    )


def _card_calibration(
    one: Candidate, benchmark: Benchmark, judgements: Sequence[Judgement]
) -> dict[str, Any] | None:
    """How well the probabilities of a scalar judge's own card fit; ``None`` where it has none."""
    own = None if one.card is None else one.card.calibration
    if one.kind != "scalar" or own is None or own.method is None:
        return None
    chances = [own.probability(by) for by in score_differences(judged_pairs(benchmark, judgements))]
    return {"by": own.method, **msgspec.to_builtins(calibration_metrics(chances))}


def _ask_or_resume(
    job: ValidationJob,
    folder: RunFolder,
    benchmark: Benchmark,
    one: Candidate,
    place: int,
    tally: Tally,
) -> list[Judgement]:
    assert one.judge is not None  # noqa: S101  (else it is a recording)
    identity = sha256(one.identity.encode()).hexdigest()[:16]
    journal = Journal(folder.path / f"answers-{place + 1}.jsonl", identity)
    try:
        with Progress(tally, show=job.show_progress, title=one.name):
            return run_blocking(
                ask_judge(
                    one.judge,
                    benchmark,
                    max_concurrency=one.concurrency,
                    journal=journal,
                    tally=tally,
                )
            )
    finally:
        journal.flush()
        for model in one.local_models:
            run_blocking(model.aclose())


def validate_judges(job: ValidationJob) -> dict[str, Any]:
    """Ask, score and compare; the summary.

    Writes ``judgements.jsonl`` (a line an item and judge), ``rewards.jsonl`` (a line an item, for
    ``adjudge view``), ``summary.json`` and ``report.html``. A folder that holds the same validation
    is gone on with: what was answered is not asked again, what failed is. Raises
    :class:`~adjudge.errors.RunFolderError` for any other folder,
    :class:`~adjudge.errors.ConfigError` for what cannot be validated,
    :class:`~adjudge.errors.JudgeAuthError` for a refused key, and, after writing,
    :class:`~adjudge.errors.JudgeUnavailable` where a judge answered nothing because it was away.
    """
    started = time.perf_counter()
    candidates = find_candidates(job)
    benchmark = find_benchmark(job, candidates)
    modes = [candidate_mode(one, benchmark) for one in candidates]
    with (
        RunFolder(job.folder, _manifest(job, candidates, benchmark), _IDENTITY) as folder,
        FolderSpending(job.folder) as spending,
    ):
        entries = [
            evaluate_judge(job, folder, benchmark, one, mode, place)
            for place, (one, mode) in enumerate(zip(candidates, modes, strict=True))
        ]
        said = _recorded_judgements(benchmark, job.judgements)
        JsonlLog(folder.path / JUDGEMENTS_FILE).rewrite(said)
        JsonlLog(folder.path / ITEMS_FILE).rewrite(_item_rows(benchmark, job.judgements))
        compared = compare_judges(benchmark, job.judgements)
        job.summary = {
            "adjudge": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "benchmark": benchmark_entry(benchmark),
            "judges": entries,
            "compared": [comparison_entry(one) for one in compared],
            "seconds": round(time.perf_counter() - started, 1),
            "endpoints": (endpoints := spending.read()),
            "spending": spending.summarise(endpoints),
        }
        folder.write_json("summary.json", job.summary)
        write_validation_report(folder.path / "report.html", job.summary)
    _check_answered(entries)
    return job.summary


def estimate_validation(job: ValidationJob) -> dict[str, JudgeCallEstimate]:
    """What each judge would be asked, by its name; nobody is asked, and nothing is written.

    A recording is asked nothing, and a scalar judge that is loaded here costs no calls. Raises as
    :func:`validate_judges` does for what cannot be validated.
    """
    meters = [JudgeCallEstimate("outcome") for _ in job.judges]
    candidates = find_candidates(job, meters)
    benchmark = find_benchmark(job, candidates)
    for one in candidates:
        candidate_mode(one, benchmark)
        if one.kind != "scalar" and one.judge is not None:
            run_blocking(ask_judge(one.judge, benchmark))
    return {one.name: meter for one, meter in zip(candidates, meters, strict=True)}


def _manifest(
    job: ValidationJob, candidates: Sequence[Candidate], benchmark: Benchmark
) -> dict[str, Any]:
    return {
        "kind": "validation",
        "label": " against ".join(one.name for one in candidates),
        "judges": [[one.name, one.identity] for one in candidates],
        "items": {"kind": benchmark.kind, "files": [one["sha256"] for one in benchmark.files]},
        "asked": {"as_pairs": job.as_pairs},
    }


def _recorded_judgements(
    benchmark: Benchmark, judgements: Mapping[str, Sequence[Judgement]]
) -> Iterator[RecordedJudgement]:
    """One an item and judge, items in order."""
    for place, item in enumerate(benchmark.items):
        digest = item_digest(item)
        for name, own in judgements.items():
            said = {**msgspec.structs.asdict(own[place]), "judge": name, "item": digest}
            yield RecordedJudgement(**said)


def _item_rows(
    benchmark: Benchmark, judgements: Mapping[str, Sequence[Judgement]]
) -> Iterator[dict[str, Any]]:
    """The items as the rows of a run, each judge as a grader: how far it was right, 0 to 1.

    The environment's reward is that of the label, 1, and the reward is what the first judge says.
    """
    for place, item in enumerate(benchmark.items):
        said = {name: _describe_judgement(item, own[place]) for name, own in judgements.items()}
        first = next(iter(said.values()))
        failed = "error" in first
        missing = {"kind": first["kind"], "message": first["error"]} if failed else None
        scores = {f"{name}_score": one.get("score") for name, one in said.items()}
        yield {
            "index": place,
            "key": item_digest(item),
            "where": item.where,
            "group": f"{item.subset}/{item.id}",
            "env_reward": 1.0,
            "reward": first.get("score"),
            "missing": missing,
            "reward_info": {**scores, "env_reward": 1.0},
            "details": {"source": "graders", **said},
            "messages": [*item.prompt, *_answer_turns(item)],
        }


def _answer_turns(item: BenchmarkItem) -> Iterator[dict[str, str]]:
    """The answers as turns of their own, which say what the label says of them."""
    if isinstance(item, PairItem):
        for side, turns in (("A", item.a), ("B", item.b)):
            better = " (labelled better)" if side == item.label else ""
            texts = [one["content"] for one in turns]
            yield {"role": f"answer {side}{better}", "content": "\n\n".join(map(str, texts))}
        return
    for number, text in enumerate(item.answers, 1):
        right = " (labelled right)" if number <= item.correct else ""
        yield {"role": f"answer {number}{right}", "content": text}


def _describe_judgement(item: BenchmarkItem, said: Judgement) -> dict[str, Any]:
    """A judgement as the row of a grader has it; a pair's verdicts are the better answer's."""
    lost = [one for one in (*said.scores, *said.verdicts) if isinstance(one, MissingJudgement)]
    scores = [one for one in said.scores if not isinstance(one, MissingJudgement)]
    metadata: dict[str, Any] = {}
    worth: float | None = None
    if isinstance(item, PairItem):
        found = pair_verdicts(said)
        worths = [_WORTH[_outcome(item, one)] for one in found if isinstance(one, str)]
        worth = sum(worths) / len(worths) if len(worths) == len(found) else None
        if said.verdicts:
            # As given is here the order in which the better answer stands first.
            shown = found if item.label == "A" else found[::-1]
            orders = dict(zip(("as_given", "swapped"), shown, strict=True))
            verdicts = {o: _outcome(item, one) for o, one in orders.items() if isinstance(one, str)}
            metadata["verdicts"] = verdicts
            if lost:
                metadata["failures"] = {
                    order: one.kind.value
                    for order, one in orders.items()
                    if isinstance(one, MissingJudgement)
                }
    elif not lost:
        best = [
            number <= item.correct for number, one in enumerate(scores, 1) if one == max(scores)
        ]
        worth = sum(best) / len(best)
    if scores and not lost:
        metadata["scores"] = scores
    base = {"metadata": metadata} if metadata else {}
    if worth is None:
        why = lost[0] if lost else MissingJudgement(ErrorKind.INCOMPLETE)
        return {"error": why.message, "kind": why.kind.value, **base}
    return {"score": worth, "reason": "", **base}


_WORTH = {"win": 1.0, "tie": 0.5, "loss": 0.0}


def _outcome(item: PairItem, verdict: PairVerdict) -> str:
    """What a verdict is for the answer that is labelled better."""
    return "tie" if verdict == "tie" else "win" if verdict == item.label else "loss"


def _check_answered(entries: Sequence[Mapping[str, Any]]) -> None:
    """A judge that was away throughout was not validated."""
    for entry in entries:
        overall = entry["overall"]
        kinds = {*overall["failures"]}
        away = kinds and kinds <= {kind.value for kind in PASSING_KINDS}
        gone = sum(overall["failures"].values())
        if entry["kind"] != "recorded" and away and gone == entry["questions"]:
            why = "; ".join(f"{kind}: {said}" for kind, said in entry["first_failures"].items())
            raise JudgeUnavailable(f"{entry['name']} answered nothing ({why})")
