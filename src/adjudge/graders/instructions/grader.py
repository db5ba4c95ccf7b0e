"""IFEval's instructions as a grader."""

from __future__ import annotations

import json
from typing import Any, Literal

from adjudge.engine.processes import get_pool
from adjudge.graders.base import RuleGrader
from adjudge.graders.instructions.following import Reading, follows
from adjudge.graders.instructions.registry import Check, checks, own_arguments
from adjudge.graders.rules.params import chosen, number
from adjudge.graders.rules.text import NO_FINAL_TEXT, text_of
from adjudge.graders.view import View, view_text
from adjudge.types import GraderScore

__all__ = ["IFEvalGrader", "Level"]

Level = Literal["instruction", "prompt"]


class IFEvalGrader(RuleGrader):
    """The share of a prompt's verifiable instructions that the response follows.

    Range [0, 1]. Fields: ``response`` (text), ``instruction_id_list`` (ids of IFEval's 25 types)
    and ``kwargs`` (their arguments, one mapping for each), the columns of IFEval's own files.
    Source: Zhou et al. (2023) and the behaviour of its published checkers; what is random or
    unseeded there is fixed here (see ``docs/ifeval.md``). Time is linear in the length of the
    response. Nothing is fetched.

    ``level``: ``instruction`` (default) gives the share followed, ``prompt`` 1 when all are
    followed and else 0.
    ``reading``: ``strict`` (default) judges the response as it is; ``loose`` also without
    asterisks, first line and last line, and any of these eight readings is enough.
    ``view``: ``final`` (default) judges what stands after the thinking, and an unclosed ``<think>``
    follows nothing; ``full`` judges the whole response. A blank response follows nothing.

    ``deadline_s`` (default 20): seconds for a response of more than 20,000 characters, which is
    judged in a worker process; then ``GradingFailure(timeout)``.

    A sample without instructions is nothing to judge: 1 with ``evaluable = false``. Raises
    ``ConfigError`` for other parameters; ``GradingFailure(invalid_input)`` for an unknown
    instruction and an argument that is missing or cannot be used, by name, and for a response
    that is not text; ``GradingFailure(unsupported)`` for an instruction about languages without
    ``adjudge[rules]``. Metadata: ``instructions``, the ids, and ``followed``, as many booleans.

    >>> grader = IFEvalGrader()
    >>> ids = ["punctuation:no_comma", "startend:quotation"]
    >>> grader.evaluate("So be it.", ids, [{}, {}]).score
    0.5
    """

    type_name = "ifeval"
    score_range = (0.0, 1.0)

    _INLINE_CHARS = 20_000

    def __init__(
        self,
        level: Level = "instruction",
        reading: Reading = "strict",
        view: View = "final",
        deadline_s: float = 20.0,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        chosen(self.type_name, "level", level, Level)
        chosen(self.type_name, "reading", reading, Reading)
        chosen(self.type_name, "view", view, View)
        number(self.type_name, "deadline_s", deadline_s, 0.01, 600)
        self.level = level
        self.reading: Reading = reading
        self.view: View = view
        self.deadline_s = deadline_s

    def evaluate(self, response: str, instruction_id_list: Any, kwargs: Any) -> GraderScore:
        """Judge one response."""
        asked = checks(instruction_id_list, kwargs)
        text = _seen(text_of(response), self.view)
        if text is None or not asked:
            return self._unread(asked)
        followed = follows(text, [check for _, check in asked], self.reading)
        return self._judged(asked, followed)

    async def aevaluate(self, response: str, instruction_id_list: Any, kwargs: Any) -> GraderScore:
        """Judge one response; a long one in a worker process, since a loop may wait for it."""
        asked = checks(instruction_id_list, kwargs)
        text = _seen(text_of(response), self.view)
        if text is None or not asked or len(text) <= self._INLINE_CHARS:
            return self.evaluate(response, instruction_id_list, kwargs)
        own = [own_arguments(name, row) for (name, _), row in zip(asked, kwargs, strict=True)]
        given = {"ids": [name for name, _ in asked], "kwargs": own}
        followed = await get_pool().call(
            "adjudge.graders.instructions.following:follows_json",
            json.dumps({**given, "response": text, "reading": self.reading}, default=int),
            deadline_s=self.deadline_s,
        )
        return self._judged(asked, followed)

    def _unread(self, asked: list[tuple[str, Check]]) -> GraderScore:
        """The result where nothing is asked, or nothing is there to be judged."""
        if not asked:
            return self._not_applicable(1.0, "no instructions", instructions=[], followed=[])
        ids = [name for name, _ in asked]
        return self._score(0.0, NO_FINAL_TEXT, instructions=ids, followed=[False] * len(ids))

    def _judged(self, asked: list[tuple[str, Check]], followed: list[bool]) -> GraderScore:
        ids = [name for name, _ in asked]
        missed = [name for name, ok in zip(ids, followed, strict=True) if not ok]
        score = sum(followed) / len(ids) if self.level == "instruction" else float(not missed)
        return self._score(score, _reason(missed, len(ids)), instructions=ids, followed=followed)


def _seen(response: str, view: View) -> str | None:
    """What is judged; white space that stood between thinking and answer belongs to neither."""
    text = view_text(response, view)
    return text if text is None or text == response else text.lstrip()


def _reason(missed: list[str], asked: int) -> str:
    return f"not followed: {', '.join(missed)}" if missed else f"all {asked} followed"
