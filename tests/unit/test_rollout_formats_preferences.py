"""Pairs and ratings as rollouts: exactly which rows each published format gives."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rows import DATA, converted, records

from adjudge.errors import RolloutError
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge.rollouts.preferences import PREFERENCE_FORMATS

FORMATS = {one.name: one for one in PREFERENCE_FORMATS}
FILES = {
    str(path.relative_to(DATA)): path
    for name in FORMATS
    for path in sorted((DATA / name).iterdir())
}


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
        list(FORMATS[name].rows(record))


@pytest.mark.parametrize("name", FILES)
def test_judges_are_evaluated_on_each_format(name: str) -> None:
    """The better answer of each pair is the one with the higher reward; ties are no items."""
    found = read_benchmark([FILES[name]])
    rewards = {one["response"]: one.get("env_reward", -1.0) for one in converted(name)}
    assert found.items
    for item in found.items:
        if len(item.answers) == 2:
            better, worse = item.conversations[:: 1 if item.label == "A" else -1]
            assert rewards[better[-1]["content"]] > rewards[worse[-1]["content"]]
    ties = sum(one.get("env_reward") == 0.5 for one in converted(name)) // 2
    alone = name.startswith("helpsteer2/")
    assert len(found.problems) == ties + alone
