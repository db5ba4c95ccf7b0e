r"""Published data sets: by which columns each is known, and what one of its rows says.

=====================  =====================================================================
helpsteer2             ``prompt``, ``response``, ``helpfulness`` 0 to 4 (more attributes are
                       ignored)
helpsteer2-preference  ``prompt``, ``response_1``, ``response_2``, ``preference_strength`` −3
                       (the first is much better) to 3 (the second)
helpsteer3             ``context`` (messages), ``response1``, ``response2``,
                       ``overall_preference`` −3 to 3, ``domain``
ultrafeedback          ``instruction``, ``completions``: ``response``, ``overall_score``
rewardbench2           ``id``, ``prompt``, ``chosen`` and ``rejected`` (lists of texts),
                       ``subset`` (``num_correct`` and ``num_incorrect`` are checked)
llmbar                 ``input``, ``output_1``, ``output_2``, ``label`` 1 or 2
judgebench             ``pair_id``, ``source``, ``question``, ``response_A``, ``response_B``,
                       ``label`` "A>B" or "B>A"
arena                  ``prompt``, ``response_a``, ``response_b``, ``winner``: model_a, model_b
                       or a tie
alpaca-eval            ``instruction``, ``output_1``, ``output_2``, ``preference`` from 1 (the
                       first is better) to 2 (the second), 1.5 a tie
arena-conversations    ``conversation_a``, ``conversation_b`` (messages), ``winner``
openai-preference      ``input.messages``, ``preferred_output``, ``non_preferred_output``
preference             ``chosen``, ``rejected``: conversations, or answers to the ``prompt``
                       beside, or the "\n\nHuman: … \n\nAssistant: …" texts of HH; ``margin``,
                       ``subset``, ``id``
=====================  =====================================================================

Who trains judges and who evaluates them reads a row with the same function; each then checks what
only it needs. What cannot be read faithfully raises :class:`~adjudge.datasets.rows.BrokenRow` and
is never mended.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Literal, NamedTuple

from adjudge.datasets.files import RawColumns
from adjudge.datasets.rows import (
    MAX_MESSAGES,
    MAX_PAIRS_PER_PROMPT,
    BrokenRow,
    ChatMessages,
    Comparison,
    Preference,
    PreferenceLabel,
    Rating,
    SourcedRow,
    check_answers,
    check_conversation,
    check_margin,
    check_prompt,
    check_rating,
    check_subset,
    check_text,
    describe_found,
    make_preference,
    source_fields,
)
from adjudge.intake.conversation import looks_like_messages
from adjudge.messages import prompt_messages

PairFormat = Literal[
    "llmbar", "judgebench", "helpsteer2-preference", "helpsteer3", "arena", "alpaca-eval"
]
RowFormat = Literal[
    "rewardbench2",
    "preference",
    "openai-preference",
    "ultrafeedback",
    "arena-conversations",
    PairFormat,
]
"""One row has all answers to its prompt."""
PublishedFormat = Literal["helpsteer2", RowFormat]


def match_formats(row: RawColumns) -> Iterator[PublishedFormat]:
    """The formats of which ``row`` has the columns.

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
        if row.keys() >= {columns.prompt, *columns.answers, columns.label}:
            yield name
    if row.keys() >= {"input", *_OPENAI_SIDES}:
        yield "openai-preference"
    if row.keys() >= {"conversation_a", "conversation_b", "winner"}:
        yield "arena-conversations"
    if row.keys() >= {"instruction", "completions"} and isinstance(row["completions"], list):
        yield "ultrafeedback"


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


# HelpSteer2: "…<extra_id_1>Assistant\n…<extra_id_1>User\n…" in prompts of several turns.


def parse_helpsteer2(row: RawColumns, where: str) -> Rating:
    """One answer, its label the helpfulness."""
    prompt = _extra_id_turns(row.get("prompt"), "prompt")
    answer = check_text(row.get("response"), "response")
    label = check_rating(row.get("helpfulness"), "helpfulness")
    return Rating(messages=[*prompt, _message("assistant", answer)], label=label, where=where)


def _extra_id_turns(value: Any, key: str) -> ChatMessages:
    first, *rest = check_text(value, key).split("<extra_id_1>")
    turns = [_message("user", first.strip("\n"))]
    for number, piece in enumerate(rest, start=1):
        name, role = (("Assistant", "assistant"), ("User", "user"))[(number + 1) % 2]
        said, line, content = piece.partition("\n")
        if not line or said.strip() != name:
            raise BrokenRow(key, f"turn {number} of another speaker", f"{name} after <extra_id_1>")
        turns.append(_message(role, content.strip("\n")))
    if turns[-1]["role"] != "user" or not all(turn["content"].strip() for turn in turns):
        raise BrokenRow(key, f"{len(turns)} turns", "turns with a text, the user's last")
    return turns


# All formats alike: answers, each with a rating. UltraFeedback has several, of several models.


class RatedAnswers(SourcedRow, frozen=True, kw_only=True):
    """All answers of a row, each at the end of its conversation, and how good each is.

    The better answer of a pair has 1, the worse one 0, both of a tie ½; ``None``: not rated.
    """

    conversations: list[ChatMessages]
    ratings: Sequence[float | None]


def _rate_helpsteer2(row: RawColumns, where: str) -> RatedAnswers:
    rated = parse_helpsteer2(row, where)
    return RatedAnswers(conversations=[rated.messages], ratings=[rated.label], where=where)


def rate_rewardbench2(row: RawColumns, where: str) -> RatedAnswers:
    """RewardBench 2: right answers and then wrong ones, any number of each."""
    sides = [_texts(row.get(key), key) for key in ("chosen", "rejected")]
    right, wrong = map(len, sides)
    stated = {"num_correct": ("chosen", right), "num_incorrect": ("rejected", wrong)}
    for counted, (key, count) in stated.items():
        if row.get(counted) not in (None, count):
            raise BrokenRow(counted, describe_found(row[counted]), f"{count}, as {key} has")
    prompt = prompt_messages(check_text(row.get("prompt"), "prompt"))
    subset = check_subset(row.get("subset"), "subset")
    ratings = [1.0] * right + [0.0] * wrong
    return _continue(prompt, [*sides[0], *sides[1]], ratings, where, subset)


def _texts(value: Any, key: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise BrokenRow(key, describe_found(value), "a list of one or more answers")
    return [check_text(one, f"{key}[{number}]", blank=True) for number, one in enumerate(value)]


def _rate_pair(row: RawColumns, where: str, form: PairFormat) -> RatedAnswers:
    pair = parse_pair(row, where, form)
    return _continue(pair.prompt, [pair.a, pair.b], PAIR_RATINGS[pair.label], where, pair.subset)


def _continue(
    prompt: ChatMessages,
    answers: list[str],
    ratings: Sequence[float | None],
    where: str,
    subset: str | None,
) -> RatedAnswers:
    talks = [[*prompt, _message("assistant", text)] for text in answers]
    return RatedAnswers(conversations=talks, ratings=ratings, where=where, subset=subset)


def _rate_ultrafeedback(row: RawColumns, where: str) -> RatedAnswers:
    completions = row.get("completions")
    if not isinstance(completions, list) or not completions:
        raise BrokenRow("completions", describe_found(completions), "a list of one or more answers")
    answers, ratings = [], []
    for number, one in enumerate(completions):
        key = f"completions[{number}]"
        if not isinstance(one, dict):
            raise BrokenRow(key, describe_found(one), "an object {response, overall_score}")
        answers.append(check_text(one.get("response"), f"{key}.response", blank=True))
        ratings.append(_overall_score(one.get("overall_score"), f"{key}.overall_score"))
    prompt = prompt_messages(check_text(row.get("instruction"), "instruction"))
    return _continue(prompt, answers, ratings, where, check_subset(row.get("source"), "source"))


def _overall_score(value: Any, key: str) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise BrokenRow(key, describe_found(value), "a finite number, or null")
    return float(value)


# LLMBar, JudgeBench, HelpSteer, arenas: two answers by position, and which is the better.


class PairColumns(NamedTuple):
    """Which columns a format of pairs has; ``labels`` says which answer each label names."""

    prompt: str
    answers: tuple[str, str]
    labels: Mapping[Hashable, PreferenceLabel]
    subset: str
    id: str = "id"
    label: str = "label"
    parse_prompt: Callable[[Any, str], ChatMessages] = check_prompt


def _text_prompt(value: Any, key: str) -> ChatMessages:
    return prompt_messages(check_text(value, key))


_STRENGTHS: Mapping[Hashable, PreferenceLabel] = {
    -3: "A", -2: "A", -1: "A", 0: "tie", 1: "B", 2: "B", 3: "B"
}  # fmt: skip
_WINNERS: Mapping[Hashable, PreferenceLabel] = {
    "model_a": "A",
    "model_b": "B",
    "A": "A",
    "B": "B",
    "tie": "tie",
    "tie (bothbad)": "tie",
    "both_bad": "tie",
}

PAIR_COLUMNS: Mapping[PairFormat, PairColumns] = {
    "llmbar": PairColumns(
        "input", ("output_1", "output_2"), {1: "A", 2: "B"}, "subset", parse_prompt=_text_prompt
    ),
    "judgebench": PairColumns(
        "question",
        ("response_A", "response_B"),
        {"A>B": "A", "B>A": "B"},
        "source",
        "pair_id",
        parse_prompt=_text_prompt,
    ),
    "helpsteer2-preference": PairColumns(
        "prompt",
        ("response_1", "response_2"),
        _STRENGTHS,
        "subset",
        label="preference_strength",
        parse_prompt=_extra_id_turns,
    ),
    "helpsteer3": PairColumns(
        "context", ("response1", "response2"), _STRENGTHS, "domain", label="overall_preference"
    ),
    "arena": PairColumns(
        "prompt", ("response_a", "response_b"), _WINNERS, "subset", label="winner"
    ),
    "alpaca-eval": PairColumns(
        "instruction",
        ("output_1", "output_2"),
        {1: "A", 1.5: "tie", 2: "B"},
        "dataset",
        label="preference",
        parse_prompt=_text_prompt,
    ),
}


PAIR_RATINGS: Mapping[PreferenceLabel, tuple[float, float]] = {
    "A": (1.0, 0.0),
    "B": (0.0, 1.0),
    "tie": (0.5, 0.5),
}
RATING_COLUMNS: Mapping[RowFormat, str] = {
    **{name: columns.label for name, columns in PAIR_COLUMNS.items()},
    "ultrafeedback": "completions",
    "arena-conversations": "winner",
    "rewardbench2": "chosen",
}
"""The column that says which answers of a row are better, where a row may not say it."""


def parse_pair(row: RawColumns, where: str, form: PairFormat) -> Comparison:
    """One comparison, its answers in the order of the file.

    All ``mmlu-pro-…`` sources of JudgeBench are the subset ``mmlu-pro``, as it reports.
    """
    columns = PAIR_COLUMNS[form]
    found = row.get(columns.label)
    if form == "alpaca-eval" and isinstance(found, float) and 1 < found < 2 and found != 1.5:
        found = 1 if found < 1.5 else 2  # the mean of an annotator's labels
    label = _pair_label(found, columns.label, columns.labels)
    subset = check_subset(row.get(columns.subset), columns.subset)
    a, b = (check_text(row.get(answer), answer, blank=True) for answer in columns.answers)
    return Comparison(
        prompt=columns.parse_prompt(row.get(columns.prompt), columns.prompt),
        a=a,
        b=b,
        label=label,
        where=where,
        subset="mmlu-pro" if subset and subset.startswith("mmlu-pro") else subset,
    )


def _pair_label(
    value: Any, key: str, labels: Mapping[Hashable, PreferenceLabel]
) -> PreferenceLabel:
    if isinstance(value, bool | list | dict) or value not in labels:
        raise BrokenRow(key, describe_found(value, label=True), ", ".join(map(repr, labels)))
    return labels[value]


def _rate_arena(row: RawColumns, where: str) -> RatedAnswers:
    """One battle of an arena, of one turn or more."""
    label = _pair_label(row.get("winner"), "winner", _WINNERS)
    # What an arena counts in each message (tokens) differs between the two sides.
    sides = [
        [_message(one["role"], one["content"]) for one in check_conversation(row.get(key), key)]
        for key in ("conversation_a", "conversation_b")
    ]
    return RatedAnswers(conversations=sides, ratings=PAIR_RATINGS[label], where=where)


# Preferences: what both sides begin with is the prompt.

_PREFERENCE_COLUMNS = {name: name for name in ("chosen", "rejected", "prompt", "margin", "subset")}


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


_OPENAI_SIDES = ("preferred_output", "non_preferred_output")


def _parse_openai_preference(row: RawColumns, where: str) -> Preference:
    """OpenAI's fine-tuning by preference: ``input.messages``, and two lists of messages."""
    asked = row["input"].get("messages") if isinstance(row["input"], dict) else None
    prompt = check_prompt(asked, "input.messages")
    chosen, rejected = ([*prompt, *check_conversation(row[key], key)] for key in _OPENAI_SIDES)
    return make_preference(chosen, rejected, None, {"where": where}, _OPENAI_SIDES)


def _side(value: Any, key: str, *, beside: bool) -> ChatMessages:
    """A side's messages; a text is the answer to the prompt ``beside`` it."""
    if isinstance(value, str):
        if value.startswith("\n\nAssistant:") or value.lstrip().startswith("Human:"):
            return _dialogue(value, key)
        if beside and not looks_like_messages(value):
            return [_message("assistant", check_text(value, key, blank=True))]
        if not beside and value.strip() and value.lstrip()[0] not in "[{":
            raise BrokenRow("prompt", "nothing", f"what {key} answers, which is a plain text")
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


_READERS: Mapping[PublishedFormat, Callable[[RawColumns, str], RatedAnswers]] = {
    **{name: partial(_rate_pair, form=name) for name in PAIR_COLUMNS},
    "helpsteer2": _rate_helpsteer2,
    "rewardbench2": rate_rewardbench2,
    "ultrafeedback": _rate_ultrafeedback,
    "arena-conversations": _rate_arena,
}
_PREFERENCES: Mapping[PublishedFormat, Callable[[RawColumns, str], Preference]] = {
    "preference": parse_preference,
    "openai-preference": _parse_openai_preference,
}


def read_answers(row: RawColumns, where: str, form: PublishedFormat) -> RatedAnswers:
    """What one row of any format says of its answers."""
    if (parse := _PREFERENCES.get(form)) is None:
        return _READERS[form](row, where)
    pair = parse(row, where)
    sides = [pair.chosen, pair.rejected]
    return RatedAnswers(conversations=sides, ratings=PAIR_RATINGS["A"], where=where)


# Pairs of answers of which one is better.


def parse_answered_pair(row: RawColumns, where: str, *, form: Any) -> Comparison:
    """One comparison of published pairs; both answers must say something."""
    return check_answers(parse_pair(row, where, form), *PAIR_COLUMNS[form].answers)


def parse_preferences(row: RawColumns, where: str, form: RowFormat) -> list[Preference]:
    """Every pair of answers in one row of which one is better.

    The ``margin`` of ``ultrafeedback`` is the difference of the ratings. Whether the answers of
    ``preference`` and ``openai-preference`` say something, their reader checks. A row without such
    a pair, as a tie is, is a broken row.
    """
    if parse := _PREFERENCES.get(form):
        return [parse(row, where)]
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
        margin = abs(own - its) if form == "ultrafeedback" else None
        fields = {"where": found.where, "subset": found.subset}
        pair = make_preference(better, worse, margin, fields)
        pairs.append(check_answers(pair, "chosen", "rejected"))
    if not pairs:
        raise BrokenRow(RATING_COLUMNS[form], "a tie", "one answer that is better")
    return pairs
