"""The card of a trained judge, ``judge.json`` in its folder: what it is and how far to trust it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError

__all__ = ["CARD", "SPEC", "Card", "Normalisation", "normalisation_of", "read_card", "spec_text"]

CARD = "judge.json"
SPEC = "reward.toml"
"""A reward spec beside the card that asks this judge: ``adjudge serve FOLDER/reward.toml``."""

_LEVELS = tuple(level / 20 for level in range(21))


class Normalisation(msgspec.Struct, frozen=True):
    """A scalar judge's outputs as ranks among its validation answers.

    ``scores`` (rising) are the quantiles at ``levels`` (0 to 1) of the outputs for all validation
    answers, chosen and rejected.
    """

    levels: tuple[float, ...]
    scores: tuple[float, ...]

    def __call__(self, score: float) -> float:
        """The share of validation answers below ``score``, 0 to 1, linear between quantiles.

        Below the lowest it is 0, above the highest 1.

        >>> Normalisation((0.0, 0.5, 1.0), (-2.0, 0.0, 1.0))(0.5)
        0.75
        """
        scores, levels = self.scores, self.levels
        if score <= scores[0]:
            return 0.0 if score < scores[0] else levels[0]
        if score >= scores[-1]:
            return 1.0
        high = bisect.bisect_right(scores, score)
        low = high - 1
        part = (score - scores[low]) / (scores[high] - scores[low])
        return levels[low] + part * (levels[high] - levels[low])


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge's folder says about itself.

    ``kind``: ``scalar`` (one output) or ``generative`` (it writes). ``base``: what was trained.
    ``data``: files with hashes, counts, what was left out. ``config``: the training file with its
    defaults and what the environment changed. ``validation``: metrics on held-out rows.
    ``normalisation`` is a scalar judge's, ``prompt`` and ``verdict`` a generative one's: what it is
    asked, and the form of its answer (``None``: it was taught to answer, not to judge).
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
    normalisation: Normalisation | None = None
    prompt: dict[str, Any] | None = None
    verdict: str | None = None
    trained_ids: tuple[str, ...] = ()


def read_card(folder: Path | str) -> Card:
    """The card of a judge's folder; raises :class:`ConfigError` for none, or one that is broken."""
    path = Path(folder) / CARD
    try:
        return msgspec.json.decode(path.read_bytes(), type=Card)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: is no judge's card: {error}") from error


def normalisation_of(scores: Sequence[float]) -> Normalisation:
    """Quantiles (every 5 %, linear between order statistics) of at least one score."""
    ranked = sorted(scores)
    found = []
    for level in _LEVELS:
        place = level * (len(ranked) - 1)
        low = int(place)
        high = min(low + 1, len(ranked) - 1)
        found.append(ranked[low] + (place - low) * (ranked[high] - ranked[low]))
    return Normalisation(_LEVELS, tuple(found))


def spec_text(label: str) -> str:
    """A reward spec, for the folder itself, that gives a scalar judge's normalised output."""
    name = "".join(c if c.isalnum() and c.isascii() else "_" for c in label)[:60] or "judge"
    return (
        "# Asks the judge of this folder: adjudge serve reward.toml\n"
        '# Its rank among the validation answers, 0 to 1; for the raw output: type = "scalar".\n'
        f'[[graders]]\nname = "{name}"\n'
        'type = "adjudge.judge_training.scalar.ranked:RankedScalar"\n\n'
        '[judges.main]\ntype = "local"\nmodel = "."\ntask = "score"\n'
    )
