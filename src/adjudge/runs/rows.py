"""The samples of a run as rows: what is kept of each, who hears of it, and which a page shows.

A page of a million samples would take a browser minutes to open. So the table is bounded in bytes,
whatever the samples hold, and the choice is the same whenever the same results come in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, NamedTuple, Self

from adjudge.checks.summary import answer_properties
from adjudge.files import UNENCODABLE
from adjudge.rollouts.samples import compute_rollout_key
from adjudge.text import encode_json, escape_json
from adjudge.types import GradedSample, GraderError, GraderScore, RewardResult, Sample

_PROMPT_CHARS, _RESPONSE_CHARS = 400, 1200


@dataclass(kw_only=True)
class GradedRow:
    """One sample with what it got; the rollout itself is not kept.

    ``key`` is what was judged (:func:`~adjudge.rollouts.samples.compute_rollout_key`), ``where``
    the ``FILE:ROW`` that it was read from, ``step`` the training step that the row names.
    ``length`` is the response's, in characters; ``prompt`` and ``response`` are their beginnings.
    ``judged``: what the graders said. ``result``: what that came to, there once its group is whole.
    ``draw_values``: the numbers of each draw, the first first, where graders were asked several
    times.
    """

    index: int
    group: str
    env_reward: float | None = None
    key: str = ""
    where: str = ""
    step: int | None = None
    length: int = 0
    tool_calls: int = 0
    properties: frozenset[str] = field(default=frozenset(), repr=False)
    prompt: str = ""
    response: str = ""
    judged: GradedSample = field(repr=False)
    result: RewardResult = field(init=False)
    draw_values: Sequence[Mapping[str, float | None]] = field(default=(), repr=False)

    @classmethod
    def of(cls, sample: Sample, group: str, judged: GradedSample) -> Self:
        """The row of a ``sample`` that was judged, without its result."""
        calls = [message.get("tool_calls") for message in sample.messages or []]
        response = sample.response or ""
        return cls(
            index=sample.original_index,
            group=group,
            env_reward=sample.env_reward,
            key=compute_rollout_key(sample),
            where=sample.where,
            step=sample.step,
            length=len(response),
            tool_calls=sum(len(some) for some in calls if isinstance(some, list)),
            properties=answer_properties(response),
            prompt=(sample.prompt or "")[:_PROMPT_CHARS],
            response=response[:_RESPONSE_CHARS],
            judged=judged,
        )

    @property
    def reward(self) -> float | None:
        """The reward; ``None`` where it is missing, and :attr:`missing` says why."""
        return self.result.score

    @property
    def missing(self) -> GraderError | None:
        """Why there is no reward: its ``kind``, and ``error`` in words."""
        return self.result.missing

    @property
    def scores(self) -> dict[str, float | None]:
        """Each grader's score by its name; ``None`` where it failed."""
        info = self.result.reward_info
        return {key.removesuffix("_score"): info[key] for key in info if key.endswith("_score")}

    @property
    def draws(self) -> list[float | None]:
        """The reward of each draw; empty where graders were asked once."""
        return [draw["reward"] for draw in self.draw_values]

    def note(self, grader: str) -> str:
        """A grader's reason, or ``kind: message`` where it failed."""
        said = (self.result.details or {}).get(grader) or {}
        error = said.get("error")
        return f"{said.get('kind')}: {error}" if error else str(said.get("reason", ""))

    def is_evaluable(self, grader: str) -> bool:
        """Whether there was anything to judge for a grader."""
        answer = self.judged.outcome.get(grader)
        return not isinstance(answer, GraderScore) or answer.evaluable

    def as_dict(self) -> dict[str, Any]:
        """The sample's row of ``rewards.jsonl``."""
        result, missing = self.result, self.result.missing
        return {
            "index": self.index,
            "key": self.key,
            "where": self.where,
            "step": self.step,
            "group": self.group,
            "env_reward": self.env_reward,
            "reward": result.score,
            **({"reward_draws": self.draws} if self.draw_values else {}),
            "missing": missing and {"kind": str(missing.kind), "message": missing.error},
            "reward_info": result.reward_info,
            "details": result.details,
        }

    def encode(self) -> bytes:
        """The line of ``rewards.jsonl``; without metadata of own graders that no JSON can hold."""
        values = self.as_dict()
        try:
            return encode_json(values, str) + b"\n"
        except UNENCODABLE:
            values["details"] = {
                name: {key: value for key, value in said.items() if key != "metadata"}
                if isinstance(said, dict)
                else str(said)
                for name, said in values["details"].items()
            }
            return encode_json(values, str) + b"\n"


class RunObserver:
    """Hears of each sample of a run in the order of the input, and of the end."""

    def on_sample(self, one: GradedRow) -> None:
        """The next sample has its reward."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """No sample is left; add to ``summary.json``."""


# --- the rows of a page ---------------------------------------------------------------------------

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


class ReportRows(RunObserver):
    """Chooses the rows of a page from samples that come one after the other.

    ``names``: the graders'; ``total``: how many samples come.
    """

    def __init__(self, names: Sequence[str] = (), total: int = 0) -> None:
        self._names = names
        self._all: list[GradedRow] | None = []
        self._room = _Room(names)
        self._count = 0
        self._least_share = SPREAD / max(1, total)
        self._sorts: dict[str, list[GradedRow]] = {}

    def on_sample(self, one: GradedRow) -> None:
        """The next sample of a run."""
        at = self._count
        self._count += 1
        if self._all is not None:
            if self._room.takes(one):
                self._all.append(one)
            else:
                self._all = None
        kinds = _failure_kinds(self._names, one)
        sorts = [kind for kind in kinds if len(self._sorts.get(kind, ())) < EACH_KIND]
        if at < FIRST:
            sorts.append("first")
        if (at * _GOLDEN & _LOW_BITS) <= self._least_share * _LOW_BITS:
            sorts.append("spread")
        for sort in sorts:
            self._sorts.setdefault(sort, []).append(one)

    def chosen(self) -> list[GradedRow]:
        """The rows of the page in the order of the input; each sort of row has some."""
        if self._all is not None:
            return self._all
        room = _Room(self._names)
        found: dict[int, GradedRow] = {}
        for row in chain.from_iterable(zip_longest(*self._sorts.values())):
            if row is not None and row.index not in found and room.takes(row):
                found[row.index] = row
        return [found[index] for index in sorted(found)]


def _failure_kinds(names: Sequence[str], one: GradedRow) -> Iterator[str]:
    """What failed in a sample, each kind under its own name."""
    if one.missing is not None:
        yield f"reward: {one.missing.kind}"
    for name in names:
        answer = one.judged.outcome.get(name)
        if isinstance(answer, GraderError):
            yield f"{name}: {answer.kind}"
        elif not one.is_evaluable(name):
            yield f"{name}: not evaluable"


class RowTexts(NamedTuple):
    """The texts of a row on a page, each of a bounded length; ``notes``: one a grader."""

    group: str
    missing_kind: str
    missing_message: str
    prompt: str
    response: str
    notes: list[str]

    @classmethod
    def of(cls, row: GradedRow, names: Sequence[str]) -> Self:
        """Those of ``row``, with the notes of the graders ``names``."""
        most, missing = max(_NOTE_CHARS, _NOTES_CHARS // max(1, len(names))), row.missing
        return cls(
            cut_text(row.group, _GROUP_CHARS),
            "" if missing is None else str(missing.kind),
            "" if missing is None else cut_text(missing.error),
            row.prompt,
            row.response,
            [cut_text(row.note(name), most) for name in names],
        )


class _Room:
    """What is left of the bytes of a table. A text that was there before takes a number's room."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._left = names, MAX_BYTES
        self._texts: set[str] = set()

    def takes(self, row: GradedRow) -> bool:
        """Whether ``row`` fits; then its room is taken."""
        *said, notes = RowTexts.of(row, self._names)
        texts = [*filter(None, said), *notes]
        new = set(texts) - self._texts
        size = len(escape_json(list(new)).encode())
        size += _NUMBER_BYTES * (4 + len(texts) + len(notes))
        if size > self._left:
            return False
        self._left -= size
        self._texts |= new
        return True


def cut_text(text: str, most: int = _MESSAGE_CHARS) -> str:
    """The beginning of ``text``, with a mark where it goes on."""
    return text if len(text) <= most else f"{text[:most]} …"
