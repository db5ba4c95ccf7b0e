"""What is known about the servers people use: address, key, and what each one honours.

``features`` name what a server is sent: ``schema`` (``response_format`` with a JSON Schema),
``choices`` (a choice list, in the server's own field), ``logprobs``, ``stream_usage`` (token counts
at the end of a stream). Without a feature the request goes out without that field, and
``Reply.ignored`` says what was evidently missing from the reply. What a *model* of the server can
do may differ; ``features`` of the model classes overrides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from adjudge.config import nearest
from adjudge.errors import ConfigError

__all__ = ["FEATURES", "PRESETS", "Feature", "Preset", "checked_features", "preset"]

Feature = Literal["schema", "choices", "logprobs", "stream_usage"]

FEATURES: frozenset[str] = frozenset({"schema", "choices", "logprobs", "stream_usage"})


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of server.

    ``url_from_env``: ``OPENAI_BASE_URL`` may replace ``base_url``. ``choices_field`` is how a
    choice list is sent: vLLM's ``structured_outputs`` (``guided_choice`` before 0.12 is silently
    ignored since) or SGLang's ``regex``.
    """

    name: str
    base_url: str
    key_env: str
    needs_key: bool
    url_from_env: bool = False
    features: frozenset[str] = FEATURES
    choices_field: Literal["structured_outputs", "regex"] | None = None
    max_top_logprobs: int = 20


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="openai",
            base_url="https://api.openai.com/v1",
            key_env="OPENAI_API_KEY",
            needs_key=True,
            url_from_env=True,
            features=FEATURES - {"choices"},
        ),
        Preset(
            # logprobs are answered with 400; json_schema too, by most of its models.
            name="groq",
            base_url="https://api.groq.com/openai/v1",
            key_env="GROQ_API_KEY",
            needs_key=True,
            features=frozenset({"stream_usage"}),
        ),
        Preset(
            # json_schema is documented for some models only; top_logprobs go up to 5.
            name="dashscope",
            base_url="https://dashscope.aliyuncs.com/compatible-mode/v1",
            key_env="DASHSCOPE_API_KEY",
            needs_key=True,
            features=frozenset({"logprobs", "stream_usage"}),
            max_top_logprobs=5,
        ),
        Preset(
            name="vllm",
            base_url="http://localhost:8000/v1",
            key_env="VLLM_API_KEY",
            needs_key=False,
            url_from_env=True,
            choices_field="structured_outputs",
        ),
        Preset(
            name="sglang",
            base_url="http://localhost:30000/v1",
            key_env="SGLANG_API_KEY",
            needs_key=False,
            url_from_env=True,
            choices_field="regex",
        ),
        Preset(
            # No log-probabilities and no choice lists in the Messages API.
            name="anthropic",
            base_url="https://api.anthropic.com",
            key_env="ANTHROPIC_API_KEY",
            needs_key=True,
            features=frozenset({"schema"}),
        ),
    )
}


def preset(name: str) -> Preset:
    """The preset of that name; raises ``ConfigError`` with the nearest name."""
    found = PRESETS.get(name)
    if found is None:
        allowed = ", ".join(PRESETS)
        raise ConfigError(
            f"preset {name!r} is unknown{nearest(name, PRESETS)} (allowed: {allowed})"
        )
    return found


def checked_features(preset: Preset, features: Iterable[str] | None) -> frozenset[str]:
    """What to send: ``features`` if given, else the preset's; ``ConfigError`` for unknown names."""
    if features is None:
        return preset.features
    wanted = frozenset([features] if isinstance(features, str) else features)
    if unknown := sorted(wanted - FEATURES):
        allowed = ", ".join(sorted(FEATURES))
        raise ConfigError(f"features: {', '.join(map(repr, unknown))} unknown (allowed: {allowed})")
    return wanted
