"""The reward function of verl's evaluation, without verl: which row a response belongs to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjudge.trainers import verl_eval
from adjudge.trainers.verl_eval import compute_score

SPEC = """
version = 1
[[graders]]
name = "right"
type = "string_match"
match = "exact"
"""


class Array:
    """As NumPy's, which pandas makes of the lists of a file."""

    def __init__(self, *values: str) -> None:
        self.values = values

    def tolist(self) -> list[str]:
        return list(self.values)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    verl_eval._scores.cache_clear()


def test_the_same_words_under_another_ground_truth_are_another_response(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    golds = [["4", "four"], ["5", "five"]]
    (tmp_path / "gen.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "prompt": "Q",
                    "data_source": "sums",
                    "reward_model": {"ground_truth": gold},
                    "responses": ["4", "five"],
                }
            )
            + "\n"
            for gold in golds
        )
    )
    files = {"spec": str(tmp_path / "spec.toml"), "data": str(tmp_path / "gen.jsonl")}
    scores = [
        compute_score("sums", text, Array(*gold), **files)
        for gold in golds
        for text in ("4", "five")
    ]
    assert scores == [1.0, 0.0, 0.0, 1.0]
    assert math.isnan(compute_score("sums", None, Array(*golds[0]), **files))


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (4, 4.0),
        (None, float("nan")),
        ({"b": [1, None], "a": None}, {"a": None, "b": [1.0, float("nan")]}),
    ],
)
def test_a_ground_truth_is_known_again_however_it_was_read(stored: Any, read: Any) -> None:
    assert verl_eval._key("s", "t", stored) == verl_eval._key("s", "t", read)
    assert verl_eval._key("s", "t", stored) != verl_eval._key("s", "t", [stored, 1])
