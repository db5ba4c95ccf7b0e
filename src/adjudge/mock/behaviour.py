"""What is replied when nothing goes wrong.

=============  ===================================================================================
``fixed``      one text; the shipped one is ``{"score": 1, "reason": "mock"}``
``scripted``   the rows of a JSONL file, by a substring of the last user message or in order
``rubric``     a score that counts the given keywords in the last user message
``criteria``   whether each numbered criterion's "quoted" words occur in the response
``length``     a score that grows with the length of the last user message: a biased judge
``echo``       the last user message itself
=============  ===================================================================================

A text of the user's (``fixed`` with one, ``scripted``, ``echo``) is sent as it stands. The others
keep to a JSON schema or a list of choices when the request has one, as constrained decoding does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.mock.asked import Asked, last_user_text
from adjudge.mock.instances import minimal_instance

__all__ = [
    "BEHAVIOURS",
    "DEFAULT_REPLY",
    "PROSE",
    "Answer",
    "Behaviour",
    "Echo",
    "Fixed",
    "Length",
    "Rubric",
    "Scripted",
    "read_script",
]

BEHAVIOURS = ("fixed", "scripted", "rubric", "criteria", "length", "echo")

DEFAULT_REPLY = '{"score": 1, "reason": "mock"}'

PROSE = "On the whole this answer is good, I would say, though it could be better in places."
"""What a server that drops schemas replies."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A reply before it has a wire format; hashable.

    ``finish`` is ``stop``, ``length``, ``content_filter`` or ``refusal``.
    """

    text: str
    reasoning: str = ""
    finish: str = "stop"


class Behaviour(ABC):
    """Decides the reply to a request."""

    constant: Answer | None = None
    """The answer to every plain request, when there is one: it need not be asked for."""

    repeats = True
    """Whether few different replies are to be expected, so that keeping them pays."""

    @abstractmethod
    def answer(self, asked: Asked) -> Answer:
        """The reply."""


class Fixed(Behaviour):
    """One text; without one of the user's the default, which keeps to what is asked for."""

    def __init__(self, text: str | None = None, reasoning: str = "") -> None:
        self._verbatim = text is not None
        self.constant = Answer(DEFAULT_REPLY if text is None else text, reasoning)

    def answer(self, asked: Asked) -> Answer:
        """The text."""
        constant = self.constant
        assert constant is not None  # noqa: S101  (set above; narrows the type)
        if self._verbatim:
            return constant
        return Answer(_formed(asked, 1.0, 1, "mock"), constant.reasoning)


class Rubric(Behaviour):
    """Score: how many of the keywords occur in the last user message, capitals ignored."""

    def __init__(self, keywords: Sequence[str]) -> None:
        self._keywords = [(word, word.casefold()) for word in keywords]

    def answer(self, asked: Asked) -> Answer:
        """The count, and which were found."""
        text = last_user_text(asked.messages).casefold()
        found = [word for word, folded in self._keywords if folded in text]
        total = len(self._keywords)
        reason = f"{len(found)} of {total} keywords: {', '.join(found)}".rstrip(": ")
        return Answer(_formed(asked, len(found) / total, len(found), reason))


class Length(Behaviour):
    """Score: 1 + 9 · n / (n + 1000) for n characters of the last user message, 1 to 10."""

    repeats = False

    def answer(self, asked: Asked) -> Answer:
        """The score; longer is always better."""
        n = len(last_user_text(asked.messages))
        share = n / (n + 1000)
        return Answer(_formed(asked, share, round(1 + 9 * share, 3), f"{n} characters"))


class Echo(Behaviour):
    """The last user message: shows whether replies reach the request they belong to."""

    repeats = False

    def answer(self, asked: Asked) -> Answer:
        """What was said."""
        return Answer(last_user_text(asked.messages))


class Scripted(Behaviour):
    """Rows of a script: keyed ones where their substring occurs, the others in order, again and
    again.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._keyed = [(row.when, row.to_answer()) for row in rows if row.when is not None]
        self._ordered = [row.to_answer() for row in rows if row.when is None]
        self._next = 0

    def answer(self, asked: Asked) -> Answer:
        """The first keyed row that fits, else the next ordered one, else the default reply."""
        if self._keyed:
            text = last_user_text(asked.messages)
            for key, answer in self._keyed:
                if key in text:
                    return answer
        if not self._ordered:
            return Answer(DEFAULT_REPLY)
        self._next += 1
        return self._ordered[(self._next - 1) % len(self._ordered)]


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """One row of a script; a ``reply`` that is not text is sent as JSON."""

    reply: Any
    when: str | None = None
    reasoning: str = ""
    finish: str = "stop"

    def to_answer(self) -> Answer:
        """The row as an answer."""
        reply = self.reply
        text = reply if isinstance(reply, str) else msgspec.json.encode(reply).decode()
        return Answer(text, self.reasoning, self.finish)


def read_script(path: Path | str) -> list[Row]:
    """A JSONL script: each line a text, or ``{"reply", "when", "reasoning", "finish"}``.

    Raises :class:`ConfigError` naming the line.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--script {path}: cannot be read: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=str | Row)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
        rows.append(Row(row) if isinstance(row, str) else row)
        if rows[-1].finish not in {"stop", "length", "content_filter", "refusal"}:
            raise ConfigError(
                f"{path}:{number}: finish must be stop, length, content_filter or refusal, "
                f"not {rows[-1].finish!r}"
            )
    if not rows:
        raise ConfigError(f"--script {path}: has no rows")
    return rows


def _formed(asked: Asked, share: float, score: float, reason: str) -> str:
    """The verdict in the form that was asked for."""
    if asked.choices:
        return _chosen(asked.choices, share, score)
    if asked.schema is None:
        return f'{{"score": {score:g}, "reason": {msgspec.json.encode(reason).decode()}}}'
    instance = minimal_instance(asked.schema, share, reason)
    if isinstance(instance, dict):
        _place_score(instance, asked.schema, score)
    return msgspec.json.encode(instance).decode()


def _chosen(choices: Sequence[str], share: float, score: float) -> str:
    exact = f"{score:g}"
    return exact if exact in choices else choices[round(share * (len(choices) - 1))]


def _place_score(instance: dict[str, Any], schema: dict[str, Any], score: float) -> None:
    """Put the very score into a numeric ``score`` property, where its range allows it."""
    properties = schema.get("properties")
    described = properties.get("score") if isinstance(properties, dict) else None
    if "score" not in instance or not isinstance(described, dict):
        return
    kind = described.get("type")
    low = described.get("minimum", -math.inf)
    high = described.get("maximum", math.inf)
    plain = set(described) <= {"type", "minimum", "maximum", "description", "title"}
    bounded = isinstance(low, int | float) and isinstance(high, int | float)
    if not plain or not bounded or kind not in {"integer", "number"} or not low <= score <= high:
        return
    if kind == "number" or float(score).is_integer():
        instance["score"] = int(score) if kind == "integer" else score
