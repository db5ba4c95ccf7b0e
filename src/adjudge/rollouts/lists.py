"""Rows that hold several responses to one prompt, as verl's generation writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adjudge.errors import RolloutError
from adjudge.rollouts.guess import conversation
from adjudge.rollouts.messages import content_text

__all__ = ["LIST", "is_listed", "last_question", "listed_rows"]

LIST = "responses"
"""The column that verl's ``main_generation`` adds: a list of texts, one a sample."""


def is_listed(row: Mapping[str, Any], mapping: Mapping[str, str] | None = None) -> bool:
    """Whether a row's responses are its list.

    They are not where the row has ``response`` or ``messages``, or ``mapping`` says where those
    come from, and not where the list holds anything else than texts and nulls.
    """
    texts = row.get(LIST)
    if not isinstance(texts, list) or not texts:
        return False
    if any(
        name in (mapping or ()) or row.get(name) is not None for name in ("response", "messages")
    ):
        return False
    return all(text is None or isinstance(text, str) for text in texts)


def listed_rows(row: Mapping[str, Any], group: str) -> Iterator[dict[str, Any] | RolloutError]:
    """A row for each text of the list: ``response``, ``sample`` (from 0), ``group``, ``messages``.

    ``group`` is used where the row has none of its own. A prompt in chat form becomes the
    conversation with the response at its end, and its last user message the prompt. A null (a
    response that could not be made) comes as :class:`RolloutError`.
    """
    common = {name: value for name, value in row.items() if name != LIST}
    if common.get("group") is None:
        common["group"] = group
    chat = conversation(row.get("prompt"))
    if chat is not None:
        common["prompt"] = last_question(chat)
    for number, text in enumerate(row[LIST]):
        if text is None:
            yield RolloutError(f"{LIST}.{number}: is null: no response was made")
            continue
        one = {**common, "response": text, "sample": number}
        if chat is not None:
            one["messages"] = [*chat, {"role": "assistant", "content": text}]
        yield one


def last_question(chat: list[dict[str, Any]]) -> str | None:
    """The text of a conversation's last user message; ``None`` without one."""
    for message in reversed(chat):
        if message.get("role") == "user":
            return content_text(message.get("content"))
    return None
