"""A row's constraints: which a rule checks, which a judge reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.text import shown

__all__ = ["Constraints", "Rule", "parse_constraints"]

_MOST = 200
_MOST_CHARS = 4_000
_MOST_SOURCE = 20_000
_KINDS = ("[llm]", "[rule]")


@dataclass(frozen=True)
class Rule:
    """A constraint that a function checks: its name, its text, the function's source."""

    name: str
    text: str
    source: str = ""


@dataclass(frozen=True)
class Constraints:
    """What one row demands: ``soft`` texts for a judge, ``rules`` for the sandbox."""

    soft: tuple[str, ...]
    rules: tuple[Rule, ...]


def parse_constraints(value: Any, *, where: str, runs: bool) -> Constraints:
    """The constraints of ``value``: a mapping ``{checkers, functions}``, or its JSON text.

    ``checkers`` are texts ``[llm] Name: text`` or ``[rule] Name: text``; ``functions`` stand beside
    them one by one, and those of ``[llm]`` are never looked at. With ``runs`` every rule needs its
    function. Raises ``GradingFailure(invalid_input)`` that names ``where`` and what is wrong.

    >>> found = parse_constraints({"checkers": ["[llm] Tone: polite"]}, where="x", runs=False)
    >>> found.soft
    ('Tone: polite',)
    """
    row = _mapping(value, where)
    checkers = _texts(row.get("checkers"), f"{where}.checkers")
    given = row.get("functions")
    functions = given if isinstance(given, list | tuple) else None
    if functions is not None and len(functions) != len(checkers):
        raise _invalid(
            f"{where}: has {len(checkers)} checkers and {len(functions)} functions, must be as many"
        )
    soft, rules = [], []
    for place, checker in enumerate(checkers):
        kind, text = _parted(checker, f"{where}.checkers[{place}]")
        if kind == "[llm]":
            soft.append(text)
            continue
        own = functions[place] if functions is not None else None
        source = _source(own, f"{where}.functions[{place}]") if runs else ""
        rules.append(Rule(shown(text.partition(":")[0].strip(), 60), text, source))
    return Constraints(tuple(soft), tuple(rules))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _invalid(f"{where}: is text but not JSON: {shown(error)}") from None
    if not isinstance(value, Mapping):
        raise _invalid(
            f"{where}: is {type(value).__name__}, must be an object with checkers and functions"
        )
    return value


def _texts(value: Any, where: str) -> list[str]:
    if not isinstance(value, list | tuple) or not value:
        found = "empty" if isinstance(value, list | tuple) else type(value).__name__
        raise _invalid(f"{where}: is {found}, must be a list of texts")
    if len(value) > _MOST:
        raise _invalid(f"{where}: has {len(value)} entries, at most {_MOST} are read")
    for place, one in enumerate(value):
        if not isinstance(one, str) or len(one) > _MOST_CHARS:
            raise _invalid(f"{where}[{place}]: must be text of at most {_MOST_CHARS} characters")
    return list(value)


def _parted(checker: str, where: str) -> tuple[str, str]:
    """``[llm]`` or ``[rule]``, and the text after it on one line."""
    text = checker.strip()
    for kind in _KINDS:
        if text[: len(kind)].lower() == kind:
            if rest := " ".join(text[len(kind) :].split()):
                return kind, rest
            raise _invalid(f"{where}: {kind} says nothing")
    raise _invalid(f"{where}: must begin with [llm] or [rule]; found {shown(text[:40])!r}")


def _source(value: Any, where: str) -> str:
    if isinstance(value, str) and value.strip() and len(value) <= _MOST_SOURCE:
        return value
    found = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
    raise _invalid(
        f"{where}: must be Python source that defines check_following(instruction, response), of "
        f"at most {_MOST_SOURCE} characters; found {found} (skip_rules = true asks the judge)"
    )


def _invalid(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)
