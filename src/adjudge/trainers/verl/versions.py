"""Which versions of verl the managers work in, said before anything is generated.

0.6.1 scores whole batches, 0.9.1 one rollout at a time. Later ones are taken as 0.9.1, with a
warning; others are refused.
"""

from __future__ import annotations

import functools
import logging
import re
from importlib.metadata import PackageNotFoundError, version

from adjudge.errors import ConfigError

SUPPORTED_VERSIONS = ("0.6.1", "0.9.1")

_OLD, _NEW = (0, 6, 1), (0, 9, 1)
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
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", found or "")
    release = _NEW if numbers is None else tuple(map(int, numbers.groups()))
    if release > _NEW:
        _warn_newer(str(found))
    elif release not in (_OLD, _NEW):
        raise ConfigError(
            f"verl: version {found} is not supported (found {found}; allowed: "
            f"{', '.join(SUPPORTED_VERSIONS)}, or newer). Install one of these."
        )


@functools.cache
def _warn_newer(found: str) -> None:
    _log.warning(
        "verl %s is newer than those that adjudge was tested with (%s)",
        found, ", ".join(SUPPORTED_VERSIONS),
    )  # fmt: skip
