"""What a refusal proposes: the options with which a file that is in no known format can be read.

A proposal is tried on the first rows before it is printed. Where two columns could be meant, none
is proposed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from shlex import join
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.conversation import looks_like_messages, read_messages
from adjudge.rollouts.formats.base import Row
from adjudge.rollouts.formats.columns import find_column, fits_field, is_list_of_texts, list_columns
from adjudge.rollouts.formats.nested import OF_ATTEMPTS, find_row_paths, head_rows
from adjudge.types import MISSING, get_path

_OF_QUESTIONS = frozenset(
    {
        *("choices", "options", "candidates", "documents", "docs", "contexts", "passages"),
        *("paragraphs", "chunks", "references", "citations", "sources", "examples", "shots"),
        *("criteria", "rubric", "rubrics", "steps", "turns", "tests", "tools", "solutions"),
        *("content", "parts", "messages", "events", "spans", "blocks", "tool_calls", "calls"),
    }
)
"""Lists of objects with texts that are a question's, or parts of one answer."""

_LONG = 20
"""Characters; one word of more is a text."""

_REFERENCE_LISTS = ("outputs", "solutions")
"""Lists of texts that are as often what benchmarks accept."""

Read = Callable[[Sequence[Mapping[str, Any]], Mapping[str, str]], Any]
"""Gives the :class:`FileReading` of records under a mapping, or ``None``."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_NAMED: Mapping[str, tuple[str, ...]] = {
    "response": (
        *("response", "output", "completion", "generation", "generated", "prediction", "reply"),
        *("continuation", "predicted", "solution", "result", "sample", "candidate"),
        *("sampled", "pred"),
    ),
    "prompt": (
        *("raw", "prompt", "question", "query", "instruction", "problem", "task", "input"),
        "request",
    ),
    "reference": ("reference", "gold", "gt", "truth", "expected", "target", "ideal", "answers"),
    "env_reward": (
        *("reward", "graded", "correct", "correctness", "resolved", "passed", "score"),
        *("acc", "accuracy"),
    ),
}
"""Words by which a column may be meant for a field, the surest first."""
_MADE = ("model", *_NAMED["response"][:7])
_BESIDE = ("prompt", "reference", "env_reward")
_OTHERS = frozenset(
    {
        *("id", "index", "name", "label", "type", "format", "path", "url", "title", "hash", "ref"),
        *("gold", "expected", "reference", "target", "truth", "canonical", "correct", "template"),
        *("system", "judge", "judgment", "judgement", "grader", "annotator", "extracted", "parsed"),
        *("error", "reason", "explanation", "tokens", "token", "length", "time", "config"),
        *("ideal", "gt", "search", "retrieved", "description"),
        *("total", "mean", "average", "max", "min", "num", "count"),
    }
)
"""Words of columns that are about something else."""
_NO_CONVERSATIONS = ("choices", "candidates", "chat_history")  # the last without the answer
_MOST_DEPTH, _MOST_COLUMNS = 4, 200


def propose_options(
    records: Sequence[Mapping[str, Any]],
    mapping: Mapping[str, str],
    read: Read,
    within: str | None = None,
) -> str:
    """What to do with records in which neither conversation nor response was found.

    ``within``: a column whose objects are the rows; without one all places are looked at.
    """
    places: list[tuple[str, int]] = find_row_paths(records) if records else []
    if within is not None:
        places = [one for one in places if one[0] == within or one[0].startswith(f"{within}.")]
    for path, count in places:
        rows = head_rows(records, path, mapping)
        asked = find_column(records[0], "prompt")
        if asked is not None and get_path(rows[0], asked) != get_path(records[0], asked):
            continue  # perhaps the examples of a task
        if _is_read(rows, mapping, read):
            return _write(path, count, _find_columns(rows, mapping, read, _BESIDE))
    engines = ("text",) if records and "prompt" in records[0] else ()
    if within is None and (found := _find_columns(records, mapping, read, (*_NAMED,), engines)):
        return f"Add {_options(found)}"
    for path, count in places:
        rows = head_rows(records, path, mapping)
        attempts = path.rpartition(".")[2] not in _OF_QUESTIONS
        beside = OF_ATTEMPTS if attempts else ("message",)
        found = _find_columns(rows, mapping, read, (*_NAMED,), beside)
        if found and "prompt" not in found and find_column(rows[0], "prompt") is None:
            found |= _prompt_above(records, path)
        said = [found[name] for name in ("response", "messages") if name in found]
        inherited = any(get_path(one, n) == get_path(rows[0], n) for n in said for one in records)
        if found and not inherited:
            return _write(path, count, found)
    above = [("", records), *((path, head_rows(records, path, mapping)) for path, _ in places)]
    lists = [(f"{at}.{one}", n) for at, rows in above for one, n in _text_lists(rows) if at != "."]
    for path, count in ((one.lstrip("."), n) for one, n in lists if within is None):
        rows = head_rows(records, path, mapping)
        named = {} if _is_read(rows, mapping, read) else {"response": path.rpartition(".")[2]}
        more = _find_columns(rows, {**mapping, **named}, read, _BESIDE)
        if _is_read(rows, {**mapping, **named}, read):
            return _write(path, count, named | more)
    if places:
        path, count = places[0]
        columns = dict.fromkeys(str(n) for one in head_rows(records, path, mapping) for n in one)
        return (
            f"Under {path!r} are {count} objects, and none of their columns looks like one, too "
            f"({list_columns(columns)}). If one is, name it: --rows {path} -m response=COLUMN."
        )
    return (
        "Name them with -m messages=COLUMN, or with -m prompt=COLUMN -m response=COLUMN; the "
        "dump's own reward with -m env_reward=COLUMN."
    )


def _text_lists(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """The one column with lists of what may be responses, and how many the first has."""
    columns = _columns_of(records)
    lists = [path for path in columns if all(_are_answers(get_path(one, path)) for one in records)]
    firsts = [{path: get_path(one, path)[0] for path in lists} for one in records]
    chosen = _choose(firsts, lists, "response")
    if chosen is None or chosen.rpartition(".")[2] in _REFERENCE_LISTS:
        return []
    return [(chosen, len(get_path(records[0], chosen)))]


def _are_answers(value: Any) -> bool:
    """Whether a value is a list of texts, or of lists of an answer's messages."""
    lists = isinstance(value, list) and all(isinstance(one, list) for one in value)
    chats = lists and bool(value) and all(fits_field("response", one) for one in value)
    return chats or is_list_of_texts(value)


def _write(path: str, count: int, found: Mapping[str, str]) -> str:
    where = "rows are the record's parts" if path == "." else f"rows are under {path!r}"
    return f"Its {where} ({count} of them): add {join(['--rows', path])} {_options(found)}".rstrip()


def _options(found: Mapping[str, str]) -> str:
    return join([part for name, one in found.items() for part in ("-m", f"{name}={one}")])


def _is_read(rows: Sequence[Mapping[str, Any]], mapping: Mapping[str, str], read: Read) -> bool:
    """Whether rows become samples, at least half of them with a conversation or a response."""
    if (reading := read(rows, mapping)) is None:
        return False
    try:
        made = [one for n, row in enumerate(rows) for _, one in reading.places(row, n)]
    except (RolloutError, LookupError, TypeError, AttributeError):
        return False
    whole = [one for one in made if isinstance(one, dict) and _has_content(one)]
    return bool(made) and 2 * len(whole) >= len(made)


def _has_content(row: Row) -> bool:
    given = {name: row.get(name) for name in ("messages", "response")}
    asked = not row.get("prompt") or fits_field("prompt", row["prompt"])
    return asked and any(one and fits_field(name, one) for name, one in given.items())


def _find_columns(
    rows: Sequence[Mapping[str, Any]],
    mapping: Mapping[str, str],
    read: Read,
    fields: Sequence[str],
    of_attempts: Sequence[str] = (),
) -> dict[str, str]:
    """The options that say where ``fields`` are; none where no response is certain."""
    columns = _columns_of(rows)
    wanted = {name: one for name in fields if (one := _choose(rows, columns, name)) is not None}
    lists = [path for path in columns if path.rpartition(".")[2] not in _NO_CONVERSATIONS]
    chats = [path for path in lists if _are_chats([get_path(row, path) for row in rows])]
    asked = "prompt" in {*wanted, *mapping} or find_column(rows[0], "prompt") is not None
    words = _words(wanted.get("response", "").rpartition(".")[2])
    if asked and "solution" in words and words.isdisjoint(_MADE):
        del wanted["response"]  # of a data set of questions
    if of_attempts and "response" not in wanted:
        texts = [one for one in of_attempts if rows[0].get(one) and (asked or one == "message")]
        texts = [one for one in texts if fits_field("response", rows[0][one])]
        turns = [row["turns"] for row in rows if isinstance(row.get("turns"), list)]
        ends = {len(one) for one in turns if one and fits_field("response", one[-1])}
        texts += [f"turns.{end - 1}" for end in ends]
        wanted |= {"response": texts[0]} if len(texts) == 1 else {}
    if "response" in fields and "response" not in wanted and len(chats) == 1:
        wanted = {"messages": chats[0]} | {n: c for n, c in wanted.items() if n == "env_reward"}
    if "response" in fields and not wanted.keys() & {"response", "messages"}:
        return {}
    reading = read(rows, {})
    known = {} if reading is None else {**reading.guessed, **reading.mapping}
    found = {
        name: one
        for name, one in wanted.items()
        if name not in known and name not in mapping and find_column(rows[0], name) is None
    }
    wrong = len(set(found.values())) < len(found)
    if wrong or not _is_read(rows, {**mapping, **found}, read):
        return {}
    usual = read(
        rows, {**mapping, **{n: c for n, c in found.items() if n in ("response", "messages")}}
    )
    return {n: c for n, c in found.items() if usual is None or n not in usual.guessed}


def find_likely(rows: Sequence[Mapping[str, Any]], field: str) -> str | None:
    """The one column that is likely to be meant for a field of rows in which none was found."""
    return _choose(rows, _columns_of(rows), field)


def _prompt_above(records: Sequence[Mapping[str, Any]], path: str) -> dict[str, str]:
    """The prompt of records whose rows have none; of one document there is none for all rows."""
    chosen = find_likely(records, "prompt") if len(records) > 1 else None
    if chosen is None or chosen.startswith(f"{path}."):
        return {}
    return {"prompt": chosen}


def _are_chats(values: Sequence[Any]) -> bool:
    """Whether values are conversations in which somebody asks and the policy speaks."""
    for value in values:
        try:
            turns = read_messages(value, "") if looks_like_messages(value) else []
        except RolloutError:
            return False
        if not {"user", "assistant"} <= {turn["role"] for turn in turns}:
            return False
    return True


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted names of the columns of the first rows."""
    return list(
        dict.fromkeys(one for row in rows[:5] for one in islice(_paths(row), _MOST_COLUMNS))
    )


def _paths(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """The dotted names of what is no object."""
    for key, one in list(value.items())[:_MOST_COLUMNS]:
        if isinstance(key, str) and ("." not in key or not (path or isinstance(one, Mapping))):
            here = f"{path}.{key}" if path else key
            if isinstance(one, Mapping) and depth < _MOST_DEPTH:
                yield from _paths(one, here, depth + 1)
            else:
                yield here


def _words(step: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(step)}


def _choose(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], field: str) -> str | None:
    """The one column that is meant for a field by the words of its name, and holds such values."""
    ranked: list[tuple[int, str]] = []
    for path in columns:
        values = [value for row in rows if (value := get_path(row, path)) is not MISSING]
        last, *above = reversed([_words(step) for step in path.split(".")[-2:]])
        words = {*last, *chain(*above)} - {*_NAMED[field]}
        if not _OTHERS.isdisjoint(words | {word.removesuffix("s") for word in words}):
            continue
        names = [*_NAMED[field], *(f"{name}s" for name in _NAMED[field])]
        last = last if last == {"raw"} else last - {"raw"}
        ranks = [rank for rank, name in enumerate(names) if name in last]
        ranks = ranks or [len(names) for step in above if not step.isdisjoint(names)]
        if (
            ranks
            and _fit(field, values)
            and not (field in ("prompt", "response") and _is_label(values))
        ):
            ranked.append((min(ranks), path))
    best = [path for rank, path in ranked if rank == min(ranked)[0]]
    return best[0] if len(best) == 1 else None


def _fit(field: str, values: Sequence[Any]) -> bool:
    if field == "env_reward":
        return bool(values) and all(isinstance(one, bool | int | float | None) for one in values)
    texts = [one for one in values if one is not None]
    if field == "reference":
        parts = [part for one in texts for part in (one if isinstance(one, list) else [one])]
        return any(parts) and all(isinstance(part, str | int | float) for part in parts)
    if field == "prompt" and texts and not any(isinstance(one, str) for one in texts):
        return all(map(looks_like_messages, texts))
    return any(texts) and all(
        isinstance(one, str | list) and fits_field(field, one) for one in texts
    )


def _is_label(values: Sequence[Any]) -> bool:
    """Whether texts are single words, as verdicts, states and kinds are."""
    texts = [one for one in values if isinstance(one, str)]
    return bool(texts) and all(len(one.split()) < 2 and len(one) < _LONG for one in texts)
