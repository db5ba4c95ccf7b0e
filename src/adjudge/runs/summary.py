"""A run in numbers: what each grader said, what it is worth, what is missing, and what predicts it.

A judge's failure may depend on the answer: refusals, requests that are too long, replies that
cannot be read. Each such reward is missing, which a policy may prefer to a low one. So rates of
missing rewards are compared between answers with and without simple properties, inside groups,
where the prompt is the same. Pure Python, because the core has no numpy.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from adjudge.errors import Cause, ErrorKind
from adjudge.graders.registry import SHIPPED
from adjudge.rewards.batch import GradedSample
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runs.judge_calls import summarise_grader_calls
from adjudge.runs.stats import (
    ConcordanceEstimate,
    concordance,
    group_spread,
    mean,
    missing_by_bin,
    missing_by_value,
    std,
    within_group_concordance,
)
from adjudge.types import GraderError, GraderResult, GraderScore, RewardResult, Role

__all__ = [
    "NOT_APPLICABLE_SHARE",
    "SUSPECT_SHARE",
    "MissingPredictor",
    "MissingWatch",
    "SampleFacts",
    "answer_properties",
    "summarise_grading",
]


Z_LIMIT = 4.0
MIN_MISSING = 5
MIN_RATIO = 2.0

_JUDGING = ("score", "grade", "grading", "judg", "rating", "verdict", "rubric")
_HUGE_NUMBER = re.compile("[0-9]{12}")
_ENDS = 4_000
"""Characters at each end of an answer that are looked at: long ones must cost no more."""
_MARKUP = re.compile(r"</?[A-Za-z]")
_PROPERTIES: Mapping[str, Callable[[str], bool]] = {
    "empty": lambda text: not text.strip(),
    "code block": lambda text: "```" in text,
    "LaTeX": lambda text: "\\" in text or "$" in text,
    "JSON": lambda text: text.lstrip()[:1] in ("{", "["),
    "markup": lambda text: _MARKUP.search(text) is not None,
    "control token": lambda text: "<|" in text,
    "not ASCII": lambda text: not text.isascii(),
    "link": lambda text: "http" in text,
    "words about judging": lambda text: any(map(text.lower().__contains__, _JUDGING)),
    "huge number": lambda text: _HUGE_NUMBER.search(text) is not None,
}
_LONG, _SHORT = "longer than the median", "shorter than the median"


def answer_properties(text: str) -> frozenset[str]:
    """The simple properties of an answer that are watched; its length is compared elsewhere.

    Of a long answer the beginning and the end are looked at.
    """
    if len(text) > 2 * _ENDS:
        text = f"{text[:_ENDS]}\n{text[-_ENDS:]}"
    return frozenset(name for name, has in _PROPERTIES.items() if has(text))


class MissingPredictor(msgspec.Struct, frozen=True, kw_only=True):
    """A property and the missing rewards of answers with and without it, where any is missing.

    ``z``: the Cochran-Mantel-Haenszel statistic over groups, with continuity correction.
    ``across_prompts``: samples that are alone in their groups were compared, too.
    """

    name: str
    n: int
    missing: int
    n_without: int
    missing_without: int
    z: float
    across_prompts: bool = False

    @property
    def predicts(self) -> bool:
        """Whether answers with the property go missing more often, beyond chance.

        ``Z_LIMIT`` of 4 leaves room for a dozen properties that are looked at again and again.
        """
        if self.missing < MIN_MISSING or self.z < Z_LIMIT or not self.n_without:
            return False
        without = self.missing_without / self.n_without
        return self.missing / self.n >= MIN_RATIO * without

    @property
    def sentence(self) -> str:
        """The finding in words."""
        share, other = self.missing / self.n, self.missing_without / self.n_without
        whose = "others" if self.across_prompts else "others to the same prompts"
        unless = ", unless their prompts are the reason" if self.across_prompts else ""
        return (
            f"answers with the property {self.name!r} have no reward in {share:.0%} of "
            f"{self.n:,}, {whose} in {other:.0%} of {self.n_without:,}: the policy may learn to "
            f"bring failures about{unless}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a summary."""
        return {**msgspec.structs.asdict(self), "z": round(self.z, 2), "predicts": self.predicts}


class _Counts:
    """One property's counts so far, and the sums of the statistic."""

    def __init__(self) -> None:
        self.n = self.missing = self.n_without = self.missing_without = 0
        self.excess = self.variance = 0.0

    def add(self, n: int, having: int, missing: int, both: int) -> None:
        """A group of ``n``: ``having`` the property, ``missing`` a reward, ``both``."""
        self.n += having
        self.missing += both
        self.n_without += n - having
        self.missing_without += missing - both
        self.excess += both - having * missing / n
        self.variance += having * (n - having) * missing * (n - missing) / (n * n * (n - 1))

    @property
    def z(self) -> float:
        if self.variance <= 0:
            return 0.0
        return max(0.0, self.excess - 0.5) / math.sqrt(self.variance)


class MissingWatch:
    """Counts over any number of batches; the members of a group belong into one batch.

    Samples that are alone in their group are compared with each other. Groups without a missing
    reward, and those of which all are missing, tell nothing here.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._across_prompts = False

    def add(
        self,
        properties: Callable[[int], frozenset[str]],
        lengths: Sequence[float],
        groups: Sequence[str],
        missing: Sequence[bool],
    ) -> None:
        """A batch: length and group of each answer, and whether its reward is missing.

        ``properties`` of the answer at a place are asked for only where they are compared. The
        caller leaves out samples that were not asked for.
        """
        members: dict[str, list[int]] = {}
        for place, group in enumerate(groups):
            members.setdefault(group, []).append(place)
        alone = [places[0] for places in members.values() if len(places) == 1]
        strata = [places for places in members.values() if len(places) > 1] + [alone]
        self._across_prompts |= any(missing[place] for place in alone)
        for places in strata:
            lost = [missing[place] for place in places]
            if 0 < sum(lost) < len(places):
                self._add_stratum(
                    [properties(place) for place in places],
                    [lengths[place] for place in places],
                    lost,
                )

    def _add_stratum(
        self, properties: Sequence[frozenset[str]], lengths: Sequence[float], lost: Sequence[bool]
    ) -> None:
        middle = median(lengths)
        held = {name: [name in one for one in properties] for name in _PROPERTIES}
        held[_LONG] = [length > middle for length in lengths]
        held[_SHORT] = [length < middle for length in lengths]
        total = sum(lost)
        for name, having in held.items():
            both = sum(has and gone for has, gone in zip(having, lost, strict=True))
            counts = self._counts.setdefault(name, _Counts())
            counts.add(len(lost), sum(having), total, both)

    def table(self) -> list[MissingPredictor]:
        """Every property that any answer had, the strongest first."""
        found = [
            MissingPredictor(
                name=name,
                n=counts.n,
                missing=counts.missing,
                n_without=counts.n_without,
                missing_without=counts.missing_without,
                z=counts.z,
                across_prompts=self._across_prompts,
            )
            for name, counts in self._counts.items()
            if counts.n
        ]
        return sorted(found, key=lambda one: -one.z)

    def predictors(self) -> list[MissingPredictor]:
        """The properties that predict a missing reward, the strongest first."""
        return [one for one in self.table() if one.predicts]


NOT_APPLICABLE_SHARE = 0.2
"""From here on it is said that a grader had nothing to judge."""
SUSPECT_SHARE = 0.1
"""From here on it is said that rewards are missing for what the answers may have brought about."""


class SampleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run keeps of a sample itself: lengths in characters, snippets of the text."""

    index: int
    group: str
    env_reward: float | None
    length: int
    properties: frozenset[str] = frozenset()
    tool_calls: int
    prompt: str
    response: str


def summarise_grading(
    spec: RewardSpec,
    graders: Mapping[str, Any],
    facts: Sequence[SampleFacts],
    judged: Sequence[GradedSample],
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
    watch = _missing_predictors(facts, judged, missing)
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
        "env_reward": _env_reward_fields(env),
        "missing": {
            "by_kind": _count_kinds(result.missing for result in results),
            "passing": sum(one.missing is not None and one.missing.passing for one in results),
            "examples": _first_messages(results),
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


def _missing_predictors(
    facts: Sequence[SampleFacts], judged: Sequence[GradedSample], missing: Sequence[bool]
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


def _suspects(spec: RewardSpec, judged: Sequence[GradedSample]) -> int:
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
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in _count_kinds(suspect).items())
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
    judged: Sequence[GradedSample],
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
        "missing_by_kind": _count_kinds(errors),
        "not_evaluable": sum(_all_have_cause(Cause.NOT_APPLICABLE, some) for some in said),
        "candidate_fault": sum(_all_have_cause(Cause.CANDIDATE, some) for some in said),
        "untrusted": sum(not score.trusted for score in given),
        "judge": summarise_grader_calls(result for some in said for result in some),
        **_agreements(scores, env, groups),
    }


def _all_have_cause(cause: Cause, results: Sequence[GraderResult]) -> bool:
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
        "auc": _agreement_fields(concordance(scores, env, groups)),
        "concordance": _agreement_fields(within_group_concordance(scores, env, groups)),
    }


def _agreement_fields(agreement: ConcordanceEstimate) -> dict[str, Any] | None:
    if agreement.value is None:
        return None
    return {
        "value": agreement.value,
        "low": agreement.low,
        "high": agreement.high,
        "pairs": agreement.pairs,
    }


def _env_reward_fields(env: Sequence[float | None]) -> dict[str, Any] | None:
    present = [value for value in env if value is not None]
    if not present:
        return None
    return {
        "present": len(present),
        "mean": mean(present),
        "std": std(present),
        "binary": len(set(present)) <= 2,
    }


def _first_messages(results: Sequence[RewardResult]) -> dict[str, str]:
    """The first message of each kind of missing reward."""
    found: dict[str, str] = {}
    for result in results:
        if result.missing is not None and result.missing.kind is not ErrorKind.NOT_SAMPLED:
            error = f"{result.missing.name}: {result.missing.error}"
            found.setdefault(str(result.missing.kind), error[:200])
    return found


def _count_kinds(errors: Any) -> dict[str, int]:
    kinds = (error.kind for error in errors if error is not None)
    counts = Counter(str(kind) for kind in kinds if kind is not ErrorKind.NOT_SAMPLED)
    return dict(counts.most_common())
