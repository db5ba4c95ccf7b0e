"""Pairs and ratings as rollouts: exactly which rows each published format gives."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from tests.rows import DATA, converted, records

from adjudge.errors import RolloutError
from adjudge.judge_evaluation.benchmarks.items import PairItem
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge.rollouts.formats.preferences import PREFERENCE_FORMATS
from adjudge.rollouts.samples import sample_from_row

FORMATS = {one.name: one for one in PREFERENCE_FORMATS}
FILES = {
    str(path.relative_to(DATA)): path
    for name in FORMATS
    for path in sorted((DATA / name).iterdir())
}


def row(*turns: str, **rest: Any) -> dict[str, Any]:
    """The row of a conversation, the user's turn first, and what else it has."""
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": r, "content": text} for r, text in zip(roles, turns, strict=False)]
    return {"messages": messages, "prompt": turns[-2], "response": turns[-1], **rest}


def without(row: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


HELLO, SUM = ("Hi", "Hello."), "What is 2+2?"
TREES = [row("Name a tree.", "Oak.", env_reward=1.0), row("Name a tree.", "Trout.", env_reward=0.0)]
X, Y = {"model": "x"}, {"model": "y"}
MATHS = {"subset": "Math", "id": "17"}
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "llmbar/dataset.json": [
        *TREES,
        row("Name a fish.", "Elm.", env_reward=0.0),
        row("Name a fish.", "Carp.", env_reward=1.0),
    ],
    "openai-preference/pairs.jsonl": [
        row("Where do gulls nest?", "On cliffs.", env_reward=1.0),
        row("Where do gulls nest?", "In burrows.", env_reward=0.0),
    ],
    "judgebench/pairs.jsonl": [
        row("2+2?", "5", env_reward=0.0, id="p-1", subset="livebench-math"),
        row("2+2?", "4", env_reward=1.0, id="p-1", subset="livebench-math"),
    ],
    "rewardbench2/test.jsonl": [
        row("2+2?", "4", env_reward=1.0, **MATHS),
        *(row("2+2?", wrong, env_reward=0.0, **MATHS) for wrong in ("3", "5", "22")),
    ],
    "rewardbench/filtered.jsonl": [
        row("Spell cat.", said, env_reward=reward, model=model, id=3, subset="alpacaeval-easy")
        for said, reward, model in (("c-a-t", 1.0, "good-7b"), ("k-a-t", 0.0, "bad-7b"))
    ],
    "helpsteer2/train.jsonl": [
        row("2+2?", "4", env_reward=4.0, group="GROUP 1"),
        row("2+2?", "five", env_reward=0.0, group="GROUP 1"),
        row(*HELLO, SUM, "4.", env_reward=3.0, group="GROUP 2"),
    ],
    "helpsteer2-preference/train.jsonl": [
        row(*HELLO, SUM, "4.", env_reward=1.0),
        row(*HELLO, SUM, "5.", env_reward=0.0),
    ],
    "helpsteer3/train.jsonl": [
        row(*HELLO, SUM, "5.", env_reward=0.0, subset="stem"),
        row(*HELLO, SUM, "4.", env_reward=1.0, subset="stem"),
        row("Say hello.", "Hello.", env_reward=0.5, subset="general"),
        row("Say hello.", "Hi.", env_reward=0.5, subset="general"),
    ],
    "ultrafeedback/train.jsonl": [
        row("Say hello.", "Hello!", env_reward=9.0, model="a", subset="evol_instruct"),
        row("Say hello.", "No.", env_reward=2.0, model="b", subset="evol_instruct"),
        row("Say hello.", "Hm.", model="c", subset="evol_instruct"),
    ],
    "ultrafeedback-binarized/train.jsonl": [
        row("Say hello.", "Hello!", env_reward=8.5, id="ab12"),
        row("Say hello.", "No.", env_reward=3.0, id="ab12"),
    ],
    "arena/battles.jsonl": [
        row("Name a tree.", "Trout.", env_reward=0.0, id=5, **X),
        row("Name a tree.", "Oak.", env_reward=1.0, id=5, **Y),
        row("Name a fish.", "Carp.", env_reward=0.5, id=6, **X),
        row("Name a fish.", "Pike.", env_reward=0.5, id=6, **Y),
    ],
    "alpaca-eval/annotations.json": [
        row("Name a tree.", "Trout.", env_reward=0.0, subset="own", **X),
        row("Name a tree.", "Oak.", env_reward=1.0, subset="own", **Y),
        row("Name a fish.", "Carp.", env_reward=1.0, subset="own", **X),
        row("Name a fish.", "Fir.", env_reward=0.0, subset="own", **Y),
        row("Name a bird.", "Tit.", env_reward=0.5, subset="own", **X),
        row("Name a bird.", "Owl.", env_reward=0.5, subset="own", **Y),
    ],
    "preference/dpo_text.jsonl": TREES,
    "preference/dpo_chat.jsonl": TREES,
    "preference/implicit_prompt.jsonl": TREES,
    "preference/hh_rlhf.jsonl": [
        row(*HELLO, "Name a tree.", "Oak.", env_reward=1.0),
        row(*HELLO, "Name a tree.", "Trout.", env_reward=0.0),
    ],
}


@pytest.mark.parametrize("name", FILES)
def test_the_rows_of_each_format(name: str) -> None:
    rows = converted(name)
    if name.startswith("helpsteer2/"):  # the group is the prompt's digest
        names: dict[str, str] = {}
        for one in rows:
            one["group"] = names.setdefault(one["group"], f"GROUP {len(names) + 1}")
    fields = {"env_reward", "model", "id", "subset", "group"}
    extras = [{key for key in one if key not in fields} - {*row("", "")} for one in rows]
    assert [without(one, keys) for one, keys in zip(rows, extras, strict=True)] == EXPECTED[name]
    assert all(keys <= records(name)[0].keys() for keys in extras)  # under the record's own names
    assert [sample_from_row(one, 0).response for one in rows] == [one["response"] for one in rows]


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("llmbar", {"label": 3}, "label: found 3; allowed: 1, 2"),
        ("helpsteer3", {"overall_preference": 4}, "overall_preference: found 4; allowed: -3"),
        ("arena", {"winner": "model_c"}, "winner: found text 'model_c'"),
        ("ultrafeedback", {"completions": [{"response": 3}]}, r"completions\[0\].response"),
        ("ultrafeedback", {"completions": ["x"]}, r"completions\[0\]: found text"),
        ("preference", {"rejected": None}, "rejected: found nothing"),
    ],
)
def test_broken_records_say_what_is_wrong(
    name: str, change: dict[str, Any], complaint: str
) -> None:
    record = records(next(file for file in FILES if file.startswith(f"{name}/")))[0] | change
    assert FORMATS[name].matches(record)
    with pytest.raises(RolloutError, match=complaint):
        list(FORMATS[name].convert(record))


@pytest.mark.parametrize("name", FILES)
def test_judges_are_evaluated_on_each_format(name: str) -> None:
    """The better answer of each pair is the one with the higher reward; ties are no items."""
    found = read_benchmark([FILES[name]])
    rewards = {one["response"]: one.get("env_reward", -1.0) for one in EXPECTED[name]}
    assert found.items
    for item in found.items:
        if isinstance(item, PairItem):
            better, worse = item.conversations[:: 1 if item.label == "A" else -1]
            assert rewards[better[-1]["content"]] > rewards[worse[-1]["content"]]
    ties = sum(one.get("env_reward") == 0.5 for one in EXPECTED[name]) // 2
    alone = name.startswith("helpsteer2/")
    assert len(found.problems) == ties + alone
