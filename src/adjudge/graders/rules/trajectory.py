"""Tool calls and their results in OpenAI chat messages, and graders that compare them.

A trajectory's calls are compared with reference calls: how many are right, and do they come in
order.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from adjudge.errors import GradingFailure, InvalidInput
from adjudge.graders.base import ParametricRule
from adjudge.graders.rules.json_validation import canonical_json
from adjudge.messages import content_text
from adjudge.types import GraderScore


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """One tool call.

    ``arguments`` is as written: an object, a JSON string (perhaps a broken one), or ``None``.
    """

    name: str
    arguments: Any


class ToolStep(msgspec.Struct, frozen=True, gc=False):
    """A tool call with its result, the observation ("" when it has no text)."""

    call: ToolCall
    observation: str


class Trajectory(msgspec.Struct, frozen=True):
    """The answered calls in the order of their results, and what could not be paired.

    ``unanswered_calls`` had no result; ``orphan_results`` answered no call.
    """

    steps: list[ToolStep]
    unanswered_calls: int
    orphan_results: int

    def unpaired(self) -> dict[str, int]:
        """The two counts by name, for a result's metadata."""
        return {
            "unanswered_calls": self.unanswered_calls,
            "orphan_results": self.orphan_results,
        }


def parse_trajectory(messages: Any) -> Trajectory:
    """Pair every tool result with its call, in the order of the messages.

    A result with an id answers the latest open call of that id, so ids may be reused. A result
    without id answers the oldest open call without id, or else the oldest open call. Messages and
    calls may be wrapped as ``{"message": …}`` and ``{"tool_call": …}``; the former
    ``function_call`` form is read too. Raises ``GradingFailure(invalid_input)`` when the messages
    are not a list of objects or a tool call has no readable form; a result that answers nothing
    and a call without result are counted.

    >>> parse_trajectory([
    ...     {"role": "assistant", "tool_calls": [
    ...         {"id": "a", "function": {"name": "look", "arguments": "{}"}}]},
    ...     {"role": "tool", "tool_call_id": "a", "content": "a door"},
    ... ]).steps[0].observation
    'a door'
    """
    open_calls = _OpenCalls()
    steps = []
    orphans = 0
    for position, message in _turns(messages):
        role = message.get("role")
        if role == "assistant":
            if "tool_calls" in message or "function_call" in message:
                for raw in _raw_calls(message, position):
                    call = parse_call(raw, position)
                    open_calls.add(call, _usable_id(raw.get("tool_call", raw).get("id")))
        elif role == "tool" or role == "function":  # noqa: PLR1714 (twice as fast as a tuple)
            answered = open_calls.take(_usable_id(message.get("tool_call_id")))
            if answered is None:
                orphans += 1
            else:
                content = message.get("content")
                text = content if type(content) is str else _observation(content, position)
                steps.append(ToolStep(answered, text))
    return Trajectory(steps, len(open_calls), orphans)


def calls_by_turn(messages: Any) -> list[list[ToolCall]]:
    """The tool calls of each assistant message that has any, answered or not.

    Raises as :func:`parse_trajectory`.
    """
    turns = []
    for position, message in _turns(messages):
        if message.get("role") == "assistant":
            calls = [parse_call(raw, position) for raw in _raw_calls(message, position)]
            if calls:
                turns.append(calls)
    return turns


def parse_call(raw: Any, where: int | str) -> ToolCall:
    """A tool call from ``{"function": {"name", "arguments"}}`` or ``{"name", "arguments"}``.

    Either may be wrapped as ``{"tool_call": …}``; a missing name is "", and so is one in a message
    that is no text, which the policy may have written. Raises ``GradingFailure(invalid_input)`` for
    anything else, saying ``where``: a message's position or a field.
    """
    if type(raw) is dict and "tool_call" not in raw:  # as nearly everybody writes it
        function = raw.get("function")
        if type(function) is dict and type(name := function.get("name")) is str:
            return ToolCall(name, function.get("arguments"))
    if isinstance(raw, dict):
        inner = raw.get("tool_call", raw)
        function = inner.get("function", inner) if isinstance(inner, dict) else inner
        if isinstance(function, dict):
            name = function.get("name")
            if isinstance(name, str) or name is None or isinstance(where, int):
                name = name if isinstance(name, str) else ""
                return ToolCall(name, function.get("arguments"))
    place = f"messages[{where}].tool_calls" if isinstance(where, int) else where
    message = f"{place}: a tool call is not an object with a function and its name"
    raise invalid_trajectory(message, suspect=isinstance(where, int))


UNPRINTABLE = "arguments that cannot be read as text"
"""Stands for a call's arguments that Python will not print: nested too deeply, say."""


def decode_arguments(text: str) -> Any:
    """The JSON value of an arguments string; raises ``ValueError`` when it is not JSON.

    The same value as ``json.loads``, which also reads what is not strictly JSON (``NaN``, lone
    surrogates).
    """
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def invalid_trajectory(message: str, *, suspect: bool = False) -> GradingFailure:
    """The failure of an input that cannot be judged; ``suspect``: the policy may have written it.

    A file in another format looks the same, so it is no verdict.
    """
    return InvalidInput(message, {"suspect": True} if suspect else {})


_decoder = msgspec.json.Decoder()

_CallId = str | int | None


class _OpenCalls:
    """Calls that still wait for a result, by the order in which they were made."""

    def __init__(self) -> None:
        self._made = 0
        self._open: OrderedDict[int, ToolCall] = OrderedDict()
        self._by_id: dict[_CallId, deque[int]] = defaultdict(deque)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, call: ToolCall, call_id: _CallId) -> None:
        self._made += 1
        self._open[self._made] = call
        self._by_id[call_id].append(self._made)

    def take(self, call_id: _CallId) -> ToolCall | None:
        """Remove and return the call that a result with this id answers."""
        same = self._by_id[call_id]
        while same:
            call = self._open.pop(same.popleft() if call_id is None else same.pop(), None)
            if call is not None:
                return call
        return self._open.popitem(last=False)[1] if call_id is None and self._open else None


def _turns(messages: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each message with its position, unwrapped."""
    if not isinstance(messages, list | tuple):
        raise invalid_trajectory(f"messages is {_kind(messages)}, not a list")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid_trajectory(f"messages has {_kind(message)} where an object is due")
        inner = message.get("message")
        yield position, inner if isinstance(inner, dict) else message


def _raw_calls(message: dict[str, Any], position: int) -> Sequence[Any]:
    calls = message.get("tool_calls")
    if calls is None:
        legacy = message.get("function_call")
        return () if legacy is None else (legacy,)
    if not isinstance(calls, list | tuple):
        what = f"messages[{position}].tool_calls is {_kind(calls)}, not a list"
        raise invalid_trajectory(what, suspect=True)
    return calls


def _usable_id(value: Any) -> _CallId:
    if type(value) is str:
        return value or None
    return value if type(value) is int else None


def _observation(content: Any, position: int) -> str:
    try:
        return content_text(content)
    except (RecursionError, ValueError):
        # A structure that Python will not print: nested too deeply, or a number too long.
        what = f"messages[{position}].content cannot be read as text"
        raise invalid_trajectory(what, suspect=True) from None


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


_Metric = Literal["precision", "recall", "f1"]


@dataclass(eq=False, repr=False)
class ToolCallPrecisionRecallMatchGrader(ParametricRule):
    """How many tool calls are among the reference calls (precision), and how many of those occur.

    Fields: ``reference_tool_calls``, and ``tool_calls`` or else ``messages`` (all calls of the
    assistant). Calls match as multisets, each reference once: with m matches among p calls and r
    references, precision is m/p, recall m/r, F1 2m/(p + r), and 0 where the denominator is 0.
    Source: ``ToolCallPrecisionRecallMatchGrader`` of py-openjudge 0.2.4, which has no F1 and reads
    broken arguments as empty. No call and no reference: 1 with ``evaluable = false``.

    A call is ``{"name", "arguments"}`` or ``{"function": {"name", "arguments"}}``; ``arguments``
    and the two fields may be JSON text, and a field may have a list per step. Metadata:
    ``matched``, ``calls``, ``references``, ``precision``, ``recall``.

    Args:
        metric_type: ``recall``, ``precision`` or ``f1``.
        match_arguments: Arguments must be equal as JSON values too: order of keys is ignored, 1
            equals 1.0, true differs from 1.

    >>> grader = ToolCallPrecisionRecallMatchGrader("precision", match_arguments=True)
    >>> look = {"name": "look", "arguments": {"x": 1, "y": 2}}
    >>> grader.evaluate([look], [{"name": "look", "arguments": '{"y": 2.0, "x": 1}'}, look]).score
    0.5
    """

    type_name = "tool_call_match"
    score_range = (0.0, 1.0)

    metric_type: _Metric = "recall"
    match_arguments: bool = False

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


@dataclass(eq=False, repr=False)
class ToolCallStepSequenceMatchGrader(ParametricRule):
    """How well the tool calls follow a reference sequence, as one set or step by step.

    Fields: ``messages`` (each assistant message with calls is a step) and ``reference_tool_calls``
    (a list of steps, each a list of calls; a single call is a step). Source:
    ``ToolCallStepSequenceMatchGrader`` of py-openjudge 0.2.4; here a value under another key does
    not match, a call serves one reference, and the order of keys never counts. No call and no
    reference: 1 with ``evaluable = false``.

    Step by step, the score is the mean over the reference steps of the match with the step at the
    same place: 0 where it is missing or lacks a reference tool, else the mean F1 of its arguments.
    Metadata: ``calls``, ``references``, ``steps``,
    ``reference_steps``.

    Args:
        use_jaccard_similarity: The Jaccard index of the two sets of calls, without order; false:
            step by step.
    """

    type_name = "tool_call_sequence"
    score_range = (0.0, 1.0)

    use_jaccard_similarity: bool = True

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
            made, wanted = set(_flat(steps)), set(_flat(reference))
            score = len(made & wanted) / len(made | wanted)
        else:
            # Reference steps beyond the last step made score 0.
            scored = [_mean_f1(*pair) for pair in zip(steps, reference, strict=False)]
            score = _ratio(sum(scored), len(reference))
        return self._score(
            score, f"{len(steps)} steps against {len(reference)} reference steps", **counts
        )


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
        raise invalid_trajectory(
            "reference_tool_calls: the arguments of a tool call are not a JSON value"
        )
    if not all(call.name for step in steps for call in step):
        raise invalid_trajectory("reference_tool_calls has a call without a name")
    return steps


def _predicted(tool_calls: Any, messages: Any) -> list[list[_Call]]:
    if tool_calls is not None:
        return _steps(tool_calls, "tool_calls")
    if messages is None:
        raise invalid_trajectory("there is neither tool_calls nor messages")
    return [_comparable(calls) for calls in calls_by_turn(messages)]


def _steps(value: Any, where: str) -> list[list[_Call]]:
    """The steps that have calls; a call that stands alone is a step."""
    if isinstance(value, str):
        try:
            value = decode_arguments(value)
        except ValueError:
            raise invalid_trajectory(f"{where} is a string that is not JSON") from None
    if not isinstance(value, list | tuple):
        raise invalid_trajectory(f"{where} is " + ("missing" if value is None else "not a list"))
    steps = [step if isinstance(step, list | tuple) else (step,) for step in value]
    return [
        _comparable(parse_call(raw, f"{where}[{place}]") for raw in step)
        for place, step in enumerate(steps)
        if step
    ]


def _comparable(calls: Iterable[ToolCall]) -> list[_Call]:
    return [_Call(call.name, _argument_pairs(call.arguments)) for call in calls]


_UNREADABLE: tuple[None, str] = (None, "no JSON value")


def _argument_pairs(arguments: Any) -> frozenset[tuple[str | None, str]]:
    value = {} if arguments is None or arguments == "" else arguments
    if isinstance(value, str):
        try:
            value = decode_arguments(value)
        except ValueError:
            # Broken JSON equals no JSON value, only the same broken string.
            return frozenset({(None, value)})
    try:
        if isinstance(value, dict):
            pairs = ((canonical_json(key), canonical_json(one)) for key, one in value.items())
            return frozenset(pairs)
        return frozenset({(None, canonical_json(value))})
    except (TypeError, ValueError, RecursionError):  # nested too deeply, say: equal no reference
        return frozenset({_UNREADABLE})


def _mean_f1(calls: list[_Call], references: list[_Call]) -> float:
    """Mean F1 of the references, each against an own call of its tool, equal ones first.

    0 where a reference has no such call.
    """
    if Counter(one.name for one in references) - Counter(one.name for one in calls):
        return 0.0
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
