"""Answers of a known quality, in few words: what synthetic preferences are about.

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

By ``elsewhere`` another country stands in place of "it", and a wrong fact is often its capital.

The gold is the sum, 0 to 4. The values of one feature have equally many words, so that length in
words tells nothing about the gold. Some words are chosen freely and mean nothing, so that there are
many texts of the same features. Where families are wanted, the first word is the family's name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from adjudge.training.task import CAPITALS

__all__ = [
    "FILLERS",
    "MOST_FILLERS",
    "Answer",
    "Features",
    "draw_answer",
    "draw_features",
    "gold_of",
    "question",
    "reason_of",
]

FILLERS = (
    "as I recall it",
    "to be quite clear",
    "if you ask me",
    "as one may say",
    "in so many words",
    "for what it counts",
)
"""Phrases of four words that say nothing."""

MOST_FILLERS = 4

_KINDS = ("old", "fine", "busy", "known", "proud", "large")
_TIMES = ("today", "now", "nowadays", "still", "currently", "presently")
_ENDS = ("indeed", "really", "truly", "certainly", "obviously", "clearly")


class Features(msgspec.Struct, frozen=True):
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


class Answer(msgspec.Struct, frozen=True):
    """A ``text`` and what it was made to say."""

    text: str
    features: Features


def question(country: str) -> str:
    """What is asked; the tiny policy is asked the same."""
    return f"What is the capital of {country}?"


def draw_features(
    rng: random.Random,
    country: str,
    families: Sequence[str] = (),
    *,
    gold: int | None = None,
    elsewhere: float = 0.0,
) -> Features:
    """Random features, all values equally likely; with ``gold`` ones of that quality.

    ``elsewhere``: of the answers that do not name the country, the share that name another.
    """
    while True:
        right, named, polite = (rng.random() < 0.5 for _ in range(3))
        features = Features(
            CAPITALS[country if right else rng.choice([c for c in CAPITALS if c != country])],
            right,
            named,
            polite,
            rng.randint(0, MOST_FILLERS),
            rng.choice(families) if families else None,
        )
        if elsewhere and not named and rng.random() < elsewhere:
            features = _of_another(rng, country, features)
        if gold is None or features.gold == gold:
            return features


def _of_another(rng: random.Random, country: str, said: Features) -> Features:
    """Another country is named; a wrong capital is its own half of the time."""
    other = rng.choice([name for name in CAPITALS if name != country])
    capital = CAPITALS[other] if not said.right and rng.random() < 0.5 else said.capital
    return msgspec.structs.replace(said, elsewhere=other, capital=capital)


def draw_answer(rng: random.Random, country: str, features: Features) -> Answer:
    """A random text that says what ``features`` say."""
    fillers = "".join(f" {rng.choice(FILLERS)}," for _ in range(features.fillers))
    about = country if features.named else features.elsewhere or "it"
    text = (
        f"{'Sure' if features.polite else 'Well'},{fillers} the {rng.choice(_KINDS)} capital of "
        f"{about} is {rng.choice(_TIMES)} {features.capital}, "
        f"{rng.choice(_ENDS)}."
    )
    return Answer(text if features.family is None else f"{features.family}: {text}", features)


def gold_of(country: str, text: str) -> int:
    """The quality of any text as an answer to the question about ``country``: 0 to 4.

    What the table of this module counts, read from the text, so that a policy's answers have a gold
    too. The fact counts when the right capital and no other is named.

    >>> gold_of("Peru", "Sure, the capital of Peru is Lima."), gold_of("Peru", "Rome or Lima")
    (4, 0)
    """
    named = {capital for capital in CAPITALS.values() if capital in text}
    right = named == {CAPITALS[country]}
    return 2 * right + (f"of {country}" in text) + ("Sure" in text)


def reason_of(country: str, text: str) -> str:
    """What :func:`gold_of` counts, spelled out: what should be named, what is, and the points.

    >>> reason_of("Peru", "Sure, the capital of it is Rome.")
    'Lima, Rome 0, it 0, Sure 1: 1.'
    """
    words = (word.strip(".,:;!?") for word in text.split())
    named = next((word for word in words if word in _CAPITALS), "none")
    about_what = next((name for name in CAPITALS if f"of {name}" in text), "it")
    gold = gold_of(country, text)
    about, manner = f"of {country}" in text, "Sure" in text
    right = gold - about - manner
    return (
        f"{CAPITALS[country]}, {named} {right}, {country if about else about_what} {int(about)}, "
        f"{'Sure' if manner else 'Well'} {int(manner)}: {gold}."
    )


_CAPITALS = frozenset(CAPITALS.values())
