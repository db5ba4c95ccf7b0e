"""Drivers of trainers, one file each: the trainer's own code from rewards to the gradient."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge.extensions import import_named
from adjudge_lab.conformance.driver import TrainerDriver

_HERE = "adjudge_lab.conformance"
DRIVERS = {
    "trl": f"{_HERE}.drivers.trl:TRLDriver",
    "ms-swift": f"{_HERE}.drivers.ms_swift:MsSwiftDriver",
    "verl": f"{_HERE}.drivers.verl:VerlDriver",
    "nemo-rl": f"{_HERE}.drivers.nemo_rl:NeMoRLDriver",
    "openrlhf": f"{_HERE}.drivers.openrlhf:OpenRLHFDriver",
    "open-instruct": f"{_HERE}.drivers.open_instruct:OpenInstructDriver",
    "roll": f"{_HERE}.drivers.roll:ROLLDriver",
    "axolotl": f"{_HERE}.drivers.trl:AxolotlDriver",
    "tinker-cookbook": f"{_HERE}.drivers.tinker_cookbook:TinkerCookbookDriver",
    "unsloth": f"{_HERE}.drivers.trl:UnslothDriver",
    "slime": f"{_HERE}.drivers.slime:SlimeDriver",
    "miles": f"{_HERE}.drivers.slime:MilesDriver",
    "skyrl": f"{_HERE}.drivers.skyrl:SkyRLDriver",
    "areal": f"{_HERE}.drivers.areal:ARealDriver",
    "prime-rl": f"{_HERE}.drivers.prime_rl:PrimeRLDriver",
    "rllm": f"{_HERE}.drivers.rllm:RLLMDriver",
    "reference": f"{_HERE}.reference:ReferenceTrainer",
    "zero-fill": f"{_HERE}.reference:ZeroFillTrainer",
}
"""The trainers that can be driven, and :data:`STAND_INS`."""

STAND_INS = {"reference", "zero-fill"}
"""No trainers: they show what the suite says."""


def find_driver(name: str) -> Any:
    """The class of a driver: one of :data:`DRIVERS`, or ``module:Class``.

    Raises :class:`~adjudge.errors.ConfigError` for an unknown name.
    """
    if name not in DRIVERS and ":" not in name:
        allowed = ", ".join([*DRIVERS, "module:Class of your own"])
        raise ConfigError(
            f"trainer: unknown{suggest_name(name, DRIVERS)} "
            f"(found {name!r:.80}; allowed: {allowed})"
        )
    return import_named(DRIVERS.get(name, name), where="trainer")


def build_driver(name: str, checkout: Path | None = None) -> TrainerDriver:
    """The driver ``name``, or a class of the user's own (``module:Class``).

    ``checkout`` is the folder that holds the trainer's package, in place of the installed one. The
    code in it runs. Raises :class:`~adjudge.errors.ConfigError` for an unknown name, a trainer that
    is not there, and a version that the driver does not fit.
    """
    driver = find_driver(name)
    try:
        made: TrainerDriver = driver(checkout) if _takes_checkout(driver) else driver()
    except ImportError as error:
        raise ConfigError(f"{name}: needs a package that is not installed ({error})") from error
    return made


def _takes_checkout(driver: Any) -> bool:
    """Whether it is built with an argument; a class of the user's own need not be."""
    return bool(inspect.signature(driver).parameters)
