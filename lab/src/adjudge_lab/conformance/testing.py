"""``conformance_tests``: the suite as pytest tests, in a trainer's own repository."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

from adjudge_lab.conformance.checks import (
    TRAINER_CHECKS,
    CheckEnd,
    check_complete_groups,
    run_check,
)
from adjudge_lab.conformance.driver import TrainerDriver
from adjudge_lab.conformance.drivers import find_driver


def conformance_tests(
    driver: str | type[TrainerDriver],
    *,
    ways: Collection[str] | None = None,
    known_failures: Collection[str] = (),
) -> Callable[[str, str, str], None]:
    """A parametrised test function: one test for each way, setting and check.

    Assign it to a name that pytest collects. ``driver`` is a class, which is built without
    arguments when the first test runs, or a name of ``adjudge conformance``, of which the
    installed trainer is tested. ``ways`` are those that have to work, by default the documented
    ones. ``known_failures`` are checks that may fail: their tests are ``xfail``. A check that the
    driver cannot reach is skipped.

    Raises :class:`~adjudge.errors.ConfigError` for an unknown trainer, ``ValueError`` for an
    unknown way or check.
    """
    import pytest  # noqa: PLC0415  (only who tests has it)

    driver_class = find_driver(driver) if isinstance(driver, str) else driver
    wanted = [way.name for way in driver_class.ways if way.documented]
    if ways is not None:
        wanted = _check_names(ways, [way.name for way in driver_class.ways])
    _check_names(known_failures, list(TRAINER_CHECKS))

    @cache
    def build() -> TrainerDriver:
        built = driver_class()
        check_complete_groups(built)
        return built

    marks = {check: [pytest.mark.xfail] for check in known_failures}
    cases = [
        pytest.param(way, setting, check, marks=marks.get(check, ()), id=f"{way}-{setting}-{check}")
        for way in wanted
        for setting in driver_class.settings
        for check in TRAINER_CHECKS
    ]

    @pytest.mark.parametrize(("way", "setting", "check"), cases)
    def test(way: str, setting: str, check: str) -> None:
        if setting not in build().settings:
            pytest.skip("this version has no such estimator")
        found = run_check(build(), way, setting, check)
        if found.outcome is CheckEnd.UNKNOWN:
            pytest.skip("the driver cannot reach it")
        if found.outcome is not CheckEnd.PASSES:
            pytest.fail(found.text, pytrace=False)

    return test


def _check_names(names: Collection[str], allowed: list[str]) -> list[str]:
    for name in names:
        if name not in allowed:
            raise ValueError(f"conformance_tests: unknown {name!r} (allowed: {', '.join(allowed)})")
    return list(names)
