"""Extension points: what a user's own code may add, by ``module:name`` or by an entry point.

Each kind of extension has an entry-point group (:data:`EXTENSION_GROUPS`). A package that is
installed publishes one under a name of its choice::

    [project.entry-points."adjudge.graders"]
    politeness = "my_package.graders:PolitenessGrader"

and ``type = "politeness"`` finds it, as ``type = "my_package.graders:PolitenessGrader"`` does. A
shipped name always means what is shipped: no package can replace it.

An import runs the code of a module. So the names that come here are only those that the user
writes in a spec, a run file, a program or a command line, never those in rollouts, requests or
replies of judges. An installed package is imported when its name is used, not when it is listed.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from adjudge.config import suggest_name
from adjudge.errors import ConfigError

EXTENSION_GROUPS: Mapping[str, str] = {
    "adjudge.graders": "grader",
    "adjudge.judges": "judge type",
    "adjudge.wire_formats": "wire format",
    "adjudge.service_formats": "service format",
    "adjudge.environments": "environment",
    "adjudge.sinks": "sink",
    "adjudge.trainers": "trainer adapter",
    "adjudge.checks": "check",
    "adjudge.commands": "command",
}
"""Each entry-point group, and what its extensions are called in messages."""


def load_extension(
    group: str,
    name: str,
    *,
    where: str,
    folder: Path | None = None,
    shipped: Mapping[str, str] = {},
    methods: Sequence[str] = (),
) -> Any:
    """What ``name`` means in ``group``: a class with these ``methods``, or another object.

    ``name`` is one of ``shipped`` (name to ``module:name``); or ``module:name`` of the user's own,
    which may stand in ``folder`` or in the working directory; or the name of an entry point. Raises
    :class:`ConfigError` that begins with ``where`` (file and key): for an unknown name with the
    nearest one, for a name that two packages offer, for a module that cannot be imported, and for
    what is no such class.

    This imports code, so ``name`` must come from the user's own files or command line.
    """
    if name in shipped:
        found = import_named(shipped[name], where=where)
    elif ":" in name:
        found = import_named(name, folder, where=where)
    else:
        found = load_entry_point(_named_points(group, name, where, shipped), where=where)
    if methods and not (isinstance(found, type) and all(hasattr(found, one) for one in methods)):
        raise ConfigError(
            f"{where}: must be a class with {' and '.join(methods)} "
            f"(found {name!r}, of type {type(found).__name__})"
        )
    return found


def check_extension_name(
    group: str, name: str, *, where: str, shipped: Mapping[str, str] = {}
) -> None:
    """Raise :class:`ConfigError` for a ``name`` that nothing has; nothing is imported."""
    if name not in shipped and ":" not in name:
        _named_points(group, name, where, shipped)


def _named_points(
    group: str, name: str, where: str, shipped: Mapping[str, str]
) -> list[EntryPoint]:
    """The entry points called ``name``; raises :class:`ConfigError` where there is none."""
    installed = find_entry_points(group)
    if name in installed:
        return installed[name]
    known = [*shipped, *sorted(installed)]
    hint = suggest_name(name, known)
    if not hint and "." in name:
        hint = f"; did you mean {':'.join(name.rsplit('.', 1))!r}?"
    allowed = ", ".join([*known, "module:name of your own"])
    raise ConfigError(
        f"{where}: the {EXTENSION_GROUPS[group]} is unknown{hint} "
        f"(found {name!r:.80}; allowed: {allowed})"
    )


def find_entry_points(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of ``group`` by their names, several where packages share one.

    Nothing is imported.
    """
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, []).append(point)
    return found


def load_entry_point(points: list[EntryPoint], *, where: str) -> object:
    """The object of the entry points that share a name, which must all mean the same.

    Raises :class:`ConfigError` naming the packages, and why one cannot be imported.
    """
    point = points[0]
    if len({one.value for one in points}) > 1:
        packages = " and ".join(f"{describe_package(one)} ({one.value})" for one in points)
        raise ConfigError(
            f"{where}: {point.name!r} is in two packages (found {packages}). Uninstall one of them."
        )
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever a package does when it is imported
        module = point.value.partition(":")[0]
        raise ConfigError(
            f"{where}: {point.name!r} cannot be loaded from {describe_package(point)} "
            f"({point.group}: {point.value}): {describe_cause(error)}\n"
            "Install that package again or remove it. To see where it fails, run: python -c "
            f'"import {module}"'
        ) from error


def describe_package(point: EntryPoint) -> str:
    """The distribution that has an entry point, with its version."""
    if point.dist is None:
        return point.value.partition(".")[0].partition(":")[0]
    return f"{point.dist.name} {point.dist.version}"


def import_named(target: str, folder: Path | None = None, *, where: str) -> Any:
    """What ``module:name`` means, also beside a file in ``folder``, or in the working directory.

    Raises :class:`ConfigError` that begins with ``where`` and names what could not be imported.
    """
    module, _, name = target.partition(":")
    for place in (folder, Path.cwd()):
        # At the end of the path: a file next to a spec must not shadow an installed package.
        if place is not None and str(place) not in sys.path:
            sys.path.append(str(place))
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"{where}: {target!r} cannot be imported: {describe_cause(error)}"
        ) from error
    try:
        return reduce(getattr, name.split("."), loaded)
    except AttributeError as error:
        # Often it is another module of that name, which comes first on the path.
        raise ConfigError(
            f"{where}: {target!r} cannot be imported: {module} has no {name!r} "
            f"(it was imported from {getattr(loaded, '__file__', None) or 'the interpreter'}). "
            "Correct the name, or rename the file where that is another module."
        ) from error


def describe_cause(error: BaseException) -> str:
    """An exception in a line, with the place in the user's module that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    imported = [frame for frame in frames if "importlib" not in frame.filename][1:]
    place = f" ({Path(imported[-1].filename).name}:{imported[-1].lineno})" if imported else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"
