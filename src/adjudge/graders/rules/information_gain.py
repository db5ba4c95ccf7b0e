"""Whether what an agent observes is new to it."""

from __future__ import annotations

import math
from typing import Any

from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import chosen, number
from adjudge.graders.rules.text_sets import Similarity, nearest_earlier
from adjudge.graders.rules.trajectory import parse_trajectory
from adjudge.types import GraderScore

__all__ = ["ObservationInformationGainGrader"]

_MIN_CHARS = 10


class ObservationInformationGainGrader(RuleGrader):
    """How much the observations differ from all earlier ones: 1 is always new, 0 is never.

    Range [0, 1]. Field: ``messages`` (OpenAI chat format). Observations are the tool results, in
    order; those with fewer than 10 characters are skipped. With sᵢ the highest similarity of
    observation i to any earlier one (0 for the first)::

        score = mean over i of (1 − sᵢ) · exp(−2 · max(0, sᵢ − similarity_threshold))

    Source: the py-openjudge 0.2.4 definition (``ObservationInformationGainGrader``), which this
    equals under ``similarity = "jaccard"``. No observation, or none long enough: 0.0 with
    ``evaluable = false``.

    ``similarity_threshold`` (default 0.5, from 0 to 1): similarity above it is punished twice.
    ``similarity``: ``jaccard`` (default) compares the sets of lower-case words; ``ordered``
    compares the sets of adjacent words.

    Raises ``GradingFailure(invalid_input)`` for messages that are no list of objects or whose tool
    calls cannot be read. Metadata: ``observations`` (counted), ``skipped``, ``repeats`` (sᵢ = 1),
    ``above_threshold``, ``mean_similarity``, ``unanswered_calls``, ``orphan_results``.
    """

    type_name = "information_gain"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        similarity_threshold: float = 0.5,
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
        texts = [step.observation for step in trajectory.steps]
        observations = [text for text in texts if len(text.strip()) >= _MIN_CHARS]
        counts = {
            "observations": len(observations),
            "skipped": len(texts) - len(observations),
            **trajectory.unpaired(),
        }
        if not observations:
            return self._not_applicable(0.0, _nothing(len(texts)), **counts)
        nearest = nearest_earlier(observations, self.similarity)
        score = self._mean_gain(nearest)
        return self._score(
            min(1.0, max(0.0, score)),
            f"mean gain {score:.3f} over {len(observations)} observations",
            repeats=nearest.count(1.0),
            above_threshold=sum(value > self.similarity_threshold for value in nearest),
            mean_similarity=sum(nearest) / len(nearest),
            **counts,
        )

    def _mean_gain(self, nearest: list[float]) -> float:
        threshold = self.similarity_threshold
        gains = [
            (1.0 - value) * math.exp(-2.0 * (value - threshold))
            if value > threshold
            # Not punished: exp(0) = 1.
            else 1.0 - value
            for value in nearest
        ]
        return sum(gains) / len(gains)


def _nothing(results: int) -> str:
    if not results:
        return "no tool call with a result"
    return f"all {results} observations are shorter than {_MIN_CHARS} characters"
