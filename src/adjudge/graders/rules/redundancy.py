"""Graders of agents that repeat tool calls, observe nothing new or waste steps and tools."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from adjudge.graders.base import ParametricRule, is_nan, read_count
from adjudge.graders.rules.similarity import count_similar_pairs, nearest_earlier_similarities
from adjudge.graders.rules.trajectory import (
    UNPRINTABLE,
    ToolCall,
    ToolStep,
    decode_arguments,
    invalid_trajectory,
    parse_trajectory,
)
from adjudge.types import GraderScore

_Share = Annotated[float, Field(ge=0, le=1)]
_SHOWN = 10
_SHOWN_CHARS = 200


@dataclass(eq=False, repr=False)
class ActionLoopDetectionGrader(ParametricRule):
    """The share of pairs of tool calls that are not similar: 1 without a loop, 0 where all are.

    Field: ``messages``. With n answered tool calls::

        score = 1 − #{i < j : similarity(i, j) ≥ similarity_threshold} / (n (n − 1) / 2)

    A call is compared as the text ``name: key: value, …`` with sorted keys; arguments that are not
    a JSON object stay as written. Similarity is the Jaccard index of the sets of lower-case words.
    Source: ``ActionLoopDetectionGrader`` of py-openjudge 0.2.4. Fewer than two answered calls: 1
    with ``evaluable = false``.

    Metadata: ``calls``, ``similar_pairs``, ``pairs``, ``repeated`` (the 10 most frequent actions),
    ``unanswered_calls``, ``orphan_results``. Linear in the calls at threshold 1.

    Args:
        similarity_threshold: How similar two calls must be to count, from 0 to 1.

    >>> def call(n, query):
    ...     function = {"name": "search", "arguments": {"q": query}}
    ...     return [{"role": "assistant", "tool_calls": [{"id": n, "function": function}]},
    ...             {"role": "tool", "tool_call_id": n, "content": "nothing found"}]
    >>> ActionLoopDetectionGrader().evaluate(call(1, "a b") + call(2, "b a") + call(3, "c")).score
    0.6666666666666667
    """

    type_name = "action_loop"
    score_range = (0.0, 1.0)

    similarity_threshold: _Share = 1.0

    def evaluate(self, messages: Any) -> GraderScore:
        """The score of one trajectory."""
        trajectory = parse_trajectory(messages)
        texts = action_texts([step.call for step in trajectory.steps])
        calls = len(texts)
        if calls < 2:
            reason = f"{calls} answered tool calls: nothing to compare"
            return self._not_applicable(1.0, reason, calls=calls, **trajectory.unpaired())
        sets = [frozenset(text.lower().split()) for text in texts]
        groups, actions = Counter(sets), dict(zip(sets, texts, strict=True))
        similar = count_similar_pairs(groups, self.similarity_threshold)
        pairs = calls * (calls - 1) // 2
        return self._score(
            1.0 - similar / pairs,
            f"{similar} of {pairs} pairs of tool calls are similar "
            f"(threshold {self.similarity_threshold:g})",
            calls=calls,
            similar_pairs=similar,
            pairs=pairs,
            repeated=[
                {"action": actions[tokens][:_SHOWN_CHARS], "count": times}
                for tokens, times in groups.most_common(_SHOWN)
                if times > 1
            ],
            **trajectory.unpaired(),
        )


def action_texts(calls: list[ToolCall]) -> list[str]:
    """Each call as ``name: key: value, key: value`` with sorted keys: equal for equal calls."""
    known: dict[tuple[str, str], str] = {}
    texts = []
    for call in calls:
        name, arguments = call.name, call.arguments
        text = known.get((name, arguments)) if type(arguments) is str else None
        if text is None:
            text = name
            if arguments is not None and arguments != "":
                text = f"{name}: {_printed_arguments(arguments, ': ', ', ')}"
            if type(arguments) is str:
                known[name, arguments] = text
        texts.append(text)
    return texts


def _printed_arguments(arguments: Any, equals: str, comma: str) -> str:
    """The keys, sorted, and values of an object; other arguments as they were written."""
    given = arguments
    if type(arguments) is str:
        try:
            given = decode_arguments(arguments)
        except (ValueError, RecursionError):  # broken, nested too deeply, too long a number
            return arguments
        if not isinstance(given, dict):
            return arguments
    try:
        if isinstance(given, dict):
            return comma.join([f"{key}{equals}{given[key]}" for key in sorted(given)])
        return "" if given is None else str(given)
    except (TypeError, ValueError, RecursionError):
        return arguments if type(arguments) is str else UNPRINTABLE


_MIN_CHARS = 10


@dataclass(eq=False, repr=False)
class ObservationInformationGainGrader(ParametricRule):
    """How much the observations differ from all earlier ones: 1 is always new, 0 is never.

    Field: ``messages``. Observations are the tool results of at least 10 characters. With sᵢ the
    highest Jaccard index of the lower-case words of observation i and of an earlier one (0 for the
    first)::

        score = mean over i of (1 − sᵢ) · exp(−2 · max(0, sᵢ − similarity_threshold))

    Source: ``ObservationInformationGainGrader`` of py-openjudge 0.2.4. No such observation: 0 with
    ``evaluable = false``.

    Metadata: ``observations``, ``skipped``, ``repeats`` (sᵢ = 1), ``above_threshold``,
    ``mean_similarity``, ``unanswered_calls``, ``orphan_results``.

    Args:
        similarity_threshold: A similarity above it costs more, from 0 to 1.
    """

    type_name = "information_gain"
    score_range = (0.0, 1.0)

    similarity_threshold: _Share = 0.5

    def evaluate(self, messages: Any) -> GraderScore:
        """The score of one trajectory."""
        trajectory = parse_trajectory(messages)
        texts = [step.observation for step in trajectory.steps]
        observations = [text for text in texts if len(text.strip()) >= _MIN_CHARS]
        counts = {
            "observations": len(observations),
            "skipped": len(texts) - len(observations),
            **trajectory.unpaired(),
        }
        if not observations:
            reason = _NO_CALL
            if texts:
                reason = f"all {len(texts)} observations are shorter than {_MIN_CHARS} characters"
            return self._not_applicable(0.0, reason, **counts)
        nearest = nearest_earlier_similarities(observations)
        threshold = self.similarity_threshold
        gains = [(1.0 - one) * math.exp(-2.0 * max(0.0, one - threshold)) for one in nearest]
        score = sum(gains) / len(gains)
        return self._score(
            min(1.0, max(0.0, score)),
            f"mean gain {score:.3f} over {len(observations)} observations",
            repeats=nearest.count(1.0),
            above_threshold=sum(value > threshold for value in nearest),
            mean_similarity=sum(nearest) / len(nearest),
            **counts,
        )


@dataclass(eq=False, repr=False)
class TrajectoryStepEfficiencyGrader(ParametricRule):
    """The share of steps that do something new, or see something new.

    Field: ``messages``; optional field ``reference_step_count``. A step (an answered call) is
    redundant when the same call was made before *and* the words of its observation have a Jaccard
    similarity of 0.8 or more to an earlier one::

        ratio = 1 − redundant / steps
        score = ratio                                                without a reference count
        score = 0.6 · ratio + 0.4 · min(1, reference_step_count / steps)              with one

    Source: ``TrajectoryStepEfficiencyGrader`` of py-openjudge 0.2.4; here arguments that are not a
    JSON object are compared as written, and a reference of 0 counts. No answered call: 0 with
    ``evaluable = false``. Metadata: ``steps``, ``redundant_steps``, ``ratio``,
    ``reference_step_count``, ``unanswered_calls``, ``orphan_results``.
    """

    type_name = "step_efficiency"
    score_range = (0.0, 1.0)

    def evaluate(self, messages: Any, reference_step_count: Any = None) -> GraderScore:
        """The score of one trajectory."""
        given = None if is_nan(reference_step_count) else reference_step_count
        if (reference := read_count(given)) is None and given is not None:
            kind = type(given).__name__
            raise invalid_trajectory(f"reference_step_count ({kind}) is no whole number from 0")
        trajectory = parse_trajectory(messages)
        steps = len(trajectory.steps)
        if not steps:
            return self._not_applicable(0.0, _NO_CALL, steps=0, **trajectory.unpaired())
        redundant, seen = 0, set[str]()
        nearest = _nearest_observations(trajectory.steps)
        for signature, similarity in zip(_signatures(trajectory.steps), nearest, strict=True):
            redundant += signature in seen and similarity >= _REDUNDANT
            seen.add(signature)
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


@dataclass(eq=False, repr=False)
class ToolUsageEfficiencyGrader(ParametricRule):
    """New information per tool call, calls not repeated, and variety of tools, as one mean.

    Field: ``messages``. Over the answered tool calls::

        score = 0.4 · gain + 0.4 · (1 − repeated / calls) + 0.2 · min(1, tools / calls + 0.3)

    gain is the mean of 1 − (highest Jaccard similarity of the observation's words to an earlier
    observation), 1 for the first; ``repeated`` counts calls with a name and arguments used before;
    ``tools`` counts different names. Source: ``ToolUsageEfficiencyGrader`` of py-openjudge 0.2.4,
    without its ``redundancy_threshold``, which has no effect. No answered call: 0 with ``evaluable
    = false``. Metadata: ``calls``, ``repeated_calls``, ``mean_gain``, ``low_gain_calls`` (gain
    below 0.3), ``tools``, ``unanswered_calls``, ``orphan_results``.
    """

    type_name = "tool_usage_efficiency"
    score_range = (0.0, 1.0)

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
            low_gain_calls=sum(gain < _LOW_GAIN for gain in gains),
            tools=tools,
            **trajectory.unpaired(),
        )


_NO_CALL = "no tool call with a result"
_LOW_GAIN, _REDUNDANT = 0.3, 0.8


def _nearest_observations(steps: list[ToolStep]) -> list[float]:
    return nearest_earlier_similarities([step.observation for step in steps])


def _signatures(steps: Iterable[ToolStep]) -> list[str]:
    """``name(key=value,key=value)`` of each call."""
    calls = [step.call for step in steps]
    return [f"{call.name}({_printed_arguments(call.arguments, '=', ',')})" for call in calls]
