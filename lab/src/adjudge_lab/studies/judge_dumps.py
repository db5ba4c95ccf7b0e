"""Dumps of judge prompts, and the judge's replies parsed.

A dump has a row for each prompt, with what the judge said and scored, as far as known. A reply is
read in one of three ways: strictly, anywhere, or strictly and then anywhere.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.messages import content_text, read_prompt
from adjudge.rollouts.nested import rows_at
from adjudge.rubrics import Criterion, Incomplete, Rubric, RubricScore, rubric_from, score
from adjudge.text import separate_thinking
from adjudge.types import MISSING, get_path
from adjudge.verdicts import UnreadableReply, parse_json, read_score
from adjudge_lab.evaluation.responses import FileProblem, first_problem_text, read_tolerant_rows

DUMP_FIELDS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("actual_queried_message_list", "messages", "prompt_text", "judge_prompt", "prompt"),
    "response": ("response_text", "judge_text", "judge_response", "response", "completion"),
    "score": ("score",),
    "judge": ("judge",),
    "id": ("id",),
    "source": ("source", "data_source"),
    "rubrics": ("rubrics",),
}
"""Where each field is looked for: in ``judge_debug``, then in the row."""

_DEBUG_COLUMN = "judge_debug"
_MAX_SCORE_SIZE = 1e15
"""In size; a recorded score beyond is missing."""
_OPEN, _CLOSE = "<Rubrics>", "</Rubrics>"
_POINTS = re.compile(r"^([0-9]{1,3})\. \(points: (-?[0-9]{1,6}(?:\.[0-9]{1,6})?)\)", re.MULTILINE)


class DumpedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One dumped prompt.

    ``messages`` is what the judge was shown, ``sha`` its SHA-256; ``item`` what it is about
    (``id``, else the sha). ``said`` is the recorded reply and ``recorded`` the recorded score, both
    ``None`` if not recorded. ``rubric``: the criteria and points of a prompt that asks for
    marks by number.
    """

    line: int
    item: str
    judge: str
    source: str
    sha: str
    messages: list[dict[str, Any]]
    reply: str | None = None
    recorded: float | None = None
    rubric: Rubric | None = None

    @property
    def text(self) -> str:
        """All that the judge was shown, as one text."""
        return "\n\n".join(content_text(one.get("content")) for one in self.messages)


def read_dump(
    path: Path, mapping: Mapping[str, str] | None = None
) -> tuple[list[DumpedPrompt], list[FileProblem]]:
    """The prompts of a dump as far as it is good, and what was wrong with the other lines.

    ``mapping`` names columns (dots reach into them) where :data:`DUMP_FIELDS` does not find them;
    its ``rows`` is the path to the rows within a record.
    Raises :class:`ConfigError` for an unknown field, and for a file without any prompt.
    """
    mapping = dict(mapping or {})
    within = mapping.pop("rows", None)
    if unknown := [name for name in mapping if name not in DUMP_FIELDS]:
        raise ConfigError(f"--map {unknown[0]}: is not a field (allowed: {', '.join(DUMP_FIELDS)})")
    problems: list[FileProblem] = []
    found = list(_iter_prompts(path, mapping, within, problems))
    if not found:
        raise ConfigError(f"{path}: has no judge prompts{first_problem_text(problems)}")
    return found, problems


def _iter_prompts(
    path: Path, mapping: Mapping[str, str], within: str | None, problems: list[FileProblem]
) -> Iterator[DumpedPrompt]:
    rows = (
        (line, row)
        for line, record in read_tolerant_rows(path, problems)
        for row in (
            [record]
            if within is None
            else [row for _, row in rows_at(record, within, mapping, str(line))]
        )
    )
    for line, row in rows:
        messages = read_prompt(_field(row, "prompt", mapping))
        if messages is None:
            looked = mapping.get("prompt") or ", ".join(DUMP_FIELDS["prompt"])
            problems.append(FileProblem(str(path), line, f"has no prompt (looked for {looked})"))
            continue
        try:
            rubric = _rubric(_field(row, "rubrics", mapping), messages)
        except (ConfigError, GradingFailure) as error:
            problems.append(FileProblem(str(path), line, f"its rubric cannot be used: {error}"))
            continue
        sha = sha256(msgspec.json.encode(messages, order="deterministic")).hexdigest()
        name = _field(row, "id", mapping)
        said = _field(row, "response", mapping)
        yield DumpedPrompt(
            line=line,
            item=_item(name) or sha[:16],
            judge=_label(_field(row, "judge", mapping)),
            source=_label(_field(row, "source", mapping)),
            sha=sha,
            messages=messages,
            reply=said if isinstance(said, str) else None,
            recorded=_number(_field(row, "score", mapping)),
            rubric=rubric,
        )


def _field(row: Mapping[str, Any], field: str, mapping: Mapping[str, str]) -> Any:
    if field in mapping:
        value = get_path(row, mapping[field])
        return None if value is MISSING else value
    inside = row.get(_DEBUG_COLUMN)
    for place in (inside, row) if isinstance(inside, dict) else (row,):
        for name in DUMP_FIELDS[field]:
            if place.get(name) is not None:
                return place[name]
    return None


def _item(name: Any) -> str:
    if isinstance(name, int) and abs(name) < _MAX_SCORE_SIZE:
        return str(name)
    return name[:200] if isinstance(name, str) else ""


def _label(value: Any) -> str:
    return value[:120] if isinstance(value, str) and value else "–"


def _number(value: Any) -> float | None:
    if not isinstance(value, bool | int | float) or abs(value) > _MAX_SCORE_SIZE:
        return None
    return None if math.isnan(value) else float(value)


def _rubric(given: Any, messages: Sequence[Mapping[str, Any]]) -> Rubric | None:
    """The row's rubric, else the one that the prompt lists; a negative score of it becomes 0."""
    if isinstance(given, list) and given:
        rubric = rubric_from(given)
    elif points := parse_points("\n\n".join(content_text(one.get("content")) for one in messages)):
        criteria = (Criterion(f"criterion {n}", str(n), p) for n, p in enumerate(points, 1))
        rubric = Rubric(tuple(criteria))
    else:
        return None
    return dataclasses.replace(rubric, clip=True)


def parse_points(prompt: str) -> list[float]:
    r"""The points of the numbered criteria of a prompt: ``2. (points: -3) …``; none without any.

    Where the prompt ends with ``</Rubrics>``, those after the last ``<Rubrics>``. Raises
    :class:`ConfigError` where there are several lists: one may be in the judged answer.

    >>> parse_points("1. (points: 5) Names a dose\n2. (points: -3) Alarms")
    [5.0, -3.0]
    """
    ended = prompt.rstrip()
    if ended.endswith(_CLOSE):
        prompt = ended[max(0, ended.rfind(_OPEN)) :]
    points: list[float] = []
    for found in _POINTS.finditer(prompt):
        number = int(found[1])
        if number == 1 and points:
            raise ConfigError("the prompt has several lists of points. Give the row's rubrics.")
        if number == len(points) + 1:
            points.append(float(found[2]))
    return points


ParseMode = Literal["strict", "anywhere", "either"]
PARSE_MODES: tuple[ParseMode, ...] = ("strict", "anywhere", "either")
REPLY_FORMS = ("marks", "brackets", "score")

_WORDS = {"PRESENT": True, "NOT_PRESENT": False}
_ANY_WORDS = {"present": True, "not_present": False, "true": True, "false": False}
_LEADING = re.compile(r"\[\[\s?([01])\s?\]\]|([01])\Z")
_BRACKETS = re.compile(r"\[\[\s{0,4}([^\[\]\n]{1,20}?)\s{0,4}\]\]")
_FLAT_OBJECT = re.compile(r"\{[^{}]{1,20000}\}")
_MOST_OBJECTS = 400
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?\Z")


class ReplyForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply is expected to say.

    ``marks``: ``{"1": "PRESENT", "2": "NOT_PRESENT"}``, scored by ``rubric``; ``brackets``:
    ``[[1]]`` or ``[[0]]``; ``score``: ``{"score": …}`` or a number in ``low``..``high``.
    """

    name: str
    rubric: Rubric | None = None
    low: float | None = None
    high: float | None = None


class ParsedReply(msgspec.Struct, frozen=True, kw_only=True):
    """What was read: ``score``, and ``how``; or ``None``, the ``kind`` of failure, and ``why``.

    ``low`` and ``high``: what the score of an incomplete reply lies between.
    """

    score: float | None = None
    how: str = ""
    kind: str = ""
    why: str = ""
    low: float | None = None
    high: float | None = None


def detect_reply_form(
    prompt: str, rubric: Rubric | None, *, name: str | None = None, scale: Any = (None, None)
) -> ReplyForm:
    """The form that a prompt asks for, or the one called ``name``; marks need a rubric.

    Without a name: marks where there is a rubric, brackets where the prompt speaks of ``[[1]]``.
    """
    if name is None:
        name = "marks" if rubric else "brackets" if "[[1]]" in prompt else "score"
    return ReplyForm(name=name, rubric=rubric, low=scale[0], high=scale[1])


def parse_reply(text: str, form: ReplyForm, parse: ParseMode, *, cut: bool = False) -> ParsedReply:
    """Read ``text``, thinking left out; raises nothing.

    ``strict``: the verdict is the whole reply (marks: one object, fenced or not, with every number
    once and only the words PRESENT and NOT_PRESENT; a score: one object or one number), or begins
    it (brackets). ``anywhere``: the first complete object of marks, the first ``[[0]]`` or
    ``[[1]]``; for scores, and marks written otherwise, the readers that graders use. ``either``:
    strictly, else anywhere. ``cut``: the reply ran into its length limit.

    >>> parse_reply("Well: [[1]]", ReplyForm(name="brackets"), "strict").kind
    'unparsable'
    >>> parse_reply("Well: [[1]]", ReplyForm(name="brackets"), "either").score
    1.0
    """
    shown, thought = separate_thinking(text)
    if not shown.strip():
        kind = ErrorKind.TRUNCATED if thought or cut else ErrorKind.UNPARSABLE
        return _failed(kind, "nothing but thinking" if thought else "an empty reply")
    if form.name == "marks" and form.rubric is None:
        return _failed(ErrorKind.INVALID_INPUT, "no rubric, in the row or in the prompt")
    if parse != "anywhere":
        found = _STRICT[form.name](shown.strip(), form)
        if found is not None or parse == "strict":
            return found or _failed(ErrorKind.UNPARSABLE, "not in the form asked for")
    return _ANYWHERE[form.name](shown, form, cut)


def _failed(kind: ErrorKind, why: str) -> ParsedReply:
    return ParsedReply(kind=kind.value, why=why)


def _ids_by_number(rubric: Rubric) -> dict[str, str]:
    """Ids of criteria by the numbers that a prompt gives them."""
    return {str(n): one.id for n, one in enumerate(rubric.criteria, 1)}


def _scored(form: ReplyForm, marks: Mapping[str, Any], how: str) -> ParsedReply:
    rubric = form.rubric
    assert rubric is not None  # noqa: S101  (parse_reply has looked)
    names = _ids_by_number(rubric)
    outcome = score(rubric, {names[n]: mark for n, mark in marks.items() if mark is not None})
    if isinstance(outcome, RubricScore):
        return ParsedReply(score=outcome.score, how=how)
    if isinstance(outcome, Incomplete):
        why = f"{len(outcome.missing)} of {len(names)} criteria have no mark"
        return ParsedReply(
            kind=ErrorKind.INCOMPLETE.value, why=why, low=outcome.low, high=outcome.high
        )
    return _failed(ErrorKind.INVALID_INPUT, "the rubric has no positive points")


def _strict_marks(text: str, form: ReplyForm) -> ParsedReply | None:
    found, rubric = parse_json(text), form.rubric
    if not isinstance(found, dict) or rubric is None:
        return None
    if found.keys() != _ids_by_number(rubric).keys():
        return None
    if not all(isinstance(word, str) and word in _WORDS for word in found.values()):
        return None
    return _scored(form, {n: _WORDS[word] for n, word in found.items()}, "strict")


def _any_marks(text: str, form: ReplyForm, cut: bool) -> ParsedReply:
    assert form.rubric is not None  # noqa: S101  (parse_reply has looked)
    numbers = list(_ids_by_number(form.rubric))
    some: dict[str, bool] = {}
    for one in islice(_FLAT_OBJECT.finditer(text), _MOST_OBJECTS):
        found = parse_json(one[0])
        said = found if isinstance(found, dict) else {}
        words = {n: str(said.get(n)).lower().replace(" ", "_") for n in numbers}
        marks = {n: _ANY_WORDS[word] for n, word in words.items() if word in _ANY_WORDS}
        if len(marks) == len(numbers):
            return _scored(form, marks, "anywhere")
        some = some or marks
    if some and not cut:
        return _scored(form, some, "anywhere")
    return _failed(ErrorKind.TRUNCATED if cut else ErrorKind.UNPARSABLE, "no object of marks")


def _strict_brackets(text: str, _: ReplyForm) -> ParsedReply | None:
    found = _LEADING.match(text)
    return None if found is None else ParsedReply(score=float(found[1] or found[2]), how="strict")


def _any_brackets(text: str, _: ReplyForm, cut: bool) -> ParsedReply:
    others = 0
    for found in _BRACKETS.finditer(text):
        if found[1] in ("0", "1"):
            return ParsedReply(score=float(found[1]), how="anywhere")
        others += 1
    if others:
        return _failed(ErrorKind.OUT_OF_RANGE, "brackets, but neither [[0]] nor [[1]]")
    return _failed(ErrorKind.TRUNCATED if cut else ErrorKind.UNPARSABLE, "no [[0]] and no [[1]]")


def _strict_score(text: str, form: ReplyForm) -> ParsedReply | None:
    found = parse_json(text)
    value = found.get("score") if isinstance(found, dict) else None
    if found is None and _NUMBER.match(text):
        value = float(text)
    if not isinstance(value, int | float) or isinstance(value, bool) or not _within(value, form):
        return None
    return ParsedReply(score=float(value), how="strict")


def _within(value: float, form: ReplyForm) -> bool:
    # A NaN is within nothing.
    return abs(value) <= 1e15 and not (
        (form.low is not None and value < form.low) or (form.high is not None and value > form.high)
    )


def _any_score(text: str, form: ReplyForm, cut: bool) -> ParsedReply:
    found = read_score(text, low=form.low, high=form.high, cut=cut)
    if isinstance(found, UnreadableReply):
        return _failed(found.kind, found.why)
    return ParsedReply(score=float(found.value), how="anywhere")


_STRICT = {"marks": _strict_marks, "brackets": _strict_brackets, "score": _strict_score}
_ANYWHERE = {"marks": _any_marks, "brackets": _any_brackets, "score": _any_score}
