"""A judge that marks criteria by their text, and rubrics for it to mark."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.helpers.verdict_block import in_block

from adjudge import ErrorKind, GraderScore, GradingFailure
from adjudge.graders.llm.rubric import RubricGrader
from adjudge.judges import Reply, ScriptedModel
from adjudge.judges.asking import current_ask
from adjudge.rubrics import Criterion, GlobalRubric, Rubric

GUIDE = GlobalRubric(
    "crafter/bundle@v1",
    "Evaluate the agent.",
    ("Explores", "Survives"),
    {"7-10": "Excellent: thrives", "0-7": "Poor: wanders"},
)
POINTS = Rubric(
    (
        Criterion("Names a dose", "dose", 5, tags={"axis": "accuracy"}),
        Criterion("Is brief", "brief", 2, tags={"axis": "style"}),
        Criterion("Alarms without need", "alarm", -3, tags={"axis": "style"}),
        Criterion("Says when to call a doctor", "doctor", 3, tags={"axis": "accuracy"}),
    )
)
MET = {
    "Names a dose": "MET",
    "Is brief": "UNMET",
    "Alarms without need": "MET",
    "Says when to call a doctor": "MET",
}
LINE = re.compile(r"^([0-9]+)\. (.*?)(?: \[N/A allowed\])?$", re.MULTILINE)


class Judge(ScriptedModel):
    """Marks criteria by their text; remembers what it was asked, and under which attempt.

    A verdict that is an ``ErrorKind`` fails the call, one that is empty leaves the criterion out.
    """

    def __init__(
        self,
        verdicts: Mapping[str, Any],
        *,
        schema: bool = True,
        later: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(lambda _: "")
        if not schema:
            self.features = frozenset()
        self.verdicts, self.later = verdicts, later
        self.calls: list[list[tuple[str, str]]] = []
        self.prompts: list[Sequence[Mapping[str, Any]]] = []
        self.attempts: list[int] = []
        self.schemas: list[Any] = []

    async def achat(self, messages: Any, **asked: Any) -> Reply:
        text = "\n".join(message["content"] for message in messages)
        lines = LINE.findall(
            text[text.rfind("<sample_criteria-") :] if "<sample_" in text else text
        )
        self.calls.append(lines)
        self.prompts.append([dict(message) for message in messages])
        self.attempts.append(current_ask.get().attempt)
        self.schemas.append(asked["schema"])
        verdicts = self.verdicts if self.later is None or not self.attempts[-1] else self.later
        found = {number: verdicts[words] for number, words in lines if words in verdicts}
        for verdict in found.values():
            if isinstance(verdict, ErrorKind):
                raise GradingFailure(verdict, "scripted")
            if isinstance(verdict, Reply):
                return verdict
        marks = {n: {"reason": f"because {n}", "verdict": v} for n, v in found.items() if v}
        told = json.dumps(marks) if marks else "I would rather not say."
        self._script = {"": told if asked["schema"] else in_block(messages, told)}
        return await super().achat(messages, **asked)


def grade(grader: RubricGrader, **fields: Any) -> GraderScore:
    return asyncio.run(grader.aevaluate(**{"prompt": "Headache?", "response": "Rest.", **fields}))


def failure_of(grader: RubricGrader, **fields: Any) -> GradingFailure:
    with pytest.raises(GradingFailure) as failed:
        grade(grader, **fields)
    return failed.value
