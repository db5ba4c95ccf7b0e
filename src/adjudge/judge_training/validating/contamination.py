"""Whether a judge has been trained on the items that it is validated on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_training.benchmarks.items import Benchmark, BestOfItem, Item, PairItem
from adjudge.judge_training.benchmarks.read import read_benchmark
from adjudge.judge_training.card import CARD, Card, read_card
from adjudge.judge_training.data import synthetic
from adjudge.judge_training.data.convert import preferences_from, ratings_from
from adjudge.judge_training.data.overlap import leakage
from adjudge.judge_training.data.read import (
    read_comparisons,
    read_demonstrations,
    read_preferences,
    read_ratings,
)
from adjudge.judge_training.data.rows import Preference, Rating, Row
from adjudge.judge_training.validating.materials import Material, file_facts

__all__ = ["Contamination", "contamination_of", "made_up_rows", "rows_of_items"]

_PLAIN_ID = 12
_MOST_STAGES = 6
Reader = Callable[[list[Path]], Any]
_READERS: tuple[Reader, ...] = (
    read_preferences,
    read_comparisons,
    read_ratings,
)


class _File(msgspec.Struct):
    """A training file as a card names it."""

    file: str
    bytes: int
    sha256: str
    path: str = ""


class Contamination(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge has seen of a benchmark.

    ``compared``: ``rows`` (texts of what it was trained on, and ids), ``rows in part`` (some files
    are gone), ``ids`` (those of its card only), ``nothing`` (it has no card that says). ``items``
    counts, by subset, the items that it has seen, by ``how`` they were found. ``notes``: what was
    compared with, and what could not be.
    """

    compared: str
    items: dict[str, int] = {}
    how: dict[str, int] = {}
    notes: list[str] = []

    @property
    def seen(self) -> int:
        """How many items were seen."""
        return sum(self.items.values())


def contamination_of(material: Material, folder: Path | None, card: Card | None) -> Contamination:
    """Compare the items with what a trained judge, and the judges it was trained from, has seen.

    Held-out rows of its training count as seen: its checkpoint was chosen by them. Files of
    training rows are looked for where the card says, beside the judge, and among the benchmark's
    own; only a file with the hash of the card is read.
    """
    if card is None or folder is None:
        return Contamination(compared="nothing", notes=["no card says what it was trained on"])
    rows: list[Row] = []
    ids: set[str] = set()
    notes: list[str] = []
    whole = True
    stages, lost = _stages(folder, card)
    if lost:
        whole = False
        notes.append(f"{lost} is not found: what it had seen was not compared")
    for where, one in stages:
        ids.update(one.trained_ids)
        found, missing = _trained_on(where, one, material)
        rows += found
        notes += missing
        whole = whole and not missing
    if not (rows or ids):
        why = notes or ["its card does not say what it has seen"]
        return Contamination(compared="nothing", notes=why)
    items = list(rows_of_items(material.benchmark))
    leaks = leakage(rows, [row for _, row in items], trained_ids=ids).leaks
    how: dict[tuple[str, str], tuple[str, str]] = {}
    for leak in leaks:
        item = items[leak.test][0]
        how.setdefault((item.subset, item.id), (item.subset, leak.how))
    notes.insert(0, f"compared with {len(rows):,} rows and {len(ids):,} ids of its training")
    return Contamination(
        compared="ids" if not rows else "rows" if whole else "rows in part",
        items=dict(Counter(subset for subset, _ in how.values())),
        how=dict(Counter(by for _, by in how.values())),
        notes=notes,
    )


def made_up_rows(folder: Path, card: Card) -> list[Row]:
    """The rows made by dials that a judge, and those it was trained from, were trained on."""
    stages, _ = _stages(folder, card)
    return [row for _, one in stages for row in _made(one)]


def rows_of_items(benchmark: Benchmark) -> Iterator[tuple[Item, Row]]:
    """Each item as the rows of training that it would be: a pair, or its answers one by one."""
    for item in benchmark.items:
        ids = _ids(benchmark, item)
        if isinstance(item, PairItem):
            yield (
                item,
                Preference(
                    chosen=item.conversation("A"),
                    rejected=item.conversation("B"),
                    where=item.where,
                    subset=item.subset,
                    source_ids=ids,
                ),
            )
        elif isinstance(item, BestOfItem):
            for place in range(len(item.answers)):
                shown = item.conversation(place)
                row = Rating(
                    messages=shown, label=0, where=item.where, subset=item.subset, source_ids=ids
                )
                yield item, row


def _ids(benchmark: Benchmark, item: Item) -> tuple[str, ...]:
    """The names under which training data may know an item; short plain ones prove nothing."""
    kind, name = benchmark.kind, item.id
    if isinstance(item, PairItem) and item.cluster:  # of an item of four answers
        kind, name = "rewardbench2", item.cluster
    if name == item.where:
        return ()
    plain = (name,) if len(name) >= _PLAIN_ID and not name.isdecimal() else ()
    return (f"{kind}:{name}", *plain)


def _stages(folder: Path, card: Card) -> tuple[list[tuple[Path, Card]], str]:
    """A judge, and the trained judges that it was trained from; the base that is not found.

    A base with a digest was a folder, which may have been a trained judge's; another is a name.
    """
    found = []
    for _ in range(_MOST_STAGES):
        found.append((folder, card))
        said = str(card.base.get("path") or "tiny")
        base = Path(said)
        places = [one for one in (folder.parent / base, base) if one.is_dir()]
        if not places:
            return found, said if card.base.get("digest") else ""
        judges = [one for one in places if (one / CARD).is_file()]
        if not judges:
            return found, ""
        folder, card = judges[0], read_card(judges[0])
    return found, f"what {folder} was trained from"


def _trained_on(folder: Path, card: Card, material: Material) -> tuple[list[Row], list[str]]:
    """The rows that are still there, and a note about each file that is not."""
    rows: list[Row] = list(_made(card))
    notes = []
    for part in ("train", "val"):
        for stated in _files(card, part):
            path = _found(stated, folder, material)
            read = None if path is None else _rows(path, card)
            if read is None:
                why = "is not there any more" if path is None else "cannot be read as rows"
                notes.append(f"{stated.file} {why}: only ids were compared")
            else:
                rows += read
    return rows, notes


def _files(card: Card, part: str) -> list[_File]:
    try:
        return msgspec.convert(card.data.get(part) or [], list[_File])
    except msgspec.ValidationError as error:
        raise ConfigError(f"the card of {card.label!r}: data.{part}: {error}") from None


def _found(stated: _File, folder: Path, material: Material) -> Path | None:
    """A file with the hash of the card."""
    name = Path(stated.file)
    around = [Path(stated.path or name), name, folder / name, folder.parent / name]
    around += [Path(one["file"]) for one in material.files if one["sha256"] == stated.sha256]
    for path in around:
        if (
            path.is_file()
            and path.stat().st_size == stated.bytes
            and file_facts(path)["sha256"] == stated.sha256
        ):
            return path
    return None


def _rows(path: Path, card: Card) -> Sequence[Row] | None:
    """The rows of a training file, whichever of the shapes it has."""
    by_key: Reader = partial(read_demonstrations, messages_key=_messages_key(card))
    for read in (*_READERS, by_key, ratings_from, preferences_from):
        try:
            found: Sequence[Row] = read([path]).rows
        except ConfigError:
            continue
        if found:
            return found
    try:
        return [row for _, row in rows_of_items(read_benchmark([path]))]
    except ConfigError:
        return None


def _messages_key(card: Card) -> str | None:
    """The column with the conversations of SFT, as the training's file names it."""
    found: Any = card.config
    for name in ("data", "multiturn", "messages_key"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


def _made(card: Card) -> Sequence[Row]:
    """The rows that were made up by dials, made again."""
    dials = card.data.get("synthetic")
    if not isinstance(dials, Mapping):
        return []
    known = set(synthetic.SyntheticSettings.__struct_fields__)
    given = {name: value for name, value in dials.items() if name in known}
    try:
        settings = msgspec.convert(given, synthetic.SyntheticSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the card of {card.label!r}: data.synthetic: {error}") from None
    if card.method == "bradley_terry":
        return synthetic.preferences(settings).rows
    if card.mode == "pointwise":
        return synthetic.ratings(settings).rows
    if card.mode == "pairwise":
        return synthetic.comparisons(settings).rows
    return synthetic.demonstrations(settings)
