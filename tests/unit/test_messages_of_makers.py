"""Messages of all makers become one form: calls, results, thinking, and what is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests import doors
from tests.doors import Talk
from tests.rows import DATA

from adjudge.errors import RolloutError
from adjudge.intake.conversation import read_messages
from adjudge.intake.rollouts import compute_prompt_key
from adjudge.rollouts.samples import SampleReader, sample_from_row

words = st.text("abc <>?é", min_size=1, max_size=8).filter(str.strip)


@st.composite
def conversations(draw: Any) -> Talk:
    """Turns as OpenAI writes them, which end in a turn of the assistant."""
    talk: Talk = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        calls = [doors.call(draw(words), draw(words), number)] if draw(st.booleans()) else []
        thought = {"reasoning_content": draw(words)} if draw(st.booleans()) else {}
        talk += [doors.user(draw(words)), {**doors.policy(draw(words), *calls), **thought}]
        if calls and draw(st.booleans()):
            talk += [doors.result(draw(words), number), doors.policy(draw(words))]
    return talk


def to_items(talk: Talk) -> Any:
    """The same as items of OpenAI's Responses API."""
    for turn in talk:
        text = turn["content"]
        if turn["role"] == "tool":
            call_id = turn["tool_call_id"]
            yield {"type": "function_call_output", "call_id": call_id, "output": text}
            continue
        if thought := turn.get("reasoning_content"):
            yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]}
        kind = "output_text" if turn["role"] == "assistant" else "input_text"
        yield {"type": "message", "role": turn["role"], "content": [{"type": kind, "text": text}]}
        for one in turn.get("tool_calls", ()):
            yield {"type": "function_call", "call_id": one["id"], **one["function"]}


def to_message(turn: dict[str, Any]) -> dict[str, Any]:
    """The same as a message of Anthropic's API."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn["content"]}]
    if turn["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": blocks}
        return {"role": "user", "content": [result]}
    if thought := turn.get("reasoning_content"):
        blocks.insert(0, {"type": "thinking", "thinking": thought})
    for one in turn.get("tool_calls", ()):
        name, given = one["function"].values()
        blocks.append(
            {"type": "tool_use", "id": one["id"], "name": name, "input": json.loads(given)}
        )
    return {"role": turn["role"], "content": blocks}


MAKERS = json.loads((DATA.parent / "makers_messages.json").read_text(encoding="utf-8"))
"""``other``: turns as written, and in OpenAI's form. ``same``: one talk in the words of each."""


@pytest.mark.parametrize(("written", "wanted"), MAKERS["other"])
def test_turns_of_other_makers(written: Talk, wanted: Talk) -> None:
    assert sample_from_row({"messages": written}, 0).messages == wanted


AT, Q, SUN, SAID = {"at": "Rome"}, "Weather?", "sun", "Sunny."
AT_TEXT = json.dumps(AT)
LOOK = {"name": "look", "arguments": AT_TEXT}


def list_acts(talk: Talk) -> Any:
    """What each turn says, without ids and names of results."""
    for one in talk:
        for made in one.get("tool_calls", ()):
            yield made["function"]["name"], json.loads(made["function"]["arguments"])
        content = one.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        if content:
            yield one["role"], content


@pytest.mark.parametrize("name", MAKERS["same"])
def test_a_call_and_its_result_in_the_words_of_other_makers(name: str) -> None:
    written = MAKERS["same"][name]
    for messages in (written, json.dumps(written), {"messages": written}):
        sample = sample_from_row({"messages": messages}, 0)
        assert (sample.prompt, sample.response, sample.ending) == (Q, SAID, "text")
        wanted = [("user", Q), ("look", AT), ("tool", SUN), ("assistant", SAID)]
        assert list(list_acts(sample.messages or [])) == wanted


@pytest.mark.parametrize(
    ("turn", "response", "thought"),
    [
        ({"content": SAID, "thinking": "hm"}, SAID, "hm"),
        ({"content": SAID, "reasoning": "hm"}, SAID, "hm"),
        ({"content": SAID, "tool_plan": "hm"}, SAID, "hm"),
        ({"content": SAID, "additional_kwargs": {"reasoning_content": "hm"}}, SAID, "hm"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                      {"type": "text", "text": SAID}]}, SAID, "hm"),
        ({"content": [{"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": SAID}]},
         SAID, "hm"),
        ({"parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": SAID}]},
         SAID, "hm"),
        ({"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": SAID}]}, SAID, "hm"),
        ({"content": "hm", "channel": "analysis"}, "", "hm"),
        ({"content": None, "refusal": SAID}, SAID, None),
        ({"content": None, "audio": {"id": "1", "transcript": SAID}}, SAID, None),
        ({"content": {"content_type": "text", "parts": [SAID]}}, SAID, None),
        ({"content": [{"type": "text", "value": SAID}]}, SAID, None),
        ({"content": "", "parts": [{"text": SAID}]}, SAID, None),
    ],
)  # fmt: skip
def test_words_beside_the_content_are_not_lost(
    turn: dict[str, Any], response: str, thought: str | None
) -> None:
    sample = sample_from_row({"messages": [doors.user(Q), {"role": "assistant", **turn}]}, 0)
    assert (sample.prompt, sample.response) == (Q, response)
    assert sample.messages is not None
    assert sample.messages[-1].get("reasoning_content") == thought


TURNS = [doors.user(Q), doors.policy(SAID)]


@pytest.mark.parametrize(
    ("row", "opening_turns"),
    [
        ({"system": "s", "messages": TURNS}, None),
        ({"system": [{"type": "text", "text": "s"}], "messages": TURNS}, None),
        ({"system_prompt": "s", "messages": json.dumps(TURNS)}, None),
        ({"system_prompt": "s", "messages": TURNS, "opening_turns": 1}, 2),
        ({"system": "s", "prompt": TURNS[:1], "response": SAID}, 2),
        ({"system": "s", "conversations": [{"from": "human", "value": Q},
                                           {"from": "gpt", "value": SAID}]}, None),
        # a conversation that only asks, and the answer beside it
        ({"system": "s", "messages": TURNS[:1], "response": SAID}, 2),
        ({"system": "s", "messages": TURNS[:1], "completion": TURNS[1:]}, 2),
        ({"system": "s", "messages": TURNS[:1], "output": SAID}, 2),
        # the list of a thread begins with its end
        ({"system": "s", "messages": [{**TURNS[1], "created_at": 2},
                                      {**TURNS[0], "created_at": 1}]}, None),
        ({"system": "s", "prompt": {"messages": TURNS[:1]}, "response": TURNS[1]}, 2),
        # tables of JSON
        ({"system": "s", "prompt": json.dumps(TURNS[:1]), "response": json.dumps(TURNS[1])}, 2),
    ],
)  # fmt: skip
def test_parts_of_a_conversation_in_columns_of_their_own(
    row: dict[str, Any], opening_turns: int | None
) -> None:
    [sample] = SampleReader([], {}, rows=[("rows:1", row)], strict=True)
    assert (sample.prompt, sample.response, sample.opening_turns) == (Q, SAID, opening_turns)
    messages = [{"role": one["role"], "content": one["content"]} for one in sample.messages or []]
    assert messages == [{"role": "system", "content": "s"}, *TURNS]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": Q, "response": {"content": "I look.", "tool_calls": [LOOK]}},
        {"prompt": Q, "response": {"content": None, "tool_calls": [LOOK]}},
        {"prompt": Q, "response": {"text": "", "function_call": LOOK}},
        {"prompt": Q, "response": {"choices": [
            {"message": {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "function": LOOK}]}}]}},
    ],
)  # fmt: skip
def test_a_response_that_calls_a_tool_is_no_text(row: dict[str, Any]) -> None:
    [sample] = SampleReader([], {}, rows=[("rows:1", row)], strict=True)
    assert (sample.prompt, sample.response, sample.ending) == (Q, "", "ended_in_tool_call")


def test_what_a_tool_gave_is_no_question() -> None:
    call, found = "<tool_call>{}</tool_call>", "<tool_response>\nsun\n</tool_response>"
    talk = [doors.user(Q), doors.policy(call), doors.user(found), doors.policy(SAID)]
    before = {"prompt": talk[:3], "response": SAID}
    for row in ({"messages": talk}, before, {"history": talk[:2], "question": Q, "output": SAID}):
        [sample] = SampleReader([], {}, rows=[("rows:1", row)], strict=True)
        assert (sample.prompt, sample.response) == (Q, SAID)


def test_a_conversation_without_an_answer_is_refused() -> None:
    for row in ({"messages": TURNS[:1]}, {"messages": TURNS[:1], "reference": SAID}):
        with pytest.raises(RolloutError, match="^messages: "):
            sample_from_row(row, 0)
    with pytest.raises(RolloutError, match=r"^response: "):
        sample_from_row({"messages": TURNS, "response": [{"role": "tool", "content": "x"}]}, 0)


@pytest.mark.parametrize(
    ("turn", "key"),
    [
        ({"role": "narrator", "content": "x"}, "messages.1.role"),
        ({"speaker_id": 1, "line": "x"}, "messages.1.role"),
        ({"role": "assistant", "answer": "x"}, "messages.1"),
        ({"role": "assistant", "content": {"told": "x"}}, "messages.1.content"),
        ({"role": "assistant", "content": [{"type": "poem", "text": "x"}]}, "messages.1.content.0"),
        ({"role": "assistant", "content": [{"type": "text"}]}, "messages.1.content.0"),
        ({"role": "assistant", "content": 4}, "messages.1.content"),
        (  # what a user quotes is no tool's result
            {"role": "user", "content": [{"type": "search_result", "title": "t", "content": "x"}]},
            "messages.1.content.0",
        ),
        ({"role": "user", "content": [{"functionCall": {"args": {}}}]}, "messages.1.content.0"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"args": {}}]},
            "messages.1.tool_calls",
        ),
        ({"role": "assistant", "tool_calls": 3}, "messages.1.tool_calls"),
        ({"role": "assistant", "tool_calls": ["{"]}, "messages.1.tool_calls"),
        (  # nobody says whether the text was before the result
            {"role": "assistant", "content": "x", "tool_calls": [{**LOOK, "result": "y"}]},
            "messages.1",
        ),
        ({"type": "function_call", "arguments": "{}"}, "messages.1"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "told": {"a": 1}}]},
            "messages.1.tool_calls",
        ),
        ("x", "messages.1"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_keys(turn: Any, key: str) -> None:
    with pytest.raises(RolloutError, match=rf"^{re.escape(key)}: "):
        sample_from_row({"messages": [doors.user("q"), turn]}, 0)


@given(conversations())
def test_every_makers_form_gives_the_sample_of_openais_chat(talk: Talk) -> None:
    wanted = sample_from_row({"prompt": talk[:-1], "response": talk[-1:]}, 0)
    before, said = (read_messages(list(to_items(one)), "") for one in (talk[:-1], talk[-1:]))
    system = "".join(one["content"] for one in talk if one["role"] == "system")
    *asked, answer = (to_message(one) for one in talk if one["role"] != "system")
    result = {"type": "succeeded", "message": answer}
    batch = {"custom_id": "a", "params": {"system": system, "messages": asked}, "result": result}
    [found] = SampleReader([], {}, rows=[("batch:1", batch)], strict=True)
    for sample in (sample_from_row({"prompt": before, "response": said}, 0), found):
        assert (sample.prompt, sample.response) == (wanted.prompt, wanted.response)
        assert (sample.messages, sample.ending) == (wanted.messages, wanted.ending)
        assert compute_prompt_key(sample) == compute_prompt_key(wanted)
