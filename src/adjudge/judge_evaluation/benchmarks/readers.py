"""Benchmark files as items: RewardBench-2, LLMBar, JudgeBench, preference files, recorded judges.

Rows are read as :mod:`adjudge.datasets.published` says. Nothing is repaired: a row that is no item
is a problem, with its place. LLMBar's recorded judges are read as their verdicts in both orders,
judgements of its items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.config import check_allowed
from adjudge.datasets.columns import check_id
from adjudge.datasets.files import RawColumns, read_raw_rows
from adjudge.datasets.published import (
    PAIR_COLUMNS,
    match_formats,
    parse_pair,
    parse_preference,
    parse_rewardbench2,
)
from adjudge.datasets.readers import unreadable_row_problem
from adjudge.datasets.rows import (
    BrokenRow,
    ChatMessages,
    Comparison,
    Preference,
    RowProblem,
    describe_found,
    split_answers,
)
from adjudge.errors import ConfigError, ErrorKind, RolloutError
from adjudge.judge_evaluation.benchmarks.items import (
    BENCHMARK_KINDS,
    Benchmark,
    BenchmarkItem,
    BenchmarkKind,
    BestOfItem,
    Judgement,
    MissingJudgement,
    PairItem,
    PairVerdict,
)
from adjudge.messages import content_text

TIES_SUBSET = "Ties"
"""The RewardBench-2 subset with several right answers."""

REWARDBENCH2_SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES_SUBSET)


def read_benchmark(paths: Sequence[Path], kind: BenchmarkKind | None = None) -> Benchmark:
    """All items of ``paths``, and why the other rows are none.

    ``kind`` is told from the columns of the first whole row where it is not given. The file names
    the subset of rows that name none (``dataset.json`` of LLMBar: its folder does). An id that its
    subset already has is a problem of the later row. Raises
    :class:`~adjudge.errors.ConfigError` for a file that cannot be read, for columns that fit no
    kind, and where no row is an item.
    """
    rows = (
        (where, row, _subset_of_file(path))
        for path in paths
        for where, row in read_raw_rows([path])
    )
    return benchmark_from_rows(rows, kind, source=", ".join(map(str, paths)) or "no file")


def benchmark_from_rows(
    rows: Iterable[tuple[str, RawColumns | RolloutError, str]],
    kind: BenchmarkKind | None = None,
    *,
    source: str = "rows",
) -> Benchmark:
    """Rows that are at hand as items: each with its place and the subset of rows that name none.

    Raises as :func:`read_benchmark` does; ``source`` is what the complaint calls them.
    """
    if kind is not None:
        check_allowed("benchmark", kind, BENCHMARK_KINDS)
    items: dict[tuple[str, str], BenchmarkItem] = {}
    problems: list[RowProblem] = []
    for where, row, subset in rows:
        if isinstance(row, RolloutError):
            problems.append(unreadable_row_problem(where, row))
            continue
        kind = kind or detect_benchmark_kind(row, where)
        try:
            item = _read_item(kind, row, where, subset)
        except BrokenRow as broken:
            problems.append(broken.problem_at(where))
            continue
        if seen := items.get((item.subset, item.id)):
            found = f"{item.id[:80]!r} again"
            problems.append(RowProblem(where, "id", found, f"another than at {seen.where}"))
        else:
            items[item.subset, item.id] = item
    if kind is None or not items:
        first = f"; the first: {problems[0]}" if problems else ""
        raise ConfigError(
            f"{source}: no row is an item of a benchmark ({len(problems)} were unusable{first})"
        )
    return Benchmark(kind=kind, items=list(items.values()), problems=problems, title=kind)


def detect_benchmark_kind(row: RawColumns, where: str) -> BenchmarkKind:
    """The kind whose columns ``row`` has; raises :class:`~adjudge.errors.ConfigError` for none.

    >>> detect_benchmark_kind({"input": "", "output_1": "", "output_2": "", "label": 1}, "x:1")
    'llmbar'
    """
    for kind in match_formats(row):
        if kind != "helpsteer2":
            return kind
    found = ", ".join(sorted(map(str, row))[:12])
    raise ConfigError(
        f"{where}: the columns fit no benchmark (found {found}; allowed: "
        f"{', '.join(BENCHMARK_KINDS)}). Name the kind, or rename the columns."
    )


def _subset_of_file(path: Path) -> str:
    return path.parent.name if path.stem == "dataset" and path.parent.name else path.stem


def _read_item(kind: BenchmarkKind, row: RawColumns, where: str, subset: str) -> BenchmarkItem:
    if kind == "rewardbench2":
        return _best_of_item(row, where)
    if kind == "preference":
        return pair_item(parse_preference(row, where), check_id(row.get("id"), "id"), subset)
    key = PAIR_COLUMNS[kind].id
    return pair_item(parse_pair(row, where, kind), check_id(row.get(key), key), subset)


def _best_of_item(row: RawColumns, where: str) -> BestOfItem:
    """One right and three wrong answers; in Ties any number of each.

    A Ties id is ``ref:N`` (one right answer) or ``tied:N`` (several) for the same prompt N.
    """
    found = parse_rewardbench2(row, where)
    named = {name.lower(): name for name in REWARDBENCH2_SUBSETS}.get((found.subset or "").lower())
    if named is None:
        raise BrokenRow(
            "subset", describe_found(found.subset, label=True), ", ".join(REWARDBENCH2_SUBSETS)
        )
    name = check_id(row.get("id"), "id") or where
    counts = len(found.chosen), len(found.rejected)
    if named == TIES_SUBSET:
        _check_ties(name, counts[0])
    elif counts != (1, 3):
        raise BrokenRow("chosen, rejected", f"{counts[0]} and {counts[1]} answers", "1 and 3")
    return BestOfItem(
        id=name,
        subset=named,
        prompt=found.prompt,
        answers=found.chosen + found.rejected,
        correct=len(found.chosen),
        where=where,
    )


def _check_ties(name: str, correct: int) -> None:
    sort, _, number = name.partition(":")
    plain = number.isascii() and number.isdecimal() and len(number) < 19
    if sort not in ("ref", "tied") or not plain or str(int(number)) != number:
        raise BrokenRow("id", f"{name[:40]!r}", "in Ties 'ref:N' or 'tied:N', N as in 12")
    if (correct == 1) != (sort == "ref"):
        wanted = "1" if sort == "ref" else "2 or more"
        raise BrokenRow("chosen", f"{correct} right answers", f"{wanted} of a {sort!r} prompt")


def pair_item(row: Comparison | Preference, name: str | None, subset: str) -> PairItem:
    """A row as an item; the chosen side of a preference is A, ``subset`` that of a row without one.

    Raises :class:`~adjudge.datasets.rows.BrokenRow` for answers that call tools: judges read their
    text alone.
    """
    prompt, sides = split_answers(row)
    for key, side in zip(("chosen", "rejected"), sides, strict=True):
        if any("tool_calls" in turn for turn in side):
            raise BrokenRow(key, "tool calls, of which judges read nothing", "answers in text")
    label = row.label if isinstance(row, Comparison) else "A"
    assert label != "tie"  # noqa: S101  (no format of pairs has ties)
    a, b = map(_text_turns, sides)
    return PairItem(
        id=name or row.where,
        subset=row.subset or subset,
        prompt=_text_turns(prompt),
        a=a,
        b=b,
        label=label,
        where=row.where,
        margin=row.margin if isinstance(row, Preference) else None,
    )


def _text_turns(messages: ChatMessages) -> ChatMessages:
    return [
        {"role": turn["role"], "content": content_text(turn["content"])}
        | ({"tool_calls": turn["tool_calls"]} if "tool_calls" in turn else {})
        for turn in messages
    ]


LlmbarEntry = Literal["first", "last"]
"""Which of several rounds: the first verdicts, or those after the judge saw its two disagree."""

_ORDERS = ("swap = False", "swap = True")


class _LlmbarReply(msgspec.Struct):
    winner: Literal["1", "2"] | None


def read_llmbar_judge(
    path: Path, *, entry: LlmbarEntry = "last"
) -> tuple[Benchmark, list[Judgement]]:
    """Items and judgements of one of LLMBar's ``JUDGE_STRATEGY.json`` files.

    The subset is the folder above ``judges``. Its ``winner`` already names the output, not
    the position; a null one was not read from the reply and is missing as ``unparsable``. Raises
    :class:`~adjudge.errors.ConfigError` for a file of another shape.
    """
    name = path.parent.parent.name if path.parent.name == "judges" else path.stem
    rows = [(where, row, name) for where, row in read_raw_rows([path])]
    benchmark = benchmark_from_rows(rows, "llmbar", source=str(path))
    if benchmark.problems:
        raise ConfigError(str(benchmark.problems[0]))
    try:
        judgements = [
            Judgement(
                subset=item.subset,
                id=item.id,
                verdicts=[_verdict(row, one, entry) for one in _ORDERS],
            )
            for item, (_, row, _) in zip(benchmark.items, rows, strict=True)
        ]
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"{path}: is not a file of LLMBar's judges (results with {' and '.join(_ORDERS)}): "
            f"{error}"
        ) from None
    return benchmark, judgements


def _verdict(row: Any, order: str, entry: LlmbarEntry) -> PairVerdict | MissingJudgement:
    said = msgspec.convert(row["results"][0 if entry == "first" else -1][order], type=_LlmbarReply)
    if said.winner is None:
        return MissingJudgement(ErrorKind.UNPARSABLE, "the benchmark read no winner from the reply")
    return "A" if said.winner == "1" else "B"
