"""Which of a sample's fields a grader gets, read off its signature once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from adjudge.config import nearest
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader, RuleGrader
from adjudge.graders.function import FunctionGrader
from adjudge.rollouts.mapping import MISSING, get_path

__all__ = ["Binding", "Mapper"]

Mapper = Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Where a grader's arguments come from: ``{argument: dotted path}``, or a function of the item.

Arguments that a mapping does not name come from the item's own fields, as without one; what a
function returns is all that the grader gets.
"""


class Binding:
    """The arguments of one grader; raises :class:`ConfigError` for what can never be bound."""

    def __init__(self, name: str, grader: Any, mapper: Mapper | None) -> None:
        self._mapper = mapper
        parameters = _parameters(name, grader)
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._names = tuple(p.name for p in named)
        self._required = tuple(p.name for p in named if p.default is p.empty)
        self._wants_draw = "draw" in self._names
        # The usual case, and the quick one: exactly the named fields, all of them needed.
        self._plain = (
            mapper is None
            and not self._takes_all
            and not self._wants_draw
            and self._required == self._names
        )
        if isinstance(mapper, Mapping) and not self._takes_all:
            for argument in mapper.keys() - set(self._names):
                raise ConfigError(
                    f"grader {name!r}: mapper: it has no argument {argument!r}"
                    f"{nearest(argument, self._names)} (it takes: {', '.join(self._names)})"
                )

    def arguments(self, item: Mapping[str, Any], draw: int) -> Mapping[str, Any]:
        """The keyword arguments for one item; raises ``GradingFailure`` when one is lacking."""
        if self._plain:
            try:
                return {name: item[name] for name in self._names}
            except KeyError:
                pass  # said below, with what there is
        fields = item if self._mapper is None else self._mapped(self._mapper, item)
        chosen = dict(fields) if self._takes_all else {}
        if not self._takes_all:
            chosen = {name: fields[name] for name in self._names if name in fields}
        if self._wants_draw:
            chosen["draw"] = draw
        for name in self._required:
            if name not in chosen:
                raise GradingFailure(
                    ErrorKind.INVALID_INPUT,
                    f"the sample has no field {self._source(name)} "
                    f"(it has: {', '.join(sorted(map(str, item))[:20])})",
                )
        return chosen

    def _source(self, name: str) -> str:
        path = self._mapper.get(name, name) if isinstance(self._mapper, Mapping) else name
        return repr(name) if path == name else f"{path!r} (mapped to {name!r})"

    @staticmethod
    def _mapped(mapper: Mapper, item: Mapping[str, Any]) -> Mapping[str, Any]:
        if callable(mapper):
            return mapper(item)
        found = {argument: get_path(item, path) for argument, path in mapper.items()}
        rest = {name: value for name, value in item.items() if name not in found}
        return rest | {name: value for name, value in found.items() if value is not MISSING}


def _parameters(name: str, grader: Any) -> list[inspect.Parameter]:
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
            f"grader {name!r}: {function!r} does not tell its parameters; wrap it in a function"
        ) from None
    if unnamed := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]:
        raise ConfigError(
            f"grader {name!r}: parameter {unnamed[0]!r} cannot be passed by name; wrap it in a "
            "function that names the fields it needs"
        )
    return [p for p in parameters if p.name not in skipped]
