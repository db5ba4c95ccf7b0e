"""Rows of published data sets as preferences: every pair of answers of which one is better."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations
from typing import Any

from adjudge.datasets.columns import check_answers, make_preference
from adjudge.datasets.files import RawColumns
from adjudge.datasets.published import (
    PAIR_COLUMNS,
    RATING_COLUMNS,
    RowFormat,
    parse_pair,
    read_answers,
)
from adjudge.datasets.rows import (
    BrokenRow,
    Comparison,
    LoadedRows,
    Preference,
    Rating,
    RowProblem,
    RowProblems,
)
from adjudge.errors import RolloutError

MAX_PAIRS_PER_PROMPT = 1_000
"""Pairs made from one prompt; one with more answers than that is a problem, not a flood."""


def parse_answered_pair(row: RawColumns, where: str, *, form: Any) -> Comparison:
    """One comparison of published pairs; both answers must say something."""
    return check_answers(parse_pair(row, where, form), *PAIR_COLUMNS[form].answers)


def parse_preferences(row: RawColumns, where: str, form: RowFormat) -> list[Preference]:
    """Every pair of answers in one row of which one is better.

    The ``margin`` of ``ultrafeedback`` is the difference of the ratings. A row without such a pair,
    as a tie is, is a broken row.
    """
    found = read_answers(row, where, form)
    alike = sum(count**2 for count in Counter(found.ratings).values())
    if (number := (len(found.ratings) ** 2 - alike) // 2) > MAX_PAIRS_PER_PROMPT:
        key, most = RATING_COLUMNS[form], f"{MAX_PAIRS_PER_PROMPT} pairs or fewer"
        raise BrokenRow(key, f"{number:,} pairs", most)
    pairs: list[Preference] = []
    rated = zip(found.conversations, found.ratings, strict=True)
    for (one, own), (other, its) in combinations(rated, 2):
        if own is None or its is None or own == its:
            continue
        better, worse = (one, other) if own > its else (other, one)
        margin = abs(own - its) if form == "ultrafeedback" else found.margin
        fields = {"where": found.where, "subset": found.subset}
        pair = make_preference(better, worse, margin, fields)
        own_sides = form in ("preference", "openai-preference")  # who reads them checks them
        pairs.append(pair if own_sides else check_answers(pair, "chosen", "rejected"))
    if not pairs:
        raise BrokenRow(RATING_COLUMNS[form], "a tie", "one answer that is better")
    return pairs


def pair_ratings(rated: LoadedRows[Rating]) -> LoadedRows[Preference]:
    """Any two answers to the same prompt with different ratings; other pairs are problems."""
    by_prompt: dict[str, list[Rating]] = defaultdict(list)
    for one in rated.rows:
        by_prompt[repr(one.messages[:-1])].append(one)
    pairs: list[Preference] = []
    for answers in by_prompt.values():
        _pair_up(answers, pairs, rated.problems)
    return LoadedRows(pairs, rated.problems)


def _pair_up(answers: list[Rating], pairs: list[Preference], problems: RowProblems) -> None:
    count, found = len(answers), "no other answer to it"
    if count < 2 or count * (count - 1) // 2 > MAX_PAIRS_PER_PROMPT:
        found = found if count < 2 else f"{count:,} answers to it"
        allowed = f"two or more answers, {MAX_PAIRS_PER_PROMPT} pairs or fewer"
        problems.add(RowProblem(answers[0].where, "prompt", found, allowed))
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


def unreadable_row_problem(where: str, error: RolloutError) -> RowProblem:
    """The problem of a row that is not even an object."""
    reason = str(error).removeprefix(f"{where}: ")
    return RowProblem(where, "row", f"something else ({reason})", "a JSON object")
