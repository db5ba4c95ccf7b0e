"""Checks of what explains advantages within groups: length, format, place, parts of the reward."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from adjudge.checks.check import AdvantageImpact, Check, CheckResult, Finding, need, not_applicable
from adjudge.checks.effects import (
    MIN_GROUPS,
    Affected,
    EffectTest,
    MeasuredEffect,
    centre_by_group,
    find_turned,
    harm_of,
    live_advantages,
    measure_advantages,
    measure_correlation,
    measure_partial,
    measure_slope,
    need_advantages,
    rows_by,
)
from adjudge.checks.run import AuditedRollout, AuditedRun, RolloutFeature
from adjudge.stats import Estimate
from adjudge.stats.estimates import np

MIN_CORRELATION = 0.15
"""A weaker correlation of length and advantage is no finding, however certain it is."""

MIN_DIFFERENCE = 0.25
"""A smaller difference of advantages is no finding, in standard deviations of a group."""

REDUNDANT, OPPOSED = 0.95, -0.3
"""Correlations within groups from which on two components say the same, or pull apart."""

_MAX_PAIRED = 12


class Explanation(NamedTuple):
    """One of several things that may explain advantages, or each other."""

    name: str
    values: Any
    effect: Estimate
    test: EffectTest

    def as_result(self, several: Sequence[Explanation], unit: str, limit: float) -> CheckResult:
        """The result of the one that was chosen among ``several``.

        Its p value counts their number (Bonferroni). What is seen of whichever of them it is: the
        largest. A smaller effect than ``limit`` is no finding.
        """
        visible = [one.test.visible(limit, len(several)) for one in several]
        return CheckResult(
            p_value=min(1.0, self.test.p_value * len(several)),
            effect=self.effect,
            unit=unit,
            visible=lambda level: max(at(level) for at in visible),
        )


def _explain(measured: Iterable[tuple[str, Any, MeasuredEffect]], none: str) -> list[Explanation]:
    """Those that could be tested; ``none``: why the check does not apply where none could."""
    found = [
        Explanation(name, values, one.estimate, one.test)
        for name, values, one in measured
        if one.test is not None
    ]
    need(found, none)
    return found


def _with_removal(
    result: CheckResult,
    run: AuditedRun,
    x: Any,
    slope: float,
    sentence: str,
    *,
    explained: float,
    otherwise: str,
) -> CheckResult:
    """With the finding that ``x`` explains advantages, whose samples are those that turn without.

    ``explained``: the share of the advantages' variance that ``slope`` times ``x`` has.
    """
    used = np.isfinite(x) & np.isfinite(run.advantage)
    taken = slope * centre_by_group(np.where(used, x, 0.0), run.group, used)
    after = run.advantage - taken
    turned = used & find_turned(run.advantage, after)
    impact = measure_advantages(run.advantage, after, used, float(used.mean()))
    return Affected(run, turned, result).describe(
        sentence,
        rows=rows_by(-np.abs(taken), turned),
        impact=impact,
        harm=harm_of(impact, explained),
        otherwise=otherwise,
    )


def _find_length(run: AuditedRun) -> CheckResult:
    need_advantages(run)
    need(run.with_texts, _NO_TEXTS)
    y, x = live_advantages(run), np.log1p(run.feature("length"))
    found = measure_correlation(x, y, run.group)
    result = found.as_result("correlation with the advantage", MIN_CORRELATION)
    if found.test is None or abs(r := found.test.value) < MIN_CORRELATION:
        return result
    slope = measure_slope(x, y, run.group)
    if slope.test is None:
        return not_applicable(slope.estimate.why)
    return _with_removal(
        result,
        run,
        np.where(np.isfinite(y), x, np.nan),
        slope.test.value,
        f"Within groups, {'longer' if r > 0 else 'shorter'} responses get higher advantages: "
        f"length explains {r * r:.0%} of their variance.",
        explained=r * r,
        otherwise="Longer answers can be better, wrong answers can be longer, and a penalty on "
        "length is meant to do this. Compare a long and a short response of the same quality; "
        "`adjudge probe` measures a judge's own liking for length.",
    )


# A line starts with the line feed before it, and a text with one that is put there: a pattern that
# starts with a character is searched many times faster than one that starts with ``^``.
_HEADING = re.compile(r"\n#{1,6} \S")
_BULLET = re.compile(
    r"\n\s{0,6}(?:[-*•]|\d{1,2}[.)]) \S.*\n(?:.*\n)?\s{0,6}(?:[-*•]|\d{1,2}[.)]) \S"
)
_BOLD = re.compile(r"\*\*[^*\n]{1,200}\*\*")
_TABLE = re.compile(r"\n\|.*\|\s*\n\|[\s:|-]+\|")


def _feature(pattern: re.Pattern[str] | str) -> RolloutFeature:
    def measure(rollout: AuditedRollout) -> float | None:
        if not rollout.has_texts:
            return None
        text = "\n" + rollout.response
        return float(pattern in text if isinstance(pattern, str) else bool(pattern.search(text)))

    return measure


_FORMATS: Mapping[str, tuple[str, RolloutFeature]] = {
    "format.headings": ("headings", _feature(_HEADING)),
    "format.lists": ("lists", _feature(_BULLET)),
    "format.bold": ("bold text", _feature(_BOLD)),
    "format.code": ("code blocks", _feature("```")),
    "format.tables": ("tables", _feature(_TABLE)),
}


def _find_format(run: AuditedRun) -> CheckResult:
    return _explain_by_texts(
        run,
        lambda: {title: run.feature(name) for name, (title, _) in _FORMATS.items()},
        "The task may ask for this form, and better answers may use it. `adjudge probe` measures a "
        "judge's own liking for Markdown.",
        "no format differs within enough groups",
    )


def _explain_by_texts(
    run: AuditedRun, measure: Callable[[], Mapping[str, Any]], otherwise: str, none: str
) -> CheckResult:
    """Which of several things in the texts explains advantages at equal length."""
    need_advantages(run)
    need(run.with_texts, _NO_TEXTS)
    y, length = live_advantages(run), np.log1p(run.feature("length"))
    found = (
        (name, has, measure_partial(has, y, length, run.group)) for name, has in measure().items()
    )
    return _find_strongest(
        run,
        _explain(found, none),
        y,
        "advantage with it, minus without it, at equal length",
        ("responses with {}", "others of the same length"),
        otherwise,
    )


_NO_TEXTS = "the texts of the rollouts are not there"


_MIN_SHARE, _MAX_SHARE = 0.03, 0.9
"""A phrase that fewer or more of the responses have is not looked at."""

_MOST_WORDS = 30
_EMOJI = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]")
_TO_THE_GRADER = re.compile(
    r"\b(?:(?:full|maximum|highest|perfect|top)\s(?:marks?|scores?|points?|rating|credit)"
    r"|ignore\s(?:all\s|any\s|the\s)?(?:previous|prior|above|earlier)\sinstructions?"
    r"|(?:this|my|the)\s(?:answer|response|solution)\s(?:is|deserves|should\sreceive)"
    r"\s(?:fully\s|completely\s|entirely\s|clearly\s)?(?:correct|right|perfect|the\shighest|full)"
    r"|(?:dear|to\sthe)\s(?:judge|grader|evaluator))\b"
)


_MAY_BE_TO_THE_GRADER = (
    *("full ", "maximum ", "highest ", "perfect ", "top ", "ignore ", "deserve", "dear "),
    *("answer is", "response is", "solution is", "should receive", "to the "),
)
"""One of these is in all that the pattern finds: looking for them is many times faster."""


def _opening(rollout: AuditedRollout) -> float | None:
    """A hash of the first sentence; ``None`` for a response of one sentence."""
    text = rollout.response[:400].strip()
    ends = [at for mark in _SENTENCE_ENDS if (at := text.find(mark)) >= 0]
    return _hash_sentence(text[: min(ends) + 1]) if ends and rollout.has_texts else None


def _closing(rollout: AuditedRollout) -> float | None:
    """A hash of the last sentence; ``None`` for a response of one sentence."""
    text = rollout.response[-400:].strip()
    start = max(text.rfind(mark) for mark in _SENTENCE_ENDS)
    return _hash_sentence(text[start + 1 :]) if start >= 0 and rollout.has_texts else None


_SENTENCE_ENDS = (". ", "! ", "? ", "\n", "。")


def _hash_sentence(text: str) -> float | None:
    if text.count(" ") > _MOST_WORDS:
        return None
    return float(crc32(text.strip().lower().encode("utf-8", "surrogatepass")))


def _has_emoji(rollout: AuditedRollout) -> float | None:
    text = rollout.response
    return float(not text.isascii() and bool(_EMOJI.search(text))) if rollout.has_texts else None


def _speaks_to_the_grader(rollout: AuditedRollout) -> float | None:
    text = rollout.response.lower()
    near = any(words in text for words in _MAY_BE_TO_THE_GRADER)
    return float(near and bool(_TO_THE_GRADER.search(text))) if rollout.has_texts else None


def _find_phrases(run: AuditedRun) -> CheckResult:
    return _explain_by_texts(
        run,
        lambda: _measure_phrases(run),
        "The task may ask for these words, and better answers may use them. Read some samples of "
        "both kinds; a judge that a phrase sways pays for the phrase alone.",
        "no phrase is in enough of the responses",
    )


def _measure_phrases(run: AuditedRun) -> dict[str, Any]:
    """Which responses have each phrase, of those that neither nearly all have nor nearly none."""
    found = {
        "emoji": run.feature("phrases.emoji"),
        "words to the grader": run.feature("phrases.grader"),
    }
    for name in ("opening", "closing"):
        hashes = run.feature(f"phrases.{name}")
        values, counts = np.unique(hashes[np.isfinite(hashes)], return_counts=True)
        if len(values):
            common = values[int(counts.argmax())]
            found[f"the most frequent {name} sentence"] = (hashes == common).astype(float)
    return {n: x for n, x in found.items() if _MIN_SHARE <= float(np.nanmean(x)) <= _MAX_SHARE}


def _find_strongest(
    run: AuditedRun,
    tested: list[Explanation],
    y: Any,
    unit: str,
    who: tuple[str, str],
    otherwise: str,
) -> CheckResult:
    """The one with the smallest p value.

    ``who``: what gets other advantages, with a place for the candidate's name, and than whom.
    """
    best = min(tested, key=lambda one: (one.test.p_value, one.name))
    names = ", ".join(one.name for one in tested)
    result = best.as_result(tested, unit, MIN_DIFFERENCE)
    result = msgspec.structs.replace(result, detectable_why=names)
    value, x = best.test.value, best.values
    if abs(value) < MIN_DIFFERENCE:
        return result
    used = np.isfinite(x) & np.isfinite(y)
    off = centre_by_group(np.where(used, x, 0.0), run.group, used)
    total = float((y[used] ** 2).sum())
    return _with_removal(
        result,
        run,
        np.where(np.isfinite(y), x, np.nan),
        value,
        f"Within groups, {who[0].format(best.name)} get advantages {abs(value):.2f} standard "
        f"deviations {'higher' if value > 0 else 'lower'} than {who[1]}.",
        explained=min(1.0, value**2 * float((off * off).sum()) / total) if total else 0.0,
        otherwise=otherwise,
    )


def _find_position(run: AuditedRun) -> CheckResult:
    need_advantages(run)
    need(not run.input.pairs, "the rows are pairs: the first is the better by definition")
    y = live_advantages(run)
    need(not _rows_are_sorted(run, y), "the rows of each group are sorted by their reward")
    last = run.group_sizes[run.group] - 1
    middle = np.where(last > 0, run.place / np.maximum(last, 1), 0.0)
    places = {"first": run.place == 0, "last": run.place == last, "later": middle}
    found = (
        (name, values.astype(float), measure_slope(values.astype(float), y, run.group))
        for name, values in places.items()
    )
    return _find_strongest(
        run,
        _explain(found, f"fewer than {MIN_GROUPS} groups with advantages"),
        y,
        "advantage of the place, minus the others'",
        ("the {} samples", "the others"),
        "Rows in the order in which they were done have the short ones first. Else a judge that "
        "sees several responses at once may prefer a place: ask in both orders.",
    )


def _rows_are_sorted(run: AuditedRun, y: Any) -> bool:
    """Whether rewards only rise, or only fall, in nearly all groups: so the file was written."""
    order = np.lexsort((run.place, run.group))
    group, value = run.group[order], y[order]
    same = (group[1:] == group[:-1]) & np.isfinite(value[1:]) & np.isfinite(value[:-1])
    steps = np.diff(np.nan_to_num(value))
    moves = same & (np.abs(steps) > 1e-9)
    rises = np.bincount(group[1:][moves & (steps > 0)], minlength=len(run.group_sizes)) > 0
    falls = np.bincount(group[1:][moves & (steps < 0)], minlength=len(run.group_sizes)) > 0
    groups = int((rises | falls).sum())
    large = int(np.median(run.group_sizes)) > 2
    return bool(
        large and groups and max((rises & ~falls).sum(), (falls & ~rises).sum()) > 0.95 * groups
    )


def _find_components(run: AuditedRun) -> CheckResult:
    names = []
    for name in run.components:
        finite = np.isfinite(values := run.component(name))
        if finite.mean() >= 0.5 and np.ptp(values[finite]) > 0:
            names.append(name)
    names = names[:_MAX_PAIRED]
    _need_pairs(run, names)
    columns = {name: run.component(name) for name in names}
    correlated = (
        (f"{one} and {other}", (x, y), measure_correlation(x, y, run.group))
        for (one, x), (other, y) in combinations(columns.items(), 2)
    )
    pairs = _explain(correlated, "components do not vary within enough groups")
    worst = min(pairs, key=lambda pair: pair.test.value)
    result = worst.as_result(pairs, "correlation of two components within groups", -OPPOSED)
    unknown = AdvantageImpact(why="the weights of the components are not known")
    if worst.test.value <= OPPOSED:
        value = worst.test.value
        product = _multiply(worst.values, run.group)
        rows = rows_by(product, product < -0.5)
        return Affected(run, product < -0.5, result).describe(
            f"Within groups, {worst.name} pull apart (correlation {value:.2f}): where one is high "
            "the other is low, and what one teaches the other undoes.",
            rows=rows,
            affected=len(rows),
            impact=unknown,
            harm=value * value / 2,
            otherwise="A part that limits another (brevity, cost) does this on purpose. Else "
            "decide which of the two matters, or make one a condition of the other.",
        )
    # By the lower end of the correlation where there is an interval.
    copies = [
        pair
        for pair in pairs
        if (pair.test.value if pair.effect.low is None else pair.effect.low) > REDUNDANT
    ]
    if not copies:
        return result
    same = max(copies, key=lambda pair: pair.test.value)
    finding = Finding(
        sentence=f"Within groups, {same.name} say the same (correlation {same.test.value:.2f}): "
        "one of them is paid twice.",
        impact=unknown,
        harm=0.02,
        advice="Leave one out, or give its weight to something else.",
    )
    return msgspec.structs.replace(result, finding=finding, p_value=None, effect=same.effect)


def _need_pairs(run: AuditedRun, names: Sequence[str]) -> None:
    """Columns of numbers that are parts of a reward, and can be compared."""
    need(np.isfinite(run.advantage).any(), "the run has neither rewards nor advantages")
    for name in names:
        both = np.isfinite(values := run.component(name)) & np.isfinite(run.reward)
        alone = both.any() and np.allclose(values[both], run.reward[both])
        need(not alone, f"the reward is {name} alone")
    need(len(names) > 1, "the run has fewer than two components of a reward that vary")
    need((run.group_sizes > 1).any(), "every group has one sample")


def _multiply(both: tuple[Any, Any], group: Any) -> Any:
    """How far two components of each sample differ from their groups: below 0 in two directions."""
    used = np.isfinite(both[0]) & np.isfinite(both[1])
    parts = [centre_by_group(np.where(used, v, 0.0), group, used) for v in both]
    scaled = [v / (math.sqrt(float((v * v).mean())) or 1.0) for v in parts]
    return scaled[0] * scaled[1]


# fmt: off
ADVANTAGE_CHECKS = (
    Check("length", "Length explains advantages",
          f"a correlation of length and advantage within groups of {MIN_CORRELATION} or "
          "more", _find_length),
    Check("format", "Format explains advantages",
          "headings, lists, bold text, code blocks or tables that are paid for, at equal "
          "length", _find_format,
          features={name: feature for name, (_, feature) in _FORMATS.items()}),
    Check("position", "The place in the group explains advantages",
          "the first, the last or the later samples of a group that get more or less",
          _find_position),
    Check("components", "Components that fight or say the same",
          f"two components of the reward with a correlation within groups of {OPPOSED} or "
          f"less, or of {REDUNDANT} or more", _find_components),
    Check("phrases", "A phrase explains advantages",
          "emoji, words to the grader, or one opening or closing sentence that are paid "
          "for, at equal length", _find_phrases,
          features={
              "phrases.emoji": _has_emoji,
              "phrases.grader": _speaks_to_the_grader,
              "phrases.opening": _opening,
              "phrases.closing": _closing,
          }),
)
# fmt: on
