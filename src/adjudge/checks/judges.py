"""Checks of what one grader said of the samples of a run, and what its judge was asked.

A finding that is ``low`` is a note: it is common in runs in which nothing is wrong.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import msgspec

from adjudge.checks.check import CheckResult, make_checks, make_result, need, not_applicable
from adjudge.checks.judge_texts import read_stated_score
from adjudge.rewards.formulas import group_step
from adjudge.stats import collect, mean, mean_and_std
from adjudge.stats.estimates import binomial_two_sided

_FEW = 3
"""Samples that a finding must have at least."""
_MIN_SAMPLES = 8
_ORDER_SHARE = 0.25
"""From here on of pairs no place needs to be preferred."""
_APART = 0.2
"""Two means that are further apart than this share of the scale differ."""
_SHOWN_SHARE = 0.02
"""Samples whose answer the judge was not shown whole."""
_WIDE = 0.5
"""Scores of equal reasons that are further apart than this share of the scale contradict them."""
_AGAINST = -0.3
"""A rank correlation within groups."""
_FLAT_GROUPS = 0.5
"""Of the groups whose environment's rewards differ, those with equal scores."""
_MAX_ROWS = 200


class JudgedSample(msgspec.Struct, kw_only=True):
    """What one grader said of one sample, and what its judge was asked.

    ``row``: the place of the sample in the run; ``sources``: model and source of each reply;
    ``shown``: the share of the answer that is in one of the prompts. ``states_score`` and
    ``shown`` are ``None`` where no rollouts or prompts are kept.
    """

    row: int
    group: Hashable
    env: float | None
    score: float | None
    reason: str = ""
    orders: tuple[str, str] | None = None
    is_repaired: bool = False
    calls: int = 0
    sources: tuple[tuple[str, str], ...] = ()
    shown: float | None = None
    states_score: bool | None = None


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """What one grader said of a run; ``range``: its own, ``judges``: how many it may ask."""

    samples: Sequence[JudgedSample]
    range: tuple[float | None, float | None] = (None, None)
    judges: int = 1

    @cached_property
    def scored(self) -> list[JudgedSample]:
        """The samples that have a score."""
        return [one for one in self.samples if one.score is not None]

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The ends of the scale: the grader's, else those of its scores."""
        scores, (low, high) = _scores(self.scored) or [0.0], self.range
        return min(scores) if low is None else low, max(scores) if high is None else high

    @property
    def width(self) -> float:
        """How far two scores can be apart."""
        return self.ends[1] - self.ends[0]

    @property
    def is_constant(self) -> bool:
        """Whether all scores are equal, of enough samples."""
        return len(set(_scores(self.scored))) == 1 and len(self.scored) >= _MIN_SAMPLES


_NOTHING = CheckResult(unit="share of samples")
_BY_CHANCE = CheckResult(unit="share of samples", p_value=1.0)


def _found(
    some: Sequence[JudgedSample], of: Sequence[object], sentence: str, **more: Any
) -> CheckResult:
    """The result that ``some`` samples are a finding, as a share of ``of``."""
    rows = [one.row for one in some[:_MAX_ROWS]]
    return make_result(sentence, len(some) / len(of), rows=rows, affected=len(some), **more)


def _check_repaired(run: JudgedRun) -> CheckResult:
    mended = [one for one in run.scored if one.is_repaired]
    what = "scores come from a second ask after a reply that could not be read"
    counts, size = Counter(_scores(run.scored)), len(mended)
    if len(set(_scores(mended))) != 1 or min(size, len(run.scored) - size) < _FEW:
        return _compare(run, mended, run.scored, what)
    # How often as many samples, chosen at random, have one score.
    p_value = sum(math.comb(n, size) for n in counts.values()) / math.comb(len(run.scored), size)
    sentence = f"{_of(mended, run.scored)} {what}, and all of these are {_number(mended[0].score)}."
    return _found(mended, run.scored, sentence, p_value=p_value)


def _compare(
    run: JudgedRun,
    some: Sequence[JudgedSample],
    every: Sequence[JudgedSample],
    what: str,
    *,
    higher: bool = False,
) -> CheckResult:
    """Whether the mean score of ``some`` is apart from the others', or higher, beyond chance."""
    inside = {one.row for one in some}
    others = [one for one in every if one.row not in inside]
    fewer = min(len(_scores(some)), len(_scores(others)))
    need(fewer >= _FEW, f"fewer than {_FEW} scores to compare")
    found = correlate_ranks((one.group, one.score, float(one.row in inside)) for one in every)
    apart = mean_and_std(_scores(some))[0] - mean_and_std(_scores(others))[0]
    if found is None or abs(apart) < _APART * run.width or (higher and apart < 0):
        return _BY_CHANCE
    means = f"their mean is {_mean(some)}, that of the others {_mean(others)}"
    return _found(some, every, f"{_of(some, every)} {what}; {means}.", p_value=found[1])


def _check_sources(run: JudgedRun) -> CheckResult:
    parts = collect((source, one) for one in run.samples for source in dict.fromkeys(one.sources))
    need(parts, "no replies are kept")
    some = min(parts.values(), key=len)
    each = "; ".join(
        f"{model[:80]} ({kind}) in {_of(rows, run.samples)}, mean {_mean(rows)}"
        for (model, kind), rows in sorted(parts.items(), key=lambda one: -len(one[1]))
    )
    if len({model for model, _ in parts if model}) > run.judges:
        return _found(some, run.samples, f"Several models answered: {each}.")
    if len({kind for _, kind in parts}) < 2:
        return _NOTHING
    return _compare(run, some, run.samples, f"replies are of another source ({each})")


def _check_orders(run: JudgedRun) -> CheckResult:
    pairs = [one for one in run.samples if one.orders]
    changed = [one for one in pairs if one.orders and one.orders[0] != one.orders[1]]
    need(pairs, "no pairs were asked about in both orders")
    if len(changed) < _FEW:
        return _NOTHING
    first = sum(one.orders == ("win", "loss") for one in changed)
    second = sum(one.orders == ("loss", "win") for one in changed)
    place, count = ("first", first) if first >= second else ("second", second)
    p_value = binomial_two_sided(first, first + second)
    preferred = f"; the {place} place is preferred in {count:,}" if p_value <= 0.01 else ""
    sentence = f"{_of(changed, pairs)} pairs change with the order{preferred}."
    is_many = len(changed) >= _ORDER_SHARE * len(pairs)
    return _found(changed, pairs, sentence, p_value=None if is_many else p_value)


def _check_shown(run: JudgedRun) -> CheckResult:
    asked = [(one, one.shown) for one in run.samples if one.shown is not None]
    need(asked, "no prompts are kept")
    absent = [one for one, shown in asked if shown == 0]
    cut = [one for one, shown in asked if 0 < shown < 1]
    least, parts = max(_FEW, _SHOWN_SHARE * len(asked)), []
    if len(absent) >= least:
        parts.append(f"nothing of the answer in {_of(absent, asked)} samples")
    if len(cut) >= least:
        middle = median(one.shown or 0.0 for one in cut)
        parts.append(f"only a part of it in {_of(cut, asked)} samples (median: {middle:.0%})")
    if not parts:
        return _NOTHING
    return _found([*absent, *cut], asked, f"The judge’s prompt has {' and '.join(parts)}.")


def _check_stated(run: JudgedRun) -> CheckResult:
    need(any(one.states_score is not None for one in run.samples), "no rollouts are kept")
    stating = [one for one in run.scored if one.states_score]
    return _compare(run, stating, run.scored, "answers state a score themselves", higher=True)


_NUMBER = re.compile(r"(?<![\d.,/])\d{2,}(?![\d/%]|[.,]\d)")
"""A number of the question: reasons that differ in such numbers alone are the same. One digit, a
fraction or a share may be the score itself."""


def _check_same_reasons(run: JudgedRun) -> CheckResult:
    alike: dict[str, list[JudgedSample]] = {}
    for one in run.scored:
        if one.reason and read_stated_score(one.reason) is None:
            alike.setdefault(_NUMBER.sub("#", " ".join(one.reason.split())), []).append(one)
    again = [rows for rows in alike.values() if len(rows) > _FEW]
    need(again and run.width > 0, "no reason is given again and again")
    odd: list[JudgedSample] = []
    for rows in again:
        [(usual, times)] = Counter(_scores(rows)).most_common(1)
        if 2 * times >= len(rows):
            odd += [x for x in rows if abs((x.score or 0.0) - usual) >= _WIDE * run.width]
    if len(odd) < _FEW:
        return _NOTHING
    said = " ".join(odd[0].reason.split())
    example = f"“{said[:90]}{'…' * (len(said) > 90)}” gets {_number(odd[0].score)}"
    what = f"scores are far from what the same reason gets elsewhere: {example}."
    return _found(odd, run.scored, f"{_of(odd, run.scored)} {what}")


def _check_environment(run: JudgedRun) -> CheckResult:
    found = correlate_ranks((one.group, one.score, one.env) for one in run.scored)
    if found is None:
        return not_applicable("scores and the environment’s rewards do not differ within groups")
    if found[0] > _AGAINST:
        return _BY_CHANCE
    width = run.width or 1.0
    off = {x.row: abs((x.score or 0.0) / width - (x.env or 0.0)) for x in run.scored}
    worst = sorted(run.scored, key=lambda one: -off[one.row])
    r = f"rank correlation {_number(found[0])}"
    sentence = f"The scores go against the environment’s reward ({r}): is the scale turned round?"
    return _found(worst, run.samples, sentence, p_value=found[1])


def _check_flat_groups(run: JudgedRun) -> CheckResult:
    members = collect((one.group, one) for one in run.scored)
    groups = [rows for rows in members.values() if len({one.env for one in rows} - {None}) > 1]
    flat = [rows for rows in groups if len(set(_scores(rows))) == 1]
    need(groups, "the environment’s rewards do not differ within groups")
    if run.is_constant or len(flat) < max(_FEW, _FLAT_GROUPS * len(groups)):
        return _NOTHING
    what = "groups all scores are equal, though the environment’s rewards differ."
    rows = [one for rows in flat for one in rows]
    return _found(rows, run.scored, f"In {_of(flat, groups)} {what}", severity="medium")


def correlate_ranks(
    rows: Iterable[tuple[Hashable, float | None, float | None]],
) -> tuple[float, float] | None:
    """The correlation of the ranks of two numbers within groups, and its p value.

    By the normal approximation to permutations within groups. Where one of the two never differs
    within a group, groups are compared with one another. ``None`` where nothing differs.
    """
    members = collect((group, (x, y)) for group, x, y in rows if x is not None and y is not None)
    strata = list(members.values())
    if all(len({y for _, y in rows}) == 1 for rows in strata):
        strata = [[(mean_and_std([x for x, _ in rows])[0], rows[0][1]) for rows in strata]]
    product = squares_x = squares_y = variance = 0.0
    for pairs in (rows for rows in strata if len(rows) > 1):
        ranks = [group_step(column, "rank") for column in zip(*pairs, strict=True)]
        xs, ys = ([(rank or 0.0) - 0.5 for rank in column] for column in ranks)
        square_x, square_y = (math.fsum(one * one for one in column) for column in (xs, ys))
        product += math.fsum(one * other for one, other in zip(xs, ys, strict=True))
        squares_x, squares_y = squares_x + square_x, squares_y + square_y
        variance += square_x * square_y / (len(pairs) - 1)
    if sum(map(len, strata)) < _MIN_SAMPLES or variance == 0:
        return None
    p_value = math.erfc(abs(product) / math.sqrt(2 * variance))
    return product / math.sqrt(squares_x * squares_y), p_value


def _scores(rows: Iterable[JudgedSample]) -> list[float]:
    return [one.score for one in rows if one.score is not None]


def _of(some: Sequence[object], every: Sequence[object]) -> str:
    return f"{len(some):,} of {len(every):,}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _mean(rows: Sequence[JudgedSample]) -> str:
    return _number(mean(_scores(rows)))


JUDGE_CHECKS = make_checks(
    ("repaired", _check_repaired, "scores of a second ask that differ from first ones",
     "Answers that are hard to judge may be bad more often.", "Read the first replies."),
    ("sources", _check_sources, "more models than judges, or a cache with other scores",
     "A router answers so; what a cache has may be of easier prompts.", "Ask one model."),
    ("orders", _check_orders, "pairs that change with the order",
     "Pairs of equal quality change by the judge’s noise alone.",
     "Ask about each pair in both orders, and let those that change be ties."),
    ("answer_shown", _check_shown, "answers that are not whole in the judge’s prompt",
     "A template may show an extracted answer or a summary on purpose.",
     "Read a prompt: see the template’s fields, and what cuts long texts."),
    ("stated_scores", _check_stated, "answers that state a score and get a higher one",
     "A task that asks for a rating has such answers.", "Read what the judge says of them."),
    ("same_reasons", _check_same_reasons, "equal reasons with scores far apart",
     "A stock sentence before the real reason goes with any score.",
     "Read the replies: score and reason may be of two answers."),
    ("flat_groups", _check_flat_groups, "groups that the judge does not tell apart",
     "A scale of few values has ties by chance.",
     "Use a finer scale, or a judge that compares the answers of a group."),
    ("against_environment", _check_environment, "scores against the environment’s reward",
     "A grader may judge what the environment does not pay, such as brevity.",
     "Compare the best and the worst sample of a group."),
)  # fmt: skip
