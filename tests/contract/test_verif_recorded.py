"""VerIF on the real rows: every rule function in the sandbox, and recorded judge verdicts.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has
``verinstruct/verinstruct_verif_val.parquet`` (274 rows, 399 rule functions) and
``judge_outputs/scores_clean.jsonl`` (15 judged VerIF samples).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from tests.recorded import find_recorded, read_parquet

from adjudge.graders.verif import (
    Constraints,
    VerIFGrader,
    parse_constraints,
    run_checks,
)
from adjudge.judges import ScriptedModel

pytestmark = pytest.mark.slow

RESPONSE = "The answer is here, in two sentences. It ends so.\n\n* one\n* two\n"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return read_parquet("verinstruct/verinstruct_verif_val.parquet")


def constraints_of(row: dict[str, Any], *, runs: bool = True) -> Constraints:
    return parse_constraints(row["reward_model"]["ground_truth"], where="row", runs=runs)


def test_every_row_is_read(rows: list[dict[str, Any]]) -> None:
    found = [constraints_of(row) for row in rows]
    assert len(found) == 274
    assert sum(len(one.soft) for one in found) == 1591
    assert sum(len(one.rules) for one in found) == 399
    assert sum(not one.rules for one in found) == 60
    names = Counter(rule.name for one in found for rule in one.rules)
    assert names["Digit"] == 110
    assert names["Paragraph"] == 32


def test_the_real_functions_run_in_the_sandbox(rows: list[dict[str, Any]], sandboxed: None) -> None:
    every = [(constraints_of(row).rules, row["prompt"][0]["content"]) for row in rows]
    asked = [(rules, prompt) for rules, prompt in every if rules]

    async def all_of() -> list[Any]:
        running = [
            asyncio.ensure_future(run_checks(rules, q, RESPONSE, 60.0)) for rules, q in asked
        ]
        return [await one for one in running]

    outcomes = [one for found in asyncio.run(all_of()) for one in found]
    assert len(outcomes) == 399
    answered = [one.passed for one in outcomes if one.failure is None]
    silent = [one.text for one in outcomes if one.failure]
    # One real function has a branch without a return; it is no verdict.
    assert silent == ["TypeError: returned NoneType, not true or false"]
    assert set(answered) == {True, False}


@pytest.fixture(scope="module")
def judged() -> list[dict[str, Any]]:
    path = find_recorded("judge_outputs/scores_clean.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [one for one in lines if one["source"] == "verinstruct_verif"]
    assert len(found) == 15
    return found


def test_recorded_verdicts_give_the_recorded_scores(
    rows: list[dict[str, Any]], judged: list[dict[str, Any]]
) -> None:
    """The recorded judge was shown the rules as text, and answered ``[[1]]`` or ``[[0]]``."""
    for one in judged:
        debug = one["judge_debug"]
        asked: list[str] = []

        def judge(messages: Any, said: str = debug["judge_text"], asked: list[str] = asked) -> str:
            asked.append(messages[-1]["content"])
            return said

        row = rows[int(one["id"].rpartition(":")[2])]
        grader = VerIFGrader(ScriptedModel(judge), skip_rules=True)
        fields = {"prompt": row["prompt"], "response": "Said.", "reference": None}
        truth = row["reward_model"]["ground_truth"]
        result = asyncio.run(grader.aevaluate(**fields, ground_truth=truth))
        assert result.score == one["score"]
        assert result.metadata["constraints"] == len(debug["checkers"])
        assert len(asked) == 1
        shown = {" ".join(text.removeprefix("[llm]").split()) for text in debug["checkers"]}
        assert all(f". {text}\n" in asked[0] for text in shown)
