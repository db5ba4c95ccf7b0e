"""What an audit says: a finding with its effect, or nothing seen and what could have been seen.

A finding is *broken* where the run's own numbers show the fault (a NaN, an advantage that
contradicts its reward), and else a suspicion: an honest run may have the same numbers, and the
finding says how, and what tells the two apart.

A check is a function from what it looks at to a :class:`CheckResult`: the columns of a run
(:class:`~adjudge.checks.run.AuditedRun`), what a grader said, or the steps of a training. Checks of
chance give a p value; :func:`decide` holds the rate of false alarms
of all of them together at 1 % (Holm 1979, "A Simple Sequentially Rejective Multiple Test
Procedure"). Checks of facts (a NaN is a NaN) have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec

from adjudge.extensions import describe_cause
from adjudge.stats import Estimate

FALSE_ALARM_RATE = 0.01
"""The most runs of which a check of chance finds anything by chance, over all of them together."""

STATED_POWER = 0.9
"""At which the smallest effect that could have been seen is stated."""

FindingSeverity = Literal["high", "medium", "low"]
_SEVERITIES: tuple[FindingSeverity, ...] = ("high", "medium", "low")
_HIGH, _MEDIUM = 0.10, 0.02


class AdvantageImpact(msgspec.Struct, frozen=True, kw_only=True):
    """What the advantages would be without what was found.

    ``affected``: share of the samples that it concerns; ``turned``: among the samples with
    an advantage, the share that changes its sign; ``change``: mean absolute change of the
    advantage, in standard deviations of a group. ``why``: why neither can be said.
    """

    affected: float | None = None
    turned: float | None = None
    change: float | None = None
    why: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found; the effect of its result is the size.

    ``sentence`` says it in plain words; ``otherwise`` how an honest run may have it, and what tells
    the two apart, and ``broken`` that no honest run can. ``rows`` are the affected samples by their
    place in the run, worst first. ``harm`` (0 to 1) sorts findings: the larger of the shares of
    samples that turn, are unusable or learn from something else.
    """

    sentence: str
    otherwise: str = ""
    broken: bool = False
    rows: tuple[int, ...] = ()
    affected: int = 0
    impact: AdvantageImpact = AdvantageImpact()
    harm: float = 0.0
    severity: FindingSeverity = "low"
    advice: str = ""
    series: tuple[tuple[float, float], ...] = ()
    """Points (step, value) where the finding is one over steps."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a check says of a run.

    ``finding``: what it found, or would if chance is ruled out; ``p_value``: of chance, ``None``
    for facts. ``visible`` gives the smallest effect that is found in 90 % of such runs, in
    ``unit``, at the level that a p value must reach; :func:`decide` calls it and keeps the answer
    as ``detectable``. Where it is ``None`` this is not known, and ``detectable_why`` may say why.
    ``skipped``: why the check does not apply; ``failed``: the error that it raised. ``effect``:
    what it measured, found or not.
    """

    finding: Finding | None = None
    p_value: float | None = None
    effect: Estimate = Estimate()
    unit: str = ""
    visible: Callable[[float], float] | None = None
    detectable: float | None = None
    detectable_why: str = ""
    skipped: str = ""
    failed: str = ""


EvidenceT = TypeVar("EvidenceT")


@dataclass(frozen=True)
class Check(Generic[EvidenceT]):
    """One thing that can be wrong with a run.

    ``run`` measures and tests the evidence; what it needs for that it says by :func:`need`.
    ``otherwise`` and ``advice`` are those of its findings that have none of their own.
    ``features``: what is measured of each rollout while its texts are at hand, by names that checks
    may share; ``run`` reads them as ``run.feature(name)``.
    """

    name: str
    title: str
    looks_for: str
    run: Callable[[EvidenceT], CheckResult]
    otherwise: str = ""
    advice: str = ""
    features: Mapping[str, Any] = field(default_factory=dict)


def make_checks(
    *rows: tuple[str, Callable[[EvidenceT], CheckResult], str, str, str],
) -> tuple[Check[EvidenceT], ...]:
    """Checks of rows of name, function, what it looks for, ``otherwise`` and ``advice``."""
    return tuple(
        Check(name, looks_for, looks_for, run, otherwise, advice)
        for name, run, looks_for, otherwise, advice in rows
    )


CheckState = Literal["found", "failed", "nothing_found", "not_applicable"]


class CheckOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A check and its result after all have been decided together."""

    name: str
    title: str
    result: CheckResult
    state: CheckState


def list_found(outcomes: Sequence[CheckOutcome]) -> list[tuple[CheckOutcome, Finding]]:
    """The checks that found something, each with its finding."""
    return [
        (one, one.result.finding)
        for one in outcomes
        if one.state == "found" and one.result.finding is not None
    ]


def share_text(value: float) -> str:
    """A share in per cent, which never rounds something to nothing or to all.

    >>> share_text(0.00001), share_text(0.124), share_text(1.0)
    ('< 0.1%', '12.4%', '100%')
    """
    if 0 < value < 0.001:
        return "< 0.1%"
    if 0.999 < value < 1:
        return "> 99.9%"
    return f"{value:.0%}" if value in {0, 1} else f"{value:.1%}"


def severity_of(harm: float) -> FindingSeverity:
    """``high`` from a tenth of the training signal on, ``medium`` from a fiftieth on."""
    return "high" if harm >= _HIGH else "medium" if harm >= _MEDIUM else "low"


class NotApplicable(Exception):
    """Says in a check why the evidence cannot answer it."""


class NothingFound(Exception):
    """Ends a check that found nothing, with the result that says what it measured."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__()
        self.result = result


def need(condition: object, why: str) -> None:
    """Where the condition does not hold, the check does not apply; ``why`` is the reason."""
    if not condition:
        raise NotApplicable(why)


NO_REWARDS = "the run has no rewards"
"""Why a check of rewards does not apply to a run of texts alone."""


def not_applicable(why: str) -> CheckResult:
    """The result of a check that the run cannot answer."""
    return CheckResult(skipped=why)


def ask_check(check: Check[EvidenceT], evidence: EvidenceT) -> CheckResult:
    """What a check says; an error of a check, which may be a user's, is its result."""
    try:
        result = check.run(evidence)
    except NotApplicable as why:
        return not_applicable(str(why))
    except NothingFound as nothing:
        result = nothing.result
    except Exception as error:  # noqa: BLE001  (whatever a user's check raises is named)
        return CheckResult(failed=describe_cause(error))
    if isinstance(result, CheckResult):
        return result
    return CheckResult(failed=f"it gave no CheckResult (found {result!r:.80})")


def make_result(
    sentence: str,
    effect: float,
    *,
    unit: str = "share of samples",
    p_value: float | None = None,
    severity: FindingSeverity | None = None,
    affected: int = 0,
    rows: Sequence[int] = (),
    advice: str = "",
) -> CheckResult:
    """The result with a finding that has the size ``effect``, which is its harm, too."""
    estimate, harm = Estimate(effect, why="counted"), min(1.0, abs(effect))
    finding = Finding(
        sentence=sentence,
        rows=tuple(rows),
        affected=affected,
        harm=harm,
        severity=severity or severity_of(harm),
        advice=advice,
    )
    return CheckResult(finding=finding, p_value=p_value, effect=estimate, unit=unit)


Question = tuple[Check[Any], Any]
"""A check and what it is asked about."""


def ask_of_each(
    checks: Sequence[Check[EvidenceT]], evidence: Mapping[str, EvidenceT]
) -> list[Question]:
    """Every check of each grader's evidence, with the grader in its name and title."""
    return [
        (replace(check, name=f"{check.name}.{name}", title=f"{name}: {check.title}"), one)
        for name, one in evidence.items()
        for check in checks
    ]


def ask_checks(questions: Sequence[Question]) -> list[CheckOutcome]:
    """Ask every check, and decide all answers together."""
    return decide([(check, ask_check(check, evidence)) for check, evidence in questions])


def decide(answers: Sequence[tuple[Check[Any], CheckResult]]) -> list[CheckOutcome]:
    """The confirmed findings, worst first; then what was not found, then what does not apply.

    Applies Holm's step-down to the p values of all checks that have one. Of their findings, one
    that is not confirmed becomes "nothing found". One without an interval of its size, for want of
    groups, is never ``high``.
    """
    p_values = [result.p_value for _, result in answers]
    level = FALSE_ALARM_RATE / max(1, sum(value is not None for value in p_values))
    outcomes = []
    for (check, result), stands in zip(answers, reject_by_holm(p_values), strict=True):
        finding = result.finding
        if finding is not None:
            unsure = result.p_value is not None and result.effect.low is None
            finding = msgspec.structs.replace(
                finding,
                otherwise=finding.otherwise or check.otherwise,
                advice=finding.advice or check.advice,
                severity="medium" if unsure and finding.severity == "high" else finding.severity,
            )
        found = finding is not None and (result.p_value is None or stands)
        state: CheckState = "found" if found else "nothing_found"
        if result.failed or result.skipped:
            state = "failed" if result.failed else "not_applicable"
        # The smallest visible effect at the strictest level of Holm's, which it must pass.
        visible = result.detectable if result.visible is None else result.visible(level)
        outcomes.append(
            CheckOutcome(
                name=check.name,
                title=check.title,
                result=msgspec.structs.replace(result, finding=finding, detectable=visible),
                state=state,
            )
        )
    return sorted(outcomes, key=_rank)


def _rank(one: CheckOutcome) -> tuple[int, int, float]:
    state, finding = get_args(CheckState).index(one.state), one.result.finding
    if one.state != "found" or finding is None:
        return state, 0, 0.0
    return state, _SEVERITIES.index(finding.severity), -finding.harm


def reject_by_holm(p_values: Sequence[float | None], level: float = FALSE_ALARM_RATE) -> list[bool]:
    """Which of the p values are too small for chance, all together at ``level``.

    >>> reject_by_holm([0.001, None, 0.04, 0.03])
    [True, False, False, False]
    """
    order = sorted((value, place) for place, value in enumerate(p_values) if value is not None)
    rejected = [False] * len(p_values)
    for number, (value, place) in enumerate(order):
        if value > level / (len(order) - number):
            break
        rejected[place] = True
    return rejected
