"""The random walks of ``langdetect`` over the n-grams of a text, forty steps at a time.

After Shuyo (2010): each walk draws n-grams until one language has nearly all the probability.
The draws are those of Python's ``random.Random(0)``, word by word, so walks end where the
library's end. Needs numpy, which comes with the extra ``full``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_WALKS = 7
_SMOOTHING, _SMOOTHING_WIDTH = 0.5, 0.05  # of the counts per 10,000
_CERTAIN, _LIKELY = 0.99999, 0.1
_LOOK = 5  # the library looks at the odds behind every fifth n-gram
_STRIDE = 8 * _LOOK
_MAX_STRIDES = 1000 // _STRIDE

# All that seed 0 can be asked for: seven walks of 1,001 draws, at least every second of them good.
_STREAM = np.frombuffer(random.Random(0).randbytes(80_000), "<u4")  # noqa: S311  (no secrets)
_USUAL = 2_000  # words that are enough for most texts


class Walks:
    """How often n-grams stand among 10,000 of their length, a mapping for each language."""

    def __init__(self, languages: Sequence[Mapping[str, float]]) -> None:
        grams = dict.fromkeys(gram for shares in languages for gram in shares)
        self.rows = {gram: row for row, gram in enumerate(grams)}
        """The number of each n-gram that some language has."""
        self._shares = np.zeros((len(grams), len(languages)))
        for column, shares in enumerate(languages):
            self._shares[[self.rows[gram] for gram in shares], column] = list(shares.values())

    def likeliest(self, grams: Sequence[int]) -> int | None:
        """The language with the highest mean probability over the walks, if any is likely.

        ``grams`` are the numbers of a text's n-grams, at least one. Walks that cannot change the
        answer any more are left out.
        """
        draws = _Draws(len(grams))
        total = np.zeros(self._shares.shape[1])
        for done in range(1, _WALKS + 1):
            total += self._walk(grams, _SMOOTHING + draws.normal() * _SMOOTHING_WIDTH, draws)
            best = float(total.max())
            if best - (done - best) > _WALKS - done:  # whatever the walks that are left say
                break
        return int(total.argmax()) if best / _WALKS > _LIKELY else None

    def _walk(self, grams: Sequence[int], extra: float, draws: _Draws) -> Any:
        """The probabilities after as many n-grams as one language needs to prevail.

        Each n-gram multiplies them by its share in the language, smoothed by ``extra``.
        """
        # One n-gram alone makes no language certain: its share is at most 10,000.
        odds = self._shares[grams[draws.taken(1)[0]]] + extra
        for _ in range(_MAX_STRIDES):
            steps = self._shares[[grams[place] for place in draws.ahead(_STRIDE)]] + extra
            steps[0] *= odds
            looks = np.multiply.accumulate(steps, out=steps)[_LOOK - 1 :: _LOOK]
            sums = looks.sum(axis=1)
            certain = looks.max(axis=1) > _CERTAIN * sums
            look = int(certain.argmax()) if certain.any() else len(looks) - 1
            odds = looks[look] / sums[look]
            draws.take(_LOOK * (look + 1))
            if certain[look]:
                break
        return odds


class _Draws:
    """What ``random.Random(0)`` draws: places below ``size``, and normal numbers between them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0  # in the stream
        self._next = 0  # in what is good of it
        self._spare: float | None = None
        self._see(_USUAL)

    def _see(self, words: int) -> None:
        # As `randrange`: so many bits as the size has, drawn again where they are too large.
        self._seen = words
        self._places = _STREAM[:words] >> (32 - self._size.bit_length())
        self._good = np.flatnonzero(self._places < self._size)

    def ahead(self, n: int) -> list[int]:
        """The next ``n`` places, without taking them."""
        if self._next + n > len(self._good):
            self._see(len(_STREAM))
        found: list[int] = self._places[self._good[self._next : self._next + n]].tolist()
        return found

    def take(self, n: int) -> None:
        """Go on behind ``n`` places."""
        self._next += n
        self._at = int(self._good[self._next - 1]) + 1

    def taken(self, n: int) -> list[int]:
        """The next ``n`` places."""
        found = self.ahead(n)
        self.take(n)
        return found

    def normal(self) -> float:
        """As ``random.gauss(0.0, 1.0)``, which makes two at a time and keeps the second."""
        if self._spare is not None:
            found, self._spare = self._spare, None
            return found
        angle = self._uniform() * math.tau
        radius = math.sqrt(-2.0 * math.log(1.0 - self._uniform()))
        if self._at > self._seen:
            self._see(len(_STREAM))
        self._next = int(self._good.searchsorted(self._at))
        self._spare = math.sin(angle) * radius
        return math.cos(angle) * radius

    def _uniform(self) -> float:
        """As ``random.random()``: 53 bits of two words."""
        high, low = _STREAM[self._at : self._at + 2].tolist()
        self._at += 2
        return float(((high >> 5) * 2**26 + (low >> 6)) / 2**53)
