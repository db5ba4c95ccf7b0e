"""Rows as samples: which column is which, and what a sample must have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError, RolloutError
from adjudge.messages import first_question, last_answer
from adjudge.rollouts.columns import MISSING, get_path
from adjudge.rollouts.rows import FileRow, has_response_list, read_rows, split_responses
from adjudge.types import Sample

SAMPLE_FIELDS = ("messages", "prompt", "response", "reference", "group", "env_reward")
"""The columns that mean something by name; every other column is an extra."""

_RENAMED = ("messages", "prompt", "response")
_CHECKED_ROWS = 1000


def read_samples(
    paths: Sequence[Path], mapping: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Sample | RolloutError]]:
    """``FILE:LINE`` and the sample of every row in order, or what is wrong with the row.

    ``mapping`` names where a field comes from: ``{"messages": "traj", "answer": "info.gold"}``.
    ``Sample.index`` counts rows over all files, broken ones included. A row with a list
    ``responses`` is as many rows of one group (:mod:`adjudge.rollouts.rows`).
    """
    mapping = mapping or {}
    for index, (where, row) in enumerate(_each_response(paths, mapping)):
        if isinstance(row, RolloutError):
            yield where, row
            continue
        try:
            yield where, sample_from_row(row, index, mapping)
        except RolloutError as error:
            yield where, RolloutError(str(error), where=where)


def _each_response(paths: Sequence[Path], mapping: Mapping[str, str]) -> Iterator[FileRow]:
    """The rows; one with a list of responses once for each of them."""
    for number, (where, row) in enumerate(read_rows(paths)):
        if isinstance(row, RolloutError) or not has_response_list(row, mapping):
            yield where, row
            continue
        for one in split_responses(row, f"row {number}"):
            yield where, one if isinstance(one, dict) else RolloutError(str(one), where=where)


def check_mapping(paths: Sequence[Path], mapping: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` for a mapped column that none of the first rows has."""
    if "index" in mapping:
        raise ConfigError("--map index: cannot be mapped, since index counts the input rows")
    wanted, columns = dict(mapping), dict[str, None]()
    for _, row in islice(read_rows(paths), _CHECKED_ROWS):
        if not wanted:
            return
        if not isinstance(row, RolloutError):
            columns |= dict.fromkeys(row)
            wanted = {f: path for f, path in wanted.items() if get_path(row, path) is MISSING}
    if columns:
        for field, path in wanted.items():
            raise ConfigError(
                f"--map {field}={path}: none of the first rows has {path!r}"
                f"{suggest_name(path, columns)} (columns: {', '.join(columns)[:300]})"
            )


def sample_from_row(row: Mapping[str, Any], index: int, mapping: Mapping[str, str]) -> Sample:
    """One row as a :class:`~adjudge.Sample`; raises :class:`RolloutError`.

    A row needs ``messages`` or ``response``. Without ``response`` the last assistant message is
    the response; without ``prompt`` the last user message before the first assistant's is. A mapped
    column that the row lacks is null. Columns stay available as extras under their own name, those
    mapped to messages, prompt or response excepted.
    """
    columns = dict(row)
    for field, path in mapping.items():
        value = get_path(row, path)
        columns[field] = None if value is MISSING else value
        if field in _RENAMED and path != field:
            columns.pop(path, None)  # the bulk of a row is not kept twice
    messages = _parse_messages(columns.pop("messages", None))
    prompt = _parse_prompt(columns.pop("prompt", None))
    response = _parse_text(columns.pop("response", None), "response")
    if messages is None and response is None:
        raise RolloutError(
            "has neither 'messages' nor 'response'; name the column with --map messages=COLUMN "
            f"(columns: {', '.join(sorted(row))[:200]})"
        )
    columns.pop("index", None)
    return Sample(
        index=index,
        messages=messages,
        prompt=prompt if prompt is not None else first_question(messages),
        response=response if response is not None else last_answer(messages),
        reference=columns.pop("reference", None),
        group=_parse_group(columns.pop("group", None)),
        env_reward=_parse_number(columns.pop("env_reward", None)),
        extras=columns,
    )


def _parse_messages(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if isinstance(value, str):  # trainers often store the list as JSON text
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RolloutError(f"'messages' is text but not JSON: {error}") from None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RolloutError(
            f"'messages' must be a list of chat messages, got {_describe_value(value)}"
        )
    return value


def _parse_prompt(value: Any) -> str | None:
    """Text, or a conversation (the chat form of a prompt) as its canonical JSON."""
    if isinstance(value, list):
        return msgspec.json.encode(value).decode()
    return _parse_text(value, "prompt")


def _parse_text(value: Any, field: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if field == "response" and isinstance(value, list) and value:
        return last_answer(_parse_messages(value)) or ""
    raise RolloutError(f"{field!r} must be text, got {_describe_value(value)}")


def _parse_group(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, float) and math.isnan(value):
        return None  # how pandas writes "none"
    if isinstance(value, str | int | float | bool):
        return str(value)
    raise RolloutError(f"'group' must be text or a number, got {_describe_value(value)}")


def _parse_number(value: Any) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool | int | float | Decimal):
        with suppress(OverflowError):
            if math.isfinite(number := float(value)):
                return number
    raise RolloutError(f"'env_reward' must be a finite number, got {_describe_value(value)}")


def _describe_value(value: Any) -> str:
    try:
        return f"{type(value).__name__}: {value!r:.60}"
    except ValueError:  # an integer too long to print
        return type(value).__name__


def compute_prompt_key(sample: Sample) -> str | None:
    """What makes two samples answers to the same prompt when no column says so.

    The conversation up to the first assistant message, else the prompt's text; ``None`` for a
    sample that has neither: it is like no other.
    """
    opening = []
    for message in sample.messages or []:
        if message.get("role") == "assistant":
            break
        opening.append((message.get("role"), message.get("content")))
    if opening:
        return msgspec.json.encode(opening, order="deterministic").decode()
    return sample.prompt or None
