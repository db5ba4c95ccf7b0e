"""Graders of probes whose answers a test makes up: read for what they take, never asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from adjudge.errors import ErrorKind
from adjudge.graders.base import BaseGrader
from adjudge.judge_evaluation.probes.bench import ProbeBench, ProbedGrader, ProbeQuestion
from adjudge.judge_evaluation.probes.items import (
    ProbeItem,
    ProbeTopic,
    choose_topics,
    shipped_items,
)
from adjudge.judge_evaluation.probes.probe import ProbeFinding, evaluate_probe
from adjudge.judge_evaluation.probes.run import PROBES
from adjudge.types import GraderError, GraderResult, GraderScore

Answering = Callable[[ProbeItem, ProbeQuestion], GraderResult | float]


def count_words(text: str) -> int:
    """Runs of letters and digits; a Chinese character is a word."""
    return len(re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text))


class Scorer(BaseGrader):
    score_range = (0.0, 10.0)

    async def aevaluate(self, prompt: str, response: str) -> float:
        raise NotImplementedError


class Referring(BaseGrader):
    score_range = (0.0, 10.0)

    async def aevaluate(self, response: str, reference: str) -> float:
        raise NotImplementedError


def refused(*_: object) -> GraderError:
    return GraderError("g", ErrorKind.REFUSED, "no")


def probed(
    name: str,
    grader: BaseGrader,
    answer: Answering,
    topics: list[ProbeTopic] | None = None,
    *,
    threshold: float | None = None,
    **options: Any,
) -> ProbeFinding:
    """What a probe finds where ``answer`` says what ``grader`` would have answered."""
    topics = choose_topics(shipped_items()) if topics is None else topics
    bench = ProbeBench(ProbedGrader(grader), topics, **options)
    if not PROBES[name].obstacle(bench):
        PROBES[name].measure(bench)
    answers: dict[ProbeQuestion, GraderResult] = {}
    for question in bench.questions:
        found = answer(bench.item_of(question), question)
        answers[question] = GraderScore("g", found) if isinstance(found, float) else found
    bench.answers = answers
    return evaluate_probe(PROBES[name], bench, threshold=threshold)
