"""Judges for tests of the shipped graders: what they were asked, and replies by mode."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.helpers.turns import unmarked

from adjudge.errors import GradingFailure
from adjudge.judges import ScriptedModel
from adjudge.judges.asking import current_ask
from adjudge.types import GraderScore

FENCE = re.compile(r"<(\w+)-([0-9a-f]{16})>\n(.*?)\n</\1-\2>", re.DOTALL)


class Judge(ScriptedModel):
    """Remembers every prompt and replies with the next of ``replies`` (the last one for good).

    With ``schema=False`` it is a server that honours none, and a reply that is an object comes in
    the block that the prompt asks for.
    """

    def __init__(self, *replies: Any, schema: bool = True) -> None:
        super().__init__(self._next)
        self.asked: list[list[Mapping[str, Any]]] = []
        self.groups: list[str | None] = []
        self.draws: list[int] = []
        self.schemas: list[Any] = []
        self.attempts: list[int] = []
        self._replies, self._schema = replies, schema
        if not schema:
            self.features = frozenset()

    async def achat(self, messages: Any, **asked: Any) -> Any:
        self.groups.append(asked.get("group"))
        self.draws.append(asked["draw"])
        self.schemas.append(asked.get("schema"))
        self.attempts.append(current_ask.get().attempt)
        return await super().achat(messages, **asked)

    def _next(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        self.asked.append([dict(message) for message in messages])
        reply = self._replies[min(len(self.asked), len(self._replies)) - 1]
        if self._schema or not isinstance(reply, Mapping):
            return reply
        block = re.findall(r"<(verdict-[0-9a-f]{16})>", text_of(messages[-1]))[-1]
        written = json.dumps(reply, ensure_ascii=False)
        return f"I have thought about it.\n<{block}>\n{written}\n</{block}>"

    @property
    def system(self) -> str:
        """The static part of the first prompt."""
        return text_of(self.asked[0][0])

    @property
    def material(self) -> str:
        """The last message of the first prompt."""
        return text_of(self.asked[0][-1])

    @property
    def fenced(self) -> dict[str, str]:
        """The fenced fields of the first prompt, in order."""
        found = {name: unmarked(text) for name, _, text in FENCE.findall(self.material)}
        found.pop("verdict", None)
        return found


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, over all its parts."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def graded(grader: Any, **fields: Any) -> GraderScore:
    """One answer of a grader."""
    score: GraderScore = asyncio.run(grader.aevaluate(**fields))
    return score


def failure(grader: Any, **fields: Any) -> GradingFailure:
    """Why a grader has no answer."""
    with pytest.raises(GradingFailure) as caught:
        graded(grader, **fields)
    return caught.value
