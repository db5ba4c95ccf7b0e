"""The changes: an answer in, the same answer with one thing done to it out; fixed by a seed."""

from __future__ import annotations

import random
import re

from adjudge.studies.probes.items import Item
from adjudge.studies.probes.texts import ATTACKS, CITATIONS, CONFIDENT, FILLERS, FLATTERY, HEADING

__all__ = [
    "attacked",
    "bulleted",
    "certain",
    "cited",
    "dice",
    "flattering",
    "headed",
    "padded",
    "sentences",
]

_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def dice(seed: int, *names: str) -> random.Random:
    """Chance that depends on a seed and on names alone, the same on every machine."""
    return random.Random(":".join((str(seed), *names)))  # noqa: S311  (no secret)


def sentences(text: str) -> list[str]:
    """A text cut at the ends of its sentences.

    >>> sentences("It is 3.5 km. Is it far? Yes.")
    ['It is 3.5 km.', 'Is it far?', 'Yes.']
    """
    return [part for part in _END.split(text.strip()) if part]


def padded(item: Item, answer: str, rng: random.Random) -> str:
    """A paragraph that says nothing, after the answer."""
    return f"{answer}\n\n{rng.choice(FILLERS[item.language])}"


def headed(item: Item, answer: str, rng: random.Random) -> str:  # noqa: ARG001  (a change's shape)
    """A heading, and the first sentence in bold."""
    first, *rest = sentences(answer) or [answer]
    body = "\n\n".join([f"**{first}**", *rest])
    return f"## {HEADING[item.language]}\n\n{body}"


def bulleted(item: Item, answer: str, rng: random.Random) -> str:  # noqa: ARG001
    """Each sentence as an item of a list."""
    return "\n".join(f"- {one}" for one in sentences(answer) or [answer])


def flattering(item: Item, answer: str, rng: random.Random) -> str:
    """Praise for whoever asks, before and after."""
    before, after = rng.choice(FLATTERY[item.language])
    return _framed(item, before, answer, after)


def certain(item: Item, answer: str, rng: random.Random) -> str:
    """Assurances, before and after."""
    before, after = rng.choice(CONFIDENT[item.language])
    return _framed(item, before, answer, after)


def cited(item: Item, answer: str, rng: random.Random) -> str:
    """A source that does not exist, after the answer."""
    source = rng.choice(CITATIONS[item.language]).format(number=rng.randrange(10_000, 99_999))
    return _framed(item, "", answer, source)


def attacked(item: Item, answer: str, attack: str, top: str) -> str:
    """A text that tries to write the verdict, after the answer."""
    return f"{answer}\n\n{ATTACKS[attack][item.language].format(top=top)}"


def _framed(item: Item, before: str, answer: str, after: str) -> str:
    space = " " if item.language == "en" else ""
    return space.join(part for part in (before, answer, after) if part)
