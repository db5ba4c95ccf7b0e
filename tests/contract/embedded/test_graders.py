"""Every grader that asks a judge, on a real small model: a verdict, or a failure that says why."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed here; run `make test-embedded`")

from benchmarks.judge_graders import (
    NO_CHAT,
    Outcome,
    build_judge,
    build_sample as sample,
    chat_graders,
    measure,
)

from adjudge.engine.loop import run_blocking
from adjudge.errors import REDRAW_KINDS, ErrorKind
from adjudge.graders.llm.numeric_scores import ExpectedScoreGrader
from adjudge.judges.endpoint.connections import CallCounter
from adjudge.judges.models.embedded import EmbeddedChatModel

PLACES = (0, 5)
"""The samples asked about: a plain fact, and a response that is itself a verdict's JSON."""
UNREADABLE = {str(kind) for kind in REDRAW_KINDS} | {
    str(ErrorKind.OUT_OF_RANGE),
    str(ErrorKind.INCOMPLETE),
}


def ask(type_name: str, form: str, max_tokens: int = 600) -> list[Outcome]:
    """The outcomes of both samples; every call and its tokens are counted."""

    async def measure_and_count() -> tuple[list[Outcome], list[dict[str, Any]]]:
        counter = CallCounter()
        judge = build_judge("smollm2", form, 1, max_tokens)
        outcomes = await measure(type_name, form, judge, PLACES)
        return outcomes, counter.table()

    outcomes, [counted] = run_blocking(measure_and_count())
    for outcome in outcomes:
        assert outcome.calls
        assert outcome.input_tokens
        assert outcome.output_tokens
        if outcome.failure:
            assert outcome.failure in UNREADABLE, outcome.why
            assert outcome.unread
            assert outcome.score is None
        else:
            assert outcome.score is None or math.isfinite(outcome.score)
    assert counted["calls"] == sum(outcome.calls for outcome in outcomes)
    assert counted["input_tokens"] == sum(outcome.input_tokens for outcome in outcomes)
    assert counted["output_tokens"] == sum(outcome.output_tokens for outcome in outcomes)
    return outcomes


UNBOUNDED = ("llm", "listwise", "trajectory_comprehensive")
"""Numbers between the points of a scale, places, lists of steps: no schema of ours bounds these."""


@pytest.mark.parametrize("type_name", chat_graders())
def test_a_schema_is_held_to(type_name: str) -> None:
    for outcome in ask(type_name, "schema"):
        if type_name not in UNBOUNDED:
            assert not outcome.failure, (outcome.why, outcome.raw)


@pytest.mark.parametrize("type_name", ["relevance", "pairwise"])
def test_a_form_in_the_prompt_is_read_or_the_failure_says_why(type_name: str) -> None:
    ask(type_name, "prompt", max_tokens=60)


def test_what_is_no_chat_is_said() -> None:
    assert not NO_CHAT.keys() & set(chat_graders())


def test_an_expected_score_is_that_of_the_whole_vocabulary() -> None:
    whole: list[Any] = []

    class Listening(EmbeddedChatModel):
        async def achat(self, messages: Any, **asked: Any) -> Any:
            reply = await super().achat(messages, **asked)
            everything = {**asked, "top_logprobs": 60_000}
            whole.append(await super().achat(messages, **everything))
            return reply

    # A prompt that is read from the slot's cache gives other last digits.
    afresh = {"cache_prompt": False}
    judge = Listening("smollm2", batch_size=1, temperature=0.0, extra_body=afresh)
    for place in PLACES:
        row = sample(place)
        grader = ExpectedScoreGrader(judge)
        found = run_blocking(grader.aevaluate(response=row["response"], query=row["query"]))
        listed = whole[-1].logprobs[0].top
        assert math.fsum(map(math.exp, listed.values())) == pytest.approx(1.0, abs=0.01)
        points = [
            (int(token), math.exp(log))
            for token, log in listed.items()
            if token.strip() in set("12345")
        ]
        total = math.fsum(share for _, share in points)
        mean = math.fsum(point * share for point, share in points) / total
        assert found.score == pytest.approx(mean, abs=1e-4)
        assert found.metadata["coverage"] == pytest.approx(total, rel=1e-4)
