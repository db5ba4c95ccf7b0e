"""How similar texts are.

As sets of tokens, without comparing all pairs; and to a reference: BLEU, chrF, ROUGE-L, edit, F1,
Jaccard, matching.
"""

from __future__ import annotations

import re
import string
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, pairwise
from typing import Annotated, Any, Literal, TypeAlias

from rapidfuzz.distance import LCSseq, Levenshtein

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import (
    NO_FINAL_TEXT,
    Between,
    ParametricRule,
    View,
    read_references,
    require_package,
    split_chunks,
    split_words,
    text_in_view,
)
from adjudge.text import compose_letters
from adjudge.types import GraderScore

SetSimilarity = Literal["jaccard", "ordered"]
"""``jaccard``: sets of lower-case words. ``ordered``: sets of adjacent pairs of words."""

_MAX_LANES = 448  # masks of one-byte lanes then fit Python's small-object allocator
_MAX_BLOCK_BYTES = 1 << 24

_BELOW = [bytes(range(k)) for k in range(257)]

_Overlaps: TypeAlias = "bytes | array[int]"  # a string: array takes no [] before Python 3.12


def overlap_tokens(text: str, similarity: SetSimilarity) -> Iterable[Hashable]:
    """The tokens whose set stands for a text.

    Under ``jaccard`` the lower-case words between white space; under ``ordered`` the pairs of
    adjacent words, with a mark at either end (word 2-shingles; Broder, "On the resemblance and
    containment of documents", 1997), so that "a b" and "b a" differ.

    >>> list(overlap_tokens("Open door", "ordered"))
    [(None, 'open'), ('open', 'door'), ('door', None)]
    """
    words = text.lower().split()
    if similarity == "jaccard" or not words:
        return words
    return pairwise((None, *words, None))


def nearest_earlier_similarities(texts: Iterable[str], similarity: SetSimilarity) -> list[float]:
    """For each text the highest Jaccard index |A ∩ B| / |A ∪ B| with any text before it.

    0.0 for the first; a text without words is similar to nothing, not even to itself. Exactly the
    maximum over all earlier texts: one integer addition per token compares a text with up to 448
    others at once, so ordinary trajectories cost little more than reading them.

    >>> nearest_earlier_similarities(["a b c", "c B a", "a b d"], "jaccard")
    [0.0, 1.0, 0.5]
    >>> nearest_earlier_similarities(["a b c", "c B a", "a b d"], "ordered")
    [0.0, 0.0, 0.3333333333333333]
    """
    numbers = _Numbers()
    known: dict[str, frozenset[int]] = {}
    first: dict[frozenset[int], int] = {}
    nearest = []
    for text in texts:
        tokens = known.get(text)
        if tokens is None:
            tokens = known[text] = numbers.of(overlap_tokens(text, similarity))
        nearest.append(1.0 if tokens in first else 0.0)
        if tokens:
            first.setdefault(tokens, len(nearest) - 1)
    distinct = list(first)
    values = [0.0] * len(distinct)
    for start, end in _blocks(distinct):
        _compare_with_block(distinct, start, end, numbers.used, values)
    for position, value in zip(first.values(), values, strict=True):
        nearest[position] = value
    return nearest


def count_similar_pairs(groups: Mapping[frozenset[Hashable], int], threshold: float) -> int:
    """How many pairs of texts have a Jaccard index of at least ``threshold`` (0 to 1).

    ``groups`` has the token sets of the texts and how often each occurs. Linear at threshold 1.

    >>> count_similar_pairs({frozenset("ab"): 2, frozenset("abc"): 1}, 0.6)
    3
    """
    if threshold <= 0.0:
        total = sum(groups.values())
        return total * (total - 1) // 2
    if threshold >= 1.0:
        return sum(own * (own - 1) for tokens, own in groups.items() if tokens) // 2
    ranked = sorted(filter(None, groups), key=len)
    members = [groups[tokens] for tokens in ranked]
    numbers = _Numbers()
    sets = [numbers.of(tokens) for tokens in ranked]
    ordered_pairs = -sum(members)  # each text is similar to itself
    for start, end in _blocks(sets):
        lanes = _Lanes(sets[start:end], numbers.used)
        for lane in range(end - start):
            lanes.fill(lane)
        for tokens, own in zip(sets, members, strict=True):
            similar = lanes.similar(tokens, threshold)
            ordered_pairs += own * sum(members[start + lane] for lane in similar)
    return ordered_pairs // 2


class _Numbers:
    """Tokens by number, from 0."""

    def __init__(self) -> None:
        # A missing key takes the next number, all in C.
        self._numbers: defaultdict[Hashable, int] = defaultdict(count().__next__)
        self._number = self._numbers.__getitem__

    def of(self, tokens: Iterable[Hashable]) -> frozenset[int]:
        return frozenset(map(self._number, tokens))

    @property
    def used(self) -> int:
        return len(self._numbers)


class _Lanes:
    """|A ∩ B| of one set A with many sets B at once, by one integer addition per token of A.

    Every token has an integer with a 1 in the lane of each set that contains it. The sum of these
    integers over the tokens of A holds |A ∩ B| in the lane of B: a lane is as wide as the largest
    set needs, so nothing carries over. Lanes are ordered by size of set: of all sets with an equal
    overlap, the first has the highest Jaccard index. A lane counts 0 until it is filled.
    """

    def __init__(self, sets: Sequence[frozenset[int]], vocabulary: int) -> None:
        self._sets = sets
        self._sizes = [len(tokens) for tokens in sets]
        self._width = 1 if self._sizes[-1] < 1 << 8 else 2 if self._sizes[-1] < 1 << 16 else 4
        self._masks = [0] * vocabulary

    def fill(self, lane: int) -> None:
        bit = 1 << 8 * self._width * lane
        masks = self._masks
        for token in self._sets[lane]:
            masks[token] |= bit

    def overlaps(self, tokens: frozenset[int]) -> _Overlaps | None:
        """|A ∩ B| by lane; ``None`` when all are 0."""
        total = sum(filter(None, map(self._masks.__getitem__, tokens)))
        if not total:
            return None
        packed = total.to_bytes(len(self._sets) * self._width, "little")
        if self._width == 1:
            return packed
        wide = array("H" if self._width == 2 else "I", packed)
        if sys.byteorder == "big":
            wide.byteswap()
        return wide

    def nearest(self, tokens: frozenset[int], floor: float) -> float:
        """The highest Jaccard index of ``tokens`` with a filled lane, or ``floor`` if higher."""
        overlaps = self.overlaps(tokens)
        if overlaps is None:
            return floor
        top = _largest(overlaps)
        best = max(floor, self._jaccard(len(tokens), overlaps, top))
        if self._bound(len(tokens), top - 1) > best:
            for overlap in sorted(set(overlaps) - {0, top}, reverse=True):
                if self._bound(len(tokens), overlap) <= best:
                    break
                best = max(best, self._jaccard(len(tokens), overlaps, overlap))
        return best

    def similar(self, tokens: frozenset[int], threshold: float) -> list[int]:
        """The filled lanes whose Jaccard index with ``tokens`` is at least ``threshold``."""
        size, overlaps = len(tokens), self.overlaps(tokens) or b""
        pairs = enumerate(zip(overlaps, self._sizes, strict=False))
        return [lane for lane, (n, other) in pairs if n / (size + other - n) >= threshold]

    def _jaccard(self, size: int, overlaps: _Overlaps, overlap: int) -> float:
        other = self._sizes[overlaps.index(overlap)]
        return overlap / (size + other - overlap)

    def _bound(self, size: int, overlap: int) -> float:
        """No set with this overlap or a smaller one comes nearer."""
        return overlap / (size + max(self._sizes[0], overlap) - overlap)


def _compare_with_block(
    sets: list[frozenset[int]], start: int, end: int, vocabulary: int, nearest: list[float]
) -> None:
    """Raise ``nearest`` of every set by comparing it with earlier ones in ``start``…``end``."""
    ranked = sorted(range(start, end), key=lambda position: len(sets[position]))
    lane_of = {position: lane for lane, position in enumerate(ranked)}
    lanes = _Lanes([sets[position] for position in ranked], vocabulary)
    for position in range(start, len(sets)):
        nearest[position] = lanes.nearest(sets[position], nearest[position])
        if position < end:
            lanes.fill(lane_of[position])


def _blocks(sets: Sequence[frozenset[int]]) -> Iterator[tuple[int, int]]:
    """Start and end of runs of sets that are compared with at once; they keep the masks small."""
    start = tokens = 0
    for position, members in enumerate(sets):
        lanes = position - start
        tokens += len(members)
        # Every token may need a mask of a lane per set, up to four bytes wide.
        too_big = tokens * (lanes + 1) * (1 if len(members) < 256 else 4) > _MAX_BLOCK_BYTES
        if lanes == _MAX_LANES or (lanes and too_big):
            yield start, position
            start, tokens = position, len(members)
    if sets:
        yield start, len(sets)


def _largest(overlaps: _Overlaps) -> int:
    """``max(overlaps)``; bytes are sieved in C, which leaves larger ones each time."""
    if not isinstance(overlaps, bytes):
        return max(overlaps)
    rest = overlaps
    while True:
        largest = rest[0]
        rest = rest.translate(None, _BELOW[largest + 1])
        if not rest:
            return largest


_Metric = Literal["bleu", "chrf", "rouge_l", "edit", "f1", "jaccard"]
_Tokenizer = Literal["13a", "zh", "char", "intl"]
_Match = Literal["exact", "prefix", "suffix", "contains", "overlap"]


@dataclass(eq=False, repr=False)
class SimilarityGrader(ParametricRule):
    """Similarity of response and reference by one named metric; the best of several references.

    Fields: ``response`` and ``reference`` (text or a list of texts). Identical texts score 1. A
    text in which the metric finds nothing scores 1 against another such text, else 0.

    * ``rouge_l``: F1 of the longest common subsequence of tokens (Lin 2004, β = 1, no stemming);
    * ``bleu``: sentence BLEU / 100 by sacrebleu (exponential smoothing, effective order);
    * ``chrf``: chrF2 / 100 by sacrebleu (Popović 2015);
    * ``edit``: 1 − Levenshtein distance / length of the longer text, in characters;
    * ``f1``: F1 over the multisets of tokens after SQuAD's normalisation (Rajpurkar et al. 2016);
    * ``jaccard``: |A ∩ B| / |A ∪ B| over the sets of tokens.

    Tokens are lower-cased words without punctuation; in scripts without spaces each character is a
    token. ``bleu`` and ``chrf`` need the extra ``full``.

    Args:
        metric: One of the six above.
        bleu_tokenizer: ``13a``, ``zh``, ``char`` or ``intl``.
        max_chars: A longer text is cut there, and the metadata has ``cut``.

    >>> SimilarityGrader("edit").evaluate("kitten", "sitting").score
    0.5714285714285714
    >>> SimilarityGrader("f1").evaluate("The cat sat.", ["a dog", "cat sat down"]).score
    0.8
    """

    type_name = "similarity"
    score_range = (0.0, 1.0)

    metric: _Metric = "rouge_l"
    bleu_tokenizer: _Tokenizer = "13a"
    max_chars: Annotated[int, Between(1, 1_000_000)] = 10_000
    view: View = "final"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric in ("bleu", "chrf"):
            require_package(f"{self.type_name} with metric = {self.metric!r}", "sacrebleu")

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Compare one response with its reference or references."""
        targets = read_references(reference)
        text = text_in_view(response, self.view)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        text, limit = compose_letters(text), self.max_chars
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


@dataclass(eq=False, repr=False)
class StringMatchGrader(ParametricRule):
    """1 when the response matches the reference text, else 0; ``overlap`` gives a share.

    Fields: ``response`` and ``reference`` (text, or a list: the best counts). White space at the
    ends is ignored, and letters are composed (Unicode's form C). An empty response scores 0, but 1
    for ``exact`` against an empty reference; in other modes an empty reference is
    ``invalid_input``. Source: ``StringMatchGrader`` of py-openjudge 0.2.4, whose ``overlap`` also
    drops stop words.

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
    view: View = "final"

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Match one response against its reference or references."""
        targets = [self._prepared(target) for target in read_references(reference)]
        if self.match != "exact" and not all(map(self._has_content, targets)):
            raise GradingFailure(ErrorKind.INVALID_INPUT, f"empty reference under {self.match!r}")
        text = text_in_view(response, self.view)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        text = self._prepared(compose_letters(text))
        best = max(float(_MATCHES[self.match](text, target)) for target in targets)
        return self._score(best, f"{self.match} match" if best else f"no {self.match} match")

    def _prepared(self, text: str) -> str:
        return (text.casefold() if self.ignore_case else text).strip()

    def _has_content(self, target: str) -> bool:
        return bool(split_words(target)) if self.match == "overlap" else bool(target)


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
    "overlap": lambda text, target: _recall(set(split_words(text)), set(split_words(target))),
}


def _recall(ours: set[str], theirs: set[str]) -> float:
    return len(ours & theirs) / len(theirs)


_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def _squad_tokens(text: str) -> list[str]:
    return split_chunks(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)))


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
