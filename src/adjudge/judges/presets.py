"""What is known of the servers people use, and which fields they are sent.

Known are address, key and what each server honours. ``features`` name what
a server is sent: ``schema`` (``response_format`` with a JSON Schema), ``choices`` (a choice list,
in the server's own field), ``logprobs``, ``stream_usage`` (token counts at the end of a stream).
Without a feature the request goes out without that field, and ``Reply.ignored`` says what was
evidently missing from the reply. What a *model* of the server can do may differ; ``features`` of
the model classes overrides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from adjudge.errors import ConfigError, Fields, Metadata

ALL_FEATURES: frozenset[str] = frozenset({"schema", "choices", "logprobs", "stream_usage"})


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of server: all that is declared about an API of judges.

    ``api``: the API that it speaks, by the name of its class's kind. ``owned_by``: what the server
    says of who owns a model. ``url_from_env``:
    ``OPENAI_BASE_URL`` may replace ``base_url``. ``small_model``: what ``adjudge init`` asks where
    the key is set; which model is best for a judge only a test tells. ``choices_field`` is how a
    choice list is sent: vLLM's ``structured_outputs`` (``guided_choice`` before 0.12 is silently
    ignored since), SGLang's ``regex`` or llama.cpp's ``grammar``. ``max_top_logprobs``: so many
    tokens are asked for beside a choice, and 20 at most elsewhere. ``max_reason``: the characters
    that a ``reason`` may have where a schema asks for one, for servers known to honour
    ``maxLength``: a small model may repeat itself until its reply is cut.
    """

    name: str
    base_url: str
    key_env: str
    api: Literal["openai", "anthropic", "embedded", "classifier"] = "openai"
    owned_by: str | None = None
    needs_key: bool = False
    url_from_env: bool = False
    small_model: str | None = None
    features: frozenset[str] = ALL_FEATURES
    choices_field: Literal["structured_outputs", "regex", "grammar"] | None = None
    max_top_logprobs: int = 20
    max_reason: int | None = None

    @property
    def offered_features(self) -> frozenset[str]:
        """What its format has a field for, whether its servers honour it or not."""
        if self.api not in ("openai", "embedded"):
            return self.features
        return ALL_FEATURES if self.choices_field else ALL_FEATURES - {"choices"}


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="openai",
            base_url="https://api.openai.com/v1",
            key_env="OPENAI_API_KEY",
            needs_key=True,
            url_from_env=True,
            small_model="gpt-4o-mini",
            features=ALL_FEATURES - {"choices"},
        ),
        Preset(
            # No log-probabilities and no choice lists in the Messages API.
            name="anthropic",
            api="anthropic",
            base_url="https://api.anthropic.com",
            key_env="ANTHROPIC_API_KEY",
            needs_key=True,
            small_model="claude-3-5-haiku-latest",
            features=frozenset({"schema"}),
        ),
        Preset(
            # logprobs are answered with 400; json_schema too, by most of its models.
            name="groq",
            base_url="https://api.groq.com/openai/v1",
            key_env="GROQ_API_KEY",
            needs_key=True,
            small_model="llama-3.3-70b-versatile",
            features=frozenset({"stream_usage"}),
        ),
        Preset(
            # json_schema is documented for some models only; top_logprobs go up to 5.
            name="dashscope",
            base_url="https://dashscope.aliyuncs.com/compatible-mode/v1",
            key_env="DASHSCOPE_API_KEY",
            needs_key=True,
            small_model="qwen-plus",
            features=frozenset({"logprobs", "stream_usage"}),
            max_top_logprobs=5,
        ),
        Preset(
            name="vllm",
            owned_by="vllm",
            base_url="http://localhost:8000/v1",
            key_env="VLLM_API_KEY",
            url_from_env=True,
            choices_field="structured_outputs",
        ),
        Preset(
            name="sglang",
            owned_by="sglang",
            base_url="http://localhost:30000/v1",
            key_env="SGLANG_API_KEY",
            url_from_env=True,
            choices_field="regex",
        ),
        Preset(
            # From its documentation: no choice lists; log-probabilities since 0.12.11.
            name="ollama",
            owned_by="library",
            base_url="http://localhost:11434/v1",
            key_env="OLLAMA_API_KEY",
            url_from_env=True,
            features=ALL_FEATURES - {"choices"},
        ),
        Preset(
            name="llamacpp",
            owned_by="llamacpp",
            base_url="http://localhost:8080/v1",
            key_env="LLAMA_API_KEY",
            url_from_env=True,
            choices_field="grammar",
            max_top_logprobs=1000,
            max_reason=1000,
        ),
        Preset(
            # llama.cpp in a child process; the transport knows its address and key.
            name="embedded",
            api="embedded",
            base_url="http://embedded",
            key_env="LLAMA_API_KEY",
            choices_field="grammar",
            max_top_logprobs=1000,
            max_reason=1000,
        ),
        Preset(
            # A scalar judge: it gives a number, so nothing of a chat is asked of it.
            name="classifier",
            api="classifier",
            base_url="http://localhost:8000",
            key_env="CLASSIFIER_API_KEY",
            features=frozenset(),
        ),
    )
}


def check_features(
    features: Iterable[str], owner: str, offered: frozenset[str] = ALL_FEATURES
) -> frozenset[str]:
    """``features``, which ``owner`` must offer; raises :class:`ConfigError`."""
    wanted = frozenset([features] if isinstance(features, str) else features)
    if unknown := sorted(wanted - offered):
        found, allowed = ", ".join(map(repr, unknown)), ", ".join(sorted(offered)) or "none"
        raise ConfigError(
            f"features: has a name that is none of {owner} (found {found}; allowed: {allowed})"
        )
    return wanted


_ELSEWHERE = {
    "api_key": "Name an environment variable in api_key_env; a model object never holds a key",
    "timeout": "Use deadline_s of settings=EndpointSettings(…)",
    "max_retries": "Use max_attempts of settings=EndpointSettings(…)",
    "max_concurrency": "Use settings=EndpointSettings(…)",
    "messages": "Pass messages to achat",
    "schema": "Pass a schema to achat",
    "choices": "Pass choices to achat",
    "logprobs": "Ask achat for log-probabilities",
    "draw": "Pass the number of the draw to achat",
    "group": "Pass the group to achat",
    "model": "It is set beside it",
    "stream": "Set stream of the judge",
    "extra_body": "It cannot be in itself",
    "n": "Call achat with draw = 0, 1, …; several choices of one reply are not several draws",
    "stream_options": "Leave it out: usage is always requested",
}


def flatten_sampling(sampling: Fields) -> Metadata:
    """Sampling as the request's fields: ``extra_body`` spread out, what is ``None`` left out."""
    own = {name: value for name, value in sampling.items() if name != "extra_body"}
    extra = sampling.get("extra_body") or {}
    for name in (*own, *extra):
        if name in _ELSEWHERE:
            raise ConfigError(f"{name}: is not a sampling parameter. {_ELSEWHERE[name]}.")
    if twice := sorted(own.keys() & extra.keys()):
        raise ConfigError(f"extra_body.{twice[0]}: is set beside extra_body, too. Leave one out.")
    return {name: value for name, value in {**own, **extra}.items() if value is not None}
