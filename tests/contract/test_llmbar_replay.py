"""Both-order accuracy of recorded judges, through our own prompt, reader and pairwise grader.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has ``llmbar`` (Zeng et
al. 2023; two subsets, five judges, three prompt styles, both orders). What the benchmark's pattern
reads in a completion is replayed as a mark, by what the prompt shows between its fences, so a
response in the wrong place would show here.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.contract.test_llmbar_judges import PUBLISHED, STYLES, SUBSETS
from tests.recorded import find_recorded

from adjudge.errors import GradingFailure
from adjudge.graders.llm.comparison import PairwiseGrader
from adjudge.judge_evaluation.benchmarks.readers import read_llmbar_reply
from adjudge.judges import Reply, ScriptedModel
from adjudge.prompts import clean_text

pytestmark = pytest.mark.needs

FENCE = re.compile(r"<(response_[ab])-([0-9a-f]{16})>\n(.*)\n</\1-\2>", re.DOTALL)
WORDING = """Which of two outputs executes an instruction better, Output (a) or Output (b)? Close
with your choice of the two.

# Instruction:
{query}

# Output (a):
{response_a}

# Output (b):
{response_b}"""

_OTHER_MENTION = (
    "replies open or close with 'Output (x) is better', and the benchmark's own reader took a "
    "mention of the other output for the choice"
)
# Where ours differ, and why: each of the rows behind this was read by a person.
DIFFERENCES = {
    ("natural", "palm2", "cot"): ((76, 85, 72, 83), f"21 {_OTHER_MENTION}"),
    ("neighbor", "palm2", "cot"): ((70, 72, 46, 84), f"30 {_OTHER_MENTION}"),
}


class Row(NamedTuple):
    """One instruction with two outputs: which is better, and what was replied in each order."""

    query: str
    outputs: tuple[str, str]
    label: int
    replies: tuple[Reply, Reply]


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_recorded("llmbar")


def rows_of(folder: Path, subset: str, judge: str, style: str) -> list[Row]:
    text = (folder / subset / "judges" / f"{judge}_{style}.json").read_text(encoding="utf-8")
    return [
        Row(
            row["input"],
            (row["output_1"], row["output_2"]),
            row["label"],
            (replied(row, "swap = False"), replied(row, "swap = True")),
        )
        for row in json.loads(text)
    ]


def replied(row: dict[str, Any], order: str) -> Reply:
    text, _ = row["results"][-1][order]["completion"]
    chosen = read_llmbar_reply(text)
    return Reply(text=f"[[{chosen}]]" if chosen else "Neither.")


def replaying(rows: list[Row]) -> ScriptedModel:
    by_shown = {}
    for row in rows:
        one, two = map(clean_text, row.outputs)
        by_shown[clean_text(row.query), one, two] = row.replies[0]
        by_shown[clean_text(row.query), two, one] = row.replies[1]

    def reply(messages: Any) -> Reply:
        text = messages[-1]["content"]
        shown = {name: body for name, _, body in FENCE.findall(text)}
        query = re.search(r"<query-([0-9a-f]{16})>\n(.*)\n</query-\1>", text, re.DOTALL)
        assert query is not None
        return by_shown[query[2], shown["response_a"], shown["response_b"]]

    return ScriptedModel(reply)


async def verdicts_of(grader: PairwiseGrader, row: Row) -> dict[str, str]:
    fields: dict[str, Any] = {
        "query": row.query,
        "response": row.outputs[0],
        "other": row.outputs[1],
    }
    try:
        found = await grader.aevaluate(**fields)
    except GradingFailure as failure:
        return dict(failure.metadata["verdicts"])
    return dict(found.metadata["verdicts"])


async def measured(rows: list[Row]) -> tuple[tuple[int, int, int, int], int]:
    """The four counts, and how many replies gave no verdict."""
    grader = PairwiseGrader(replaying(rows), against="other", template=WORDING, view="full")
    one = two = both = agree = unread = 0
    for row in rows:
        verdicts = await verdicts_of(grader, row)
        right = "win" if row.label == 1 else "loss"
        first, second = verdicts.get("as_given"), verdicts.get("swapped")
        one += first == right
        two += second == right
        both += first == second == right
        agree += first == second
        unread += (first is None) + (second is None)
    return (one, two, both, agree), unread


@pytest.mark.parametrize("subset", SUBSETS)
def test_both_order_accuracy_of_recorded_judges(folder: Path, subset: str) -> None:
    found, wanted = {}, {}
    print("\nsubset judge style: ours (replies without a verdict), the benchmark's own")
    for judge, cells in PUBLISHED[subset].items():
        for style, recorded in zip(STYLES, cells, strict=True):
            rows = rows_of(folder, subset, judge, style)
            assert len(rows) == SUBSETS[subset]
            cell = (subset, judge, style)
            found[cell], unread = asyncio.run(measured(rows))
            wanted[cell], why = DIFFERENCES.get(cell, (recorded, ""))
            print(*cell, "/".join(map(str, found[cell])), f"({unread})", recorded, why)
    assert found == wanted
