"""The samples of a page: all of them, or a choice that the page states.

A page of a million samples would take a browser minutes to open. So the table is bounded in bytes,
whatever the samples hold, and the choice is the same whenever the same results come in.

Some samples stand in full beside the table, with transcript, verdicts and what the judges were
shown: those that a reader would look for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest, nsmallest
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Self

import msgspec

from adjudge.errors import AdjudgeError
from adjudge.report.page import embed_json
from adjudge.runs.summary import RewardedSample
from adjudge.runs.view.answers import describe_sample, list_disagreements
from adjudge.runs.view.run_reader import RunReader
from adjudge.types import GraderError

MAX_BYTES = 3_000_000
"""What the table's data may take in the page."""
FIRST, SPREAD, EACH_KIND = 200, 1_000, 5
"""Of too many samples: how many of the first, of the whole input, and of each kind of failure."""
CHOICE = (
    f"the first {FIRST}, {SPREAD:,} spread evenly over the input, and {EACH_KIND} of each kind of "
    "missing reward, of each kind of failure of a grader, and of what a grader had nothing to "
    f"judge in; of these, as many as fit into {MAX_BYTES // 1_000_000} MB"
)
MAX_STORIES = 60
MAX_STORY_BYTES = 1_300_000
"""What the samples in full may take in the page."""
MAX_INDEXED_SAMPLES = 200_000
"""Of a run with more samples none is in full: finding the worst would take longer than reading."""
_FULL_EXTREMES, _FULL_EACH_KIND = 8, 4
STORY_CHOICE = (
    f"the worst disagreements, {_FULL_EACH_KIND} of each kind of missing reward, the "
    f"{_FULL_EXTREMES} lowest and the {_FULL_EXTREMES} highest rewards; of these, "
    f"{MAX_STORIES} or as many as fit into {MAX_STORY_BYTES / 1e6:.1f} MB"
)
_GROUP_CHARS, _MESSAGE_CHARS, _NOTES_CHARS, _NOTE_CHARS = 200, 1_200, 6_000, 120
_NUMBER_BYTES = 12
_GOLDEN = 0x9E3779B97F4A7C15
_LOW_BITS = (1 << 64) - 1
"""The low bits of multiples of it are spread evenly, however many there are."""


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sample as the report shows it.

    ``scores``, ``notes`` and ``evaluable`` have one entry per grader in the order of the spec:
    the raw score (``None`` where it failed), the reason (or ``kind: message``), and whether there
    was anything to judge. ``length`` is the response's length in characters. ``prompt`` and
    ``response`` are snippets, cut by the caller. ``reward`` is ``None`` when missing, with
    ``missing_kind`` and ``missing_message`` saying why.
    """

    index: int
    group: str
    reward: float | None
    missing_kind: str | None = None
    missing_message: str | None = None
    env_reward: float | None = None
    length: int
    tool_calls: int
    scores: list[float | None]
    notes: list[str]
    evaluable: list[bool]
    prompt: str
    response: str

    @classmethod
    def of(cls, one: RewardedSample, names: Sequence[str]) -> Self:
        """The row of a sample; ``names`` are the graders'."""
        facts, result, missing = one.facts, one.result, one.result.missing
        said = [(result.details or {}).get(name) or {} for name in names]
        return cls(
            index=facts.index,
            group=facts.group,
            reward=result.score,
            missing_kind=None if missing is None else str(missing.kind),
            missing_message=None if missing is None else missing.error,
            env_reward=facts.env_reward,
            length=facts.length,
            tool_calls=facts.tool_calls,
            scores=[result.reward_info.get(f"{name}_score") for name in names],
            notes=[
                f"{of.get('kind')}: {of['error']}" if of.get("error") else str(of.get("reason", ""))
                for of in said
            ],
            evaluable=[getattr(one.judged.outcome.get(name), "evaluable", True) for name in names],
            prompt=facts.prompt,
            response=facts.response,
        )


class ReportRows:
    """Chooses the rows of a page from samples that come one after the other.

    ``names``: the graders'; ``total``: how many samples come.
    """

    def __init__(self, names: Sequence[str] = (), total: int = 0) -> None:
        self._names = names
        self._all: list[ReportRow] | None = []
        self._room = _Room()
        self._count = 0
        self._least_share = SPREAD / max(1, total)
        self._sorts: dict[str, list[ReportRow]] = {}

    def on_sample(self, one: RewardedSample) -> None:
        """The next sample of a run."""
        kinds = _failure_kinds(self._names, one)
        self.add(kinds, lambda: ReportRow.of(one, self._names))

    def on_end(self, summary: dict[str, Any]) -> None:
        """The summary has nothing of the page."""

    def add(self, kinds: Iterable[str], make_row: Callable[[], ReportRow]) -> None:
        """The next sample; ``kinds`` of what failed in it. ``make_row`` is called if it is kept."""
        at, row = self._count, None
        self._count += 1
        if self._all is not None:
            row = _cut_texts(make_row())
            if self._room.takes(row):
                self._all.append(row)
            else:
                self._all = None
        sorts = [kind for kind in kinds if len(self._sorts.get(kind, ())) < EACH_KIND]
        if at < FIRST:
            sorts.append("first")
        if (at * _GOLDEN & _LOW_BITS) <= self._least_share * _LOW_BITS:
            sorts.append("spread")
        if sorts:
            row = row or _cut_texts(make_row())
            for sort in sorts:
                self._sorts.setdefault(sort, []).append(row)

    def chosen(self) -> list[ReportRow]:
        """The rows of the page in the order of the input; each sort of row has some."""
        if self._all is not None:
            return self._all
        room = _Room()
        found: dict[int, ReportRow] = {}
        for row in chain.from_iterable(zip_longest(*self._sorts.values())):
            if row is not None and row.index not in found and room.takes(row):
                found[row.index] = row
        return [found[index] for index in sorted(found)]


def _failure_kinds(names: Sequence[str], one: RewardedSample) -> Iterator[str]:
    """What failed in a sample, each kind under its own name."""
    if one.result.missing is not None:
        yield f"reward: {one.result.missing.kind}"
    for name in names:
        answer = one.judged.outcome.get(name)
        if isinstance(answer, GraderError):
            yield f"{name}: {answer.kind}"
        elif not getattr(answer, "evaluable", True):
            yield f"{name}: not evaluable"


class _Room:
    """What is left of the bytes of a table. A text that was there before takes a number's room."""

    def __init__(self) -> None:
        self._left = MAX_BYTES
        self._texts: set[str] = set()

    def takes(self, row: ReportRow) -> bool:
        """Whether ``row`` fits; then its room is taken."""
        texts = [row.group, row.prompt, row.response, *row.notes]
        texts += [text for text in (row.missing_kind, row.missing_message) if text]
        new = set(texts) - self._texts
        size = len(embed_json({"": list(new)}).encode())
        size += _NUMBER_BYTES * (4 + len(texts) + len(row.scores))
        if size > self._left:
            return False
        self._left -= size
        self._texts |= new
        return True


def _cut_texts(row: ReportRow) -> ReportRow:
    """``row`` with texts of a bounded length."""
    most = max(_NOTE_CHARS, _NOTES_CHARS // max(1, len(row.notes)))
    message = row.missing_message
    return msgspec.structs.replace(
        row,
        group=cut_text(row.group, _GROUP_CHARS),
        missing_message=message and cut_text(message),
        notes=[cut_text(note, most) for note in row.notes],
    )


def cut_text(text: str, most: int = _MESSAGE_CHARS) -> str:
    """The beginning of ``text``, with a mark where it goes on."""
    return text if len(text) <= most else f"{text[:most]} …"


# --- samples in full ------------------------------------------------------------------------------


def read_stories(folder: Path, *, most: int = MAX_STORIES) -> dict[str, Any]:
    """What the page of a finished grading run has of its samples in full.

    ``samples`` by link, as the live page gets them; ``disagreements``: the worst. Empty where the
    folder cannot be read, or has too many.
    """
    reading = RunReader(folder)
    reading.refresh()
    while reading.unindexed_bytes and len(reading.rollouts) <= MAX_INDEXED_SAMPLES:
        reading.refresh()
    if not reading.rollouts or len(reading.rollouts) > MAX_INDEXED_SAMPLES:
        return {}
    worst = list_disagreements(reading)
    left, samples = MAX_STORY_BYTES, dict[str, Any]()
    for row in _choose_rows(reading, [one["row"] for one in worst["worst"]]):
        if len(samples) == most:
            break
        try:
            found = describe_sample(reading, row)
        except AdjudgeError:  # the folder's transcripts are damaged; the page goes without
            continue
        size = len(embed_json({"": found}).encode())
        if found is not None and size <= left:
            left -= size
            samples[found["link"]] = found
    return {"disagreements": worst, "samples": samples}


def _choose_rows(reading: RunReader, worst: Sequence[int]) -> Iterator[int]:
    """Rows of each sort in turns, each once; the first is the worst disagreement."""
    rollouts = reading.rollouts
    kinds: dict[int, list[int]] = {}
    for row, failed in enumerate(rollouts.failed):
        of_kind = kinds.setdefault(rollouts.kind_of[row], []) if failed else []
        if failed and len(of_kind) < _FULL_EACH_KIND:
            of_kind.append(row)
    present = [row for row, value in enumerate(rollouts.reward) if not math.isnan(value)]
    low, high = (
        end(_FULL_EXTREMES, present, rollouts.reward.__getitem__) for end in (nsmallest, nlargest)
    )
    turns = zip_longest(worst, *kinds.values(), low, high)
    rest = range(min(len(rollouts), MAX_STORIES))
    chosen = chain((row for turn in turns for row in turn if row is not None), rest)
    yield from dict.fromkeys(chosen)
