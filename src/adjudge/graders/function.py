"""Any function as a grader."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from adjudge.graders.base import Answer, BaseGrader
from adjudge.types import GraderMode, Role, ScoreRange

__all__ = ["FunctionGrader"]


class FunctionGrader(BaseGrader):
    """A grader made of a function, synchronous or asynchronous.

    The function's parameters name the sample's fields it needs; it returns a number or a
    :class:`~adjudge.GraderScore` (a :class:`~adjudge.GraderRank` when listwise) and may raise
    :class:`~adjudge.GradingFailure`. A synchronous function runs on the event loop, so it should
    be quick; ``blocking=True`` runs one that waits (a request, a file) in a thread instead.

    >>> from adjudge.runner import GradingRunner
    >>> def brief(response: str) -> float:
    ...     return 1.0 if len(response) < 10 else 0.0
    >>> runner = GradingRunner({"brief": FunctionGrader(brief, score_range=(0, 1))})
    >>> [r.score for r in runner.run([{"response": "yes"}, {"response": "y" * 10}])["brief"]]
    [1.0, 0.0]
    """

    def __init__(
        self,
        func: Callable[..., Any],
        name: str = "",
        mode: GraderMode = GraderMode.POINTWISE,
        description: str = "",
        score_range: ScoreRange | None = None,
        role: Role = Role.SCORE,
        blocking: bool = False,
    ) -> None:
        fallback = getattr(func, "__name__", type(func).__name__)
        super().__init__(name or fallback, mode, description or (inspect.getdoc(func) or ""))
        self.func = func
        self.score_range = score_range
        self.role = role
        self.blocking = blocking

    @property
    def evaluate(self) -> Callable[..., Any]:
        """The function itself: its signature names the fields to pass."""
        return self.func

    async def aevaluate(self, *arguments: Any, **fields: Any) -> Answer:
        """Call the function; what it raises goes through."""
        if self.blocking:
            answer = await asyncio.to_thread(self.func, *arguments, **fields)
        else:
            answer = self.func(*arguments, **fields)
        if inspect.isawaitable(answer):
            answer = await answer
        result: Answer = answer
        return result
