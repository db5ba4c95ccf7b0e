"""A run in numbers: what each grader said, what it is worth, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import Cause, ErrorKind
from adjudge.graders.registry import SHIPPED
from adjudge.rewards.batch import Judged
from adjudge.rewards.samples import RewardResult
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runs.agreement import Agreement, concordance, within_group_concordance
from adjudge.runs.calls import grader_calls
from adjudge.runs.distributions import group_spread, mean, missing_by_bin, missing_by_value, std
from adjudge.runs.missing_watch import MissingWatch
from adjudge.types import GraderError, GraderResult, GraderScore, Role

__all__ = ["NOT_APPLICABLE_SHARE", "SUSPECT_SHARE", "Facts", "summarise"]

NOT_APPLICABLE_SHARE = 0.2
"""From here on it is said that a grader had nothing to judge."""
SUSPECT_SHARE = 0.1
"""From here on it is said that rewards are missing for what the answers may have brought about."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run keeps of a sample itself: lengths in characters, snippets of the text."""

    index: int
    group: str
    env_reward: float | None
    length: int
    properties: frozenset[str] = frozenset()
    tool_calls: int
    prompt: str
    response: str


def summarise(
    spec: RewardSpec,
    graders: Mapping[str, Any],
    facts: Sequence[Facts],
    judged: Sequence[Judged],
    results: Sequence[RewardResult],
    *,
    elapsed_s: float,
) -> dict[str, Any]:
    """The numbers of ``summary.json``; all sequences have one entry a sample, in input order.

    Against the environment's reward each grader has two figures: ``auc`` over all pairs of
    samples, and ``concordance`` over pairs inside a group, the only ones a GRPO group sees.
    """
    groups = [one.group for one in facts]
    env = [one.env_reward for one in facts]
    rewards = [result.score for result in results]
    drawn = [one.sampled for one in judged]
    missing = [gone is None and asked for gone, asked in zip(rewards, drawn, strict=True)]
    watch = _watched(facts, judged, missing)
    of_graders = {
        entry.name: _grader(entry, graders[entry.name], judged, results, env, groups)
        for entry in spec.graders
    }
    return {
        "samples": len(facts),
        "groups": _groups(groups),
        "reward": {
            **_spread(rewards, groups),
            "missing": sum(missing),
            "not_sampled": drawn.count(False),
            # A reward that the environment's is part of agrees with it by construction.
            **_agreements(rewards, env if spec.reward.combine_mode == "replace" else [], groups),
        },
        "graders": of_graders,
        "baselines": {
            "response_length": _agreements([float(f.length) for f in facts], env, groups),
            "tool_calls": _agreements([float(f.tool_calls) for f in facts], env, groups),
        },
        "env_reward": _env(env),
        "missing": {
            "by_kind": _kinds(result.missing for result in results),
            "passing": sum(one.missing is not None and one.missing.passing for one in results),
            "examples": _examples(results),
            "by_length_decile": missing_by_bin([float(f.length) for f in facts], missing),
            "by_env_reward": missing_by_value(env, missing),
            "by_property": [one.as_dict() for one in watch.table()],
            "by_group": _missing_groups(groups, missing),
            "suspect": _suspects(spec, judged),
        },
        "warnings": [
            *_suspect_share(results, drawn.count(True)),
            *(one.sentence for one in watch.predictors()),
            *_not_applicable(of_graders, drawn.count(True)),
        ],
        "elapsed_s": round(elapsed_s, 3),
        "samples_per_s": round(len(facts) / elapsed_s, 1) if elapsed_s > 0 else None,
    }


def _watched(
    facts: Sequence[Facts], judged: Sequence[Judged], missing: Sequence[bool]
) -> MissingWatch:
    """What the answers that were asked about have to do with their missing rewards."""
    rows = [(f, gone) for f, one, gone in zip(facts, judged, missing, strict=True) if one.sampled]
    watch = MissingWatch()
    watch.add(
        lambda place: rows[place][0].properties,
        [float(fact.length) for fact, _ in rows],
        [fact.group for fact, _ in rows],
        [gone for _, gone in rows],
    )
    return watch


def _missing_groups(groups: Sequence[str], missing: Sequence[bool]) -> dict[str, int]:
    """How many groups miss all their rewards, some, or none."""
    sizes = Counter(groups)
    lost = Counter(group for group, gone in zip(groups, missing, strict=True) if gone)
    whole = sum(lost[group] == size for group, size in sizes.items())
    return {"all": whole, "some": len(lost) - whole, "none": len(sizes) - len(lost)}


def _suspects(spec: RewardSpec, judged: Sequence[Judged]) -> int:
    """Samples with a failure of a counting grader that the candidate may have brought about."""
    counting = spec.counting
    return sum(
        any(
            isinstance(result, GraderError) and result.suspect and name in counting
            for name, result in one.results()
        )
        for one in judged
    )


def _suspect_share(results: Sequence[RewardResult], drawn: int) -> Iterator[str]:
    """Where whole groups are missing, nothing predicts it inside a group."""
    suspect = [one.missing for one in results if one.missing is not None and one.missing.suspect]
    share = len(suspect) / drawn if drawn else 0.0
    if share >= SUSPECT_SHARE:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in _kinds(suspect).items())
        yield (
            f"{share:.0%} of the rewards are missing for reasons that the answers may have brought "
            f"about ({kinds}); read some of them"
        )


def _not_applicable(graders: Mapping[str, Mapping[str, Any]], drawn: int) -> Iterator[str]:
    for name, found in graders.items():
        share = found["not_evaluable"] / drawn if drawn else 0.0
        if found["weight"] and share >= NOT_APPLICABLE_SHARE:
            yield (
                f"{name} had nothing to judge in {share:.0%} of the samples. In a group of which "
                "that is all it is left out; in others its stated score counts, unless "
                "reward.not_applicable says otherwise"
            )


def _groups(groups: Sequence[str]) -> dict[str, Any]:
    sizes = sorted(Counter(groups).values())
    return {
        "count": len(sizes),
        "size_min": sizes[0],
        "size_median": sizes[len(sizes) // 2],
        "size_max": sizes[-1],
    }


def _spread(values: Sequence[float | None], groups: Sequence[str]) -> dict[str, Any]:
    present = [value for value in values if value is not None]
    spread = group_spread(values, groups)
    return {
        "present": len(present),
        "missing": len(values) - len(present),
        "mean": mean(present),
        "std": std(present),
        "min": min(present, default=None),
        "max": max(present, default=None),
        "zero_spread_frac": spread.zero_frac,
        "within_group_std": spread.mean_std,
    }


def _grader(
    entry: GraderEntry,
    grader: Any,
    judged: Sequence[Judged],
    results: Sequence[RewardResult],
    env: Sequence[float | None],
    groups: Sequence[str],
) -> dict[str, Any]:
    scores = [result.reward_info[f"{entry.name}_score"] for result in results]
    said = [[result for name, result in one.results() if name == entry.name] for one in judged]
    errors = [r for some in said for r in some if isinstance(r, GraderError)]
    given = [r for some in said for r in some if isinstance(r, GraderScore)]
    score_range = getattr(grader, "score_range", None)
    spread = _spread(scores, groups)
    scores_present = spread.pop("present")
    not_drawn = sum(not one.sampled for one in judged)
    return {
        "type": entry.type if entry.type in SHIPPED else f"{entry.type} (own)",
        "role": str(Role(getattr(grader, "role", Role.SCORE))),
        "weight": entry.weight,
        "score_range": list(score_range) if score_range else None,
        "scored": scores_present,
        **spread,
        "missing": len(scores) - scores_present - not_drawn,
        "missing_by_kind": _kinds(errors),
        "not_evaluable": sum(_all_of(Cause.NOT_APPLICABLE, some) for some in said),
        "candidate_fault": sum(_all_of(Cause.CANDIDATE, some) for some in said),
        "untrusted": sum(not score.trusted for score in given),
        "judge": grader_calls(result for some in said for result in some),
        **_agreements(scores, env, groups),
    }


def _all_of(cause: Cause, results: Sequence[GraderResult]) -> bool:
    """Whether a grader's scores of one sample, which may be several of events, have a cause."""
    return bool(results) and all(
        isinstance(result, GraderScore) and result.cause is cause for result in results
    )


def _agreements(
    scores: Sequence[float | None], env: Sequence[float | None], groups: Sequence[str]
) -> dict[str, Any]:
    if all(value is None for value in env):
        return {"auc": None, "concordance": None}
    return {
        "auc": _figures(concordance(scores, env, groups)),
        "concordance": _figures(within_group_concordance(scores, env, groups)),
    }


def _figures(agreement: Agreement) -> dict[str, Any] | None:
    if agreement.value is None:
        return None
    return {
        "value": agreement.value,
        "low": agreement.low,
        "high": agreement.high,
        "pairs": agreement.pairs,
    }


def _env(env: Sequence[float | None]) -> dict[str, Any] | None:
    present = [value for value in env if value is not None]
    if not present:
        return None
    return {
        "present": len(present),
        "mean": mean(present),
        "std": std(present),
        "binary": len(set(present)) <= 2,
    }


def _examples(results: Sequence[RewardResult]) -> dict[str, str]:
    """The first message of each kind of missing reward."""
    found: dict[str, str] = {}
    for result in results:
        if result.missing is not None and result.missing.kind is not ErrorKind.NOT_SAMPLED:
            error = f"{result.missing.name}: {result.missing.error}"
            found.setdefault(str(result.missing.kind), error[:200])
    return found


def _kinds(errors: Any) -> dict[str, int]:
    kinds = (error.kind for error in errors if error is not None)
    counts = Counter(str(kind) for kind in kinds if kind is not ErrorKind.NOT_SAMPLED)
    return dict(counts.most_common())
