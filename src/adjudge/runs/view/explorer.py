"""Histograms, groups and single samples, when the page asks for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.rewards.groups import group_step, mean_and_std
from adjudge.runs.distributions import bins_for, histogram, mean, std
from adjudge.runs.view.explain import explained
from adjudge.runs.view.reading import RunReading
from adjudge.runs.view.rollouts import Rollouts

__all__ = ["SHOWN", "group", "groups", "histograms", "sample"]

SHOWN = ("all", "missing", "turned", "flat")
"""Which groups a list can be narrowed to."""

_PAGE = 20
_MOST_MEMBERS = 256
_SNIPPET = 200


def histograms(reading: RunReading, first: int, last: int) -> dict[str, Any]:
    """How rewards and their parts are distributed over the steps from ``first`` to ``last``."""
    rollouts = reading.rollouts
    rows = list(rollouts.rows_between(first, last))
    columns = {"reward": rollouts.reward, "environment’s reward": rollouts.env_reward}
    columns |= {_score_name(key): values for key, values in rollouts.scores.items()}
    found = [_histogram(name, rollouts.column(c, rows), len(rows)) for name, c in columns.items()]
    return {"samples": len(rows), "charts": [chart for chart in found if chart is not None]}


def _score_name(key: str) -> str:
    return f"score of {key.removesuffix('_score')}" if key.endswith("_score") else key


def _histogram(name: str, values: Sequence[float], of: int) -> dict[str, Any] | None:
    if not values:
        return None
    found = histogram(values, bins_for(values))
    centre, spread = mean_and_std(values)
    return {
        "name": name,
        "edges": found.bins.edges,
        "half": found.bins.half,
        "counts": found.counts,
        "present": len(values),
        "missing": of - len(values),
        "mean": centre,
        "std": spread if len(values) > 1 else None,
    }


# --- groups -------------------------------------------------------------------------------------


def groups(reading: RunReading, first: int, last: int, *, show: str, page: int) -> dict[str, Any]:
    """A page of the groups of some steps, the latest step first.

    ``show`` narrows them to those with a missing reward, with an advantage that would turn, or
    without spread.
    """
    rollouts = reading.rollouts
    steps = sorted((step for step in rollouts.steps if first <= step <= last), reverse=True)
    found = [one for step in steps for one in rollouts.steps[step]]
    kept = [one for one in found if _kept(rollouts, one, show)] if show != "all" else found
    pages = max(1, math.ceil(len(kept) / _PAGE))
    page = min(max(0, page), pages - 1)
    shown = kept[page * _PAGE : (page + 1) * _PAGE]
    return {
        "of": len(found),
        "found": len(kept),
        "page": page,
        "pages": pages,
        "groups": [_group_line(rollouts, one) for one in shown],
    }


def _kept(rollouts: Rollouts, one: int, show: str) -> bool:
    if show == "missing":
        return one in rollouts.missing
    if show == "turned":
        return one in rollouts.missing and rollouts.turned(one) > 0
    return std(_present_rewards(rollouts, one)) == 0


def _present_rewards(rollouts: Rollouts, one: int) -> list[float]:
    snapped = group_step(rollouts.rewards_of(one), "none")
    return [reward for reward in snapped if reward is not None]


def _group_line(rollouts: Rollouts, one: int) -> dict[str, Any]:
    found = rollouts.groups[one]
    present = _present_rewards(rollouts, one)
    return {
        "id": one,
        "name": found.name,
        "step": found.step,
        "size": len(found.rows),
        "missing": rollouts.missing.get(one, 0),
        "turned": rollouts.turned(one),
        "mean": mean(present),
        "std": std(present),
    }


def group(reading: RunReading, one: int) -> dict[str, Any] | None:
    """A group's members with their advantages, computed with failures left out and as 0.

    ``None`` where there is no such group. Of a very large group the first members are shown;
    means and advantages are of all.
    """
    rollouts = reading.rollouts
    if not 0 <= one < len(rollouts.groups):
        return None
    found = rollouts.groups[one]
    both = rollouts.both_ways(one)
    turned = set(both.turned)
    members = [
        {
            **_member(reading, row),
            "left_out": both.left_out[place],
            "as_zero": both.as_zero[place],
            "turned": place in turned,
        }
        for place, row in enumerate(found.rows[:_MOST_MEMBERS])
    ]
    return {
        **_group_line(rollouts, one),
        "members": members,
        "score_names": [name.removesuffix("_score") for name in rollouts.scores],
        "mean_as_zero": both.mean_as_zero,
        "std_as_zero": both.std_as_zero,
    }


def _member(reading: RunReading, row: int) -> dict[str, Any]:
    rollouts, found = reading.rollouts, reading.row(row) or {}
    return {
        "row": row,
        "index": rollouts.places[row],
        "reward": _or_none(rollouts.reward[row]),
        "missing": rollouts.kinds[rollouts.kind_of[row]],
        "env_reward": _or_none(rollouts.env_reward[row]),
        "advantage": _or_none(rollouts.advantage[row]),
        "turn_advantages": _list(found.get("turn_advantages")) or None,
        "tokens": _or_none(rollouts.tokens[row]),
        "scores": [rollouts.score(key, row) for key in rollouts.scores],
        "said": _said(found),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _said(row: Mapping[str, Any]) -> str:
    """The beginning of what the policy said last."""
    for message in reversed(_list(row.get("messages"))):
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            return content[:_SNIPPET] if isinstance(content, str) else ""
    return ""


# --- one sample ---------------------------------------------------------------------------------


def sample(reading: RunReading, row: int) -> dict[str, Any] | None:
    """One sample's story: its row as written, and what can be said about it.

    ``turns`` has, by place in ``messages``, what belongs to a reply: its number, the environment's
    reward, the advantage, the verdicts. ``formula`` is how the reward came together, if known.
    ``None`` where there is no such sample, or its file has changed since it was indexed.
    """
    rollouts = reading.rollouts
    if not 0 <= row < len(rollouts):
        return None
    found = reading.row(row)
    if found is None:
        return None
    one = rollouts.group_of[row]
    members = list(rollouts.groups[one].rows)
    place = members.index(row)
    both = rollouts.both_ways(one)
    return {
        "row": row,
        "group": _group_line(rollouts, one),
        "previous": members[place - 1] if place else None,
        "next": members[place + 1] if place + 1 < len(members) else None,
        "left_out": both.left_out[place],
        "as_zero": both.as_zero[place],
        "turned": place in both.turned,
        "formula": explained(reading.combination, found),
        "turns": _turns(found),
        "sample": found,
    }


def _turns(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is known of each reply. Lists shorter than the replies are of the last ones."""
    messages = _list(row.get("messages"))
    replies = [
        place
        for place, message in enumerate(messages)
        if isinstance(message, dict) and message.get("role") == "assistant"
    ]
    details = row.get("details")
    events = details.get("events") if isinstance(details, dict) else None
    lists = {
        "env_reward": _list(row.get("turn_rewards")),
        "advantage": _list(row.get("turn_advantages")),
        "verdicts": _list(events),
    }
    return [
        {
            "message": message,
            **{key: _aligned(values, number, len(replies)) for key, values in lists.items()},
        }
        for number, message in enumerate(replies)
    ]


def _aligned(values: Sequence[Any], number: int, replies: int) -> Any:
    place = number - (replies - len(values))
    return values[place] if 0 <= place < len(values) else None
