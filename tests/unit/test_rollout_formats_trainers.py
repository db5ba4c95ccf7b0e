"""Dumps of trainers as rows.

The verl, TRL, verifiers 0.4 and slime samples are what the libraries' own writers made of invented
content (verl 0.6.1 and 0.9.1, TRL 1.16, slime's ``Sample``); the others follow their sources.
"""

from pathlib import Path

import pytest
from tests.rows import DATA, NAMED, assistant, call, only_row, records, user

from adjudge.errors import RolloutError
from adjudge.intake.conversation import read_messages
from adjudge.intake.rendered import read_rendered_prompt
from adjudge.rollouts.samples import SampleReader
from adjudge.types import Sample


def test_verl_messages_of_a_reward_function_say_more_than_the_texts() -> None:
    [record, *_] = records("verl-rollouts/0.6-train-5.jsonl")
    said = [user("Name a colour."), assistant("Red")]
    row = only_row("verl-rollouts", {**record, "messages": said})
    assert row["messages"] == said


def test_a_sample_of_areal_that_ended_with_newer_weights() -> None:
    # Its reward was replaced by the distance from the group's mean.
    record = records("areal-rollouts/12.jsonl")[0]
    newer = {**record, "tail_version": 5, "reward": 0.5, "original_reward": 1.0}
    row = only_row("areal-rollouts", newer)
    assert (row["group"], row["env_reward"]) == ("12/fa20ffa13d85e4b4", 1.0)


def test_a_trace_nobody_scored_has_no_reward() -> None:
    [episode, *_] = records("verifiers-traces/0.4-episodes.jsonl")
    part = {"score": 1.0}
    for rewards in (
        *({}, {"right": None}, {"right": {"weight": 1.0}}),
        *({"right": part, "brief": None}, {"right": part, "brief": {"score": float("nan")}}),
    ):
        episode["traces"][0]["rewards"] = rewards
        [row] = NAMED["verifiers-traces"].rows(episode)
        assert isinstance(row, dict)
        assert "env_reward" not in row


def test_nodes_that_go_round_are_refused() -> None:
    nodes = [{"parent": 1, "message": {"role": "user", "content": "a"}}] * 2
    record = {"task": {}, "nodes": nodes, "rewards": {}}
    with pytest.raises(RolloutError, match="a 'parent' is no node before it"):
        list(NAMED["verifiers-traces"].rows(record))


def test_a_masked_sample_of_nemo_gym_has_no_reward() -> None:
    """Its environment failed: the reward of 0 is of nobody's answer."""
    record = records("nemo-gym-rollouts/rollouts.jsonl")[0]
    row = only_row("nemo-gym-rollouts", {**record, "reward": 0.0, "mask_sample": True})
    assert "env_reward" not in row


@pytest.mark.parametrize(
    ("file", "rewards", "group"),
    [
        ("completions", [1.0, None], "row 0"),
        ("generations", [1.0, 0.0], "row 0"),
        ("outputs", [None], "g1"),
    ],
)
def test_lists_by_other_names(file: str, rewards: list[float | None], group: str) -> None:
    samples = [sample for _, sample in SampleReader([DATA / f"responses/{file}.jsonl"]).read()]
    assert [getattr(one, "env_reward", None) for one in samples] == rewards
    assert {getattr(one, "group", None) for one in samples} == {group}


def test_nan_in_a_line_is_null(tmp_path: Path) -> None:
    path = tmp_path / "5.jsonl"
    path.write_text('{"input": "NaN", "output": "o", "score": NaN, "step": 5, "x": -Infinity}\n')
    [(_, sample)] = SampleReader([path]).read()
    assert isinstance(sample, Sample)
    assert (sample.prompt, sample.env_reward) == ("NaN", None)
    assert sample.extra == {"score": None, "step": 5, "x": None}


CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        (CHATML, ["user"]),
        (CHATML + "<think>\n", ["user"]),
        (CHATML + "Sure, ", None),  # a beginning of the answer
        ("Look: " + CHATML, None),
        (CHATML.replace("<|im_end|>", ""), None),
        (CHATML.replace("user", "stranger"), None),
        (CHATML.replace("Hi", "Hi<|im_end|> there"), None),
        ("system\ns\nuser\nu\nassistant\n", ["system", "user"]),
        ("user\nu\nassistant\n<think>\n\n</think>\n\n", ["user"]),
        ("user\nu\nassistant\na\nuser\nb\nassistant\n", None),
        ("user\nu", None),
        ("assistant\n", None),
        ("", None),
    ],
)
def test_rendered_prompts(text: str, roles: list[str] | None) -> None:
    found = read_rendered_prompt(text)
    assert (None if found is None else [message["role"] for message in found]) == roles


def test_items_of_other_tools_are_calls_by_their_type() -> None:
    items = [
        {"type": "web_search_call", "id": "w1", "action": {"query": "Lima"}},
        {"type": "item_reference", "id": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
    ]
    [searched, refusal] = read_messages(items, "output")
    assert searched["tool_calls"] == [call("w1", "web_search_call", '{"query":"Lima"}')]
    assert refusal == assistant("No")
    custom = {"id": "c0", "type": "custom", "custom": {"name": "run", "input": "1 + 1"}}
    [turn] = read_messages([{"role": "assistant", "tool_calls": [custom]}], "m")
    assert turn["tool_calls"][0]["function"] == {"name": "run", "arguments": "1 + 1"}
    code = {"type": "code_interpreter_call", "id": "c1", "code": "1 + 1", "outputs": None}
    [ran] = read_messages([code], "output")
    assert ran["tool_calls"][0]["function"]["arguments"] == '{"code":"1 + 1"}'
