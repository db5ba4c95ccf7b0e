"""The card of a trained judge, ``judge.json`` in its folder: what it is and how far to trust it."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError
from adjudge.stats.predictions import RatingCalibration, ScoreCalibration

CARD_FILE = "judge.json"
SPEC_FILE = "reward.toml"
"""A reward spec beside the card that asks this judge; ``adjudge serve FOLDER`` reads it."""


class ScoreNormalisation(msgspec.Struct, frozen=True):
    """A scalar judge's outputs as ranks among its validation answers.

    ``scores`` (rising) are the quantiles at ``levels`` (0 to 1) of the outputs for all validation
    answers, chosen and rejected.
    """

    levels: tuple[float, ...]
    scores: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.levels) == len(self.scores) > 0:
            raise ValueError("levels and scores must be equally many, one at least")
        if any(list(one) != sorted(one) for one in (self.levels, self.scores)):
            raise ValueError("levels and scores must rise")

    def __call__(self, score: float) -> float:
        """The share of validation answers below ``score``, 0 to 1, linear between quantiles.

        Below the lowest it is 0, above the highest 1; answers of the same score count half.

        >>> ScoreNormalisation((0.0, 0.5, 1.0), (-2.0, 0.0, 1.0))(0.5)
        0.75
        """
        scores, levels = self.scores, self.levels
        low, high = bisect.bisect_left(scores, score), bisect.bisect_right(scores, score)
        if low < high:
            return (levels[low] + levels[high - 1]) / 2
        if low == 0 or low == len(scores):
            return float(low > 0)
        part = (score - scores[low - 1]) / (scores[low] - scores[low - 1])
        return levels[low - 1] + part * (levels[low] - levels[low - 1])


class JudgeCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge's folder says about itself.

    ``kind``: ``scalar`` (one output) or ``generative`` (it writes). ``base``: what was trained.
    ``data``: files with hashes, counts, what was left out. ``config``: the training file with its
    defaults and what the environment changed. ``validation``: metrics on held-out rows.
    ``normalisation`` and ``calibration`` are a scalar judge's: ranks and probabilities from its
    outputs. ``prompt``, ``verdict`` and ``rating_calibration`` are a generative one's: what it is
    asked (:func:`~adjudge.graders.llm.trained_judge.card_prompt`), the form of its answer
    (``None``: it was taught to answer, not to judge), and what its ratings are worth in labels.
    """

    adjudge: str
    kind: Literal["scalar", "generative"]
    method: str
    mode: str | None
    label: str
    created: str
    base: dict[str, Any]
    data: dict[str, Any]
    config: dict[str, Any]
    validation: dict[str, Any]
    max_length: int
    normalisation: ScoreNormalisation | None = None
    calibration: ScoreCalibration | None = None
    rating_calibration: RatingCalibration | None = None
    prompt: dict[str, Any] | None = None
    verdict: str | None = None


def read_card(folder: Path | str) -> JudgeCard:
    """The card of a judge's folder; raises :class:`ConfigError` for none, or one that is broken."""
    path = Path(folder) / CARD_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=JudgeCard)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: is not a valid judge's card: {error}") from error
