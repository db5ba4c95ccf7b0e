"""The formats of rollouts that are recognised."""

from __future__ import annotations

from adjudge.rollouts.formats.agents import AGENT_FORMATS
from adjudge.rollouts.formats.api_results import API_FORMATS, EXCHANGE_FORMATS
from adjudge.rollouts.formats.base import RolloutFormat
from adjudge.rollouts.formats.evaluations import EVALUATION_FORMATS
from adjudge.rollouts.formats.harbor import HARBOR_FORMATS
from adjudge.rollouts.formats.logs import LOG_FORMATS, OPENHANDS_FORMATS
from adjudge.rollouts.formats.preferences import PREFERENCE_FORMATS
from adjudge.rollouts.formats.telemetry import TELEMETRY_FORMATS
from adjudge.rollouts.formats.trainers import TRAINER_FORMATS

FORMATS: tuple[RolloutFormat, ...] = (
    *AGENT_FORMATS,
    *HARBOR_FORMATS,
    *EVALUATION_FORMATS,
    *TRAINER_FORMATS,
    *API_FORMATS,
    *PREFERENCE_FORMATS,
    *OPENHANDS_FORMATS,
    *LOG_FORMATS,
    *TELEMETRY_FORMATS,
    *EXCHANGE_FORMATS,
)
"""All formats, the more special before the more general."""
