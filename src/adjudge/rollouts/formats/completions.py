"""A prompt and its completion as a row of one sample."""

from __future__ import annotations

from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.conversation import read_messages
from adjudge.intake.rollouts import read_rollout
from adjudge.rollouts.formats.base import Row
from adjudge.rollouts.formats.fields import make_row


def completion_row(prompt: Any, completion: Any) -> Row:
    """A prompt and what answers it as a row; each is a text or a list of messages.

    Raises :class:`RolloutError` for anything else.
    """
    if not isinstance(completion, str | list | tuple):
        found = "" if completion is None else f" (found {type(completion).__name__})"
        raise RolloutError(f"there is no response{found}")
    if prompt is not None and not isinstance(prompt, str):
        prompt = read_messages(prompt, "prompt")
    if not isinstance(completion, str):
        completion = read_messages(completion, "completion")
    return make_row(**read_rollout(prompt, completion)._asdict())
