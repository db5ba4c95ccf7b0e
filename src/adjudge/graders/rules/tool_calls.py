"""Tool calls against reference tool calls: how many are right, and do they come in order."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import chosen, flag
from adjudge.graders.rules.trajectory import (
    ToolCall,
    calls_by_turn,
    decode_arguments,
    invalid,
    parse_call,
)
from adjudge.types import GraderScore

__all__ = ["ToolCallPrecisionRecallMatchGrader", "ToolCallStepSequenceMatchGrader"]

_Metric = Literal["precision", "recall", "f1"]
_StepMetric = Literal["precision", "recall"]


class ToolCallPrecisionRecallMatchGrader(RuleGrader):
    """How many tool calls are among the reference calls (precision), and how many of those occur.

    Range [0, 1]. Fields: ``reference_tool_calls``, and ``tool_calls`` or else ``messages`` (all
    calls of the assistant, answered or not). Calls are matched as multisets, each reference once;
    with m matches among p calls and r references: precision m/p, recall m/r, F1 2m/(p + r), and
    0 where the denominator is 0. Source: the py-openjudge 0.2.4 definition
    (``ToolCallPrecisionRecallMatchGrader``), which has no F1 and reads broken arguments as none.
    No call and no reference: 1.0 with ``evaluable = false``.

    ``metric_type``: ``recall`` (default), ``precision`` or ``f1``.
    ``match_arguments`` (default false): arguments must be equal too, as JSON values: the order of
    keys does not matter, 1 equals 1.0, true does not equal 1, a missing or empty string is {}.

    A call is ``{"name", "arguments"}`` or ``{"function": {"name", "arguments"}}`` with arguments as
    an object or a JSON string; ``tool_calls`` and ``reference_tool_calls`` may be JSON strings, and
    may have a list per step. Raises ``GradingFailure(invalid_input)`` when the reference is
    missing, when there is neither ``tool_calls`` nor ``messages``, and when either cannot be read.
    Metadata: ``matched``, ``calls``, ``references``, ``precision``, ``recall``.

    >>> grader = ToolCallPrecisionRecallMatchGrader("precision", match_arguments=True)
    >>> look = {"name": "look", "arguments": {"x": 1, "y": 2}}
    >>> grader.evaluate([look], [{"name": "look", "arguments": '{"y": 2.0, "x": 1}'}, look]).score
    0.5
    """

    type_name = "tool_call_match"
    score_range = (0.0, 1.0)

    def __init__(
        self, metric_type: _Metric = "recall", match_arguments: bool = False, *, name: str = ""
    ) -> None:
        super().__init__(name)
        chosen(self.type_name, "metric_type", metric_type, _Metric)
        flag(self.type_name, "match_arguments", match_arguments)
        self.metric_type: _Metric = metric_type
        self.match_arguments = match_arguments

    def evaluate(
        self, reference_tool_calls: Any = None, tool_calls: Any = None, messages: Any = None
    ) -> GraderScore:
        """The score of one sample."""
        references = _flat(_reference_steps(reference_tool_calls))
        calls = _flat(_predicted(tool_calls, messages))
        counts = {"calls": len(calls), "references": len(references)}
        if not calls and not references:
            return self._not_applicable(1.0, _NOTHING, **counts)
        wanted, made = self._identities(references), self._identities(calls)
        matched = (wanted & made).total()
        values = {
            "precision": _ratio(matched, len(calls)),
            "recall": _ratio(matched, len(references)),
            "f1": 2 * matched / (len(calls) + len(references)),
        }
        return self._score(
            values[self.metric_type],
            f"{matched} of {len(calls)} calls match {len(references)} references",
            matched=matched,
            precision=values["precision"],
            recall=values["recall"],
            **counts,
        )

    def _identities(self, calls: list[_Call]) -> Counter[_Call | str]:
        return Counter(calls if self.match_arguments else [call.name for call in calls])


class ToolCallStepSequenceMatchGrader(RuleGrader):
    """How well the tool calls follow a reference sequence, as one set or step by step.

    Range [0, 1]. Fields: ``messages`` (OpenAI chat format; each assistant message with tool calls
    is a step) and ``reference_tool_calls`` (a list of steps, each a list of calls; a call that
    stands alone is a step of its own; empty steps do not count).

    ``use_jaccard_similarity`` (default true): the Jaccard index of the two sets of calls, without
    order. Else the mean over the reference steps of how well the step at the same place matches,
    0 where there is none.
    ``strict_mode`` (default true): arguments count, as JSON values like those of
    ``tool_call_match``. A step then scores 0 unless all its reference tools are called, else the
    mean over its reference calls of the F1 of the arguments (the keys, and each key with its
    value) against a call of the same tool, each call used once, equal ones first. Without it, a
    step scores the share of matched names.
    ``metric_type`` (only without both): that share is of the reference calls (``recall``,
    default) or of the calls made (``precision``).

    Source: the py-openjudge 0.2.4 definition (``ToolCallStepSequenceMatchGrader``), with these
    differences: there, a value under another key is a match, a call may serve two references, and
    strict Jaccard depends on the order of keys. No call and no reference: 1.0 with
    ``evaluable = false``. Raises ``GradingFailure(invalid_input)`` when the reference is missing or
    either field cannot be read. Metadata: ``calls``, ``references``, ``steps``,
    ``reference_steps``.
    """

    type_name = "tool_call_sequence"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        strict_mode: bool = True,
        use_jaccard_similarity: bool = True,
        metric_type: _StepMetric = "recall",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        flag(self.type_name, "strict_mode", strict_mode)
        flag(self.type_name, "use_jaccard_similarity", use_jaccard_similarity)
        chosen(self.type_name, "metric_type", metric_type, _StepMetric)
        self.strict_mode = strict_mode
        self.use_jaccard_similarity = use_jaccard_similarity
        self.metric_type: _StepMetric = metric_type

    def evaluate(self, messages: Any, reference_tool_calls: Any = None) -> GraderScore:
        """The score of one trajectory."""
        reference = _reference_steps(reference_tool_calls)
        steps = _predicted(None, messages)
        counts = {
            "calls": len(_flat(steps)),
            "references": len(_flat(reference)),
            "steps": len(steps),
            "reference_steps": len(reference),
        }
        if not steps and not reference:
            return self._not_applicable(1.0, _NOTHING, **counts)
        if self.use_jaccard_similarity:
            score = self._jaccard(_flat(steps), _flat(reference))
        else:
            # Reference steps beyond the last step made score 0.
            scored = [self._step(*pair) for pair in zip(steps, reference, strict=False)]
            score = _ratio(sum(scored), len(reference))
        return self._score(
            score, f"{len(steps)} steps against {len(reference)} reference steps", **counts
        )

    def _jaccard(self, calls: list[_Call], references: list[_Call]) -> float:
        if self.strict_mode:
            return _overlap(set(calls), set(references))
        return _overlap({call.name for call in calls}, {call.name for call in references})

    def _step(self, calls: list[_Call], references: list[_Call]) -> float:
        wanted = Counter(call.name for call in references)
        made = Counter(call.name for call in calls)
        if not self.strict_mode:
            whole = len(references) if self.metric_type == "recall" else len(calls)
            return (wanted & made).total() / whole
        return _mean_f1(calls, references) if wanted <= made else 0.0


_NOTHING = "no tool call, and none in the reference"


class _Call(NamedTuple):
    """A call by value.

    The arguments are pairs of key and canonical JSON, with key ``None`` when they are no object:
    nothing but text, so that hashing and comparing cannot recurse.
    """

    name: str
    arguments: frozenset[tuple[str | None, str]]


def _reference_steps(value: Any) -> list[list[_Call]]:
    steps = _steps(value, "reference_tool_calls")
    if any(_UNREADABLE in call.arguments for step in steps for call in step):
        raise invalid("reference_tool_calls: the arguments of a tool call are not a JSON value")
    if not all(call.name for step in steps for call in step):
        raise invalid("reference_tool_calls has a call without a name")
    return steps


def _predicted(tool_calls: Any, messages: Any) -> list[list[_Call]]:
    if tool_calls is not None:
        return _steps(tool_calls, "tool_calls")
    if messages is None:
        raise invalid("there is neither tool_calls nor messages")
    return [_comparable(calls) for calls in calls_by_turn(messages)]


def _steps(value: Any, where: str) -> list[list[_Call]]:
    """The steps that have calls; a call that stands alone is a step."""
    if isinstance(value, str):
        try:
            value = decode_arguments(value)
        except ValueError:
            raise invalid(f"{where} is a string that is not JSON") from None
    if not isinstance(value, list | tuple):
        raise invalid(f"{where} is " + ("missing" if value is None else "not a list"))
    steps = [step if isinstance(step, list | tuple) else (step,) for step in value]
    return [
        _comparable(parse_call(raw, f"{where}[{place}]") for raw in step)
        for place, step in enumerate(steps)
        if step
    ]


def _comparable(calls: Iterable[ToolCall]) -> list[_Call]:
    return [_Call(call.name, _readable_pairs(call.arguments)) for call in calls]


_UNREADABLE: tuple[None, str] = (None, "no JSON value")


def _readable_pairs(arguments: Any) -> frozenset[tuple[str | None, str]]:
    """The arguments; those nested too deeply, say, equal no reference."""
    try:
        return _argument_pairs(arguments)
    except (TypeError, ValueError, RecursionError):
        return frozenset({_UNREADABLE})


def _argument_pairs(arguments: Any) -> frozenset[tuple[str | None, str]]:
    value = {} if arguments is None or arguments == "" else arguments
    if isinstance(value, str):
        try:
            value = decode_arguments(value)
        except ValueError:
            # Broken JSON equals no JSON value, only the same broken string.
            return frozenset({(None, value)})
    if isinstance(value, dict):
        return frozenset((key, _canonical(entry)) for key, entry in value.items())
    return frozenset({(None, _canonical(value))})


def _canonical(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    """The value with whole floats as integers: 1.0 and 1 are one number in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _mean_f1(calls: list[_Call], references: list[_Call]) -> float:
    """Mean F1 of the references, each against an own call of its tool, equal ones first."""
    unused: dict[str, Counter[_Call]] = defaultdict(Counter)
    for call in calls:
        unused[call.name][call] += 1
    total = 0.0
    unequal = []
    for reference in references:
        if unused[reference.name][reference] > 0:
            unused[reference.name][reference] -= 1
            total += 1.0
        else:
            unequal.append(reference)
    rest = {name: iter(list(left.elements())) for name, left in unused.items()}
    total += sum(_f1(next(rest[reference.name]), reference) for reference in unequal)
    return total / len(references)


def _f1(call: _Call, reference: _Call) -> float:
    made, wanted = _elements(call), _elements(reference)
    if not made and not wanted:
        return 1.0
    return 2 * len(made & wanted) / (len(made) + len(wanted))


def _elements(call: _Call) -> set[tuple[str | None, str | None]]:
    keys = {(key, None) for key, _ in call.arguments if key is not None}
    return keys | call.arguments


def _flat(steps: Iterable[list[_Call]]) -> list[_Call]:
    return [call for step in steps for call in step]


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def _overlap(one: set[Any], other: set[Any]) -> float:
    return len(one & other) / len(one | other)
