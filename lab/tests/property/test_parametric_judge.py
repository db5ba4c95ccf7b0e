"""The judge as a formula: its dials do what they say, and its failures hit whom they should."""

from __future__ import annotations

import math
import random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.studies.parametric_judge import (
    MAX_FEATURE_UNITS,
    ParametricJudge,
    TextFeatures,
    compute_features,
)
from adjudge_lab.synthetic import capital_question, draw_answer, draw_features, gold_score

PROMPT = capital_question("Peru")
DIALS = ("length", "fillers", "markdown", "own")
numbers = st.floats(-3, 3, allow_nan=False)
texts = st.text(max_size=60) | st.lists(
    st.sampled_from(["ann:", "Lima", "of Peru", "as I recall it", "**b**", "\n# h\n", "Sure"]),
    max_size=20,
).map(" ".join)


def answers(n: int) -> list[str]:
    rng = random.Random(5)
    drawn = (draw_features(rng, "Peru", ("ann", "bob")) for _ in range(n))
    return [draw_answer(rng, "Peru", features).text for features in drawn]


def judge(**dials: Any) -> ParametricJudge:
    return ParametricJudge(family="ann" if dials.get("own") else "", **dials)


@settings(max_examples=30)
@given(texts, st.tuples(numbers, numbers, numbers, numbers))
def test_a_score_is_quality_and_the_sum_of_what_is_liked(text: str, sizes: Any) -> None:
    made = judge(**dict(zip(DIALS, sizes, strict=True)))
    found = made.evaluate(text, PROMPT)
    features = made.features(text)
    expected = gold_score("Peru", text) / 4 + sum(
        size * features[name] for name, size in zip(DIALS, sizes, strict=True)
    )
    assert found.score == pytest.approx(expected, abs=1e-9)
    assert found.score_range is not None
    assert 0 <= float(found.normalized or 0) <= 1
    assert all(0 <= value <= MAX_FEATURE_UNITS for value in features.values())


def test_units() -> None:
    def feature(name: str, text: str) -> float:
        return ParametricJudge(own=1.0, family="ann").features(text)[name]

    assert feature("length", "word " * 16) == 0.5
    assert feature("length", "word " * 1000) == MAX_FEATURE_UNITS
    assert feature("fillers", "if you ask me, as I recall it") == 0.5
    assert feature("markdown", "**a** **b**\n# c\n| d |") == 0.5
    assert feature("own", "ann: hello") == 1.0
    assert feature("own", "hello ann: there") == 0.0


def hit(made: ParametricJudge, text: str, rollout: str) -> bool:
    """Whether a call times out, whichever way that shows."""
    try:
        found = made.evaluate(text, PROMPT, rollout)
    except GradingFailure as failure:
        return failure.kind is ErrorKind.TIMEOUT
    if found.metadata.get("timed_out"):
        assert found.score == 0.0
        return True
    return False


@pytest.mark.parametrize("by", ["random", "length"])
def test_failures_and_zeros_hit_the_same_calls(by: Any) -> None:
    calls = [(text, f"{n}/{k}") for n, text in enumerate(answers(100)) for k in range(3)]
    fails = [hit(judge(fails=0.3, fails_by=by, seed=4), *call) for call in calls]
    zeros = [hit(judge(zeros=0.3, fails_by=by, seed=4), *call) for call in calls]
    other = [hit(judge(zeros=0.3, fails_by=by, seed=5), *call) for call in calls]
    assert fails == zeros
    assert fails != other
    # Equal texts are calls of their own.
    assert any(len(set(fails[at : at + 3])) == 2 for at in range(0, 300, 3))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_the_share_is_the_one_that_was_asked_for(share: float) -> None:
    made = judge(fails=share, seed=2)
    found = sum(hit(made, text, str(n)) for n, text in enumerate(answers(800)))
    deviation = math.sqrt(800 * share * (1 - share))
    assert abs(found - 800 * share) < 3.3 * deviation


def test_longer_answers_fail_more_often_where_they_are_to() -> None:
    made = judge(fails=0.4, fails_by="length", seed=2)

    def rate(words: int) -> float:
        return fmean(hit(made, "word " * words, str(n)) for n in range(500))

    assert rate(32) == pytest.approx(0.4, abs=0.073)
    assert rate(16) == pytest.approx(0.2, abs=0.06)
    assert rate(0) == 0
    assert rate(100) == 1


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"fails": 0.1, "zeros": 0.1}, "cannot be combined with fails"),
        ({"fails": 1.0}, "fails: must be .*found 1.0"),
        ({"zeros": -0.1}, "zeros: must be .*found -0.1"),
        ({"noise": -1.0}, "noise: must be .*found -1.0"),
        ({"length": math.nan}, "length: must be .*found nan"),
        ({"own": 1.0}, "own: needs family"),
        ({"family": "ann"}, "own: needs family"),
        ({"own": 1.0, "family": "a b"}, "one word"),
        ({"gold": "none"}, "gold: is 'none'"),
    ],
)
def test_dials_that_are_none_are_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ParametricJudge(**dials)


@pytest.mark.parametrize("prompt", ["", "What is it?", f"{PROMPT} {capital_question('Cuba')}"])
def test_another_question_has_no_quality(prompt: str) -> None:
    with pytest.raises(GradingFailure, match="needs one question") as caught:
        judge().evaluate("Lima", prompt)
    assert caught.value.kind is ErrorKind.INVALID_INPUT
    assert judge(gold="none", length=1.0).evaluate("Lima", prompt).score == 1 / 32


def test_it_is_the_judge_of_a_run_that_asks_nobody() -> None:
    kind = "adjudge_lab.studies.parametric_judge:ParametricJudge"
    biased = {"name": "biased", "type": kind, "length": 0.5, "fails": 0.1, "seed": 3}
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [biased],
        "judge": {"combine_mode": "replace"},
    }
    spec = build_reward_spec(resolve_run_file(data))
    assert spec.build_graders()["biased"].score_range == (0.0, 2.0)
    spec = build_reward_spec(
        resolve_run_file({**data, "graders": [{**biased, "fails_by": "luck"}]})
    )
    with pytest.raises(ConfigError, match=r"graders\.biased.*fails_by"):
        spec.build_graders()


def test_features_are_counts() -> None:
    text = "## Head\n\nplain **bold** text\n- a\n* b\n12) c\n1234. d\n#tag\n| a | b |\n"
    text += "```py\nx\n```\n`x`"
    assert compute_features(text) == TextFeatures(len(text), markdown=3, lists=3, code=2)
    assert compute_features("") == TextFeatures(0, 0, 0, 0)
