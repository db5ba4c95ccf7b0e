"""A chain's evaluation: a trained judge, asked through ``adjudge serve``, on unseen preferences."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from adjudge.client.grader import ServedGrader
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.judge_training.benchmarks.asking import ask_judge
from adjudge.judge_training.benchmarks.items import Benchmark, PairItem
from adjudge.judge_training.benchmarks.judgements import missing_kinds, write_judgements
from adjudge.judge_training.benchmarks.judges import GraderScores, Judge, spec_judge
from adjudge.judge_training.benchmarks.read import read_benchmark
from adjudge.judge_training.benchmarks.report import BenchmarkReport, score_benchmark
from adjudge.judge_training.card import CARD, SPEC, Card, read_card
from adjudge.judge_training.chain.file import Check, Stage
from adjudge.judge_training.data.hub import data_file, is_on_hub
from adjudge.judge_training.data.rows import Comparison, Preference, answers_of, spoken
from adjudge.judge_training.data.synthetic import preferences
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.validating.contamination import contamination_of, made_up_rows
from adjudge.judge_training.validating.materials import Material, file_facts
from adjudge.judge_training.validating.summary import contamination_entry
from adjudge.judges.local import LocalChatModel
from adjudge.rewards.spec import RewardSpec
from adjudge.training.served import toml_text

__all__ = ["check_inputs", "check_judge", "check_libraries"]

_AT_ONCE = 32
_TIMEOUT_S = 120.0


def check_judge(
    check: Check, beside: Path, folder: Path, on_progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Ask the judge about every pair, write judgements.jsonl into ``folder``; the summary.

    ``beside`` is what relative paths start from. A scalar judge is asked for its raw outputs, the
    scale that Bradley-Terry calibrates. Made-up pairs that it, or a judge that it was trained from,
    was trained on are left out and counted; items of files that it has seen are counted
    (``contamination``). What it could not say is missing and counted by its kind. Raises
    :class:`ConfigError` for a judge or files that cannot be used, and
    :class:`~adjudge.errors.JudgeUnavailable` where it answered nothing.
    """
    started = time.perf_counter()
    at = beside / check.judge
    card = read_card(at)
    benchmark, facts = _benchmark(check, beside, at, card)
    count = len(benchmark.items)
    on_progress("asking", 0, count)
    with _judge(at, card, folder) as judge:
        judgements = run_blocking(ask_judge(judge, benchmark, max_concurrency=_AT_ONCE))
    on_progress("asking", count, count)
    if not any(judgement.complete for judgement in judgements):
        kinds = ", ".join(f"{kind} {n}" for kind, n in missing_kinds(judgements).items())
        raise JudgeUnavailable(f"{at}: the judge answered nothing ({kinds})")
    write_judgements(folder / "judgements.jsonl", judgements)
    is_scalar = card.kind == "scalar"
    report = score_benchmark(
        benchmark,
        judgements,
        judge=card.label,
        scale="logits" if is_scalar else None,
        contaminated=facts.get("contamination", {}).get("items"),
        seed=check.seed,
    )
    seconds = {"total": round(time.perf_counter() - started, 1)}
    return {**_told(report), **facts, "served": is_scalar, "seconds": seconds}


def check_inputs(stage: Stage, folder: Path) -> None:
    """Raise :class:`ConfigError` for a file, or a judge, that a stage needs and that is not there.

    What earlier stages leave lies in ``folder``, the chain's, and is not looked for yet.
    """
    match stage.file:
        case JudgeFile() as judge:
            names = [*judge.data.train, *judge.data.val]
            needed = judge.files([name for name in names if not is_on_hub(name)])
        case Check() as check:
            files = [stage.beside / name for name in check.files if not is_on_hub(name)]
            needed = [*files, stage.beside / check.judge / CARD]
        case _:
            return  # a run looks at its own
    for path in needed:
        if not path.absolute().is_relative_to(folder.absolute()) and not path.is_file():
            raise ConfigError(f"{stage.where}: {path}: no such file")


def check_libraries() -> None:
    """Raise :class:`ConfigError` where a library that serving takes is missing."""
    try:
        import adjudge.service.serving  # noqa: F401, PLC0415  (brings a web server)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"[stages.evaluate] needs {error.name}: pip install 'adjudge[server]'"
        ) from None


@contextmanager
def _judge(at: Path, card: Card, folder: Path) -> Iterator[Judge]:
    """The judge in the folder ``at``: a scalar one behind a service, its outputs as they are."""
    if card.kind != "scalar":
        spec = RewardSpec.load(at / SPEC)
        models = spec.build_judges()
        try:
            yield spec_judge(spec, judges=models)
        finally:  # later stages need the memory
            for model in models.values():
                if isinstance(model, LocalChatModel):
                    run_blocking(model.aclose())
        return
    from adjudge.service.serving import start_service  # noqa: PLC0415  (brings a web server)

    raw = folder / "judge.toml"
    raw.write_text(toml_text(_raw(at)), encoding="utf-8")
    with start_service(str(raw), deadline_s=_TIMEOUT_S) as url:
        grader = ServedGrader(url, timeout=_TIMEOUT_S, max_concurrent_requests=_AT_ONCE)
        yield GraderScores(grader, card.label)


def _raw(at: Path) -> dict[str, Any]:
    return {
        "graders": [{"name": "output", "type": "scalar"}],
        "judges": {"main": {"type": "local", "model": str(at.resolve()), "task": "score"}},
        "reward": {"normalise": False},
    }


def _benchmark(
    check: Check, beside: Path, at: Path, card: Card
) -> tuple[Benchmark, dict[str, Any]]:
    """The items, and what is known about their labels, or whether the judge has seen them."""
    if check.synthetic is None:
        files = [data_file(name, beside) for name in check.files]
        found = read_benchmark(files, check.benchmark)
        material = Material(found, [file_facts(path) for path in files])
        return found, {"contamination": contamination_entry(contamination_of(material, at, card))}
    made = preferences(check.synthetic.settings())
    rows = made_up_rows(at, card)
    known = {_texts(row) for row in rows if isinstance(row, Preference | Comparison)}
    kept = [place for place, row in enumerate(made.rows) if _texts(row) not in known]
    if not kept:
        raise ConfigError("synthetic: the judge was trained on all of these pairs; change the seed")
    items = [_item(made.rows[place]) for place in kept]
    chances = [max(made.chances[place].values()) for place in kept]
    title = f"made-up preferences, seed {check.synthetic.seed}"
    facts = {
        "bayes_accuracy": math.fsum(chances) / len(chances),
        "left_out": len(made.rows) - len(kept),
        "synthetic": check.synthetic.model_dump(),
    }
    return Benchmark(kind="preference", items=items, title=title), facts


def _texts(row: Preference | Comparison) -> tuple[str, ...]:
    """What was asked and both answers, in an order of their own, whoever won."""
    prompt, answers = answers_of(row)
    return spoken(prompt), *sorted(map(spoken, answers))


def _item(row: Preference) -> PairItem:
    return PairItem(
        id=row.where,
        subset=row.subset or "all",
        prompt=list(row.chosen[:-1]),
        a=list(row.chosen[-1:]),
        b=list(row.rejected[-1:]),
        label="A",
        where=row.where,
        margin=row.margin,
    )


def _told(report: BenchmarkReport) -> dict[str, Any]:
    """The report as plain data, as far as a chain's page shows it."""
    plain = msgspec.to_builtins(report)

    def part(one: dict[str, Any]) -> dict[str, Any]:
        return {**one["share"], "interval": one["interval"], "failures": one["failures"]}

    return {
        "benchmark": report.benchmark,
        "judge": report.judge,
        "overall": part(plain["overall"]),
        "why": report.why,
        "subsets": {name: part(one) for name, one in plain["subsets"].items()},
        "calibration": plain["calibration"],
        "lengths": plain["lengths"],
        "unusable": len(report.unusable),
    }
