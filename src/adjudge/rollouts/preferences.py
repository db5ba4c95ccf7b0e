"""Data of pairs and ratings as rollouts: the answers to one prompt, and which of them is better.

Each answer is a row with the whole conversation in ``messages`` and what the data says of it in
``env_reward``: its rating, or 1 for the better answer of a pair, 0 for the worse one, ½ for both of
a tie. So the report's concordance within groups is the share of pairs that a judge orders rightly.
Records are read as :mod:`adjudge.datasets.published` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from adjudge.datasets.published import (
    PAIR_COLUMNS,
    PairFormat,
    PublishedFormat,
    match_formats,
    read_answers,
)
from adjudge.datasets.rows import BrokenRow
from adjudge.errors import RolloutError
from adjudge.rollouts.columns import find_column, join_input
from adjudge.rollouts.fields import (
    RolloutFormat,
    Row,
    add_extras,
    add_fields,
    completion_row,
    digest_prompt,
)
from adjudge.types import get_path

_CHOSEN_FIRST = ("chosen", "rejected")
_SCORE_COLUMNS = ("score_chosen", "score_rejected")
_MODEL_COLUMNS = (
    ("chosen_model", "rejected_model"),
    ("model_a", "model_b"),
    ("generator_1", "generator_2"),
)
_SUBSET_COLUMNS = ("subset", "source", "domain", "dataset")
_ALL_MODELS = tuple(name for pair in _MODEL_COLUMNS for name in pair)
_ID_COLUMNS = ("id", "pair_id", "prompt_id", "question_id")


def _convert(record: Mapping[str, Any], form: PublishedFormat, content: Sequence[str]) -> list[Row]:
    """A row for each answer, with the model that gave it and all columns but the ``content``."""
    columns, scores = dict(record), [record.get(column) for column in _SCORE_COLUMNS]
    needs_prompt = form == "preference" and record.get("prompt") is None
    if needs_prompt and (column := find_column(record, "prompt")) is not None:
        columns["prompt"] = join_input(record) or get_path(record, column)
    try:
        answers = read_answers(columns, "", form)
    except BrokenRow as broken:
        raise RolloutError(str(broken)) from None
    is_scored = form == "preference" and all(type(score) in (int, float) for score in scores)
    extras: Row = {"subset": _first(record, _SUBSET_COLUMNS), "id": _first(record, _ID_COLUMNS)}
    extras["reference"] = record.get("reference")
    if form == "helpsteer2":  # the other answers to the prompt are in other records
        extras["group"] = digest_prompt(record["prompt"])
    talks = answers.conversations
    pairs = (columns for columns in _MODEL_COLUMNS if record.keys() >= {*columns})
    named = next(pairs, ()) if len(talks) == 2 else ()
    models = [record[column] for column in named] or [None] * len(talks)
    if form == "ultrafeedback":
        models = [completion.get("model") for completion in record["completions"]]
    rows = []
    rewards = scores if is_scored else answers.ratings
    for messages, reward, model in zip(talks, rewards, models, strict=True):
        row = completion_row(messages[:-1], messages[-1:])
        add_fields(row, env_reward=reward, model=model, **extras)
        rows.append(add_extras(row, record, *content))
    return rows


def _first(record: Mapping[str, Any], columns: Sequence[str]) -> str | int | None:
    values = (record.get(column) for column in columns)
    return next((value for value in values if type(value) in (str, int)), None)


def _is_published(record: Mapping[str, Any], form: str, columns: frozenset[str]) -> bool:
    """Whether a record is in one published format alone, and has further ``columns``."""
    return record.keys() >= columns and list(match_formats(dict(record))) == [form]


_SIDE_TYPES = (str, list, type(None))


def _is_preference(record: Mapping[str, Any], name: str) -> bool:
    """Whether a record has ``chosen`` and ``rejected``, and is from the data set ``name``."""
    if not _is_published(record, "preference", frozenset()):
        return False
    if not all(isinstance(record[side], _SIDE_TYPES) for side in _CHOSEN_FIRST):
        return False
    if record.keys() >= {"subset", *_MODEL_COLUMNS[0]}:
        return name == "rewardbench"
    return name == ("ultrafeedback-binarized" if "score_chosen" in record else "preference")


_SIDES: Mapping[str, tuple[str, ...]] = {
    **{name: columns.answers for name, columns in PAIR_COLUMNS.items()},
    "openai-preference": ("preferred_output", "non_preferred_output"),
    **dict.fromkeys(("rewardbench", "ultrafeedback-binarized", "preference"), _CHOSEN_FIRST),
}
"""The columns of the two answers of a pair, in the order of its rows."""


def _format(
    name: str,
    title: str,
    form: PublishedFormat,
    content: Sequence[str],
    columns: frozenset[str] = frozenset(),
    own: tuple[str, ...] = (),
) -> RolloutFormat:
    """A format; ``columns`` are those it must have beside what is read of it.

    ``content``: the columns that become messages and rewards, beside those of the two sides.
    """
    if form == "preference":
        matches = partial(_is_preference, name=name)
    else:
        matches = partial(_is_published, form=form, columns=columns)
    sides = _SIDES.get(name, ())
    convert = partial(_convert, form=form, content=(*content, *sides, *_ALL_MODELS))
    return RolloutFormat(name, title, matches, convert, pairs=True, sides=sides, own=own)


def _pair_format(name: PairFormat, title: str) -> RolloutFormat:
    return _format(name, title, name, (PAIR_COLUMNS[name].prompt, PAIR_COLUMNS[name].label))


_PREFERENCE = ("prompt", *_SCORE_COLUMNS)

PREFERENCE_FORMATS: tuple[RolloutFormat, ...] = (
    _pair_format("llmbar", "LLMBar"),
    _pair_format("judgebench", "JudgeBench"),
    _pair_format("helpsteer2-preference", "HelpSteer2-Preference"),
    _pair_format("helpsteer3", "HelpSteer3"),
    _pair_format("arena", "arena battles (response_a, response_b)"),
    _pair_format("alpaca-eval", "AlpacaEval annotations"),
    _format("rewardbench2", "RewardBench 2", "rewardbench2", ("prompt", *_CHOSEN_FIRST)),
    _format(
        *("helpsteer2", "HelpSteer2", "helpsteer2", ("prompt", "response", "helpfulness")),
        columns=frozenset({"correctness", "coherence"}),
        own=("response",),
    ),
    _format(
        *("ultrafeedback", "UltraFeedback", "ultrafeedback"),
        content=("instruction", "completions", "models"),
        columns=frozenset({"models"}),
    ),
    _format("openai-preference", "OpenAI preference data", "openai-preference", ("input",)),
    _format("rewardbench", "RewardBench", "preference", _PREFERENCE),
    _format(
        "ultrafeedback-binarized",
        "preference pairs with scores (UltraFeedback, binarized)",
        *("preference", _PREFERENCE),
        own=("messages",),
    ),
    _format("preference", "preference pairs (DPO, HH-RLHF)", "preference", _PREFERENCE),
)
"""The formats of pairs and ratings; a record is in one of them at most."""
