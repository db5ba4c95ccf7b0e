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


def _convert(record: Mapping[str, Any], form: PublishedFormat) -> list[Row]:
    """A row for each answer, with the model that gave it and the columns that are no content."""
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
    rows, used = [], (*_CONTENT[form], *_SIDES.get(form, ()), *_ALL_MODELS)
    rewards = scores if is_scored else answers.ratings
    for messages, reward, model in zip(talks, rewards, models, strict=True):
        row = completion_row(messages[:-1], messages[-1:])
        add_fields(row, env_reward=reward, model=model, **extras)
        rows.append(add_extras(row, record, *used))
    return rows


def _first(record: Mapping[str, Any], columns: Sequence[str]) -> str | int | None:
    values = (record.get(column) for column in columns)
    return next((value for value in values if type(value) in (str, int)), None)


_TITLES: Mapping[PublishedFormat, str] = {
    "llmbar": "LLMBar",
    "judgebench": "JudgeBench",
    "helpsteer2-preference": "HelpSteer2-Preference",
    "helpsteer3": "HelpSteer3",
    "arena": "arena battles (response_a, response_b)",
    "alpaca-eval": "AlpacaEval annotations",
    "rewardbench2": "RewardBench 2",
    "helpsteer2": "HelpSteer2",
    "ultrafeedback": "UltraFeedback",
    "openai-preference": "OpenAI preference data",
    "preference": "preference pairs (DPO, HH-RLHF, RewardBench, UltraFeedback binarized)",
}
_BESIDE: Mapping[str, tuple[str, ...]] = {
    "helpsteer2": ("correctness", "coherence"),
    "ultrafeedback": ("models",),
}
"""Columns that records of a format have beside what is read of them."""

_SIDES: Mapping[str, tuple[str, ...]] = {
    **{name: columns.answers for name, columns in PAIR_COLUMNS.items()},
    "openai-preference": ("preferred_output", "non_preferred_output"),
    "preference": _CHOSEN_FIRST,
}
"""The columns of the two answers of a pair, in the order of its rows."""

_CONTENT: Mapping[str, tuple[str, ...]] = {
    **{name: (columns.prompt, columns.label) for name, columns in PAIR_COLUMNS.items()},
    "rewardbench2": ("prompt", *_CHOSEN_FIRST),
    "helpsteer2": ("prompt", "response", "helpfulness"),
    "ultrafeedback": ("instruction", "completions", "models"),
    "openai-preference": ("input",),
    "preference": ("prompt", *_SCORE_COLUMNS),
}
"""The columns that become messages and rewards, beside those of the two sides."""

_OWN = {"helpsteer2": ("response",), "preference": ("messages",)}


def _matches(record: Mapping[str, Any], form: PublishedFormat) -> bool:
    """Whether a record is in one published format alone."""
    if not record.keys() >= {*_BESIDE.get(form, ())} or [*match_formats(dict(record))] != [form]:
        return False
    if form != "preference":
        return True
    given = all(isinstance(record[side], str | list | None) for side in _CHOSEN_FIRST)
    # Beside two answers and their scores, `messages` is one of the two again.
    return given and ("score_chosen" in record or record.get("messages") is None)


PREFERENCE_FORMATS = tuple(
    RolloutFormat(
        *(form, title, partial(_matches, form=form), partial(_convert, form=form)),
        pairs=True,
        sides=_SIDES.get(form, ()),
        own=_OWN.get(form, ()),
    )
    for form, title in _TITLES.items()
)
"""The formats of pairs and ratings; a record is in one of them at most."""
