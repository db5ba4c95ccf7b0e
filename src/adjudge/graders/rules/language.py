"""Is a response written in the wanted language."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, Literal

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import chosen, integer, needs, number
from adjudge.graders.rules.text import NO_FINAL_TEXT, seen_text, shown
from adjudge.graders.view import View
from adjudge.types import GraderScore

__all__ = ["LanguageGrader"]

_Measure = Literal["match", "probability"]
_NO_LANGUAGE = "zxx"  # ISO 639-2 for "no linguistic content"; a class of the model


class LanguageGrader(RuleGrader):
    """Whether the response is in the wanted language: 1 or 0, or its probability.

    Range [0, 1]. Fields: ``response`` (text) and, where no ``language`` is configured,
    ``language`` (an ISO 639 code). Source: py3langid, a naive Bayes model over byte n-grams for
    140 languages (after Lui and Baldwin 2012); its file lies in the package and nothing is
    fetched. Loading takes about half a second and 100 MB, once per process; a configured grader
    does it when built.

    ``language``: the wanted code, such as ``en``; a region or script behind ``-`` or ``_`` is
    ignored (``zh-Hans`` is ``zh``). A configured language wins over the row's.
    ``candidates``: the codes that are told apart, at least two; all by default. Few candidates
    make short texts much safer, since close relatives (``zh`` and ``yue``, ``no`` and ``nn``) are
    languages of their own here.
    ``measure``: ``match`` (default) gives 1 when the wanted language is the likeliest, else 0;
    ``probability`` gives its probability among the candidates.
    ``min_letters`` (default 10): a text with fewer letters, such as "42" or nothing at all, is
    nothing to judge, and so is one in which the model sees no language: ``short_score`` (default
    1) with ``evaluable = false``.
    ``max_chars`` (default 10000): the language is told from that many characters at the start.
    ``view``: ``final`` (default) reads what stands after the thinking, and an unclosed ``<think>``
    scores 0; ``full`` reads the whole response.

    Raises ``ConfigError`` for codes that the model does not know and for a wanted language that
    is not among the candidates; ``GradingFailure(invalid_input)`` for such a code in a row, a row
    without one, and a response that is not text. Needs ``adjudge[rules]``. Metadata: ``found``
    (the likeliest code) and ``probability`` (of the wanted one).
    """

    type_name = "language"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        language: str | None = None,
        candidates: list[str] | None = None,
        measure: _Measure = "match",
        min_letters: int = 10,
        short_score: float = 1.0,
        max_chars: int = 10_000,
        view: View = "final",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        needs(self.type_name, "py3langid")
        chosen(self.type_name, "measure", measure, _Measure)
        integer(self.type_name, "min_letters", min_letters, 1)
        number(self.type_name, "short_score", short_score, 0, 1)
        integer(self.type_name, "max_chars", max_chars, 1, 1_000_000)
        chosen(self.type_name, "view", view, View)
        self.candidates = None if candidates is None else _candidates(candidates)
        self.language = None if language is None else self._configured(language)
        self.measure = measure
        self.min_letters = min_letters
        self.short_score = float(short_score)
        self.max_chars = max_chars
        self.view: View = view

    def evaluate(self, response: str, language: Any = None) -> GraderScore:
        """Judge one response."""
        wanted = self.language or self._row_language(language)
        text = seen_text(response, self.view)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        text = text[: self.max_chars]
        letters = sum(map(str.isalpha, text))
        if letters < self.min_letters:
            return self._not_applicable(self.short_score, f"{letters} letters are too few")
        ranking = _identifier(self.candidates).rank(text)
        (found, best), worst = ranking[0], ranking[-1][1]
        if found == _NO_LANGUAGE or best == worst:
            return self._not_applicable(self.short_score, "no language seen")
        probability = min(dict(ranking)[wanted], 1.0)
        score = float(found == wanted) if self.measure == "match" else probability
        reason = f"{found}, wanted {wanted} (probability {probability:.2f})"
        return self._score(score, reason, found=found, probability=probability)

    def _configured(self, language: Any) -> str:
        code = _code(language)
        known = self._known()
        if code not in known:
            raise ConfigError(
                f"language: language must be one of {', '.join(sorted(known))}, got {language!r}"
            )
        return code

    def _row_language(self, language: Any) -> str:
        if language is None:
            message = "no language, neither configured nor in the row"
            raise GradingFailure(ErrorKind.INVALID_INPUT, message)
        code = _code(language)
        if code not in self._known():
            message = f"unknown language code {shown(language)!r}"
            raise GradingFailure(ErrorKind.INVALID_INPUT, message)
        return code

    def _known(self) -> frozenset[str]:
        return _labels(self.candidates)


def _candidates(codes: Any) -> tuple[str, ...]:
    known = _labels(None)
    wanted = tuple(sorted({_code(code) for code in codes})) if isinstance(codes, list) else ()
    if len(wanted) < 2 or not known.issuperset(wanted):
        raise ConfigError(
            f"language: candidates must be two or more of {', '.join(sorted(known))}, got {codes!r}"
        )
    return wanted


def _code(language: Any) -> str:
    """The primary part of a language code, '' for what is not text."""
    if not isinstance(language, str):
        return ""
    return language.strip().lower().replace("_", "-").partition("-")[0]


@lru_cache(maxsize=32)
def _labels(candidates: tuple[str, ...] | None) -> frozenset[str]:
    return frozenset(_identifier(candidates).labels) - {_NO_LANGUAGE}


@lru_cache(maxsize=32)
def _identifier(candidates: tuple[str, ...] | None) -> Any:
    """The shared model, restricted to ``candidates``; it is only read, so any thread may ask it."""
    if candidates is None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415  (optional)

        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    restricted = copy.copy(_identifier(None))
    restricted.set_languages(list(candidates))
    return restricted
