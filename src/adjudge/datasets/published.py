r"""Published data sets: by which columns each is known, and what one of its rows says.

=============  =============================================================================
helpsteer2     ``prompt``, ``response``, ``helpfulness`` 0 to 4 (more attributes are ignored)
rewardbench2   ``id``, ``prompt``, ``chosen`` and ``rejected`` (lists of texts), ``subset``
               (``num_correct`` and ``num_incorrect`` are checked)
llmbar         ``input``, ``output_1``, ``output_2``, ``label`` 1 or 2
judgebench     ``pair_id``, ``source``, ``question``, ``response_A``, ``response_B``, ``label``
               "A>B" or "B>A"
preference     ``chosen``, ``rejected``: conversations, or answers to the ``prompt`` beside, or
               the "\n\nHuman: … \n\nAssistant: …" texts of HH; ``margin``, ``subset``, ``id``
=============  =============================================================================

Who trains judges and who evaluates them reads a row with the same function; each then checks what
only it needs. What cannot be read faithfully raises :class:`~adjudge.datasets.rows.BrokenRow` and
is never mended.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from adjudge.datasets.columns import (
    MAX_MESSAGES,
    check_conversation,
    check_id,
    check_margin,
    check_prompt,
    check_rating,
    check_subset,
    check_text,
    is_conversation_text,
    make_preference,
    source_fields,
)
from adjudge.datasets.files import RawColumns
from adjudge.datasets.rows import (
    BrokenRow,
    ChatMessages,
    Comparison,
    Preference,
    PreferenceLabel,
    Rating,
    SourcedRow,
    describe_found,
)
from adjudge.messages import prompt_messages

PublishedFormat = Literal["helpsteer2", "rewardbench2", "preference", "llmbar", "judgebench"]


def match_formats(row: RawColumns) -> Iterator[PublishedFormat]:
    """The formats whose columns ``row`` has.

    ``chosen`` is a list of texts in RewardBench-2 and anything else in a preference file.

    >>> list(match_formats({"input": "", "output_1": "", "output_2": "", "label": 1}))
    ['llmbar']
    """
    if row.keys() >= {"prompt", "response", "helpfulness"}:
        yield "helpsteer2"
    if row.keys() >= {"chosen", "rejected"}:
        lists = "num_correct" in row or _is_list_of_texts(row["chosen"])
        yield "rewardbench2" if lists and "subset" in row else "preference"
    for name, columns in PAIR_COLUMNS.items():
        if row.keys() >= {columns.prompt, *columns.answers, "label"}:
            yield name


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


# HelpSteer2: "…<extra_id_1>Assistant\n…<extra_id_1>User\n…" in prompts of several turns.


def parse_helpsteer2(row: RawColumns, where: str) -> Rating:
    """One answer, its label the helpfulness."""
    prompt = check_text(row.get("prompt"), "prompt")
    answer = check_text(row.get("response"), "response")
    label = check_rating(row.get("helpfulness"), "helpfulness")
    messages = [*_extra_id_turns(prompt), _message("assistant", answer)]
    return Rating(messages=messages, label=label, where=where)


def _extra_id_turns(prompt: str) -> ChatMessages:
    first, *rest = prompt.split("<extra_id_1>")
    turns = [_message("user", first.strip("\n"))]
    for number, piece in enumerate(rest, start=1):
        name, role = (("Assistant", "assistant"), ("User", "user"))[(number + 1) % 2]
        said, line, content = piece.partition("\n")
        if not line or said.strip() != name:
            raise BrokenRow(
                "prompt", f"turn {number} of another speaker", f"{name} after <extra_id_1>"
            )
        turns.append(_message(role, content.strip("\n")))
    if turns[-1]["role"] != "user" or not all(turn["content"].strip() for turn in turns):
        raise BrokenRow("prompt", f"{len(turns)} turns", "turns with a text, the user's last")
    return turns


# RewardBench 2: one correct answer and three wrong ones; in the subset Ties several of each.


class BestOfAnswers(SourcedRow, frozen=True, kw_only=True):
    """A prompt with right answers (``chosen``) and wrong ones (``rejected``), one or more each."""

    prompt: ChatMessages
    chosen: list[str]
    rejected: list[str]


def parse_rewardbench2(row: RawColumns, where: str) -> BestOfAnswers:
    """One prompt with all its answers, any number of each."""
    sides = {key: _texts(row.get(key), key) for key in ("chosen", "rejected")}
    for key, counted in (("chosen", "num_correct"), ("rejected", "num_incorrect")):
        if row.get(counted) not in (None, len(sides[key])):
            raise BrokenRow(
                counted, describe_found(row[counted]), f"{len(sides[key])}, as {key} has"
            )
    name = check_id(row.get("id"), "id")
    return BestOfAnswers(
        prompt=prompt_messages(check_text(row.get("prompt"), "prompt")),
        **sides,
        where=where,
        subset=check_subset(row.get("subset"), "subset"),
        source_ids=() if name is None else (f"rewardbench2:{name}",),
    )


def _texts(value: Any, key: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise BrokenRow(key, describe_found(value), "a list of one or more answers")
    return [check_text(one, f"{key}[{number}]", blank=True) for number, one in enumerate(value)]


# LLMBar and JudgeBench: two answers by position, and which is the better.


class PairColumns(NamedTuple):
    """Which columns a format of pairs has; ``labels`` says which answer each label names."""

    prompt: str
    answers: tuple[str, str]
    labels: Mapping[Hashable, PreferenceLabel]
    subset: str
    id: str


PAIR_COLUMNS: Mapping[Literal["llmbar", "judgebench"], PairColumns] = {
    "llmbar": PairColumns("input", ("output_1", "output_2"), {1: "A", 2: "B"}, "subset", "id"),
    "judgebench": PairColumns(
        "question", ("response_A", "response_B"), {"A>B": "A", "B>A": "B"}, "source", "pair_id"
    ),
}


def parse_pair(row: RawColumns, where: str, form: Literal["llmbar", "judgebench"]) -> Comparison:
    """One comparison, its answers in the order of the file.

    All ``mmlu-pro-…`` sources of JudgeBench are the subset ``mmlu-pro``, as it reports.
    """
    columns, label = PAIR_COLUMNS[form], row.get("label")
    if isinstance(label, bool | list | dict) or label not in columns.labels:
        allowed = ", ".join(map(repr, columns.labels))
        raise BrokenRow("label", describe_found(label, label=True), allowed)
    name = check_id(row.get(columns.id), columns.id)
    subset = check_subset(row.get(columns.subset), columns.subset)
    a, b = (check_text(row.get(answer), answer, blank=True) for answer in columns.answers)
    return Comparison(
        prompt=prompt_messages(check_text(row.get(columns.prompt), columns.prompt)),
        a=a,
        b=b,
        label=columns.labels[label],
        where=where,
        subset="mmlu-pro" if subset and subset.startswith("mmlu-pro") else subset,
        source_ids=() if name is None else (f"{form}:{name}",),
    )


# Preferences: what both sides begin with is the prompt.

_PREFERENCE_COLUMNS = {
    name: name for name in ("chosen", "rejected", "prompt", "margin", "subset", "source_ids", "id")
}


def parse_preference(
    row: RawColumns, where: str, names: Mapping[str, str] = _PREFERENCE_COLUMNS
) -> Preference:
    """Two conversations, or two answers and the column ``prompt``; ``names`` are the columns'.

    A prompt beside conversations that share their beginning is ignored.
    """
    keys = (names["chosen"], names["rejected"])
    prompt = row.get(column := names.get("prompt", "prompt"))
    chosen, rejected = (_side(row.get(key), key, beside=prompt is not None) for key in keys)
    answers = chosen[0]["role"] == rejected[0]["role"] == "assistant"
    if prompt is not None and answers and chosen[0] != rejected[0]:
        asked = check_prompt(prompt, column)
        chosen, rejected = [*asked, *chosen], [*asked, *rejected]
    margin = check_margin(row.get(names["margin"]), names["margin"]) if "margin" in names else None
    return make_preference(chosen, rejected, margin, source_fields(row, where, names), keys)


def _side(value: Any, key: str, *, beside: bool) -> ChatMessages:
    """A side's messages; a text is the answer to the prompt ``beside`` it."""
    if isinstance(value, str):
        if value.startswith("\n\nAssistant:") or value.lstrip().startswith("Human:"):
            return _dialogue(value, key)
        if beside and not is_conversation_text(value):
            return [_message("assistant", check_text(value, key, blank=True))]
    return check_conversation(value, key)


_SPEAKER = re.compile(r"\n\n(Human|Assistant):")


def _dialogue(value: str, key: str) -> ChatMessages:
    """HH-RLHF: a whole conversation as one text."""
    pieces = _SPEAKER.split(check_text(value, key))
    if pieces[0].strip() or len(pieces) < 3:
        raise BrokenRow(key, "another beginning", r'"\n\nHuman:"')
    turns = []
    for number, (name, content) in enumerate(zip(pieces[1::2], pieces[2::2], strict=True)):
        if name != ("Human", "Assistant")[number % 2]:
            raise BrokenRow(key, f"two turns of {name} in a row", "Human and Assistant in turn")
        turns.append(_message("user" if name == "Human" else "assistant", content.strip()))
    if not all(turn["content"] for turn in turns):
        raise BrokenRow(key, "a turn without text", "turns with a text")
    if len(turns) > MAX_MESSAGES:
        raise BrokenRow(key, f"{len(turns)} turns", f"at most {MAX_MESSAGES}")
    return turns
