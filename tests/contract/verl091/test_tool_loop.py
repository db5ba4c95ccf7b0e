"""What graders see of conversations that verl's own tool loop had, under its V1 rollouts."""

import json
from typing import Any

import pytest
import tiny  # beside this file

from adjudge.trainers.verl.agent_loops import plain_messages

OURS = "- name: tool_agent\n  _target_: adjudge.trainers.verl.JudgeToolAgentLoop\n"
OWN = "- name: tool_agent\n  _target_: seen_by_graders.OwnToolLoop\n"
CASES = {
    "by our manager": (tiny.ROLLOUTS, ""),
    "by a file": ("", OURS),
    "of a user": (tiny.ROLLOUTS, OWN),
}
PROMPTS = [["look", "poor", "again", "good"]]


def call(number: int, word: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": json.dumps({"word": word}, separators=(",", ":"))}
    return {"id": f"call_{number}", "type": "function", "function": function}


def result(number: int, word: str) -> dict[str, Any]:
    return {"role": "tool", "content": word, "tool_call_id": f"call_{number}"}


def turn(content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": content}
    return {**found, "tool_calls": list(calls)} if calls else found


QUESTION = {"role": "user", "content": "is 5 ? look poor again good"}
LOOKED = [QUESTION, turn("fine ,", call(0, "good")), result(0, "good"), turn("good")]
ENDLESS = [
    QUESTION,
    *[turn("", call(0, "fine")), result(0, "fine"), turn("", call(1, "fine")), result(1, "fine")],
    turn("", call(2, "fine")),  # the limit of turns: verl runs no tool, and writes nothing down
]
EXPECTED = [LOOKED, ENDLESS, [QUESTION, turn("good")], [QUESTION, turn("poor")]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Rows of graders, by case."""
    folder = tmp_path_factory.mktemp("tools")
    agent, turns = "actor_rollout_ref.rollout.agent", "actor_rollout_ref.rollout.multi_turn"
    listed, files = [], {}
    for place, (case, (manager, loops)) in enumerate(CASES.items()):
        files[case] = folder / f"seen{place}.jsonl"
        spec = folder / f"spec{place}.toml"
        spec.write_text(
            '[[graders]]\nname = "seen"\ntype = "seen_by_graders:NotingGrader"\n'
            f'path = "{files[case]}"\n'
        )
        lines = [
            f"+reward.reward_kwargs.spec={spec}",
            f"{agent}.default_agent_loop=tool_agent",
            f"{turns}.function_tool_path={tiny.HERE / 'seen_by_graders.py'}",
            f"{turns}.max_assistant_turns=3",
            "actor_rollout_ref.rollout.response_length=64",
            *([manager] if manager else []),
        ]
        if loops:
            path = folder / f"loops{place}.yaml"
            path.write_text(loops)
            lines.append(f"{agent}.agent_loop_config_path={path}")
        listed.append({"mode": "sync", "prompts": PROMPTS, "overrides": lines})
    found = tiny.last_line("", "v1_on_cpu.py", folder, json.dumps(listed))
    for case in found:
        assert "error" not in case["step"], case["step"]
    return {
        case: [json.loads(line) for line in file.read_text().splitlines()]
        for case, file in files.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_graders_get_the_conversation(seen: dict[str, Any], case: str) -> None:
    """Once in validation and once in training, each of the four."""
    rows = seen[case]
    assert len(rows) == 8
    conversations = sorted((row["messages"] for row in rows), key=len, reverse=True)
    expected = sorted(EXPECTED * 2, key=len, reverse=True)
    key = json.dumps
    assert sorted(map(key, conversations)) == sorted(map(key, expected))


@pytest.mark.parametrize("case", ["by our manager", "by a file"])
def test_graders_get_the_tools(seen: dict[str, Any], case: str) -> None:
    for row in seen[case]:
        [tool] = row["tools"]
        assert tool["function"]["name"] == "look"


def test_a_message_of_parts_keeps_its_text_alone() -> None:
    image = {
        "role": "tool",
        "content": [{"type": "image", "image": object()}, {"image": object()}, {"text": "a"}],
    }
    spoken = [{"role": "user", "content": "<eos> stays"}, turn("so <eos>", call(7, "a")), image]
    assert plain_messages(spoken, 1, ["<eos>"]) == [
        {"role": "user", "content": "<eos> stays"},
        turn("so", call(7, "a")),
        {
            "role": "tool",
            "content": [{"type": "image"}, {"image": ""}, {"text": "a"}],
            "tool_call_id": "call_7",
        },
    ]
