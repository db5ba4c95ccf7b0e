"""A judge as a formula: what it likes beside quality, how it errs and how it fails are dials."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Literal, NamedTuple

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.text import encode_exactly
from adjudge.types import GraderScore
from adjudge_lab.synthetic import (
    COUNTRY_CAPITALS,
    FILLER_PHRASES,
    capital_question,
    gold_score,
)

MAX_FEATURE_UNITS = 2.0
"""A feature counts up to this many of its units: what is longer is not liked more."""

_WORDS, _FILLERS, _MARKS = 32, 4, 8
"""How many of each make one unit."""

_MAX_NOISE_SDS = 4.0


_BULLETS = ("- ", "* ", "+ ", "• ")
_DIGITS = "0123456789"
_MOST_DIGITS = 3


class TextFeatures(NamedTuple):
    """Counts of one answer.

    ``length``: characters. ``markdown``: headings, table rows and pairs of bold marks. ``lists``:
    lines that are items of a list. ``code``: pairs of fences and of single backticks.
    """

    length: int
    markdown: int
    lists: int
    code: int


def compute_features(text: str) -> TextFeatures:
    r"""The counts of ``text``; linear in its length.

    >>> compute_features("# Plan\n- **one**\n2. `two`")
    TextFeatures(length=25, markdown=2, lists=2, code=1)
    """
    headings = items = 0
    for line in text.splitlines():
        begin = line.lstrip()
        headings += begin.startswith("|") or begin.lstrip("#")[:1] == " " != begin[:1]
        items += begin.startswith(_BULLETS) or _is_numbered(begin)
    fences = text.count("```") // 2
    ticks = (text.count("`") - 3 * text.count("```")) // 2
    return TextFeatures(len(text), headings + text.count("**") // 2, items, fences + ticks)


def _is_numbered(line: str) -> bool:
    """Whether a line begins with a number of up to three digits, a dot or bracket, a space."""
    rest = line[: _MOST_DIGITS + 2].lstrip(_DIGITS)
    return line[:1] in _DIGITS and line[:1] != "" and rest[:2] in (". ", ") ")


class ParametricJudge(RuleGrader):
    """What a judge with known biases says: quality + Σ dial · feature + noise.

    Quality is that of an answer about a capital (``gold = "capitals"``; the four points of
    :func:`~adjudge_lab.synthetic.gold_score`, over 4), or 0 everywhere (``"none"``). The
    dials say how much one unit of a feature adds, or takes away:

    ============  ============================================================================
    ``length``    words, in units of 32
    ``fillers``   phrases that say nothing (:data:`~adjudge_lab.synthetic.FILLER_PHRASES`),
                  in units of 4
    ``markdown``  headings, table rows and pairs of bold marks, in units of 8
    ``own``       1 where the answer begins with the name of ``family`` and a colon, else 0
    ============  ============================================================================

    Of each no more than :data:`MAX_FEATURE_UNITS` units count. ``noise`` is the standard deviation
    of an error that belongs to prompt and response: the same text has the same error however often
    it is asked about, another ``seed`` another (normal, held within four deviations).

    ``fails``: the share of calls that time out, and are missing; ``zeros``: the share that time out
    in a program that takes a time-out for 0.0 (a bad score, not a missing one). Such programs are
    what a study of failures is about, and the only reason why there is a score for a failure here.
    Which calls these are follows from ``seed``, the texts and the column ``rollout``, and is
    the same for both. ``fails_by = "length"`` lets the share grow with the answer: it is then that
    of answers of 32 words.

    The range is what the dials allow. Fields: ``response``; ``prompt`` where the gold is of
    capitals; ``rollout`` where there is one. A prompt that asks for no country's capital is
    ``invalid_input``. Raises :class:`~adjudge.errors.ConfigError` for dials that are none.
    """

    type_name = "parametric"

    def __init__(
        self,
        name: str = "",
        *,
        gold: Literal["capitals", "none"] = "capitals",
        length: float = 0.0,
        fillers: float = 0.0,
        markdown: float = 0.0,
        own: float = 0.0,
        family: str = "",
        noise: float = 0.0,
        fails: float = 0.0,
        zeros: float = 0.0,
        fails_by: Literal["random", "length"] = "random",
        seed: int = 0,
    ) -> None:
        super().__init__(name)
        self.dials = {"length": length, "fillers": fillers, "markdown": markdown, "own": own}
        _check_dials(self.dials, noise, {"fails": fails, "zeros": zeros})
        if bool(family) != bool(own) or not (family.isalnum() or not family):
            raise ConfigError("own: needs family, a name of one word. Give both or neither.")
        self.gold, self.family, self.noise, self.seed = gold, family, noise, seed
        self.fails, self.zeros, self.fails_by = fails, zeros, fails_by
        self.score_range = self._bounds = self._range()

    def evaluate(self, response: str, prompt: str = "", rollout: str = "") -> GraderScore:
        """The score of one answer."""
        if self._times_out(prompt, response, str(rollout)):
            if self.zeros:
                return self._score(0.0, "timed out, and taken for 0", timed_out=True)
            # Asked again it would time out again, which says nothing of an outage.
            raise GradingFailure(ErrorKind.TIMEOUT, "no answer in time", {"local": True})
        quality = self._quality(prompt, response)
        features = self.features(response)
        liked = math.fsum(self.dials[feature] * value for feature, value in features.items())
        said = math.fsum((quality, liked, self._error(prompt, response)))
        low, high = self._bounds  # met but for rounding
        return self._score(max(low, min(high, said)), quality=quality, features=features)

    def features(self, response: str) -> dict[str, float]:
        """What the dials turn on, in units, from 0 to :data:`MAX_FEATURE_UNITS`."""
        counts = {
            "length": len(response.split()) / _WORDS,
            "fillers": sum(response.count(phrase) for phrase in FILLER_PHRASES) / _FILLERS,
            "markdown": compute_features(response).markdown / _MARKS,
            "own": float(bool(self.family) and response.startswith(f"{self.family}:")),
        }
        return {feature: min(value, MAX_FEATURE_UNITS) for feature, value in counts.items()}

    def _quality(self, prompt: str, response: str) -> float:
        if self.gold == "none":
            return 0.0
        asked = [country for country in COUNTRY_CAPITALS if capital_question(country) in prompt]
        if len(asked) != 1:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"the prompt asks for the capitals of {len(asked)} countries; gold = 'capitals' "
                f"needs one question such as {capital_question('Peru')!r}",
            )
        return gold_score(asked[0], response) / 4

    def _error(self, prompt: str, response: str) -> float:
        if not self.noise:
            return 0.0
        drawn = _seeded_draws("noise", self.seed, prompt, response).gauss(0.0, 1.0)
        return self.noise * max(-_MAX_NOISE_SDS, min(_MAX_NOISE_SDS, drawn))

    def _times_out(self, prompt: str, response: str, rollout: str) -> bool:
        share = self.fails or self.zeros
        if self.fails_by == "length":
            share *= len(response.split()) / _WORDS
        return _seeded_draws("fails", self.seed, prompt, response, rollout).random() < share

    def _range(self) -> tuple[float, float]:
        """The lowest and the highest that can be said."""
        error = self.noise * _MAX_NOISE_SDS
        best = float(self.gold != "none")
        reach = {
            name: dial * (1.0 if name == "own" else MAX_FEATURE_UNITS)
            for name, dial in self.dials.items()
        }
        low = math.fsum(min(0.0, value) for value in reach.values()) - error
        high = math.fsum(max(0.0, value) for value in reach.values()) + error + best
        if low == high:
            raise ConfigError(
                "gold: is 'none' and every dial is 0, so that all answers have one score. Set a "
                "dial."
            )
        return low, high


def _check_dials(dials: Mapping[str, float], noise: float, shares: Mapping[str, float]) -> None:
    def each(values: Mapping[str, float], fine: Callable[[float], bool], allowed: str) -> None:
        for name, value in values.items():
            if not (math.isfinite(value) and fine(value)):
                raise ConfigError(f"{name}: must be {allowed} (found {value})")

    each(dials, lambda value: abs(value) <= 1e6, "a number within ±1,000,000")
    each({"noise": noise}, lambda value: 0 <= value <= 1e6, "from 0 to 1,000,000")
    each(shares, lambda value: 0 <= value < 1, "a share from 0 to below 1")
    if all(shares.values()):
        raise ConfigError(
            "zeros: cannot be combined with fails, because both treat the same time-outs. Give one "
            "of them."
        )


def _seeded_draws(*parts: object) -> random.Random:
    """Draws that belong to ``parts``, the same in every process."""
    said = sha256()
    for part in parts:
        text = encode_exactly(str(part))
        said.update(len(text).to_bytes(8, "big") + text)
    return random.Random(said.digest())  # noqa: S311  (no secret)
