"""Evaluation in a chain: a trained judge on unseen preferences, and the gold of the built-in task.

The judge is asked through ``adjudge serve``. :class:`CapitalGold` says what answers about capitals
are really worth, for runs that watch what their judge misses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from adjudge.client.grader import ServedGrader
from adjudge.datasets.rows import Comparison, Preference, render_transcript, split_answers
from adjudge.datasets.sources import is_on_hub, resolve_data_file
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeUnavailable
from adjudge.files import JsonlLog
from adjudge.graders.base import RuleGrader
from adjudge.graders.llm.trained_judge_card import CARD_FILE, SPEC_FILE, JudgeCard, read_card
from adjudge.installation import install_command
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    count_missing_kinds,
)
from adjudge.judge_evaluation.benchmarks.judges import (
    BenchmarkJudge,
    ask_judge,
    spec_judge,
)
from adjudge.judge_evaluation.benchmarks.readers import pair_item, read_benchmark
from adjudge.judge_evaluation.benchmarks.scoring import (
    BenchmarkReport,
    BenchmarkScore,
    score_benchmark,
)
from adjudge.judges.models.local import LocalChatModel
from adjudge.rewards.spec import RewardSpec
from adjudge.types import GraderScore
from adjudge_lab.judge_training.chain.file import EvaluateStage, ResolvedStage
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.rl.rewards import format_toml
from adjudge_lab.synthetic import (
    COUNTRY_CAPITALS,
    SyntheticSettings,
    capital_question,
    gold_score,
    synthetic_comparisons,
    synthetic_preferences,
)

_COUNTRY_BY_PROMPT = {capital_question(country): country for country in COUNTRY_CAPITALS}


class CapitalGold(RuleGrader):
    """The gold of made-up preferences about capitals, read from any text: fact, naming, manner.

    Range [0, 4]. Fields: ``prompt`` and ``response``, both text. ``invalid_input`` for a prompt
    that does not ask for one of the known capitals.
    """

    type_name = "capital_gold"
    score_range = (0.0, 4.0)

    def evaluate(self, prompt: str, response: str) -> GraderScore:
        """The score of one answer."""
        country = _COUNTRY_BY_PROMPT.get(prompt.strip())
        if country is None:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, "the prompt asks for none of the known capitals"
            )
        return self._score(float(gold_score(country, response)))


_MAX_CONCURRENCY = 32
_TIMEOUT_S = 120.0


def evaluate_trained_judge(
    check: EvaluateStage, beside: Path, folder: Path, on_progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Ask the judge about every pair, write judgements.jsonl into ``folder``; the summary.

    ``beside`` is what relative paths start from. A scalar judge is asked for its raw outputs, the
    scale that Bradley-Terry calibrates. Made-up pairs that it was trained on are left out
    and counted. What it could not say is missing and counted by its kind. Raises
    :class:`ConfigError` for a judge or files that cannot be used, and
    :class:`~adjudge.errors.JudgeUnavailable` where it answered nothing.
    """
    started = time.perf_counter()
    at = beside / check.judge
    card = read_card(at)
    benchmark, facts = _load_benchmark(check, beside, card)
    count = len(benchmark.items)
    on_progress("asking", 0, count)
    with _serve_judge(at, card, folder) as judge:
        judgements = run_blocking(ask_judge(judge, benchmark, max_concurrency=_MAX_CONCURRENCY))
    on_progress("asking", count, count)
    if not any(judgement.complete for judgement in judgements):
        kinds = ", ".join(f"{kind} {n}" for kind, n in count_missing_kinds(judgements).items())
        raise JudgeUnavailable(f"{at}: the judge answered nothing ({kinds})")
    JsonlLog(folder / "judgements.jsonl").rewrite(judgements)
    is_scalar = card.kind == "scalar"
    report = score_benchmark(benchmark, judgements, scale="logits" if is_scalar else None)
    seconds = {"total": round(time.perf_counter() - started, 1)}
    return {
        "benchmark": benchmark.title or benchmark.kind,
        "judge": card.label,
        **_report_data(report),
        "unusable": len(benchmark.problems),
        **facts,
        "served": is_scalar,
        "seconds": seconds,
    }


def check_stage_inputs(stage: ResolvedStage, folder: Path) -> None:
    """Raise :class:`ConfigError` for a file, or a judge, that a stage needs and that is not there.

    What earlier stages leave lies in ``folder``, the chain's, and is not looked for yet.
    """
    match stage.file:
        case JudgeFile() as judge:
            names = [*judge.data.train, *judge.data.val]
            needed = judge.files([name for name in names if not is_on_hub(name)])
        case EvaluateStage() as check:
            files = [stage.beside / name for name in check.files if not is_on_hub(name)]
            needed = [*files, stage.beside / check.judge / CARD_FILE]
        case _:
            return  # a run looks at its own
    for path in needed:
        if not path.absolute().is_relative_to(folder.absolute()) and not path.is_file():
            raise ConfigError(f"{stage.where}: {path}: there is no such file")


def check_serving_libraries() -> None:
    """Raise :class:`ConfigError` where a library that serving takes is missing."""
    try:
        import adjudge.service.server  # noqa: F401, PLC0415  (brings a web server)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"[stages.evaluate] needs {error.name}, which is not installed. Run: "
            + install_command("server")
        ) from None


@contextmanager
def _serve_judge(at: Path, card: JudgeCard, folder: Path) -> Iterator[BenchmarkJudge]:
    """The judge in the folder ``at``: a scalar one behind a service, its outputs as they are."""
    if card.kind != "scalar":
        spec = RewardSpec.load(at / SPEC_FILE)
        models = spec.build_judges()
        try:
            yield spec_judge(spec, judges=models)
        finally:  # later stages need the memory
            for model in models.values():
                if isinstance(model, LocalChatModel):
                    run_blocking(model.aclose())
        return
    from adjudge.service.server import start_service  # noqa: PLC0415  (brings a web server)

    raw = folder / "judge.toml"
    raw.write_text(format_toml(_raw_score_spec(at)), encoding="utf-8")
    with start_service(str(raw), deadline_s=_TIMEOUT_S) as url:
        grader = ServedGrader(url, timeout=_TIMEOUT_S, max_concurrent_requests=_MAX_CONCURRENCY)
        yield BenchmarkJudge(card.label, grader)


def _raw_score_spec(at: Path) -> dict[str, Any]:
    return {
        "graders": [{"name": "output", "type": "scalar"}],
        "judges": {"main": {"type": "local", "model": str(at.resolve()), "task": "score"}},
        "reward": {"normalise": False},
    }


def _load_benchmark(
    check: EvaluateStage, beside: Path, card: JudgeCard
) -> tuple[Benchmark, dict[str, Any]]:
    """The items, and what is known about their labels where they are made up."""
    if check.synthetic is None:
        files = [resolve_data_file(name, beside) for name in check.files]
        return read_benchmark(files, None), {}
    made = synthetic_preferences(check.synthetic)
    known = set(map(_sorted_texts, _made_training_pairs(card)))
    kept = [place for place, row in enumerate(made.rows) if _sorted_texts(row) not in known]
    if not kept:
        raise ConfigError(
            "synthetic: the judge was trained on all of these pairs. Change the seed."
        )
    items = [pair_item(made.rows[place], None, "all") for place in kept]
    chances = [max(made.chances[place].values()) for place in kept]
    title = f"made-up preferences, seed {check.synthetic.seed}"
    facts = {
        "bayes_accuracy": math.fsum(chances) / len(chances),
        "left_out": len(made.rows) - len(kept),
        "synthetic": check.synthetic.model_dump(),
    }
    return Benchmark(kind="preference", items=items, title=title), facts


def _made_training_pairs(card: JudgeCard) -> Sequence[Preference | Comparison]:
    """The pairs of the judge's training that were made up, made again."""
    if not (dials := card.data.get("synthetic")):
        return []
    settings = SyntheticSettings(**dials)
    if card.method == "bradley_terry":
        return synthetic_preferences(settings).rows
    return synthetic_comparisons(settings).rows if card.mode == "pairwise" else []


def _sorted_texts(row: Preference | Comparison) -> tuple[str, ...]:
    """What was asked and both answers, in an order of their own, whoever won."""
    prompt, answers = split_answers(row)
    return render_transcript(prompt), *sorted(map(render_transcript, answers))


def _report_data(report: BenchmarkReport) -> dict[str, Any]:
    """The scores as plain data, as far as a chain's page shows them."""

    def part(one: BenchmarkScore) -> dict[str, Any]:
        return {
            "accuracy_of_answered": one.score,
            "low": one.at_least,
            "high": one.at_most,
            "items": one.items,
            "answered": one.answered,
            "missing": one.missing,
            "interval": {"low": one.low, "high": one.high, "why": one.why},
            "failures": one.failures,
        }

    return {
        "overall": part(report.overall),
        "why": report.why,
        "subsets": {name: part(one) for name, one in report.subsets.items()},
        "calibration": msgspec.to_builtins(report.calibration),
        "lengths": msgspec.to_builtins(report.lengths),
    }
