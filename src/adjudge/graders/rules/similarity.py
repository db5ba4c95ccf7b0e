"""How similar texts are.

As sets of tokens, and to a reference: BLEU, chrF, ROUGE-L, edit, F1,
Jaccard, matching.
"""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, count
from typing import Any, Literal

from rapidfuzz.distance import LCSseq, Levenshtein

from adjudge.errors import InvalidInput
from adjudge.graders.base import (
    NO_FINAL_TEXT,
    ParametricRule,
    final_response,
    read_references,
    require_package,
)
from adjudge.text import compose_letters, split_chunks, split_words
from adjudge.types import GraderScore


def nearest_earlier_similarities(texts: Iterable[str]) -> list[float]:
    """For each text the highest Jaccard index |A ∩ B| / |A ∪ B| with any text before it.

    A and B are the sets of lower-case words between white space. 0.0 for the first; a text without
    words is similar to nothing, not even to itself.

    >>> nearest_earlier_similarities(["a b c", "c B a", "a b d"])
    [0.0, 1.0, 0.5]
    """
    numbers = _number_tokens()
    earlier: dict[int, int] = {}
    nearest = []
    for text in texts:
        mask = _mask(text.lower().split(), numbers)
        best, size = float(mask in earlier), mask.bit_count()
        for other, its_size in earlier.items() if best < 1 else ():
            # |A ∩ B| / |A ∪ B| is at most the smaller size by the larger.
            if min(size, its_size) > best * max(size, its_size):
                best = max(best, _jaccard(mask, other))
        nearest.append(best)
        if mask:
            earlier[mask] = size
    return nearest


def count_similar_pairs(groups: Mapping[frozenset[str], int], threshold: float) -> int:
    """How many pairs of texts have a Jaccard index of at least ``threshold`` (0 to 1).

    ``groups`` has the token sets of the texts and how often each occurs. Linear at threshold 1.

    >>> count_similar_pairs({frozenset("ab"): 2, frozenset("abc"): 1}, 0.6)
    3
    """
    if threshold <= 0.0:
        total = sum(groups.values())
        return total * (total - 1) // 2
    equal = sum(own * (own - 1) for tokens, own in groups.items() if tokens) // 2
    if threshold >= 1.0:
        return equal
    numbers = _number_tokens()
    masks = [(_mask(tokens, numbers), own) for tokens, own in groups.items() if tokens]
    return equal + sum(
        own * others
        for (mask, own), (other, others) in combinations(masks, 2)
        if _jaccard(mask, other) >= threshold
    )


def _number_tokens() -> defaultdict[Hashable, int]:
    """Tokens by number: a token that lacks one takes the next."""
    return defaultdict(count().__next__)


def _mask(tokens: Iterable[Hashable], numbers: defaultdict[Hashable, int]) -> int:
    """A set of tokens as an integer with a bit for each: an intersection is one operation in C."""
    return sum(1 << numbers[token] for token in set(tokens))


def _jaccard(one: int, other: int) -> float:
    return (one & other).bit_count() / (one | other).bit_count()


_Metric = Literal["bleu", "chrf", "rouge_l", "edit", "f1", "jaccard"]
_MAX_CHARS = 10_000
_Match = Literal["exact", "prefix", "suffix", "contains", "overlap"]


@dataclass(eq=False, repr=False)
class SimilarityGrader(ParametricRule):
    """Similarity of response and reference by one named metric; the best of several references.

    Fields: ``response`` and ``reference`` (text or a list of texts). Identical texts score 1. A
    text in which the metric finds nothing scores 1 against another such text, else 0. An empty
    reference is ``invalid_input``.

    * ``rouge_l``: F1 of the longest common subsequence of tokens (Lin 2004, β = 1, no stemming);
    * ``bleu``: sentence BLEU / 100 by sacrebleu (tokens 13a, exponential smoothing, effective
      order);
    * ``chrf``: chrF2 / 100 by sacrebleu (Popović 2015);
    * ``edit``: 1 − Levenshtein distance / length of the longer text, in characters;
    * ``f1``: F1 over the multisets of tokens after SQuAD's normalisation (Rajpurkar et al. 2016);
    * ``jaccard``: |A ∩ B| / |A ∪ B| over the sets of tokens.

    Tokens are lower-cased words without punctuation; in scripts without spaces each character is a
    token. ``bleu`` and ``chrf`` need the extra ``full``. Texts are cut after 10,000 characters, and
    the metadata has ``cut``.

    Args:
        metric: One of the six above.

    >>> SimilarityGrader("edit").evaluate("kitten", "sitting").score
    0.5714285714285714
    >>> SimilarityGrader("f1").evaluate("The cat sat.", ["a dog", "cat sat down"]).score
    0.8
    """

    type_name = "similarity"
    score_range = (0.0, 1.0)

    metric: _Metric = "rouge_l"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric in ("bleu", "chrf"):
            require_package(f"{self.type_name} with metric = {self.metric!r}", "sacrebleu")

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Compare one response with its reference or references."""
        targets = read_references(reference)
        text = final_response(response)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        whole, compare = [compose_letters(text), *targets], _COMPARISONS[self.metric]
        ours, *theirs = (one[:_MAX_CHARS] for one in whole)
        best = max(1.0 if ours == one else compare(ours, one) for one in theirs)
        if max(map(len, whole)) > _MAX_CHARS:
            reason = f"{self.metric} of the first {_MAX_CHARS} characters"
            return self._score(best, reason, cut=True)
        return self._score(best, self.metric)


@dataclass(eq=False, repr=False)
class StringMatchGrader(ParametricRule):
    """1 when the response matches the reference text, else 0; ``overlap`` gives a share.

    Fields: ``response`` and ``reference`` (text, or a list: the best counts). White space at the
    ends is ignored, and letters are composed (Unicode's form C). An empty response scores 0; an
    empty reference is ``invalid_input``. Source: ``StringMatchGrader`` of py-openjudge
    0.2.4, in which ``overlap`` also drops stop words.

    Args:
        match: ``exact``, ``prefix``, ``suffix`` and ``contains``: the response is, begins with,
            ends with, has the reference; ``overlap``: its share of the reference's words.
        ignore_case: Compare by Unicode case folding, as ``overlap`` always does.

    >>> StringMatchGrader("suffix", ignore_case=True).evaluate("It is PARIS", "paris").score
    1.0
    >>> StringMatchGrader("overlap").evaluate("red green", "red blue").score
    0.5
    """

    type_name = "string_match"
    score_range = (0.0, 1.0)

    match: _Match = "exact"
    ignore_case: bool = False

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Match one response against its reference or references."""
        targets = [self._prepared(target) for target in read_references(reference)]
        if self.match == "overlap" and not all(map(split_words, targets)):
            raise InvalidInput("the reference has no words")
        text = final_response(response)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        text = self._prepared(compose_letters(text))
        best = max(float(_MATCHES[self.match](text, target)) for target in targets)
        return self._score(best, f"{self.match} match" if best else f"no {self.match} match")

    def _prepared(self, text: str) -> str:
        return (text.casefold() if self.ignore_case else text).strip()


def rouge_l(text: str, target: str) -> float:
    """ROUGE-L F-measure of two texts over their words (Lin 2004, β = 1).

    >>> rouge_l("the cat sat", "the cat sat down quietly here")
    0.6666666666666666
    """
    ours, theirs = split_words(text), split_words(target)
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * LCSseq.similarity(ours, theirs) / (len(ours) + len(theirs))


def token_f1(text: str, target: str) -> float:
    """SQuAD's token F1 (Rajpurkar et al. 2016); scripts without spaces by character.

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
    ours, theirs = set(split_words(text)), set(split_words(target))
    union = ours | theirs
    return len(ours & theirs) / len(union) if union else 1.0


_MATCHES: dict[str, Callable[[str, str], float | bool]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
    "contains": str.__contains__,
    "overlap": lambda text, target: _recall(set(split_words(text)), set(split_words(target))),
}


def _recall(ours: set[str], theirs: set[str]) -> float:
    return len(ours & theirs) / len(theirs)


_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def _squad_tokens(text: str) -> list[str]:
    return split_chunks(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)))


@cache
def _sacrebleu_metric(name: str) -> Any:
    from sacrebleu.metrics import bleu, chrf  # noqa: PLC0415  (optional)

    return bleu.BLEU(effective_order=True) if name == "bleu" else chrf.CHRF()


def _sacrebleu(name: str, text: str, target: str) -> float:
    metric = _sacrebleu_metric(name)
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

_COMPARISONS: dict[str, Callable[[str, str], float]] = {
    "rouge_l": rouge_l,
    "edit": Levenshtein.normalized_similarity,
    "f1": token_f1,
    "jaccard": jaccard,
    "bleu": partial(_sacrebleu, "bleu"),
    "chrf": partial(_sacrebleu, "chrf"),
}
