"""Every probe that ships, in the order of the report card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.studies.probes.attacks import ATTACKING
from adjudge.studies.probes.orders import ORDERS
from adjudge.studies.probes.probe import Probe
from adjudge.studies.probes.scale import SCALE
from adjudge.studies.probes.sources import SOURCES
from adjudge.studies.probes.wording import WORDING

__all__ = ["PROBES", "chosen_probes", "probe_named"]

PROBES: Mapping[str, Probe] = {
    probe.name: probe for probe in (*SCALE[:1], *WORDING, *ORDERS, *SOURCES, *ATTACKING, *SCALE[1:])
}
"""The probes by name."""


def probe_named(name: str) -> Probe:
    """A probe; raises :class:`ConfigError` naming the nearest one."""
    if name not in PROBES:
        raise ConfigError(
            f"there is no probe {name!r}{nearest(name, PROBES)} (probes: {', '.join(PROBES)})"
        )
    return PROBES[name]


def chosen_probes(names: Iterable[str]) -> list[Probe]:
    """The probes of these names in the catalogue's order; all where none is named."""
    wanted = {probe_named(name).name for name in names}
    return [probe for probe in PROBES.values() if not wanted or probe.name in wanted]
