"""The card of a trained judge, ``judge.json`` in its folder: what it is and how far to trust it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError
from adjudge.stats.predictions import RatingCalibration, ScoreCalibration

CARD_FILE = "judge.json"
SPEC_FILE = "reward.toml"
"""A reward spec beside the card that asks this judge; ``adjudge serve FOLDER`` reads it."""

_QUANTILE_LEVELS = tuple(level / 20 for level in range(21))


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
    ``trained_ids``: source ids of the rows that it has seen.
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
    trained_ids: tuple[str, ...] = ()


def read_card(folder: Path | str) -> JudgeCard:
    """The card of a judge's folder; raises :class:`ConfigError` for none, or one that is broken."""
    path = Path(folder) / CARD_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=JudgeCard)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: is not a valid judge's card: {error}") from error


def fit_normalisation(scores: Sequence[float]) -> ScoreNormalisation:
    """Quantiles (every 5 %, linear between order statistics) of at least one score."""
    ranked = sorted(scores)
    found = []
    for level in _QUANTILE_LEVELS:
        place = level * (len(ranked) - 1)
        low = int(place)
        high = min(low + 1, len(ranked) - 1)
        between = ranked[low] + (place - low) * (ranked[high] - ranked[low])
        found.append(min(between, ranked[high]))  # never above it by rounding
    return ScoreNormalisation(_QUANTILE_LEVELS, tuple(found))


def reward_spec_of_card(card: JudgeCard) -> str | None:
    """A reward spec (TOML) for the judge's own folder; ``None`` for one that does not judge.

    A scalar judge gives its output's rank among the validation answers, a pointwise one its rating
    0 to 4; a pairwise one compares all answers of a group, whose ranks are the rewards.
    """
    name = _NOT_IN_NAME.sub("_", card.label)[:60] or "judge"
    if not (name[0].isalpha() or name[0] == "_") or name in _RESERVED_NAMES:
        name = f"judge_{name}"
    if card.kind == "scalar":
        judge, lines = _SCALAR_SPEC, 'task = "score"\n'
    elif card.prompt is None:
        return None
    else:
        mode = card.prompt.get("mode", card.mode)
        judge = _PAIRWISE_SPEC if mode == "pairwise" else _POINTWISE_SPEC
        longest = _max_reply_tokens(card, card.prompt)
        lines = "" if longest is None else f"max_tokens = {longest}\n"
    return judge.format(name=name) + f'\n[judges.main]\ntype = "local"\nmodel = "."\n{lines}'


def _max_reply_tokens(card: JudgeCard, prompt: Mapping[str, Any]) -> int | None:
    """Tokens that a reply may have: what the prompt says, else as in training; ``None``: unknown.

    More than that would be taken from what is left for the question.
    """
    if isinstance(said := prompt.get("max_tokens"), int):
        return said
    if card.method == "grpo":
        asked = (card.config.get("grpo") or {}).get("max_response_length")
        return asked if isinstance(asked, int) else None
    lengths = msgspec.to_builtins(card.data.get("lengths"))
    answers = lengths.get("answers") if isinstance(lengths, dict) else None
    if answers is None or lengths.get("unit") != "tokens":
        return None
    return int(answers["longest"]) + _EXTRA_REPLY_TOKENS


_EXTRA_REPLY_TOKENS = 8
"""Tokens that a reply may have beyond the longest that was imitated."""

_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_]")
_RESERVED_NAMES = ("source", "events")
_SPEC_COMMENT = "# Asks the judge of this folder: adjudge serve FOLDER\n"
_GRADER_TABLE = '[[graders]]\nname = "{name}"\ntype = "adjudge.graders.llm.trained_judge:'

_SCALAR_SPEC = f"""{_SPEC_COMMENT}\
# Its rank among the validation answers, 0 to 1. For the raw output: type = "scalar"; for the
# probability of being better than the reference: "…trained_judge:ScalarPreference".
{_GRADER_TABLE}RankedScalar"
"""
_POINTWISE_SPEC = f"""{_SPEC_COMMENT}\
# Its rating, 0 to 4, as a share of 4.
{_GRADER_TABLE}TrainedRating"
"""
_PAIRWISE_SPEC = f"""{_SPEC_COMMENT}\
# Compares the answers to one prompt in pairs, in both orders; needs whole groups. To compare with
# a reference instead: "…trained_judge:TrainedPreference".
{_GRADER_TABLE}TrainedTournament"
"""
