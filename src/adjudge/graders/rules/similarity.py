"""How close a response is to its reference: BLEU, chrF, ROUGE-L, edit, F1, Jaccard, matching."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal

from rapidfuzz.distance import LCSseq, Levenshtein

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.params import chosen, flag, integer, needs
from adjudge.graders.rules.text import NO_FINAL_TEXT, chunks, references, seen_text, words
from adjudge.graders.view import View
from adjudge.types import GraderScore

__all__ = ["SimilarityGrader", "StringMatchGrader", "rouge_l", "token_f1"]

_Metric = Literal["bleu", "chrf", "rouge_l", "edit", "f1", "jaccard"]
_Tokenizer = Literal["13a", "zh", "char", "intl"]
_Match = Literal["exact", "prefix", "suffix", "contains", "overlap"]


class SimilarityGrader(RuleGrader):
    """Similarity of response and reference by one named metric; the best of several references.

    Range [0, 1]. Fields: ``response`` (text) and ``reference`` (text, or a list of texts).
    Identical texts score 1. A text that leaves the metric nothing to compare (an empty one, or
    only punctuation where words are compared) scores 1 against another such text and 0 against
    any other.

    ``metric``:

    * ``rouge_l`` (default): F = 2PR / (P + R) with P = LCS / response tokens and R = LCS /
      reference tokens, LCS the longest common subsequence (Lin 2004, β = 1, no stemming);
    * ``bleu``: sentence BLEU / 100 by sacrebleu (Papineni et al. 2002; exponential smoothing,
      effective order), tokens by ``bleu_tokenizer`` (``13a`` default, ``zh``, ``char``, ``intl``);
    * ``chrf``: chrF2 / 100 by sacrebleu (Popović 2015; character 6-grams, β = 2);
    * ``edit``: 1 − Levenshtein distance / length of the longer text, in characters;
    * ``f1``: F = 2PR / (P + R) over the multisets of tokens, after SQuAD's normalisation (lower
      case, no ASCII punctuation, no "a", "an", "the"; Rajpurkar et al. 2016);
    * ``jaccard``: |A ∩ B| / |A ∪ B| over the sets of tokens.

    Tokens of ``rouge_l`` and ``jaccard`` are lower-cased words without punctuation. For these two
    and ``f1`` a Chinese character or kana is a token by itself.

    ``max_chars`` (default 10000): a longer text is cut there before comparing, since edit distance
    and LCS take time in proportion to the product of both lengths; metadata then has ``cut``.
    ``view``: ``final`` (default) reads what stands after the thinking, and an unclosed ``<think>``
    scores 0; ``full`` reads the whole response.

    Raises ``GradingFailure(invalid_input)`` for a response that is not text and a reference that
    is neither text nor a list of texts. ``bleu`` and ``chrf`` need ``adjudge[rules]``.

    >>> SimilarityGrader("edit").evaluate("kitten", "sitting").score
    0.5714285714285714
    >>> SimilarityGrader("f1").evaluate("The cat sat.", ["a dog", "cat sat down"]).score
    0.8
    """

    type_name = "similarity"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        metric: _Metric = "rouge_l",
        bleu_tokenizer: _Tokenizer = "13a",
        max_chars: int = 10_000,
        view: View = "final",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        chosen(self.type_name, "metric", metric, _Metric)
        chosen(self.type_name, "bleu_tokenizer", bleu_tokenizer, _Tokenizer)
        chosen(self.type_name, "view", view, View)
        integer(self.type_name, "max_chars", max_chars, 1, 1_000_000)
        if metric in ("bleu", "chrf"):
            needs(f"{self.type_name} with metric = {metric!r}", "sacrebleu")
        self.metric = metric
        self.bleu_tokenizer = bleu_tokenizer
        self.max_chars = max_chars
        self.view: View = view

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Compare one response with its reference or references."""
        targets = references(reference)
        text = seen_text(response, self.view)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        limit = self.max_chars
        compare = self._comparison()
        text_cut = text[:limit]
        best = max(
            1.0 if text_cut == cut else compare(text_cut, cut)
            for cut in (target[:limit] for target in targets)
        )
        if len(text) > limit or any(len(target) > limit for target in targets):
            return self._score(best, f"{self.metric} of the first {limit} characters", cut=True)
        return self._score(best, self.metric)

    def _comparison(self) -> Callable[[str, str], float]:
        if self.metric == "bleu":
            return partial(_sacrebleu, _bleu(self.bleu_tokenizer))
        if self.metric == "chrf":
            return partial(_sacrebleu, _chrf())
        return _COMPARISONS[self.metric]


class StringMatchGrader(RuleGrader):
    """1 when the response matches the reference text, else 0; ``overlap`` gives a share.

    Range [0, 1]. Fields: ``response`` (text) and ``reference`` (text, or a list of texts: the
    best counts). Source: the py-openjudge 0.2.4 definitions (``StringMatchGrader``), whose
    ``overlap`` also drops stop words.

    ``match``: ``exact`` (default), ``prefix`` (the response starts with the reference), ``suffix``
    (ends with it), ``contains`` (has it somewhere), or ``overlap``, the share of the reference's
    distinct words that the response has.
    ``ignore_case`` (default false) compares by Unicode case folding; ``overlap`` always ignores
    case. ``strip`` (default true) removes white space at both ends of both texts.
    ``view``: ``final`` (default) reads what stands after the thinking, and an unclosed ``<think>``
    scores 0; ``full`` reads the whole response.

    An empty response scores 0, save ``exact`` against an empty reference. In every other mode an
    empty reference (for ``overlap`` one without words) would match anything and is
    ``GradingFailure(invalid_input)``, as are a response that is not text and a reference that is
    neither text nor a list of texts.

    >>> StringMatchGrader("suffix", ignore_case=True).evaluate("It is PARIS", "paris").score
    1.0
    >>> StringMatchGrader("overlap").evaluate("red green", "red blue").score
    0.5
    """

    type_name = "string_match"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        match: _Match = "exact",
        ignore_case: bool = False,
        strip: bool = True,
        view: View = "final",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        chosen(self.type_name, "match", match, _Match)
        chosen(self.type_name, "view", view, View)
        flag(self.type_name, "ignore_case", ignore_case)
        flag(self.type_name, "strip", strip)
        self.match = match
        self.ignore_case = ignore_case
        self.strip = strip
        self.view: View = view

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Match one response against its reference or references."""
        targets = [self._prepared(target) for target in references(reference)]
        if self.match != "exact" and not all(map(self._has_content, targets)):
            raise GradingFailure(ErrorKind.INVALID_INPUT, f"empty reference under {self.match!r}")
        text = seen_text(response, self.view)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        text = self._prepared(text)
        best = max(float(_MATCHES[self.match](text, target)) for target in targets)
        return self._score(best, f"{self.match} match" if best else f"no {self.match} match")

    def _prepared(self, text: str) -> str:
        text = text.casefold() if self.ignore_case else text
        return text.strip() if self.strip else text

    def _has_content(self, target: str) -> bool:
        return bool(words(target)) if self.match == "overlap" else bool(target)


def rouge_l(text: str, target: str) -> float:
    """ROUGE-L F-measure of two texts over their words (Lin 2004, β = 1).

    >>> rouge_l("the cat sat", "the cat sat down quietly here")
    0.6666666666666666
    """
    ours, theirs = words(text), words(target)
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * LCSseq.similarity(ours, theirs) / (len(ours) + len(theirs))


def token_f1(text: str, target: str) -> float:
    """SQuAD's token F1 (Rajpurkar et al. 2016); Chinese characters and kana are tokens.

    >>> token_f1("The U.S.A.", "usa")
    1.0
    """
    ours, theirs = _squad_tokens(text), _squad_tokens(target)
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))


def jaccard(text: str, target: str) -> float:
    """|A ∩ B| / |A ∪ B| over the sets of words of two texts.

    >>> jaccard("red green", "green blue")
    0.3333333333333333
    """
    ours, theirs = set(words(text)), set(words(target))
    union = ours | theirs
    return len(ours & theirs) / len(union) if union else 1.0


_COMPARISONS: dict[str, Callable[[str, str], float]] = {
    "rouge_l": rouge_l,
    "edit": Levenshtein.normalized_similarity,
    "f1": token_f1,
    "jaccard": jaccard,
}

_MATCHES: dict[str, Callable[[str, str], float | bool]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
    "contains": str.__contains__,
    "overlap": lambda text, target: _recall(set(words(text)), set(words(target))),
}


def _recall(ours: set[str], theirs: set[str]) -> float:
    return len(ours & theirs) / len(theirs)


_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def _squad_tokens(text: str) -> list[str]:
    return chunks(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)))


@lru_cache(maxsize=4)
def _bleu(tokenizer: str) -> Any:
    from sacrebleu.metrics import bleu  # noqa: PLC0415  (optional)

    return bleu.BLEU(effective_order=True, tokenize=tokenizer)


@lru_cache(maxsize=1)
def _chrf() -> Any:
    from sacrebleu.metrics import chrf  # noqa: PLC0415  (optional)

    return chrf.CHRF()


def _sacrebleu(metric: Any, text: str, target: str) -> float:
    if not text.strip() or not target.strip():
        return float(text.strip() == target.strip())
    score = metric.sentence_score(text, [target]).score
    tokenizer = getattr(metric, "tokenizer", None)
    for cached in (tokenizer, getattr(tokenizer, "_post_tokenizer", None)):
        _forget(cached)
    return min(float(score) / 100, 1.0)


def _forget(tokenizer: Any) -> None:
    """Empty a tokenizer's cache in time: sacrebleu would keep 65,536 texts for ever."""
    method: Any = type(tokenizer).__call__
    if hasattr(method, "cache_info") and method.cache_info().currsize > _KEPT_TEXTS:
        method.cache_clear()


_KEPT_TEXTS = 256
