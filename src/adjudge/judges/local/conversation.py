"""Conversations as a model's own template writes them, with nobody else's control tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.prompts.control_tokens import part_tokens
from adjudge.rollouts.messages import content_text

__all__ = ["Turns", "templated", "turns_of"]

Turns = list[dict[str, str]]
"""Roles and texts."""


def turns_of(messages: Sequence[Mapping[str, Any]], special: Iterable[str]) -> Turns:
    """Messages as roles and texts, in which none of the tokens ``special`` stands.

    A policy that writes ``<|im_end|>`` could else end its own turn and begin the judge's. Raises
    ``GradingFailure``: ``invalid_input`` for what is no message, ``unsupported`` for parts that are
    no text (images), which these models are not shown.
    """
    tokens = frozenset(special)
    turns = []
    for place, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise GradingFailure(ErrorKind.INVALID_INPUT, f"messages[{place}] has no role")
        content = message.get("content")
        if isinstance(content, list) and any(not _is_text(part) for part in content):
            raise GradingFailure(
                ErrorKind.UNSUPPORTED, "this local judge reads text only, no images or other parts"
            )
        turns.append({"role": role, "content": part_tokens(content_text(content), tokens)})
    return turns


def _is_text(part: Any) -> bool:
    text = part.get("text") if isinstance(part, Mapping) else part
    return isinstance(text, str)


def templated(tokenizer: Any, turns: Turns, *, reply: bool, **options: Any) -> list[int]:
    """The token ids of a conversation; with ``reply`` the judge's turn is opened.

    Raises ``GradingFailure(invalid_input)`` for what the template refuses (roles that it does not
    know, two turns of one role).
    """
    try:
        text = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=reply, **options
        )
    except Exception as error:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"the model's chat template does not take this conversation: {type(error).__name__}",
        ) from error
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids
