"""Checks of what one grader said of the samples of a run, and what its judge was asked.

A finding that is ``low`` is a note: it is common in runs in which nothing is wrong. Pure Python:
the pages of a run ask these checks.
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

from adjudge.checks.check import Check, CheckResult, make_result, not_applicable
from adjudge.checks.reasons import (
    READING_ERRORS,
    is_opposed,
    read_polarity,
    read_stated_score,
)
from adjudge.rewards.groups import group_step
from adjudge.stats import mean_and_std

_FEW = 3
"""Samples that a finding must have at least."""
_MIN_SAMPLES = 8
_MISSING_SHARE, _ORDER_SHARE = 0.2, 0.25
"""From here on missing scores, and pairs that change with the order, are more than a note."""
_APART = 0.2
"""Two means that are further apart than this share of the scale differ."""
_SHOWN_SHARE = 0.02
"""Samples whose answer the judge was not shown whole."""
_WIDE = 0.5
"""Scores of equal reasons that are further apart than this share of the scale contradict them."""
_AGAINST, _BY_LENGTH = -0.3, 0.7
"""Rank correlations within groups."""
_FLAT_GROUPS = 0.25
"""Of the groups whose environment's rewards differ, those with equal scores."""
_MAX_ROWS = 200


class JudgedSample(msgspec.Struct, kw_only=True):
    """What one grader said of one sample, and what its judge was asked.

    ``row``: the place of the sample in the run; ``kind``: of the failure, where there is no score;
    ``sources``: model and source of each reply; ``shown``: the share of the answer that is in one
    of the prompts. ``length`` and ``shown`` are ``None`` where no rollouts or prompts are kept.
    """

    row: int
    group: Hashable
    env: float | None
    score: float | None
    kind: str = ""
    reason: str = ""
    orders: tuple[str, str] | None = None
    is_repaired: bool = False
    calls: int = 0
    is_unread_again: bool = False
    sources: tuple[tuple[str, str], ...] = ()
    shown: float | None = None
    length: int | None = None
    states_score: bool = False


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
        scores = _scores(self.scored) or [0.0]
        low, high = self.range
        return min(scores) if low is None else low, max(scores) if high is None else high

    @property
    def width(self) -> float:
        """How far two scores can be apart."""
        return self.ends[1] - self.ends[0]

    @property
    def is_constant(self) -> bool:
        """Whether all scores are equal, of enough samples."""
        return len(set(_scores(self.scored))) == 1 and len(self.scored) >= _MIN_SAMPLES


def _found(
    sentence: str, some: Sequence[JudgedSample], of: Sequence[object], **more: Any
) -> CheckResult:
    """The result that ``some`` samples are a finding, as a share of ``of``."""
    rows = [one.row for one in some[:_MAX_ROWS]]
    return make_result(sentence, len(some) / len(of), _UNIT, rows=rows, affected=len(some), **more)


_UNIT = "share of samples"
_NOTHING = CheckResult(unit=_UNIT)


def _check_missing(run: JudgedRun) -> CheckResult:
    lost = [one for one in run.samples if one.kind]
    if not lost:
        return _NOTHING
    each = ", ".join(f"{kind} {n:,}" for kind, n in Counter(one.kind for one in lost).most_common())
    again = sum(one.is_unread_again for one in lost)
    after = f"; {again:,} of them unreadable at a second ask, too" if again else ""
    return _found(
        f"{_of(lost, run.samples)} samples have no score and count as missing ({each}{after}).",
        lost,
        run.samples,
        severity=None if len(lost) >= _MISSING_SHARE * len(run.samples) else "low",
        otherwise="A server that was down for a while loses samples at random.",
        advice="Read some replies. Raise the limit of tokens or the deadline that they exceed.",
    )


def _check_repaired(run: JudgedRun) -> CheckResult:
    mended = [one for one in run.scored if one.is_repaired]
    others = [one for one in run.scored if not one.is_repaired]
    if min(len(mended), len(others)) < _FEW:
        return not_applicable("fewer than 3 scores come from a second ask, or from a first one")
    first = (
        f"{_of(mended, run.scored)} scores come from a second ask after a reply that could not be "
        "read"
    )
    scores = Counter(_scores(run.scored))
    if len(set(_scores(mended))) == 1 and len(scores) > 1:
        # How often as many samples, chosen at random, have one score.
        chosen = [math.comb(n, len(mended)) for n in scores.values()]
        sentence = f"{first}, and all of these are {_number(mended[0].score)}."
        p_value = sum(chosen) / math.comb(len(run.scored), len(mended))
    else:
        p_value = _differ(run, mended, others)
        sentence = f"{first}; their mean is {_mean(mended)}, that of the others {_mean(others)}."
        if p_value is None:
            return CheckResult(unit=_UNIT, p_value=1.0)
    return _found(
        sentence,
        mended,
        run.scored,
        p_value=p_value,
        otherwise="Answers that are hard to judge are bad more often.",
        advice="Read the first replies: the form that they miss may be what the score depends on.",
    )


def _differ(
    run: JudgedRun, some: Sequence[JudgedSample], others: Sequence[JudgedSample]
) -> float | None:
    """The p value of two means that are apart; ``None`` where they are not, or of few samples."""
    mine, theirs = _scores(some), _scores(others)
    if min(len(mine), len(theirs)) < _FEW or run.width <= 0:
        return None
    if abs(mean_and_std(mine)[0] - mean_and_std(theirs)[0]) < _APART * run.width:
        return None
    inside = {one.row for one in some}
    compared = [(one, float(one.row in inside)) for one in [*some, *others]]
    found = correlate_ranks((one.group, one.score, value) for one, value in compared)
    return None if found is None else found[1]


def _check_models(run: JudgedRun) -> CheckResult:
    by_model = _by_source(run, 0)
    if not by_model:
        return not_applicable("no replies are kept")
    if len(by_model) <= run.judges:
        return _NOTHING
    parts = []
    for model, rows in sorted(by_model.items(), key=lambda one: -len(one[1])):
        kinds = sorted({kind for one in rows for name, kind in one.sources if name == model})
        where = f"{model[:80]} ({' and '.join(kinds)})"
        parts.append(f"{where} in {_of(rows, run.samples)}, mean {_mean(rows)}")
    return _found(
        f"{len(by_model)} models answered: {'; '.join(parts)}.",
        min(by_model.values(), key=len),
        run.samples,
        otherwise="A router, or a new name of one model, answers so on purpose.",
        advice="Grade with one model: scores of two are on two scales.",
    )


def _check_sources(run: JudgedRun) -> CheckResult:
    by_source = _by_source(run, 1)
    if len(by_source) < 2:
        return not_applicable("all replies that are kept come from one source")
    fewest = min(by_source.values(), key=len)
    inside = {one.row for one in fewest}
    p_value = _differ(run, fewest, [one for one in run.samples if one.row not in inside])
    if p_value is None:
        return CheckResult(unit=_UNIT, p_value=1.0)
    parts = [f"{kind} {len(rows):,}, mean {_mean(rows)}" for kind, rows in by_source.items()]
    return _found(
        f"Replies come from several sources: {'; '.join(parts)}.",
        fewest,
        run.samples,
        p_value=p_value,
        otherwise="What was asked before may be of easier prompts.",
        advice="Grade without the cache, or see that its judge is the same.",
    )


def _by_source(run: JudgedRun, part: int) -> dict[str, list[JudgedSample]]:
    """The samples by model (0) or source (1) of their replies."""
    found: dict[str, list[JudgedSample]] = {}
    for one in run.samples:
        for name in dict.fromkeys(source[part] for source in one.sources if source[part]):
            found.setdefault(name, []).append(one)
    return found


def _check_orders(run: JudgedRun) -> CheckResult:
    pairs = [one for one in run.samples if one.orders]
    changed = [one for one in pairs if one.orders and one.orders[0] != one.orders[1]]
    if not pairs:
        return not_applicable("no pairs were asked about in both orders")
    if len(changed) < _FEW:
        return _NOTHING
    first = sum(one.orders == ("win", "loss") for one in changed)
    second = sum(one.orders == ("loss", "win") for one in changed)
    place, count = ("first", first) if first >= second else ("second", second)
    # Twice the tail of as many tosses of a coin: whether a place is preferred.
    tosses = first + second
    tail = 2 * binomial_tail(count, tosses, 0.5)
    preferred = f"; the {place} place is preferred in {count:,}" if tail <= 0.01 else ""
    return _found(
        f"{_of(changed, pairs)} pairs change with the order{preferred}.",
        changed,
        pairs,
        severity="high" if len(changed) >= _ORDER_SHARE * len(pairs) else "low",
        otherwise="Pairs of equal quality change by the judge's noise alone.",
        advice="Ask in both orders and count what changes as a tie.",
    )


def _check_constant(run: JudgedRun) -> CheckResult:
    if not run.is_constant:
        return _NOTHING
    return _found(
        f"All {len(run.scored):,} scores are {_number(run.scored[0].score)}.",
        run.scored,
        run.scored,
        otherwise="Samples may all be as good as it can say.",
        advice="Read some reasons; a parser that falls back to one number gives the same.",
    )


def _check_shown(run: JudgedRun) -> CheckResult:
    asked = [(one, one.shown) for one in run.samples if one.shown is not None]
    if not asked:
        return not_applicable("no prompts are kept")
    absent = [one for one, shown in asked if shown == 0]
    cut = [(one, shown) for one, shown in asked if 0 < shown < 1]
    least, bad, parts = max(_FEW, _SHOWN_SHARE * len(asked)), list[JudgedSample](), []
    if len(absent) >= least:
        bad += absent
        parts.append(
            f"in {_of(absent, asked)} samples the judge’s prompt has nothing of the answer"
        )
    if len(cut) >= least:
        bad += [one for one, _ in cut]
        part = median(shown for _, shown in cut)
        parts.append(
            f"in {_of(cut, asked)} samples the judge’s prompt has only a part of the answer "
            f"(median: {part:.0%} of it)"
        )
    if not bad:
        return _NOTHING
    return _found(
        f"I{'; '.join(parts)[1:]}.",
        bad,
        asked,
        otherwise="A template may show an extracted answer or a summary on purpose.",
        advice="Read a prompt: see the template's fields, and what cuts long texts.",
    )


def _check_stated(run: JudgedRun) -> CheckResult:
    stating = [one for one in run.scored if one.states_score]
    others = [one for one in run.scored if not one.states_score]
    if all(one.length is None for one in run.samples):
        return not_applicable("no rollouts are kept")
    p_value = _differ(run, stating, others)
    if p_value is None or _mean_of(stating) < _mean_of(others):
        return CheckResult(unit=_UNIT, p_value=1.0)
    return _found(
        f"{_of(stating, run.scored)} answers state a score themselves; their mean is "
        f"{_mean(stating)}, that of the others {_mean(others)}.",
        stating,
        run.scored,
        p_value=p_value,
        otherwise="A task that asks for a rating has such answers.",
        advice="Read them: the judge may repeat what the answer says of itself.",
    )


def _check_reasons(run: JudgedRun) -> CheckResult:
    if run.width <= 0 or run.is_constant:
        return not_applicable("the scores do not differ")
    read = [(one, side) for one in run.scored if (side := read_polarity(one.reason))]
    if not read:
        return not_applicable("no reason says plainly that its answer is right or wrong")
    opposed = [one for one, side in read if is_opposed(side, one.score or 0.0, *run.ends)]
    if len(opposed) < _FEW:
        return CheckResult(unit=_UNIT, p_value=1.0)
    return _found(
        f"{_of(opposed, read)} reasons call the answer wrong beside the top score, or right beside "
        "the lowest.",
        opposed,
        read,
        p_value=binomial_tail(len(opposed), len(read), READING_ERRORS),
        otherwise="The rules that read reasons may misread some. Read the samples.",
        advice="See whether the scale is turned round, or the parser takes another number.",
    )


_NUMBER = re.compile(r"(?<![\d.,/])\d{2,}(?![\d/%]|[.,]\d)")
"""A number of the question: reasons that differ in such numbers alone are the same. One digit, a
fraction or a share may be the score itself."""


def _check_same_reasons(run: JudgedRun) -> CheckResult:
    alike: dict[str, list[JudgedSample]] = {}
    for one in run.scored if run.width > 0 and not run.is_constant else ():
        if one.reason:
            alike.setdefault(_NUMBER.sub("#", " ".join(one.reason.split())), []).append(one)
    if all(len(rows) <= _FEW for rows in alike.values()):
        return not_applicable("no reason is given again and again")
    odd = [
        one
        for rows in alike.values()
        for one in _far_from_usual(rows, _WIDE * run.width)
        if read_stated_score(one.reason) is None
    ]
    if len(odd) < _FEW:
        return _NOTHING
    said = " ".join(odd[0].reason.split())
    return _found(
        f"{_of(odd, run.scored)} scores are far from what the same reason gets elsewhere: "
        f"“{said[:90]}{'…' * (len(said) > 90)}” gets {_number(odd[0].score)}.",
        odd,
        run.scored,
        otherwise="A stock sentence before the real reason goes with any score.",
        advice="Read the replies: see that score and reason are of one answer.",
    )


def _far_from_usual(rows: Sequence[JudgedSample], distance: float) -> list[JudgedSample]:
    """Of samples with one reason those whose score is far from what most of them get."""
    [(usual, times)] = Counter(_scores(rows)).most_common(1)
    if len(rows) <= _FEW or 2 * times < len(rows):
        return []
    return [one for one in rows if one.score is not None and abs(one.score - usual) >= distance]


def _check_environment(run: JudgedRun) -> CheckResult:
    found = correlate_ranks((one.group, one.score, one.env) for one in run.scored)
    if found is None:
        return not_applicable("scores and the environment's rewards do not differ within groups")
    r, p_value = found
    if r > _AGAINST:
        return CheckResult(unit=_UNIT, p_value=1.0)
    apart = [
        (abs((one.score - run.ends[0]) / (run.width or 1.0) - one.env), one)
        for one in run.scored
        if one.score is not None and one.env is not None
    ]
    worst = [one for _, one in sorted(apart, key=lambda pair: -pair[0])]
    return _found(
        "The scores go against the environment’s reward (rank correlation within groups "
        f"{_number(r)}): is the scale turned round?",
        worst,
        run.samples,
        p_value=p_value,
        otherwise="A grader may judge what the environment does not pay, such as brevity.",
        advice="Read the samples of a group, the best and the worst.",
    )


def _check_length(run: JudgedRun) -> CheckResult:
    found = correlate_ranks((one.group, one.score, one.length) for one in run.scored)
    if found is None:
        return not_applicable("scores and lengths that are known do not differ within groups")
    r, p_value = found
    if r < _BY_LENGTH:
        return CheckResult(unit=_UNIT, p_value=1.0)
    known = [one for one in run.scored if one.length is not None]
    return _found(
        "The longer an answer, the higher its score (rank correlation within groups "
        f"{_number(r)}).",
        sorted(known, key=lambda one: -(one.length or 0)),
        run.samples,
        p_value=p_value,
        severity="medium",
        otherwise="Longer answers can be better.",
        advice="Compare a long and a short answer of one quality: `adjudge probe` does.",
    )


def _check_flat_groups(run: JudgedRun) -> CheckResult:
    members: dict[Hashable, list[JudgedSample]] = {}
    for one in run.scored:
        members.setdefault(one.group, []).append(one)
    groups = [rows for rows in members.values() if len({one.env for one in rows}) > 1]
    flat = [rows for rows in groups if len(set(_scores(rows))) == 1]
    if not groups:
        return not_applicable("the environment’s rewards do not differ within groups")
    if run.is_constant or len(flat) < _FEW or len(flat) < _FLAT_GROUPS * len(groups):
        return _NOTHING
    levels = {_scores(rows)[0] for rows in flat}
    what = f", {_number(levels.pop())} in each" if len(levels) == 1 else ""
    return _found(
        f"In {_of(flat, groups)} groups all scores are equal{what}, though the environment’s "
        "rewards differ.",
        [one for rows in flat for one in rows],
        run.scored,
        severity="medium",
        otherwise="A scale of few values has ties by chance.",
        advice="Use a finer scale, or a judge that compares the answers of a group.",
    )


def correlate_ranks(
    rows: Iterable[tuple[Hashable, float | None, float | None]],
) -> tuple[float, float] | None:
    """The correlation of the ranks of two numbers within groups, and its p value.

    By the normal approximation to permutations within groups. Where one of the two never differs
    within a group, groups are compared with one another. ``None`` where nothing differs.
    """
    members: dict[Hashable, list[tuple[float, float]]] = {}
    for group, x, y in rows:
        if x is not None and y is not None:
            members.setdefault(group, []).append((x, y))
    strata = list(members.values())
    if all(len({y for _, y in rows}) == 1 for rows in strata):
        strata = [[(mean_and_std([x for x, _ in rows])[0], rows[0][1]) for rows in strata]]
    product = squares_x = squares_y = variance = 0.0
    for pairs in strata:
        if len(pairs) > 1:
            x, y = ([(one or 0.0) - 0.5 for one in group_step(column, "rank")]
                    for column in zip(*pairs, strict=True))  # fmt: skip
            one, other = math.fsum(a * a for a in x), math.fsum(b * b for b in y)
            product += math.fsum(a * b for a, b in zip(x, y, strict=True))
            squares_x, squares_y = squares_x + one, squares_y + other
            variance += one * other / (len(pairs) - 1)
    if sum(map(len, strata)) < _MIN_SAMPLES or variance == 0:
        return None
    p_value = math.erfc(abs(product) / math.sqrt(2 * variance))
    return product / math.sqrt(squares_x * squares_y), p_value


def binomial_tail(hits: int, n: int, share: float) -> float:
    """P(X ≥ ``hits``) of ``n`` trials.

    >>> binomial_tail(3, 3, 0.5)
    0.125
    """
    log, other = math.log(share), math.log1p(-share)
    return math.fsum(
        math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
                 + k * log + (n - k) * other)
        for k in range(hits, n + 1)
    )  # fmt: skip


def _scores(rows: Iterable[JudgedSample]) -> list[float]:
    return [one.score for one in rows if one.score is not None]


def _of(some: Sequence[object], every: Sequence[object]) -> str:
    return f"{len(some):,} of {len(every):,}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def _mean_of(rows: Sequence[JudgedSample]) -> float:
    return mean_and_std(_scores(rows) or [math.nan])[0]


def _mean(rows: Sequence[JudgedSample]) -> str:
    return _number(_mean_of(rows))


JUDGE_CALL_CHECKS = tuple(
    Check(name=name, title=title, looks_for=looks_for, run=run)
    for name, title, looks_for, run in (
        ("repaired", "Scores of a second ask", "second scores that differ from first ones",
         _check_repaired),
        ("models", "More models than judges", "models beyond those of the spec", _check_models),
        ("sources", "Replies of a cache that differ", "live and kept replies with other means",
         _check_sources),
        ("orders", "Pairs that change with the order",
         f"two orders that disagree in {_ORDER_SHARE:.0%} of the pairs", _check_orders),
        ("answer_shown", "Answers that are not whole in the judge’s prompt",
         f"answers cut or absent in {_SHOWN_SHARE:.0%} of the prompts", _check_shown),
        ("stated_scores", "Answers that state a score", "higher scores for such answers",
         _check_stated),
        ("same_reasons", "One reason with unlike scores",
         "equal reasons with scores that are half of the scale apart", _check_same_reasons),
        ("flat_groups", "Groups that the judge does not tell apart",
         f"equal scores in {_FLAT_GROUPS:.0%} of the groups that the environment tells apart",
         _check_flat_groups),
        ("against_environment", "Scores against the environment’s reward",
         f"a rank correlation within groups of {_AGAINST} or less", _check_environment),
    )
)  # fmt: skip
"""The checks of what an audit of rewards and reasons does not see."""

JUDGE_CHECKS = (
    *JUDGE_CALL_CHECKS,
    *(
        Check(name=name, title=title, looks_for=looks_for, run=run)
        for name, title, looks_for, run in (
            ("missing", "Missing scores", "samples without a score", _check_missing),
            ("constant", "One score for all samples", f"{_MIN_SAMPLES} equal scores or more",
             _check_constant),
            ("reasons", "Scores against their reasons",
             "reasons that call the answer right or wrong, beside the other end of the scale",
             _check_reasons),
            ("length", "Scores that follow the length",
             f"a rank correlation within groups of {_BY_LENGTH} or more", _check_length),
        )
    ),
)  # fmt: skip
