"""Recorded judgements as candidates: LLMBar's published files, and our own ``judgements.jsonl``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_training.benchmarks.items import Benchmark
from adjudge.judge_training.benchmarks.judgements import Judgement, by_item
from adjudge.judge_training.benchmarks.llmbar_judges import read_llmbar_judge
from adjudge.judge_training.validating.materials import item_digest

__all__ = ["JUDGEMENTS", "Kept", "Recording", "own_recording", "published_recording"]

JUDGEMENTS = "judgements.jsonl"


class Kept(Judgement, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``judgements.jsonl``: a judgement, its judge, and the digest of its item."""

    judge: str = ""
    item: str = ""


class Recording:
    """Judgements by what was judged, so that they are found again whatever their items' ids.

    Equal items are separate: each record is given out once.
    """

    def __init__(
        self,
        where: str,
        records: Iterable[tuple[str, Judgement]],
        benchmark: Benchmark | None = None,
    ) -> None:
        self.where = where
        self.benchmark = benchmark
        self._records = [(digest, judgement) for digest, judgement in records]
        self.scores = any(judgement.scores for _, judgement in self._records)

    def on(self, benchmark: Benchmark) -> list[Judgement]:
        """The judgements of ``benchmark``'s items that were recorded.

        Raises :class:`~adjudge.errors.ConfigError` where none was.
        """
        known: dict[str, deque[Judgement]] = {}
        for digest, judgement in self._records:
            known.setdefault(digest, deque()).append(judgement)
        found = []
        for item in benchmark.items:
            records = known.get(item_digest(item)) or known.get(_named(item.subset, item.id))
            if records:
                said = records.popleft()
                found.append(_of(said, item.subset, item.id))
        if not found:
            raise ConfigError(
                f"{self.where}: none of its {len(self._records):,} judgements is about an item of "
                f"{benchmark.title or benchmark.kind}"
            )
        by_item(benchmark, found)  # of the right shape
        return found


def published_recording(paths: Sequence[Path]) -> Recording:
    """One LLMBar judge from its files, one a subset; raises :class:`ConfigError` for others."""
    parts = [read_llmbar_judge(path) for path in paths]
    items = [item for benchmark, _ in parts for item in benchmark.items]
    judged = [judgement for _, judgements in parts for judgement in judgements]
    records = [(item_digest(item), one) for item, one in zip(items, judged, strict=True)]
    benchmark = Benchmark(kind="llmbar", items=items, title="llmbar")
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return Recording(where, records, benchmark)


def own_recording(path: Path, judge: str | None) -> tuple[str, Recording]:
    """The judgements of ``judge`` (default: the only one) in a ``judgements.jsonl``, and its name.

    Raises :class:`~adjudge.errors.ConfigError` for a line that is no judgement, and for several
    judges of which none is named.
    """
    lines = _lines(path)
    names = list(dict.fromkeys(one.judge for one in lines))
    if judge is None and len(names) == 1:
        judge = names[0]
    if judge is None or judge not in names:
        listed = ", ".join(f"{path}#{name}" for name in names[:8])
        found = "no judge is named" if judge is None else f"no judge {judge!r}"
        raise ConfigError(f"{path}: {found}; it holds {listed or 'no judgement'}")
    own = [one for one in lines if one.judge == judge]
    records = [(one.item or _named(one.subset, one.id), one) for one in own]
    return judge or path.stem, Recording(str(path), records)


def _lines(path: Path) -> list[Kept]:
    decoder = msgspec.json.Decoder(Kept)
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            try:
                found.append(decoder.decode(line))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise ConfigError(f"{path}:{number}: not a judgement: {error}") from None
    return found


def _named(subset: str, identity: str) -> str:
    """How a judgement without a digest is found: by subset and id; no digest looks like it."""
    return f"{subset}\0{identity}"


def _of(said: Judgement, subset: str, identity: str) -> Judgement:
    return Judgement(subset=subset, id=identity, scores=said.scores, verdicts=said.verdicts)
