"""A grader made ready to be asked many times.

:meth:`Question.ask` is total: whatever a grader does, one sample gets one result. Only what the
user must mend (``ConfigError``) and cancellation go through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adjudge.errors import ConfigError
from adjudge.graders.base import RuleGrader, is_listwise
from adjudge.runner.answers import Answers
from adjudge.runner.binding import Binding, Mapper
from adjudge.types import GraderResult, GraderScore, Role

__all__ = ["GraderConfig", "Question"]


@dataclass(frozen=True)
class GraderConfig:
    """A grader, where its arguments come from, and its weight.

    ``weight`` is for those who aggregate (0: report only); the runner itself weighs nothing.
    """

    grader: Any
    mapper: Mapper | None = None
    weight: float = 1.0

    @classmethod
    def create(cls, config: Any) -> GraderConfig:
        """From a config, a grader, a ``(grader, mapper)`` pair or a dict of the fields."""
        if isinstance(config, cls):
            return config
        try:
            if isinstance(config, tuple):
                return cls(*config)
            if isinstance(config, dict):
                return cls(**config)
        except TypeError as error:
            raise ConfigError(f"not a grader configuration: {error}") from None
        return cls(config)


class Question:
    """One configured grader under its name in the run."""

    def __init__(self, name: str, config: GraderConfig) -> None:
        grader = config.grader
        if not callable(getattr(grader, "aevaluate", None)):
            raise ConfigError(
                f"grader {name!r}: {grader!r} has no aevaluate method; derive from BaseGrader or "
                "wrap a function in FunctionGrader"
            )
        self.name = name
        role = Role(getattr(grader, "role", Role.SCORE))
        score_range = getattr(grader, "score_range", None)
        listwise = is_listwise(grader)
        self._answers = Answers(name, role, score_range, listwise=listwise)
        self._arguments = Binding(name, grader, config.mapper).arguments
        self._call = grader.aevaluate
        # A rule's own function spares a coroutine per sample.
        plain = isinstance(grader, RuleGrader) and type(grader).aevaluate is RuleGrader.aevaluate
        self._rule = grader.evaluate if plain else None
        # A plain number within the range is the usual answer, and the quick one.
        quick = not listwise and role is not Role.GATE
        self._low, self._high = (self._answers.low, self._answers.high) if quick else (1.0, 0.0)
        self._range, self._role = score_range, role

    async def ask(self, item: Mapping[str, Any], draw: int = 0) -> GraderResult:
        """One result for one item, whatever the grader does; see the module."""
        try:
            arguments = self._arguments(item, draw)
            if self._rule is not None:
                answer = self._rule(**arguments)
            else:
                answer = await self._call(**arguments)
            if type(answer) is float and self._low <= answer <= self._high:
                return GraderScore(self.name, answer, "", {}, self._range, self._role)
            return self._answers.result(answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._answers.failure(error)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
            # A grader's bug, or its wish to exit, is that sample's result and nobody else's.
            return self._answers.failure(error)
