"""Whose rows are whose: no format takes a user's own columns, and heads that say little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adjudge.datasets.files import parse_row
from adjudge.rollouts.recognition import find_reading
from adjudge.rollouts.samples import SampleReader

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
OWN = {"prompt": "p", "response": "mine"}
STEALING: list[dict[str, Any]] = [
    {"chosen": "c", "rejected": "w"},
    {"chosen": ["c"], "rejected": ["w"], "subset": "s"},
    {"input": "i", "output_1": "x", "output_2": "y", "label": 1},
    {"question": "q", "response_A": "x", "response_B": "y", "label": "A>B"},
    {"response_1": "x", "response_2": "y", "preference_strength": 1},
    {"response_a": "x", "response_b": "y", "winner": "model_a"},
    {"conversation_a": CHAT, "conversation_b": CHAT, "winner": "model_a"},
    {"instruction": "i", "completions": [{"response": "x", "overall_score": 1}]},
    {"trajectory": CHAT, "info": {"exit_status": "submitted"}, "environment": "e"},
    {"trajectory": CHAT, "instance_id": "i", "resolved": True},
    {"traj": CHAT, "task_id": 1, "reward": 1.0},
    {"termination_reason": "max_steps", "reward_info": {"reward": 1.0}},
    {"tasks": [], "simulations": []},
    {"custom_id": "c", "params": {"max_tokens": 5}},
    {"custom_id": "c", "result": {"type": "succeeded"}},
    {"object": "chat.completion", "choices": ["a", "b"]},
    {"eval": {"a": 1}, "status": "ok", "version": 1},
    {"doc": {}, "target": "t", "arguments": [], "resps": [["r"]], "filtered_resps": ["r"]},
    {"input": "i", "output": "o", "score": 1.0, "step": 3},
    {"completion": "c", "step": 1, "advantage": 0.5},
    {"completion": "c", "reward": 1.0, "example_id": 1, "metrics": {"m": 1}},
    {"task": {"a": 1}, "nodes": [], "rewards": {}},
    {"index": 1, "group": "g", "reward": 1.0, "missing": None, "reward_info": {}},
]


def read(folder: Path, *rows: Any, **mapping: str) -> list[Any]:
    path = folder / "rollouts.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return [sample for _, sample in SampleReader([path], mapping).read()]


@pytest.mark.parametrize("more", STEALING, ids=" ".join)
def test_a_response_of_the_users_own_is_read_with_all_columns(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    [sample] = read(tmp_path, OWN | more)
    assert (sample.prompt, sample.response) == ("p", "mine")
    named = {"index", "group"}
    own = {name: value for name, value in more.items() if name not in named}
    fields = {"env_reward": sample.env_reward, "reference": sample.reference}
    assert sample.extra == own | {name: one for name, one in fields.items() if one is not None}
    first, second = read(tmp_path, {"prompt": "p", "responses": ["x", "y"]} | more)
    assert [first.response, second.response] == ["x", "y"]
    assert more.keys() - named <= first.extra.keys()


def test_a_file_may_begin_with_rows_that_failed(tmp_path: Path) -> None:
    failed = [{"prompt": "p", "response": None, "output": "not this"}] * 30
    *broken, last = read(tmp_path, *failed, OWN)
    assert all("no response was made" in str(row) for row in broken)
    assert last.response == "mine"
    *broken, last = read(tmp_path, *[{"prompt": "p", "responses": []}] * 30, {"responses": ["r"]})
    assert all("has neither" in str(row) for row in broken)
    assert last.response == "r"


def test_what_follows_the_first_rows_may_be_of_another_kind(tmp_path: Path) -> None:
    pair = {"prompt": "p", "chosen": "c", "rejected": "w"}
    *_, last = read(tmp_path, *[pair] * 20, {"prompt": "p", "text": "x"})
    assert "chosen" in str(last)
    for odd in ({"instruction": "i", "completions": "text"}, {"model_a": 1, "model_b": 2}):
        *_, last = read(tmp_path, *[pair] * 20, pair | odd)
        assert last.response == "w"


def test_a_guess_that_a_later_row_breaks_costs_no_row(tmp_path: Path) -> None:
    first, odd = OWN | {"reward": 1, "task_id": 1}, {"reward": "high", "task_id": {}}
    *_, last = read(tmp_path, *[first] * 20, OWN | odd)
    assert (last.response, last.env_reward, last.group) == ("mine", None, None)
    assert last.extra == odd
    *_, last = read(tmp_path, *[first] * 20, OWN | odd, env_reward="reward")
    assert "must be a finite number" in str(last)


def test_a_long_number_is_looked_at_once() -> None:
    cell = "9" * 200_000 + "x"
    row = parse_row(json.dumps({"prompt": "p", "completion": "c", "reward": cell}).encode(), "")[1]
    assert isinstance(row, dict)
    assert "env_reward" not in find_reading([row], {}).guessed
