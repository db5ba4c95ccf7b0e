"""Rows that judges are trained and tested on, and the problems of rows that cannot be used.

===================  ======================================================================
``Demonstration``    a conversation to imitate (SFT)
``Preference``       two conversations from one beginning, one better (Bradley-Terry)
``Rating``           a conversation and the quality of its answer, 0 to 4 (pointwise GRPO)
``Comparison``       a prompt, two answers by position, which is better (pairwise GRPO)
===================  ======================================================================

Each knows ``where`` it was read (``FILE:ROW``) and its ``subset``; both are for people, never for
a model.

A problem names its row by its place; problems are counted, and the first of them shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from adjudge.errors import ConfigError, RolloutError
from adjudge.messages import content_text

ChatMessages = list[dict[str, Any]]
"""A conversation: chat messages in OpenAI format."""

PreferenceLabel = Literal["A", "B", "tie"]
"""Which of two answers is better, by its position."""

PREFERENCE_LABELS: tuple[PreferenceLabel, ...] = ("A", "B", "tie")
RATINGS = (0, 1, 2, 3, 4)
"""The quality of one answer: helpfulness, 4 is best."""


class SourcedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a row is from, and its subset."""

    where: str = ""
    subset: str | None = None


class Demonstration(SourcedRow, frozen=True, kw_only=True):
    """A conversation that ends with the assistant's turn, which is what is imitated."""

    messages: ChatMessages


class Preference(SourcedRow, frozen=True, kw_only=True):
    """Two conversations that begin alike and end with an assistant's turn.

    ``margin`` (≥ 0) says by how much ``chosen`` is better, on the scale of the data; ``None``:
    not known.
    """

    chosen: ChatMessages
    rejected: ChatMessages
    margin: float | None = None


class Rating(SourcedRow, frozen=True, kw_only=True):
    """A conversation that ends with the assistant's turn, and its quality: 0 (worst) to 4."""

    messages: ChatMessages
    label: int


class Comparison(SourcedRow, frozen=True, kw_only=True):
    """A conversation before the answer, two answers, and which is better by its position."""

    prompt: ChatMessages
    a: str
    b: str
    label: PreferenceLabel


DatasetRow = Demonstration | Preference | Rating | Comparison

PromptAndAnswers = tuple[ChatMessages, list[ChatMessages]]
"""A conversation up to the answer, and what followed it: one continuation or two."""


def shared_prompt_length(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """How many messages two conversations have in common at their beginning.

    >>> shared_prompt_length([{"role": "user"}, {"role": "a"}], [{"role": "user"}, {"role": "b"}])
    1
    """
    number = 0
    for one, other in zip(chosen, rejected, strict=False):
        if one != other:
            break
        number += 1
    return number


def split_answers(row: DatasetRow) -> PromptAndAnswers:
    """What was asked and what was answered.

    The two sides of a preference part after their shared messages; a comparison's answers come as
    assistant's messages in the order A, B.
    """
    if isinstance(row, Preference):
        cut = shared_prompt_length(row.chosen, row.rejected)
        return row.chosen[:cut], [row.chosen[cut:], row.rejected[cut:]]
    if isinstance(row, Comparison):
        turns = [[{"role": "assistant", "content": text}] for text in (row.a, row.b)]
        return row.prompt, turns
    return row.messages[:-1], [row.messages[-1:]]


def render_transcript(messages: Sequence[dict[str, Any]]) -> str:
    """The texts of ``messages``, each after its role, tool calls included, to compare them by."""
    parts = []
    for message in messages:
        text = content_text(message.get("content"))
        if calls := message.get("tool_calls"):
            text += "\n" + msgspec.json.encode(calls, order="deterministic").decode()
        parts.append(f"{message.get('role')}: {text}")
    return "\n".join(parts)


MAX_PROBLEMS_SHOWN = 20
"""How many problems are kept in full; all are counted."""

_MAX_LABEL = 20
_MAX_NUMBER = 10**18

_T = TypeVar("_T")
_U = TypeVar("_U")


class RowProblem(msgspec.Struct, frozen=True):
    """Why a row cannot be used.

    ``where`` is ``FILE:ROW``, ``key`` the column (``messages[2].role``), ``found`` and ``allowed``
    say what it has and what it may have. Texts are measured, never quoted, short labels excepted.
    """

    where: str
    key: str
    found: str
    allowed: str

    @property
    def reason(self) -> str:
        """What is wrong, without the place."""
        return f"{self.key}: found {self.found}; allowed: {self.allowed}"

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class BrokenRow(Exception):
    """Raised while one row is read; becomes a :class:`RowProblem` with the row's place."""

    def __init__(self, key: str, found: str, allowed: str) -> None:
        super().__init__(f"{key}: found {found}; allowed: {allowed}")
        self.key, self.found, self.allowed = key, found, allowed

    def problem_at(self, where: str) -> RowProblem:
        """The problem as it is reported."""
        return RowProblem(where, self.key, self.found, self.allowed)


def unreadable_row_problem(where: str, error: RolloutError) -> RowProblem:
    """The problem of a row that is not even an object."""
    reason = str(error).removeprefix(f"{where}: ")
    return RowProblem(where, "row", f"something else ({reason})", "a JSON object")


class RowProblems:
    """All problems by number, the first ones in full.

    ``count`` counts them; ``first`` has at most ``shown`` of them.
    """

    def __init__(self, shown: int = MAX_PROBLEMS_SHOWN) -> None:
        self.count = 0
        self.first: list[RowProblem] = []
        self._shown = shown

    def add(self, problem: RowProblem) -> None:
        """One more."""
        self.count += 1
        if len(self.first) < self._shown:
            self.first.append(problem)

    def extend(self, other: RowProblems) -> None:
        """Those of another file or step, after these."""
        self.count += other.count
        self.first += other.first[: max(0, self._shown - len(self.first))]

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        if not self.count:
            return "no problems"
        lines = [str(problem) for problem in self.first]
        if self.count > len(self.first):
            lines.append(f"… and {self.count - len(self.first):,} more")
        return "\n".join(lines)


class LoadedRows(Generic[_T]):
    """The ``rows`` that can be used, whole, and the ``problems`` of those that cannot."""

    def __init__(self, rows: list[_T], problems: RowProblems) -> None:
        self.rows = rows
        self.problems = problems

    def require_usable(self, *, allow: float = 0.0) -> list[_T]:
        """The rows, where at most a share ``allow`` of all cannot be used.

        Raises :class:`ConfigError` that lists the first problems otherwise, or when no row is left.
        """
        total = len(self.rows) + self.problems.count
        if not self.rows or self.problems.count > allow * total:
            raise ConfigError(
                f"{len(self.rows):,} of {total:,} rows can be used. Correct the others, or allow a "
                f"share of unusable rows.\n{self.problems}"
            )
        return self.rows

    def and_then(self, step: Callable[[Sequence[_T]], LoadedRows[_U]]) -> LoadedRows[_U]:
        """The rows after a further step, with the problems of both."""
        after = step(self.rows)
        problems = RowProblems()
        problems.extend(self.problems)
        problems.extend(after.problems)
        return LoadedRows(after.rows, problems)


def describe_found(value: Any, *, label: bool = False) -> str:
    """A short description of a value that should not be there, without the texts of the data.

    With ``label`` (roles, verdicts) a short text is quoted.

    >>> describe_found("robot", label=True), describe_found("robot")
    ("text 'robot'", 'text of 5 characters')
    >>> describe_found([1, 2]), describe_found(None)
    ('a list of 2', 'nothing')
    """
    if value is None:
        return "nothing"
    if isinstance(value, str):
        quoted = label and len(value) <= _MAX_LABEL
        return f"text {value!r}" if quoted else f"text of {len(value)} characters"
    if isinstance(value, list | tuple | dict):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, int | float):
        return repr(value) if abs(value) < _MAX_NUMBER else "a very large number"
    return f"a value of type {type(value).__name__}"
