r"""Rows of published data sets as rows of judge training.

=============  =============================================================================
helpsteer2     ``prompt``, ``response``, ``helpfulness`` 0 to 4 (more attributes are ignored)
rewardbench2   ``id``, ``prompt``, ``chosen`` and ``rejected`` (lists of texts), ``num_correct``,
               ``subset``
llmbar         ``input``, ``output_1``, ``output_2``, ``label`` 1 or 2
hh             ``chosen``, ``rejected``: "\n\nHuman: … \n\nAssistant: …" texts
=============  =============================================================================

What cannot be converted faithfully is a problem of its row, never mended.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from typing import Any, Literal

from adjudge.datasets import files as chat
from adjudge.datasets.files import RawColumns, RawRow, read_raw_rows
from adjudge.datasets.readers import (
    DataPaths,
    check_rating,
    load_rows,
    make_preference,
    read_preferences,
    source_fields,
)
from adjudge.datasets.rows import (
    BrokenRow,
    ChatMessages,
    Comparison,
    Demonstration,
    LoadedRows,
    Preference,
    Rating,
    RowProblems,
    describe_found,
)
from adjudge.errors import ConfigError, RolloutError

__all__ = [
    "MAX_PAIRS_PER_PROMPT",
    "PUBLISHED_FORMATS",
    "PublishedFormat",
    "detect_format",
    "detect_format_of_rows",
    "read_any_preferences",
    "read_published_comparisons",
    "read_published_demonstrations",
    "read_published_preferences",
    "read_published_ratings",
]

PublishedFormat = Literal["helpsteer2", "rewardbench2", "llmbar", "hh"]
PUBLISHED_FORMATS: Mapping[PublishedFormat, tuple[str, ...]] = {
    "helpsteer2": ("prompt", "response", "helpfulness"),
    "rewardbench2": ("id", "prompt", "chosen", "rejected", "num_correct", "subset"),
    "llmbar": ("input", "output_1", "output_2", "label"),
    "hh": ("chosen", "rejected"),
}
"""The columns by which a shape is known."""

MAX_PAIRS_PER_PROMPT = 1_000
"""Pairs made from one prompt; one with more answers than that is a problem, not a flood."""

_ROWS_INSPECTED = 100


def detect_format(paths: DataPaths) -> PublishedFormat:
    """Which shape the files have; raises :class:`ConfigError` where it is none, or not certain."""
    head = [
        row
        for _, row in islice(read_raw_rows(paths), _ROWS_INSPECTED)
        if not isinstance(row, RolloutError)
    ]
    return detect_format_of_rows(head, str(paths[0]) if paths else "no file")


def detect_format_of_rows(rows: Sequence[RawColumns], name: str) -> PublishedFormat:
    """The one shape that all of ``rows`` have; raises :class:`ConfigError` as `detect_format` does.

    Columns decide, and for ``hh`` also that both are texts that begin with a speaker's name.
    """
    shapes = {tuple(_matching_formats(row)) for row in rows}
    known = ", ".join(
        f"{shape} ({', '.join(PUBLISHED_FORMATS[shape])})" for shape in PUBLISHED_FORMATS
    )
    if len(shapes) > 1:
        raise ConfigError(
            f"{name}: the rows have several shapes (known: {known}). Name the shape, or split the "
            "file."
        )
    [matches] = shapes or {()}
    if len(matches) > 1:
        raise ConfigError(
            f"{name}: the rows fit several shapes (found {' or '.join(matches)}). Name the shape."
        )
    if not matches:
        columns = ", ".join(dict.fromkeys(column for row in rows for column in row))[:300]
        raise ConfigError(
            f"{name}: the rows have no known shape (columns: {columns}; known: {known})"
        )
    return matches[0]


def _matching_formats(row: RawColumns) -> Iterator[PublishedFormat]:
    for shape, columns in PUBLISHED_FORMATS.items():
        if not all(column in row for column in columns):
            continue
        if shape == "hh" and not all(_is_dialogue(row[column]) for column in columns):
            continue
        yield shape


def _is_dialogue(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("\n\nHuman:", "\n\nAssistant:"))


def read_published_ratings(
    paths: DataPaths, shape: PublishedFormat | None = None
) -> LoadedRows[Rating]:
    """One rating a row, its label the helpfulness (``helpsteer2`` only).

    Raises :class:`ConfigError` for another shape.
    """
    _check_format(shape or detect_format(paths), ("helpsteer2",), "ratings")
    return load_rows(read_raw_rows(paths), _helpsteer2_rating)


def read_published_comparisons(
    paths: DataPaths, shape: PublishedFormat | None = None, *, subset: str | None = None
) -> LoadedRows[Comparison]:
    """One comparison a row, in the order of the file (``llmbar`` only).

    ``subset`` names what the file is; LLMBar has a file for each. Raises :class:`ConfigError` for
    another shape: their preferences have no order yet, which ``swap.comparisons_of`` draws.
    """
    _check_format(shape or detect_format(paths), ("llmbar",), "comparisons")

    def build(row: RawColumns, where: str) -> Comparison:
        label = row.get("label")
        if isinstance(label, bool) or label not in (1, 2):
            raise BrokenRow("label", describe_found(label, label=True), "1, 2")
        return Comparison(
            prompt=[_message("user", chat.check_column_text(row.get("input"), "input"))],
            a=chat.check_column_text(row.get("output_1"), "output_1"),
            b=chat.check_column_text(row.get("output_2"), "output_2"),
            label="A" if label == 1 else "B",
            where=where,
            subset=subset,
        )

    return load_rows(read_raw_rows(paths), build)


def read_published_demonstrations(
    paths: DataPaths, shape: PublishedFormat | None = None, *, at_least: int = 4
) -> LoadedRows[Demonstration]:
    """Good answers to imitate: ``hh`` chosen ones, ``helpsteer2`` ones rated ``at_least``.

    Answers rated lower are problems of their rows, counted as such. Raises :class:`ConfigError` for
    another shape.
    """
    shape = shape or detect_format(paths)
    _check_format(shape, ("helpsteer2", "hh"), "demonstrations")

    def from_rating(row: RawColumns, where: str) -> Demonstration:
        rated = _helpsteer2_rating(row, where)
        if rated.label < at_least:
            raise BrokenRow("helpfulness", str(rated.label), f"{at_least} or more (at_least)")
        return Demonstration(messages=rated.messages, where=where)

    def from_dialogue(row: RawColumns, where: str) -> Demonstration:
        messages = _dialogue(row.get("chosen"), "chosen")
        return Demonstration(messages=chat.check_ends_with_answer(messages, "chosen"), where=where)

    return load_rows(read_raw_rows(paths), from_rating if shape == "helpsteer2" else from_dialogue)


def read_published_preferences(
    paths: DataPaths, shape: PublishedFormat | None = None, *, subset: str | None = None
) -> LoadedRows[Preference]:
    """Every pair of answers to one prompt of which one is better.

    ``helpsteer2``: answers to the same prompt, ``margin`` the difference in helpfulness; equally
    helpful ones are problems. ``rewardbench2``: each correct answer with each wrong one,
    ``source_ids`` ``rewardbench2:ID``. ``llmbar`` and ``hh``: one a row. ``subset`` is for the
    shapes that have no such column.
    """
    shape = shape or detect_format(paths)
    if shape == "helpsteer2":
        return _helpsteer2_pairs(read_raw_rows(paths), subset)
    if shape == "rewardbench2":
        return _flatten_rows(load_rows(read_raw_rows(paths), _rewardbench2_pairs))
    if shape == "llmbar":
        return read_published_comparisons(paths, shape, subset=subset).and_then(
            _comparisons_as_preferences
        )

    def from_dialogues(row: RawColumns, where: str) -> Preference:
        sides = [_dialogue(row.get(key), key) for key in ("chosen", "rejected")]
        return make_preference(sides[0], sides[1], None, {"where": where, "subset": subset})

    return load_rows(read_raw_rows(paths), from_dialogues)


def read_any_preferences(paths: DataPaths) -> LoadedRows[Preference]:
    """Preferences in our own columns, or in those of one of the shapes.

    Raises as :func:`~adjudge.datasets.readers.read_preferences` does.
    """
    try:
        shape = detect_format(paths)
    except ConfigError:
        return read_preferences(paths)  # which says what is missing
    return read_published_preferences(paths, shape)


def _comparisons_as_preferences(comparisons: Sequence[Comparison]) -> LoadedRows[Preference]:
    def build(row: RawColumns, where: str) -> Preference:
        comparison: Comparison = row["comparison"]
        better, worse = comparison.a, comparison.b
        if comparison.label == "B":
            better, worse = worse, better
        sides = [[*comparison.prompt, _message("assistant", text)] for text in (better, worse)]
        fields = {"where": where, "subset": comparison.subset}
        return make_preference(sides[0], sides[1], None, fields)

    return load_rows(((c.where, {"comparison": c}) for c in comparisons), build)


def _check_format(shape: PublishedFormat, allowed: Sequence[PublishedFormat], kind: str) -> None:
    if shape not in allowed:
        raise ConfigError(
            f"{kind} cannot be made from rows of this shape (found {shape}; allowed: "
            f"{', '.join(allowed)})"
        )


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


# HelpSteer2: "…<extra_id_1>Assistant\n…<extra_id_1>User\n…" in prompts of several turns.


def _helpsteer2_rating(row: RawColumns, where: str) -> Rating:
    prompt = chat.check_column_text(row.get("prompt"), "prompt")
    answer = chat.check_column_text(row.get("response"), "response")
    label = check_rating(row.get("helpfulness"), "helpfulness")
    messages = [*_extra_id_turns(prompt), _message("assistant", answer)]
    return Rating(messages=messages, label=label, where=where)


def _extra_id_turns(prompt: str) -> ChatMessages:
    first, *rest = prompt.split("<extra_id_1>")
    turns = [_message("user", first.strip("\n"))]
    for number, piece in enumerate(rest, start=1):
        name, role = (("Assistant", "assistant"), ("User", "user"))[(number + 1) % 2]
        said, line, content = piece.partition("\n")
        if not line or said.strip() != name:
            raise BrokenRow(
                "prompt", f"turn {number} of another speaker", f"{name} after <extra_id_1>"
            )
        turns.append(_message(role, content.strip("\n")))
    if turns[-1]["role"] != "user" or not all(turn["content"].strip() for turn in turns):
        raise BrokenRow("prompt", f"{len(turns)} turns", "turns with a text, the user's last")
    return turns


def _helpsteer2_pairs(rows: Iterator[RawRow], subset: str | None) -> LoadedRows[Preference]:
    rated = load_rows(rows, _helpsteer2_rating)
    by_prompt: dict[str, list[Rating]] = defaultdict(list)
    for one in rated.rows:
        by_prompt[repr(one.messages[:-1])].append(one)
    pairs: list[Preference] = []
    for answers in by_prompt.values():
        _pair_up(answers, subset, pairs, rated.problems)
    return LoadedRows(pairs, rated.problems)


def _pair_up(
    answers: list[Rating], subset: str | None, pairs: list[Preference], problems: RowProblems
) -> None:
    first = answers[0].where
    number = len(answers) * (len(answers) - 1) // 2
    if number == 0:
        problems.add(
            BrokenRow("prompt", "no other answer to it", "two or more answers").problem_at(first)
        )
        return
    if number > MAX_PAIRS_PER_PROMPT:
        problem = BrokenRow(
            "prompt", f"{len(answers):,} answers to it", f"{MAX_PAIRS_PER_PROMPT} pairs or fewer"
        )
        problems.add(problem.problem_at(first))
        return
    for one, other in combinations(answers, 2):
        try:
            pairs.append(_better_first(one, other, subset))
        except BrokenRow as problem:
            problems.add(problem.problem_at(one.where))


def _better_first(one: Rating, other: Rating, subset: str | None) -> Preference:
    if one.label == other.label:
        raise BrokenRow("helpfulness", f"{one.label} for both answers", "different numbers")
    better, worse = (one, other) if one.label > other.label else (other, one)
    fields = {"where": one.where, "subset": subset}
    return make_preference(
        better.messages, worse.messages, float(better.label - worse.label), fields
    )


# RewardBench 2: one correct answer and three wrong ones; in the subset Ties several of each.


def _rewardbench2_pairs(row: RawColumns, where: str) -> list[Preference]:
    prompt = chat.check_column_text(row.get("prompt"), "prompt")
    item = row.get("id")
    if type(item) not in (str, int):
        raise BrokenRow("id", describe_found(item), "text or a whole number")
    sides = {key: _texts(row.get(key), key) for key in ("chosen", "rejected")}
    for key, counted in (("chosen", "num_correct"), ("rejected", "num_incorrect")):
        if row.get(counted) not in (None, len(sides[key])):
            raise BrokenRow(
                counted, describe_found(row[counted]), f"{len(sides[key])}, as {key} has"
            )
    if (number := len(sides["chosen"]) * len(sides["rejected"])) > MAX_PAIRS_PER_PROMPT:
        raise BrokenRow("chosen", f"{number:,} pairs", f"{MAX_PAIRS_PER_PROMPT} pairs or fewer")
    fields = source_fields(row, where, {"subset": "subset"}) | {
        "source_ids": (f"rewardbench2:{item}",)
    }
    return [
        make_preference(
            [_message("user", prompt), _message("assistant", better)],
            [_message("user", prompt), _message("assistant", worse)],
            None,
            fields,
        )
        for better, worse in product(sides["chosen"], sides["rejected"])
    ]


def _texts(value: Any, key: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise BrokenRow(key, describe_found(value), "a list of one or more answers")
    return [chat.check_column_text(one, f"{key}[{number}]") for number, one in enumerate(value)]


def _flatten_rows(nested: LoadedRows[list[Preference]]) -> LoadedRows[Preference]:
    return LoadedRows(list(chain.from_iterable(nested.rows)), nested.problems)


# HH-RLHF: both sides as one text each.

_SPEAKER = re.compile(r"\n\n(Human|Assistant):")


def _dialogue(value: Any, key: str) -> ChatMessages:
    pieces = _SPEAKER.split(chat.check_column_text(value, key))
    if pieces[0].strip() or len(pieces) < 3:
        raise BrokenRow(key, "another beginning", r'"\n\nHuman:"')
    turns = []
    for number, (name, content) in enumerate(zip(pieces[1::2], pieces[2::2], strict=True)):
        if name != ("Human", "Assistant")[number % 2]:
            raise BrokenRow(key, f"two turns of {name} in a row", "Human and Assistant in turn")
        turns.append(_message("user" if name == "Human" else "assistant", content.strip()))
    if not all(turn["content"] for turn in turns):
        raise BrokenRow(key, "a turn without text", "turns with a text")
    if len(turns) > chat.MAX_MESSAGES:
        raise BrokenRow(key, f"{len(turns)} turns", f"at most {chat.MAX_MESSAGES}")
    return turns
