"""What an evaluation came to: official score, each grader against it, two policies compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.rewards.spec import RewardSpec
from adjudge.runs.distributions import mean
from adjudge.training.evaluating.comparing import Scores, compare, mean_of, pearson, spearman
from adjudge.training.evaluating.targets import Target
from adjudge.training.runfile import RunFile

__all__ = ["OFFICIAL", "REWARD", "judged_names", "official_of", "score_of", "summarise_eval"]

OFFICIAL = "official"
REWARD = "reward"
_ENVIRONMENT = "environment"

Rows = Sequence[Mapping[str, Any]]


def summarise_eval(
    run: RunFile,
    spec: RewardSpec,
    targets: Sequence[Target],
    rows: Sequence[Rows],
    spent: Sequence[Mapping[str, int]],
    *,
    judged: bool,
) -> dict[str, Any]:
    """The summary as plain data; ``rows[i]`` are those of ``targets[i]``, one a seed.

    ``scores`` of a model has its graders and, where judges were asked, the reward. A second model
    is the baseline that the first is compared with.
    """
    own = judged_names(run, spec)
    names = [*own, REWARD] if judged else own
    models = [
        _model(target, found, names, used)
        for target, found, used in zip(targets, rows, spent, strict=True)
    ]
    asks = {entry.name: spec.asks_judge(entry) for entry in spec.graders}
    weights = {entry.name: entry.weight for entry in spec.graders}
    return {
        "task": run.env_name,
        "seeds": len(rows[0]),
        "judges": judged,
        "judge": run.judge_name if judged else None,
        "combine_mode": run.judge.combine_mode if judged else None,
        "graders": [
            {"name": name, "weight": weights[name], "asks_judge": asks[name]} for name in own
        ],
        "models": models,
        "comparison": _compared(rows, names) if len(rows) == 2 else None,
    }


def judged_names(run: RunFile, spec: RewardSpec) -> list[str]:
    """The graders that say something of their own: not those that are the official score."""
    official = {run.rollout.env_grader, None if run.judge.enabled else _ENVIRONMENT}
    return [entry.name for entry in spec.graders if entry.name not in official]


def official_of(rows: Rows) -> Scores:
    """The official score of each seed."""
    return {row["seed"]: row["env_reward"] for row in rows}


def score_of(rows: Rows, name: str) -> Scores:
    """A grader's raw score of each seed, or the reward."""
    if name == REWARD:
        return {row["seed"]: row["reward"] for row in rows}
    return {row["seed"]: row["reward_info"].get(f"{name}_score") for row in rows}


def _model(
    target: Target, rows: Rows, names: Sequence[str], spent: Mapping[str, int]
) -> dict[str, Any]:
    official = official_of(rows)
    whole = [row for row in rows if row["error"] is None]
    return {
        "name": target.name,
        "kind": target.kind,
        "place": target.identity,
        "official": msgspec.to_builtins(mean_of(official)),
        "not_played": _counts(row["error"]["kind"] for row in rows if row["error"]),
        "no_official": sum(row["env_reward"] is None for row in whole),
        "turns": mean([float(row["turns"]) for row in whole]),
        "scores": {name: _against(rows, name, official) for name in names},
        "policy": dict(spent),
        "judges": _usage(rows),
    }


def _against(rows: Rows, name: str, official: Scores) -> dict[str, Any]:
    """A grader's mean, and how it goes with the official score; missing by kind."""
    scores = score_of(rows, name)
    gone = (_why(row, name) for row in rows if row["error"] is None and scores[row["seed"]] is None)
    return {
        "mean": msgspec.to_builtins(mean_of(scores)),
        "pearson": msgspec.to_builtins(pearson(scores, official)),
        "spearman": msgspec.to_builtins(spearman(scores, official)),
        "missing": _counts(gone),
    }


def _why(row: Mapping[str, Any], name: str) -> str:
    """The kind of failure because of which a whole episode has no score of this name."""
    if name == REWARD:
        missing = row["missing"]
        return str(missing["kind"]) if missing else "unknown"
    details = row["details"] or {}
    if name in details:
        return str(details[name].get("kind", "unknown"))
    events = details.get("events", {})
    turns = [events] if isinstance(events, Mapping) else [turn.get(name, {}) for turn in events]
    return next((str(turn["kind"]) for turn in turns if "kind" in turn), "unknown")


def _compared(rows: Sequence[Rows], names: Sequence[str]) -> dict[str, Any]:
    """The first policy against the second, by official score, grader and reward."""
    model, baseline = rows
    found = {OFFICIAL: compare(official_of(model), official_of(baseline))}
    for name in names:
        found[name] = compare(score_of(model, name), score_of(baseline, name))
    return {name: msgspec.to_builtins(one) for name, one in found.items()}


def _counts(kinds: Any) -> dict[str, int]:
    return dict(Counter(kinds).most_common())


def _usage(rows: Rows) -> dict[str, Any]:
    """What the judges' replies consumed; a cost where any of them has one."""
    used = [row["usage"] for row in rows if row["usage"]]
    costs = [one["cost_usd"] for one in used if one.get("cost_usd") is not None]
    return {
        "input_tokens": sum(one["input_tokens"] for one in used),
        "output_tokens": sum(one["output_tokens"] for one in used),
        "cost_usd": sum(costs) if costs else None,
    }
