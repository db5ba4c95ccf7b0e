"""Rows that judges are trained and tested on, what their columns must hold, and their problems.

===================  ======================================================================
``Demonstration``    a conversation to imitate (SFT)
``Preference``       two conversations from one beginning, one better (Bradley-Terry)
``Rating``           a conversation and the quality of its answer, 0 to 4 (pointwise GRPO)
``Comparison``       a prompt, two answers by position, which is better (pairwise GRPO)
===================  ======================================================================

Each knows ``where`` it was read (``FILE:ROW``) and its ``subset``; both are for people, never for
a model.

A check of a column gives the value back, or raises :class:`BrokenRow` with the column, what was
found in it and what is allowed. A problem names its row by its place; problems are counted, and the
first of them shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, takewhile
from typing import Any, Generic, Literal, TypeVar

import msgspec

from adjudge.datasets.files import RawColumns
from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.conversation import list_messages, looks_like_messages, read_messages
from adjudge.intake.parts import Message
from adjudge.messages import content_text, prompt_messages
from adjudge.stats import collect
from adjudge.types import get_path

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
    pairs = zip(chosen, rejected, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


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


MAX_MESSAGES = 2_000

MAX_PAIRS_PER_PROMPT = 1_000
"""Pairs made from one prompt; one with more answers than that is a problem, not a flood."""

_LIST = "a list of chat messages {role, content}, or the JSON text of one"


def check_conversation(value: Any, key: str) -> ChatMessages:
    """``value`` as chat messages in OpenAI's form, of any maker's; see :func:`.read_messages`.

    Empty ``tool_calls`` are left out (a Parquet column has every field in every message).
    Raises :class:`BrokenRow` for anything a chat template cannot show.
    """
    given = value
    try:
        given = list_messages(value, key)
        if not 0 < len(given) <= MAX_MESSAGES:
            raise BrokenRow(key, f"{len(given)} messages", f"1 to {MAX_MESSAGES}")
        messages = read_messages(given, key)
    except RolloutError as error:  # its words may quote the row
        place = str(error).partition(": ")[0]
        inner = place.removeprefix(f"{key}.")
        found = given if inner == place else get_path(given, inner)
        place = re.sub(r"\.(\d+)", r"[\1]", place) if place.startswith(key) else key
        shown = describe_found(found, label=place.endswith(".role"))
        raise BrokenRow(place, shown, _LIST) from None
    places = [f"{key}[{number}]" for number in range(len(messages))]
    return list(map(_check_message, messages, places))


def check_prompt(value: Any, key: str) -> ChatMessages:
    """A prompt as messages: text is a user's message, unless it is the JSON of a conversation."""
    if isinstance(value, str) and not looks_like_messages(value):
        return prompt_messages(check_text(value, key))
    messages = check_conversation(value, key)
    if messages[-1]["role"] == "assistant":
        raise BrokenRow(
            f"{key}[-1].role", "text 'assistant'", "user, system or tool: who is answered"
        )
    return messages


def check_ends_with_answer(messages: ChatMessages, key: str) -> ChatMessages:
    """``messages``, where something is asked and the last turn is the assistant's."""
    last = messages[-1]
    if last["role"] != "assistant":
        raise BrokenRow(
            f"{key}[-1].role", describe_found(last["role"], label=True), "assistant, who answers"
        )
    if not any(message["role"] == "user" for message in messages):
        raise BrokenRow(key, "no user's message", "a conversation with something asked")
    return messages


_Row = TypeVar("_Row", bound=DatasetRow)


def check_answers(row: _Row, *keys: str) -> _Row:
    """``row``, where each answer has a text or calls tools; ``keys`` are their columns."""
    _, answers = split_answers(row)
    for key, answer in zip(keys, answers, strict=True):
        last = answer[-1]
        if not content_text(last["content"]).strip() and "tool_calls" not in last:
            raise BrokenRow(f"{key}[-1].content", "no text", "an answer")
    return row


def check_text(value: Any, key: str, *, blank: bool = False) -> str:
    """``value`` as text; ``blank`` allows blank text."""
    if not isinstance(value, str):
        raise BrokenRow(key, describe_found(value), "text")
    if not (blank or value.strip()):
        raise BrokenRow(key, "no text", "text")
    return value


def _check_message(message: Message, key: str) -> Message:
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        # A judge of texts would never see it, and be trained on a label that depends on it.
        raise BrokenRow(f"{key}.content", "parts that are no texts", "text")
    if content is None and not calls:
        raise BrokenRow(f"{key}.content", "nothing", "text (null only beside tool_calls)")
    if calls or "tool_calls" not in message:
        return message
    return {name: field for name, field in message.items() if name != "tool_calls"}


def check_rating(value: Any, key: str) -> int:
    """``value`` as a label 0 to 4; raises :class:`BrokenRow`."""
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    if not whole or value not in RATINGS:
        raise BrokenRow(key, describe_found(value, label=True), "a whole number from 0 to 4")
    return int(value)


def check_margin(value: Any, key: str) -> float | None:
    """By how much the better answer is better, never negative; ``None`` where it is missing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenRow(key, describe_found(value), "a number, or null")
    if isinstance(value, float) and math.isnan(value):
        return None  # how pandas writes "none"
    if not 0 <= value < 1e9:
        raise BrokenRow(key, describe_found(value), "a finite number, 0 or more, or null")
    return float(value)


def check_subset(value: Any, key: str) -> str | None:
    """The subset that a row names, if it does."""
    if value is not None and not isinstance(value, str):
        raise BrokenRow(key, describe_found(value), "text")
    return value


def check_id(value: Any, key: str) -> str | None:
    """The id that a row gives, if it does."""
    if value is None:
        return None
    if type(value) not in (str, int):
        raise BrokenRow(key, describe_found(value), "text or a whole number")
    return str(value)


def source_fields(row: RawColumns, where: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Where a row is from, by the columns of ``names``: ``where`` and ``subset``."""
    key = names.get("subset")
    return {"where": where, "subset": key and check_subset(row.get(key), key)}


def make_preference(
    chosen: ChatMessages,
    rejected: ChatMessages,
    margin: float | None,
    fields: Mapping[str, Any],
    keys: tuple[str, str] = ("chosen", "rejected"),
) -> Preference:
    """A preference of two different answers to one question; else raises :class:`BrokenRow`."""
    for key, side in zip(keys, (chosen, rejected), strict=True):
        check_ends_with_answer(side, key)
    if chosen == rejected:
        raise BrokenRow(keys[1], f"the same as {keys[0]}", "another answer")
    asked = next(n for n, message in enumerate(chosen) if message["role"] == "user") + 1
    shared = shared_prompt_length(chosen, rejected)
    if shared < asked:
        raise BrokenRow(keys[1], "another beginning", f"the question that {keys[0]} begins with")
    for key, side in zip(keys, (chosen, rejected), strict=True):
        if shared == len(side):
            raise BrokenRow(key, "the beginning of the other", "an answer of its own")
    return Preference(chosen=chosen, rejected=rejected, margin=margin, **fields)


def pair_ratings(rated: LoadedRows[Rating]) -> LoadedRows[Preference]:
    """Any two answers to the same prompt with different ratings; other pairs are problems."""
    by_prompt = collect((repr(one.messages[:-1]), one) for one in rated.rows)
    pairs: list[Preference] = []
    for answers in by_prompt.values():
        _pair_up(answers, pairs, rated.problems)
    return LoadedRows(pairs, rated.problems)


def _pair_up(answers: list[Rating], pairs: list[Preference], problems: RowProblems) -> None:
    count, found = len(answers), "no other answer to it"
    if count < 2 or count * (count - 1) // 2 > MAX_PAIRS_PER_PROMPT:
        found = found if count < 2 else f"{count:,} answers to it"
        allowed = f"two or more answers, {MAX_PAIRS_PER_PROMPT} pairs or fewer"
        problems.add(RowProblem(answers[0].where, "prompt", found, allowed))
        return
    for one, other in combinations(answers, 2):
        try:
            pairs.append(_better_first(one, other))
        except BrokenRow as problem:
            problems.add(problem.problem_at(one.where))


def _better_first(one: Rating, other: Rating) -> Preference:
    if one.label == other.label:
        raise BrokenRow("helpfulness", f"{one.label} for both answers", "different numbers")
    better, worse = (one, other) if one.label > other.label else (other, one)
    margin = float(better.label - worse.label)
    return make_preference(better.messages, worse.messages, margin, {"where": one.where})
