"""What a benchmark asks of a judge, and graders and specs asked in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.benchmark_samples import write_sample

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.files import JsonlLog
from adjudge.graders.base import FunctionGrader
from adjudge.graders.llm.comparison import PairwiseGrader
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BenchmarkItem,
    BenchmarkKind,
    Judgement,
    MissingJudgement,
    read_judgements,
)
from adjudge.judge_evaluation.benchmarks.judges import BenchmarkJudge, ask_judge, spec_judge
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge.judge_evaluation.benchmarks.scoring import score_benchmark
from adjudge.judges import ScriptedModel
from adjudge.rewards.spec import RewardSpec
from adjudge.types import GraderError

TURN = [{"role": "assistant", "content": "r"}]
USER = [{"role": "user", "content": "q"}]


def sample(tmp_path: Path, kind: BenchmarkKind) -> Benchmark:
    return read_benchmark([write_sample(tmp_path / f"{kind}.jsonl", kind)])


def scoring(function: Callable[..., Any], **more: Any) -> BenchmarkJudge:
    return BenchmarkJudge("scores", FunctionGrader(function, "scores"), **more)


def comparing(reply: Any) -> BenchmarkJudge:
    return BenchmarkJudge("pairs", PairwiseGrader(ScriptedModel(reply)))


def asked(judge: BenchmarkJudge, benchmark: Benchmark) -> list[Judgement]:
    return asyncio.run(ask_judge(judge, benchmark))


def pair_of(a: str, b: str | list[Any]) -> Benchmark:
    said = [{"role": "assistant", "content": b}] if isinstance(b, str) else b
    first = [{"role": "assistant", "content": a}]
    item = BenchmarkItem(
        id="1", subset="s", prompt=USER, answers=[first, said], right=[True, False], where="x:1"
    )
    return Benchmark(kind="preference", items=[item])


ALIKE = scoring(lambda response: 3.0)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (GraderError("x", ErrorKind.UNPARSABLE, "half a sign: \ud800"), ErrorKind.UNPARSABLE),
        (GradingFailure(ErrorKind.TIMEOUT, "late"), ErrorKind.TIMEOUT),
        (ZeroDivisionError(), ErrorKind.BUG),
        ("4", ErrorKind.BUG),
        (None, ErrorKind.BUG),
        (float("nan"), ErrorKind.OUT_OF_RANGE),
        (1e200, ErrorKind.OUT_OF_RANGE),
    ],
)
def test_failures_are_missing_with_their_kind(tmp_path: Path, answer: Any, kind: ErrorKind) -> None:
    def fail(response: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    benchmark = sample(tmp_path, "llmbar")
    judged = asked(scoring(fail), benchmark)
    found = score_benchmark(benchmark, judged, resamples=2).overall
    assert found.failures == {kind.value: 2 * len(benchmark.items)}
    assert found.score is None
    assert (found.at_least, found.at_most) == (0.0, 1.0)
    JsonlLog(tmp_path / "judgements.jsonl").rewrite(judged)  # whatever it said of its failure
    assert read_judgements(tmp_path / "judgements.jsonl") == judged


@pytest.mark.parametrize(
    ("stop", "kind"),
    [
        (ConfigError("no such model"), ConfigError),
        (GradingFailure(ErrorKind.AUTH, "key refused"), JudgeAuthError),
    ],
)
def test_what_stops_a_run(tmp_path: Path, stop: Exception, kind: type[Exception]) -> None:
    def fail(response: str) -> float:
        raise stop

    with pytest.raises(kind):
        asked(scoring(fail), sample(tmp_path, "llmbar"))


def test_pairs_that_cannot_be_compared_are_missing_and_asked_nowhere() -> None:
    benchmark = pair_of("r", [*TURN, *USER, *TURN])
    [judged] = asked(comparing(lambda _: pytest.fail("was asked")), benchmark)
    kinds = [one.kind for one in judged.verdicts if isinstance(one, MissingJudgement)]
    assert kinds == [ErrorKind.INVALID_INPUT] * 2
    [judged] = asked(ALIKE, benchmark)
    assert judged.scores == [3.0, 3.0]


def test_a_pairwise_grader_is_asked_once_an_order() -> None:
    calls: list[str] = []

    def reply(messages: Any) -> str:
        calls.append(messages[-1]["content"])
        return '{"better": "B"}'

    [judged] = asked(comparing(reply), pair_of("five-is-a", "six-is-b"))
    assert judged.verdicts == ["B", "A"]
    assert [one.index("five-is-a") < one.index("six-is-b") for one in calls] == [True, False]


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ("x", "x", "tie"),
        ("x", " ", "A"),
        ("", "x", "B"),
        ("<think>never ends", "x", "B"),
        ("<think>so</think>x", "x", "tie"),
        ("x", "y", ErrorKind.UNPARSABLE),
    ],
)
def test_a_pairwise_grader_keeps_its_own_rules(a: str, b: str, verdict: Any) -> None:
    [judged] = asked(comparing("nothing to read"), pair_of(a, b))
    assert [getattr(one, "kind", one) for one in judged.verdicts] == [verdict] * 2


def spec_of(*graders: dict[str, Any]) -> RewardSpec:
    judges = {name: {"type": "scripted", "script": name} for name in ("main", "more")}
    table = {"graders": list(graders), "judges": judges, "reward": {"normalise": False}}
    return RewardSpec.from_dict(table)


LONG = {"name": "long", "type": "length_penalty"}
OTHER = {"name": "other", "type": "ngram_repetition"}
PAIRS = {"name": "pairs", "type": "pairwise", "judge": "main"}


@pytest.mark.parametrize(
    ("graders", "name", "key"),
    [
        ([LONG, OTHER], None, "grader"),
        ([LONG, OTHER], "another", "grader"),
        ([{**PAIRS, "mapper": {"query": "prompt"}}], None, "mapper"),
        ([{**PAIRS, "judge": ["main", "more"]}], None, "grader 'pairs'"),
        ([{**PAIRS, "type": "listwise"}], None, "grader 'pairs'"),
    ],
)
def test_a_spec_without_one_judge_is_refused(graders: Any, name: str | None, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        spec_judge(spec_of(*graders), name)


@pytest.mark.parametrize(
    ("graders", "name", "found"),
    [
        ([LONG, OTHER], "long", "long"),
        ([LONG, {**OTHER, "weight": 0.0}], None, "long"),
        ([LONG, PAIRS], None, "pairs"),
        ([{**PAIRS, "type": "tournament"}], None, "pairs"),
    ],
)
def test_the_judge_of_a_spec(graders: Any, name: str | None, found: str, tmp_path: Path) -> None:
    judge = spec_judge(spec_of(*graders), name)
    assert judge.name == found
    [judged] = asked(judge, pair_of("a", "b"))
    assert judged.complete or found == "pairs"
    assert judge.mode == ("pairwise" if found == "pairs" else "pointwise")


def test_a_mapper_moves_fields() -> None:
    judge = scoring(lambda text: float(len(text)), mapper={"text": "response"})
    assert asked(judge, pair_of("four", "sixsix"))[0].scores == [4.0, 6.0]
