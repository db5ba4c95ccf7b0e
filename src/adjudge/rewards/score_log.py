"""``[RUBRIC_SCORE]``: what a sample's events and outcome came to, for whoever listens."""

from __future__ import annotations

import logging

from adjudge.rewards.samples import Part
from adjudge.types import GraderError

__all__ = ["log_score"]

_log = logging.getLogger("adjudge.rubric")


def log_score(event: Part | None, outcome: Part | None, combined: Part) -> None:
    """One line per sample at INFO: E, O and the reward.

    What is missing says ``missing``; what the spec does not ask for (``None``) says ``none``.
    """
    if _log.isEnabledFor(logging.INFO):
        _log.info(
            "[RUBRIC_SCORE] event=%s, outcome=%s, combined=%s",
            _shown(event),
            _shown(outcome),
            _shown(combined),
        )


def _shown(part: Part | None) -> str:
    if part is None:
        return "none"
    return "missing" if isinstance(part, GraderError) else f"{part:.6g}"
