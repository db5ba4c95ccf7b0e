"""Which language a text is in, as ``langdetect`` with seed 0 says, in a fraction of its time.

The profiles and the normalisation of characters are the library's, and so are the random walks
(:mod:`.walks`): the answer is the seeded library's own, and the same on every run.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module, resources
from typing import Any

from adjudge.errors import ConfigError

__all__ = ["LANGUAGES", "detected"]

_CODES = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr "
    "ne nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw"
)
LANGUAGES = frozenset(_CODES.split())
"""The codes that :func:`detected` can answer: the 55 profiles of langdetect 1.0.9."""

_PER = 10_000
_MAX_CHARS = 10_000
_MAX_READ = 100_000  # addresses are looked for no further; the library reads everything
_CACHED_WORD = 40  # longer "words" are no words, and would fill the cache

_URL = re.compile(r"https?://[-_.?&~;+=/#0-9A-Za-z]{1,2076}")
_MAIL = re.compile(r"[-_.0-9A-Za-z]{1,64}@[-_0-9A-Za-z]{1,255}[-_.0-9A-Za-z]{1,255}")
_LATIN = re.compile("[A-z]+")  # the library's class: six signs between Z and a belong to it
_OTHER = re.compile("[\u0300-\U0010ffff]+")  # as there: with the Latin letters from U+1E00 on


def detected(text: str) -> str | None:
    """The code of the likeliest language, ``unknown`` without one, ``None`` for no letters at all.

    Looks at the first 10,000 characters, addresses left out. Needs ``adjudge[rules]``; without
    it ``ConfigError``.
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
    """The library's profiles, and its walks over the n-grams of a text."""

    def __init__(self, profiles: Sequence[dict[str, Any]], ngram: Any, walks: Any) -> None:
        self._languages: list[str] = [profile["name"] for profile in profiles]
        self._walks = walks.Walks([_shares(profile) for profile in profiles])
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
        grams: list[int] = []
        for word in words:
            known = self._known if len(word) <= _CACHED_WORD else self._grams_of_word
            grams += known(word)
        if not grams:
            return None
        likeliest = self._walks.likeliest(grams)
        return "unknown" if likeliest is None else self._languages[likeliest]

    def _grams_of_word(self, word: str) -> tuple[int, ...]:
        """The known n-grams that end at each character of a word with its spaces.

        None ends at a capital behind a capital: in capitals a language looks like no other.
        """
        found = []
        for end in range(1, len(word)):
            if word[end].isupper() and word[end - 1].isupper():
                continue
            for start in range(end, max(end - 3, -1), -1):
                row = self._walks.rows.get(word[start : end + 1])
                if row is not None and word[start : end + 1] != " ":
                    found.append(row)
        return tuple(found)


def _shares(profile: dict[str, Any]) -> dict[str, float]:
    """How often each n-gram stands among 10,000 of its length."""
    totals = profile["n_words"]
    return {gram: _PER * times / totals[len(gram) - 1] for gram, times in profile["freq"].items()}


def _fresh_lock() -> None:
    global _loading  # noqa: PLW0603  (a fork copies it, perhaps locked)
    _loading = threading.Lock()


_loading: threading.Lock
_fresh_lock()
os.register_at_fork(after_in_child=_fresh_lock)


def _model() -> _Model:
    """The one model of the process: threads that ask at once do not each load their own."""
    with _loading:
        return _loaded()


@lru_cache(maxsize=1)
def _loaded() -> _Model:
    try:
        walks = import_module("adjudge.graders.instructions.walks")
        ngram = import_module("langdetect.utils.ngram").NGram
        folder = resources.files("langdetect").joinpath("profiles")
    except ModuleNotFoundError:
        raise ConfigError(
            "telling languages apart needs the package langdetect: pip install 'adjudge[rules]'"
        ) from None
    files = (folder.joinpath(name) for name in sorted(LANGUAGES))
    return _Model([json.loads(file.read_text(encoding="utf-8")) for file in files], ngram, walks)
