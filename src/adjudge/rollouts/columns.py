"""Rows read by the names of their columns: samples, lists of responses, metrics by step.

A log of metrics by step (verl's file logger, ``trainer_state.json``, exports of W&B, tables) has
means and no rollouts, so it is never read as rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.columns import (
    REFERENCE_COLUMNS,
    RewardColumns,
    as_object,
    find_reference,
    find_reward,
    is_nothing,
    is_reward,
    read_env_reward,
    usual_name,
)
from adjudge.intake.conversation import CALL_KEYS, looks_like_messages, read_messages
from adjudge.rollouts.fields import Row
from adjudge.text import printable
from adjudge.types import MISSING, get_path


def list_columns(columns: Iterable[str]) -> str:
    """The columns of a row, for messages."""
    return printable(", ".join(columns))[:300]


def has_own_columns(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows have a column for a conversation or a response under adjudge's own name."""
    return any(map(find_own_columns, rows))


def find_own_columns(row: Mapping[str, Any]) -> set[str]:
    """The columns of a row, under adjudge's own names, for a conversation or responses.

    They may be null: a file may begin with rows that failed.
    """
    found = {"messages", "response"} & row.keys()
    response, listed = row.get("response"), find_response_list(row)
    if isinstance(response, Mapping) and not _is_response(response):  # an API's object
        found.remove("response")
    return found if listed is None else {*found, listed}


RESPONSE_LISTS = frozenset({"responses", "completions", "generations", "outputs", "response"})
"""Columns with a list of texts, one a sample; verl's ``main_generation`` adds ``responses``."""

_RESPONSES = ("responses", "response", "messages", "completion", "generation", "output")
_REWARD_LISTS = ("rewards", "scores", "reward", "score", "env_reward")


def find_response_list(row: Mapping[str, Any]) -> str | None:
    """The column whose list is a row's responses: texts, and nulls where none was made.

    There is none where the row has another response, or ``messages`` and no prompt. A name in the
    plural other than ``responses`` needs a prompt: benchmarks call their references so, too.
    """
    for name in sorted(RESPONSE_LISTS.intersection(row)):
        asked = isinstance(row.get("prompt"), str | list) or (
            name != "outputs" and find_column(row, "prompt") is not None
        )
        others: tuple[str, ...] = _RESPONSES
        if name == "responses":  # beside a prompt, messages are the dataset's own
            others = ("response",) if asked else ("response", "messages")
        prompt = name in ("response", "responses") or asked
        if (
            prompt
            and all(one == name or row.get(one) is None for one in others)
            and is_list_of_texts(row[name])
        ):
            return name
    return None


def is_list_of_texts(value: Any) -> bool:
    """Whether a value is a list of texts, and nulls where none was made."""
    texts = isinstance(value, list) and all(one is None or isinstance(one, str) for one in value)
    return texts and bool(value)


def split_responses(row: Mapping[str, Any], group: str) -> Iterator[Row | RolloutError]:
    """A row for each text of the list: ``response``, ``sample`` (from 0), and all else of the row.

    ``group`` is used where the row has none of its own. A list of rewards as long as that of the
    responses is theirs; the ground truth of verl's ``reward_model`` is the reference. A null is a
    response that could not be made.
    """
    name = find_response_list(row) or "responses"
    texts = row[name]
    listed = _find_reward_list(row, len(texts))
    truth = as_object(row.get("reward_model")).get("ground_truth")
    own = {"group": group} if row.get("group") is None else {}
    own |= {"reference": truth} if row.get("reference") is None and truth is not None else {}
    common = {key: one for key, one in row.items() if key not in (name, "messages")} | own
    for place, text in enumerate(texts):
        if text is None:
            yield RolloutError(f"{name}.{place}: is null: no response was made")
            continue
        one = {**common, "response": text, "sample": place}
        if listed is not None:
            one[listed] = one["env_reward"] = row[listed][place]
        yield one


def _find_reward_list(row: Mapping[str, Any], count: int) -> str | None:
    """The column of a row that has a reward for each of its ``count`` responses."""
    lists = {name: one for name, one in row.items() if _is_list_of_numbers(one, count)}
    usual = next((name for name in _REWARD_LISTS if name in lists), None)
    if usual is not None or not lists:
        return usual
    return find_reward([{name: lists[name][n] for name in lists} for n in range(count)]).column


def _is_list_of_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(is_reward, value))


NAMES: Mapping[str, tuple[str, ...]] = {
    "messages": (
        *("messages", "traj", "trajectory", "conversation", "conversations", "chat"),
        *("transcript", "history", "contents", "messages_and_choices", "convo"),
    ),
    "prompt": (
        *("prompt", "question", "query", "user_input", "instruction", "problem", "input", "inputs"),
        *("input.messages", "input.question", "inputs.question", "doc.query"),
        *("instance.input.text", "request", "request.messages", "raw_input.question"),
        "user_prompt",
    ),
    # What was said before what was extracted from it; an answer is perhaps the reference.
    "response": (
        *("response", "completion", "output", "generation", "model_output", "model_response"),
        *("model_answer", "raw_output", "raw_response", "generated_text", "output_text"),
        *("actual_output", "llm_output", "outputs", "model_patch", "prediction"),
        "answer",
    ),
    "reference": REFERENCE_COLUMNS,
    "group": (
        *("group", "group_id", "uid", "task_id", "prompt_id", "problem_id", "question_id"),
        "instance_id",
    ),
}
"""The usual names of each field's column, the first of them that fits; dots reach into objects."""

_ANSWERED = ("reference", "ground_truth", "reference_answer", "expected_answer", "correct_answer")
"""A row with one of these and ``answer`` has its policy's answer in it."""


def guess_mapping(
    rows: Sequence[Mapping[str, Any]], responses: Sequence[str] = ()
) -> dict[str, str]:
    """``{field: column}`` for the fields whose column has another name; never two for one column.

    A name counts only where the values fit the field: messages are lists of chat messages,
    rewards are numbers, a group's values repeat or look like ids. ``responses``: names that may be
    the response's, too, such as those of attempts.
    """
    columns = [column for column, _ in Counter(c for row in rows for c in row).most_common()]
    by_name = {usual_name(column): column for column in reversed(columns)}
    guessed: dict[str, str] = {}
    for field, names in NAMES.items():
        for name in (*names[:-1], *responses, names[-1]) if field == "response" else names:
            column = by_name.get(name, name if "." in name else None)
            if column is None or column in guessed.values():
                continue
            values = [get_path(row, column) for row in rows]
            values = [value for value in values if value is not None and value is not MISSING]
            if name == "uid" and len(set(map(str, values))) == len(values):
                continue  # of the sample, not of its prompt
            if name == "label" and find_reference({name: values[0] if values else None}) is None:
                continue  # a class or a verdict, not an answer
            if name == "answer" and field == "response" and by_name.keys().isdisjoint(_ANSWERED):
                continue
            if _fit(field, values):
                guessed[field] = column
                break
    if guessed.get("messages", "").endswith("history") and {"prompt", "response"} <= guessed.keys():
        del guessed["messages"]  # what came before the question
    reward = find_reward_column(rows).column
    if reward is not None and reward not in guessed.values():
        guessed["env_reward"] = reward
    if guessed.get("reference") in REFERENCE_COLUMNS:
        del guessed["reference"]  # each row has its own choice
    return {field: column for field, column in guessed.items() if field != column}


def find_column(row: Mapping[str, Any], name: str) -> str | None:
    """The column of a row that has a usual name of the field ``name``, and fits it."""
    if name == "env_reward":
        return find_reward([row]).column
    for column in NAMES[name]:
        if column == "answer" and name == "response":  # most often the reference
            continue
        value = get_path(row, column) if "." in column else row.get(column)
        if value is not None and value is not MISSING and _fit(name, [value]):
            return column
    return None


def join_input(row: Mapping[str, Any]) -> str | None:
    """Alpaca's question: the instruction, and the input to which it is applied."""
    instruction, given = row.get("instruction"), row.get("input")
    if isinstance(instruction, str) and isinstance(given, str) and given.strip():
        return f"{instruction}\n\n{given}"
    return None


def find_reward_column(rows: Sequence[Mapping[str, Any]]) -> RewardColumns:
    """Where the rewards of rows are; no column where a list has one for each response of a row."""
    for row in rows:
        texts = find_response_list(row)
        if texts is not None and _find_reward_list(row, len(row[texts])) is not None:
            return RewardColumns()
    return find_reward(rows)


def fits_field(name: str, value: Any) -> bool:
    """Whether a value can be that of a field."""
    return value is None or _fit(name, [value])


_TEXT_KEYS = (
    *("text", "content", "output", "answer", "response", "completion", "question", "prompt"),
    *("query", "input"),
)


def as_answer(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object that calls tools as the message of the assistant that it is."""
    calls = any(value.get(key) for key in CALL_KEYS)
    return {"role": "assistant", **value} if calls else value


def object_text(value: Mapping[str, Any]) -> str | None:
    """The text of an object that has one: ``{"text": …}``, ``{"content": …, "role": …}``."""
    texts = [value[name] for name in _TEXT_KEYS if value.get(name) is not None]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else None


def _is_response(value: Any) -> bool:
    """Whether a value is a text, an object with one, or messages that begin with an answer."""
    if isinstance(value, Mapping):
        return object_text(value) is not None or looks_like_messages([as_answer(value)])
    if isinstance(value, list) and looks_like_messages(value):
        with suppress(RolloutError):
            return read_messages(value, "")[0]["role"] in ("assistant", "tool")
        return False
    return isinstance(value, str)


def _are_prompts(values: Sequence[Any]) -> bool:
    if values and all(isinstance(value, Mapping) for value in values):
        return all(
            object_text(value) is not None or looks_like_messages(value.get("messages"))
            for value in values
        )
    texts = any(values) and all(isinstance(value, str) for value in values)
    return texts or (bool(values) and all(map(looks_like_messages, values)))


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "messages": looks_like_messages,
    "response": _is_response,
    "group": lambda value: isinstance(value, str | int),
    "env_reward": is_reward,
}


def _fit(name: str, values: Sequence[Any]) -> bool:
    """Whether values can be those of a field."""
    if name == "prompt":
        return _are_prompts(values)
    if name == "reference":
        return not all(map(is_nothing, values))
    return bool(values) and all(map(_FITS[name], values))


# --- logs of metrics by step ----------------------------------------------------------------------

METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "judge/outcome_mean": (
        *("critic/score/mean", "reward", "reward/mean", "reward_mean", "mean_reward"),
        *("objective/scores", "judge/score_mean"),
    ),
    "judge/score_std": ("reward_std", "reward/std"),
    "length": ("response_length/mean", "completions/mean_length"),
    "judge/len_corr_group": (),
    "judge/zero_std_frac": ("frac_reward_zero_std",),
    "judge/missing_frac": (),
    "judge/part_group_var": (),
    "judge/env_group_var": (),
}
"""What the checks over steps read, as adjudge logs it, and its names in verl, TRL and others."""

_STEPS = ("_step", "step", "Step", "global_step", "train/global_step")
_PREFIX = re.compile(r"^(.* - )?(train/|rollout/)?")
"""What is before a metric's name; a chart of W&B has the name of the run there."""

_WANDB_CLOCKS = ("_runtime", "_timestamp")
_KNOWN = [name for own, names in METRIC_NAMES.items() for name in (own, *names)]


def find_log(records: Sequence[Mapping[str, Any]]) -> str:
    """What log of metrics the first records of a file are of, for people; ``""`` for no log."""
    if not records:
        return ""
    if all({*one} == {"step", "data"} and _are_numbers(one["data"]) for one in records):
        return "metrics of verl's file logger"
    if len(records) == 1 and "global_step" in records[0] and _state_rows(records[0]):
        return "metrics of a trainer_state.json"
    if all("_step" in one and not one.keys().isdisjoint(_WANDB_CLOCKS) for one in records):
        return "metrics of a W&B history"
    return ""


def is_step_table(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether records are means by step: numbers alone, one row a step, and of no group."""
    rows = [{name: one for name, one in row.items() if one is not None} for row in records]
    steps = [(_step_of(row), *sorted(row)) for row in rows]
    return (
        len(rows) > 1
        and all(step[0] is not None for step in steps)
        and all(map(_are_numbers, rows))
        and any(map(_read_row, rows))
        and len({*steps}) == len(steps)
        and all(find_column(row, "group") is None for row in rows)
    )


def read_log(
    records: Iterable[Any], say: Callable[[str], None] = lambda _: None
) -> list[dict[str, float]]:
    """The rows of a log: each its ``step`` and what of :data:`METRIC_NAMES` it has.

    ``say`` hears which metric of the log each of them is.

    Raises :class:`ConfigError` for a log that has none of them, or those of several runs.
    """
    found, names, used = list[dict[str, float]](), dict[str, None](), dict[str, None]()
    for row in (row for record in records for row in _rows_of(record)):
        step, read = _step_of(row), _read_row(row)
        names |= dict.fromkeys(row)
        if step is not None and read:
            used |= {f"{one} is {name!r}": None for one, (name, _) in read.items() if one != name}
            found.append({"step": step, **{name: number for name, (_, number) in read.items()}})
    if not found:
        raise ConfigError(
            f"metrics: none is one that the checks read (found {list_columns(names)}; known: "
            f"{', '.join(_KNOWN)}). Log the mean reward of each step as 'reward'."
        )
    say(f"metrics: {', '.join(used)}")
    return found


def _state_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = record.get("log_history")
    return [one for one in rows if isinstance(one, Mapping)] if isinstance(rows, list) else []


def _rows_of(record: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(record, Mapping):
        return
    if isinstance(data := record.get("data"), Mapping):
        yield {**data, "_step": record.get("step")}
    else:
        yield from _state_rows(record) or [record]


def _step_of(row: Mapping[str, Any]) -> int | None:
    step = next((row[name] for name in _STEPS if row.get(name) is not None), None)
    number = _read_number(step)
    return int(number) if number is not None and number.is_integer() else None


def _read_number(value: Any) -> float | None:
    with suppress(RolloutError):
        return read_env_reward(value)
    return None


def _read_row(row: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """What a row has of :data:`METRIC_NAMES`, and its column."""
    columns: dict[str, str] = {}
    for column in row:
        name = _PREFIX.sub("", str(column))
        if columns.setdefault(name, column) != column and name in _KNOWN:
            raise ConfigError(
                f"{name}: two columns are this metric, perhaps of two runs (found "
                f"{columns[name]!r} and {column!r}). Export one run at a time."
            )
    found: dict[str, tuple[str, float]] = {}
    for own, names in METRIC_NAMES.items():
        for column in (columns[name] for name in (*reversed(names), own) if name in columns):
            if (number := _read_number(row[column])) is not None:
                found[own] = column, number
    return found


def _are_numbers(row: Any) -> bool:
    return isinstance(row, Mapping) and bool(row) and all(map(is_reward, row.values()))
