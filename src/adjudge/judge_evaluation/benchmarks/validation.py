"""`adjudge eval judge` as a run: its folder, its job, and asking, scoring and comparing the judges.

The folder is claimed for one set of judges and items, and gone on with by the same. The job
(judges, items, how they are asked) is checked before anybody is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import check_allowed
from adjudge.datasets.files import hash_content
from adjudge.datasets.sources import resolve_data_file
from adjudge.engine.loop import run_blocking
from adjudge.errors import PASSING_KINDS, ConfigError, ErrorKind, JudgeUnavailable
from adjudge.files import JsonlLog
from adjudge.graders.llm.trained_judge_card import read_card
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BenchmarkItem,
    Judgement,
    MissingJudgement,
    benchmark_as_pairs,
    first_failure_messages,
    item_digest,
)
from adjudge.judge_evaluation.benchmarks.judges import (
    JUDGEMENTS_FILE,
    Candidate,
    ask_judge,
    find_candidate,
)
from adjudge.judge_evaluation.benchmarks.measures import (
    ScoreScale,
    best_of_credit,
    calibration_metrics,
    score_differences,
)
from adjudge.judge_evaluation.benchmarks.page import write_validation_report
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge.judge_evaluation.benchmarks.scoring import (
    benchmark_entry,
    compare_judges,
    judged_pairs,
    score_benchmark,
)
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Progress, Tally
from adjudge.runs.folder import RunFolder
from adjudge.runs.judge_calls import JudgeCallEstimate
from adjudge.runs.spending import FolderSpending
from adjudge.stats import mean_of_all
from adjudge.version import describe_writer

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


def _prepare(
    job: ValidationJob, meters: Iterable[JudgeCallEstimate | None] = repeat(None)
) -> tuple[list[Candidate], Benchmark]:
    """The judges, each under a name of its own, and the items.

    ``meters``: one for each judge, where their calls are only counted. Raises
    :class:`ConfigError` for a judge twice, for no items, and where the two do not go together.
    """
    candidates = [find_candidate(*one) for one in zip(job.judges, meters, strict=False)]
    judges: dict[str, Candidate] = {}
    for one in candidates:
        if same := judges.get(one.identity):
            raise ConfigError(f"--against {one.name}: is the same judge as {same.name}")
        taken = {other.name for other in judges.values()}
        names = chain([one.name], (f"{one.name} ({number})" for number in count(2)))
        one.name = next(name for name in names if name not in taken)
        judges[one.identity] = one
    found = _read_items(job, candidates)
    found = benchmark_as_pairs(found) if job.as_pairs else found
    if not found.items:
        raise ConfigError("--as-pairs: the Ties subset has no pairs. Leave --as-pairs out.")
    for one in candidates:
        if one.judge and one.mode == "pairwise" and found.kind == "rewardbench2":
            raise ConfigError(
                f"judge {one.name}: compares pairs, but rewardbench2 scores every answer by "
                "itself. Use --as-pairs to ask about its items as pairs (not the benchmark's own "
                "protocol)."
            )
    return candidates, found


def _read_items(job: ValidationJob, candidates: Sequence[Candidate]) -> Benchmark:
    """Those of the files, else those that a recording brings along."""
    if job.data:
        paths = [resolve_data_file(name, Path()) for name in job.data]
        if len({path.resolve() for path in paths}) < len(paths):
            raise ConfigError("--data: names the same file twice")
        found = read_benchmark(paths, job.kind)
        files = [{"file": str(path)} | hash_content(path) for path in paths]
        return msgspec.structs.replace(found, files=files)
    brought = next((one.benchmark for one in candidates if one.benchmark is not None), None)
    if brought is None:
        raise ConfigError(
            "--data: is required, because only recorded verdicts of LLMBar or JudgeBench bring "
            "their items along. Give files of the benchmark."
        )
    if job.kind is not None:
        check_allowed("--benchmark", job.kind, [brought.kind], "is not that of the recorded items")
    digest = sha256("".join(map(item_digest, brought.items)).encode()).hexdigest()
    files = [{"file": "recorded", "bytes": 0, "sha256": digest}]
    return msgspec.structs.replace(brought, files=files)


def _evaluate(
    job: ValidationJob, folder: RunFolder, benchmark: Benchmark, one: Candidate, place: int
) -> dict[str, Any]:
    """One judge asked (or read) and scored: its entry of the summary."""
    tally = Tally(sum(len(item.answers) for item in benchmark.items))
    if one.judge is None:
        judgements = one.find_recorded(benchmark)
    else:
        identity = sha256(one.identity.encode()).hexdigest()[:16]
        journal = Journal(folder.path / f"answers-{place}.jsonl", identity)
        try:
            with Progress(tally, show=job.show_progress, title=one.name):
                judgements = run_blocking(
                    ask_judge(one.judge, benchmark, one.concurrency, journal=journal, tally=tally)
                )
        finally:
            journal.flush()
            for model in one.local_models:
                run_blocking(model.aclose())
    job.judgements[one.name] = judgements
    scale = one.scale or job.scale
    return {
        "name": one.name,
        "calibrated": _card_calibration(one, benchmark, judgements),
        "kind": one.kind,
        "mode": one.mode,
        "scale": scale,
        "folder": None if one.folder is None else str(one.folder),
        "questions": tally.total,
        "resumed": tally.resumed,
        "first_failures": first_failure_messages(judgements),
        **msgspec.to_builtins(score_benchmark(benchmark, judgements, scale=scale)),
    }


def _card_calibration(
    one: Candidate, benchmark: Benchmark, judgements: Sequence[Judgement]
) -> dict[str, Any] | None:
    """How well the probabilities of a scalar judge's own card fit; ``None`` where it has none."""
    own = read_card(one.folder).calibration if one.folder and one.kind == "scalar" else None
    if own is None or own.method is None:
        return None
    chances = [own.probability(by) for by in score_differences(judged_pairs(benchmark, judgements))]
    return {"by": own.method, **msgspec.to_builtins(calibration_metrics(chances))}


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
    candidates, benchmark = _prepare(job)
    facts = {
        "kind": "validation",
        "label": " against ".join(one.name for one in candidates),
        "judges": [[one.name, one.identity] for one in candidates],
        "items": {"kind": benchmark.kind, "files": [one["sha256"] for one in benchmark.files]},
        "asked": {"as_pairs": job.as_pairs},
    }
    with RunFolder(job.folder, facts, _IDENTITY) as folder, FolderSpending(job.folder) as spending:
        entries = [
            _evaluate(job, folder, benchmark, one, place) for place, one in enumerate(candidates, 1)
        ]
        JsonlLog(folder.path / JUDGEMENTS_FILE).rewrite(
            msgspec.structs.replace(own[place], judge=name, item=item_digest(item))
            for place, item in enumerate(benchmark.items)
            for name, own in job.judgements.items()
        )
        JsonlLog(folder.path / ITEMS_FILE).rewrite(_item_rows(benchmark, job.judgements))
        job.summary = {
            **describe_writer(),
            "benchmark": benchmark_entry(benchmark),
            "judges": entries,
            "compared": msgspec.to_builtins(compare_judges(benchmark, job.judgements)),
            "seconds": round(time.perf_counter() - started, 1),
        }
        spending.on_end(job.summary)
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
    candidates, benchmark = _prepare(job, meters)
    for one in candidates:
        if one.kind != "scalar" and one.judge is not None:
            run_blocking(ask_judge(one.judge, benchmark))
    return {one.name: meter for one, meter in zip(candidates, meters, strict=True)}


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
    pair = len(item.answers) == 2
    for number, (answer, right) in enumerate(zip(item.answers, item.right, strict=True), 1):
        name = "AB"[number - 1] if pair else str(number)
        label = (" (labelled better)" if pair else " (labelled right)") if right else ""
        texts = "\n\n".join(str(turn["content"]) for turn in answer)
        yield {"role": f"answer {name}{label}", "content": texts}


def _describe_judgement(item: BenchmarkItem, said: Judgement) -> dict[str, Any]:
    """A judgement as the row of a grader has it; a pair's verdicts are the better answer's."""
    metadata: dict[str, Any] = {}
    worth: float | None = None
    if said.verdicts:
        # As given is here the order in which the better answer stands first.
        shown = said.verdicts if item.label == "A" else said.verdicts[::-1]
        orders = dict(zip(("as_given", "swapped"), shown, strict=True))
        failures = {o: one.kind.value for o, one in orders.items() if not isinstance(one, str)}
        verdicts = {
            order: "tie" if one == "tie" else "win" if one == item.label else "loss"
            for order, one in orders.items()
            if isinstance(one, str)
        }
        metadata = {"verdicts": verdicts, **({"failures": failures} if failures else {})}
        worth = mean_of_all(_WORTH.get(verdicts.get(order, "")) for order in orders)
    elif (worth := best_of_credit(said.known_scores, item.right)) is not None:
        metadata = {"scores": said.scores}
    base = {"metadata": metadata} if metadata else {}
    if worth is None:
        why = next(iter(said.missing), MissingJudgement(ErrorKind.INCOMPLETE))
        return {"error": why.message, "kind": why.kind.value, **base}
    return {"score": worth, "reason": "", **base}


_WORTH = {"win": 1.0, "tie": 0.5, "loss": 0.0}


def _check_answered(entries: Sequence[Mapping[str, Any]]) -> None:
    """A judge that was away throughout was not validated."""
    for entry in entries:
        failures, passing = entry["overall"]["failures"], {kind.value for kind in PASSING_KINDS}
        gone = entry["kind"] != "recorded" and sum(failures.values()) == entry["questions"]
        if gone and failures.keys() <= passing:
            why = "; ".join(f"{kind}: {said}" for kind, said in entry["first_failures"].items())
            raise JudgeUnavailable(f"{entry['name']} answered nothing ({why})")
