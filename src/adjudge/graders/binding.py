"""A grader bound to a name: which fields of a sample it gets, and its answer as one checked result.

The fields are read off the grader's signature once. Whatever a grader returns
becomes one result: wrapped, stamped, checked. :meth:`BoundGrader.ask` is total: whatever a grader
does, one sample gets one result. Only what the user must mend (``ConfigError``) and cancellation go
through.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat, TypeGuard

from msgspec import structs

from adjudge.config import suggest_name
from adjudge.engine.loop import find_raised
from adjudge.errors import LACKED, ConfigError, ErrorKind, Fields, GradingFailure, Metadata
from adjudge.graders.base import (
    BaseGrader,
    FunctionGrader,
    GraderAnswer,
    GraderTraits,
    RuleGrader,
    is_listwise,
    is_nan,
)
from adjudge.judges.asking import find_error_kind
from adjudge.types import (
    MISSING,
    GraderError,
    GraderRank,
    GraderResult,
    GraderScore,
    Provenance,
    Role,
    get_path,
)

_MESSAGE_LIMIT = 500
_NO_FIELDS: Fields = {}


def _is_number(answer: object) -> TypeGuard[SupportsFloat]:
    """A number of any library (numpy, torch), but no text that could be read as one."""
    return hasattr(answer, "__float__") and not isinstance(answer, str)


_LIBRARIES = (str(Path(__file__).parents[1]), str(Path(inspect.__file__).parent))
"""Where adjudge and the standard library are, and so what is installed beside the latter."""


def find_error_place(error: BaseException) -> str:
    """The last line of the grader's own code, rather than of what that calls."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    own = [one for one in frames if not one.filename.startswith(_LIBRARIES)]
    frame = (own or frames)[-1]
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"


Mapper = Mapping[str, str] | Callable[[Fields], Fields]
"""Where a grader's arguments come from: ``{argument: dotted path}``, or a function of the item.

Arguments that a mapping does not name come from the item's own fields, as without one; what a
function returns is all that the grader gets.
"""


class ArgumentBinding:
    """The arguments of one grader; raises :class:`ConfigError` for what can never be bound."""

    def __init__(self, name: str, grader: Any, mapper: Mapper | None) -> None:
        self._mapper = mapper
        parameters = _grader_parameters(name, grader)
        if isinstance(grader, FunctionGrader):
            _refuse_trainer_form(name, parameters, mapper)
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._names = tuple(p.name for p in named)
        self._required = tuple(p.name for p in named if p.default is p.empty)
        self.wants_draw = "draw" in self._names
        # The usual case, and the quick one: exactly the named fields, all of them needed.
        self._plain = (
            mapper is None
            and not self._takes_all
            and not self.wants_draw
            and self._required == self._names
        )
        if isinstance(mapper, Mapping) and not self._takes_all:
            for argument in mapper.keys() - set(self._names):
                raise ConfigError(
                    f"grader {name!r}: mapper: the grader has no such argument"
                    f"{suggest_name(argument, self._names)} (found {argument!r}; "
                    f"allowed: {', '.join(self._names)})"
                )

    def arguments(self, item: Fields, draw: int) -> Fields:
        """The keyword arguments for one item; raises ``GradingFailure`` when one is lacking."""
        if self._plain:
            try:
                return {name: item[name] for name in self._names}
            except KeyError:
                pass  # said below, with what there is
        fields = item if self._mapper is None else self._mapped(self._mapper, item)
        if self._takes_all:  # NaN is null, as tables write it: nothing to show to a judge
            chosen = {k: None if is_nan(value) else value for k, value in fields.items()}
        else:
            chosen = {name: fields[name] for name in self._names if name in fields}
        if self.wants_draw:
            chosen["draw"] = draw
        for name in self._required:
            if name not in chosen:
                raise GradingFailure(
                    ErrorKind.INVALID_INPUT,
                    f"the sample has no field {self._source(name)} "
                    f"(it has: {', '.join(sorted(map(str, item))[:20])})",
                    {LACKED: [name]},
                )
        return chosen

    def lacked_fields(self, failure: GraderError, arguments: Fields) -> list[str]:
        """The fields of the sample for lack of which a grader failed: absent, or null.

        The grader names them, or they are those that it needs. Empty where something else is wrong
        (a bug, what a judge's server refuses), or where a function maps fields, so that it
        is unknown which field was looked for.
        """
        paths = {} if self._mapper is None else self._mapper
        refused = failure.suspect or "status" in failure.metadata
        if callable(paths) or refused or failure.kind is not ErrorKind.INVALID_INPUT:
            return []
        nulls = [name for name in self._required if arguments.get(name, MISSING) is None]
        return [paths.get(name, name) for name in failure.metadata.get(LACKED, nulls)]

    def _source(self, name: str) -> str:
        path = self._mapper.get(name, name) if isinstance(self._mapper, Mapping) else name
        return repr(name) if path == name else f"{path!r} (mapped to {name!r})"

    @staticmethod
    def _mapped(mapper: Mapper, item: Fields) -> Fields:
        if callable(mapper):
            return mapper(item)
        found = {argument: get_path(item, path) for argument, path in mapper.items()}
        rest = {name: value for name, value in item.items() if name not in found}
        return rest | {name: value for name, value in found.items() if value is not MISSING}


_TRAINER_PARAMETERS = {"completions": "TRL", "solution_str": "verl"}
"""Parameters that only a reward function written for a trainer has."""


def _refuse_trainer_form(
    name: str, parameters: Sequence[inspect.Parameter], mapper: Mapper | None
) -> None:
    """A reward function in a trainer's own form would find none of its fields, in any trainer."""
    mapped = () if mapper is None else _TRAINER_PARAMETERS if callable(mapper) else mapper
    for found in {one.name for one in parameters} & _TRAINER_PARAMETERS.keys() - set(mapped):
        raise ConfigError(
            f"graders.{name}.{found}: is a parameter of reward functions for "
            f"{_TRAINER_PARAMETERS[found]}, and no field of a sample. Name fields of one sample "
            "(prompt, response, messages, reference, columns), or map it: mapper = "
            f'{{ {found} = "response" }}.'
        )


def list_fields(type_name: str, cls: type) -> list[str]:
    """The fields of a sample that graders of a class name, as they are before one is built."""
    parameters = _grader_parameters(type_name, object.__new__(cls))
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "draw"]


def _grader_parameters(name: str, grader: Any) -> list[inspect.Parameter]:
    """The parameters that name a grader's fields.

    ``evaluate`` speaks for a rule grader or a wrapped function, ``_aevaluate`` for a grader of
    py-openjudge, whose public method takes ``executor`` and ``**kwargs``.
    """
    function, skipped = grader.aevaluate, set[str]()
    if isinstance(grader, RuleGrader | FunctionGrader):
        if type(grader).aevaluate in (RuleGrader.aevaluate, FunctionGrader.aevaluate):
            function = grader.evaluate
    elif not isinstance(grader, BaseGrader) and hasattr(grader, "_aevaluate"):
        function, skipped = grader._aevaluate, {"executor"}  # noqa: SLF001  (their hook)
    if isinstance(function, functools.partial):
        skipped |= function.keywords.keys()
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        raise ConfigError(
            f"grader {name!r}: the parameters of {function!r} cannot be read. Wrap it in a "
            "function."
        ) from None
    if unnamed := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]:
        raise ConfigError(
            f"grader {name!r}: parameter {unnamed[0]!r} cannot be passed by name. Wrap it in a "
            "function that names the fields it needs."
        )
    return [p for p in parameters if p.name not in skipped]


@dataclass(frozen=True)
class GraderConfig:
    """A grader, where its arguments come from, and its weight.

    ``weight`` is for those who aggregate (0: report only); the runner itself weighs nothing.

    >>> from adjudge import FunctionGrader, GradingRunner
    >>> brief = FunctionGrader(lambda response: len(response) < 10, "brief", score_range=(0, 1))
    >>> runner = GradingRunner({"brief": GraderConfig(brief, {"response": "answer.text"})})
    >>> runner.run([{"answer": {"text": "yes"}}])["brief"][0].score
    1.0
    """

    grader: Any
    mapper: Mapper | None = None
    weight: float = 1.0

    @classmethod
    def create(cls, config: object) -> GraderConfig:
        """From a config, a grader, a ``(grader, mapper)`` pair or a dict of the fields."""
        if isinstance(config, cls):
            return config
        try:
            if isinstance(config, tuple):
                return cls(*config)
            if isinstance(config, dict):
                return cls(**config)
        except TypeError as error:
            raise ConfigError(f"the grader configuration is invalid: {error}") from None
        return cls(config)


def check_machines(graders: Fields, where: str = "") -> None:
    """Raise :class:`ConfigError` for all that this machine lacks: sandbox, package, key, device.

    Whatever begins to grade calls it before the first sample.
    """
    lacking = []
    for name, grader in graders.items():
        if (check := GraderTraits.of(grader).check_machine) is not None:
            try:
                check()
            except ConfigError as error:
                lacking.append(f"{where}graders.{name}: {error}")
    if lacking:
        raise ConfigError("\n".join(lacking))


class BoundGrader:
    """One configured grader under its name in the run, and what it may answer."""

    def __init__(self, name: str, config: GraderConfig) -> None:
        grader = config.grader
        if not hasattr(grader, "aevaluate"):
            remedy = "Derive it from BaseGrader, or wrap a function in FunctionGrader."
            if hasattr(grader, "_aevaluate"):  # a class written for py-openjudge
                remedy = "Rename its _aevaluate to aevaluate."
            raise ConfigError(f"grader {name!r}: {grader!r} has no aevaluate method. {remedy}")
        self.name = name
        traits, self._listwise = GraderTraits.of(grader), is_listwise(grader)
        self.role, self._range = traits.role, traits.score_range
        binding = ArgumentBinding(name, grader, config.mapper)
        self._arguments, self.takes_draw = binding.arguments, binding.wants_draw
        self._lacked_fields = binding.lacked_fields
        self._call = grader.aevaluate
        self._is_coroutine = inspect.iscoroutinefunction(self._call)
        self._check, self.asks_again = traits.check_fields, bool(traits.asks_again)
        # A rule's own function spares a coroutine per sample.
        plain = isinstance(grader, RuleGrader) and type(grader).aevaluate is RuleGrader.aevaluate
        self._rule = grader.evaluate if plain else None
        low, high = self._range or (None, None)
        if self.role is Role.PENALTY:
            high = min(0.0, 0.0 if high is None else high)
        largest = sys.float_info.max  # not infinity: no score is infinite
        self._low = max(-largest, -largest if low is None else low)
        self._high = min(largest, largest if high is None else high)
        # A plain number within the range is the usual answer, and the quick one.
        quick = not self._listwise and self.role is not Role.GATE
        self._quick = (self._low, self._high) if quick else (1.0, 0.0)

    def check_fields(self, item: Fields) -> None:
        """Raise what the grader's own ``check_fields`` has against such an item, if it has one."""
        if self._check is not None:
            self._check(self._arguments(item, 0))

    def _awaitable(self, asked: object) -> Awaitable[GraderAnswer]:
        if inspect.isawaitable(asked):
            return asked
        raise ConfigError(
            f"grader {self.name!r}: aevaluate must be `async def` (found a function that returned "
            f"{type(asked).__name__}). Write async, or derive from RuleGrader and call it evaluate."
        )

    async def ask(self, item: Fields, draw: int = 0) -> GraderResult:
        """One result for one item, whatever the grader does; see the module."""
        arguments = _NO_FIELDS
        try:
            arguments = self._arguments(item, draw)
            if self._rule is not None:
                answer = self._rule(**arguments)
            else:
                asked = self._call(**arguments)
                answer = await (asked if self._is_coroutine else self._awaitable(asked))
            if type(answer) is float:
                low, high = self._quick
                if low <= answer <= high:
                    return GraderScore(self.name, answer, "", {}, self._range, self.role)
            result = self._check_answer(answer)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._explain(error)
        except GeneratorExit:  # closed with the loop
            raise
        except BaseException as error:  # noqa: BLE001
            # A grader's bug, or its wish to exit, is that sample's result and nobody else's.
            result = self._explain(error)
        if isinstance(result, GraderError) and (lacks := self._lacked_fields(result, arguments)):
            metadata = {**result.metadata, LACKED: lacks}
            return structs.replace(result, metadata=metadata)
        return result

    def _check_answer(self, answer: object) -> GraderResult:
        """``answer`` as a result; what it may not be is a ``GraderError``."""
        if isinstance(answer, GraderError) or (self._listwise and isinstance(answer, GraderRank)):
            return answer
        if not self._listwise and isinstance(answer, GraderScore):
            return self._stamp(answer)
        if not self._listwise and _is_number(answer):
            return self._read_number(answer)
        return self._read_foreign(answer)

    def _read_foreign(self, answer: Any) -> GraderResult:
        """A result object of another package (py-openjudge), read by its attributes."""
        metadata = dict(getattr(answer, "metadata", None) or {})
        reason = str(getattr(answer, "reason", "") or "")
        if hasattr(answer, "rank") and self._listwise:
            return GraderRank(self.name, list(answer.rank), reason, metadata)
        if hasattr(answer, "score") and not self._listwise:
            if _is_number(answer.score):
                return self._read_number(answer.score, reason, metadata)
            return self._error(ErrorKind.BUG, f"score {answer.score!r} is not a number")
        if hasattr(answer, "error"):
            return self._error(ErrorKind.BUG, str(answer.error), metadata)
        wanted = "a GraderRank" if self._listwise else "a GraderScore or a number"
        return self._error(ErrorKind.BUG, f"must return {wanted}, got {type(answer).__name__}")

    def _read_number(
        self, number: SupportsFloat, reason: str = "", metadata: Metadata | None = None
    ) -> GraderResult:
        score = float(number)
        if not math.isfinite(score):
            return self._error(ErrorKind.OUT_OF_RANGE, f"score {score!r} is not a finite number")
        return self._stamp(GraderScore(self.name, score, reason, metadata or {}))

    def _stamp(self, score: GraderScore) -> GraderResult:
        """``score`` with this grader's role and range, in which it must be."""
        gate = self.role is Role.GATE
        if score.score not in (0.0, 1.0) if gate else not self._low <= score.score <= self._high:
            wanted = "0 or 1" if gate else f"[{self._low}, {self._high}]"
            return self._error(
                ErrorKind.OUT_OF_RANGE,
                f"score {score.score!r} is not in {wanted}",
                {**score.metadata, "reason": score.reason[:_MESSAGE_LIMIT]},
                score.provenance,
            )
        if score.score_range == self._range and score.role is self.role:
            return score
        return structs.replace(score, score_range=self._range, role=self.role)

    def _explain(self, error: BaseException) -> GraderError:
        """The result of an answer that did not come: its kind by the exception.

        ``ConfigError`` is raised again: what the user wrote is as wrong for every other item.
        """
        if isinstance(error, ConfigError):
            raise error
        if isinstance(error, GradingFailure):
            return self._error(error.kind, str(error), error.metadata, error.provenance)
        error = find_raised(error)
        kind = find_error_kind(error)
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = "the grader cancelled itself" if kind is ErrorKind.CANCELLED else said
        at = {"at": find_error_place(error)} if kind is ErrorKind.BUG else {}
        return self._error(kind, message, at)

    def _error(
        self,
        kind: ErrorKind,
        message: str,
        metadata: Metadata | None = None,
        provenance: Provenance | None = None,
    ) -> GraderError:
        message = message[:_MESSAGE_LIMIT]
        return GraderError(self.name, kind, message, metadata or {}, self.role, provenance)
