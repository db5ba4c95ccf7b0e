"""What a row has beside its texts: fields that may not be there, its group, and extras."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from adjudge.errors import RolloutError
from adjudge.rollouts.formats.base import Row
from adjudge.rollouts.formats.chat import Record, as_id
from adjudge.text import encode_exactly, encode_json

_OWN = frozenset({"messages", "prompt", "response", "reference", "group", "env_reward", "index"})
"""What a row's columns mean by name: a dump's column of that name does not become one."""

_BULK = frozenset(
    {
        *("tokens", "token_ids", "input_ids", "prompt_ids", "completion_ids", "response_ids"),
        *("prompt_token_ids", "completion_token_ids", "response_token_ids"),
        *("loss_mask", "attention_mask", "completion_mask"),
        *("logprobs", "log_probs", "rollout_log_probs", "completion_logprobs"),
        *("trajectory", "tool_defs", "tools"),
    }
)
"""Columns that no grader reads."""


def add_fields(row: Row, **fields: Any) -> Row:
    """``row`` with those of ``fields`` that are there: not null, and not NaN as tables write it."""
    for name, value in fields.items():
        if value is not None and not (isinstance(value, float) and math.isnan(value)):
            row[name] = value
    return row


def add_extras(row: Row, values: Record, *used: str) -> Row:
    """``row`` with the columns of ``values`` that it lacks, without bulk and those ``used``."""
    for name, value in values.items():
        if name not in row and name not in _OWN and name not in _BULK and name not in used:
            row[name] = value
    return row


def group_name(*parts: Any) -> str | None:
    """A group's name of an id, the last of ``parts``, and what it is an id within, if known.

    >>> group_name(5, None, "math")
    '5/math'
    >>> group_name(5, None) is None
    True
    """
    names = [as_id(part) for part in parts]
    return "/".join(filter(None, names)) if names[-1] else None


def digest_prompt(prompt: Any) -> str | None:
    """A short name of a text or a conversation; ``None`` of nothing."""
    if prompt is None:
        return None
    try:
        text = encode_exactly(prompt) if isinstance(prompt, str) else encode_json(prompt)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise RolloutError("prompt: is nested too deeply, or no JSON data") from None
    return blake2b(text, digest_size=8).hexdigest()


def each_row(
    name: str, samples: Sequence[Any], convert: Callable[[Any], Row]
) -> Iterator[Row | RolloutError]:
    """The rows of a record's samples, the column ``name``; why there is none in a row's place."""
    for place, sample in enumerate(samples):
        try:
            yield convert(sample)
        except RolloutError as error:
            yield RolloutError(f"{name}.{place}: {error}")
