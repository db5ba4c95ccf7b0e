"""One row of each benchmark's own shape as an item, or :class:`Broken` with key and reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.judge_training.benchmarks.items import BestOfItem, Label, PairItem, Turns
from adjudge.judge_training.data.conversation import ROLES

__all__ = [
    "TIES",
    "Broken",
    "judgebench_item",
    "llmbar_item",
    "preference_item",
    "rewardbench2_item",
]

TIES = "Ties"
"""The RewardBench-2 subset with several right answers."""

_RB2_SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES)
_WRONG_OF_FOUR = 3


class Broken(ValueError):
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
    named = {name.lower(): name for name in _RB2_SUBSETS}.get(subset.lower())
    if named is None:
        raise Broken(f"subset: found {subset[:40]!r}, allowed: {', '.join(_RB2_SUBSETS)}")
    chosen, rejected = _answers(row, "chosen"), _answers(row, "rejected")
    stated = row.get("num_correct")
    if stated is not None and stated != len(chosen):
        raise Broken(f"num_correct: found {_shown(stated)}, but chosen has {len(chosen)}")
    identity = _id(row, "id", where)
    if named == TIES:
        _check_ties(identity, len(chosen))
    elif (len(chosen), len(rejected)) != (1, _WRONG_OF_FOUR):
        raise Broken(
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
        raise Broken(f"label: found {_shown(label)}, allowed: 1, 2")
    columns = ("input", "output_1", "output_2")
    return _pair(row, where, _named(row, "subset", subset), columns, "A" if label == 1 else "B")


def judgebench_item(row: Mapping[str, Any], where: str, subset: str) -> PairItem:
    """A JudgeBench row; all ``mmlu-pro-…`` sources are the subset ``mmlu-pro``, as it reports."""
    labels: dict[Any, Label] = {"A>B": "A", "B>A": "B"}
    label = row.get("label")
    if not isinstance(label, str) or label not in labels:
        raise Broken(f"label: found {_shown(label)}, allowed: 'A>B', 'B>A'")
    named = _named(row, "source", subset)
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
        raise Broken("chosen, rejected: are the same conversation, so neither is better")
    shared = 0
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    for key, side in (("chosen", chosen), ("rejected", rejected)):
        if shared == len(side) or side[-1]["role"] != "assistant":
            raise Broken(f"{key}: does not end with an assistant's turn of its own")
        if any("tool_calls" in turn for turn in side[shared:]):
            raise Broken(f"{key}: answers with tool calls, of which judges read nothing")
    prompt = chosen[:shared] or _given_prompt(row)
    if not shared and not chosen[0]["role"] == rejected[0]["role"] == "assistant":
        raise Broken("chosen, rejected: share no turn and are no mere answers to the prompt beside")
    if not any(turn["role"] == "user" for turn in prompt):
        raise Broken("chosen, rejected: begin without a user's turn, so nothing is asked")
    return PairItem(
        id=_id(row, "id", where),
        subset=_named(row, "subset", subset),
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
    label: Label,
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
        raise Broken(f"id: found {identity[:40]!r}, a Ties id is 'ref:N' or 'tied:N', N as in 12")
    if (correct == 1) != (sort == "ref"):
        wanted = "1" if sort == "ref" else "2 or more"
        raise Broken(f"chosen: found {correct} right answers, {sort!r} prompts have {wanted}")


def _named(row: Mapping[str, Any], key: str, default: str) -> str:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise Broken(f"{key}: found {_shown(value)}, must be text")
    return value or default


def _id(row: Mapping[str, Any], key: str, where: str) -> str:
    """The row's id, else its place."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int):
        if value is None:
            return where
        raise Broken(f"{key}: found {_shown(value)}, must be text or a whole number")
    return str(value)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise Broken(f"{key}: found {_shown(value)}, must be text")
    return value


def _answers(row: Mapping[str, Any], key: str) -> list[str]:
    value = row.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
        raise Broken(f"{key}: found {_shown(value)}, must be a list of texts, not empty")
    return value


def _prompt(row: Mapping[str, Any], key: str) -> Turns:
    return [{"role": "user", "content": _text(row, key)}]


def _side(row: Mapping[str, Any], key: str) -> Turns:
    """A side's turns; a text is the answer to the row's prompt."""
    value = row.get(key)
    if not isinstance(value, str):
        return _turns(value, key)
    begins = value.lstrip()
    if begins.startswith("Human:"):
        raise Broken(
            f"{key}: is a 'Human: … Assistant: …' text; convert the file first: "
            "preferences_from of adjudge.judge_training.data.convert, write_rows of ….data.write"
        )
    if row.get("prompt") is None:
        return _turns(value, key)
    return _listed(value, key) or [{"role": "assistant", "content": value}]


def _given_prompt(row: Mapping[str, Any]) -> Turns:
    given = row.get("prompt")
    if given is None:
        raise Broken("chosen, rejected: share no turn, and there is no prompt beside them")
    if isinstance(given, str):
        return _listed(given, "prompt") or _prompt(row, "prompt")
    return _turns(given, "prompt")


def _listed(text: str, key: str) -> Turns | None:
    """The messages whose JSON a text is, if it is: it may but begin like a list."""
    if not text.lstrip().startswith("["):
        return None
    try:
        return _turns(text, key)
    except Broken:
        return None


def _turns(value: Any, key: str) -> Turns:
    """Messages from a list or from the JSON text of one."""
    try:
        if isinstance(value, str):
            turns = msgspec.json.decode(value, type=list[_Turn])
        else:
            turns = msgspec.convert(value, type=list[_Turn])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Broken(f"{key}: must be messages with role and content as text: {error}") from None
    if not turns:
        raise Broken(f"{key}: found no message, must have at least one")
    if strange := [turn.role for turn in turns if turn.role not in ROLES]:
        raise Broken(f"{key}: found the role {_shown(strange[0])}, allowed: {', '.join(ROLES)}")
    return [
        {"role": turn.role, "content": turn.content}
        | ({"tool_calls": turn.tool_calls} if turn.tool_calls else {})
        for turn in turns
    ]


def _margin(value: Any) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None  # NaN is how pandas writes "none"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Broken(f"margin: found {_shown(value)}, must be a finite number")
    return float(value)


def _shown(value: Any) -> str:
    """What was found, without the text of a sample."""
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float):
        return repr(value)[:40]
    if isinstance(value, str) and len(value) <= 12:
        return repr(value)
    size = f" of {len(value)}" if isinstance(value, str | list | dict) else ""
    return f"a {type(value).__name__}{size}"
