"""A ``[judges.NAME]`` table of a reward spec, and the chat model that it means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from adjudge.config import import_named, nearest
from adjudge.errors import ConfigError
from adjudge.judges.anthropic import AnthropicChatModel
from adjudge.judges.base import ChatModel
from adjudge.judges.budget import SpendCeiling
from adjudge.judges.cache import ReplyCache
from adjudge.judges.endpoint_settings import EndpointSettings
from adjudge.judges.local.loading import Task
from adjudge.judges.local.models import LocalChatModel, LocalScalarModel
from adjudge.judges.local.tokenizers import read_control_tokens
from adjudge.judges.openai import OpenAIChatModel
from adjudge.judges.recorded import RecordedModel
from adjudge.judges.scripted import ScriptedModel

__all__ = ["NOT_ABOUT_REPLIES", "SAMPLING", "JudgeTable", "build_judge"]

JudgeType = Literal[
    "openai", "groq", "anthropic", "dashscope", "vllm", "sglang", "local", "recorded", "scripted"
]

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "reasoning_effort",
    "extra_body",
)
NOT_ABOUT_REPLIES = frozenset(
    {"api_key_env", "cache", "cache_sampled", "price", "trust_env", "endpoint", "batch_size"}
)
"""Keys that change how calls travel or what is kept of them, never what a judge is asked."""

_LOADING = ("device", "dtype", "max_length", "batch_size")
_DRAWN_HERE = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "extra_body")
_OF_NO_SERVER = {"cassette", "provider", "script", "function", "task", *_LOADING}
_KEYS_OF = {
    "local": {"model", "task", *_LOADING, *_DRAWN_HERE},
    "recorded": {"model", "cassette", "provider", "features", "tokenizer", *SAMPLING},
    "scripted": {"model", "script", "function", "tokenizer"},
}
_REQUIRED = {"local": ("model",), "recorded": ("cassette",), "scripted": ("script", "function")}


class _Price(BaseModel):
    """``price``: US dollars per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cached_input: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class JudgeTable(BaseModel):
    """One ``[judges.NAME]`` table.

    ``type`` says which keys it may have: a server's (``model``, ``base_url``, …, sampling), those
    of ``local`` (``model``, a folder beside the file or a name that transformers knows; ``task``:
    ``chat`` or, for a scalar judge, ``score``; ``device``, ``dtype``, ``max_length``,
    ``batch_size``, some sampling), of ``recorded`` (``cassette``, and ``model`` and ``provider``
    where the cassette has several) or of ``scripted`` (``script``: one reply, a list by draw, or
    replies by words of the question; or ``function``: ``module:name`` of a function of the
    messages). Sampling is sent as written, and nothing that is not; fields that only one server
    knows go into ``extra_body``. ``tokenizer`` (not of ``local``, which has its own): the served
    model's, whose control tokens are broken up in what is judged: a folder with ``tokenizer.json``
    or such a file, beside the spec or not, or a name that transformers knows. ``endpoint`` has the
    names and defaults of :class:`~adjudge.judges.EndpointSettings`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    type: JudgeType
    model: str | None = None
    base_url: str | list[str] | None = None
    api_key_env: str | None = None
    stream: bool = False
    features: list[str] | None = None
    tokenizer: str | None = None
    cache: str | None = None
    cache_sampled: bool = False
    price: _Price | None = None
    trust_env: bool = True
    endpoint: dict[str, Any] = {}

    cassette: str | None = None
    provider: str | None = None
    script: str | list[str] | dict[str, str] | None = None
    function: str | None = None

    task: Task | None = None
    device: str | None = None
    dtype: str | None = None
    max_length: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)

    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    min_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: str | None = None
    extra_body: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _no_literal_key(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "api_key" in data:
            raise ValueError(
                "api_key: a literal key is refused; name the environment variable that holds it "
                "in api_key_env"
            )
        return data

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        allowed = _KEYS_OF.get(self.type, set(type(self).model_fields) - _OF_NO_SERVER)
        if stray := sorted(self.model_fields_set - allowed - {"type"}):
            listed = ", ".join(sorted(allowed))
            raise ValueError(f"{stray[0]}: is no key of type {self.type!r} (allowed: {listed})")
        required = _REQUIRED.get(self.type, ("model",))
        if sum(getattr(self, key) is not None for key in required) != 1:
            raise ValueError(f"type {self.type!r} needs {' or '.join(required)}")
        drawn = sorted(self.model_fields_set.intersection(_DRAWN_HERE))
        if self.task == "score" and drawn:
            raise ValueError(f"{drawn[0]}: a scalar judge (task = 'score') draws nothing")
        if self.cache_sampled and self.cache is None:
            raise ValueError("cache_sampled: is about a cache; give its file in cache")
        return self

    @property
    def has_server(self) -> bool:
        """Whether its calls go over the network."""
        return self.type not in _KEYS_OF

    def sampling(self) -> dict[str, Any]:
        """The sampling keys that are set, ``extra_body`` among them."""
        return {
            name: value for name in SAMPLING if (value := getattr(self, name)) not in (None, {})
        }


def build_judge(
    name: str,
    table: JudgeTable,
    *,
    where: str,
    folder: Path | None = None,
    cache: ReplyCache | None = None,
    budget: SpendCeiling | None = None,
) -> ChatModel:
    """The chat model of a table; ``where`` opens every complaint (the file).

    Paths are relative to ``folder``; ``cache`` is used instead of the table's own (and is needed
    for ``cache_sampled``, where several judges may share it); ``budget`` bounds the spending of
    several judges together. Raises :class:`ConfigError`.
    """
    folder = folder or Path()
    try:
        model = _model(name, table, folder, cache, budget)
        if table.tokenizer is not None:
            beside = folder / table.tokenizer
            place = str(beside) if beside.exists() else table.tokenizer
            model.control_tokens = read_control_tokens(place)
    except ConfigError as error:
        raise ConfigError(f"{where}: judges.{name}: {error}") from None
    return model


def _model(
    name: str,
    table: JudgeTable,
    folder: Path,
    cache: ReplyCache | None,
    budget: SpendCeiling | None,
) -> ChatModel:
    if table.type == "recorded":
        return RecordedModel(
            folder / (table.cassette or ""),
            table.model,
            provider=table.provider,
            sampling=table.sampling() or None,
            features=table.features,
        )
    if table.type == "scripted":
        script = import_named(table.function, folder) if table.function else table.script
        return ScriptedModel(script or "", model=table.model or name)
    if table.type == "local":
        return _local(table, folder)
    return _server(table, folder, cache, budget)


def _local(table: JudgeTable, folder: Path) -> ChatModel:
    model = table.model or ""
    if (folder / model).is_dir():
        model = str(folder / model)
    options = {name: value for name in _LOADING if (value := getattr(table, name)) is not None}
    if table.task == "score":
        return LocalScalarModel(model, **options)
    return LocalChatModel(model, **options, **table.sampling())


def _server(
    table: JudgeTable,
    folder: Path,
    cache: ReplyCache | None,
    budget: SpendCeiling | None,
) -> ChatModel:
    settings = _settings(table.endpoint) if table.endpoint else None
    own: ReplyCache | Path | None = cache
    if own is None and table.cache is not None:
        own = folder / table.cache
    shared: dict[str, Any] = {
        "base_url": table.base_url,
        "features": table.features,
        "settings": settings,
        "cache": own,
        "price": None if table.price is None else table.price.model_dump(exclude_none=True),
        "trust_env": table.trust_env,
        "budget": budget,
        **table.sampling(),
    }
    if table.api_key_env is not None:
        shared["api_key_env"] = table.api_key_env
    model = table.model or ""
    if table.type == "anthropic":
        if table.stream:
            raise ConfigError("stream: is not possible with type 'anthropic'")
        return AnthropicChatModel(model, **shared)
    preset: Any = table.type
    return OpenAIChatModel(model, preset=preset, stream=table.stream, **shared)


def _settings(given: Mapping[str, Any]) -> EndpointSettings:
    names = EndpointSettings.__struct_fields__
    if unknown := [key for key in given if key not in names]:
        allowed = ", ".join(sorted(names))
        hint = nearest(unknown[0], names)
        raise ConfigError(f"endpoint.{unknown[0]}: unknown key{hint} (allowed: {allowed})")
    try:
        return msgspec.convert(given, EndpointSettings)
    except msgspec.ValidationError as error:  # a ConfigError of the settings' own comes as one
        raise ConfigError(f"endpoint: {str(error).replace('`$.', '`')}") from None
