"""Tag formats: what counts as kept, and what is refused."""

from __future__ import annotations

import json

import pytest
from tests.refusals import refuses

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.response_form import ReasoningFormatGrader, ReasoningToolCallFormatGrader

GOOD = "<think>2+2</think><answer>4</answer>"


@pytest.mark.parametrize(
    ("response", "score", "reason"),
    [
        (GOOD, 1.0, "all tags in place"),
        (f"{GOOD}<|im_end|>\n", 1.0, "all tags in place"),
        ("<think>2+2</think>\n\n<answer>4</answer>", 1.0, "all tags in place"),
        ("<think></think><answer>4</answer>", 1.0, "all tags in place"),
        ("<think></think><answer></answer>", 0.0, "<answer> is empty"),
        ("<think>2+2</think><answer> \u200b\n</answer>", 0.0, "<answer> is empty"),
        ("", 0.0, "no <think>"),
        ("<think>2+2</think> so 4", 0.0, "no <answer>"),
        ("<think>2+2<answer>4</answer>", 0.0, "no </think>"),
        (f"Well: {GOOD}", 0.0, "text before <think>"),
        (f"{GOOD} Done.", 0.0, "text after the last tag"),
        ("<think>a</think> so <answer>4</answer>", 0.0, "text before <answer>"),
        ("<answer>4</answer><think>a</think>", 0.0, "text before <think>"),
        ("<think>a<answer>4</answer></think>", 0.0, "<answer> is out of order"),
        ("</think>a<think><answer>4</answer>", 0.0, "<think> is out of order"),
        (f"{GOOD}{GOOD}", 0.0, "<think> stands there 2 times"),
        ("<think>a</think></think><answer>4</answer>", 0.0, "</think> stands there 2 times"),
    ],
)
def test_strict_form(response: str, score: float, reason: str) -> None:
    result = ReasoningFormatGrader().evaluate(response)
    assert (result.score, result.reason) == (score, reason)


@pytest.mark.parametrize(
    ("response", "score"),
    [
        (f"Well: {GOOD} Done.", 1.0),
        ("<answer>4</answer> because <think>a</think>", 1.0),
        (f"{GOOD}{GOOD}", 1.0),
        ("</think><think>a<answer>4</answer>", 0.0),
        ("<think>a</think>", 0.0),
        ("<answer></answer><think>a</think>", 0.0),
        ("", 0.0),
    ],
)
def test_loose_form_is_the_published_one(response: str, score: float) -> None:
    assert ReasoningFormatGrader(strict=False).evaluate(response).score == score


def test_other_tags() -> None:
    grader = ReasoningFormatGrader(tags=["plan", "code", "check"])
    assert grader.evaluate("<plan>p</plan><code>c</code><check>k</check>").score == 1.0


@pytest.mark.parametrize("tags", [[], ["think", "think"], ["<think>"], ["a b"], [3], "think"])
def test_bad_tags_are_named(tags: object) -> None:
    with refuses("reasoning_format"):
        ReasoningFormatGrader(tags=tags)  # type: ignore[arg-type]  # what a spec may hold


@pytest.mark.parametrize("grader", [ReasoningFormatGrader(), ReasoningToolCallFormatGrader()])
def test_a_response_that_is_not_text_cannot_be_judged(grader: ReasoningFormatGrader) -> None:
    with pytest.raises(GradingFailure, match="response must be text, got list") as caught:
        grader.evaluate(["text"])  # type: ignore[arg-type]  # hostile row
    assert caught.value.kind is ErrorKind.INVALID_INPUT


def call(body: object) -> str:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"<tool_call>{text}</tool_call>"


CALL = call({"name": "search", "arguments": {"q": "x"}})


@pytest.mark.parametrize(
    ("response", "score", "reason"),
    [
        (GOOD, 1.0, "an answer"),
        ("<think>a</think><answer> </answer>", 0.0, "<answer> is empty"),
        (f"<think>a</think>{CALL}", 1.0, "1 tool calls"),
        (f" <think>a</think>\n{CALL}\n{CALL} ", 1.0, "2 tool calls"),
        ("<think>a</think>" + call({"name": "f", "arguments": '{"q": 1}'}), 1.0, "1 tool calls"),
        ("", 0.0, "does not start with a closed <think>"),
        (CALL, 0.0, "does not start with a closed <think>"),
        (f"<think>a{CALL}", 0.0, "does not start with a closed <think>"),
        ("<think>a</think>", 0.0, "no closed <answer> or <tool_call>"),
        ("<think>a</think>free text", 0.0, "no closed <answer> or <tool_call>"),
        (f"<think>a</think>{CALL}<answer>4</answer>", 0.0, "text after </tool_call>"),
        (f"<think>a</think><answer>4</answer>{CALL}", 0.0, "text after </answer>"),
        (f"<think>a</think>so {CALL}", 0.0, "text outside <tool_call>"),
        (f"<think>a</think>{CALL} and {CALL}", 0.0, "text outside <tool_call>"),
        (f"<think>{CALL}</think><answer>4</answer>", 0.0, "a tag inside <think>"),
        ("<think>a</think><answer><answer>4</answer>", 0.0, "a tag inside <answer>"),
        (
            f"<think>a</think>{CALL}" + call("{nope"),
            0.0,
            "tool call 2: Expecting property name enclosed in double quotes at character 1",
        ),
        ("<think>a</think>" + call([1]), 0.0, "tool call 1: not an object with name and arguments"),
        (
            "<think>a</think>" + call({"name": "f"}),
            0.0,
            "tool call 1: not an object with name and arguments",
        ),
        (
            "<think>a</think>" + call({"name": "", "arguments": {}}),
            0.0,
            "tool call 1: name is not a text",
        ),
        (
            "<think>a</think>" + call({"name": "f", "arguments": [1]}),
            0.0,
            "tool call 1: arguments are not an object",
        ),
        (
            "<think>a</think>" + call('{"name": "f", "arguments": {"x": NaN}}'),
            0.0,
            "tool call 1: NaN is not JSON",
        ),
    ],
)
def test_tool_call_form(response: str, score: float, reason: str) -> None:
    result = ReasoningToolCallFormatGrader().evaluate(response)
    assert (result.score, result.reason) == (score, reason)


def test_tool_call_form_counts_the_calls() -> None:
    result = ReasoningToolCallFormatGrader().evaluate(f"<think>p</think>{CALL}{CALL}")
    assert result.metadata == {"tool_calls": 2}
