"""Dumps of judge prompts: a row for each, with what the judge said and scored, as far as known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, GradingFailure
from adjudge.rollouts.guess import conversation
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.rollouts.messages import content_text
from adjudge.rubrics import Criterion, Rubric, rubric_from
from adjudge.studies.ifeval.files import Problem, tolerant_rows

__all__ = ["FIELDS", "Dumped", "points_in", "read_dump"]

FIELDS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("actual_queried_message_list", "messages", "prompt_text", "judge_prompt", "prompt"),
    "response": ("response_text", "judge_text", "judge_response", "response", "completion"),
    "score": ("score",),
    "judge": ("judge",),
    "id": ("id",),
    "source": ("source", "data_source"),
    "rubrics": ("rubrics",),
}
"""Where each field is looked for: in ``judge_debug``, then in the row."""

_INSIDE = "judge_debug"
_LARGEST = 1e15
"""In size; a recorded score beyond is none."""
_OPEN, _CLOSE = "<Rubrics>", "</Rubrics>"
_POINTS = re.compile(r"^([0-9]{1,3})\. \(points: (-?[0-9]{1,6}(?:\.[0-9]{1,6})?)\)", re.MULTILINE)


class Dumped(msgspec.Struct, frozen=True, kw_only=True):
    """One dumped prompt.

    ``messages`` is what the judge was shown, ``sha`` its SHA-256; ``item`` what it is about
    (``id``, else the sha). ``said`` is the recorded reply and ``recorded`` the recorded score, both
    ``None`` where there is none. ``rubric``: the criteria and points of a prompt that asks for
    marks by number.
    """

    line: int
    item: str
    judge: str
    source: str
    sha: str
    messages: list[dict[str, Any]]
    said: str | None = None
    recorded: float | None = None
    rubric: Rubric | None = None

    @property
    def text(self) -> str:
        """All that the judge was shown, as one text."""
        return "\n\n".join(content_text(one.get("content")) for one in self.messages)


def read_dump(
    path: Path, mapping: Mapping[str, str] | None = None
) -> tuple[list[Dumped], list[Problem]]:
    """The prompts of a dump as far as it is good, and what was wrong with the other lines.

    ``mapping`` names columns (dots reach into them) where :data:`FIELDS` does not find them. Raises
    :class:`ConfigError` for a field that is none, and for a file without any prompt.
    """
    mapping = mapping or {}
    if unknown := [name for name in mapping if name not in FIELDS]:
        raise ConfigError(f"--map {unknown[0]}: is no field (allowed: {', '.join(FIELDS)})")
    problems: list[Problem] = []
    found = list(_read(path, mapping, problems))
    if not found:
        first = f" (line {problems[0].line}: {problems[0].reason})" if problems else ""
        raise ConfigError(f"{path}: has no judge prompts{first}")
    return found, problems


def _read(path: Path, mapping: Mapping[str, str], problems: list[Problem]) -> Iterator[Dumped]:
    for line, row in tolerant_rows(path, problems):
        messages = _messages(_field(row, "prompt", mapping))
        if messages is None:
            looked = mapping.get("prompt") or ", ".join(FIELDS["prompt"])
            problems.append(Problem(str(path), line, f"has no prompt (looked for {looked})"))
            continue
        try:
            rubric = _rubric(_field(row, "rubrics", mapping), messages)
        except (ConfigError, GradingFailure) as error:
            problems.append(Problem(str(path), line, f"its rubric cannot be used: {error}"))
            continue
        sha = sha256(msgspec.json.encode(messages, order="deterministic")).hexdigest()
        name = _field(row, "id", mapping)
        said = _field(row, "response", mapping)
        yield Dumped(
            line=line,
            item=_item(name) or sha[:16],
            judge=_label(_field(row, "judge", mapping)),
            source=_label(_field(row, "source", mapping)),
            sha=sha,
            messages=messages,
            said=said if isinstance(said, str) else None,
            recorded=_number(_field(row, "score", mapping)),
            rubric=rubric,
        )


def _field(row: Mapping[str, Any], field: str, mapping: Mapping[str, str]) -> Any:
    if field in mapping:
        value = get_path(row, mapping[field])
        return None if value is MISSING else value
    inside = row.get(_INSIDE)
    for place in (inside, row) if isinstance(inside, dict) else (row,):
        for name in FIELDS[field]:
            if place.get(name) is not None:
                return place[name]
    return None


def _messages(value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, str) and value.strip():
        return [{"role": "user", "content": value}]
    return conversation(value) if isinstance(value, list) else None


def _item(name: Any) -> str:
    if isinstance(name, int) and abs(name) < _LARGEST:
        return str(name)
    return name[:200] if isinstance(name, str) else ""


def _label(value: Any) -> str:
    return value[:120] if isinstance(value, str) and value else "–"


def _number(value: Any) -> float | None:
    if not isinstance(value, bool | int | float) or abs(value) > _LARGEST:
        return None
    return None if math.isnan(value) else float(value)


def _rubric(given: Any, messages: Sequence[Mapping[str, Any]]) -> Rubric | None:
    """The row's rubric, else the one that the prompt lists; a negative score of it becomes 0."""
    if isinstance(given, list) and given:
        rubric = rubric_from(given)
    elif points := points_in("\n\n".join(content_text(one.get("content")) for one in messages)):
        criteria = (Criterion(f"criterion {n}", str(n), p) for n, p in enumerate(points, 1))
        rubric = Rubric(tuple(criteria))
    else:
        return None
    return msgspec.structs.replace(rubric, clip=True)


def points_in(prompt: str) -> list[float]:
    r"""The points of the numbered criteria of a prompt: ``2. (points: -3) …``; none without any.

    Where the prompt ends with ``</Rubrics>``, those after the last ``<Rubrics>``. Raises
    :class:`ConfigError` where there are several lists: one may stand in the judged answer.

    >>> points_in("1. (points: 5) Names a dose\n2. (points: -3) Alarms")
    [5.0, -3.0]
    """
    ended = prompt.rstrip()
    if ended.endswith(_CLOSE):
        prompt = ended[max(0, ended.rfind(_OPEN)) :]
    points: list[float] = []
    for found in _POINTS.finditer(prompt):
        number = int(found[1])
        if number == 1 and points:
            raise ConfigError("the prompt has several lists of points; give the row's rubrics")
        if number == len(points) + 1:
            points.append(float(found[2]))
    return points
