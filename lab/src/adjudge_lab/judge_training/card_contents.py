"""What training puts beside a judge: how its outputs rank, and a reward spec that asks it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.graders.llm.trained_judge_card import JudgeCard, ScoreNormalisation

_QUANTILE_LEVELS = tuple(level / 20 for level in range(21))


def fit_normalisation(scores: Sequence[float]) -> ScoreNormalisation:
    """Quantiles (every 5 %, linear between order statistics) of at least one score."""
    ranked = sorted(scores)
    found = []
    for level in _QUANTILE_LEVELS:
        place = level * (len(ranked) - 1)
        low = int(place)
        high = min(low + 1, len(ranked) - 1)
        between = ranked[low] + (place - low) * (ranked[high] - ranked[low])
        found.append(min(between, ranked[high]))  # never above it by rounding
    return ScoreNormalisation(_QUANTILE_LEVELS, tuple(found))


def reward_spec_of_card(card: JudgeCard) -> str | None:
    """A reward spec (TOML) for the judge's own folder; ``None`` for one that does not judge.

    A scalar judge gives its output's rank among the validation answers, a pointwise one its rating
    0 to 4; a pairwise one compares all answers of a group; their ranks are the rewards.
    """
    name = _NOT_IN_NAME.sub("_", card.label)[:60] or "judge"
    if not (name[0].isalpha() or name[0] == "_") or name in _RESERVED_NAMES:
        name = f"judge_{name}"
    if card.kind == "scalar":
        judge, lines = _SCALAR_SPEC, 'task = "score"\n'
    elif card.prompt is None:
        return None
    else:
        mode = card.prompt.get("mode", card.mode)
        judge = _PAIRWISE_SPEC if mode == "pairwise" else _POINTWISE_SPEC
        longest = _max_reply_tokens(card, card.prompt)
        lines = "" if longest is None else f"max_tokens = {longest}\n"
    return judge.format(name=name) + f'\n[judges.main]\ntype = "local"\nmodel = "."\n{lines}'


def _max_reply_tokens(card: JudgeCard, prompt: Mapping[str, Any]) -> int | None:
    """Tokens that a reply may have: what the prompt says, else as in training; ``None``: unknown.

    More than that would be taken from what is left for the question.
    """
    if isinstance(said := prompt.get("max_tokens"), int):
        return said
    if card.method == "grpo":
        asked = (card.config.get("grpo") or {}).get("max_response_length")
        return asked if isinstance(asked, int) else None
    lengths = msgspec.to_builtins(card.data.get("lengths"))
    answers = lengths.get("answers") if isinstance(lengths, dict) else None
    if answers is None or lengths.get("unit") != "tokens":
        return None
    return int(answers["longest"]) + _EXTRA_REPLY_TOKENS


_EXTRA_REPLY_TOKENS = 8
"""Tokens that a reply may have beyond the longest that was imitated."""

_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_]")
_RESERVED_NAMES = ("source", "events")
_SPEC_COMMENT = "# Asks the judge of this folder: adjudge serve FOLDER\n"
_GRADER_TABLE = '[[graders]]\nname = "{name}"\ntype = "adjudge.graders.llm.trained_judge:'

_SCALAR_SPEC = f"""{_SPEC_COMMENT}\
# Its rank among the validation answers, 0 to 1. For the raw output: type = "scalar"; for the
# probability of being better than the reference: "…trained_judge:ScalarPreference".
{_GRADER_TABLE}RankedScalar"
"""
_POINTWISE_SPEC = f"""{_SPEC_COMMENT}\
# Its rating, 0 to 4, as a share of 4.
{_GRADER_TABLE}TrainedRating"
"""
_PAIRWISE_SPEC = f"""{_SPEC_COMMENT}\
# Compares the answers to one prompt in pairs, in both orders; needs whole groups. To compare with
# a reference instead: "…trained_judge:TrainedPreference".
{_GRADER_TABLE}TrainedTournament"
"""
