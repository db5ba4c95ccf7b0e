"""A penalty for saying the same again: repeated n-grams."""

from __future__ import annotations

from itertools import islice
from typing import Literal

from adjudge.errors import ConfigError
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import chosen, flag, integer, number
from adjudge.graders.rules.text import part_of, text_of, words
from adjudge.types import GraderScore, Role

__all__ = ["NgramRepetitionPenaltyGrader", "repetition_rate"]

_Scope = Literal["full", "final", "thought"]


class NgramRepetitionPenaltyGrader(RuleGrader):
    """A penalty on the share of n-grams that repeat an earlier one.

    Role penalty. With rate = 1 − distinct n-grams / all n-grams, in [0, 1):

    * hard (default): −(rate − penalty_threshold) · penalty_rate where rate > penalty_threshold,
      else 0; range [−(1 − penalty_threshold) · penalty_rate, 0];
    * soft: max_penalty · (rate − min_scaling) / (1 − min_scaling) where rate > min_scaling, else
      0; range [max_penalty, 0].

    Source: the py-openjudge 0.2.4 definition (``NgramRepetitionPenaltyGrader``) with its names and
    defaults, except for tokens: lower-cased words, Chinese characters and kana one by one, and
    every other visible sign by itself, so that "!!!!" repeats. Time is linear in the length of
    the text.

    Field: ``response`` (text). Fewer than ``n`` tokens, so an empty response too, are nothing to
    judge: 0 with ``evaluable = false``.

    ``n`` (default 3, 1 to 100), ``penalty_threshold`` (default 0.3), ``penalty_rate`` (default 1),
    ``use_soft_penalty`` (default false), ``max_penalty`` (default −1, at most 0), ``min_scaling``
    (default 0, below 1).
    ``view``: ``full`` (default), ``final`` (after the thinking; nothing when a ``<think>`` was
    never closed) or ``thought`` (inside ``<think>…</think>``, an unclosed one to its end).

    Raises ``ConfigError`` for parameters out of range and ``GradingFailure(invalid_input)`` for a
    response that is not text. Metadata: ``rate``, ``ngrams``.

    >>> NgramRepetitionPenaltyGrader(n=1).evaluate("no no no no").score
    -0.45
    """

    type_name = "ngram_repetition"
    score_range = (-0.7, 0.0)
    role = Role.PENALTY

    def __init__(
        self,
        n: int = 3,
        penalty_threshold: float = 0.3,
        penalty_rate: float = 1.0,
        use_soft_penalty: bool = False,
        max_penalty: float = -1.0,
        min_scaling: float = 0.0,
        view: _Scope = "full",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        integer(self.type_name, "n", n, 1, 100)
        number(self.type_name, "penalty_threshold", penalty_threshold, 0, 1)
        number(self.type_name, "penalty_rate", penalty_rate, 0, 1e6)
        flag(self.type_name, "use_soft_penalty", use_soft_penalty)
        number(self.type_name, "max_penalty", max_penalty, -1e6, 0)
        number(self.type_name, "min_scaling", min_scaling, 0, 1)
        chosen(self.type_name, "view", view, _Scope)
        if min_scaling == 1:
            raise ConfigError("ngram_repetition: min_scaling must be below 1, got 1")
        self.n = n
        self.penalty_threshold = penalty_threshold
        self.penalty_rate = penalty_rate
        self.use_soft_penalty = use_soft_penalty
        self.max_penalty = max_penalty
        self.min_scaling = min_scaling
        self.view: _Scope = view
        self.score_range = (self._penalty(1.0), 0.0)

    def evaluate(self, response: str) -> GraderScore:
        """Penalise one response."""
        text = part_of(text_of(response), self.view)
        tokens = words(text, signs=True)
        ngrams = len(tokens) - self.n + 1
        if ngrams < 1:
            return self._not_applicable(0.0, f"{len(tokens)} tokens, fewer than {self.n}")
        rate = repetition_rate(tokens, self.n)
        reason = f"{rate:.1%} of {ngrams} {self.n}-grams repeat an earlier one"
        return self._score(self._penalty(rate), reason, rate=rate, ngrams=ngrams)

    def _penalty(self, rate: float) -> float:
        start = self.min_scaling if self.use_soft_penalty else self.penalty_threshold
        if rate <= start:
            return 0.0
        if self.use_soft_penalty:
            return self.max_penalty * (rate - start) / (1 - start) or 0.0
        return -(rate - start) * self.penalty_rate or 0.0


def repetition_rate(tokens: list[str], n: int) -> float:
    """1 − distinct n-grams / all n-grams of ``tokens``, which has at least ``n``.

    >>> repetition_rate(["a", "b", "a", "b"], 2)
    0.33333333333333337
    """
    shifted = [islice(tokens, start, None) for start in range(n)]
    return 1 - len(set(zip(*shifted, strict=False))) / (len(tokens) - n + 1)
