"""One question asked of a sample: the class to derive from, and what may be answered."""

from __future__ import annotations

from typing import Any, ClassVar

from adjudge.errors import Cause, ErrorKind, GradingFailure
from adjudge.types import GraderError, GraderMode, GraderRank, GraderScore, Role, ScoreRange

__all__ = ["Answer", "BaseGrader", "RuleGrader", "first_line", "is_listwise"]

Answer = GraderScore | GraderRank | GraderError | float | bool
"""What a grader may return: a result, or a bare number that the runner wraps."""


class BaseGrader:
    """One question asked of a sample (or of a group), answered by :meth:`aevaluate`.

    Derive, set ``score_range`` (lowest, highest; ``None`` is an open end) and ``role``, and write
    ``async def aevaluate(self, ...)`` naming the fields it needs: the runner passes exactly the
    fields that the signature names, so ``messages``, ``prompt``, ``response``, ``reference`` and
    any extra column are there by name; a parameter without default that a sample lacks is
    ``GraderError(invalid_input)``. ``**fields`` receives everything.

    A grader holds configuration and no per-call state: one object serves many samples at once.
    Return a :class:`~adjudge.GraderScore` or a number; raise
    :class:`~adjudge.GradingFailure` for "cannot say". Any other exception becomes
    ``GraderError(bug)`` for that sample alone.
    """

    score_range: ScoreRange | None = None
    role: Role = Role.SCORE
    is_rule: bool = False
    """Computed without a judge, so it may stand in for one (``[missing] fallback``)."""
    fingerprint: str = ""
    """A digest of what answers depend on beside the parameters: files that were read."""

    def __init__(
        self, name: str = "", mode: GraderMode = GraderMode.POINTWISE, description: str = ""
    ) -> None:
        self.name = name or type(self).__name__
        self.mode = GraderMode(mode)
        self.description = description

    # Each grader names the fields it takes, so the base cannot fix a signature.
    aevaluate: Any

    def _candidate_fault(self, reason: str, **metadata: Any) -> GraderScore:
        """The grader's minimum, for what the candidate alone brought about: a verdict.

        An answer that is empty or unfinished, or that alone exceeds a budget of processor time,
        memory or size. ``metadata["cause"]`` says ``candidate``. Raises
        ``GradingFailure(invalid_input)`` where the scale has no lower end.
        """
        low = 0.0 if self.role is Role.GATE else (self.score_range or (None, None))[0]
        if low is None:
            message = f"{reason}, and {self.name} has no lowest score; set score_range"
            raise GradingFailure(ErrorKind.INVALID_INPUT, message, {"suspect": True})
        metadata["cause"] = str(Cause.CANDIDATE)
        return GraderScore(self.name, low, reason, metadata, self.score_range, self.role)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class RuleGrader(BaseGrader):
    """A grader that needs no judge: derive and write a pure synchronous ``evaluate``.

    One that must wait (for a killable process, a sandbox) writes ``aevaluate`` instead. The shipped
    ones are registered under ``type_name`` (the ``type`` of a reward spec).
    """

    type_name: ClassVar[str] = ""
    is_rule = True

    def __init__(self, name: str = "", description: str = "") -> None:
        super().__init__(
            name or self.type_name, GraderMode.POINTWISE, description or first_line(type(self))
        )

    # Each grader names the fields it takes, so the base cannot fix a signature.
    evaluate: Any

    async def _awaited(self, *arguments: Any, **fields: Any) -> Answer:
        """:meth:`evaluate`, for callers that await; fields by place or by name."""
        answer: Answer = self.evaluate(*arguments, **fields)
        return answer

    aevaluate: Any = _awaited

    def _score(self, score: float, reason: str = "", **metadata: Any) -> GraderScore:
        return GraderScore(self.name, score, reason, metadata, self.score_range, self.role)

    def _not_applicable(self, score: float, reason: str, **metadata: Any) -> GraderScore:
        """The grader's stated value where there was nothing to judge; reports count it apart."""
        return self._score(score, reason, evaluable=False, **metadata)


def is_listwise(grader: Any) -> bool:
    """Whether ``grader`` (of this package or another) sees whole groups."""
    mode = getattr(grader, "mode", GraderMode.POINTWISE)
    return bool(getattr(mode, "value", mode) == GraderMode.LISTWISE.value)


def first_line(cls: type) -> str:
    """The first line of a class's docstring: what a shipped grader is described by."""
    return (cls.__doc__ or "").strip().partition("\n")[0]
