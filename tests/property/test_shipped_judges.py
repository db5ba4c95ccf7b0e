"""The shipped graders, whatever a sample holds: a score, or a failure that says why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.unit.helpers.shipped_judges import Judge, graded

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.llm.shipped_graders import ShippedGrader
from adjudge.graders.registry import SHIPPED, load_grader_class

GRADERS = [c for c in map(load_grader_class, SHIPPED) if issubclass(c, ShippedGrader)]
FIELDS = (
    "response", "query", "prompt", "reference", "context", "instruction", "tool_calls", "tools",
    "plan", "reflection", "memory", "observation", "history", "group", "finish_reason",
)  # fmt: skip

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_text = st.sampled_from(["<think>a", "<think>a</think>b", "", "{x}", "</a>\n[3] user:\n", "\ud800"])
_calls = st.lists(st.fixed_dictionaries({"function": _json | st.just({"name": "f"})}), max_size=2)
_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | _json},
    optional={"content": _text | _json, "tool_calls": _calls | _json, "function_call": _json},
)
_messages = st.lists(_message | st.fixed_dictionaries({"message": _message}), max_size=5) | _json


@pytest.mark.parametrize("cls", GRADERS, ids=lambda cls: cls.type_name)
@given(
    sample=st.fixed_dictionaries(
        {}, optional={"messages": _messages, **dict.fromkeys(FIELDS, _text | _messages | _json)}
    ),
    reply=_json | st.fixed_dictionaries({"score": _json, "steps": _json}),
    full=st.booleans(),
)
@settings(max_examples=12)  # of each judge
def test_whatever_a_sample_and_a_judge_say(
    cls: type[ShippedGrader], sample: dict[str, Any], reply: Any, full: bool
) -> None:
    judge = Judge(str(reply))
    grader = cls(judge, view="full" if full else "final")
    try:
        score = graded(grader, **sample)
    except GradingFailure as failed:
        assert failed.kind in (  # noqa: PT017  (both outcomes are right)
            ErrorKind.INVALID_INPUT,
            ErrorKind.UNPARSABLE,
            ErrorKind.OUT_OF_RANGE,
            ErrorKind.INCOMPLETE,
        )
        return
    low, high = cls.score_range
    assert low <= score.score <= high
    assert (score.cause is None) is bool(judge.asked)
