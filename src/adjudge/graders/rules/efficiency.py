"""How economically an agent uses its steps and tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import integer, number
from adjudge.graders.rules.text_sets import nearest_earlier
from adjudge.graders.rules.trajectory import (
    UNPRINTABLE,
    Step,
    ToolCall,
    decode_arguments,
    invalid,
    parse_trajectory,
)
from adjudge.types import GraderScore

__all__ = ["ToolUsageEfficiencyGrader", "TrajectoryStepEfficiencyGrader"]


class TrajectoryStepEfficiencyGrader(RuleGrader):
    """The share of steps that do something new, or see something new.

    Range [0, 1]. Field: ``messages`` (OpenAI chat format); optional field
    ``reference_step_count``. A step (an answered tool call) is redundant when the same call was
    made before *and* the words of its observation have a Jaccard similarity of at least
    ``redundancy_threshold`` with an earlier one::

        ratio = 1 − redundant / steps
        score = ratio                                                without a reference count
        score = 0.6 · ratio + 0.4 · min(1, reference_step_count / steps)              with one

    Source: the py-openjudge 0.2.4 definition (``TrajectoryStepEfficiencyGrader``), with two
    differences: arguments that are no JSON object are compared as written, not ignored, and a
    reference of 0 counts as one. No answered call: 0.0 with ``evaluable = false``.

    ``redundancy_threshold`` (default 0.8, from 0 to 1).
    ``reference_step_count`` (default none): the expected number of steps; the sample's field of
    that name comes first.

    Raises ``GradingFailure(invalid_input)`` for messages or tool calls that cannot be read and for
    a reference count that is no whole number ≥ 0. Metadata: ``steps``, ``redundant_steps``,
    ``ratio``, ``reference_step_count``, ``unanswered_calls``, ``orphan_results``.
    """

    type_name = "step_efficiency"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        redundancy_threshold: float = 0.8,
        reference_step_count: int | None = None,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        number(self.type_name, "redundancy_threshold", redundancy_threshold, 0, 1)
        if reference_step_count is not None:
            integer(self.type_name, "reference_step_count", reference_step_count, 0)
        self.redundancy_threshold = float(redundancy_threshold)
        self.reference_step_count = reference_step_count

    def evaluate(self, messages: Any, reference_step_count: Any = None) -> GraderScore:
        """The score of one trajectory."""
        reference = _step_count(reference_step_count, self.reference_step_count)
        trajectory = parse_trajectory(messages)
        steps = len(trajectory.steps)
        if not steps:
            return self._not_applicable(0.0, _NO_CALL, steps=0, **trajectory.unpaired())
        redundant = self._redundant(trajectory.steps)
        score = ratio = (steps - redundant) / steps
        if reference is not None:
            score = 0.6 * ratio + 0.4 * (1.0 if reference >= steps else reference / steps)
        return self._score(
            score,
            f"{redundant} of {steps} steps are redundant"
            + ("" if reference is None else f"; {reference} expected"),
            steps=steps,
            redundant_steps=redundant,
            ratio=ratio,
            reference_step_count=reference,
            **trajectory.unpaired(),
        )

    def _redundant(self, steps: list[Step]) -> int:
        nearest = _nearest_observations(steps)
        seen: set[str] = set()
        redundant = 0
        for signature, similarity in zip(_signatures(steps), nearest, strict=True):
            redundant += signature in seen and similarity >= self.redundancy_threshold
            seen.add(signature)
        return redundant


class ToolUsageEfficiencyGrader(RuleGrader):
    """New information per tool call, calls not repeated, and variety of tools, as one mean.

    Range [0, 1]. Field: ``messages`` (OpenAI chat format). Over the answered tool calls::

        score = 0.4 · gain + 0.4 · (1 − repeated / calls) + 0.2 · min(1, tools / calls + 0.3)

    gain is the mean of 1 − (highest Jaccard similarity of the observation's words to any earlier
    observation), 1 for the first; ``repeated`` counts the calls whose name and arguments were used
    before; ``tools`` the different names. Source: the py-openjudge 0.2.4 definition
    (``ToolUsageEfficiencyGrader``); its ``redundancy_threshold`` has no effect there and is left
    out. No answered call: 0.0 with ``evaluable = false``.

    ``information_gain_threshold`` (default 0.3, from 0 to 1): calls with a gain below it are
    counted in metadata; the score does not depend on it.

    Raises ``GradingFailure(invalid_input)`` for messages or tool calls that cannot be read.
    Metadata: ``calls``, ``repeated_calls``, ``mean_gain``, ``low_gain_calls``, ``tools``,
    ``unanswered_calls``, ``orphan_results``.
    """

    type_name = "tool_usage_efficiency"
    score_range = (0.0, 1.0)

    def __init__(self, information_gain_threshold: float = 0.3, *, name: str = "") -> None:
        super().__init__(name)
        number(self.type_name, "information_gain_threshold", information_gain_threshold, 0, 1)
        self.information_gain_threshold = float(information_gain_threshold)

    def evaluate(self, messages: Any) -> GraderScore:
        """The score of one trajectory."""
        trajectory = parse_trajectory(messages)
        steps = trajectory.steps
        calls = len(steps)
        if not calls:
            return self._not_applicable(0.0, _NO_CALL, calls=0, **trajectory.unpaired())
        gains = [1.0 - similarity for similarity in _nearest_observations(steps)]
        mean_gain = sum(gains) / calls
        repeated = calls - len(Counter(_signatures(steps)))
        tools = len({step.call.name for step in steps})
        score = (
            0.4 * mean_gain + 0.4 * (1.0 - repeated / calls) + 0.2 * min(1.0, tools / calls + 0.3)
        )
        return self._score(
            min(1.0, max(0.0, score)),
            f"mean gain {mean_gain:.3f}, {repeated} of {calls} calls repeated, {tools} tools",
            calls=calls,
            repeated_calls=repeated,
            mean_gain=mean_gain,
            low_gain_calls=sum(gain < self.information_gain_threshold for gain in gains),
            tools=tools,
            **trajectory.unpaired(),
        )


_NO_CALL = "no tool call with a result"


def _nearest_observations(steps: list[Step]) -> list[float]:
    return nearest_earlier([step.observation for step in steps], "jaccard")


def _signatures(steps: Iterable[Step]) -> list[str]:
    return [_printed(step.call) for step in steps]


def _printed(call: ToolCall) -> str:
    try:
        return _signature(call)
    except (TypeError, ValueError, RecursionError):
        return f"{call.name}({UNPRINTABLE})"


def _signature(call: ToolCall) -> str:
    """``name(key=value,key=value)`` with sorted keys; other arguments as they were written."""
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            decoded = decode_arguments(arguments)
            if isinstance(decoded, dict):
                return f"{call.name}({_listed(decoded)})"
        except (ValueError, RecursionError):
            pass  # broken, nested too deeply or with too long a number: as written
    return f"{call.name}({_listed(arguments)})"


def _listed(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return ",".join([f"{key}={arguments[key]}" for key in sorted(arguments)])
    return "" if arguments is None else str(arguments)


def _step_count(given: Any, default: int | None) -> int | None:
    """The sample's own count, else the grader's."""
    if given is None:
        return default
    if isinstance(given, float) and given.is_integer():
        given = int(given)  # as written by a table that has missing values
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise invalid(f"reference_step_count ({type(given).__name__}) is no whole number from 0")
    return given
