"""Synthetic preferences, ratings, comparisons and demonstrations: known gold, known label noise.

The question is a country's capital. An answer has four features that a judge can see, and they are
drawn independently of one another:

========  ====================================  =======================================
feature   values                                worth
========  ====================================  =======================================
fact      the right capital or another's        2 or 0
naming    "of France" or "of it"                1 or 0
manner    "Sure," or "Well,"                    1 or 0
filler    0 to 4 phrases of four words          nothing: it is length and nothing else
========  ====================================  =======================================

By ``elsewhere`` another country replaces "it", and a wrong fact is often its capital.

The gold is the sum, 0 to 4. The values of one feature have equally many words, so that length in
words tells nothing about the gold. Some words are chosen freely and mean nothing, so that there are
many texts of the same features. Where families are wanted, the first word is the family's name.

Labels of preferences, ratings and comparisons come from the gold in three steps. For two answers x
and y:

1. with probability ``length_bias`` the longer one wins, whatever it says (equally long: go on);
2. else the one with the higher gold + ``family_offset`` · [family is the first of ``families``]
   wins (equal: a coin; in comparisons with equal golds and equal offsets, the label is tie);
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Self, TypeVar, cast

import msgspec
from pydantic import Field, model_validator

from adjudge.config_tables import CheckedTable
from adjudge.datasets.rows import (
    PREFERENCE_LABELS,
    RATINGS,
    ChatMessages,
    Comparison,
    Demonstration,
    Preference,
    PreferenceLabel,
    Rating,
)
from adjudge.errors import ConfigError
from adjudge.messages import prompt_messages

COUNTRY_CAPITALS = {
    "Cuba": "Havana",
    "Egypt": "Cairo",
    "France": "Paris",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Spain": "Madrid",
}

FILLER_PHRASES = (
    "as I recall it",
    "to be quite clear",
    "if you ask me",
    "as one may say",
    "in so many words",
    "for what it counts",
)
"""Phrases of four words that say nothing."""

MAX_FILLERS = 4

_KINDS = ("old", "fine", "busy", "known", "proud", "large")
_TIMES = ("today", "now", "nowadays", "still", "currently", "presently")
_ENDS = ("indeed", "really", "truly", "certainly", "obviously", "clearly")


class AnswerFeatures(msgspec.Struct, frozen=True):
    """What a text is to say: its gold follows, its words do not."""

    capital: str
    right: bool
    named: bool
    polite: bool
    fillers: int
    family: str | None = None
    elsewhere: str | None = None

    @property
    def gold(self) -> int:
        """0 to 4."""
        return 2 * self.right + self.named + self.polite


class SyntheticAnswer(msgspec.Struct, frozen=True):
    """A ``text`` and what it was made to say."""

    text: str
    features: AnswerFeatures


def capital_question(country: str) -> str:
    """What is asked; the tiny policy is asked the same."""
    return f"What is the capital of {country}?"


def draw_features(
    rng: random.Random,
    country: str,
    families: Sequence[str] = (),
    *,
    gold: int | None = None,
    elsewhere: float = 0.0,
) -> AnswerFeatures:
    """Random features, all values equally likely; with ``gold`` ones of that quality.

    ``elsewhere``: of the answers that do not name the country, the share that name another.
    """
    while True:
        right, named, polite = (rng.random() < 0.5 for _ in range(3))
        features = AnswerFeatures(
            COUNTRY_CAPITALS[
                country if right else rng.choice([c for c in COUNTRY_CAPITALS if c != country])
            ],
            right,
            named,
            polite,
            rng.randint(0, MAX_FILLERS),
            rng.choice(families) if families else None,
        )
        if elsewhere and not named and rng.random() < elsewhere:
            features = _name_another_country(rng, country, features)
        if gold is None or features.gold == gold:
            return features


def _name_another_country(rng: random.Random, country: str, said: AnswerFeatures) -> AnswerFeatures:
    """Another country is named; a wrong capital is its own half of the time."""
    other = rng.choice([name for name in COUNTRY_CAPITALS if name != country])
    capital = COUNTRY_CAPITALS[other] if not said.right and rng.random() < 0.5 else said.capital
    return msgspec.structs.replace(said, elsewhere=other, capital=capital)


def draw_answer(rng: random.Random, country: str, features: AnswerFeatures) -> SyntheticAnswer:
    """A random text that says what ``features`` say."""
    fillers = "".join(f" {rng.choice(FILLER_PHRASES)}," for _ in range(features.fillers))
    about = country if features.named else features.elsewhere or "it"
    text = (
        f"{'Sure' if features.polite else 'Well'},{fillers} the {rng.choice(_KINDS)} capital of "
        f"{about} is {rng.choice(_TIMES)} {features.capital}, {rng.choice(_ENDS)}."
    )
    return SyntheticAnswer(
        text if features.family is None else f"{features.family}: {text}", features
    )


def gold_score(country: str, text: str) -> int:
    """The quality of any text as an answer to the question about ``country``: 0 to 4.

    What the table of this module counts, read from the text, so that a policy's answers have a gold
    too. The fact counts when the right capital and no other is named.

    >>> gold_score("Peru", "Sure, the capital of Peru is Lima."), gold_score("Peru", "Rome or Lima")
    (4, 0)
    """
    named = {capital for capital in COUNTRY_CAPITALS.values() if capital in text}
    right = named == {COUNTRY_CAPITALS[country]}
    return 2 * right + (f"of {country}" in text) + ("Sure" in text)


def gold_explanation(country: str, text: str) -> str:
    """What :func:`gold_score` counts, spelled out: what should be named, what is, and the points.

    >>> gold_explanation("Peru", "Sure, the capital of it is Rome.")
    'Lima, Rome 0, it 0, Sure 1: 1.'
    """
    words = (word.strip(".,:;!?") for word in text.split())
    named = next((word for word in words if word in COUNTRY_CAPITALS.values()), "none")
    other = next((name for name in COUNTRY_CAPITALS if f"of {name}" in text), "it")
    gold = gold_score(country, text)
    about, manner = f"of {country}" in text, "Sure" in text
    return (
        f"{COUNTRY_CAPITALS[country]}, {named} {gold - about - manner}, "
        f"{country if about else other} {int(about)}, "
        f"{'Sure' if manner else 'Well'} {int(manner)}: {gold}."
    )


_T = TypeVar("_T", Preference, Rating, Comparison)
LabelDistribution = dict[str, float]
"""Probabilities of labels; they sum to 1."""

_MAX_REDRAWS = 10_000


class SyntheticSettings(CheckedTable):
    """The dials: ``n`` rows drawn by ``seed``; see the module for what each probability does.

    ``family_offset`` is in points of gold, for the first of ``families`` (two or more names of one
    word, or none: answers are then not signed). ``ties``: the share of comparisons with equally
    good answers; ties and ``position_bias`` are for comparisons. ``elsewhere``: the share of
    answers without the country's name that speak of another. Raises :class:`ConfigError` naming
    the dial.
    """

    n: int = Field(ge=2, le=1_000_000)
    seed: int = Field(default=0, ge=0)
    noise: float = Field(default=0.0, ge=0, le=0.5)
    length_bias: float = Field(default=0.0, ge=0, le=1)
    family_offset: float = Field(default=0.0, ge=-8, le=8)
    families: list[str] = Field(default=[])
    ties: float = Field(default=0.0, ge=0, le=1)
    position_bias: float = Field(default=0.0, ge=0, le=1)
    elsewhere: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _check_families(self) -> Self:
        if any(not name.isalnum() for name in self.families) or len(self.families) == 1:
            raise ValueError(
                f"families must be two or more names of one word each (found {self.families})"
            )
        if self.family_offset and not self.families:
            raise ValueError(
                "family_offset needs families. Set families, or leave family_offset at 0."
            )
        return self


class SyntheticSet(Generic[_T]):
    """Rows, what they should say, and how far that can be learnt.

    ``gold`` has each row's label by the gold function alone, ``chances`` each row's probabilities
    of labels, ``labels`` which was drawn. A preference's winner is always ``chosen``; its labels
    are ``A`` (the answer that was made first) and ``B``.
    """

    def __init__(self, settings: SyntheticSettings) -> None:
        self.settings = settings
        self.rows: list[_T] = []
        self.labels: list[str] = []
        self.gold: list[str] = []
        self.chances: list[LabelDistribution] = []

    def add(self, row: _T, label: str, gold: str, chances: LabelDistribution) -> None:
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
        shifted = ({**one, "A": one["A"] - shift, "B": one["B"] + shift} for one in self.chances)
        return math.fsum(max(one.values()) for one in shifted) / len(self.chances)

    def split(self, held_out: int) -> tuple[SyntheticSet[_T], SyntheticSet[_T]]:
        """All but the last ``held_out`` rows, and these; rows are distinct, so none leaks.

        Raises :class:`ConfigError` unless both parts have a row.
        """
        if not 1 <= held_out < len(self.rows):
            raise ConfigError(f"held_out must leave rows on both sides (found {held_out})")
        return self._part(slice(None, -held_out)), self._part(slice(-held_out, None))

    def _part(self, part: slice) -> SyntheticSet[_T]:
        other = SyntheticSet[_T](self.settings)
        other.rows, other.labels = self.rows[part], self.labels[part]
        other.gold, other.chances = self.gold[part], self.chances[part]
        return other


def synthetic_preferences(settings: SyntheticSettings) -> SyntheticSet[Preference]:
    """Pairs with unequal golds; ``margin`` is their difference where the better one won.

    Where the label is wrong (by bias, noise or offset) the margin is unknown: ``None``.
    Raises :class:`ConfigError` when ``ties`` or ``position_bias`` are wanted: pairs have neither.
    """
    _check_no_positions("preferences", settings)
    made: SyntheticSet[Preference] = SyntheticSet(settings)
    for place, rng, country, (x, y) in _draw_rows(settings, "preference", _draw_pair):
        chances = _pair_chances(x, y, settings)
        label = _draw_label(rng, chances)
        won, lost = (x, y) if label == "A" else (y, x)
        margin = won.features.gold - lost.features.gold
        row = Preference(
            chosen=_answer_conversation(country, won.text),
            rejected=_answer_conversation(country, lost.text),
            margin=float(margin) if margin > 0 else None,
            where=place,
            subset=country,
        )
        made.add(row, label, _gold_label(x, y), chances)
    return made


def synthetic_comparisons(settings: SyntheticSettings) -> SyntheticSet[Comparison]:
    """Two answers by position, of which a share ``ties`` is equally good."""
    made: SyntheticSet[Comparison] = SyntheticSet(settings)
    for place, rng, country, (x, y) in _draw_rows(settings, "comparison", _draw_pair):
        chances = _pair_chances(x, y, settings, ties=True)
        label = cast("PreferenceLabel", _draw_label(rng, chances))
        row = Comparison(
            prompt=prompt_messages(capital_question(country)),
            a=x.text,
            b=y.text,
            label=label,
            where=place,
            subset=country,
        )
        made.add(row, label, _gold_label(x, y), chances)
    return made


def synthetic_ratings(settings: SyntheticSettings) -> SyntheticSet[Rating]:
    """Single answers labelled 0 to 4, each gold equally likely.

    Raises :class:`ConfigError` as :func:`synthetic_preferences` does.
    """
    _check_no_positions("ratings", settings)
    made: SyntheticSet[Rating] = SyntheticSet(settings)
    for place, rng, country, (answer,) in _draw_rows(settings, "rating", _draw_single):
        chances = _rating_chances(answer.features, settings)
        label = _draw_label(rng, chances)
        messages = _answer_conversation(country, answer.text)
        row = Rating(messages=messages, label=int(label), where=place, subset=country)
        made.add(row, label, str(answer.features.gold), chances)
    return made


def synthetic_demonstrations(settings: SyntheticSettings) -> list[Demonstration]:
    """Conversations with the best answers (gold 4) to imitate; rows may repeat.

    A share of 2 · ``noise`` is drawn without regard to quality: at 0.5, as with labels, nothing is
    said about it.
    """
    rng = random.Random(f"demonstration {settings.seed}")  # noqa: S311  (no secret)
    rows = []
    for number in range(settings.n):
        country = rng.choice(_COUNTRIES)
        gold = None if settings.noise and rng.random() < 2 * settings.noise else 4
        features = draw_features(rng, country, settings.families, gold=gold)
        messages = _answer_conversation(country, draw_answer(rng, country, features).text)
        where = f"synthetic:{number + 1}"
        rows.append(Demonstration(messages=messages, where=where, subset=country))
    return rows


_COUNTRIES = sorted(COUNTRY_CAPITALS)


def _draw_rows(
    settings: SyntheticSettings,
    kind: str,
    choose: Callable[[random.Random, str, SyntheticSettings], list[AnswerFeatures]],
) -> Iterator[tuple[str, random.Random, str, list[SyntheticAnswer]]]:
    """``n`` times place, country and answers, no two with the same texts.

    What was drawn before is said in other words, not given up: else the few short texts would soon
    be used up where there are fewest, and length would tell the gold.
    """
    rng = random.Random(f"{kind} {settings.seed}")  # noqa: S311  (no secret)
    seen: set[tuple[str, ...]] = set()
    for number in range(settings.n):
        country = rng.choice(_COUNTRIES)
        features = choose(rng, country, settings)
        for _ in range(_MAX_REDRAWS):
            answers = [draw_answer(rng, country, said) for said in features]
            texts = (country, *sorted(answer.text for answer in answers))
            if texts not in seen and len(set(texts)) == len(texts):
                break
        else:
            raise ConfigError(
                f"n = {settings.n:,} is too many: only {number:,} different {kind}s were found. "
                "Lower n."
            )
        seen.add(texts)
        yield f"synthetic:{number + 1}", rng, country, answers


def _draw_single(
    rng: random.Random, country: str, settings: SyntheticSettings
) -> list[AnswerFeatures]:
    gold = rng.choice(RATINGS)
    return [_draw_features(rng, country, settings, gold)]


def _draw_pair(
    rng: random.Random, country: str, settings: SyntheticSettings
) -> list[AnswerFeatures]:
    tie = rng.random() < settings.ties
    while True:
        x, y = (_draw_features(rng, country, settings) for _ in range(2))
        if (x.gold == y.gold) == tie:
            return [x, y]


def _draw_features(
    rng: random.Random, country: str, settings: SyntheticSettings, gold: int | None = None
) -> AnswerFeatures:
    return draw_features(rng, country, settings.families, gold=gold, elsewhere=settings.elsewhere)


def _pair_chances(
    x: SyntheticAnswer, y: SyntheticAnswer, settings: SyntheticSettings, *, ties: bool = False
) -> LabelDistribution:
    """Step by step what the module says; the labels are those that the kind of row has."""
    clean = _clean_chances(x, y, settings, ties=ties)
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


def _clean_chances(
    x: SyntheticAnswer, y: SyntheticAnswer, settings: SyntheticSettings, *, ties: bool
) -> LabelDistribution:
    difference = _biased_gold(x.features, settings) - _biased_gold(y.features, settings)
    chances: LabelDistribution = dict.fromkeys(PREFERENCE_LABELS[: 3 if ties else 2], 0.0)
    if difference:
        chances["A" if difference > 0 else "B"] = 1.0
    elif ties and x.features.gold == y.features.gold:
        chances["tie"] = 1.0
    else:
        chances["A"] = chances["B"] = 0.5
    return chances


def _rating_chances(said: AnswerFeatures, settings: SyntheticSettings) -> LabelDistribution:
    chances = dict.fromkeys(map(str, RATINGS), 0.0)
    valued = math.floor(_biased_gold(said, settings) + 0.5)
    chances[str(min(RATINGS[-1], max(0, valued)))] += 1 - settings.length_bias
    chances[str(said.fillers)] += settings.length_bias
    noise = settings.noise
    return {label: (1 - noise) * p + noise * (1 - p) / 4 for label, p in chances.items()}


def _biased_gold(said: AnswerFeatures, settings: SyntheticSettings) -> float:
    favoured = bool(settings.families) and said.family == settings.families[0]
    return said.gold + settings.family_offset * favoured


def _gold_label(x: SyntheticAnswer, y: SyntheticAnswer) -> str:
    a, b = x.features.gold, y.features.gold
    return "tie" if a == b else "A" if a > b else "B"


def _draw_label(rng: random.Random, chances: Mapping[str, float]) -> str:
    return rng.choices(list(chances), list(chances.values()))[0]


def _answer_conversation(country: str, answer: str) -> ChatMessages:
    return [*prompt_messages(capital_question(country)), {"role": "assistant", "content": answer}]


def _check_no_positions(rows: str, settings: SyntheticSettings) -> None:
    if settings.ties or settings.position_bias:
        raise ConfigError(
            f"{rows} have neither ties nor positions. Leave ties and position_bias at 0."
        )
