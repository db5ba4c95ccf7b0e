"""Preferences, ratings and comparisons whose gold function and label process are known.

Labels come from :mod:`~adjudge.judge_training.data.gold` in three steps. For two answers x and y:

1. with probability ``length_bias`` the longer one wins, whatever it says (none is: go on);
2. else the one with the higher gold + ``family_offset`` · [family is the first of ``families``]
   wins (equal: a coin; in comparisons whose golds are equal and offsets too, the label is tie);
3. with probability ``noise`` the label is flipped (a tie becomes A or B by a coin).

In comparisons ``position_bias`` comes before step 1: with that probability the answer shown first
wins, as it does with judges that prefer a place.

For a rating step 1 gives the number of filler phrases, step 2 the gold + offset rounded and held
within 0 to 4, and step 3 one of the other four labels. All probabilities of a row's labels follow,
so the best accuracy that any judge can expect on given rows, the Bayes rate, is known exactly:
``mean over rows of the most likely label's probability``. With noise alone it is 1 − ``noise``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar, cast

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_training.data.gold import Answer, Features, draw_answer, draw_features, question
from adjudge.judge_training.data.rows import (
    LABELS,
    RATINGS,
    Comparison,
    Demonstration,
    Label,
    Messages,
    Preference,
    Rating,
)
from adjudge.training.task import CAPITALS

__all__ = [
    "SyntheticSet",
    "SyntheticSettings",
    "comparisons",
    "demonstrations",
    "preferences",
    "ratings",
]

T = TypeVar("T", Preference, Rating, Comparison)
Distribution = dict[str, float]
"""Probabilities of labels; they sum to 1."""

_MOST_ROWS = 1_000_000
_MOST_REPEATED = 10_000


class SyntheticSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The dials: ``n`` rows drawn by ``seed``; see the module for what each probability does.

    ``noise`` 0 to 0.5; ``length_bias`` and ``position_bias`` 0 to 1; ``family_offset`` in points of
    gold for the first of ``families`` (two or more names of one word, or none: answers are then not
    signed); ``ties``: the share of comparisons whose answers are equally good; ``elsewhere``: the
    share of answers without the country's name that speak of another. Raises :class:`ConfigError`
    otherwise.
    """

    n: int
    seed: int = 0
    noise: float = 0.0
    length_bias: float = 0.0
    family_offset: float = 0.0
    families: tuple[str, ...] = ()
    ties: float = 0.0
    position_bias: float = 0.0
    elsewhere: float = 0.0

    def __post_init__(self) -> None:
        _between("n", self.n, 1, _MOST_ROWS)
        _between("noise", self.noise, 0.0, 0.5)
        _between("length_bias", self.length_bias, 0.0, 1.0)
        _between("family_offset", self.family_offset, -8.0, 8.0)
        for name in ("ties", "position_bias", "elsewhere"):
            _between(name, getattr(self, name), 0.0, 1.0)
        if any(not name.isalnum() for name in self.families) or len(self.families) == 1:
            raise ConfigError(
                f"families must be two or more names of one word, got {self.families}"
            )
        if self.family_offset and not self.families:
            raise ConfigError("family_offset needs families")


class SyntheticSet(Generic[T]):
    """Rows, what they should say, and how far that can be learnt.

    ``gold`` has each row's label by the gold function alone, ``chances`` each row's probabilities
    of labels, ``labels`` which was drawn. For preferences, whose winner is always ``chosen``, they
    are ``A`` (the answer that was made first) and ``B``.
    """

    def __init__(self, settings: SyntheticSettings) -> None:
        self.settings = settings
        self.rows: list[T] = []
        self.labels: list[str] = []
        self.gold: list[str] = []
        self.chances: list[Distribution] = []

    def add(self, row: T, label: str, gold: str, chances: Distribution) -> None:
        """One more row."""
        self.rows.append(row)
        self.labels.append(label)
        self.gold.append(gold)
        self.chances.append(chances)

    @property
    def bayes_accuracy(self) -> float:
        """The expected accuracy on these rows' labels of a judge that knows everything but chance.

        Exact for these texts; 0 to 1. No judge can expect more.
        """
        return math.fsum(max(chance.values()) for chance in self.chances) / len(self.chances)

    @property
    def bayes_accuracy_both_orders(self) -> float:
        """The same for comparisons that are asked in both orders, without a word on which is which.

        A place that wins in the one order loses in the other, so that it cannot be learnt.
        """
        # Half of the labels were given in the other order: the mean of what both would be.
        shift = self.settings.position_bias * (0.5 - self.settings.noise)
        told = ({**one, "A": one["A"] - shift, "B": one["B"] + shift} for one in self.chances)
        return math.fsum(max(one.values()) for one in told) / len(self.chances)

    @property
    def gold_accuracy(self) -> float:
        """The expected accuracy on these rows' labels of the gold function, exact; 0 to 1."""
        pairs = zip(self.gold, self.chances, strict=True)
        return math.fsum(chance[gold] for gold, chance in pairs) / len(self.chances)

    def split(self, held_out: int) -> tuple[SyntheticSet[T], SyntheticSet[T]]:
        """All but the last ``held_out`` rows, and these; rows are distinct, so none leaks.

        Raises :class:`ConfigError` unless both parts have a row.
        """
        _between("held_out", held_out, 1, len(self.rows) - 1)
        return self._part(slice(None, -held_out)), self._part(slice(-held_out, None))

    def _part(self, part: slice) -> SyntheticSet[T]:
        other: SyntheticSet[T] = SyntheticSet(self.settings)
        other.rows, other.labels = self.rows[part], self.labels[part]
        other.gold, other.chances = self.gold[part], self.chances[part]
        return other


def preferences(settings: SyntheticSettings) -> SyntheticSet[Preference]:
    """Pairs whose golds differ; ``margin`` is their difference where the better one won.

    Where the label is wrong (by bias, noise or offset) nobody would have noted a margin: ``None``.
    Raises :class:`ConfigError` when ``ties`` or ``position_bias`` are wanted: it cannot say so.
    """
    _without_places("preferences", settings)
    made: SyntheticSet[Preference] = SyntheticSet(settings)
    for place, rng, country, (x, y) in _drawn(settings, "preference", _pair):
        chances = _pair_chances(x, y, settings)
        label = _label(rng, chances)
        won, lost = (x, y) if label == "A" else (y, x)
        margin = won.features.gold - lost.features.gold
        row = Preference(
            chosen=_conversation(country, won.text),
            rejected=_conversation(country, lost.text),
            margin=float(margin) if margin > 0 else None,
            where=place,
            subset=country,
        )
        made.add(row, label, _gold_label(x, y), chances)
    return made


def comparisons(settings: SyntheticSettings) -> SyntheticSet[Comparison]:
    """Two answers by position, of which a share ``ties`` is equally good."""
    made: SyntheticSet[Comparison] = SyntheticSet(settings)
    for place, rng, country, (x, y) in _drawn(settings, "comparison", _pair):
        chances = _pair_chances(x, y, settings, ties=True)
        label = cast("Label", _label(rng, chances))
        row = Comparison(
            prompt=_asked(country), a=x.text, b=y.text, label=label, where=place, subset=country
        )
        made.add(row, label, _gold_label(x, y), chances)
    return made


def ratings(settings: SyntheticSettings) -> SyntheticSet[Rating]:
    """Single answers labelled 0 to 4, each gold equally likely.

    Raises :class:`ConfigError` as :func:`preferences` does.
    """
    _without_places("ratings", settings)
    made: SyntheticSet[Rating] = SyntheticSet(settings)
    for place, rng, country, (answer,) in _drawn(settings, "rating", _single):
        chances = _rating_chances(answer.features, settings)
        label = _label(rng, chances)
        messages = _conversation(country, answer.text)
        row = Rating(messages=messages, label=int(label), where=place, subset=country)
        made.add(row, label, str(answer.features.gold), chances)
    return made


def demonstrations(settings: SyntheticSettings) -> list[Demonstration]:
    """Conversations with the best answers (gold 4) to imitate; rows may repeat.

    A share of 2 · ``noise`` is drawn without regard to quality: at 0.5, as with labels, nothing is
    said about it.
    """
    rng = random.Random(f"demonstration {settings.seed}")  # noqa: S311  (no secret)
    rows = []
    for number in range(settings.n):
        country = rng.choice(_COUNTRIES)
        careless = settings.noise > 0 and rng.random() < 2 * settings.noise
        gold = None if careless else 4
        features = draw_features(rng, country, settings.families, gold=gold)
        messages = _conversation(country, draw_answer(rng, country, features).text)
        where = f"synthetic:{number + 1}"
        rows.append(Demonstration(messages=messages, where=where, subset=country))
    return rows


_COUNTRIES = sorted(CAPITALS)


def _drawn(
    settings: SyntheticSettings,
    kind: str,
    choose: Callable[[random.Random, str, SyntheticSettings], list[Features]],
) -> Iterator[tuple[str, random.Random, str, list[Answer]]]:
    """``n`` times place, country and answers, no two with the same texts.

    What was drawn before is said in other words, not given up: else the few short texts would soon
    be used up where there are fewest, and length would tell the gold.
    """
    rng = random.Random(f"{kind} {settings.seed}")  # noqa: S311  (no secret)
    seen: set[tuple[str, ...]] = set()
    for number in range(settings.n):
        country = rng.choice(_COUNTRIES)
        features = choose(rng, country, settings)
        for _ in range(_MOST_REPEATED):
            answers = [draw_answer(rng, country, said) for said in features]
            texts = (country, *sorted(answer.text for answer in answers))
            if texts not in seen and len(set(texts)) == len(texts):
                break
        else:
            raise ConfigError(
                f"n = {settings.n:,} is more {kind}s than there are different texts for; "
                f"{number:,} were found"
            )
        seen.add(texts)
        yield f"synthetic:{number + 1}", rng, country, answers


def _single(rng: random.Random, country: str, settings: SyntheticSettings) -> list[Features]:
    gold = rng.choice(RATINGS)
    return [_features(rng, country, settings, gold)]


def _pair(rng: random.Random, country: str, settings: SyntheticSettings) -> list[Features]:
    tie = rng.random() < settings.ties
    while True:
        x, y = (_features(rng, country, settings) for _ in range(2))
        if (x.gold == y.gold) == tie:
            return [x, y]


def _features(
    rng: random.Random, country: str, settings: SyntheticSettings, gold: int | None = None
) -> Features:
    return draw_features(rng, country, settings.families, gold=gold, elsewhere=settings.elsewhere)


def _pair_chances(
    x: Answer, y: Answer, settings: SyntheticSettings, *, ties: bool = False
) -> Distribution:
    """Step by step what the module says; the labels are those that the kind of row has."""
    clean = _preferred(x, y, settings, ties=ties)
    if x.features.fillers != y.features.fillers:
        longer = "A" if x.features.fillers > y.features.fillers else "B"
        clean = {label: (1 - settings.length_bias) * p for label, p in clean.items()}
        clean[longer] += settings.length_bias
    clean = {label: (1 - settings.position_bias) * p for label, p in clean.items()}
    clean["A"] += settings.position_bias
    noise = settings.noise
    kept = {label: (1 - noise) * p for label, p in clean.items()}
    coin = noise * clean.get("tie", 0.0) / 2
    kept["A"] += noise * clean["B"] + coin
    kept["B"] += noise * clean["A"] + coin
    return kept


def _preferred(x: Answer, y: Answer, settings: SyntheticSettings, *, ties: bool) -> Distribution:
    difference = _valued(x.features, settings) - _valued(y.features, settings)
    chances: Distribution = dict.fromkeys(LABELS if ties else LABELS[:2], 0.0)
    if difference:
        chances["A" if difference > 0 else "B"] = 1.0
    elif ties and x.features.gold == y.features.gold:
        chances["tie"] = 1.0
    else:
        chances["A"] = chances["B"] = 0.5
    return chances


def _rating_chances(said: Features, settings: SyntheticSettings) -> Distribution:
    chances = dict.fromkeys(map(str, RATINGS), 0.0)
    valued = math.floor(_valued(said, settings) + 0.5)
    chances[str(min(RATINGS[-1], max(0, valued)))] += 1 - settings.length_bias
    chances[str(said.fillers)] += settings.length_bias
    noise = settings.noise
    return {label: (1 - noise) * p + noise * (1 - p) / 4 for label, p in chances.items()}


def _valued(said: Features, settings: SyntheticSettings) -> float:
    favoured = bool(settings.families) and said.family == settings.families[0]
    return said.gold + settings.family_offset * favoured


def _gold_label(x: Answer, y: Answer) -> str:
    a, b = x.features.gold, y.features.gold
    return "tie" if a == b else "A" if a > b else "B"


def _label(rng: random.Random, chances: Mapping[str, float]) -> str:
    return rng.choices(list(chances), list(chances.values()))[0]


def _asked(country: str) -> Messages:
    return [{"role": "user", "content": question(country)}]


def _conversation(country: str, answer: str) -> Messages:
    return [*_asked(country), {"role": "assistant", "content": answer}]


def _without_places(rows: str, settings: SyntheticSettings) -> None:
    if settings.ties or settings.position_bias:
        raise ConfigError(f"{rows} have neither ties nor positions; leave both dials at 0")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be from {low} to {high}, got {value}")
