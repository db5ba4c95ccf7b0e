"""The rows that judges are trained and tested on.

===================  ======================================================================
``Demonstration``    a conversation to imitate (SFT)
``Preference``       two conversations from one beginning, one better (Bradley-Terry)
``Rating``           a conversation and the quality of its answer, 0 to 4 (pointwise GRPO)
``Comparison``       a prompt, two answers by position, which is better (pairwise GRPO)
===================  ======================================================================

Each knows ``where`` it was read (``FILE:ROW``), its ``subset``, and the ids of the benchmark or
data set items it was made from; all three are for people and checks, never for a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from adjudge.rollouts.messages import content_text

__all__ = [
    "LABELS",
    "RATINGS",
    "Answers",
    "Comparison",
    "Demonstration",
    "Label",
    "Messages",
    "Preference",
    "R",
    "Rating",
    "Row",
    "answers_of",
    "shared_prompt",
    "spoken",
]

Messages = list[dict[str, Any]]
"""A conversation: chat messages in OpenAI format."""

Label = Literal["A", "B", "tie"]
"""Which of two answers is better, by its position."""

LABELS: tuple[Label, ...] = ("A", "B", "tie")
RATINGS = (0, 1, 2, 3, 4)
"""The quality of one answer: helpfulness, 4 is best."""


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that ends with the assistant's turn, which is what is imitated."""

    messages: Messages
    where: str = ""
    subset: str | None = None
    source_ids: tuple[str, ...] = ()


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """Two conversations that begin alike and end with an assistant's turn.

    ``margin`` (≥ 0) says by how much ``chosen`` is better, on the scale of the data; ``None``:
    nobody said.
    """

    chosen: Messages
    rejected: Messages
    margin: float | None = None
    where: str = ""
    subset: str | None = None
    source_ids: tuple[str, ...] = ()


class Rating(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that ends with the assistant's turn, and its quality: 0 (worst) to 4."""

    messages: Messages
    label: int
    where: str = ""
    subset: str | None = None
    source_ids: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation before the answer, two answers, and which is better by its position."""

    prompt: Messages
    a: str
    b: str
    label: Label
    where: str = ""
    subset: str | None = None
    source_ids: tuple[str, ...] = ()


Row = Demonstration | Preference | Rating | Comparison
R = TypeVar("R", Demonstration, Preference, Rating, Comparison)

Answers = tuple[Messages, list[Messages]]
"""A conversation up to the answer, and what followed it: one continuation or two."""


def shared_prompt(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """How many messages two conversations have in common at their beginning.

    >>> shared_prompt([{"role": "user"}, {"role": "a"}], [{"role": "user"}, {"role": "b"}])
    1
    """
    number = 0
    for one, other in zip(chosen, rejected, strict=False):
        if one != other:
            break
        number += 1
    return number


def answers_of(row: Row) -> Answers:
    """What was asked and what was answered.

    The two sides of a preference part after their shared messages; a comparison's answers come as
    assistant's messages in the order A, B.
    """
    if isinstance(row, Preference):
        cut = shared_prompt(row.chosen, row.rejected)
        return row.chosen[:cut], [row.chosen[cut:], row.rejected[cut:]]
    if isinstance(row, Comparison):
        turns = [[{"role": "assistant", "content": text}] for text in (row.a, row.b)]
        return row.prompt, turns
    return row.messages[:-1], [row.messages[-1:]]


def spoken(messages: Sequence[dict[str, Any]]) -> str:
    """The texts of ``messages``, each after its role, tool calls included, to compare them by."""
    parts = []
    for message in messages:
        text = content_text(message.get("content"))
        if calls := message.get("tool_calls"):
            text += "\n" + msgspec.json.encode(calls, order="deterministic").decode()
        parts.append(f"{message.get('role')}: {text}")
    return "\n".join(parts)
