"""A grader made ready to be asked many times: arguments bound, answers settled.

:meth:`Question.ask` is total: whatever a grader does, one sample gets one result.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader, RuleGrader, is_listwise
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.types import GraderError, GraderRank, GraderResult, GraderScore, Role

__all__ = ["GraderConfig", "Mapper", "Question"]

Mapper = Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From a dataset item to a grader's arguments: ``{argument: dotted path}`` or a function."""

_MESSAGE_LIMIT = 500


@dataclass(frozen=True)
class GraderConfig:
    """A grader, where its arguments come from, and its weight; weight 0 means report only."""

    grader: Any
    mapper: Mapper | None = None
    weight: float = 1.0

    @classmethod
    def create(cls, config: Any) -> GraderConfig:
        """From a config, a grader, a ``(grader, mapper)`` pair or a dict of the fields."""
        if isinstance(config, cls):
            return config
        if isinstance(config, tuple):
            return cls(*config)
        if isinstance(config, dict):
            return cls(**config)
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
        self.mapper = config.mapper
        self.role = Role(getattr(grader, "role", Role.SCORE))
        self.score_range = getattr(grader, "score_range", None)
        self.listwise = is_listwise(grader)
        self._quick = not self.listwise and self.role is not Role.GATE
        self._call = grader.aevaluate
        self._low, self._high = _bounds(self.score_range, self.role)
        parameters = _parameters(grader)
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._names = tuple(p.name for p in named)
        self._required = tuple(p.name for p in named if p.default is p.empty)
        self._all_required = not self._takes_all and self._required == self._names
        # A rule's own function spares a coroutine per sample.
        plain = isinstance(grader, RuleGrader) and type(grader).aevaluate is RuleGrader.aevaluate
        self._rule = grader.evaluate if plain else None

    def arguments(self, item: Mapping[str, Any], draw: int) -> Mapping[str, Any]:
        """The keyword arguments for one item; raises ``GradingFailure`` when one is lacking."""
        fields = item if self.mapper is None else self._mapped(item)
        if self._all_required:
            try:
                return {name: fields[name] for name in self._names}
            except KeyError:
                pass  # said below, with what there is
        if self._takes_all:
            chosen: Mapping[str, Any] = fields
        else:
            chosen = {name: fields[name] for name in self._names if name in fields}
            if draw and "draw" in self._names:
                chosen["draw"] = draw
        for name in self._required:
            if name not in chosen:
                raise GradingFailure(
                    ErrorKind.INVALID_INPUT,
                    f"the sample has no field {name!r} (it has: {', '.join(sorted(fields)[:20])})",
                )
        return chosen

    def _mapped(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        if callable(self.mapper):
            return self.mapper(item)
        found = {argument: get_path(item, path) for argument, path in (self.mapper or {}).items()}
        return {argument: value for argument, value in found.items() if value is not MISSING}

    async def ask(self, item: Mapping[str, Any], draw: int = 0) -> GraderResult:  # noqa: PLR0911
        """One result for one item, whatever the grader does; only cancellation goes through."""
        try:
            arguments = self.arguments(item, draw)
            if self._rule is not None:
                answer = self._rule(**arguments)
            else:
                answer = await self._call(**arguments)
            if type(answer) is float and self._quick and self._low <= answer <= self._high:
                return GraderScore(self.name, answer, "", {}, self.score_range, self.role)
            return self._settle(answer)
        except GradingFailure as failure:
            return self._error(failure.kind, str(failure), failure.metadata)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._error(ErrorKind.CANCELLED, "the grader cancelled itself")
        except TimeoutError as error:
            return self._error(ErrorKind.TIMEOUT, _describe(error))
        except ConnectionError as error:
            return self._error(ErrorKind.CONNECTION, _describe(error))
        except Exception as error:  # noqa: BLE001  (a grader's bug is that sample's result)
            return self._error(ErrorKind.BUG, _describe(error), {"at": _innermost(error)})

    def _settle(self, answer: Any) -> GraderResult:
        """Any answer as a result of ours: wrapped, stamped and checked against the range."""
        if isinstance(answer, GraderError):
            return answer
        if isinstance(answer, GraderRank):
            return answer if self.listwise else self._wrong(answer)
        if isinstance(answer, GraderScore):
            return self._stamped(answer)
        if isinstance(answer, bool | int | float):
            return self._stamped(self._wrapped(float(answer)))
        return self._foreign(answer)

    def _wrapped(self, score: float) -> GraderScore | GraderError:
        if not math.isfinite(score):
            return self._error(ErrorKind.OUT_OF_RANGE, f"score {score!r} is not a finite number")
        return GraderScore(self.name, score)

    def _stamped(self, score: GraderScore | GraderError) -> GraderResult:
        if isinstance(score, GraderError):
            return score
        if self.listwise:
            return self._wrong(score)
        if not self._allowed(score.score):
            wanted = "0 or 1" if self.role is Role.GATE else f"[{self._low}, {self._high}]"
            return self._error(
                ErrorKind.OUT_OF_RANGE,
                f"score {score.score!r} is not in {wanted}",
                {"reason": score.reason[:_MESSAGE_LIMIT]},
            )
        if score.score_range == self.score_range and score.role is self.role:
            return score
        return GraderScore(
            score.name,
            score.score,
            score.reason,
            score.metadata,
            self.score_range,
            self.role,
            score.provenance,
        )

    def _allowed(self, score: float) -> bool:
        if self.role is Role.GATE:
            return score in (0.0, 1.0)
        return self._low <= score <= self._high

    def _foreign(self, answer: Any) -> GraderResult:
        """A result object of another package (py-openjudge), read by its attributes."""
        metadata = dict(getattr(answer, "metadata", None) or {})
        reason = str(getattr(answer, "reason", "") or "")
        if hasattr(answer, "score"):
            score = answer.score
            if isinstance(score, bool | int | float) and math.isfinite(score):
                return self._stamped(GraderScore(self.name, float(score), reason, metadata))
            return self._error(ErrorKind.OUT_OF_RANGE, f"score {score!r} is not a finite number")
        if hasattr(answer, "rank") and self.listwise:
            return GraderRank(self.name, list(answer.rank), reason, metadata)
        if hasattr(answer, "error"):
            return self._error(ErrorKind.BUG, str(answer.error), metadata)
        return self._wrong(answer)

    def _wrong(self, answer: Any) -> GraderError:
        wanted = "a GraderRank" if self.listwise else "a GraderScore or a number"
        return self._error(ErrorKind.BUG, f"must return {wanted}, got {type(answer).__name__}")

    def _error(
        self, kind: ErrorKind, message: str, metadata: dict[str, Any] | None = None
    ) -> GraderError:
        return GraderError(self.name, kind, message[:_MESSAGE_LIMIT], metadata or {}, self.role)


def _bounds(score_range: Any, role: Role) -> tuple[float, float]:
    low, high = score_range or (None, None)
    if role is Role.PENALTY:
        high = min(0.0, 0.0 if high is None else high)
    largest = sys.float_info.max  # not infinity: no score is infinite
    return (-largest if low is None else low), (largest if high is None else high)


def _parameters(grader: Any) -> list[inspect.Parameter]:
    """The parameters that name a grader's fields.

    ``evaluate`` speaks for a rule grader, ``_aevaluate`` for one of py-openjudge, whose public
    methods take ``**kwargs``.
    """
    parameters = _named(grader.aevaluate)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return parameters
    hooks = ("evaluate",) if isinstance(grader, BaseGrader) else ("_aevaluate",)
    for hook in hooks:
        if callable(method := getattr(grader, hook, None)):
            return _named(method)
    return parameters


def _named(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.name not in ("self", "executor")]


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _innermost(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frame = frames[-1]
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
