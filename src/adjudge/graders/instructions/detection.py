"""Which language a text is in, as ``langdetect`` with seed 0 says, in a quarter of its time.

The profiles and the normalisation of characters are the library's. Its sampling (after Shuyo
2010: seven walks over the text's n-grams, each until one language has nearly all the probability)
is repeated step by step with the same random stream, so the answer is the seeded library's own
and the same on every run; walks that cannot change it any more are left out.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from importlib import import_module, resources
from itertools import islice
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["LANGUAGES", "detected"]

_CODES = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr "
    "ne nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw"
)
LANGUAGES = frozenset(_CODES.split())
"""The codes that :func:`detected` can answer: the 55 profiles of langdetect 1.0.9."""

_WALKS = 7
_PER = 10_000
_SMOOTHING, _SMOOTHING_WIDTH = 0.5, 0.05  # of the counts per 10,000
_CERTAIN, _LIKELY = 0.99999, 0.1
_MAX_STEPS = 1000
_MAX_CHARS = 10_000
_MAX_READ = 100_000  # addresses are looked for no further; the library reads everything
_CACHED_WORD = 40  # longer "words" are no words, and would fill the cache

_URL = re.compile(r"https?://[-_.?&~;+=/#0-9A-Za-z]{1,2076}")
_MAIL = re.compile(r"[-_.0-9A-Za-z]{1,64}@[-_0-9A-Za-z]{1,255}[-_.0-9A-Za-z]{1,255}")
_LATIN = re.compile("[A-z]+")  # the library's class: six signs between Z and a belong to it
_OTHER = re.compile("[\u0300-\u1dff\u1f00-\U0010ffff]+")

_FEW = 4
_HOPELESS = 1e-12  # a language this far behind does not come back before another is certain

_Profile = list[float]
"""How often an n-gram stands among 10,000 of its length, for each language."""


def detected(text: str) -> str | None:
    """The code of the likeliest language, ``unknown`` without one, ``None`` for no letters at all.

    Looks at the first 10,000 characters, addresses left out. Needs ``adjudge[rules]``; without
    it ``GradingFailure(unsupported)``.
    """
    model = _model()
    return _answer(model.words(_cleaned(text, model.joined_marks)))


@lru_cache(maxsize=64)
def _answer(words: tuple[str, ...]) -> str | None:
    """The answer for the words of a text, kept because looser readings often have the same."""
    return _model().answer(words)


def _cleaned(text: str, joined_marks: Callable[[str], str]) -> str:
    """``text`` less addresses, and less its Latin letters where other scripts prevail."""
    text = text[:_MAX_READ]
    if "http" in text:
        text = _URL.sub(" ", text)
    if "@" in text:
        text = _MAIL.sub(" ", text)
    if text.isascii():
        return text[:_MAX_CHARS]
    text = joined_marks(text)[:_MAX_CHARS]
    latin = sum(map(len, _LATIN.findall(text)))
    other = sum(map(len, _OTHER.findall(text)))
    return _LATIN.sub("", text) if latin * 2 < other else text


class _Characters(dict[int, str]):
    """What each character counts as; a table for ``str.translate`` that fills itself."""

    def __init__(self, normalised: Callable[[str], str]) -> None:
        super().__init__()
        self._normalised = normalised

    def __missing__(self, code: int) -> str:
        self[code] = result = self._normalised(chr(code))
        return result


class _Model:
    """The library's profiles: in which languages an n-gram occurs, and how often."""

    def __init__(self, profiles: Iterator[dict[str, Any]], ngram: Any) -> None:
        self._languages: list[str] = []
        self._profiles: dict[str, _Profile] = {}
        nowhere = [0.0] * len(LANGUAGES)
        for number, profile in enumerate(profiles):
            self._languages.append(profile["name"])
            totals = profile["n_words"]
            for gram, times in profile["freq"].items():
                shares = self._profiles.setdefault(gram, nowhere.copy())
                shares[number] = _PER * times / totals[len(gram) - 1]
        self._characters = _Characters(ngram.normalize)
        self.joined_marks: Callable[[str], str] = ngram.normalize_vi
        self._known = lru_cache(maxsize=1 << 16)(self._grams_of_word)

    def words(self, text: str) -> tuple[str, ...]:
        """The runs of letters of ``text``, each with the spaces that it stands between."""
        *closed, last = text.translate(self._characters).split(" ")
        found = [f" {word} " for word in closed if word]
        return (*found, f" {last}") if last else tuple(found)

    def answer(self, words: tuple[str, ...]) -> str | None:
        """The likeliest language of the n-grams of ``words``; ``None`` where none is known."""
        grams: list[_Profile] = []
        for word in words:
            known = self._known if len(word) <= _CACHED_WORD else self._grams_of_word
            grams += known(word)
        return self._likeliest(grams) if grams else None

    def _grams_of_word(self, word: str) -> tuple[_Profile, ...]:
        """The known n-grams that end at each character of a word with its spaces.

        None ends at a capital behind a capital: in capitals a language looks like no other.
        """
        found = []
        for end in range(1, len(word)):
            if word[end].isupper() and word[end - 1].isupper():
                continue
            for start in range(end, max(end - 3, -1), -1):
                profile = self._profiles.get(word[start : end + 1])
                if profile and word[start : end + 1] != " ":
                    found.append(profile)
        return tuple(found)

    def _likeliest(self, grams: list[_Profile]) -> str:
        """The language with the highest mean probability over the walks."""
        draws = random.Random(0)  # noqa: S311  (the library's own stream, not for secrets)
        total = [0.0] * len(self._languages)
        for left in reversed(range(_WALKS)):
            extra = _SMOOTHING + draws.gauss(0.0, 1.0) * _SMOOTHING_WIDTH
            for number, probability in self._walk(grams, extra, draws.getrandbits):
                total[number] += probability
            second, best = sorted(total)[-2:]
            if best - second > left:  # whatever the walks that are left say
                break
        return self._languages[total.index(best)] if best / _WALKS > _LIKELY else "unknown"

    def _walk(
        self, grams: list[_Profile], extra: float, bits: Callable[[int], int]
    ) -> Iterable[tuple[int, float]]:
        """Languages and probabilities after as many n-grams as one language needs to prevail.

        Each n-gram multiplies them by its frequency in the language, smoothed by ``extra``.
        """
        alive = list(range(len(self._languages)))
        drawn = _drawn(grams, bits)
        odds = [extra + times for times in next(drawn)]
        for _ in range(_MAX_STEPS // 5):
            highest = max(odds)
            if highest > _CERTAIN * sum(odds):
                break
            if len(alive) > _FEW or not 1e-100 < highest < 1e100:
                lowest = highest * _HOPELESS
                alive = [n for n, p in zip(alive, odds, strict=True) if p > lowest]
                odds = [p / highest for p in odds if p > lowest]
            a, b, c, d, e = islice(drawn, 5)  # the library looks at every fifth
            odds = [
                p
                * (extra + a[n])
                * (extra + b[n])
                * (extra + c[n])
                * (extra + d[n])
                * (extra + e[n])
                for n, p in zip(alive, odds, strict=True)
            ]
        whole = sum(odds)
        return zip(alive, (p / whole for p in odds), strict=True)


def _drawn(grams: list[_Profile], bits: Callable[[int], int]) -> Iterator[_Profile]:
    """One of ``grams`` after another, drawn as ``random.choice`` does without its overhead."""
    size = len(grams)
    places = filter(size.__gt__, iter(partial(bits, size.bit_length()), None))
    return map(grams.__getitem__, places)


@lru_cache(maxsize=1)
def _model() -> _Model:
    try:
        ngram = import_module("langdetect.utils.ngram").NGram
        folder = resources.files("langdetect").joinpath("profiles")
    except ModuleNotFoundError:
        raise GradingFailure(
            ErrorKind.UNSUPPORTED,
            "telling languages apart needs the package langdetect: pip install 'adjudge[rules]'",
        ) from None
    files = (folder.joinpath(name) for name in sorted(LANGUAGES))
    return _Model((json.loads(file.read_text(encoding="utf-8")) for file in files), ngram)
