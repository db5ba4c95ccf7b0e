"""What probes are made from: questions with a right, a partly right and a wrong answer."""

from __future__ import annotations

import random
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError

__all__ = ["Item", "Language", "Topic", "Wanted", "choose", "load_items", "shipped_items"]

Language = Literal["en", "zh"]
Wanted = Literal["mixed", "en", "zh"]
"""Topics in one language, or half of them in each."""


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question and answers to it, as a row of a JSONL file.

    ``right``, ``partial``, ``wrong``: answers of falling quality, of like length and style.
    ``reference``: the right answer in other words (needed by graders that take one). ``topic``
    links translations of one question. ``answers``: answers by the family of the model that wrote
    them, ``best``: which of those families a person preferred; for self-preference. ``fields``:
    further fields for graders that ask for them (a ``context``, a ``rubric``).
    """

    prompt: str
    right: str
    wrong: str
    partial: str = ""
    reference: str = ""
    topic: str = ""
    language: Language = "en"
    answers: dict[str, str] = {}
    best: str = ""
    fields: dict[str, Any] = {}

    @property
    def id(self) -> str:
        """Of the item within its file."""
        return f"{self.topic}/{self.language}"

    @property
    def middling(self) -> str:
        """The answer that leaves room above and below: the partly right one, if there is one."""
        return self.partial or self.wrong


class Topic(msgspec.Struct, frozen=True):
    """One question in the language that it is probed in, and its translation, if there is one."""

    item: Item
    twin: Item | None = None


_decoder = msgspec.json.Decoder(Item)


def shipped_items() -> list[Item]:
    """The 40 questions that ship, each in English and in Chinese."""
    text = resources.files("adjudge.studies.probes").joinpath("items.jsonl").read_bytes()
    return [_decoder.decode(line) for line in text.splitlines()]


def load_items(path: Path) -> list[Item]:
    """The items of a JSONL file; raises :class:`ConfigError` naming the line and what is wrong."""
    try:
        lines = path.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    items: list[Item] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        item = _read(line, f"{path}:{number}")
        if not item.topic:
            item = msgspec.structs.replace(item, topic=f"line-{number}")
        if item.id in seen:
            raise ConfigError(f"{path}:{number}: topic {item.topic!r} stands twice in one language")
        seen.add(item.id)
        items.append(item)
    if not items:
        raise ConfigError(f"{path}: no item in it; a row has prompt, right and wrong")
    return items


def _read(line: bytes, where: str) -> Item:
    try:
        item = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        keys = ", ".join(Item.__struct_fields__)
        raise ConfigError(f"{where}: is no item: {error} (keys: {keys})") from None
    for name in ("prompt", "right", "wrong"):
        if not getattr(item, name).strip():
            raise ConfigError(f"{where}: {name}: is empty")
    if item.right in (item.wrong, item.partial):
        raise ConfigError(f"{where}: right: is also the wrong or the partial answer")
    if item.best and item.best not in item.answers:
        families = ", ".join(sorted(item.answers)) or "none"
        raise ConfigError(f"{where}: best: {item.best!r} has no answer (answers: {families})")
    return item


def choose(
    items: Sequence[Item], n: int | None = None, *, seed: int = 0, language: Wanted = "mixed"
) -> list[Topic]:
    """``n`` topics (default all), drawn by ``seed``, in the order of the file.

    A larger ``n`` adds topics and leaves those of a smaller one as they are. Under ``mixed`` a
    topic that exists in both languages is probed in one of them, half of the topics in each;
    ``en`` and ``zh`` take topics of that language. Raises :class:`ConfigError` where the file has
    fewer than 2.
    """
    by_topic: dict[str, dict[str, Item]] = {}
    for item in items:
        by_topic.setdefault(item.topic, {})[item.language] = item
    usable = [t for t, found in by_topic.items() if language == "mixed" or language in found]
    if len(usable) < 2:
        raise ConfigError(f"items: {len(usable)} in language {language!r}; probes need 2 and more")
    order = random.Random(seed).sample(usable, len(usable))  # noqa: S311  (no secret)
    drawn = order if n is None else order[:n]
    main = _languages(by_topic, drawn, language)
    return [
        Topic(by_topic[topic][main[topic]], by_topic[topic].get(_other(main[topic])))
        for topic in usable
        if topic in main
    ]


def _languages(
    by_topic: Mapping[str, Mapping[str, Item]], drawn: Sequence[str], language: Wanted
) -> dict[str, str]:
    """In which language each topic is probed."""
    if language != "mixed":
        return dict.fromkeys(drawn, language)
    main = {topic: next(iter(by_topic[topic])) for topic in drawn}
    both = [topic for topic in drawn if len(by_topic[topic]) == 2]
    return main | {topic: ("en", "zh")[place % 2] for place, topic in enumerate(both)}


def _other(language: str) -> str:
    return "zh" if language == "en" else "en"
