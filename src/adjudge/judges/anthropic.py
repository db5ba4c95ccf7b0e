"""``AnthropicChatModel``: a judge behind Anthropic's ``/v1/messages``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.judges.budget import Price, SpendCeiling
from adjudge.judges.cache import ReplyCache
from adjudge.judges.endpoint import EndpointSettings
from adjudge.judges.http_model import HttpChatModel
from adjudge.judges.presets import PRESETS
from adjudge.judges.wire_anthropic import AnthropicWire

__all__ = ["AnthropicChatModel"]


class AnthropicChatModel(HttpChatModel):
    """A model of Anthropic, or of a server that speaks the Messages API.

    Parameters as in ``OpenAIChatModel``; ``base_url`` is the address before ``/v1/messages``.
    ``max_tokens`` is 1024 unless given. No log-probabilities and no choice lists; give
    ``features=[]`` for models that do not take a JSON Schema either.

    >>> AnthropicChatModel("model-name", temperature=0.0)
    AnthropicChatModel(model='model-name', base_url=['https://api.anthropic.com'])
    """

    kind = "anthropic"

    def __init__(
        self,
        model: str,
        *,
        api_key_env: str = "ANTHROPIC_API_KEY",
        base_url: str | Sequence[str] | None = None,
        features: Iterable[str] | None = None,
        settings: EndpointSettings | None = None,
        cache: str | Path | ReplyCache | None = None,
        price: Price | Mapping[str, float] | None = None,
        trust_env: bool = True,
        budget: SpendCeiling | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(
            model,
            PRESETS["anthropic"],
            api_key_env=api_key_env,
            base_url=_before_version(base_url),
            stream=False,
            features=features,
            settings=settings,
            cache=cache,
            price=price,
            trust_env=trust_env,
            budget=budget,
            sampling=sampling,
        )

    def _wire(self, key: str | None, *, stream: bool) -> AnthropicWire | None:
        return None if stream else AnthropicWire(key, features=self.features)


def _before_version(base_url: str | Sequence[str] | None) -> str | list[str] | None:
    """The address without the ``/v1`` that some write and some do not."""
    if base_url is None:
        return None
    if isinstance(base_url, str):
        return base_url.rstrip("/").removesuffix("/v1")
    return [url.rstrip("/").removesuffix("/v1") for url in base_url]
