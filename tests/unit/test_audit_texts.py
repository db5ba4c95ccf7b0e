"""The audit's checks of texts: copies, degenerate outputs, tool loops, what judges said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.test_audit import finding_of, outcomes

from adjudge.checks.check import CheckOutcome
from adjudge.checks.judge_texts import (
    is_judge_error,
    read_polarity,
    read_stated_score,
)
from adjudge.checks.responses import classify_outputs, count_repeats, has_loop, looks_cut
from adjudge.checks.run import AuditedRollout

PARAGRAPH = (
    "The river rises in the hills of the north, crosses the plain, and reaches the sea by way of a "
    "wide delta; its floods feed the fields of eleven towns, and in dry years they quarrel over it."
)


def rollout(index: int, response: str, reward: float | None = 0.0, **others: Any) -> AuditedRollout:
    group = others.pop("group", str(index // 4))
    prompt = others.pop("prompt", f"prompt {group}")
    return AuditedRollout(
        index=index,
        where=f"f:{index}",
        group=group,
        reward=reward,
        prompt=prompt,
        response=response,
        **others,
    )


def varied(index: int) -> str:
    return " ".join(f"word{(index * 7919 + place * 104729) % 99991}" for place in range(40)) + "."


def test_copies_are_found_word_for_word_and_nearly() -> None:
    texts = [varied(index) for index in range(40)]
    texts[5], texts[6], texts[7] = texts[4], texts[4].upper(), texts[4].replace("word1", "wort1", 1)
    rollouts = [rollout(i, text, i % 2) for i, text in enumerate(texts)]
    found = finding_of(outcomes(rollouts)["duplicates"])
    assert set(found.rows) == {5, 6, 7}
    assert "3 copy another answer of their group, 1 of them word for word with another reward" in (
        found.sentence
    )


def test_an_answer_to_many_prompts_is_found_and_one_to_the_same_prompt_is_not() -> None:
    texts = [PARAGRAPH if index % 8 == 0 else varied(index) for index in range(40)]
    rollouts = [rollout(i, text, i % 2) for i, text in enumerate(texts)]
    assert finding_of(outcomes(rollouts)["duplicates"]).affected == 4
    again = [rollout(i, text, i % 2, prompt="the same") for i, text in enumerate(texts)]
    assert outcomes(again)["duplicates"].state == "nothing_found"


def test_a_loop_is_followed_to_its_beginning() -> None:
    loop = "It is what it is, and so on. " * 9000
    assert has_loop(PARAGRAPH * 400 + loop)
    assert not has_loop("".join(f"Line {n}. " for n in range(90_000)) + loop)


def test_short_answers_are_no_copies() -> None:
    rollouts = [rollout(index, "It is 42.", index % 2) for index in range(40)]
    assert outcomes(rollouts)["duplicates"].state == "not_applicable"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", 1),
        ("......", 2),
        ("\U0001f431\U0001f408", 0),
        (r"(.*)\..+", 0),
        ("\U0001f60a" * 256, 3),
        (PARAGRAPH + " and so" * 60, 3),
        (" ".join(f"{'the same old song again and again' if i % 6 else i}" for i in range(90)), 4),
        (PARAGRAPH, 0),
        (PARAGRAPH + "\n" + "-" * 400, 0),
        ("| a | b |\n|---|---|\n" + "".join(f"| {i} | {i * i} |\n" for i in range(60)), 0),
        ("\n".join(f"print({number})" for number in range(80)), 0),
        ("All work and no play makes Jack a dull boy, said the man in the hotel.\n" * 8, 3),
    ],
)
def test_degenerate_outputs(text: str, kind: int) -> None:
    block = [rollout(i, one) for i, one in enumerate((PARAGRAPH, text, "and so on " * 60))]
    assert classify_outputs(block).tolist() == [0, kind, 3]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("Here is the code:\n```python\nprint(1)\n", True),
        ("The first reason is that the sea", True),
        ("The reasons are these:\n- the tall trees of the forest", False),
        ("Paris", False),
        ("He said that it is done.", False),
    ],
)
def test_texts_that_stop_in_the_middle(text: str, cut: bool) -> None:
    assert looks_cut(text) is cut


def call(number: int, query: str, result: str) -> list[dict[str, Any]]:
    arguments = json.dumps({"q": query})
    function = {"name": "search", "arguments": arguments}
    return [
        {"role": "assistant", "tool_calls": [{"id": str(number), "function": function}]},
        {"role": "tool", "tool_call_id": str(number), "content": result},
    ]


def test_only_the_same_call_with_the_same_result_is_a_loop() -> None:
    looping = [one for number in range(4) for one in call(number, "x", "nothing")]
    polling = [one for number in range(4) for one in call(number, "x", f"{number} %")]
    assert count_repeats(rollout(0, "", messages=looping)) == 4
    assert count_repeats(rollout(0, "", messages=polling)) == 1
    assert count_repeats(rollout(0, "", messages=[{"role": "assistant", "tool_calls": 3}])) is None
    rollouts = [
        rollout(i, "", i % 3 == 0, messages=looping if i % 3 == 0 else polling) for i in range(40)
    ]
    assert "They are rewarded" in finding_of(outcomes(rollouts)["tool_loops"]).sentence


@pytest.mark.parametrize(
    ("reason", "polarity"),
    [
        ("The answer is wrong.", -1),
        ("The response does not address the question at all.", -1),
        ("The final solution fails to handle empty lists.", -1),
        ("Correct.", 1),
        ("The response correctly solves the task.", 1),
        ("The answer is not wrong.", 0),
        ("The response is correct, but it is too long.", 0),
        ("If the answer is wrong, give 0.", 0),
        ("The user says the answer is wrong.", 0),
        ("The answer is correct. The response does not follow the format.", 0),
        ("It explains why the first attempt is wrong.", 0),
        ("The response would be wrong in the north.", 0),
    ],
)
def test_what_a_reason_says_plainly(reason: str, polarity: int) -> None:
    assert read_polarity(reason) == polarity


@pytest.mark.parametrize(
    ("reason", "score"),
    [
        ("Score: 2/10", (2.0, 10.0)),
        ("I give it 4 out of 5.", (4.0, 5.0)),
        ("[[3]]", (3.0, None)),
        ('{"score": 7, "reason": "x"}', (7.0, None)),
        ("It meets 3 of the 5 criteria.", None),
        ("Clarity: 3/5, tone 7/10", None),
        ("The answer is 42.", None),
    ],
)
def test_scores_that_reasons_state(reason: str, score: tuple[float, float | None] | None) -> None:
    assert read_stated_score(reason) == score


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Error: judge call failed after 3 retries", True),
        ("Could not parse the judge's reply, defaulting to 0", True),
        ("timeout", True),
        ("Request timed out, default score.", True),
        ("connection refused", True),
        ("The client says that its connection was refused.", False),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'score'", True),
        ("The agent's request failed with HTTP 500, and it gave up.", False),
        ("The code raises a TimeoutError on large inputs.", False),
        ("Failed to parse the score from the model's output", True),
        ("APITimeoutError('Request timed out.')", True),
        ("The fallback score 0.5 was used: server error", True),
        ("No handling of a connection error at all.", False),
        ("Ignores the rate limit header, so clients get banned.", False),
        ("Unable to parse ISO dates with a zone.", False),
        ("Timeout is never handled.", False),
        ("JSONDecodeError is not caught for an empty body.", False),
        ("", False),
    ],
)
def test_errors_of_judges(text: str, error: bool) -> None:
    assert is_judge_error(text) is error


def test_errors_of_judges_with_one_reward_are_failures_that_became_numbers() -> None:
    rollouts = [
        rollout(
            index,
            varied(index),
            0.0 if index % 5 == 0 else (index % 3) / 2 + 0.25,
            reasons={"judge_reason": "RateLimitError: 429" if index % 5 == 0 else "Fine."},
        )
        for index in range(40)
    ]
    assert finding_of(outcomes(rollouts)["judge_errors"]).affected == 8
    lost = [rollout(i, varied(i), None, reasons={"judge": "HTTP 503"}) for i in range(8)]
    assert outcomes(lost)["judge_errors"].state == "nothing_found"


def test_scores_of_other_rows_are_found_and_a_scale_of_ones_own_is_not() -> None:
    stated = [index * 7 % 10 + 1 for index in range(80)]

    def judged(record: list[float]) -> CheckOutcome:
        rollouts = [
            rollout(i, varied(i), one, reasons={"judge": f"Clear enough. Score: {said}/10"})
            for i, (said, one) in enumerate(zip(stated, record, strict=True))
        ]
        return outcomes(rollouts)["contradictions"]

    shifted = judged([float(one) for one in [*stated[3:], *stated[:3]]])
    assert "hardly follow it" in finding_of(shifted).sentence
    own_scale = judged([one**1.7 / 60 for one in stated])
    assert own_scale.state == "not_applicable"
    assert "no scale" in own_scale.result.skipped


def test_contradicting_verdicts_are_found_from_a_share_on() -> None:
    def one(index: int, lie: bool) -> AuditedRollout:
        right = index % 2 == 0
        said = "The answer is correct." if right else "The answer is incorrect."
        return rollout(index, varied(index), float(right != lie), reasons={"judge_reason": said})

    rollouts = [one(index, lie=index % 10 == 3) for index in range(80)]
    found = finding_of(outcomes(rollouts)["contradictions"])
    assert sorted(found.rows) == [3, 13, 23, 33, 43, 53, 63, 73]
    rollouts = [one(index, lie=index == 3) for index in range(80)]
    assert outcomes(rollouts)["contradictions"].state == "nothing_found"
