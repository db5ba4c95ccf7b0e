"""The formats in which trainers ask a reward over HTTP, each at its own path."""

from __future__ import annotations

from adjudge.service.formats.trainers import (
    Format,
    LlamaFactory,
    NemoGym,
    NemoGymSession,
    OpenRLHF,
    Slime,
    SlimeWithParts,
)

__all__ = ["FORMATS", "Format", "NemoGym"]

FORMATS: tuple[Format, ...] = (
    OpenRLHF(),
    Slime(),
    SlimeWithParts(),
    LlamaFactory(),
    NemoGym(),
    NemoGymSession(),
)
