"""The parts of a rollout as a :class:`~adjudge.types.Sample`, and what its group is known by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import RolloutError
from adjudge.intake.columns import read_env_reward
from adjudge.intake.rollouts import RolloutParts, first_turn, read_rollout
from adjudge.types import Sample


def make_sample(
    index: int,
    place: int,
    prompt: Any,
    completion: Any,
    extra: Mapping[str, Any],
    *,
    thinks: bool | None = None,
) -> Sample:
    """A rollout from a door that separates prompt and completion (:func:`.read_rollout`).

    ``index`` in the batch, ``place`` in the group. A completion that is ``None`` was lost; one that
    cannot be read has no reward either, and its ``problem`` says why.
    """
    if completion is None:
        text = prompt if isinstance(prompt, str) else None
        return Sample(index, place, text, None, None, extra, is_lost=True)
    try:
        rollout = read_rollout(prompt, completion, thinks=thinks)
        if "env_reward" in extra:
            extra = {**extra, "env_reward": read_env_reward(extra["env_reward"])}
    except RolloutError as error:
        return Sample(index, place, extra=extra, is_lost=True, problem=str(error))
    return sample_of_rollout(index, place, rollout, extra)


def sample_of_rollout(
    index: int, place: int, rollout: RolloutParts, extra: Mapping[str, Any]
) -> Sample:
    """A rollout that was read, with its other fields."""
    prompt, response, messages, opening_turns = rollout
    return Sample(index, place, prompt, response, messages, extra, opening_turns=opening_turns)


_BESIDE = ("tools", "images", "image")
"""Columns that stand before the policy although no message has them."""


def compute_prompt_key(sample: Sample) -> str | None:
    """The key that answers to the same prompt share, when no column names the prompt.

    All that comes before the policy: every turn, tools and images. Where it is not known which
    turns do, the turns before the assistant's first; without turns the prompt's text. ``None`` for
    a sample that has neither: it is like no other.
    """
    opening: Any = sample.prompt or None
    if sample.messages:
        turns = sample.opening_turns
        turns = first_turn(sample.messages) if turns is None else turns
        opening = sample.messages[:turns] or opening
    if opening is None:
        return None
    beside = {name: sample.extra[name] for name in _BESIDE if sample.extra.get(name)}
    if isinstance(opening, str) and not beside:
        return opening
    return _encode([opening, beside] if beside else opening)


def compute_divergence(sample: Sample) -> tuple[str, str] | None:
    """How a conversation of which no opening is known goes on after its opening.

    The assistant's first turn, and what the user says next. Two rollouts of one prompt may agree in
    the first; where the user then says different things, the first was perhaps no turn of the
    policy, and they are no answers to one prompt. ``None`` where no user speaks again.
    """
    if sample.opening_turns is not None or not sample.messages:
        return None
    start = first_turn(sample.messages)
    for place in range(start + 1, len(sample.messages)):
        if sample.messages[place].get("role") == "user":
            return _encode(sample.messages[start:place]), _encode(sample.messages[place])
    return None


def _encode(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr, order="deterministic").decode()
    except UnicodeEncodeError:  # a lone surrogate: only escapes can write it
        return json.dumps(value, sort_keys=True, default=repr)
