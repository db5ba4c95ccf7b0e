"""Whether a judge was trained on the items that it is evaluated on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets import synthetic
from adjudge.datasets.readers import (
    read_comparisons,
    read_demonstrations,
    read_preferences,
    read_ratings,
)
from adjudge.datasets.rows import DatasetRow, Preference, Rating
from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import CARD_FILE, JudgeCard, read_card
from adjudge.judge_evaluation.benchmarks.benchmark_data import BenchmarkData, hash_file
from adjudge.judge_evaluation.benchmarks.items import Benchmark, BenchmarkItem, BestOfItem, PairItem
from adjudge.judge_evaluation.benchmarks.overlap import find_leakage

_MIN_ID_LENGTH = 12
_MAX_ANCESTORS = 6
DatasetReader = Callable[[list[Path]], Any]


class _TrainingFile(msgspec.Struct):
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


def check_contamination(
    material: BenchmarkData, folder: Path | None, card: JudgeCard | None
) -> Contamination:
    """Compare the items with what a trained judge, and the judges it was trained from, has seen.

    Held-out rows of its training count as seen: its checkpoint was chosen by them. Files of
    training rows are looked for where the card says, beside the judge, and among the benchmark's
    own; only a file with the hash of the card is read.
    """
    if card is None or folder is None:
        return Contamination(compared="nothing", notes=["no card says what it was trained on"])
    rows: list[DatasetRow] = []
    ids: set[str] = set()
    notes: list[str] = []
    whole = True
    stages, lost = _ancestor_judges(folder, card)
    if lost:
        whole = False
        notes.append(f"{lost} is not found: what it had seen was not compared")
    for where, one in stages:
        ids.update(one.trained_ids)
        found, missing = _training_rows(where, one, material)
        rows += found
        notes += missing
        whole = whole and not missing
    if not (rows or ids):
        why = notes or ["its card does not say what it has seen"]
        return Contamination(compared="nothing", notes=why)
    items = list(rows_of_items(material.benchmark))
    leaks = find_leakage(rows, [row for _, row in items], trained_ids=ids).leaks
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


def synthetic_training_rows(folder: Path, card: JudgeCard) -> list[DatasetRow]:
    """The rows made by dials that a judge, and those it was trained from, were trained on."""
    stages, _ = _ancestor_judges(folder, card)
    return [row for _, one in stages for row in _regenerate_rows(one)]


def rows_of_items(benchmark: Benchmark) -> Iterator[tuple[BenchmarkItem, DatasetRow]]:
    """Each item as the rows of training that it would be: a pair, or its answers one by one."""
    for item in benchmark.items:
        ids = _item_ids(benchmark, item)
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


def _item_ids(benchmark: Benchmark, item: BenchmarkItem) -> tuple[str, ...]:
    """The names under which training data may know an item; short plain ones prove nothing."""
    kind, name = benchmark.kind, item.id
    if isinstance(item, PairItem) and item.cluster:  # of an item of four answers
        kind, name = "rewardbench2", item.cluster
    if name == item.where:
        return ()
    plain = (name,) if len(name) >= _MIN_ID_LENGTH and not name.isdecimal() else ()
    return (f"{kind}:{name}", *plain)


def _ancestor_judges(folder: Path, card: JudgeCard) -> tuple[list[tuple[Path, JudgeCard]], str]:
    """A judge, and the trained judges that it was trained from; the base that is not found.

    A base with a digest was a folder, which may have been a trained judge's; another is a name.
    """
    found = []
    for _ in range(_MAX_ANCESTORS):
        found.append((folder, card))
        said = str(card.base.get("path") or "tiny")
        base = Path(said)
        places = [one for one in (folder.parent / base, base) if one.is_dir()]
        if not places:
            return found, said if card.base.get("digest") else ""
        judges = [one for one in places if (one / CARD_FILE).is_file()]
        if not judges:
            return found, ""
        folder, card = judges[0], read_card(judges[0])
    return found, f"what {folder} was trained from"


def _training_rows(
    folder: Path, card: JudgeCard, material: BenchmarkData
) -> tuple[list[DatasetRow], list[str]]:
    """The rows that are still there, and a note about each file that is not."""
    rows: list[DatasetRow] = list(_regenerate_rows(card))
    notes = []
    for part in ("train", "val"):
        for stated in _card_files(card, part):
            path = _find_training_file(stated, folder, material)
            read = None if path is None else _read_rows(path, card)
            if read is None:
                why = "is not there any more" if path is None else "cannot be read as rows"
                notes.append(f"{stated.file} {why}: only ids were compared")
            else:
                rows += read
    return rows, notes


def _card_files(card: JudgeCard, part: str) -> list[_TrainingFile]:
    try:
        return msgspec.convert(card.data.get(part) or [], list[_TrainingFile])
    except msgspec.ValidationError as error:
        raise ConfigError(f"the card of {card.label!r}: data.{part}: {error}") from None


def _find_training_file(
    stated: _TrainingFile, folder: Path, material: BenchmarkData
) -> Path | None:
    """A file with the hash of the card."""
    name = Path(stated.file)
    around = [Path(stated.path or name), name, folder / name, folder.parent / name]
    around += [Path(one["file"]) for one in material.files if one["sha256"] == stated.sha256]
    for path in around:
        if (
            path.is_file()
            and path.stat().st_size == stated.bytes
            and hash_file(path)["sha256"] == stated.sha256
        ):
            return path
    return None


def _read_rows(path: Path, card: JudgeCard) -> Sequence[DatasetRow] | None:
    """The rows of a training file, whichever of the shapes it has."""
    by_key: DatasetReader = partial(read_demonstrations, messages_key=_messages_key(card))
    for read in (read_comparisons, read_ratings, read_preferences, by_key):
        with suppress(ConfigError):
            found: Sequence[DatasetRow] = read([path]).rows
            if found:
                return found
    return None


def _messages_key(card: JudgeCard) -> str | None:
    """The column with the conversations of SFT, as the training's file names it."""
    found: Any = card.config
    for name in ("data", "multiturn", "messages_key"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


def _regenerate_rows(card: JudgeCard) -> Sequence[DatasetRow]:
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
        return synthetic.synthetic_preferences(settings).rows
    if card.mode == "pointwise":
        return synthetic.synthetic_ratings(settings).rows
    if card.mode == "pairwise":
        return synthetic.synthetic_comparisons(settings).rows
    return synthetic.synthetic_demonstrations(settings)


def contamination_warning(name: str, found: Mapping[str, Any], items: int) -> str:
    """``CONTAMINATED: …`` for a judge that has seen items; empty for one that has not."""
    seen = sum(found["items"].values())
    if not seen:
        return ""
    subsets = ", ".join(f"{subset} {count:,}" for subset, count in found["items"].items())
    return f"CONTAMINATED: {name} was trained on {seen:,} of {items:,} items ({subsets})"


def contamination_entry(found: Contamination) -> dict[str, Any]:
    """What a judge has seen of the items."""
    return {**msgspec.to_builtins(found), "seen": found.seen}
