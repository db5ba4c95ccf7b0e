"""Our readers on real judges' replies, against the verdicts that were recorded with them.

The data stays outside the project: set ``ADJUDGE_DATA`` to a folder that has ``llmbar/`` (five
judges' comparisons in three prompt styles and both orders, with the winner that their authors read)
and ``judge_outputs/`` (binary verdicts, with the scores computed from them).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.recorded import find_recorded

from adjudge.verdicts import Verdict, read_choice, read_score

pytestmark = pytest.mark.needs

PAIR = ["A", "B"]
JUDGES = ("chatgpt", "falcon", "gpt-4", "llama2", "palm2")
SUBSETS = ("natural", "neighbor")
STYLES = ("vanilla", "cot", "swap")


class Comparison(NamedTuple):
    key: tuple[str, str, int, int, str]
    """subset, file, row, entry (1: after the debate of the swap style), order."""
    text: str
    finish: str
    recorded: str | None
    candidates: tuple[str, str]


# The file palm2_cot has for 51 replies the winner that the reply does not name; the file palm2_swap
# has the very same replies, with the winner that they name. (order AB: rows, order BA: rows)
OTHERWISE_IN_THE_TWIN = {
    ("natural", "AB"): (7, 11, 13, 18, 32, 40, 50, 57, 68, 71, 74, 86, 95),
    ("natural", "BA"): (0, 2, 6, 34, 64, 79, 85, 95),
    ("neighbor", "AB"): (40, 66, 84, 90, 92, 95, 99, 112, 115, 118, 120, 128, 130, 131, 132),
    ("neighbor", "BA"): (25, 40, 88, 96, 98, 99, 106, 108, 110, 112, 116, 119, 127, 130, 132),
}
TWINS = {
    (subset, "palm2_cot", row, 0, order)
    for (subset, order), rows in OTHERWISE_IN_THE_TWIN.items()
    for row in rows
}


def comparisons(path: Path) -> Iterator[Comparison]:
    for subset, file in [(s, f) for s in SUBSETS for f in sorted(path.glob(f"{s}/judges/*.json"))]:
        for row, item in enumerate(json.loads(file.read_text(encoding="utf-8"))):
            for entry, result in enumerate(item["results"]):
                for order, first, second in (("AB", "1", "2"), ("BA", "2", "1")):
                    one = result["swap = False" if order == "AB" else "swap = True"]
                    text, finish = one["completion"]
                    recorded = {first: "A", second: "B", None: None}[one["winner"]]
                    key = (subset, file.stem, row, entry, order)
                    texts = (item["output_1"], item["output_2"])
                    yield Comparison(key, text, finish, recorded, texts)


@pytest.fixture(scope="module")
def llmbar() -> list[Comparison]:
    found = list(comparisons(find_recorded("llmbar")))
    files = {one.key[1] for one in found}
    expected = {f"{judge}_{style}" for judge in JUDGES for style in STYLES}
    if not expected <= files:
        pytest.skip(f"ADJUDGE_DATA/llmbar lacks {sorted(expected - files)}")
    return [one for one in found if one.key[1] in expected]


def test_no_sentence_of_a_recorded_reply_is_a_verdict(llmbar: list[Comparison]) -> None:
    """Only what is nothing but a label is read."""
    for one in llmbar:
        found = read_choice(one.text, PAIR, quoted=one.candidates, cut=one.finish == "length")
        if isinstance(found, Verdict):
            assert found.value == one.recorded or one.key in TWINS
            assert len(one.text) < 60 or found.form in {"phrase", "brackets"}, one


@pytest.fixture(scope="module")
def judged() -> list[dict[str, Any]]:
    path = find_recorded("judge_outputs") / "scores_clean.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_binary_verdicts_give_the_recorded_scores(judged: list[dict[str, Any]]) -> None:
    rows = [row for row in judged if row["source"] != "healthbench"]
    assert len(rows) == 15
    for row in rows:
        text = row["judge_debug"]["judge_text"]
        read = read_score(text, low=0, high=1, integer=True)
        assert isinstance(read, Verdict), row["id"]
        assert read.value == row["score"]
