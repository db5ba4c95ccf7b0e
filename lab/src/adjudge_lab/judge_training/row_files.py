"""Files of rows that judges are trained on, read and checked.

A file in one of the published formats (:mod:`adjudge.datasets.published`) is known by its columns;
others have adjudge's own names or the usual ones:

================  ==========================================================================
demonstrations    ``messages``
preferences       ``chosen``, ``rejected``, perhaps ``margin``
ratings           ``messages``, or ``prompt`` and ``response``; ``label`` 0 to 4
comparisons       ``prompt``, ``a``, ``b``, ``label`` A, B or tie
all               perhaps ``subset``
================  ==========================================================================

A conversation is a list of chat messages or the JSON text of one; a prompt may be plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar, get_args

from adjudge.datasets.files import FileRow, RawColumns, read_rows
from adjudge.datasets.published import (
    PAIR_COLUMNS,
    PublishedFormat,
    match_formats,
    parse_answered_pair,
    parse_helpsteer2,
    parse_preference,
    parse_preferences,
)
from adjudge.datasets.rows import (
    PREFERENCE_LABELS,
    BrokenRow,
    ChatMessages,
    Comparison,
    DatasetRow,
    Demonstration,
    LoadedRows,
    Preference,
    Rating,
    RowProblems,
    check_answers,
    check_conversation,
    check_ends_with_answer,
    check_prompt,
    check_rating,
    check_text,
    describe_found,
    pair_ratings,
    render_transcript,
    source_fields,
    split_answers,
    unreadable_row_problem,
)
from adjudge.errors import ConfigError, RolloutError
from adjudge.prompts import clean_text
from adjudge.text import split_words

_T = TypeVar("_T")
_R = TypeVar("_R", bound=DatasetRow)
DataPaths = Sequence[Path | str]

_ROWS_INSPECTED = 1000
_ROWS_OF_FORMAT = 100

_USUAL_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "conversation", "conversations"),
    "prompt": ("prompt", "question", "query", "instruction"),
    "response": ("response", "answer", "completion", "output"),
    "a": ("a", "response_a", "answer_a"),
    "b": ("b", "response_b", "answer_b"),
    "label": ("label", "rating", "better", "winner"),
}


def find_format(paths: DataPaths) -> PublishedFormat | None:
    """The one format that the first rows have, all of them; ``None``: none, or not certain."""
    found = {tuple(match_formats(row)) for row in _first_rows(paths)}
    matches = found.pop() if len(found) == 1 else ()
    return matches[0] if len(matches) == 1 else None


def holds_preferences(paths: DataPaths) -> bool:
    """Whether files say which of two answers is better, in no order of the two."""
    columns = {column for row in _first_rows(paths) for column in row}
    unordered = ("helpsteer2", "ultrafeedback", "arena-conversations", "openai-preference")
    return columns >= {"chosen", "rejected"} or find_format(paths) in unordered


def _first_rows(paths: DataPaths) -> list[RawColumns]:
    head = islice(read_rows(paths), _ROWS_OF_FORMAT)
    return [row for _, row in head if not isinstance(row, RolloutError)]


def read_demonstrations(
    paths: DataPaths, *, messages_key: str | None = None
) -> LoadedRows[Demonstration]:
    """Conversations to imitate; ``messages_key`` is ``multiturn.messages_key`` of a run file.

    A row that is broken in any way gives no demonstration but a problem. Raises
    :class:`ConfigError` for files or columns that are not there.
    """
    column = messages_key or "messages"
    names, rows = _find_columns(paths, [column])

    def build(row: RawColumns, where: str) -> Demonstration:
        key = names[column]
        messages = check_ends_with_answer(check_conversation(row.get(key), key), key)
        shown = Demonstration(messages=messages, **source_fields(row, where, names))
        return check_answers(shown, key)

    return load_rows(rows, build)


def read_preferences(paths: DataPaths) -> LoadedRows[Preference]:
    """Every pair of answers to one prompt of which one is better.

    Of our own columns and of HH one a row: both sides must begin with the same question, differ,
    and end with an answer; ``margin`` must be finite and not negative. ``helpsteer2``: answers to
    the same prompt, ``margin`` the difference in helpfulness; equally helpful ones are problems.
    Of other formats as :func:`parse_preferences` says. Raises as :func:`read_demonstrations` does.
    """
    form = _published_format(paths, "preferences", get_args(PublishedFormat))
    if form == "helpsteer2":
        return pair_ratings(load_rows(read_rows(paths), parse_helpsteer2))
    if form is not None:
        nested = load_rows(read_rows(paths), partial(parse_preferences, form=form))
        return LoadedRows(list(chain.from_iterable(nested.rows)), nested.problems)
    names, rows = _find_columns(paths, ["chosen", "rejected"], ["margin"])

    def build(row: RawColumns, where: str) -> Preference:
        return check_answers(parse_preference(row, where, names), "chosen", "rejected")

    return load_rows(rows, build)


def read_ratings(paths: DataPaths) -> LoadedRows[Rating]:
    """Answers with a quality from 0 to 4 (whole numbers; ``3.0`` is one).

    The conversation is one column, or a prompt and a response; of ``helpsteer2`` the label is the
    helpfulness. Raises as :func:`read_demonstrations` does.
    """
    if _published_format(paths, "ratings", ["helpsteer2"]):
        return load_rows(read_rows(paths), parse_helpsteer2)
    names, rows = _find_columns(paths, ["label"], ["messages", "prompt", "response"])
    if "messages" not in names and not {"prompt", "response"} <= names.keys():
        raise _missing_column("messages (or prompt and response)", paths, rows)
    column = names.get("messages", "messages")

    def build(row: RawColumns, where: str) -> Rating:
        if "messages" in names:
            messages = check_conversation(row.get(column), column)
        else:
            messages = check_prompt(row.get(names["prompt"]), names["prompt"])
            answer = check_text(row.get(names["response"]), names["response"])
            messages = [*messages, {"role": "assistant", "content": answer}]
        rated = Rating(
            messages=check_ends_with_answer(messages, column),
            label=check_rating(row.get(names["label"]), names["label"]),
            **source_fields(row, where, names),
        )
        return check_answers(rated, column)

    return load_rows(rows, build)


def read_comparisons(paths: DataPaths) -> LoadedRows[Comparison]:
    """Two answers to one prompt, and which is better: exactly ``A``, ``B`` or ``tie``.

    Those of published pairs are in the order of the file. Raises as :func:`read_demonstrations`
    does.
    """
    if form := _published_format(paths, "comparisons", list(PAIR_COLUMNS)):
        return load_rows(read_rows(paths), partial(parse_answered_pair, form=form))
    names, rows = _find_columns(paths, ["prompt", "a", "b", "label"])

    def build(row: RawColumns, where: str) -> Comparison:
        label = row.get(names["label"])
        if label not in PREFERENCE_LABELS:
            raise BrokenRow(
                names["label"], describe_found(label, label=True), ", ".join(PREFERENCE_LABELS)
            )
        return Comparison(
            prompt=check_prompt(row.get(names["prompt"]), names["prompt"]),
            a=check_text(row.get(names["a"]), names["a"]),
            b=check_text(row.get(names["b"]), names["b"]),
            label=label,
            **source_fields(row, where, names),
        )

    return load_rows(rows, build)


def _published_format(
    paths: DataPaths, kind: str, allowed: Sequence[PublishedFormat]
) -> PublishedFormat | None:
    """The format of files that are not in our own columns."""
    form = find_format(paths)
    if form is None or form == "preference":
        return None
    if form not in allowed:
        raise ConfigError(
            f"{kind} cannot be made from rows of this shape (found {form}; allowed: "
            f"{', '.join(allowed)})"
        )
    return form


def load_rows(rows: Iterable[FileRow], build: Callable[[RawColumns, str], _T]) -> LoadedRows[_T]:
    """What ``build`` makes of each row, and the problems of the rows it raised for."""
    good: list[_T] = []
    problems = RowProblems()
    for where, row in rows:
        if isinstance(row, RolloutError):
            problems.add(unreadable_row_problem(where, row))
            continue
        try:
            good.append(build(row, where))
        except BrokenRow as problem:
            problems.add(problem.problem_at(where))
    return LoadedRows(good, problems)


def _find_columns(
    paths: DataPaths, required: Sequence[str], optional: Sequence[str] = ()
) -> tuple[dict[str, str], Iterable[FileRow]]:
    """``{field: column}`` by own and usual names, and all the rows."""
    rows = iter(read_rows(paths))
    first = list(islice(rows, _ROWS_INSPECTED))
    columns = dict.fromkeys(c for _, row in first if isinstance(row, dict) for c in row)
    wanted = [*required, *optional, "subset"]
    if not columns:  # every row is broken, or there is none: the problems say so
        return {field: field for field in wanted[:-1]}, chain(first, rows)
    names: dict[str, str] = {}
    for field in wanted:
        usual = [name for name in _USUAL_COLUMNS.get(field, ()) if name in columns]
        if field in columns:
            usual = [field]
        if len(usual) > 1:
            raise ConfigError(
                f"{paths[0]}: several columns may be {field} (found {', '.join(usual)}). Rename "
                f"the one you mean to {field}."
            )
        if usual:
            names[field] = usual[0]
        elif field in required:
            raise _missing_column(field, paths, first)
    return names, chain(first, rows)


def _missing_column(field: str, paths: DataPaths, rows: Iterable[FileRow]) -> ConfigError:
    columns = dict.fromkeys(c for _, row in rows if isinstance(row, dict) for c in row)
    return ConfigError(
        f"{paths[0]}: there is no column for {field} (columns: {', '.join(columns)[:300]}). Rename "
        "the one you mean."
    )


def drop_repeated_rows(rows: Sequence[_R]) -> tuple[list[_R], dict[str, int]]:
    """The first of equal rows; how many were left out, and how many of these contradict it."""
    kept: dict[bytes, _R] = {}
    contradicting = 0
    for row in rows:
        prompt, answers = split_answers(row)
        key = _digest(_words(prompt), *sorted(map(_words, answers)))
        contradicting += _label(kept.setdefault(key, row)) != _label(row)
    return list(kept.values()), {"rows": len(rows) - len(kept), "contradicting": contradicting}


def rows_seen_in(train: Sequence[DatasetRow], rows: Sequence[DatasetRow]) -> set[int]:
    """The places of the ``rows`` of which ``train`` has the prompt with one of the answers."""
    seen = {digest for row in train for digest in _prompts_with_answer(row)}
    return {
        place for place, row in enumerate(rows) if not seen.isdisjoint(_prompts_with_answer(row))
    }


def _prompts_with_answer(row: DatasetRow) -> Iterator[bytes]:
    prompt, answers = split_answers(row)
    asked = _words(prompt)
    return (_digest(asked, _words(answer)) for answer in answers)


def _words(messages: ChatMessages) -> str:
    return " ".join(split_words(clean_text(render_transcript(messages)), signs=True))


def _digest(*parts: str) -> bytes:
    # Words and signs hold no white space, so the joined text cuts in one way only.
    return blake2b("\n".join(parts).encode(), digest_size=16).digest()


def _label(row: DatasetRow) -> object:
    """What a row says about its answers, whatever their order."""
    if isinstance(row, Demonstration):
        return None
    if isinstance(row, Rating):
        return row.label
    if isinstance(row, Preference):
        return _words(split_answers(row)[1][0])
    better = {"A": row.a, "B": row.b, "tie": None}[row.label]
    return better and _words([{"role": "assistant", "content": better}])
