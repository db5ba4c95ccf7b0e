"""Expected scores: the mean over the scale's points, and what must never stand in for it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.unit.helpers.shipped_judges import Judge

from adjudge.errors import Cause, ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.numeric_scores import ExpectedScoreGrader
from adjudge.judges import Reply, ScriptedModel
from adjudge.judges.base import TokenLogprobs
from adjudge.types import GraderScore


def token(text: str, **likely: float) -> TokenLogprobs:
    """A token with the probabilities of those likely there; ``p4`` is "4", ``_4`` is " 4"."""
    logs = {
        (" " if name[0] == "_" else "") + name[1:]: math.log(share)
        for name, share in likely.items()
    }
    return TokenLogprobs(text, logs.get(text, -math.inf), logs)


def reply(text: str, *tokens: TokenLogprobs, reasoning: str = "") -> Reply:
    return Reply(
        text=text, reasoning=reasoning, logprobs=list(tokens) or None, finish_reason="stop"
    )


def grade(judge: Any, response: Any = "fine", **arguments: Any) -> GraderScore:
    model = judge if isinstance(judge, ScriptedModel) else ScriptedModel(judge)
    grader = ExpectedScoreGrader(model, **arguments)
    return asyncio.run(grader.aevaluate(response, query="Q"))


def failed(judge: Any, response: Any = "fine", **arguments: Any) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        grade(judge, response, **arguments)
    return caught.value


def test_probability_off_the_scale_is_left_out_down_to_the_least_coverage() -> None:
    covered = reply("4", token("4", p4=0.6, p2=0.3, pI=0.1))
    found = grade(FreeModel(covered))
    assert found.score == pytest.approx((4 * 0.6 + 2 * 0.3) / 0.9)
    assert found.metadata["coverage"] == pytest.approx(0.9)
    failure = failed(FreeModel(reply("4", token("4", p4=0.6, p2=0.25, pI=0.15))))
    assert failure.kind is ErrorKind.UNPARSABLE
    assert failure.metadata["coverage"] == pytest.approx(0.85)
    assert failure.metadata["raw"] == ["4", "4"]


UNLIKELY = reply("4", token("4", pThe=0.9, p4=0.03, p2=0.01, p1=0.002, p3=0.001, p5=0.001))


class FreeModel(ScriptedModel):
    """A judge whose server holds no reply to a list of choices."""

    features = ScriptedModel.features - {"choices"}


def test_where_a_grammar_holds_the_reply_only_the_points_count() -> None:
    found = grade(UNLIKELY)
    expected = (4 * 0.03 + 2 * 0.01 + 0.002 + 3 * 0.001 + 5 * 0.001) / 0.044
    assert found.score == pytest.approx(expected)
    assert found.metadata["coverage"] == pytest.approx(0.044)
    assert failed(FreeModel(UNLIKELY)).kind is ErrorKind.UNPARSABLE


def test_a_point_that_was_written_by_chance_does_not_bound_the_unlisted_ones() -> None:
    """At a temperature the point may be rarer than all listed tokens, and 3 and 5 need not be."""
    logs = {"The": math.log(0.85), "4": math.log(0.03), "2": math.log(0.03), "A": math.log(0.02)}
    written = math.log(1e-4)
    for top in (logs, {"1": written, **logs}):  # vLLM lists the written token, too
        failure = failed(reply("1", TokenLogprobs("1", written, top)))
        assert failure.kind is ErrorKind.UNPARSABLE
        assert "0.600" in str(failure)


def test_blanks_around_a_token_are_not_part_of_it() -> None:
    found = grade(reply(" 4", token(" 4", _4=0.5, p4=0.2, _5=0.3)))
    assert found.score == pytest.approx(4.3)
    found = grade(
        reply("4", TokenLogprobs("▁4", math.log(0.5), {"▁4": math.log(0.5), "Ġ5": math.log(0.5)}))
    )
    assert found.score == pytest.approx(4.5)


def test_marks_may_stand_around_the_verdicts_token_and_no_words() -> None:
    tokens = (token("**"), token("2", p2=0.5, p3=0.5), token("**"))
    assert grade(reply("**2**", *tokens)).score == pytest.approx(2.5)
    failure = failed(reply("Score: 2", token("Score"), token(":"), token("2", p2=1.0)))
    assert failure.kind is ErrorKind.UNPARSABLE


def test_without_a_distribution_there_is_no_score() -> None:
    for judge in "4", reply("4"), reply("4", token("4", p4=1.0), reasoning="It is nearly perfect."):
        assert failed(judge).kind is ErrorKind.UNSUPPORTED
    model = Judge("4")
    model.features = frozenset({"schema", "choices"})
    assert failed(model).kind is ErrorKind.UNSUPPORTED
    assert model.asked == []  # it is said to give none


@pytest.mark.parametrize(
    "judge",
    [
        reply("good", token("good", pgood=1.0)),
        reply("4 or 5", token("4", p4=1.0), token(" or"), token(" 5", _5=1.0)),
        reply("It is good, clear and short. 4", *[token("x")] * 8, token("4", p4=1.0)),
        reply("4", token("44", p44=1.0)),
        reply("4", token("4", p4=0.8, _4=0.8)),
        reply("4", TokenLogprobs("4", 5.0, {"4": 5.0})),
        reply("4", TokenLogprobs("4", 1e9, {"4": 1e9})),
        reply("4", TokenLogprobs("4", math.nan, {"4": math.nan})),
        reply("3", token("4", p4=1.0)),
        reply("", token("4", p4=1.0)),
    ],
)
def test_what_is_no_single_point_with_probabilities_is_no_verdict(judge: Reply) -> None:
    failure = failed(judge)
    assert failure.kind is ErrorKind.UNPARSABLE
    assert "raw" in failure.metadata


def test_what_is_no_text_cannot_be_rated() -> None:
    assert failed("4", ["parts"]).kind is ErrorKind.INVALID_INPUT


@pytest.mark.parametrize("response", ["", "  ", "<think>still"])
def test_who_says_nothing_has_the_lowest_score_unasked(response: str) -> None:
    found = grade({"never": ""}, response)
    assert found.score == 1.0
    assert found.cause is Cause.CANDIDATE


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(lambda p: sum(p) > 0.1))
def test_a_score_lies_on_the_scale(shares: list[float]) -> None:
    shares = [share / sum(shares) for share in shares]
    logs = {str(n): math.log(p) if p else -math.inf for n, p in enumerate(shares, 1)}
    point = max(logs, key=lambda name: logs[name])
    found = grade(reply(point, TokenLogprobs(point, logs[point], logs)))
    assert 1 <= found.score <= 5
    assert found.score == pytest.approx(sum(n * p for n, p in enumerate(shares, 1)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"score_range": (3, 3)},
        {"score_range": (5, 1)},
        {"score_range": (1, 10)},
        {"score_range": (1, None)},
        {"criterion": 5},
    ],
)
def test_wrong_parameters(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ExpectedScoreGrader(ScriptedModel("4"), **arguments)
