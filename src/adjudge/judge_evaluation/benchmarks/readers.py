"""Benchmark files as items: RewardBench-2, LLMBar, JudgeBench, preference files, recorded judges.

Rows are read as :mod:`adjudge.datasets.published` says. Nothing is repaired: a row that is no item
is a problem, with its place. The recorded judges of LLMBar and JudgeBench are read as their
verdicts in both orders, judgements of the items in the same files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.config import check_allowed
from adjudge.datasets.files import RawColumns, read_rows
from adjudge.datasets.published import (
    PAIR_COLUMNS,
    PublishedFormat,
    match_formats,
    parse_helpsteer2,
    parse_pair,
    parse_preferences,
    rate_rewardbench2,
)
from adjudge.datasets.rows import (
    BrokenRow,
    ChatMessages,
    Comparison,
    LoadedRows,
    Preference,
    Rating,
    RowProblem,
    RowProblems,
    check_id,
    describe_found,
    pair_ratings,
    split_answers,
    unreadable_row_problem,
)
from adjudge.errors import ConfigError, ErrorKind, RolloutError
from adjudge.judge_evaluation.benchmarks.items import (
    BENCHMARK_KINDS,
    Benchmark,
    BenchmarkItem,
    BenchmarkKind,
    Judgement,
    MissingJudgement,
    PairVerdict,
    check_judgement,
    flip_verdict,
    item_digest,
)
from adjudge.messages import content_text
from adjudge.stats import collect

TIES_SUBSET = "Ties"
"""The RewardBench-2 subset with several right answers."""

REWARDBENCH2_SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES_SUBSET)


def read_benchmark(paths: Sequence[Path], kind: str | None = None) -> Benchmark:
    """All items of ``paths``, and why the other rows are none.

    ``kind`` is told from the columns of the first whole row where it is not given. The file names
    the subset of rows that name none (``dataset.json`` of LLMBar: its folder does). An id that its
    subset already has is a problem of the later row. Raises
    :class:`~adjudge.errors.ConfigError` for a file that cannot be read, for columns that fit no
    kind, and where no row is an item.
    """
    rows = (
        (where, row, path.parent.name if path.stem == "dataset" and path.parent.name else path.stem)
        for path in paths
        for where, row in read_rows([path])
    )
    return benchmark_from_rows(rows, kind, source=", ".join(map(str, paths)) or "no file")


def benchmark_from_rows(
    rows: Iterable[tuple[str, RawColumns | RolloutError, str]],
    named: str | None = None,
    *,
    source: str = "rows",
) -> Benchmark:
    """Rows that are at hand as items: each with its place and the subset of rows that name none.

    Raises as :func:`read_benchmark` does; ``source`` is what the complaint calls them.
    """
    kind: BenchmarkKind | None = None
    if named is not None:
        kind = check_allowed("--benchmark", named, BENCHMARK_KINDS)
    items: dict[tuple[str, str], BenchmarkItem] = {}
    problems: list[RowProblem] = []
    rated: dict[str, list[Rating]] = {}
    for where, row, subset in rows:
        if isinstance(row, RolloutError):
            problems.append(unreadable_row_problem(where, row))
            continue
        kind = kind or detect_benchmark_kind(row, where)
        try:
            if kind == "preference" and _pair_format(row) == "helpsteer2":
                rated.setdefault(subset, []).append(parse_helpsteer2(row, where))
                continue
            found = _read_items(kind, row, where, subset)
        except BrokenRow as broken:
            problems.append(broken.problem_at(where))
            continue
        _add_items(found, items, problems)
    for subset, ratings in rated.items():
        pairs = pair_ratings(LoadedRows(ratings, RowProblems(shown=sys.maxsize)))
        problems += pairs.problems.first
        for own in collect((pair.where, pair) for pair in pairs.rows).values():
            _add_items(_pair_items(own, None, subset), items, problems)
    if kind is None or not items:
        first = f"; the first: {problems[0]}" if problems else ""
        raise ConfigError(
            f"{source}: no row is an item of a benchmark ({len(problems)} were unusable{first})"
        )
    return Benchmark(kind=kind, items=list(items.values()), problems=problems, title=kind)


def _add_items(
    found: Iterable[BenchmarkItem],
    items: dict[tuple[str, str], BenchmarkItem],
    problems: list[RowProblem],
) -> None:
    for item in found:
        if seen := items.get((item.subset, item.id)):
            again = f"{item.id[:80]!r} again"
            problems.append(RowProblem(item.where, "id", again, f"another than at {seen.where}"))
        else:
            items[item.subset, item.id] = item


def detect_benchmark_kind(row: RawColumns, where: str) -> BenchmarkKind:
    """The kind whose columns ``row`` has; raises :class:`~adjudge.errors.ConfigError` for none.

    Pairs and ratings that are no benchmark of their own are ``preference``.

    >>> detect_benchmark_kind({"input": "", "output_1": "", "output_2": "", "label": 1}, "x:1")
    'llmbar'
    """
    for form in match_formats(row):
        if form in BENCHMARK_KINDS:
            return form
    if _pair_format(row) != "preference":
        return "preference"
    found = ", ".join(sorted(map(str, row))[:12])
    raise ConfigError(
        f"{where}: the columns fit no benchmark (found {found}; allowed: "
        f"{', '.join(BENCHMARK_KINDS)}). Name the kind, or rename the columns."
    )


def _pair_format(row: RawColumns) -> PublishedFormat:
    """The published format of pairs or ratings that is no benchmark of its own."""
    forms = [form for form in match_formats(row) if form not in BENCHMARK_KINDS]
    return forms[0] if len(forms) == 1 and "chosen" not in row else "preference"


def _read_items(
    kind: BenchmarkKind, row: RawColumns, where: str, subset: str
) -> Sequence[BenchmarkItem]:
    if kind == "rewardbench2":
        return [_best_of_item(row, where)]
    if kind != "preference":
        key = PAIR_COLUMNS[kind].id
        return [pair_item(parse_pair(row, where, kind), check_id(row.get(key), key), subset)]
    form = _pair_format(row)
    assert form != "helpsteer2"  # noqa: S101  (its pairs are in several rows)
    return _pair_items(parse_preferences(row, where, form), check_id(row.get("id"), "id"), subset)


def _pair_items(pairs: Sequence[Preference], name: str | None, subset: str) -> list[BenchmarkItem]:
    """Pairs of the same answers, drawn together; each has a number where there are several."""
    if len(pairs) == 1:
        return [pair_item(pairs[0], name, subset)]
    return [
        msgspec.structs.replace(
            pair_item(one, f"{name or one.where}/{number}", subset), cluster=name or one.where
        )
        for number, one in enumerate(pairs, start=1)
    ]


def _best_of_item(row: RawColumns, where: str) -> BenchmarkItem:
    """One right and three wrong answers; in Ties any number of each.

    A Ties id is ``ref:N`` (one right answer) or ``tied:N`` (several) for the same prompt N.
    """
    found = rate_rewardbench2(row, where)
    named = {name.lower(): name for name in REWARDBENCH2_SUBSETS}.get((found.subset or "").lower())
    if named is None:
        raise BrokenRow(
            "subset", describe_found(found.subset, label=True), ", ".join(REWARDBENCH2_SUBSETS)
        )
    name = check_id(row.get("id"), "id") or where
    right = [rating == 1.0 for rating in found.ratings]
    counts = right.count(True), right.count(False)
    if named == TIES_SUBSET:
        _check_ties(name, counts[0])
    elif counts != (1, 3):
        raise BrokenRow("chosen, rejected", f"{counts[0]} and {counts[1]} answers", "1 and 3")
    return BenchmarkItem(
        id=name,
        subset=named,
        prompt=found.conversations[0][:-1],
        answers=[talk[-1:] for talk in found.conversations],
        right=right,
        where=found.where,
    )


def _check_ties(name: str, correct: int) -> None:
    sort, _, number = name.partition(":")
    plain = number.isascii() and number.isdecimal() and len(number) < 19
    if sort not in ("ref", "tied") or not plain or str(int(number)) != number:
        raise BrokenRow("id", f"{name[:40]!r}", "in Ties 'ref:N' or 'tied:N', N as in 12")
    if (correct == 1) != (sort == "ref"):
        wanted = "1" if sort == "ref" else "2 or more"
        raise BrokenRow("chosen", f"{correct} right answers", f"{wanted} of a {sort!r} prompt")


def pair_item(row: Comparison | Preference, name: str | None, subset: str) -> BenchmarkItem:
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
    return BenchmarkItem(
        id=name or row.where,
        subset=row.subset or subset,
        prompt=_text_turns(prompt),
        answers=list(map(_text_turns, sides)),
        right=[label == "A", label == "B"],
        where=row.where,
        margin=row.margin if isinstance(row, Preference) else None,
    )


def _text_turns(messages: ChatMessages) -> ChatMessages:
    return [
        {"role": turn["role"], "content": content_text(turn["content"])}
        | ({"tool_calls": turn["tool_calls"]} if "tool_calls" in turn else {})
        for turn in messages
    ]


_LAYOUT = "SUBSET/judges/JUDGE.json or LLMBar's own SUBSET/evaluators/JUDGE/STRATEGY/result.json"


def recorded_place(path: Path) -> tuple[str, str]:
    """The subset and the judge of a file of LLMBar's judges: what is above the folder and below.

    Raises :class:`~adjudge.errors.ConfigError` for a file that is not in such a folder.

    >>> recorded_place(Path("GPTInst/evaluators/GPT-4/Vanilla/result.json"))
    ('GPTInst', 'GPT-4_Vanilla')
    >>> recorded_place(Path("natural/judges/gpt-4_vanilla.json"))
    ('natural', 'gpt-4_vanilla')
    """
    parts = path.absolute().with_suffix("").parts[1:]
    for place in range(len(parts) - 1, 0, -1):
        if parts[place].lower() in ("evaluators", "judges"):
            below = parts[place + 1 : -1] if parts[-1] == "result" else parts[place + 1 :]
            if below:
                return parts[place - 1], "_".join(below)
    raise ConfigError(
        f"{path}: the path does not say whose verdicts on which subset these are (found "
        f"{'/'.join(parts[-3:])}; allowed: {_LAYOUT})"
    )


def read_recorded_judge(paths: Sequence[Path]) -> tuple[str, Benchmark, list[Judgement]]:
    """One judge's name, items and judgements: LLMBar's files, one a subset, or JudgeBench's one.

    Raises :class:`~adjudge.errors.ConfigError` for files of another shape, of several judges, or
    two of one subset.
    """
    if len(paths) == 1 and is_judgebench_recording(paths[0]):
        # dataset=…,judge_name=…,judge_model=….jsonl
        named = dict(part.split("=", 1) for part in paths[0].stem.split(",") if "=" in part)
        parts = [named[key] for key in ("judge_name", "judge_model") if key in named]
        return "_".join(parts) or paths[0].stem, *read_judgebench_judge(paths[0])
    places = list(map(recorded_place, paths))
    if len({judge for _, judge in places}) > 1 or len(set(places)) < len(places):
        found = ", ".join(map("/".join, places))
        raise ConfigError(
            f"{paths[0]} and {len(paths) - 1} more: must be one judge's, a file a subset (found "
            f"{found[:200]}). Name {_LAYOUT} with * for SUBSET; put other judges behind --against."
        )
    read = list(map(read_llmbar_judge, paths))
    items = [item for benchmark, _ in read for item in benchmark.items]
    judgements = [one for _, found in read for one in found]
    return places[0][1], Benchmark(kind="llmbar", items=items, title="llmbar"), judgements


_ORDERS = ("swap = False", "swap = True")


class _LlmbarReply(msgspec.Struct):
    winner: Literal["1", "2"] | None


def read_llmbar_judge(path: Path) -> tuple[Benchmark, list[Judgement]]:
    """Items and judgements of one file of LLMBar's judges; of several rounds the last one counts.

    The subset is that of :func:`recorded_place`. Its ``winner`` already names the output, not
    the position; a null one was not read from the reply and is missing as ``unparsable``. Raises
    :class:`~adjudge.errors.ConfigError` for a file of another shape, one without winners too.
    """
    subset = recorded_place(path)[0]

    def verdict(row: Any, order: str) -> PairVerdict | MissingJudgement:
        # Metrics and references that a judge wrote for itself stand before its verdicts, as lists.
        rounds = [one for one in row["results"] if isinstance(one, dict)]
        said = msgspec.convert(rounds[-1][order], type=_LlmbarReply)
        return _UNREAD if said.winner is None else "A" if said.winner == "1" else "B"

    return _read_recorded_file(
        path,
        "llmbar",
        subset,
        lambda row: {"verdicts": [verdict(row, order) for order in _ORDERS]},
        f"LLMBar's judges (results with {' and '.join(_ORDERS)})",
    )


_UNREAD = MissingJudgement(ErrorKind.UNPARSABLE, "the benchmark read no winner from the reply")
_NO_REPLY = MissingJudgement(ErrorKind.NOT_SAMPLED, "the benchmark recorded no reply")
_DECISIONS: Mapping[Any, PairVerdict] = {"A>B": "A", "B>A": "B", "A=B": "tie"}


class _JudgeBenchReply(msgspec.Struct):
    decision: str | None
    judgment: Any = None


def is_judgebench_recording(path: Path) -> bool:
    """Whether the first row of a file is an item of JudgeBench with its ``judgments``."""
    _, row = next(read_rows([path]), ("", RolloutError("")))
    return isinstance(row, dict) and "judgments" in row and "judgebench" in match_formats(row)


def read_judgebench_judge(path: Path) -> tuple[Benchmark, list[Judgement]]:
    """Items and judgements of one of JudgeBench's output files (``run_judge.py``).

    Its second decision names the positions after the swap. A null decision was not read from the
    reply and is missing as ``unparsable``, a null judgment as ``not_sampled``. Where a judge was
    asked in one order only (``--single_game``), the scores of its answers are the judgement, or the
    other verdict is missing. Raises :class:`~adjudge.errors.ConfigError` for another shape.
    """
    return _read_recorded_file(
        path,
        "judgebench",
        path.stem,
        _judgebench_answers,
        "JudgeBench's judges (judgments with one or two decisions)",
    )


def _judgebench_answers(row: Any) -> dict[str, Any]:
    replies = msgspec.convert(row["judgments"], type=list[_JudgeBenchReply | None])
    if len(replies) == 1:
        alone = replies[0] and replies[0].judgment
        if isinstance(alone, dict) and alone.get("scores") is not None:
            return {"scores": msgspec.convert(alone["scores"], type=list[float])}
        replies.append(None)
    given, swapped = replies
    first, second = (
        _NO_REPLY if one is None else _DECISIONS.get(one.decision, _UNREAD)
        for one in (given, swapped)
    )
    return {"verdicts": [first, flip_verdict(second)]}


def _read_recorded_file(
    path: Path,
    kind: BenchmarkKind,
    subset: str,
    answers: Callable[[Any], dict[str, Any]],
    what: str,
) -> tuple[Benchmark, list[Judgement]]:
    """All rows as items, and what ``answers`` reads from each."""
    rows = [(where, row, subset) for where, row in read_rows([path])]
    benchmark = benchmark_from_rows(rows, kind, source=str(path))
    if benchmark.problems:
        raise ConfigError(str(benchmark.problems[0]))
    try:
        judgements = [
            Judgement(subset=item.subset, id=item.id, item=item_digest(item), **answers(row))
            for item, (_, row, _) in zip(benchmark.items, rows, strict=True)
        ]
        for item, said in zip(benchmark.items, judgements, strict=True):
            check_judgement(said, item, kind)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is not a file of {what}: {error}") from None
    return benchmark, judgements
