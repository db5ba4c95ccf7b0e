"""A run in numbers: what each grader said, what it is worth, what is missing, and what predicts it.

A judge's failure may depend on the answer: refusals, requests that are too long, replies that
cannot be read. Each such reward is missing, which a policy may prefer to a low one. So rates of
missing rewards are compared between answers with and without simple properties, inside groups,
where the prompt is the same. Pure Python, because the core has no numpy.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.errors import Cause, ErrorKind
from adjudge.graders.registry import SHIPPED
from adjudge.rewards.spec import GraderEntry, RewardSpec, find_unscaled
from adjudge.runs.judge_calls import GraderCallTotals
from adjudge.stats import describe_sizes, group_spread, mean, missing_by_bin, missing_by_value, std
from adjudge.text import encode_exactly
from adjudge.types import GradedSample, GraderError, GraderResult, GraderScore, RewardResult, Role

if TYPE_CHECKING:
    from adjudge.stats.predictions import ConcordanceEstimate

Z_LIMIT = 4.0
MIN_MISSING = 5
MIN_RATIO = 2.0

_JUDGING = ("score", "grade", "grading", "judg", "rating", "verdict", "rubric")
_HUGE_NUMBER = 12
"""Digits in a row."""
_AS_ZERO = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256))
_ENDS = 4_000
"""Characters at each end of an answer that are looked at: long ones must cost no more."""


def _has_huge_number(text: str) -> bool:
    """``[0-9]{12}``, which as a regular expression took half of all that is done to a sample."""
    return b"0" * _HUGE_NUMBER in encode_exactly(text).translate(_AS_ZERO)


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
    "huge number": _has_huge_number,
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
        groups: Sequence[Hashable],
        missing: Sequence[bool],
    ) -> None:
        """A batch: length and group of each answer, and whether its reward is missing.

        ``properties`` of the answer at a place are asked for only where they are compared. The
        caller leaves out samples that were not asked for.
        """
        members: dict[Hashable, list[int]] = {}
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
UNSCALED = "no finite range: its scores count as they are"
"""Of a grader that ``[reward] normalise`` leaves as it is."""
CONSTANT_SAMPLES = 20
"""So many samples with one score: it is said that the grader tells none apart."""
SUSPECT_SHARE = 0.1
"""From here on it is said that rewards are missing for what the answers may have brought about."""


class SampleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run keeps of a sample itself: lengths in characters, snippets of the text.

    ``key``: see :func:`~adjudge.rollouts.samples.compute_rollout_key`; ``where``: ``FILE:ROW``.
    """

    index: int
    group: str
    env_reward: float | None
    length: int
    properties: frozenset[str] = frozenset()
    tool_calls: int
    prompt: str
    response: str
    key: str = ""
    where: str = ""
    step: int | None = None


class NumberColumn(Sequence[float | None]):
    """A finite number a sample, or ``None``, in 8 bytes each."""

    def __init__(self) -> None:
        self._values = array("d")

    def append(self, value: float | None) -> None:
        """Add the next sample's."""
        self._values.append(math.nan if value is None else value)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        value = self._values[place]
        return None if value != value else value  # noqa: PLR0124  (NaN)

    def __iter__(self) -> Iterator[float | None]:
        return (None if value != value else value for value in self._values)  # noqa: PLR0124

    def present(self) -> array[float]:
        """The numbers that there are."""
        return array("d", (value for value in self._values if value == value))  # noqa: PLR0124


class _GraderTotals:
    """What one grader has said so far: a score a sample, and counts of the rest."""

    def __init__(self, entry: GraderEntry, grader: Any) -> None:
        self._entry, self._grader = entry, grader
        self.scores = NumberColumn()
        self._kinds: Counter[str] = Counter()
        self._causes: Counter[Cause] = Counter()
        self._untrusted = 0
        self._calls = GraderCallTotals()

    def add(self, score: float | None, results: Sequence[GraderResult]) -> None:
        """One sample's: its score, and what that was made from (several of events)."""
        self.scores.append(score)
        causes = {result.cause for result in results if isinstance(result, GraderScore)}
        for result in results:
            self._calls.add(result)
            if isinstance(result, GraderError):
                _count_kind(self._kinds, result)
                causes.add(None)
            elif isinstance(result, GraderScore):
                self._untrusted += not result.trusted
            else:
                causes.add(None)
        if len(causes) == 1 and (cause := causes.pop()) is not None:
            self._causes[cause] += 1

    def add_call(self, result: GraderResult) -> None:
        """Count where a further draw came from; a rule's answer came from no judge."""
        self._calls.add(result)

    def summarise(
        self,
        env: Sequence[float | None],
        groups: Sequence[int],
        not_drawn: int,
        *,
        unscaled: bool,
    ) -> dict[str, Any]:
        """The grader's part of ``summary.json``."""
        score_range = getattr(self._grader, "score_range", None)
        spread = _spread(self.scores, groups)
        present = spread.pop("present")
        type_ = self._entry.type
        return {
            "type": type_ if type_ in SHIPPED else f"{type_} (own)",
            "role": str(Role(getattr(self._grader, "role", Role.SCORE))),
            "weight": self._entry.weight_at(0),  # a schedule's first
            "score_range": list(score_range) if score_range else None,
            "unscaled": unscaled,
            "scored": present,
            **spread,
            "missing": len(self.scores) - present - not_drawn,
            "missing_by_kind": dict(self._kinds.most_common()),
            "not_evaluable": self._causes[Cause.NOT_APPLICABLE],
            "candidate_fault": self._causes[Cause.CANDIDATE],
            "untrusted": self._untrusted,
            "judge": self._calls.summarise(),
            **_agreements(self.scores, env, groups),
        }


class GradingTotals:
    """The numbers of ``summary.json``, gathered sample by sample in the order of the input.

    Of a sample some bytes are kept and none of its texts: its group's number, its lengths, its
    rewards and scores. ``groups``, ``env_rewards``, ``rewards`` and ``scores`` have one entry a
    sample; ``unevaluable`` counts the samples of which a grader had nothing to judge.
    """

    def __init__(self, spec: RewardSpec, graders: Mapping[str, Any]) -> None:
        self._spec = spec
        self._unscaled = find_unscaled(spec, graders)
        self._numbers: dict[str, int] = {}
        self.groups = array("l")
        self.env_rewards, self.rewards = NumberColumn(), NumberColumn()
        self._stepped = NumberColumn()
        self._graders = {
            entry.name: _GraderTotals(entry, graders[entry.name]) for entry in spec.graders
        }
        self._lengths, self._tool_calls = array("d"), array("d")
        self._properties = array("l")
        self._drawn, self._missing = bytearray(), bytearray()
        self._kinds: Counter[str] = Counter()
        self._suspect_kinds: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._passing = self._suspects = 0
        self.unevaluable = 0

    @property
    def scores(self) -> list[NumberColumn]:
        """Each grader's scores, in the order of the spec."""
        return [one.scores for one in self._graders.values()]

    def add(self, facts: SampleFacts, judged: GradedSample, result: RewardResult) -> None:
        """Count the next sample."""
        self.groups.append(self._numbers.setdefault(facts.group, len(self._numbers)))
        self.env_rewards.append(facts.env_reward)
        self.rewards.append(result.score)
        if self._spec.reward.group != "none":
            self._stepped.append(_before_group_step(result))
        self._lengths.append(facts.length)
        self._tool_calls.append(facts.tool_calls)
        self._properties.append(sum(_PROPERTY_BITS[name] for name in facts.properties))
        self._drawn.append(judged.sampled)
        self._missing.append(result.score is None and judged.sampled)
        said: dict[str, list[GraderResult]] = {name: [] for name in self._graders}
        for name, one in judged.results():
            if name in said:
                said[name].append(one)
        for name, totals in self._graders.items():
            totals.add(result.reward_info[f"{name}_score"], said[name])
        for repeat in judged.repeats:
            for name, again in repeat.results():
                self._graders[name].add_call(again)
        self._suspects += any(
            isinstance(one, GraderError) and one.suspect
            for name in self._spec.counting
            for one in said[name]
        )
        if result.missing is not None:
            self._add_missing(result.missing)
        self.unevaluable += any(
            not getattr(one, "evaluable", True) for one in judged.outcome.values()
        )

    def _add_missing(self, missing: GraderError) -> None:
        self._passing += missing.passing
        _count_kind(self._kinds, missing)
        if missing.suspect:
            _count_kind(self._suspect_kinds, missing)
        if missing.kind is not ErrorKind.NOT_SAMPLED:
            prefix = f"{missing.name}: "
            message = prefix + missing.error.removeprefix(prefix)
            self._examples.setdefault(str(missing.kind), message[:200])

    def summarise(self, *, elapsed_s: float) -> dict[str, Any]:
        """The numbers of ``summary.json``.

        Against the environment's reward each grader has two figures: ``auc`` over all pairs of
        samples, and ``concordance`` over pairs inside a group, the only ones a GRPO group sees.
        """
        groups, env, count = self.groups, self.env_rewards, len(self.groups)
        drawn = sum(self._drawn)
        watch = self._missing_predictors()
        of_graders = {
            name: one.summarise(env, groups, count - drawn, unscaled=name in self._unscaled)
            for name, one in self._graders.items()
        }
        # A reward that the environment's is part of agrees with it by construction.
        compared = env if self._spec.reward.combine_mode == "replace" else []
        return {
            "samples": count,
            "groups": describe_sizes(Counter(groups).values()),
            "reward": {
                **_spread(self.rewards, groups),
                **self._before_group_step(),
                "missing": sum(self._missing),
                "not_sampled": count - drawn,
                **_agreements(self.rewards, compared, groups),
            },
            "graders": of_graders,
            "baselines": {
                "response_length": _agreements(self._lengths, env, groups),
                "tool_calls": _agreements(self._tool_calls, env, groups),
            },
            "env_reward": _env_reward_fields(env),
            "missing": {
                "by_kind": dict(self._kinds.most_common()),
                "passing": self._passing,
                "examples": self._examples,
                "by_length_decile": missing_by_bin(self._lengths, self._missing),
                "by_env_reward": missing_by_value(env, self._missing),
                "by_property": [one.as_dict() for one in watch.table()],
                "by_group": _missing_groups(groups, self._missing),
                "suspect": self._suspects,
            },
            "warnings": [
                *_suspect_share(self._suspect_kinds, drawn),
                *(one.sentence for one in watch.predictors()),
                *_not_applicable(of_graders, drawn),
                *_constant_scores(of_graders),
                *_unscaled_scores(self._unscaled),
                *_negative_products(env if self._spec.reward.combine_mode == "multiply" else ()),
            ],
            "elapsed_s": round(elapsed_s, 3),
            "samples_per_s": round(count / elapsed_s, 1) if elapsed_s > 0 else None,
        }

    def _before_group_step(self) -> dict[str, Any]:
        """What went into the group step, after which means say little; nothing where none is."""
        present = self._stepped.present()
        if not present:
            return {}
        step = self._spec.reward.group
        return {"before_step": {"step": step, "mean": mean(present), "std": std(present)}}

    def _missing_predictors(self) -> MissingWatch:
        """What the answers that were asked about have to do with their missing rewards."""
        rows = array("l", (at for at, drawn in enumerate(self._drawn) if drawn))
        watch = MissingWatch()
        if any(self._missing):
            watch.add(
                lambda place: _properties_of_bits(self._properties[rows[place]]),
                [self._lengths[at] for at in rows],
                [self.groups[at] for at in rows],
                [bool(self._missing[at]) for at in rows],
            )
        return watch


_PROPERTY_BITS = {name: 1 << at for at, name in enumerate(_PROPERTIES)}


@cache
def _properties_of_bits(bits: int) -> frozenset[str]:
    return frozenset(name for name, bit in _PROPERTY_BITS.items() if bits & bit)


def _before_group_step(result: RewardResult) -> float | None:
    """What the graders' answers came to, where that was compared in the group."""
    if result.score is None or (result.details or {}).get("source") != "graders":
        return None
    return result.reward_info.get("outcome")


def _missing_groups(groups: Sequence[int], missing: Sequence[int]) -> dict[str, int]:
    """How many groups miss all their rewards, some, or none."""
    sizes = Counter(groups)
    lost = Counter(group for group, gone in zip(groups, missing, strict=True) if gone)
    whole = sum(lost[group] == size for group, size in sizes.items())
    return {"all": whole, "some": len(lost) - whole, "none": len(sizes) - len(lost)}


def _suspect_share(kinds: Counter[str], drawn: int) -> Iterator[str]:
    """Where whole groups are missing, nothing predicts it inside a group."""
    share = kinds.total() / drawn if drawn else 0.0
    if share >= SUSPECT_SHARE:
        named = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        yield (
            f"{share:.0%} of the rewards are missing for reasons that the answers may have brought "
            f"about ({named}); read some of them"
        )


def _not_applicable(graders: Mapping[str, Mapping[str, Any]], drawn: int) -> Iterator[str]:
    for name, found in graders.items():
        lacking = found["missing_by_kind"].get(ErrorKind.NOT_APPLICABLE, 0)
        share = (found["not_evaluable"] + lacking) / drawn if drawn else 0.0
        if found["weight"] and share >= NOT_APPLICABLE_SHARE:
            yield (
                f"{name} had nothing to judge in {share:.0%} of the samples. In a group of which "
                "that is all it is left out; in others its stated score counts, and a sample "
                "without its field has no reward"
            )


def _constant_scores(graders: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, found in graders.items():
        judged = found["scored"] - found["not_evaluable"]
        if found["role"] != Role.SCORE or not found["weight"]:
            continue
        if judged >= CONSTANT_SAMPLES and found["min"] == found["max"]:
            yield (
                f"{name} gave {found['min']:g} to every sample, which tells no rollouts apart; "
                "read some of its reasons"
            )


def _unscaled_scores(unscaled: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, beside in unscaled.items():
        if beside:
            yield (
                f"{name} has no score_range: its scores count unscaled beside scores in [0, 1] "
                f"({', '.join(beside)}); give score_range = [low, high] to scale them"
            )


def _negative_products(env: Sequence[float | None]) -> Iterator[str]:
    negative = sum(value is not None and value < 0 for value in env)
    if negative:
        yield (
            f"env_reward is negative in {negative:,} of {len(env):,} samples. Under combine_mode = "
            "'multiply' a better judgement makes such a reward lower"
        )


def _spread(values: NumberColumn, groups: Sequence[int]) -> dict[str, Any]:
    present = values.present()
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


def _agreements(
    scores: Sequence[float | None], env: Sequence[float | None], groups: Sequence[int]
) -> dict[str, Any]:
    if all(value is None for value in env):
        return {"auc": None, "concordance": None}
    from adjudge.stats.predictions import (  # noqa: PLC0415  (where the environment has a reward)
        concordance,
        within_group_concordance,
    )

    return {
        "auc": _agreement_fields(concordance(scores, env, groups)),
        "concordance": _agreement_fields(within_group_concordance(scores, env, groups)),
    }


def _agreement_fields(agreement: ConcordanceEstimate) -> dict[str, Any] | None:
    keys = ("value", "low", "high", "pairs")
    return None if agreement.value is None else {key: getattr(agreement, key) for key in keys}


def _env_reward_fields(env: NumberColumn) -> dict[str, Any] | None:
    present = env.present()
    if not present:
        return None
    return {
        "present": len(present),
        "mean": mean(present),
        "std": std(present),
        "binary": len(set(present)) <= 2,
    }


def _count_kind(kinds: Counter[str], error: GraderError) -> None:
    """What was not asked about did not fail."""
    if error.kind is not ErrorKind.NOT_SAMPLED:
        kinds[str(error.kind)] += 1
