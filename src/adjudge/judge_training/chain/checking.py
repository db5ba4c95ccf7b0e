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
from adjudge.judge_training.card import SPEC, Card, read_card
from adjudge.judge_training.chain.file import Check
from adjudge.judge_training.data.rows import Preference
from adjudge.judge_training.data.synthetic import SyntheticSettings, preferences
from adjudge.judge_training.judge_tables import Synthetic
from adjudge.rewards.spec import RewardSpec
from adjudge.training.served import toml_text

__all__ = ["check_judge", "check_libraries"]

_AT_ONCE = 32
_TIMEOUT_S = 120.0


def check_judge(
    check: Check, beside: Path, folder: Path, on_progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Ask the judge about every pair, write judgements.jsonl into ``folder``; the summary.

    ``beside`` is what relative paths start from. A scalar judge is asked for its raw outputs, the
    scale that Bradley-Terry calibrates. Made-up pairs that it was trained on are left out and
    counted. What it could not say is missing and counted by its kind. Raises
    :class:`ConfigError` for a judge or files that cannot be used, and
    :class:`~adjudge.errors.JudgeUnavailable` where it answered nothing.
    """
    started = time.perf_counter()
    at = beside / check.judge
    card = read_card(at)
    benchmark, facts = _benchmark(check, beside, card)
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
        seed=check.seed,
    )
    seconds = {"total": round(time.perf_counter() - started, 1)}
    return {**_told(report), **facts, "served": is_scalar, "seconds": seconds}


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
        yield spec_judge(RewardSpec.load(at / SPEC))
        return
    from adjudge.service.serving import start_service  # noqa: PLC0415  (brings a web server)

    spec = folder / "judge.toml"
    spec.write_text(toml_text(_raw(at)), encoding="utf-8")
    with start_service(str(spec), deadline_s=_TIMEOUT_S) as url:
        grader = ServedGrader(url, timeout=_TIMEOUT_S, max_concurrent_requests=_AT_ONCE)
        yield GraderScores(grader, card.label)


def _raw(at: Path) -> dict[str, Any]:
    return {
        "graders": [{"name": "output", "type": "scalar"}],
        "judges": {"main": {"type": "local", "model": str(at.resolve()), "task": "score"}},
        "reward": {"normalise": False},
    }


def _benchmark(check: Check, beside: Path, card: Card) -> tuple[Benchmark, dict[str, Any]]:
    """The items, and what is known about their labels."""
    if check.synthetic is None:
        files = [beside / name for name in check.files]
        return read_benchmark(files, check.benchmark), {}
    made = preferences(check.synthetic.settings())
    known = _trained_on(card)
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


def _trained_on(card: Card) -> set[tuple[str, str]]:
    """Both texts of each made-up pair that the judge was trained or validated on."""
    dials = card.config.get("data", {}).get("synthetic")
    if card.method != "bradley_terry" or dials is None:
        return set()
    settings: SyntheticSettings = Synthetic.model_validate(dials).settings()
    return {_texts(row) for row in preferences(settings).rows}


def _texts(row: Preference) -> tuple[str, str]:
    """The two conversations' last words in an order of their own, whoever won."""
    asked = row.chosen[0]["content"]
    first, second = sorted(str(side[-1]["content"]) for side in (row.chosen, row.rejected))
    return f"{asked}\n{first}", second


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
