"""What a judge said of an item, as it is kept: scores, verdicts, and what is missing and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from adjudge.errors import ConfigError, ErrorKind
from adjudge.judge_training.benchmarks.items import Benchmark, BestOfItem, Item, PairItem

__all__ = [
    "WIDEST",
    "Judgement",
    "Missing",
    "Verdict",
    "by_item",
    "first_failures",
    "flipped",
    "missing_kinds",
    "read_judgements",
    "verdicts_of",
    "write_judgements",
]

Verdict = Literal["A", "B", "tie"]
WIDEST = 1e100
"""The largest size of a score: its square is still a number."""

_FLIPPED: Mapping[Verdict, Verdict] = {"A": "B", "B": "A", "tie": "tie"}


class Missing(msgspec.Struct, frozen=True):
    """A score or verdict that a judge did not give: by which failure, in words."""

    kind: ErrorKind
    message: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One judge on one item.

    ``scores``: one per answer in the item's order (of a pair: A, B). ``verdicts``: in the order
    shown as given, then swapped; both name the item's own A and B, whatever was shown first. A
    judge gives one of the two. Scores beyond ±1e100, which is no scale, are refused with
    ``ValueError``, and so is NaN.
    """

    subset: str
    id: str
    scores: list[float | Missing] = []
    verdicts: list[Verdict | Missing] = []

    def __post_init__(self) -> None:
        if not all(isinstance(score, Missing) or abs(score) <= WIDEST for score in self.scores):
            raise ValueError(f"a score of {self.id[:80]!r} is not a number up to {WIDEST}")

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not any(isinstance(one, Missing) for one in (*self.scores, *self.verdicts))


def flipped(verdict: Verdict) -> Verdict:
    """The verdict of one who was shown the two the other way round."""
    return _FLIPPED[verdict]


def verdicts_of(judgement: Judgement) -> tuple[Verdict | Missing, Verdict | Missing]:
    """The verdicts on a pair, as given and swapped.

    From scores: the higher one, equal ones are a tie. They do not know of an order, so that both
    orders say the same; a missing score makes both missing.
    """
    if judgement.verdicts:
        first, second = judgement.verdicts
        return first, second
    a, b = judgement.scores
    if isinstance(a, Missing):
        return a, a
    if isinstance(b, Missing):
        return b, b
    verdict: Verdict = "A" if a > b else "B" if b > a else "tie"
    return verdict, verdict


def missing_kinds(judgements: Iterable[Judgement]) -> dict[str, int]:
    """How many scores or verdicts are missing, by kind of failure."""
    found = Counter(
        one.kind.value
        for judgement in judgements
        for one in (*judgement.scores, *judgement.verdicts)
        if isinstance(one, Missing)
    )
    return dict(sorted(found.items()))


def first_failures(judgements: Iterable[Judgement]) -> dict[str, str]:
    """What the first failure of each kind said; kinds whose failures say nothing are left out."""
    found: dict[str, str] = {}
    for judgement in judgements:
        for one in (*judgement.scores, *judgement.verdicts):
            if isinstance(one, Missing) and one.message:
                found.setdefault(one.kind.value, one.message)
    return dict(sorted(found.items()))


def by_item(
    benchmark: Benchmark, judgements: Iterable[Judgement]
) -> dict[tuple[str, str], Judgement]:
    """The judgement of every item, by ``(subset, id)``.

    An item without one is missing as ``not_sampled``. Raises
    :class:`~adjudge.errors.ConfigError` for a judgement of no item, a second one of the same item,
    and one that has not a score per answer, or two verdicts.
    """
    items = {(item.subset, item.id): item for item in benchmark.items}
    found: dict[tuple[str, str], Judgement] = {}
    for judgement in judgements:
        key = (judgement.subset, judgement.id)
        if key not in items or key in found:
            why = "was judged twice" if key in found else "is no item of this benchmark"
            raise ConfigError(f"judgement {key[0]}/{key[1][:80]}: {why}")
        _check(judgement, items[key])
        found[key] = judgement
    return {key: found.get(key) or _unasked(item) for key, item in items.items()}


def _check(judgement: Judgement, item: Item) -> None:
    scores, verdicts = len(judgement.scores), len(judgement.verdicts)
    pair = isinstance(item, PairItem)
    wanted = 2 if pair else len(item.answers) if isinstance(item, BestOfItem) else 0
    if (scores, verdicts) not in (((2, 0), (0, 2)) if pair else ((wanted, 0),)):
        allowed = "2 scores or 2 verdicts" if pair else f"{wanted} scores"
        raise ConfigError(
            f"judgement {judgement.subset}/{judgement.id[:80]}: found {scores} scores and "
            f"{verdicts} verdicts, must be {allowed}"
        )


def _unasked(item: Item) -> Judgement:
    missing = Missing(ErrorKind.NOT_SAMPLED, "no judgement")
    count = 2 if isinstance(item, PairItem) else len(item.answers)
    return Judgement(subset=item.subset, id=item.id, scores=[missing] * count)


def write_judgements(path: Path, judgements: Sequence[Judgement]) -> None:
    """One JSON object a line; :func:`read_judgements` gives equal ones back."""
    encoder = msgspec.json.Encoder()
    path.write_bytes(b"".join(encoder.encode(one) + b"\n" for one in judgements))


def read_judgements(path: Path) -> list[Judgement]:
    """Recorded judgements, failures included.

    Raises :class:`~adjudge.errors.ConfigError` naming the line that is none.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    decoder = msgspec.json.Decoder(Judgement)
    found = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(decoder.decode(line))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(f"{path}:{number}: not a judgement: {error}") from None
    return found
