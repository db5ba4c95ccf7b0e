"""What a benchmark asks of a judge, and graders and specs asked in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.benchmark_samples import is_right_sample_answer, write_sample

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.graders.base import FunctionGrader
from adjudge.graders.llm.comparison import PairwiseGrader
from adjudge.graders.llm.numeric_scores import ScalarGrader
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BenchmarkKind,
    Judgement,
    MissingJudgement,
    PairItem,
    PairVerdict,
    read_judgements,
    write_judgements,
)
from adjudge.judge_evaluation.benchmarks.judges import (
    BenchmarkJudge,
    EvaluationMode,
    GraderComparisons,
    ask_judge,
    grader_judge,
    spec_judge,
)
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge.judge_evaluation.benchmarks.scoring import BenchmarkReport, score_benchmark
from adjudge.judges import Reply, ScriptedModel
from adjudge.rewards.spec import RewardSpec
from adjudge.types import GraderError, GraderMode, Message


def sample(tmp_path: Path, kind: BenchmarkKind) -> Benchmark:
    return read_benchmark([write_sample(tmp_path / f"{kind}.jsonl", kind)])


def asked(
    judge: BenchmarkJudge, benchmark: Benchmark, mode: EvaluationMode | None = None
) -> list[Judgement]:
    return asyncio.run(ask_judge(judge, benchmark, mode=mode))


def report_of(judge: BenchmarkJudge, benchmark: Benchmark) -> BenchmarkReport:
    return score_benchmark(benchmark, asked(judge, benchmark), resamples=20)


class Knowing:
    """Scores right answers 1 and wrong ones 0."""

    async def score(self, messages: Sequence[Message]) -> float | GraderError:
        return float(is_right_sample_answer(messages[-2]["content"], messages[-1]["content"]))


class Comparing:
    """Prefers the right answer."""

    async def compare(self, prompt: Sequence[Message], a: str, b: str) -> PairVerdict | GraderError:
        right = (
            is_right_sample_answer(prompt[-1]["content"], a),
            is_right_sample_answer(prompt[-1]["content"], b),
        )
        return "tie" if right[0] == right[1] else "A" if right[0] else "B"


class First:
    """Prefers what is shown first."""

    async def compare(self, prompt: Sequence[Message], a: str, b: str) -> PairVerdict | GraderError:
        return "A"


class Alike:
    """Scores everything alike."""

    async def score(self, messages: Sequence[Message]) -> float | GraderError:
        return 3.0


class Failing:
    """Does what it was made to do."""

    def __init__(self, failure: Any) -> None:
        self.failure = failure

    async def compare(self, prompt: Sequence[Message], a: str, b: str) -> PairVerdict | GraderError:
        if isinstance(self.failure, Exception):
            raise self.failure
        return self.failure  # type: ignore[no-any-return]  # wrong on purpose in some tests


def test_judges_of_known_quality_on_rewardbench2(tmp_path: Path) -> None:
    benchmark = sample(tmp_path, "rewardbench2")
    knowing = report_of(Knowing(), benchmark)
    # Right answers score alike, so that m_c = 0 and the tie-breaker is 1.
    assert knowing.overall.share.accuracy_of_answered == pytest.approx((5 + 1.01) / 6)
    alike = report_of(Alike(), benchmark)
    assert alike.overall.share.accuracy_of_answered == pytest.approx(5 * 0.25 / 6)
    assert alike.subsets["Ties"].share.accuracy_of_answered == 0.0


@pytest.mark.parametrize("kind", ["llmbar", "judgebench", "preference"])
def test_judges_of_known_quality_on_pairs(tmp_path: Path, kind: BenchmarkKind) -> None:
    benchmark = sample(tmp_path, kind)
    for judge in (Knowing(), Comparing()):
        found = report_of(judge, benchmark)
        assert found.overall.share.accuracy_of_answered == 1.0
        assert found.overall.orders is not None
        assert found.overall.orders.consistency == 1.0
    first = report_of(First(), benchmark)
    assert first.overall.share.accuracy_of_answered == (0.0 if kind == "judgebench" else 0.5)
    assert first.overall.orders is not None
    assert first.overall.orders.primacy == len(benchmark.items)
    assert first.overall.orders.consistency == 0.0
    assert first.overall.orders.position_p is not None
    assert first.overall.orders.position_p < 0.001
    alike = report_of(Alike(), benchmark)
    assert alike.overall.share.accuracy_of_answered == (0.5 if kind == "preference" else 0.0)


def test_a_judge_that_does_both_compares_unless_told_otherwise(tmp_path: Path) -> None:
    class Both(Knowing, First):
        pass

    benchmark = sample(tmp_path, "llmbar")
    assert asked(Both(), benchmark)[0].verdicts
    assert asked(Both(), benchmark, "pointwise")[0].scores


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (GraderError("x", ErrorKind.UNPARSABLE, "no verdict"), ErrorKind.UNPARSABLE),
        (GradingFailure(ErrorKind.TIMEOUT, "late"), ErrorKind.TIMEOUT),
        (ZeroDivisionError(), ErrorKind.BUG),
        ("C", ErrorKind.BUG),
        (None, ErrorKind.BUG),
        (1.0, ErrorKind.BUG),
    ],
)
def test_failures_are_missing_with_their_kind(
    tmp_path: Path, failure: Any, kind: ErrorKind
) -> None:
    benchmark = sample(tmp_path, "llmbar")
    found = report_of(Failing(failure), benchmark)
    assert found.overall.failures == {kind.value: 2 * len(benchmark.items)}
    assert found.overall.share.accuracy_of_answered is None
    assert (found.overall.share.low, found.overall.share.high) == (0.0, 1.0)


def test_what_a_judge_says_of_its_failure_can_be_written_down(tmp_path: Path) -> None:
    benchmark = sample(tmp_path, "llmbar")
    judged = asked(Failing(GraderError("j", ErrorKind.BUG, "half a sign: \ud800")), benchmark)
    write_judgements(tmp_path / "judgements.jsonl", judged)
    assert read_judgements(tmp_path / "judgements.jsonl", Judgement) == judged


def test_what_stops_a_run(tmp_path: Path) -> None:
    benchmark = sample(tmp_path, "llmbar")
    with pytest.raises(ConfigError, match="no such model"):
        asked(Failing(ConfigError("no such model")), benchmark)
    with pytest.raises(JudgeAuthError):
        asked(Failing(GradingFailure(ErrorKind.AUTH, "key refused")), benchmark)


def test_scores_that_are_no_numbers_are_missing(tmp_path: Path) -> None:
    class Odd:
        async def score(self, messages: Sequence[Message]) -> Any:
            return {0: float("nan"), 1: 1e200, 2: "4"}[len(messages[-1]["content"]) % 3]

    benchmark = sample(tmp_path, "preference")
    judged = asked(Odd(), benchmark)
    assert all(isinstance(score, MissingJudgement) for one in judged for score in one.scores)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RewardBench-2 scores every answer by itself"):
        asked(First(), sample(tmp_path, "rewardbench2"))
    with refuses("mode"):
        asked(Knowing(), sample(tmp_path, "llmbar"), "pairwise")
    listwise = FunctionGrader(lambda response: 1.0, "ranks", mode=GraderMode.LISTWISE)
    with pytest.raises(ConfigError, match="'ranks': ranks groups"):
        grader_judge(listwise)
    pairwise = PairwiseGrader(ScriptedModel("A"), "pairs")
    with pytest.raises(ConfigError, match="'pairs': mapper"):
        grader_judge(pairwise, mapper={"query": "q"})


def test_pairs_that_cannot_be_compared_are_missing_and_asked_nowhere() -> None:
    turn = [{"role": "assistant", "content": "r"}]
    user = [{"role": "user", "content": "q"}]
    item = PairItem(
        id="1", subset="s", prompt=user, a=turn, b=[*turn, *user, *turn], label="A", where="x:1"
    )
    benchmark = Benchmark(kind="preference", items=[item])
    [judged] = asked(Failing(ConfigError("was asked")), benchmark)
    kinds = [one.kind for one in judged.verdicts if isinstance(one, MissingJudgement)]
    assert kinds == [ErrorKind.INVALID_INPUT] * 2
    [judged] = asked(Alike(), benchmark)
    assert judged.scores == [3.0, 3.0]


def test_a_pairwise_grader_is_asked_once_an_order(tmp_path: Path) -> None:
    calls: list[str] = []

    def reply(messages: Any) -> str:
        calls.append(messages[-1]["content"])
        return '{"better": "B"}'

    judge = grader_judge(PairwiseGrader(ScriptedModel(reply)))
    assert isinstance(judge, GraderComparisons)
    prompt = [{"role": "user", "content": "What is 2 plus 3?"}]
    assert asyncio.run(judge.compare(prompt, "five-shown-first", "six-shown-second")) == "B"
    assert len(calls) == 1
    assert calls[0].index("five-shown-first") < calls[0].index("six-shown-second")
    assert "What is 2 plus 3?" in calls[0]
    benchmark = sample(tmp_path, "llmbar")
    found = report_of(judge, benchmark)
    assert len(calls) == 1 + 2 * len(benchmark.items)
    assert found.overall.orders is not None
    assert found.overall.orders.recency == len(benchmark.items)


def test_a_pairwise_grader_keeps_its_own_rules() -> None:
    judge = GraderComparisons(PairwiseGrader(ScriptedModel("nothing to read")))
    prompt = [{"role": "user", "content": "q"}]
    for a, b, verdict in (
        ("x", "x", "tie"),
        ("x", " ", "A"),
        ("", "x", "B"),
        ("<think>never ends", "x", "B"),
        ("<think>so</think>x", "x", "tie"),
    ):
        assert asyncio.run(judge.compare(prompt, a, b)) == verdict
    with pytest.raises(GradingFailure) as failed:
        asyncio.run(judge.compare(prompt, "x", "y"))
    assert failed.value.kind is ErrorKind.UNPARSABLE


def test_a_scalar_judge_sees_the_conversation(tmp_path: Path) -> None:
    def output(messages: Any) -> Reply:
        right = is_right_sample_answer(messages[-2]["content"], messages[-1]["content"])
        return Reply(text='{"score": %s}' % (1.5 if right else -1.5), finish_reason="score")

    judge = grader_judge(ScalarGrader(ScriptedModel(output)))
    found = report_of(judge, sample(tmp_path, "judgebench"))
    assert found.overall.share.accuracy_of_answered == 1.0


def test_a_spec_has_one_judge_or_names_it(tmp_path: Path) -> None:
    def spec_of(weight: float) -> RewardSpec:
        long = {"name": "long", "type": "length_penalty"}
        other = {"name": "other", "type": "ngram_repetition", "weight": weight}
        return RewardSpec.from_dict({"graders": [long, other], "reward": {"normalise": False}})

    with refuses("spec"):
        spec_judge(spec_of(1.0))
    with refuses("spec"):
        spec_judge(spec_of(1.0), "another")
    judged = asked(spec_judge(spec_of(1.0), "long"), sample(tmp_path, "preference"))
    assert all(isinstance(score, float) for one in judged for score in one.scores)
    assert getattr(spec_judge(spec_of(0.0)), "name", "") == "long"


def test_a_mapper_moves_fields(tmp_path: Path) -> None:
    def number(text: str) -> float:
        return float(len(text))

    judge = grader_judge(FunctionGrader(number, "length"), mapper={"text": "response"})
    benchmark = sample(tmp_path, "preference")
    [item] = benchmark.items[:1]
    assert isinstance(item, PairItem)
    assert item.texts is not None
    assert asked(judge, benchmark)[0].scores == [float(len(text)) for text in item.texts]
