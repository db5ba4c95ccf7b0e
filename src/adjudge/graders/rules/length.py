"""Penalties on the length of a response."""

from __future__ import annotations

from typing import Any, Literal

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import chosen, integer, number
from adjudge.graders.rules.text import seen_text, text_of, words
from adjudge.graders.view import View
from adjudge.types import GraderScore, Role, ScoreRange

__all__ = ["LengthPenaltyGrader", "SoftOverlongPunishmentGrader"]

_TextUnit = Literal["chars", "words"]
_Unit = Literal["tokens", "chars", "words"]


class LengthPenaltyGrader(RuleGrader):
    """A penalty that grows with every unit outside the allowed lengths.

    Role penalty, range (−∞, 0], or [floor, 0] with a ``floor``. Field: ``response`` (text); an
    empty one has length 0. With length L: −(min_length − L) · penalty_rate when L < min_length,
    −(L − max_length) · penalty_rate when L > max_length, else 0, and never below ``floor``.
    Source: the py-openjudge 0.2.4 definition (``LengthPenaltyGrader``), which has no floor.

    ``min_length`` (default 10), ``max_length`` (default 1000): allowed lengths, both included.
    ``penalty_rate`` (default 0.01): penalty per unit.
    ``floor``: the lowest penalty, at most 0; none by default.
    ``unit``: ``chars`` (default, Unicode code points) or ``words`` (a Chinese character counts as
    a word).
    ``view``: ``full`` (default) counts all that was written; ``final`` counts what stands after
    the thinking, and an unclosed ``<think>`` then leaves length 0.

    Raises ``ConfigError`` for limits that are out of order and
    ``GradingFailure(invalid_input)`` for a response that is not text. Metadata: ``length``.

    >>> LengthPenaltyGrader(max_length=20, penalty_rate=0.1).evaluate("x" * 25).score
    -0.5
    """

    type_name = "length_penalty"
    score_range: ScoreRange | None = (None, 0.0)
    role = Role.PENALTY

    def __init__(
        self,
        min_length: int = 10,
        max_length: int = 1000,
        penalty_rate: float = 0.01,
        floor: float | None = None,
        unit: _TextUnit = "chars",
        view: View = "full",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        integer(self.type_name, "min_length", min_length, 0)
        integer(self.type_name, "max_length", max_length, 0)
        number(self.type_name, "penalty_rate", penalty_rate, 0, 1e6)
        chosen(self.type_name, "unit", unit, _TextUnit)
        chosen(self.type_name, "view", view, View)
        if floor is not None:
            number(self.type_name, "floor", floor, -1e12, 0)
            self.score_range = (float(floor), 0.0)
        if max_length < min_length:
            raise ConfigError(
                f"length_penalty: max_length must be at least min_length ({min_length}), "
                f"got {max_length}"
            )
        self.min_length = min_length
        self.max_length = max_length
        self.penalty_rate = penalty_rate
        self.floor = floor
        self.unit = unit
        self.view: View = view

    def evaluate(self, response: str) -> GraderScore:
        """Penalise one response."""
        length = _length(seen_text(response, self.view) or "", self.unit)
        excess = max(self.min_length - length, length - self.max_length, 0)
        penalty = -excess * self.penalty_rate or 0.0
        if self.floor is not None:
            penalty = max(penalty, self.floor)
        reason = f"{length} {self.unit}, allowed {self.min_length} to {self.max_length}"
        return self._score(penalty, reason, length=length)


class SoftOverlongPunishmentGrader(RuleGrader):
    """0 up to a length, falling in a straight line to −1 at the maximum length, then −1.

    Role penalty, range [−1, 0]. With length L: 0 for L ≤ L_max − L_cache;
    ((L_max − L_cache) − L) / L_cache up to L_max; −1 beyond. Source: DAPO's soft overlong
    punishment (Yu et al. 2025, arXiv 2503.14476, eq. 13) with the paper's lengths. An empty
    response has length 0, hence no penalty.

    ``max_length`` (L_max, default 20480) and ``cache_length`` (L_cache, default 4096): in ``unit``.
    ``unit``: ``tokens`` (default) reads the row's field ``response_length``, the number of tokens
    that the policy wrote; ``chars`` and ``words`` measure ``response``, thinking included.

    Fields: ``response_length`` (whole number, at least 0) for tokens, else ``response`` (text);
    the one that is not read may be absent. Raises ``ConfigError`` unless
    1 ≤ cache_length ≤ max_length, and ``GradingFailure(invalid_input)`` when the field that the
    unit needs is missing or of another type. Metadata: ``length``.

    >>> grader = SoftOverlongPunishmentGrader(max_length=100, cache_length=20)
    >>> [grader.evaluate(response_length=n).score for n in (80, 90, 100, 500)]
    [0.0, -0.5, -1.0, -1.0]
    """

    type_name = "soft_overlong"
    score_range = (-1.0, 0.0)
    role = Role.PENALTY

    def __init__(
        self,
        max_length: int = 20480,
        cache_length: int = 4096,
        unit: _Unit = "tokens",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        integer(self.type_name, "max_length", max_length, 1)
        integer(self.type_name, "cache_length", cache_length, 1, max_length)
        chosen(self.type_name, "unit", unit, _Unit)
        self.max_length = max_length
        self.cache_length = cache_length
        self.unit = unit

    def evaluate(self, response: str | None = None, response_length: Any = None) -> GraderScore:
        """Penalise one response."""
        if self.unit == "tokens":
            length = _token_count(response_length)
        else:
            length = _length(text_of(response), self.unit)
        over = length - (self.max_length - self.cache_length)
        penalty = -min(over, self.cache_length) / self.cache_length if over > 0 else 0.0
        return self._score(penalty, f"{length} of {self.max_length} {self.unit}", length=length)


def _length(text: str, unit: str) -> int:
    return len(words(text)) if unit == "words" else len(text)


def _token_count(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of a table with gaps is often read as floats
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            "unit = 'tokens' needs the field response_length (a whole number of tokens), "
            f"got {value!r}; unit = 'chars' or 'words' measures the response instead",
        )
    return value
