"""Rows of published data sets as preferences: every pair of answers of which one is better."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, product
from typing import Any, TypeVar

from adjudge.datasets.columns import check_answers, make_preference
from adjudge.datasets.files import RawColumns
from adjudge.datasets.published import (
    PAIR_COLUMNS,
    RowFormat,
    parse_arena_conversations,
    parse_openai_preference,
    parse_pair,
    parse_preference,
    parse_rewardbench2,
    parse_ultrafeedback,
)
from adjudge.datasets.rows import (
    BrokenRow,
    ChatMessages,
    Comparison,
    LoadedRows,
    Preference,
    PreferenceLabel,
    Rating,
    RowProblem,
    RowProblems,
    SourcedRow,
)
from adjudge.errors import RolloutError

_T = TypeVar("_T")

MAX_PAIRS_PER_PROMPT = 1_000
"""Pairs made from one prompt; one with more answers than that is a problem, not a flood."""


def parse_answered_pair(row: RawColumns, where: str, *, form: Any) -> Comparison:
    """One comparison of published pairs, both of whose answers say something."""
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
    pair = parse_answered_pair(row, where, form=form)
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


def unreadable_row_problem(where: str, error: RolloutError) -> RowProblem:
    """The problem of a row that is not even an object."""
    reason = str(error).removeprefix(f"{where}: ")
    return RowProblem(where, "row", f"something else ({reason})", "a JSON object")
