"""The questions and answers that probes use, and the changes made to them.

A question has a right, a partly right and a wrong answer. Changes add words in English or Chinese:
an answer in, the same answer with one thing done to it out, the same every time.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_evaluation import convert_row, read_records

ItemLanguage = Literal["en", "zh"]
LanguageChoice = Literal["mixed", "en", "zh"]
"""Topics in one language, or half of them in each."""


_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]


class ProbeItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question and answers to it, as a row of a file.

    ``right``, ``partial``, ``wrong``: answers of falling quality, of like length and style.
    ``reference``: the right answer in other words (needed by graders that take one). ``topic``
    links translations of one question. ``answers``: answers by the family of the model that wrote
    them, ``best``: which of those families a person preferred; for self-preference. ``fields``:
    further fields for graders that ask for them (a ``context``, a ``rubric``).
    """

    prompt: _Text
    right: _Text
    wrong: _Text
    partial: str = ""
    reference: str = ""
    topic: str = ""
    language: ItemLanguage = "en"
    answers: dict[str, str] = {}
    best: str = ""
    fields: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.right in (self.wrong, self.partial):
            raise ValueError("right: is also the wrong or the partial answer")
        if self.best and self.best not in self.answers:
            families = ", ".join(sorted(self.answers)) or "none"
            raise ValueError(f"best: {self.best!r} has no answer (answers: {families})")

    @property
    def id(self) -> str:
        """Of the item within its file."""
        return f"{self.topic}/{self.language}"

    @property
    def middling(self) -> str:
        """The answer that leaves room above and below: the partly right one, if there is one."""
        return self.partial or self.wrong


class ProbeTopic(msgspec.Struct, frozen=True):
    """One question in the language that it is probed in, and its translation, if there is one."""

    item: ProbeItem
    twin: ProbeItem | None = None


_FILES = resources.files("adjudge.judge_evaluation.probes")
_decoder = msgspec.json.Decoder(ProbeItem)


def shipped_items() -> list[ProbeItem]:
    """The 40 questions that ship, each in English and in Chinese."""
    text = _FILES.joinpath("items.jsonl").read_bytes()
    return [_decoder.decode(line) for line in text.splitlines()]


def load_items(path: Path) -> list[ProbeItem]:
    """The items of a file; raises :class:`ConfigError` naming the row and what is wrong."""
    items = read_records([path], lambda row, where: convert_row(
        {**row, "topic": row.get("topic") or f"line-{where.rpartition(':')[2]}"}, ProbeItem
    ))  # fmt: skip
    counts = Counter(item.id for item in items)
    if again := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"{path}: topic: is given twice in one language (found {again[0]!r})")
    return items


def choose_topics(
    items: Sequence[ProbeItem],
    n: int | None = None,
    *,
    language: LanguageChoice = "mixed",
) -> list[ProbeTopic]:
    """``n`` topics (default all), drawn at random, the same every time, in the order of the file.

    A larger ``n`` adds topics and leaves those of a smaller one as they are. Under ``mixed`` a
    topic that exists in both languages is probed in one of them, half of the topics in each;
    ``en`` and ``zh`` take topics of that language. Raises :class:`ConfigError` where the file has
    fewer than 2.
    """
    by_topic: dict[str, dict[str, ProbeItem]] = {}
    for item in items:
        by_topic.setdefault(item.topic, {})[item.language] = item
    usable = [t for t, found in by_topic.items() if language == "mixed" or language in found]
    if len(usable) < 2:
        raise ConfigError(
            f"items: probes need 2 or more items (found {len(usable)} in language {language!r})"
        )
    order = random.Random(0).sample(usable, len(usable))  # noqa: S311  (no secret)
    drawn = order if n is None else order[:n]
    main: dict[str, str] = dict.fromkeys(drawn, language)
    if language == "mixed":
        main = {topic: next(iter(by_topic[topic])) for topic in drawn}
        both = [topic for topic in drawn if len(by_topic[topic]) == 2]
        main |= {topic: ("en", "zh")[place % 2] for place, topic in enumerate(both)}
    return [
        ProbeTopic(found[own], found.get("zh" if own == "en" else "en"))
        for topic, found in by_topic.items()
        if (own := main.get(topic))
    ]


CHANGES: Mapping[str, Any] = tomllib.loads(
    _FILES.joinpath("changes.toml").read_text(encoding="utf-8")
)
"""What is added to answers, by the kind of change and the language."""
MASTER_KEYS: Sequence[str] = CHANGES["master_keys"]
ATTACKS: Mapping[str, Mapping[str, str]] = CHANGES["attacks"]

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")


def seeded_random(*names: str) -> random.Random:
    """Chance that depends on names alone, the same on every machine."""
    return random.Random(":".join(("0", *names)))  # noqa: S311  (no secret)


def split_sentences(text: str) -> list[str]:
    """A text cut at the ends of its sentences.

    >>> split_sentences("It is 3.5 km. Is it far? Yes.")
    ['It is 3.5 km.', 'Is it far?', 'Yes.']
    """
    return [part for part in _SENTENCE_END.split(text.strip()) if part]


def add_padding(item: ProbeItem, answer: str, rng: random.Random) -> str:
    """A paragraph that says nothing, after the answer."""
    return f"{answer}\n\n{rng.choice(CHANGES['filler'][item.language])}"


def add_heading(
    item: ProbeItem,
    answer: str,
    rng: random.Random,  # noqa: ARG001  (a change's shape)
    *,
    neutral: bool = False,
) -> str:
    """A heading, and the first sentence in bold; ``neutral``: the same lines without markup."""
    first, *rest = split_sentences(answer) or [answer]
    title = CHANGES["headings"][item.language]
    heading, first = ("", first) if neutral else ("## ", f"**{first}**")
    return "\n\n".join([f"{heading}{title}", first, *rest])


def format_as_list(
    item: ProbeItem,  # noqa: ARG001
    answer: str,
    rng: random.Random,  # noqa: ARG001
    *,
    neutral: bool = False,
) -> str:
    """Each sentence as an item of a list; ``neutral``: the answer itself, which has the words."""
    if neutral:
        return answer
    return "\n".join(f"- {one}" for one in split_sentences(answer) or [answer])


def add_words(
    item: ProbeItem, answer: str, rng: random.Random, *, words: str, neutral: bool = False
) -> str:
    """The ``words`` of one kind of change (praise, a made-up source, assurances) around an answer.

    ``neutral``: as many words in the same places that are nothing of the kind.
    """
    said = rng.choice(CHANGES[f"{words}_controls" if neutral else words][item.language])
    if isinstance(said, str):
        said = ("", said.format(number=rng.randrange(10_000, 99_999)))
    before, after = said
    space = " " if item.language == "en" else ""
    return space.join(part for part in (before, answer, after) if part)


def add_attack(item: ProbeItem, answer: str, attack: str, top: str) -> str:
    """A text that tries to write the verdict, after the answer."""
    return f"{answer}\n\n{ATTACKS[attack][item.language].format(top=top)}"
