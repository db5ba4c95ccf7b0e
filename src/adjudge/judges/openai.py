"""``OpenAIChatModel``: a judge behind any server that speaks ``/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from adjudge.errors import ConfigError
from adjudge.judges.budget import Price, SpendCeiling
from adjudge.judges.cache import ReplyCache
from adjudge.judges.endpoint import EndpointSettings
from adjudge.judges.http_model import HttpChatModel
from adjudge.judges.presets import preset as named_preset
from adjudge.judges.wire_openai import OpenAIWire

__all__ = ["OpenAIChatModel"]


class OpenAIChatModel(HttpChatModel):
    """A chat model of OpenAI, Groq, DashScope, vLLM, SGLang, or what speaks like them.

    ``model``: its name at the server. ``preset``: what is known about the server; sets the address,
    the key's variable and what is sent (:mod:`adjudge.judges.presets`). ``api_key_env``: name of
    the environment variable with the key, read at every call; by default the provider's own
    (``OPENAI_API_KEY``, ``VLLM_API_KEY``, …), so that no server gets another's key. A key that is
    not there is an error at the first call (``GradingFailure(auth)``), and none for local servers.
    ``base_url``: the address up to and with ``/v1``, or a list of replicas; default
    ``OPENAI_BASE_URL`` (not for ``groq`` and ``dashscope``), else the preset's. ``stream``: ask for
    streams; models that only stream are found out by themselves. ``features``: what this model
    honours, instead of the preset's.
    ``settings``: how calls survive; all models of one address and key must agree. ``cache``: a file
    for replies (mode ``record``), or a ``ReplyCache``; off unless given. ``price``: US dollars per
    million tokens. ``budget``: a ceiling that several models share. ``trust_env``: use the
    environment's proxies. Everything else (``temperature``,
    ``max_tokens``, ``seed``, ``top_p``, ``extra_body``, …) is sent with each call, as the server
    names it.

    Configuration only: picklable, and serves any thread and any event loop. Raises ``ConfigError``
    for what cannot be meant.

    >>> OpenAIChatModel(model="qwen3-max", temperature=0.0, base_url="http://localhost:8000/v1")
    OpenAIChatModel(model='qwen3-max', base_url=['http://localhost:8000/v1'])
    """

    kind = "openai"

    def __init__(
        self,
        model: str,
        *,
        api_key_env: str | None = None,
        base_url: str | Sequence[str] | None = None,
        preset: Literal["openai", "groq", "dashscope", "vllm", "sglang"] = "openai",
        stream: bool = False,
        features: Iterable[str] | None = None,
        settings: EndpointSettings | None = None,
        cache: str | Path | ReplyCache | None = None,
        price: Price | Mapping[str, float] | None = None,
        trust_env: bool = True,
        budget: SpendCeiling | None = None,
        **sampling: Any,
    ) -> None:
        known = named_preset(preset)
        if known.name == "anthropic":
            raise ConfigError("preset 'anthropic': use AnthropicChatModel")
        super().__init__(
            model,
            known,
            api_key_env=api_key_env,
            base_url=base_url,
            stream=stream,
            features=features,
            settings=settings,
            cache=cache,
            price=price,
            trust_env=trust_env,
            budget=budget,
            sampling=sampling,
        )
        for url in self.base_urls:
            if url.endswith("/chat/completions"):
                raise ConfigError(f"base_url: {url!r} must end before /chat/completions")

    def _wire(self, key: str | None, *, stream: bool) -> OpenAIWire:
        return OpenAIWire(self._preset, key, features=self.features, stream=stream)
