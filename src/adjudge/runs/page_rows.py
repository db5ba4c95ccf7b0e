"""The samples of a page: all of them, or a choice that the page states.

A page of a million samples would take a browser minutes to open. So the table is bounded in bytes,
whatever the samples hold, and the choice is the same whenever the same results come in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Self

import msgspec

from adjudge.runs.summary import RewardedSample, RunObserver
from adjudge.text import escape_json
from adjudge.types import GraderError, GraderScore

MAX_BYTES = 3_000_000
"""What the table's data may take in the page."""
FIRST, SPREAD, EACH_KIND = 200, 1_000, 5
"""Of too many samples: how many of the first, of the whole input, and of each kind of failure."""
CHOICE = (
    f"the first {FIRST}, {SPREAD:,} spread evenly over the input, and {EACH_KIND} of each kind of "
    "missing reward, of each kind of failure of a grader, and of what a grader had nothing to "
    f"judge in; of these, as many as fit into {MAX_BYTES // 1_000_000} MB"
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
            evaluable=[_is_evaluable(one.judged.outcome.get(name)) for name in names],
            prompt=facts.prompt,
            response=facts.response,
        )


class ReportRows(RunObserver):
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
        elif not _is_evaluable(answer):
            yield f"{name}: not evaluable"


def _is_evaluable(answer: object) -> bool:
    return not isinstance(answer, GraderScore) or answer.evaluable


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
        size = len(escape_json(list(new)).encode())
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
