"""Which versions of verl the managers work in, said before anything is generated.

=============  =================================================================================
0.6.1          whole batches and its reward loop
0.7.0          refused: it has both ways of 0.6.1 and 0.9.1 in part, and neither whole
0.7.1          as 0.9.1 with ``use_v1=False``; its trainer's process never loads the manager, so
               ``VERL_USE_EXTERNAL_MODULES`` must make ``adjudge_grpo`` known
0.8.0          as 0.9.1 with ``use_v1=False``; missing parts are NaN in both, as in 0.9.0
0.9.0          as 0.9.1, but that validation cannot take None, so that missing parts are NaN
0.9.1          all that this package has
=============  =================================================================================

Later ones are taken as 0.9.1, with a warning; earlier ones are refused.
"""

from __future__ import annotations

import functools
import logging
from importlib.metadata import PackageNotFoundError, version

from adjudge.errors import ConfigError

SUPPORTED_VERSIONS = ("0.6.1", "0.7.1", "0.8.0", "0.9.0", "0.9.1")

_log = logging.getLogger("adjudge")


def installed_verl() -> str | None:
    """The version of verl that is installed; ``None`` without one."""
    try:
        return version("verl")
    except PackageNotFoundError:
        return None


def check_verl_version(found: str | None) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for a version in which the managers do not work.

    >>> check_verl_version("0.9.1")
    >>> check_verl_version("0.7.0")
    Traceback (most recent call last):
    ...
    adjudge.errors.ConfigError: verl: version 0.7.0 is not supported (found 0.7.0; ...
    """
    release = parse_release(found)
    newest = parse_release(SUPPORTED_VERSIONS[-1])
    supported = [parse_release(one) for one in SUPPORTED_VERSIONS]
    if release is None or newest is None or release in supported:
        return
    if release < newest:
        raise ConfigError(
            f"verl: version {found} is not supported (found {found}; allowed: "
            f"{', '.join(SUPPORTED_VERSIONS)}, or newer). Install one of these."
        )
    _warn_newer(str(found))


def parse_release(found: str | None) -> tuple[int, ...] | None:
    """The three numbers of a version; ``None`` where it has no such form."""
    parts = (found or "").split(".")[:3]
    numbers = [part for part in parts if part.isdecimal()]
    return tuple(map(int, numbers)) if len(numbers) == 3 else None


def loads_manager_in_trainer(found: str | None) -> bool:
    """Whether the trainer's process looks the manager's class up, which makes names known."""
    release = parse_release(found)
    return release is None or release[:2] != (0, 7)


def takes_none(found: str | None) -> bool:
    """Whether validation passes over None in a reward column; before 0.9.1 it is a TypeError."""
    release = parse_release(found)
    return release is None or release >= (0, 9, 1)


@functools.cache
def _warn_newer(found: str) -> None:
    _log.warning(
        "verl %s is newer than those that adjudge was tested with (%s)",
        found, ", ".join(SUPPORTED_VERSIONS),
    )  # fmt: skip
