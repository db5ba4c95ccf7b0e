"""Files of rows that judges are trained on, read and checked.

A file in one of the published formats (:mod:`adjudge.datasets.published`) is known by its columns;
others have adjudge's own.

Columns go by their own names (the keyword arguments say which) or by the usual ones:

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

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, islice, product
from pathlib import Path
from typing import Any, TypeVar, get_args

from adjudge.config import suggest_name
from adjudge.datasets.columns import (
    check_answers,
    check_conversation,
    check_ends_with_answer,
    check_prompt,
    check_rating,
    check_text,
    make_preference,
    source_fields,
)
from adjudge.datasets.files import FileRow, RawColumns, read_rows
from adjudge.datasets.published import (
    PAIR_COLUMNS,
    PublishedFormat,
    RowFormat,
    match_formats,
    parse_arena_conversations,
    parse_helpsteer2,
    parse_openai_preference,
    parse_pair,
    parse_preference,
    parse_rewardbench2,
    parse_ultrafeedback,
)
from adjudge.datasets.rows import (
    PREFERENCE_LABELS,
    BrokenRow,
    ChatMessages,
    Comparison,
    Demonstration,
    LoadedRows,
    Preference,
    PreferenceLabel,
    Rating,
    RowProblem,
    RowProblems,
    SourcedRow,
    describe_found,
)
from adjudge.errors import ConfigError, RolloutError

_T = TypeVar("_T")
DataPaths = Sequence[Path | str]

MAX_PAIRS_PER_PROMPT = 1_000
"""Pairs made from one prompt; one with more answers than that is a problem, not a flood."""

_ROWS_INSPECTED = 1000
_ROWS_OF_FORMAT = 100

_USUAL_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "conversation", "conversations"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "margin": ("margin",),
    "prompt": ("prompt", "question", "query", "instruction"),
    "response": ("response", "answer", "completion", "output"),
    "a": ("a", "response_a", "answer_a"),
    "b": ("b", "response_b", "answer_b"),
    "label": ("label", "rating", "better", "winner"),
    "subset": ("subset",),
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
    names, rows = _find_columns(paths, {"messages": messages_key})
    column = names["messages"]

    def build(row: RawColumns, where: str) -> Demonstration:
        messages = check_ends_with_answer(check_conversation(row.get(column), column), column)
        shown = Demonstration(messages=messages, **source_fields(row, where, names))
        return check_answers(shown, column)

    return load_rows(rows, build)


def read_preferences(
    paths: DataPaths,
    *,
    chosen_key: str | None = None,
    rejected_key: str | None = None,
    margin_key: str | None = None,
) -> LoadedRows[Preference]:
    """Every pair of answers to one prompt of which one is better.

    Of our own columns and of HH one a row: both sides must begin with the same question, differ,
    and end with an answer; ``margin`` must be finite and not negative. ``helpsteer2``: answers to
    the same prompt, ``margin`` the difference in helpfulness; equally helpful ones are problems.
    Of other formats as :func:`parse_preferences` says. Raises as :func:`read_demonstrations` does.
    """
    given = {"chosen": chosen_key, "rejected": rejected_key}
    form = _published_format(paths, "preferences", get_args(PublishedFormat), given.values())
    if form == "helpsteer2":
        return pair_ratings(load_rows(read_rows(paths), parse_helpsteer2))
    if form is not None:
        nested = load_rows(read_rows(paths), partial(parse_preferences, form=form))
        return LoadedRows(list(chain.from_iterable(nested.rows)), nested.problems)
    names, rows = _find_columns(paths, given, {"margin": margin_key})

    def build(row: RawColumns, where: str) -> Preference:
        pair = parse_preference(row, where, names)
        return check_answers(pair, names["chosen"], names["rejected"])

    return load_rows(rows, build)


def read_ratings(
    paths: DataPaths,
    *,
    messages_key: str | None = None,
    prompt_key: str | None = None,
    response_key: str | None = None,
    label_key: str | None = None,
) -> LoadedRows[Rating]:
    """Answers with a quality from 0 to 4 (whole numbers; ``3.0`` is one).

    The conversation is one column, or a prompt and a response; of ``helpsteer2`` the label is the
    helpfulness. Raises as :func:`read_demonstrations` does.
    """
    given = {"messages": messages_key, "prompt": prompt_key, "response": response_key}
    if _published_format(paths, "ratings", ["helpsteer2"], (*given.values(), label_key)):
        return load_rows(read_rows(paths), parse_helpsteer2)
    names, rows = _find_columns(paths, {"label": label_key}, given)
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


def read_comparisons(
    paths: DataPaths,
    *,
    prompt_key: str | None = None,
    a_key: str | None = None,
    b_key: str | None = None,
    label_key: str | None = None,
) -> LoadedRows[Comparison]:
    """Two answers to one prompt, and which is better: exactly ``A``, ``B`` or ``tie``.

    Those of published pairs are in the order of the file. Raises as :func:`read_demonstrations`
    does.
    """
    given = {"prompt": prompt_key, "a": a_key, "b": b_key, "label": label_key}
    if form := _published_format(paths, "comparisons", list(PAIR_COLUMNS), given.values()):
        return load_rows(read_rows(paths), partial(_answered_pair, form=form))
    names, rows = _find_columns(paths, given)

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
    paths: DataPaths,
    kind: str,
    allowed: Sequence[PublishedFormat],
    given: Iterable[str | None],
) -> PublishedFormat | None:
    """The format of files that are not in our own columns, and whose columns are not ``given``."""
    form = None if any(given) else find_format(paths)
    if form is None or form == "preference":
        return None
    if form not in allowed:
        raise ConfigError(
            f"{kind} cannot be made from rows of this shape (found {form}; allowed: "
            f"{', '.join(allowed)})"
        )
    return form


def _answered_pair(row: RawColumns, where: str, *, form: Any) -> Comparison:
    return check_answers(parse_pair(row, where, form), *PAIR_COLUMNS[form].answers)


def parse_preferences(row: RawColumns, where: str, form: RowFormat) -> list[Preference]:
    """Every pair of answers in one row of which one is better.

    ``rewardbench2``: each right answer with each wrong one. ``ultrafeedback``: any two with
    different ratings, ``margin`` their difference. A pair that is a tie is a broken row.
    """
    if form == "rewardbench2":
        return _pairs_of_best(row, where)
    if form == "ultrafeedback":
        return _pairs_of_rated(row, where)
    if form == "arena-conversations":
        battle = parse_arena_conversations(row, where)
        chosen, rejected = _winner_first(battle.a, battle.b, battle.label, "winner")
        made = make_preference(chosen, rejected, None, {"where": where})
        return [check_answers(made, "chosen", "rejected")]
    if form == "preference":
        return [parse_preference(row, where)]
    if form == "openai-preference":
        return [parse_openai_preference(row, where)]
    pair = _answered_pair(row, where, form=form)
    better, worse = _winner_first(pair.a, pair.b, pair.label, PAIR_COLUMNS[form].label)
    return [_text_preference(pair.prompt, better, worse, pair)]


def _winner_first(a: _T, b: _T, label: PreferenceLabel, key: str) -> tuple[_T, _T]:
    if label == "tie":
        raise BrokenRow(key, "a tie", "one answer that is better")
    return (a, b) if label == "A" else (b, a)


def _pairs_of_rated(row: RawColumns, where: str) -> list[Preference]:
    rated = parse_ultrafeedback(row, where)
    _check_pair_count(len(rated.answers), "completions")
    pairs = []
    for (one, own), (other, its) in combinations(zip(rated.answers, rated.ratings, strict=True), 2):
        if own is None or its is None or own == its:
            continue
        better, worse = (one, other) if own > its else (other, one)
        pairs.append(_text_preference(rated.prompt, better, worse, rated, abs(own - its)))
    if not pairs:
        raise BrokenRow("completions", "no two ratings that differ", "a better and a worse answer")
    return pairs


def _pairs_of_best(row: RawColumns, where: str) -> list[Preference]:
    """Each right answer with each wrong one."""
    item = parse_rewardbench2(row, where)
    if (number := len(item.chosen) * len(item.rejected)) > MAX_PAIRS_PER_PROMPT:
        raise BrokenRow("chosen", f"{number:,} pairs", f"{MAX_PAIRS_PER_PROMPT} pairs or fewer")
    return [
        _text_preference(item.prompt, better, worse, item)
        for better, worse in product(item.chosen, item.rejected)
    ]


def _check_pair_count(answers: int, key: str) -> None:
    if answers < 2:
        raise BrokenRow(key, "no other answer to it", "two or more answers")
    if answers * (answers - 1) // 2 > MAX_PAIRS_PER_PROMPT:
        raise BrokenRow(key, f"{answers:,} answers to it", f"{MAX_PAIRS_PER_PROMPT} pairs or fewer")


def _text_preference(
    prompt: ChatMessages,
    better: str,
    worse: str,
    origin: SourcedRow,
    margin: float | None = None,
) -> Preference:
    chosen, rejected = (
        [*prompt, {"role": "assistant", "content": text}] for text in (better, worse)
    )
    fields = {"where": origin.where, "subset": origin.subset}
    return check_answers(make_preference(chosen, rejected, margin, fields), "chosen", "rejected")


def pair_ratings(rated: LoadedRows[Rating]) -> LoadedRows[Preference]:
    """Any two answers to the same prompt whose ratings differ; the others are problems."""
    by_prompt: dict[str, list[Rating]] = defaultdict(list)
    for one in rated.rows:
        by_prompt[repr(one.messages[:-1])].append(one)
    pairs: list[Preference] = []
    for answers in by_prompt.values():
        _pair_up(answers, pairs, rated.problems)
    return LoadedRows(pairs, rated.problems)


def _pair_up(answers: list[Rating], pairs: list[Preference], problems: RowProblems) -> None:
    try:
        _check_pair_count(len(answers), "prompt")
    except BrokenRow as problem:
        problems.add(problem.problem_at(answers[0].where))
        return
    for one, other in combinations(answers, 2):
        try:
            pairs.append(_better_first(one, other))
        except BrokenRow as problem:
            problems.add(problem.problem_at(one.where))


def _better_first(one: Rating, other: Rating) -> Preference:
    if one.label == other.label:
        raise BrokenRow("helpfulness", f"{one.label} for both answers", "different numbers")
    better, worse = (one, other) if one.label > other.label else (other, one)
    margin = float(better.label - worse.label)
    return make_preference(better.messages, worse.messages, margin, {"where": one.where})


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


def unreadable_row_problem(where: str, error: RolloutError) -> RowProblem:
    """The problem of a row that is not even an object."""
    reason = str(error).removeprefix(f"{where}: ")
    return RowProblem(where, "row", f"something else ({reason})", "a JSON object")


def _find_columns(
    paths: DataPaths,
    required: Mapping[str, str | None],
    optional: Mapping[str, str | None] | None = None,
) -> tuple[dict[str, str], Iterable[FileRow]]:
    """``{field: column}`` by given and usual names, and all the rows."""
    rows = iter(read_rows(paths))
    first = list(islice(rows, _ROWS_INSPECTED))
    columns = list(dict.fromkeys(c for _, row in first if isinstance(row, dict) for c in row))
    names: dict[str, str] = {}
    wanted = dict(required) | dict(optional or {})
    for field, given in (wanted | {"subset": None}).items():
        column = _find_column(field, given, columns, paths)
        if column is not None:
            names[field] = column
        elif field in required and columns:
            raise _missing_column(field, paths, first)
    if not columns:  # every row is broken, or there is none: the problems say so
        names |= {field: given or field for field, given in wanted.items()}
    return names, chain(first, rows)


def _find_column(
    field: str, given: str | None, columns: Sequence[str], paths: DataPaths
) -> str | None:
    if given is not None:
        if columns and given not in columns:
            raise ConfigError(
                f"{paths[0]}: there is no column {given!r} for "
                f"{field}{suggest_name(given, columns)} (columns: {', '.join(columns)[:300]})"
            )
        return given
    if field in columns:
        return field
    usual = [name for name in _USUAL_COLUMNS[field] if name in columns]
    if len(usual) > 1:
        raise ConfigError(
            f"{paths[0]}: several columns may be {field} (found {', '.join(usual)}). Rename the "
            f"one you mean to {field}, or, from Python, name it with {field}_key."
        )
    return usual[0] if usual else None


def _missing_column(field: str, paths: DataPaths, rows: Iterable[FileRow]) -> ConfigError:
    columns = dict.fromkeys(c for _, row in rows if isinstance(row, dict) for c in row)
    return ConfigError(
        f"{paths[0]}: there is no column for {field} (columns: {', '.join(columns)[:300]}). Rename "
        f"the one you mean, or, from Python, name it with {field.split(' ', maxsplit=1)[0]}_key."
    )
