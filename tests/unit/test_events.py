"""Trajectories cut into events, and rewards from judging each of them."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.unit.helpers.reward_functions import build, samples

from adjudge import ErrorKind, FunctionGrader, GradingFailure
from adjudge.graders.llm.rubric import RubricGrader
from adjudge.judges import ScriptedModel
from adjudge.messages import split_events
from adjudge.rollouts.samples import sample_from_row

MOVE = {"id": "a", "function": {"name": "move", "arguments": '{"to": "tree"}'}}
TRAJECTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You play."},
    {"role": "user", "content": "Chop a tree."},
    {"role": "assistant", "content": "I go.", "tool_calls": [MOVE]},
    {"role": "tool", "tool_call_id": "a", "content": "A tree is here."},
    {"role": "user", "content": "Night falls."},
    {"role": "assistant", "content": None, "tool_calls": [MOVE, MOVE]},
    {"role": "tool", "content": "ok"},
    {"role": "tool", "content": "ok"},
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
]


def test_an_event_is_a_turn_with_all_that_follows_it() -> None:
    events = split_events(TRAJECTORY)
    assert [event["index"] for event in events] == [0, 1, 2]
    assert [event["response"] for event in events] == [
        'I go.\nmove({"to": "tree"})',
        'move({"to": "tree"})\nmove({"to": "tree"})',
        "Done.",
    ]
    assert [len(event["event"]["observations"]) for event in events] == [2, 2, 0]
    assert events[1]["event"]["tool_calls"] == [MOVE, MOVE]
    assert [len(event["history"]) for event in events] == [2, 5, 8]
    assert events[2]["history"] == TRAJECTORY[:8]


def test_examples_in_the_prompt_are_no_events() -> None:
    said = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "four"},
    ]
    [event] = split_events(said, 3)
    assert (event["index"], event["response"], event["history"]) == (0, "four", said[:3])

    def count_letters(response: str) -> float:
        return float(len(response))

    length = FunctionGrader(count_letters, "turn", score_range=(0, 9))
    weights = {"outcome_weight": 0.0, "event_weight": 1.0, "normalise": False}
    function = build({"turn": length}, entries={"turn": {"scope": "event"}}, reward=weights)
    sample = sample_from_row({"prompt": said[:3], "response": said[3:]}, 0)
    [result] = function.compute({"a": [sample]})
    assert result.event_rewards == [4.0]


def test_turns_in_a_row_are_events_of_their_own() -> None:
    said = [{"role": "assistant", "content": word} for word in ("one", "two")]
    assert [event["response"] for event in split_events(said)] == ["one", "two"]
    assert split_events([{"role": "user", "content": "Hello"}]) == []
    assert split_events([]) == []


def test_wrapped_messages_and_the_former_call_form_are_read() -> None:
    turn = {"role": "assistant", "function_call": {"name": "look", "arguments": {"at": 1}}}
    [event] = split_events([{"message": turn}])
    assert event["response"] == 'look({"at":1})'


@pytest.mark.parametrize("given", [None, "text", {"role": "assistant"}, [1], [["a"]], [None]])
def test_what_is_no_list_of_messages_is_refused(given: Any) -> None:
    with pytest.raises(GradingFailure) as failed:
        split_events(given)
    assert failed.value.kind is ErrorKind.INVALID_INPUT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
ROLE = st.sampled_from(["assistant", "user", "tool"])
MESSAGE = st.fixed_dictionaries(
    {"role": ROLE | JSON},
    optional={"content": JSON, "tool_calls": JSON, "function_call": JSON, "message": JSON},
)


@given(st.lists(MESSAGE | JSON, max_size=6) | JSON)
def test_any_json_gives_events_or_invalid_input(given: Any) -> None:
    events: list[dict[str, Any]] | None
    try:
        events = split_events(given)
    except GradingFailure as failure:
        kind = failure.kind
        events = None
    if events is None:
        assert kind is ErrorKind.INVALID_INPUT
        return
    covered = sum(1 + len(event["event"]["observations"]) for event in events)
    before = len(events[0]["history"]) if events else 0
    assert covered + before == (len(given) if events else 0)
    assert all(isinstance(event["response"], str) for event in events)


def step_judge(verdicts: Mapping[str, str], seen: list[str]) -> ScriptedModel:
    """Marks the one criterion by what the event's fence holds."""

    def judge(messages: Any) -> Any:
        shown = messages[-1]["content"]
        step = shown[shown.index("<event-") :] if "<event-" in shown else "OUTCOME"
        seen.append(step)
        for words, verdict in verdicts.items():
            if words in step:
                if verdict in list(ErrorKind):
                    raise GradingFailure(verdict, "down")
                return {"1": {"reason": words, "verdict": verdict}}
        raise AssertionError(step)

    return ScriptedModel(judge)


def hybrid(verdicts: Mapping[str, str], seen: list[str], **reward: Any) -> Any:
    judge = step_judge(verdicts, seen)
    graders = {
        "step": RubricGrader(judge, criteria=["Makes progress"]),
        "whole": RubricGrader(judge, criteria=["Has wood at the end"]),
    }
    settings = {"event_weight": 0.5, "outcome_weight": 1.0, "judge_scale": 5.0, **reward}
    entries = {"step": {"scope": "event"}}
    return build(graders, entries=entries, reward=settings, missing={"patience_s": 0.0})


TOLD = {"I go.": "MET", "Done.": "UNMET", "move": "MET", "OUTCOME": "MET"}


def test_events_come_from_the_messages_and_join_the_outcome() -> None:
    seen: list[str] = []
    [result] = hybrid(TOLD, seen).compute(samples({"messages": TRAJECTORY}))
    # J = 0.5 · (1 + 1 + 0) + 1 · 1, times 5.
    assert result.score == pytest.approx(10.0)
    assert result.reward_info["events"] == pytest.approx(2.0)
    assert len(seen) == 4
    details = (result.details or {})["events"]
    marks = [event["step"]["metadata"]["criteria"]["1"]["met"] for event in details]
    assert marks == [True, True, False]  # the same criterion, three events, three verdicts


def test_an_events_column_goes_before_the_messages() -> None:
    def judge(event: Any, s: float = 0.0) -> float:
        return s if isinstance(event, dict) else float(event)

    graders = {"e": FunctionGrader(judge, score_range=(0, 1))}
    made = build(
        graders,
        entries={"e": {"scope": "event"}},
        reward={"event_weight": 1.0, "outcome_weight": 0.0},
    )
    rows: list[dict[str, Any]] = [
        {"messages": TRAJECTORY, "events": [{"s": 0.25}, 0.5]},
        {"messages": TRAJECTORY, "events": []},
        {"messages": TRAJECTORY, "events": "none"},
        {"messages": "no list"},
        {"messages": TRAJECTORY[:2]},
        {},
    ]
    results = made.compute(samples(*rows))
    assert [result.score for result in results] == [0.75, 0.0, None, None, None, None]
    for result in results[2:]:
        assert result.missing is not None
        assert result.missing.kind is ErrorKind.INVALID_INPUT
        assert "'events' field, or messages" in result.missing.error


def test_the_judge_sees_one_step_with_its_effect_and_what_came_before() -> None:
    prompts: list[Any] = []

    def judge(messages: Any) -> Any:
        prompts.append(messages[-1]["content"])
        return {"1": {"reason": "", "verdict": "MET"}}

    graders = {"step": RubricGrader(ScriptedModel(judge), criteria=["Makes progress"])}
    made = build(
        graders,
        entries={"step": {"scope": "event"}},
        reward={"event_weight": 1.0, "outcome_weight": 0.0},
    )
    messages = [*TRAJECTORY]
    messages[2] = {**messages[2], "content": "<think>secret</think>I go."}
    made.compute(samples({"messages": messages, "finish_reason": "length"}))
    assert "secret" not in "".join(prompts)
    by_length = sorted(prompts, key=len)
    history, step = by_length[0].split("</history-")
    assert "Chop a tree." in history
    assert "I go." not in history
    assert "I go." in step
    assert "A tree is here." in step
    assert "Night falls." in step
    assert [("length limit" in prompt) for prompt in by_length] == [False, False, True]


def test_score_lines_are_logged_when_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    broken = [{"role": "assistant", "content": "I give up."}]
    rows = samples({"messages": TRAJECTORY}, {"messages": broken})
    made = hybrid({"I give up.": "refused", **TOLD}, [])
    made.compute(rows)
    assert "RUBRIC" not in caplog.text
    with caplog.at_level(logging.INFO, logger="adjudge.rubric"):
        made.compute(rows)
    lines = [m for m in caplog.messages if m.startswith("[RUBRIC_SCORE]")]
    assert lines == [
        "[RUBRIC_SCORE] event=2, outcome=1, combined=10",
        "[RUBRIC_SCORE] event=missing, outcome=1, combined=missing",
    ]
    calls = [m for m in caplog.messages if m.startswith("[RUBRIC_CALL]")]
    assert set(calls) == {"[RUBRIC_CALL] policy=unknown, provider=scripted, model=scripted"}
    assert "I give up" not in caplog.text
