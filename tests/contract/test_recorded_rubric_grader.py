"""The rubric grader on recorded judge replies, against the scores recorded with them.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has
``judge_outputs/scores_clean.jsonl`` (replies of a judge at three temperatures) and
``healthbench/healthbench_val.parquet`` (the rubrics).
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any, NamedTuple

import pytest
from tests.recorded import find_recorded, read_parquet

from adjudge.graders.llm.rubric import RubricGrader
from adjudge.judges import ScriptedModel
from adjudge.prompts import clean_text

RECORDED = "judge_outputs/scores_clean.jsonl"
RUBRICS = "healthbench/healthbench_val.parquet"
JUDGES = ("qwen-flash_t0.0", "qwen-flash_t0.7", "qwen-flash_t1.0")


class Row(NamedTuple):
    """One recorded judgement: the sample as a grader gets it, the reply, the score.

    The recorded judge was shown the thinking too, so the replay is with ``view = "full"``.
    """

    judge: str
    fields: dict[str, Any]
    reply: str
    score: float


def _dressed(reply: str) -> str:
    """A recorded reply in the words that our prompt asks for."""
    return reply.replace("NOT_PRESENT", "UNMET").replace("PRESENT", "MET")


@cache
def read(recorded: str, rubrics: str) -> list[Row]:
    samples = read_parquet(rubrics)
    lines = find_recorded(recorded).read_text(encoding="utf-8").splitlines()
    rows = []
    for record in map(json.loads, lines):
        if record["source"] != "healthbench":
            continue
        asked = record["judge_debug"]["prompt_text"]
        response = asked[asked.rindex("<Response>\n") :].partition("\n")[2]
        response = response.partition("\n</Response>")[0]
        sample = samples[int(record["id"].rpartition(":")[2])]
        rows.append(
            Row(
                record["judge"],
                {**sample, "prompt": json.dumps(sample["prompt"]), "response": response},
                _dressed(record["judge_debug"]["response_text"]),
                record["score"],
            )
        )
    return rows


@pytest.fixture
def rows() -> list[Row]:
    return read(RECORDED, RUBRICS)


def grader(judge: Any, **settings: Any) -> RubricGrader:
    settings = {"clip": True, "view": "full", **settings}
    return RubricGrader(ScriptedModel(judge), field="reward_model.rubrics", **settings)


def test_the_files_are_those_that_the_numbers_are_of(rows: list[Row]) -> None:
    assert len(rows) == 14
    assert all(row.fields["response"] for row in rows)


@pytest.mark.parametrize("name", JUDGES)
def test_replayed_replies_give_the_recorded_scores(rows: list[Row], name: str) -> None:
    own = [row for row in rows if row.judge == name]
    # The reply is found by the response that the judge is shown: another prompt has none.
    replayed = grader({clean_text(row.fields["response"]): row.reply for row in own})
    for row in own:
        result = asyncio.run(replayed.aevaluate(**row.fields))
        assert result.score == pytest.approx(row.score, abs=1e-12)
        assert result.metadata["total"] == len(row.fields["reward_model"]["rubrics"])
