"""The checks: what each answer teaches with a missing reward beside it, against without it.

Nothing here knows a trainer's formula. A group in which some rewards are missing is held to what
the same trainer makes of the answers that have one, alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from adjudge.errors import ConfigError
from adjudge_lab.conformance.driver import Batch, Group, StepResult, TrainerDriver

TOLERANCE = 2e-5
"""Of an advantage, and of a gradient's ratio: what single precision may differ by."""

SIZES = (4, 8)
_KL = 0.1


class CheckEnd(StrEnum):
    """How a check ended.

    ``DROPS``: nothing of the whole group is learned.
    ``STOPS``: the trainer raises, so nothing wrong is learned and nothing else either.
    ``UNKNOWN``: the driver cannot reach what the check looks at.
    """

    PASSES = "passes"
    FAILS = "fails"
    DROPS = "drops"
    STOPS = "stops"
    UNKNOWN = "unknown"


class TrainerVerdict(StrEnum):
    """The effect of a way to say "missing" in a trainer, the best first.

    ``EXACT``: every check that can be made passes. ``UNBIASED``: each answer is held to the right
    ones, so the direction is right, but a missing one still counts in a normaliser, a KL term, a
    logged mean or dynamic sampling. ``DROPS``: nothing of its group is learned, and nothing else
    changes. ``STOPS``: the trainer raises. ``WRONG``: what the others learn changes, or what is
    missing is learned from.
    """

    EXACT = "exact"
    UNBIASED = "unbiased"
    DROPS = "drops the group"
    STOPS = "stops"
    WRONG = "wrong"


RIGHT = (TrainerVerdict.EXACT, TrainerVerdict.UNBIASED, TrainerVerdict.DROPS)
"""Nothing false is learned, and the run goes on."""


def rank_way(verdict: str, documented: bool) -> tuple[int, bool, int]:
    """The better verdict first; where none is right, a way that the trainer names."""
    place = list(TrainerVerdict).index(TrainerVerdict(verdict))
    return min(place, len(RIGHT)), not documented, place


class TrainerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one way to say "missing" under one setting; ``text`` says what was seen."""

    check: str
    way: str
    setting: str
    outcome: CheckEnd
    text: str = ""


class Conformance(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite found about a trainer.

    ``undocumented`` are ways that it does not name, ``beside_another`` those with two functions.
    """

    trainer: str
    version: str
    decided_at: str
    findings: list[TrainerFinding]
    undocumented: list[str]
    beside_another: list[str]

    def judge_way(self, way: str, setting: str | None = None) -> TrainerVerdict:
        """The verdict on a way, under one setting or the worst of all."""
        seen = [one for one in self.findings if one.way == way and setting in (None, one.setting)]
        if any(one.check not in COUNTS and one.outcome is CheckEnd.FAILS for one in seen):
            return TrainerVerdict.WRONG
        if any(one.outcome is CheckEnd.STOPS for one in seen):
            return TrainerVerdict.STOPS
        if any(one.outcome is CheckEnd.DROPS for one in seen):
            return TrainerVerdict.DROPS
        if any(one.outcome is CheckEnd.FAILS for one in seen):
            return TrainerVerdict.UNBIASED
        return TrainerVerdict.EXACT

    @property
    def best_way(self) -> str:
        """The best with one function, by :func:`rank_way`; of equals the first."""
        return min(
            (way for way in self.ways if way not in self.beside_another),
            key=lambda way: rank_way(self.judge_way(way), way not in self.undocumented),
        )

    @property
    def verdict(self) -> TrainerVerdict:
        """That of the best way."""
        return self.judge_way(self.best_way)

    @property
    def ways(self) -> list[str]:
        """The ways that were tried, in order."""
        return list(dict.fromkeys(one.way for one in self.findings))


class _Case(NamedTuple):
    rewards: tuple[float | None, ...]
    lengths: tuple[int, ...]

    @property
    def present(self) -> list[int]:
        return [place for place, reward in enumerate(self.rewards) if reward is not None]

    def alone(self) -> _Case:
        """The answers that have a reward."""
        return _Case(
            tuple(self.rewards[place] for place in self.present),
            tuple(self.lengths[place] for place in self.present),
        )


def run_conformance(driver: TrainerDriver) -> Conformance:
    """Drive the trainer with 0 to all rewards of a group missing, in each way and setting.

    Raises :class:`~adjudge.errors.ConfigError` where the trainer's code does not even work with
    nothing missing: then the driver does not fit this version.
    """
    check_complete_groups(driver)
    findings = [
        run_check(driver, way.name, setting, check)
        for way in driver.ways
        for setting in driver.settings
        for check in TRAINER_CHECKS
    ]
    return Conformance(
        trainer=driver.name,
        version=driver.version,
        decided_at=driver.decided_at,
        findings=findings,
        undocumented=[way.name for way in driver.ways if not way.documented],
        beside_another=[way.name for way in driver.ways if way.functions > 1],
    )


def check_complete_groups(driver: TrainerDriver) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` where not even complete groups are learned from.

    Then the driver does not fit this version of the trainer.
    """
    for setting in driver.settings:
        _check_complete_groups(_Probe(driver, driver.ways[0].name, setting))


def run_check(driver: TrainerDriver, way: str, setting: str, check: str) -> TrainerFinding:
    """One of :data:`TRAINER_CHECKS`, by its name."""
    return TRAINER_CHECKS[check](_Probe(driver, way, setting))


class _Stopped(Exception):
    """The trainer raised."""


class _Probe:
    """One way and setting of a driver."""

    def __init__(self, driver: TrainerDriver, way: str, setting: str) -> None:
        self.driver, self.way, self.setting = driver, way, setting

    def step(self, *cases: _Case, kl: float = 0.0) -> StepResult:
        try:
            return self._run(cases, kl)
        except _Stopped:
            if len(cases) > 1 or len(cases[0].present) == len(cases[0].rewards):
                raise
            # A trainer that drops the group may refuse a batch of nothing: beside another group?
            size = len(cases[0].rewards)
            made = self._run((*cases, _group(size, size)), kl)
            gradients = made.gradients and made.gradients[:1]
            return StepResult(advantages=made.advantages[:1], gradients=gradients)

    def _run(self, cases: Sequence[_Case], kl: float) -> StepResult:
        batch = Batch(
            groups=tuple(case.rewards for case in cases),
            lengths=tuple(case.lengths for case in cases),
            kl=kl,
        )
        try:
            return self.driver.run_step(batch, self.way, self.setting)
        except (NameError, ConfigError) as error:
            raise self.misfit(error) from error
        except Exception as error:
            if "SimpleNamespace" in str(error):  # of the driver's stand-in, not of the trainer
                raise self.misfit(error) from error
            first = (str(error).strip().splitlines() or [""])[0][:120]
            raise _Stopped(f"{type(error).__name__}: {first}") from error

    def misfit(self, error: object) -> ConfigError:
        """The driver does not know this version, so nothing is said about the trainer."""
        driver = self.driver
        return ConfigError(
            f"{driver.name} {driver.version}: the driver does not fit this version ({error})"
        )

    def finding(self, check: str, outcome: CheckEnd, text: str = "") -> TrainerFinding:
        return TrainerFinding(
            check=check, way=self.way, setting=self.setting, outcome=outcome, text=text
        )


class _Dropped(str):
    """No fault: nothing of a group is learned."""

    __slots__ = ()


_Faults = Callable[[_Probe], Iterator[str | None]]
"""Looks at one thing: a sentence for each fault, ``None`` where it cannot be looked at."""


def _check(name: str, faults: _Faults) -> Callable[[_Probe], TrainerFinding]:
    def check(probe: _Probe) -> TrainerFinding:
        try:
            found = list(faults(probe))
        except _Stopped as stopped:
            return probe.finding(name, CheckEnd.STOPS, str(stopped))
        if None in found:
            return probe.finding(name, CheckEnd.UNKNOWN)
        for fault in sorted(found, key=lambda one: isinstance(one, _Dropped))[:1]:
            outcome = CheckEnd.DROPS if isinstance(fault, _Dropped) else CheckEnd.FAILS
            return probe.finding(name, outcome, str(fault))
        return probe.finding(name, CheckEnd.PASSES)

    return check


def _check_complete_groups(probe: _Probe) -> None:
    for size in SIZES:
        case = _group(size, size)
        try:
            made = _row(probe.step(case).advantages[0])
        except _Stopped as stopped:
            raise probe.misfit(stopped) from stopped
        if not all(math.isfinite(value) for value in made) or not any(made):
            raise probe.misfit(f"{_show(case.rewards)} gives {_show(made)}")


def _groups(least: int, most: int | None = None) -> Iterator[_Case]:
    """Groups of each size in which ``least`` or more answers have a reward, 1 or more have none."""
    for size in SIZES:
        for count in range(least, min(size - 1, size if most is None else most) + 1):
            yield _group(size, count)


def _group(size: int, count: int, seed: int = 0) -> _Case:
    """A group with ``count`` rewards; two or more of them are never all equal."""
    draw = random.Random(f"{size} {count} {seed}")  # noqa: S311
    rewards: list[float | None] = [draw.choice((0.0, 0.25, 0.5, 0.75, 1.0)) for _ in range(size)]
    present = sorted(draw.sample(range(size), count))
    for place, value in zip(present, (1.0, 0.0), strict=False):
        rewards[place] = value
    rewards = [reward if place in present else None for place, reward in enumerate(rewards)]
    return _Case(tuple(rewards), tuple(draw.randint(1, 9) for _ in range(size)))


def _advantages(probe: _Probe) -> Iterator[str | None]:
    for case in _groups(least=2):
        result = probe.step(case)
        made = result.advantages[0]
        kept = [made[place] for place in case.present]
        want = probe.step(case.alone()).advantages[0]
        if _is_dropped(result):
            yield _Dropped(f"{_show(case.rewards)} gives {_show(made)}: nothing is learned")
        elif _differ(kept, want):
            yield f"{_show(case.rewards)} gives {_show(made)}; without the missing {_show(want)}"
        elif result.gradients is not None:
            learned = [result.gradients[0][place] for place in case.present]
            if not all(math.isfinite(value) for value in _row(learned)):
                yield f"{_show(case.rewards)} gives the gradients {_show(result.gradients[0])}"


def _is_dropped(result: StepResult) -> bool:
    """Whether nothing of the first group is learned."""
    learned = [*result.advantages[0], *(result.gradients[0] if result.gradients else ())]
    return all(one is None or abs(one) <= TOLERANCE for one in learned)


def _missing_answer(probe: _Probe) -> Iterator[str | None]:
    for case in _groups(least=1):
        made = probe.step(case)
        for place in set(range(len(case.rewards))) - set(case.present):
            learned = [made.advantages[0][place]]
            if made.gradients is not None:
                learned.append(made.gradients[0][place])
            if any(one is not None and not abs(one) <= TOLERANCE for one in learned):
                yield f"{_show(case.rewards)} gives {_show(made.advantages[0])}"


def _lone_answer(probe: _Probe) -> Iterator[str | None]:
    for case in _groups(least=1, most=1):
        made = probe.step(case).advantages[0]
        if any(one is not None and not abs(one) <= TOLERANCE for one in made):
            yield f"{_show(case.rewards)} gives {_show(made)}: there is nothing to compare with"


def _other_groups(probe: _Probe) -> Iterator[str | None]:
    if probe.setting in probe.driver.batch_wide:
        yield None
        return
    for case in _groups(least=0):
        other = _group(len(case.rewards), len(case.rewards), seed=1)
        want = probe.step(other).advantages[0]
        for made in (probe.step(case, other).advantages[1], probe.step(other, case).advantages[0]):
            if _differ(made, want):
                yield (
                    f"beside {_show(case.rewards)}, {_show(other.rewards)} gives {_show(made)}; "
                    f"alone {_show(want)}"
                )


def _normaliser(probe: _Probe) -> Iterator[str | None]:
    """What an advantage is worth in the gradient does not depend on how many are missing."""
    for case in _groups(least=2):
        made = _gradients_by_advantage(probe.step(case))
        want = _gradients_by_advantage(probe.step(case.alone()))
        if made is None or want is None:
            yield None
            return
        for one, other in zip((made[place] for place in case.present), want, strict=True):
            if math.isfinite(one) and other and abs(one / other - 1) > TOLERANCE:
                yield (
                    f"{_show(case.rewards)}: gradients of the others are {one / other:.3f} of what "
                    "they are without the missing"
                )


def _divergence(probe: _Probe) -> Iterator[str | None]:
    """A KL term is over the answers that have a reward."""
    if not any(_measure_pull(probe, _group(4, 4)) or ()):  # no term that the driver reaches
        yield None
        return
    for case in _groups(least=2):
        if (pulled := _measure_pull(probe, case)) is None:
            yield None
            return
        for place in set(range(len(pulled))) - set(case.present):
            if not abs(pulled[place]) <= TOLERANCE and not math.isnan(pulled[place]):
                yield f"{_show(case.rewards)}: a missing answer is pulled to the reference policy"


def _measure_pull(probe: _Probe, case: _Case) -> list[float] | None:
    """What a KL term adds to each answer's gradient."""
    with_term, without = probe.step(case, kl=_KL).gradients, probe.step(case).gradients
    if with_term is None or without is None:
        return None
    return [a - b for a, b in zip(_row(with_term[0]), _row(without[0]), strict=True)]


def _gradients_by_advantage(result: StepResult) -> list[float] | None:
    """What an answer's gradient is of its advantage; NaN where that is 0."""
    if result.gradients is None:
        return None
    return [
        gradient / advantage if advantage else math.nan
        for advantage, gradient in zip(
            _row(result.advantages[0]), _row(result.gradients[0]), strict=True
        )
    ]


def _logged_mean(probe: _Probe) -> Iterator[str | None]:
    """A step that drops the only group logs nothing."""
    reached = False
    for case in _groups(least=1):
        logged = probe.step(case).reward_mean
        if logged is None:
            continue
        reached = True
        present = [reward for reward in case.rewards if reward is not None]
        if _differ([logged], [sum(present) / len(present)]):
            yield f"{_show(case.rewards)}: the logged mean is {logged:.3f}"
    if not reached:
        yield None


def _dynamic_sampling(probe: _Probe) -> Iterator[str | None]:
    for rewards in (
        (1.0, 1.0, None, 1.0),
        (0.0, 0.0, None, 0.0),
        (1.0, 0.0, None, 1.0),
        (None, 1.0, None, None),
    ):
        case = _Case(rewards, (3, 1, 4, 2))
        kept = probe.step(case, _group(4, 4)).kept
        if kept is None:
            yield None
            return
        spread = len({reward for reward in rewards if reward is not None}) > 1
        if kept[0] != spread:
            yield f"{_show(rewards)} is {'kept' if kept[0] else 'dropped'}"


def _nan(probe: _Probe) -> Iterator[str | None]:
    """A reward that is NaN where nobody looked for it makes nothing else NaN."""
    bad, other = _Case((1.0, math.nan, 0.0, 0.5), (3, 1, 4, 2)), _group(4, 4)
    made = probe.step(bad, other)
    for number, name in ((1, "another group"), (0, "its group")):
        seen = made.advantages[number] + ([] if made.gradients is None else made.gradients[number])
        if not all(one is None or math.isfinite(one) for one in seen):
            yield f"one NaN makes {name} {_show(seen)}"


def _outage(probe: _Probe) -> Iterator[str | None]:
    """When the judge fails for everything, nothing is learned; a second function may go on."""
    if probe.way in [way.name for way in probe.driver.ways if way.functions > 1]:
        yield None
        return
    case = _Case((None,) * 4, (3, 1, 4, 2))
    try:
        made = probe.step(case, case)
    except _Stopped:
        return  # the run stops, which is what is wanted
    seen = [one for group in (made.gradients or made.advantages) for one in group]
    if any(one is not None and not abs(one) <= TOLERANCE for one in seen):
        yield f"a batch without any reward gives {_show(seen)}"


def _row(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _differ(made: Sequence[float | None], want: Sequence[float | None]) -> bool:
    """Whether two rows differ; an answer that was left out differs from every number."""
    return not all(
        abs(one - other) <= TOLERANCE * max(1.0, abs(other))
        for one, other in zip(_row(made), _row(want), strict=True)
    )


def _show(values: Group) -> str:
    return "[" + ", ".join("–" if one is None else f"{one:.4g}" for one in values) + "]"


COUNTS = frozenset({"normaliser", "divergence", "logged mean", "dynamic sampling", "NaN"})
"""Checks of where a missing answer still counts, and of what a NaN by mistake does; the others are
of what is learned."""

TRAINER_CHECKS: dict[str, Callable[[_Probe], TrainerFinding]] = {
    name: _check(name, faults)
    for name, faults in {
        "advantages": _advantages,
        "missing answer": _missing_answer,
        "lone answer": _lone_answer,
        "other groups": _other_groups,
        "normaliser": _normaliser,
        "divergence": _divergence,
        "logged mean": _logged_mean,
        "dynamic sampling": _dynamic_sampling,
        "NaN": _nan,
        "outage": _outage,
    }.items()
}
"""By name, in the order of reports."""
