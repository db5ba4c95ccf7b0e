"""Whether an agent repeats its tool calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import chosen, number
from adjudge.graders.rules.text_sets import Similarity, similar_pairs, tokens_of
from adjudge.graders.rules.trajectory import (
    UNPRINTABLE,
    ToolCall,
    decode_arguments,
    parse_trajectory,
)
from adjudge.types import GraderScore

__all__ = ["ActionLoopDetectionGrader"]

_SHOWN = 10
_SHOWN_CHARS = 200


class ActionLoopDetectionGrader(RuleGrader):
    """The share of pairs of tool calls that are not similar: 1 is no loop, 0 is nothing but one.

    Range [0, 1]. Field: ``messages`` (OpenAI chat format). With n answered tool calls::

        score = 1 − #{i < j : similarity(i, j) ≥ similarity_threshold} / (n (n − 1) / 2)

    A call is compared as the text ``name: key: value, key: value`` with sorted keys (arguments
    that are no JSON object as they were written). Source: the py-openjudge 0.2.4 definition
    (``ActionLoopDetectionGrader``), which this equals under ``similarity = "jaccard"``. Fewer than
    two answered calls leave nothing to compare: 1.0 with ``evaluable = false``.

    ``similarity_threshold`` (default 1.0, from 0 to 1): how similar two calls must be to count.
    ``similarity``: ``jaccard`` (default) compares the sets of lower-case words, so that
    ``{"q": "a b"}`` equals ``{"q": "b a"}``; ``ordered`` compares the sets of adjacent words.

    Raises ``GradingFailure(invalid_input)`` for messages that are no list of objects or whose tool
    calls cannot be read. Metadata: ``calls``, ``similar_pairs``, ``pairs``, ``repeated`` (up to 10
    actions that occur most often, with ``count``), ``unanswered_calls``, ``orphan_results``.
    Linear in the calls at threshold 1.

    >>> def call(n, query):
    ...     function = {"name": "search", "arguments": {"q": query}}
    ...     return [{"role": "assistant", "tool_calls": [{"id": n, "function": function}]},
    ...             {"role": "tool", "tool_call_id": n, "content": "nothing found"}]
    >>> ActionLoopDetectionGrader().evaluate(call(1, "a b") + call(2, "b a") + call(3, "c")).score
    0.6666666666666667
    """

    type_name = "action_loop"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        similarity_threshold: float = 1.0,
        similarity: Similarity = "jaccard",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        number(self.type_name, "similarity_threshold", similarity_threshold, 0, 1)
        chosen(self.type_name, "similarity", similarity, Similarity)
        self.similarity_threshold = float(similarity_threshold)
        self.similarity: Similarity = similarity

    def evaluate(self, messages: Any) -> GraderScore:
        """The score of one trajectory."""
        trajectory = parse_trajectory(messages)
        texts = _action_texts([step.call for step in trajectory.steps])
        calls = len(texts)
        if calls < 2:
            reason = f"{calls} answered tool calls: nothing to compare"
            return self._not_applicable(1.0, reason, calls=calls, **trajectory.unpaired())
        sets = [frozenset(tokens_of(text, self.similarity)) for text in texts]
        groups = Counter(sets)
        similar = similar_pairs(groups, self.similarity_threshold)
        pairs = calls * (calls - 1) // 2
        return self._score(
            1.0 - similar / pairs,
            f"{similar} of {pairs} pairs of tool calls are similar "
            f"(threshold {self.similarity_threshold:g})",
            calls=calls,
            similar_pairs=similar,
            pairs=pairs,
            repeated=_most_repeated(groups, dict(zip(sets, texts, strict=True))),
            **trajectory.unpaired(),
        )


def _action_texts(calls: list[ToolCall]) -> list[str]:
    known: dict[tuple[str, str], str] = {}
    texts = []
    for call in calls:
        name, arguments = call.name, call.arguments
        if type(arguments) is not str:
            texts.append(_text_of_value(name, arguments))
            continue
        text = known.get((name, arguments))
        if text is None:
            text = known[name, arguments] = _text_of_string(name, arguments)
        texts.append(text)
    return texts


def _text_of_string(name: str, arguments: str) -> str:
    try:
        decoded = decode_arguments(arguments)
        if isinstance(decoded, dict):
            return _text_of_object(name, decoded)
    except (ValueError, RecursionError):
        pass  # broken, nested too deeply or with too long a number: as written
    return f"{name}: {arguments}" if arguments else name


def _text_of_value(name: str, arguments: Any) -> str:
    if arguments is None:
        return name
    try:
        if isinstance(arguments, dict):
            return _text_of_object(name, arguments)
        return f"{name}: {arguments}"  # noqa: TRY300 (printing it is what may fail)
    except (TypeError, ValueError, RecursionError):
        return f"{name}: {UNPRINTABLE}"


def _text_of_object(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}: " + ", ".join([f"{key}: {arguments[key]}" for key in sorted(arguments)])


def _most_repeated(
    groups: Mapping[frozenset[Hashable], int], texts: Mapping[frozenset[Hashable], str]
) -> list[dict[str, Any]]:
    repeated = [tokens for tokens, times in groups.items() if times > 1]
    repeated.sort(key=groups.__getitem__, reverse=True)
    return [
        {"action": texts[tokens][:_SHOWN_CHARS], "count": groups[tokens]}
        for tokens in repeated[:_SHOWN]
    ]
