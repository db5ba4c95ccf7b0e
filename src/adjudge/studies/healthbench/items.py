"""HealthBench's rows with their rubrics, and files of answers joined to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError, GradingFailure, RolloutError
from adjudge.rollouts.guess import conversation
from adjudge.rollouts.lists import LIST
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.rollouts.messages import content_text
from adjudge.rollouts.rows import read_rows
from adjudge.rubrics import Rubric, rubric_from, score_range
from adjudge.studies.ifeval.files import Problem, tolerant_rows

__all__ = ["Answer", "Item", "JoinBy", "read_answers", "read_items"]

JoinBy = Literal["prompt", "key"]

_RUBRICS = ("rubrics", "rubric", "reward_model.rubrics", "extra_info.reward_model.rubrics")
_KEYS = ("prompt_id", "key", "id")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation to be answered, and what a good answer has.

    ``key``: the row's ``prompt_id``, ``key`` or ``id``, else its number from 0. ``place`` is what
    answers are joined by. ``themes``: tags of the whole row, such as ``theme:hedging``.
    """

    key: str
    place: str
    turns: list[dict[str, Any]]
    rubric: Rubric
    themes: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer; ``failure`` is the kind of what kept it from being made (``text`` is then "")."""

    place: str
    sample: int
    text: str
    line: int
    cut: bool = False
    failure: str = ""


def read_items(path: Path, by: JoinBy) -> list[Item]:
    """The rows of a HealthBench file: ``prompt`` (chat messages) and a rubric each.

    The rubric is ``rubrics`` (or ``rubric``, or in ``reward_model`` as verl has it): a list of
    ``{criterion, points, tags}``; tags are an object, or a list such as ``["axis:accuracy"]``.
    ``example_tags`` are the row's own. Raises :class:`ConfigError` for a row that is broken or
    has nothing to earn, and for two rows with the same prompt (by which answers are joined) or the
    same key: the rows are the benchmark, so none is left out in silence.
    """
    items: list[Item] = []
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(read_rows([path])):
        if isinstance(row, RolloutError):
            raise ConfigError(str(row))
        item = _item(row, where, number, by)
        for name, place in {by: item.place, "key": item.key}.items():
            if (first := seen.setdefault(f"{name} {place}", where)) != where:
                which = "" if name == by else f" ({place[:80]!r})"
                raise ConfigError(f"{where}: the same {name}{which} as {first}; keep one")
        items.append(item)
    if not items:
        raise ConfigError(f"{path}: has no rows")
    return items


def _item(row: Mapping[str, Any], where: str, number: int, by: JoinBy) -> Item:
    prompt = _prompt(row)
    if prompt is None:
        raise ConfigError(
            f"{where}: prompt: must be chat messages or a text; found columns "
            f"{', '.join(map(str, row))[:200]}"
        )
    found = (get_path(row, path) for path in _RUBRICS)
    given = next((one for one in found if one is not MISSING and one is not None), None)
    try:
        rubric = msgspec.structs.replace(
            rubric_from(given, where=where), scheme="points", clip=False
        )
    except GradingFailure as error:
        raise ConfigError(f"{error} (rubrics: {{criterion, points, tags}} each)") from None
    if score_range(rubric) is None:
        raise ConfigError(f"{where}: has no criterion of positive points, so nothing to earn")
    key = _key(row) or str(number)
    tags = row.get("example_tags") or ()
    return Item(
        key=key,
        place=key if by == "key" else _placed(prompt),
        turns=prompt,
        rubric=rubric,
        themes=tuple(tag for tag in tags if isinstance(tag, str)),
    )


def _prompt(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """A prompt as chat messages; a text is one of the user's, unless it is their JSON."""
    prompt = row.get("prompt")
    if chat := conversation(prompt):
        return chat
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) and prompt else None


def _placed(turns: list[dict[str, Any]]) -> str:
    return json.dumps([[str(t.get("role")), content_text(t.get("content"))] for t in turns])


def _key(row: Mapping[str, Any]) -> str:
    found = (row.get(name) for name in _KEYS)
    return next((str(one) for one in found if isinstance(one, str | int)), "")


def read_answers(path: Path, by: JoinBy) -> tuple[list[Answer], list[Problem]]:
    """The answers of a file, and what was wrong with its other lines.

    ``response`` a row (or a list ``responses``), with ``prompt`` as the benchmark has it, or a
    key. Several to one prompt are its samples, numbered by ``sample`` or in order. A null in a list
    could not be made (``unknown``). Raises :class:`ConfigError` for a file without any.
    """
    problems: list[Problem] = []
    found: dict[tuple[str, int], Answer] = {}
    counted: dict[str, int] = {}
    for line, row in tolerant_rows(path, problems):
        prompt = _prompt(row) if by == "prompt" else None
        place = _key(row) if by == "key" else _placed(prompt) if prompt else ""
        if not place:
            problems.append(Problem(str(path), line, f"has no {by} to join by"))
            continue
        for text, failure in _texts(row):
            if text is None and not failure:
                problems.append(Problem(str(path), line, "has no 'response' that is text"))
                continue
            sample = row.get("sample")
            if type(sample) is not int or isinstance(row.get(LIST), list):
                sample = counted.get(place, 0)
                counted[place] = sample + 1
            found[place, sample] = Answer(
                place=place,
                sample=sample,
                text=text or "",
                line=line,
                cut=row.get("finish_reason") == "length",
                failure=failure,
            )
    if not found:
        first = f" (line {problems[0].line}: {problems[0].reason})" if problems else ""
        raise ConfigError(f"{path}: has no responses{first}")
    return list(found.values()), problems


def _texts(row: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """The texts of a row, and the kind of failure where there is none."""
    error = row.get("error")
    if isinstance(error, Mapping):
        yield None, str(error.get("kind", "unknown"))[:40]
        return
    many = row.get(LIST)
    for one in many if isinstance(many, list) else [row.get("response")]:
        unmade = one is None and isinstance(many, list)
        yield (one if isinstance(one, str) else None), "unknown" if unmade else ""
