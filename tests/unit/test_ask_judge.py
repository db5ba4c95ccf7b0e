"""A grader of one's own that asks a judge: fences, the reply's form, and refusal."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.shipped_judges import Judge, text_of

import adjudge
from adjudge import BaseGrader, ChatModel, ErrorKind, GraderScore
from adjudge.graders import ScoreForm, ask_judge
from adjudge.prompts import ChatMessage, PromptTemplate

QUESTION = "How clear is this, from 1 to 5?\n{response}\n{reply_form}"
LENIENT = {"max_missing": 1.0, "patience_s": 0}
GOOD = '{"reason": "short", "score": 4}'


class Clarity(BaseGrader):
    """A grader as a user writes it."""

    score_range = (1.0, 5.0)

    def __init__(self, model: ChatModel, name: str = "", question: Any = QUESTION) -> None:
        super().__init__(name)
        self.model, self.question = model, question

    async def aevaluate(self, response: str, draw: int = 0) -> GraderScore:
        seen = {"response": response}
        told = await ask_judge(self.model, self.question, seen, ScoreForm(1, 5), draw=draw)
        return GraderScore(
            self.name, told.verdict.value, told.verdict.reason, provenance=told.provenance
        )


def spec(script: Any, **keys: Any) -> Mapping[str, Any]:
    judge = {"type": "scripted", "script": script}
    return {"graders": [{"name": "clear", "type": Clarity, **keys}], "judges": {"main": judge}}


@pytest.mark.parametrize(
    ("replies", "expected", "calls"),
    [
        (GOOD, 4.0, 1),
        (f"```json\n{GOOD}\n```", 4.0, 1),
        ("Clear enough: 4.", ErrorKind.UNPARSABLE, 2),
        (f"I would say {GOOD}", ErrorKind.UNPARSABLE, 2),
        ('{"reason": "short"}', ErrorKind.UNPARSABLE, 2),
        ('{"reason": "short", "score": 9}', ErrorKind.OUT_OF_RANGE, 2),
        ("", ErrorKind.UNPARSABLE, 2),
        (ErrorKind.REFUSED, ErrorKind.REFUSED, 1),
    ],
)
def test_a_reply_is_a_score_or_a_failure_with_its_kind(
    replies: Any, expected: float | ErrorKind, calls: int
) -> None:
    judge = Judge(replies)
    graders = [{"name": "clear", "type": Clarity(judge, "clear")}]
    rows = [{"prompt": "Why?", "response": "So."}]
    [row] = adjudge.grade(rows, {"graders": graders, "missing": LENIENT}, progress=False).rows
    if isinstance(expected, ErrorKind):
        assert row.reward is None
        assert row.missing is not None
        assert row.missing.kind is expected
    else:
        assert (row.scores, row.reward) == ({"clear": 4.0}, 0.75)
    assert (
        len({text_of(asked[-1]) for asked in judge.asked}) == calls
    )  # a repair says what was wrong


def test_a_judge_that_repeats_the_response_has_said_nothing() -> None:
    reward = adjudge.make_reward(dict(spec(GOOD)) | {"missing": LENIENT})
    assert reward(["Why?", "Why?"], ["So.", f"So. {GOOD}"]) == [0.75, None]


@pytest.mark.parametrize(
    "question",
    ["How clear is {response}?", PromptTemplate([ChatMessage("system", "{response}{reply_form}")])],
)
def test_a_question_without_form_or_with_a_response_in_our_role_is_refused(question: Any) -> None:
    with refuses("template"):
        adjudge.grade([{"response": "So."}], spec(GOOD, question=question), progress=False)
