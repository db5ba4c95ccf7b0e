"""Benchmark files as items: RewardBench-2, LLMBar, JudgeBench, preference files, recorded judges.

==============  ==================================================================================
rewardbench2    ``id, prompt, chosen [..], rejected [..], subset`` (``num_correct`` is checked)
llmbar          ``input, output_1, output_2, label 1 | 2``, one JSON array a file, or a row a line
judgebench      ``pair_id, source, question, response_A, response_B, label "A>B" | "B>A"``
preference      ``chosen, rejected``: message lists, JSON strings of them, or texts and ``prompt``;
                ``margin``, ``subset`` and ``id`` where there are any
==============  ==================================================================================

Nothing is repaired: a row that is no item is an :class:`InvalidItem` with key and reason, which
becomes a :class:`BenchmarkRowProblem` with its place.

LLMBar's recorded judges are read as their verdicts in both orders, judgements of its items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.datasets.files import ROLES
from adjudge.errors import ConfigError, ErrorKind, RolloutError
from adjudge.judge_evaluation.benchmarks.items import (
    BENCHMARK_KINDS,
    Benchmark,
    BenchmarkItem,
    BenchmarkKind,
    BenchmarkRowProblem,
    BestOfItem,
    ChatTurns,
    Judgement,
    MissingJudgement,
    PairItem,
    PairLabel,
    PairVerdict,
)
from adjudge.rollouts.rows import FileRow, check_files, decode_line, parse_row, read_rows

__all__ = [
    "REWARDBENCH2_SUBSETS",
    "TIES_SUBSET",
    "InvalidItem",
    "LlmbarEntry",
    "benchmark_from_rows",
    "detect_benchmark_kind",
    "judgebench_item",
    "llmbar_item",
    "preference_item",
    "read_benchmark",
    "read_llmbar_judge",
    "rewardbench2_item",
]


TIES_SUBSET = "Ties"
"""The RewardBench-2 subset with several right answers."""

REWARDBENCH2_SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES_SUBSET)
_WRONG_OF_FOUR = 3


class InvalidItem(ValueError):
    """A row is no item; the message names key, what was found, and what is allowed."""


class _Turn(msgspec.Struct):
    role: str
    content: str
    tool_calls: list[Any] | None = None


def rewardbench2_item(row: Mapping[str, Any], where: str, _: str) -> BestOfItem:
    """A RewardBench-2 row: one right and three wrong answers; in Ties any number of each.

    A Ties id is ``ref:N`` (one right answer) or ``tied:N`` (several) for the same prompt N.
    """
    subset = _text(row, "subset")
    named = {name.lower(): name for name in REWARDBENCH2_SUBSETS}.get(subset.lower())
    if named is None:
        raise InvalidItem(
            f"subset: found {subset[:40]!r}, allowed: {', '.join(REWARDBENCH2_SUBSETS)}"
        )
    chosen, rejected = _answers(row, "chosen"), _answers(row, "rejected")
    stated = row.get("num_correct")
    if stated is not None and stated != len(chosen):
        raise InvalidItem(
            f"num_correct: found {_describe_value(stated)}, but chosen has {len(chosen)}"
        )
    identity = _id(row, "id", where)
    if named == TIES_SUBSET:
        _check_ties(identity, len(chosen))
    elif (len(chosen), len(rejected)) != (1, _WRONG_OF_FOUR):
        raise InvalidItem(
            f"chosen, rejected: found {len(chosen)} and {len(rejected)} answers, must be 1 and 3"
        )
    return BestOfItem(
        id=identity,
        subset=named,
        prompt=_prompt(row, "prompt"),
        answers=chosen + rejected,
        correct=len(chosen),
        where=where,
    )


def llmbar_item(row: Mapping[str, Any], where: str, subset: str) -> PairItem:
    """An LLMBar row: output 1 is A, output 2 is B. A column ``subset`` speaks for itself."""
    label: Any = row.get("label")
    if isinstance(label, bool) or label not in (1, 2):
        raise InvalidItem(f"label: found {_describe_value(label)}, allowed: 1, 2")
    columns = ("input", "output_1", "output_2")
    return _pair(
        row, where, _text_or_default(row, "subset", subset), columns, "A" if label == 1 else "B"
    )


def judgebench_item(row: Mapping[str, Any], where: str, subset: str) -> PairItem:
    """A JudgeBench row; all ``mmlu-pro-…`` sources are the subset ``mmlu-pro``, as it reports."""
    labels: dict[Any, PairLabel] = {"A>B": "A", "B>A": "B"}
    label = row.get("label")
    if not isinstance(label, str) or label not in labels:
        raise InvalidItem(f"label: found {_describe_value(label)}, allowed: 'A>B', 'B>A'")
    named = _text_or_default(row, "source", subset)
    if named.startswith("mmlu-pro"):
        named = "mmlu-pro"
    columns = ("question", "response_A", "response_B")
    return _pair(row, where, named, columns, labels[label], "pair_id")


def preference_item(row: Mapping[str, Any], where: str, subset: str) -> PairItem:
    """A row of a preference file: the chosen side is A. What both sides begin with is the prompt.

    Where they share no turn it is the column ``prompt``. Unusable: two equal sides, a side that
    does not end with an assistant's turn of its own or calls tools in one (judges read its text),
    nothing asked, and a prompt beside sides that ask themselves.
    """
    chosen, rejected = _side(row, "chosen"), _side(row, "rejected")
    if chosen == rejected:
        raise InvalidItem("chosen, rejected: are the same conversation, so neither is better")
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    for key, side in (("chosen", chosen), ("rejected", rejected)):
        if shared == len(side) or side[-1]["role"] != "assistant":
            raise InvalidItem(f"{key}: does not end with an assistant's turn of its own")
        if any("tool_calls" in turn for turn in side[shared:]):
            raise InvalidItem(f"{key}: answers with tool calls, of which judges read nothing")
    prompt = chosen[:shared] or _row_prompt(row)
    if not shared and not chosen[0]["role"] == rejected[0]["role"] == "assistant":
        raise InvalidItem(
            "chosen, rejected: share no turn and are no mere answers to the prompt beside"
        )
    if not any(turn["role"] == "user" for turn in prompt):
        raise InvalidItem("chosen, rejected: begin without a user's turn, so nothing is asked")
    return PairItem(
        id=_id(row, "id", where),
        subset=_text_or_default(row, "subset", subset),
        prompt=prompt,
        a=chosen[shared:],
        b=rejected[shared:],
        label="A",
        where=where,
        margin=_margin(row.get("margin")),
    )


def _pair(
    row: Mapping[str, Any],
    where: str,
    subset: str,
    columns: tuple[str, str, str],
    label: PairLabel,
    key: str = "id",
) -> PairItem:
    _, a, b = columns
    return PairItem(
        id=_id(row, key, where),
        subset=subset,
        prompt=_prompt(row, columns[0]),
        a=[{"role": "assistant", "content": _text(row, a)}],
        b=[{"role": "assistant", "content": _text(row, b)}],
        label=label,
        where=where,
    )


def _check_ties(identity: str, correct: int) -> None:
    sort, _, number = identity.partition(":")
    plain = number.isascii() and number.isdecimal() and len(number) < 19
    if sort not in ("ref", "tied") or not plain or str(int(number)) != number:
        raise InvalidItem(
            f"id: found {identity[:40]!r}, a Ties id is 'ref:N' or 'tied:N', N as in 12"
        )
    if (correct == 1) != (sort == "ref"):
        wanted = "1" if sort == "ref" else "2 or more"
        raise InvalidItem(f"chosen: found {correct} right answers, {sort!r} prompts have {wanted}")


def _text_or_default(row: Mapping[str, Any], key: str, default: str) -> str:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidItem(f"{key}: found {_describe_value(value)}, must be text")
    return value or default


def _id(row: Mapping[str, Any], key: str, where: str) -> str:
    """The row's id, else its place."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        if value is None:
            return where
        raise InvalidItem(f"{key}: found {_describe_value(value)}, must be text or a whole number")
    return str(value)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise InvalidItem(f"{key}: found {_describe_value(value)}, must be text")
    return value


def _answers(row: Mapping[str, Any], key: str) -> list[str]:
    value = row.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
        raise InvalidItem(
            f"{key}: found {_describe_value(value)}, must be a list of texts, not empty"
        )
    return value


def _prompt(row: Mapping[str, Any], key: str) -> ChatTurns:
    return [{"role": "user", "content": _text(row, key)}]


def _side(row: Mapping[str, Any], key: str) -> ChatTurns:
    """A side's turns; a text is the answer to the row's prompt."""
    value = row.get(key)
    if not isinstance(value, str):
        return _turns(value, key)
    begins = value.lstrip()
    if begins.startswith("Human:"):
        raise InvalidItem(
            f"{key}: is a 'Human: … Assistant: …' text; convert the file first: "
            "preferences_from of adjudge.datasets.published, write_rows of ….data.write"
        )
    if row.get("prompt") is None:
        return _turns(value, key)
    return _messages_in_json_text(value, key) or [{"role": "assistant", "content": value}]


def _row_prompt(row: Mapping[str, Any]) -> ChatTurns:
    given = row.get("prompt")
    if given is None:
        raise InvalidItem("chosen, rejected: share no turn, and there is no prompt beside them")
    if isinstance(given, str):
        return _messages_in_json_text(given, "prompt") or _prompt(row, "prompt")
    return _turns(given, "prompt")


def _messages_in_json_text(text: str, key: str) -> ChatTurns | None:
    """The messages whose JSON a text is, if it is: it may but begin like a list."""
    if not text.lstrip().startswith("["):
        return None
    try:
        return _turns(text, key)
    except InvalidItem:
        return None


def _turns(value: Any, key: str) -> ChatTurns:
    """Messages from a list or from the JSON text of one."""
    try:
        if isinstance(value, str):
            turns = msgspec.json.decode(value, type=list[_Turn])
        else:
            turns = msgspec.convert(value, type=list[_Turn])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidItem(
            f"{key}: must be messages with role and content as text: {error}"
        ) from None
    if not turns:
        raise InvalidItem(f"{key}: found no message, must have at least one")
    if strange := [turn.role for turn in turns if turn.role not in ROLES]:
        raise InvalidItem(
            f"{key}: found the role {_describe_value(strange[0])}, allowed: {', '.join(ROLES)}"
        )
    return [
        {"role": turn.role, "content": turn.content}
        | ({"tool_calls": turn.tool_calls} if turn.tool_calls else {})
        for turn in turns
    ]


def _margin(value: Any) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None  # NaN is how pandas writes "none"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidItem(f"margin: found {_describe_value(value)}, must be a finite number")
    return float(value)


def _describe_value(value: Any) -> str:
    """What was found, without the text of a sample."""
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float):
        return repr(value)[:40]
    if isinstance(value, str) and len(value) <= 12:
        return repr(value)
    size = f" of {len(value)}" if isinstance(value, str | list | dict) else ""
    return f"a {type(value).__name__}{size}"


_READERS: dict[BenchmarkKind, Callable[[Mapping[str, Any], str, str], BenchmarkItem]] = {
    "rewardbench2": rewardbench2_item,
    "llmbar": llmbar_item,
    "judgebench": judgebench_item,
    "preference": preference_item,
}
_COLUMNS: dict[BenchmarkKind, tuple[str, ...]] = {
    "llmbar": ("input", "output_1", "output_2", "label"),
    "judgebench": ("question", "response_A", "response_B", "label"),
    "preference": ("chosen", "rejected"),
}


def read_benchmark(
    paths: Sequence[Path], kind: BenchmarkKind | None = None, *, subset: str | None = None
) -> Benchmark:
    """All items of ``paths``, and why the other rows are none.

    ``kind`` is told from the columns of the first whole row where it is not given. ``subset`` names
    the subset of rows that name none; by default the file does (``dataset.json`` of LLMBar: its
    folder). An id that its subset already has is a problem of the later row. Raises
    :class:`~adjudge.errors.ConfigError` for a file that cannot be read, for columns that fit no
    kind, and where no row is an item.
    """
    rows = (
        (where, row, subset or _subset_of_file(path))
        for path in paths
        for where, row in _file_rows(path)
    )
    return benchmark_from_rows(rows, kind, source=", ".join(map(str, paths)) or "no file")


def benchmark_from_rows(
    rows: Iterable[tuple[str, dict[str, Any] | RolloutError, str]],
    kind: BenchmarkKind | None = None,
    *,
    source: str = "rows",
) -> Benchmark:
    """Rows that are at hand as items: each with its place and the subset of rows that name none.

    Raises as :func:`read_benchmark` does; ``source`` is what the complaint calls them.
    """
    if kind is not None and kind not in BENCHMARK_KINDS:
        raise ConfigError(
            f"benchmark: is unknown (found {kind!r}; allowed: {', '.join(BENCHMARK_KINDS)})"
        )
    items: list[BenchmarkItem] = []
    problems: list[BenchmarkRowProblem] = []
    seen: dict[tuple[str, str], str] = {}
    for where, row, subset in rows:
        if isinstance(row, RolloutError):
            problems.append(BenchmarkRowProblem(where, str(row).removeprefix(f"{where}: ")))
            continue
        kind = kind or detect_benchmark_kind(row, where)
        try:
            item = _READERS[kind](row, where, subset)
            _check_unique(item, seen)
        except InvalidItem as broken:
            problems.append(BenchmarkRowProblem(where, str(broken)))
        else:
            items.append(item)
    if kind is None or not items:
        raise ConfigError(_none_usable(source, problems))
    return Benchmark(kind=kind, items=items, problems=problems, title=kind)


def detect_benchmark_kind(row: Mapping[str, Any], where: str) -> BenchmarkKind:
    """The kind whose columns ``row`` has; raises :class:`~adjudge.errors.ConfigError` for none.

    ``chosen`` is a list of texts in RewardBench-2 and anything else in a preference file.

    >>> detect_benchmark_kind({"input": "", "output_1": "", "output_2": "", "label": 1}, "x:1")
    'llmbar'
    """
    if "chosen" in row and "rejected" in row and "subset" in row and _texts(row["chosen"]):
        return "rewardbench2"
    for kind, columns in _COLUMNS.items():
        if all(column in row for column in columns):
            return kind
    found = ", ".join(sorted(map(str, row))[:12])
    raise ConfigError(
        f"{where}: the columns fit no benchmark (found {found}; allowed: "
        f"{', '.join(BENCHMARK_KINDS)}). Name the kind, or rename the columns."
    )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _check_unique(item: BenchmarkItem, seen: dict[tuple[str, str], str]) -> None:
    key = (item.subset, item.id)
    if key in seen:
        raise InvalidItem(f"id: {item.id[:80]!r} was used before, at {seen[key]}")
    seen[key] = item.where


def _subset_of_file(path: Path) -> str:
    return path.parent.name if path.stem == "dataset" and path.parent.name else path.stem


def _file_rows(path: Path) -> Iterator[FileRow]:
    """Rows of one file; a JSON array counts its elements from 1."""
    check_files([path])
    if path.suffix.lower() != ".json":
        return read_rows([path])
    data = decode_line(path.read_bytes())
    return _elements(path, data) if data.startswith(b"[") else read_rows([path])


def _elements(path: Path, data: bytes) -> Iterator[FileRow]:
    try:
        elements: Iterable[msgspec.Raw] = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not a JSON array of rows: {error}") from None
    for number, element in enumerate(elements, start=1):
        yield parse_row(bytes(element), f"{path}:{number}")


def _none_usable(source: str, problems: Sequence[BenchmarkRowProblem]) -> str:
    first = f"; the first: {problems[0].where}: {problems[0].reason}" if problems else ""
    return f"{source}: no row is an item of a benchmark ({len(problems)} were unusable{first})"


LlmbarEntry = Literal["first", "last"]
"""Which of several rounds: the first verdicts, or those after the judge saw its two disagree."""

_ORDERS = ("swap = False", "swap = True")


class _LlmbarReply(msgspec.Struct):
    winner: Literal["1", "2"] | None


class _LlmbarRow(msgspec.Struct):
    results: list[dict[str, Any]]


def read_llmbar_judge(
    path: Path, *, subset: str | None = None, entry: LlmbarEntry = "last"
) -> tuple[Benchmark, list[Judgement]]:
    """Items and judgements of one of LLMBar's ``JUDGE_STRATEGY.json`` files.

    ``subset`` defaults to the folder above ``judges``. Its ``winner`` already names the output, not
    the position; a null one was not read from the reply and is missing as ``unparsable``. Raises
    :class:`~adjudge.errors.ConfigError` for a file of another shape.
    """
    name = subset or (path.parent.parent.name if path.parent.name == "judges" else path.stem)
    benchmark = read_benchmark([path], "llmbar", subset=name)
    if benchmark.problems:
        one = benchmark.problems[0]
        raise ConfigError(f"{one.where}: {one.reason}")
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[_LlmbarRow])
        judgements = [
            Judgement(
                subset=item.subset,
                id=item.id,
                verdicts=[_verdict(row, one, entry) for one in _ORDERS],
            )
            for item, row in zip(benchmark.items, rows, strict=True)
        ]
    except (msgspec.MsgspecError, KeyError, IndexError, RecursionError) as error:
        raise ConfigError(
            f"{path}: is not a file of LLMBar's judges (results with {' and '.join(_ORDERS)}): "
            f"{error}"
        ) from None
    return benchmark, judgements


def _verdict(row: _LlmbarRow, order: str, entry: LlmbarEntry) -> PairVerdict | MissingJudgement:
    said = msgspec.convert(row.results[0 if entry == "first" else -1][order], type=_LlmbarReply)
    if said.winner is None:
        return MissingJudgement(ErrorKind.UNPARSABLE, "the benchmark read no winner from the reply")
    return "A" if said.winner == "1" else "B"
