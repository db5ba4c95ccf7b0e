"""A ``[judges.NAME]`` table of a reward spec, and the chat model that it means."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from adjudge.config import check_keys
from adjudge.config_tables import ConfigTable
from adjudge.errors import ConfigError
from adjudge.extensions import check_extension_name, import_named, load_extension
from adjudge.judges.base import ALL_FEATURES, PRESETS, ChatModel, LocalTask, RouteName

if TYPE_CHECKING:
    from adjudge.judges.cassette.cache import ReplyCache
    from adjudge.judges.endpoint.settings import EndpointSettings, SpendCeiling

JUDGE_GROUP, WIRE_GROUP = "adjudge.judges", "adjudge.wire_formats"
"""The entry-point groups of judges and wire formats that other packages offer."""

_MODELS = "adjudge.judges.models"

_SERVERS = {
    "openai": f"{_MODELS}.http:OpenAIChatModel",
    "anthropic": f"{_MODELS}.http:AnthropicChatModel",
    "embedded": f"{_MODELS}.embedded:EmbeddedChatModel",
    "classifier": f"{_MODELS}.classifier:ClassifierModel",
}
"""The class of each API."""

SHIPPED_JUDGES: Mapping[str, str] = {
    **{name: _SERVERS[preset.api] for name, preset in PRESETS.items()},
    "local": f"{_MODELS}.local:LocalChatModel",
    "recorded": f"{_MODELS}.recorded:RecordedModel",
    "scripted": f"{_MODELS}.scripted:ScriptedModel",
}
"""``type`` → ``module:Class`` of every judge that ships; imported when a spec names it."""

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
_CALL_KEYS = (
    "api_key_env", "cache", "price", "trust_env", "ca_file", "headers", "endpoint",
)  # fmt: skip
NOT_ABOUT_REPLIES = frozenset({*_CALL_KEYS, "cache_sampled", "batch_size", "slots", "threads"})
"""Keys that change how calls travel or what is kept of them, never what a judge is asked."""

_LOADING_KEYS = ("device", "dtype", "max_length", "batch_size")
_SERVER_KEYS = ("max_length", "slots", "threads")
_KEPT_KEYS = ("cache", "cache_sampled", "endpoint", "features", "tokenizer")
_LOCAL_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "extra_body")
_KEYS_WITHOUT_SERVER = {
    "cassette", "provider", "script", "function", "task", "options", "route",
    *_LOADING_KEYS, *_SERVER_KEYS,
}  # fmt: skip
_KEYS_OF_TYPE = {
    "embedded": {"model", *_SERVER_KEYS, *_KEPT_KEYS, *SAMPLING},
    "classifier": {"model", "base_url", "route", "tokenizer", "extra_body", *_CALL_KEYS},
    "local": {"model", "task", *_LOADING_KEYS, *_LOCAL_SAMPLING},
    "recorded": {"model", "cassette", "provider", "features", "tokenizer", *SAMPLING},
    "scripted": {"model", "script", "function", "tokenizer"},
}
_KEYS_OF_ALL = ("type", "tokenizer")
"""What a table of any type may have; the rest of a class of the user's own is that class's."""

_REQUIRED_KEYS = {
    "local": ("model",),
    "recorded": ("cassette",),
    "scripted": ("script", "function"),
}


class _Price(ConfigTable):
    """``price``: US dollars per million tokens."""

    input: float = Field(ge=0, allow_inf_nan=False)
    """For a million tokens of prompts."""
    output: float = Field(ge=0, allow_inf_nan=False)
    """For a million tokens of replies."""
    cached_input: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """For a million prompt tokens that the server had in its cache; by default ``input``."""


class JudgeTable(ConfigTable):
    """One ``[judges.NAME]`` table.

    ``type`` says which keys it may have. Any type that does not ship is a class of the user's own
    (``module:Class``, or the name that a package gave it): all other keys but ``tokenizer`` are
    ``options``, the arguments of its constructor. Sampling is sent as written, and nothing that is
    not set; fields that only one server knows go into ``extra_body``. Paths may be beside the file.
    ``endpoint`` has the names and defaults of :class:`~adjudge.judges.EndpointSettings`.
    """

    type: str
    """The kind of server or model, or ``module:Class`` of your own."""
    options: dict[str, Any] = Field(default={})
    wire: str | None = None
    """``module:Class`` of your own request format."""
    model: str | None = None
    """The model's name at the server; for ``embedded`` and ``local`` a file, a folder or a known
    name."""
    base_url: str | list[str] | None = None
    """The address with ``/v1``, or a list of replicas; by default that of the type."""
    api_key_env: str | None = None
    """The name of the environment variable with the key; a literal key is refused."""
    stream: bool = False
    """Ask for streams; models that only stream are recognised without it."""
    features: list[str] | None = None
    """What the server supports: ``schema``, ``choices``, ``logprobs``, ``stream_usage``; by default
    that of the type."""
    tokenizer: str | None = None
    """The served model's tokenizer: its control tokens are broken up in judged text."""
    cache: str | None = None
    """A file that keeps the replies at temperature 0, beside the spec."""
    cache_sampled: bool = False
    """The cache keeps replies at other temperatures, too."""
    price: _Price | None = None
    """US dollars per million tokens: ``input``, ``output``, ``cached_input``. A budget needs it."""
    trust_env: bool = True
    """Use the environment's proxies."""
    ca_file: str | None = None
    """A PEM file with the authority of the server's certificate, beside the spec or not."""
    headers: dict[str, str] = Field(default={})
    """Further headers: each name with the environment variable that has its value."""
    endpoint: dict[str, Any] = Field(default={})
    """Limits, time limits and retries."""

    cassette: str | None = None
    """A cache that another judge filled; its replies are given again."""
    provider: str | None = None
    """Which provider's replies, where the cassette has several."""
    script: str | list[str] | dict[str, str] | None = None
    """One reply, a list with one for each draw (repeat), or a table by words of the question."""
    function: str | None = None
    """``module:name`` of a function of the messages, in place of ``script``."""

    route: RouteName | None = None
    """``classify``, ``sglang``, ``pooling``, ``score`` or ``judge``; by default the server is
    asked."""
    task: LocalTask | None = None
    """``chat``: a model that replies (default); ``score``: a scalar judge."""
    device: str | None = None
    """As torch names it, such as ``cuda:1``; by default the GPU of ``LOCAL_RANK``, else the CPU."""
    dtype: str | None = None
    """``float32``, ``bfloat16`` or ``float16``; by default ``bfloat16`` on a GPU, else
    ``float32``."""
    max_length: int | None = Field(default=None, ge=1)
    """The most tokens of an input; by default the model's."""
    batch_size: int | None = Field(default=None, ge=1)
    """Conversations in a batch."""
    slots: int | None = Field(default=None, ge=1)
    """How many questions the model answers at the same time."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads."""

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
    extra_body: dict[str, Any] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _sort_keys(cls, data: Any) -> Any:
        """No literal key; all but two keys of a class of the user's own are that class's."""
        if not isinstance(data, Mapping):
            return data
        if "api_key" in data:
            raise ValueError(
                "api_key: a literal key is not allowed. Name the environment variable that holds "
                "it in api_key_env."
            )
        kind = data.get("type")
        if not isinstance(kind, str) or kind in SHIPPED_JUDGES:
            return data
        options = {key: value for key, value in data.items() if key not in _KEYS_OF_ALL}
        return {key: value for key, value in data.items() if key not in options} | {
            "options": options
        }

    @field_validator("type")
    @classmethod
    def _known_type(cls, kind: str) -> str:
        try:
            check_extension_name(JUDGE_GROUP, kind, where="type", shipped=SHIPPED_JUDGES)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("type: ")) from None
        return kind

    @model_serializer(mode="wrap")
    def _as_written(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The keys as a file has them."""
        said: dict[str, Any] = serialize(self)
        options: dict[str, Any] = said.pop("options", {})
        if self.type in SHIPPED_JUDGES:
            return said
        return {key: said[key] for key in _KEYS_OF_ALL if key in said} | options

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.type not in SHIPPED_JUDGES:
            return self
        allowed = _KEYS_OF_TYPE.get(self.type, set(type(self).model_fields) - _KEYS_WITHOUT_SERVER)
        if stray := sorted(self.model_fields_set - allowed - {"type"}):
            listed = ", ".join(sorted(allowed))
            raise ValueError(f"{stray[0]}: is not a key of type {self.type!r} (allowed: {listed})")
        required = _REQUIRED_KEYS.get(self.type, ("model",))
        if sum(getattr(self, key) is not None for key in required) != 1:
            raise ValueError(f"type {self.type!r} needs {' or '.join(required)}")
        drawn = sorted(self.model_fields_set.intersection(_LOCAL_SAMPLING))
        if self.task == "score" and drawn:
            raise ValueError(
                f"{drawn[0]}: a scalar judge (task = 'score') does not sample. Leave it out."
            )
        if self.cache_sampled and self.cache is None:
            raise ValueError("cache_sampled: needs a cache. Give its file in cache.")
        return self

    @property
    def has_server(self) -> bool:
        """Whether its calls go over the network."""
        return self.type in PRESETS

    @property
    def may_cost(self) -> bool:
        """Whether its calls may cost money."""
        return self.has_server and self.type != "embedded"

    @property
    def is_unrecorded(self) -> bool:
        """Whether its replies are kept nowhere: a model in this process, a class of the user's."""
        return not self.has_server and self.type not in ("recorded", "scripted")

    def sampling(self) -> dict[str, Any]:
        """The sampling keys that are set, ``extra_body`` among them."""
        return self.chosen(SAMPLING)

    def chosen(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of these keys that are set."""
        return {name: value for name in names if (value := getattr(self, name)) not in (None, {})}


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
        model = _build_model(name, table, folder, cache, budget)
        if table.tokenizer is not None and table.type != "classifier":
            from adjudge.judges.models.local_loading import read_control_tokens  # noqa: PLC0415

            model.control_tokens = read_control_tokens(_locate(table.tokenizer, folder))
    except ConfigError as error:
        raise ConfigError(f"{where}: judges.{name}: {error}") from None
    return model


def _locate(name: str, folder: Path) -> str:
    """A path beside the file, or what a library may know by this name."""
    beside = folder / name
    return str(beside) if name and beside.exists() else name


def _build_model(
    name: str,
    table: JudgeTable,
    folder: Path,
    cache: ReplyCache | None,
    budget: SpendCeiling | None,
) -> ChatModel:
    target = table.type
    if table.task == "score":
        target = f"{_MODELS}.local:LocalScalarModel"
    cls: Any = load_extension(
        JUDGE_GROUP, target, where="type", folder=folder, shipped=SHIPPED_JUDGES
    )
    path = _locate(table.model or "", folder)
    if table.type == "recorded":
        model: ChatModel = cls(
            folder / (table.cassette or ""),
            table.model,
            provider=table.provider,
            sampling=table.sampling() or None,
            features=table.features,
        )
    elif table.type == "scripted":
        script: Any = table.script or ""
        if table.function:
            script = import_named(table.function, folder, where="function")
        model = cls(script, model=table.model or name)
    elif table.type == "local":
        model = cls(path, **table.chosen(_LOADING_KEYS), **table.sampling())
    elif table.type == "embedded":
        arguments = _http_arguments(table, folder, cache, budget)
        if table.endpoint:
            defaults = cls.endpoint_defaults(table.slots or cls.slots)
            arguments["settings"] = parse_settings({**defaults, **table.endpoint})
        model = cls(path, **arguments, **table.chosen(_SERVER_KEYS))
    elif table.has_server:
        model = cls(table.model, **_http_arguments(table, folder, cache, budget))
    else:
        model = _build_custom(name, table.type, cls, table.options)
    return model


def _build_custom(name: str, type_name: str, cls: Any, options: Mapping[str, Any]) -> ChatModel:
    """A model of the user's own; its constructor says which keys the table may have."""
    if not (isinstance(cls, type) and issubclass(cls, ChatModel)):
        raise ConfigError(
            f"type: must be a class derived from ChatModel (found {type_name!r}, of type "
            f"{type(cls).__name__})"
        )
    parameters = list(inspect.signature(cls).parameters.values())
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        check_keys(options, [*_KEYS_OF_ALL, *(p.name for p in by_name)], "")
    for parameter in by_name:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise ConfigError(f"{parameter.name}: is required by type {cls.__qualname__!r}")
    try:
        model = cls(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{cls.__qualname__} refuses its keys: {error}") from error
    except (Exception, SystemExit) as error:  # somebody else's code
        raise ConfigError(
            f"{cls.__qualname__} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not model.model:
        model.model = name
    if unknown := sorted(set(model.features) - ALL_FEATURES):
        raise ConfigError(
            f"features: {cls.__qualname__} has an unknown name "
            f"(found {', '.join(map(repr, unknown))}; allowed: {', '.join(sorted(ALL_FEATURES))})"
        )
    return model


def _http_arguments(
    table: JudgeTable,
    folder: Path,
    cache: ReplyCache | None,
    budget: SpendCeiling | None,
) -> dict[str, Any]:
    own: ReplyCache | Path | None = cache
    if own is None and table.cache is not None:
        own = folder / table.cache
    found: dict[str, Any] = {
        **table.chosen(("api_key_env", "base_url", "features", "stream", "trust_env", "headers")),
        "preset": table.type,
        "ca_file": None if table.ca_file is None else folder / table.ca_file,
        "settings": parse_settings(table.endpoint) if table.endpoint else None,
        "cache": own,
        "price": None if table.price is None else table.price.model_dump(exclude_none=True),
        "budget": budget,
        **table.sampling(),
    }
    if table.type == "classifier":
        found |= table.chosen(["route"])
        if table.tokenizer is not None:
            found["tokenizer"] = _locate(table.tokenizer, folder)
    if table.wire is not None:
        found["wire"] = load_extension(
            WIRE_GROUP, table.wire, where="wire", folder=folder, methods=["request", "reply"]
        )
    return found


def parse_settings(given: Mapping[str, Any]) -> EndpointSettings:
    """The settings of a table ``endpoint``; raises :class:`ConfigError`."""
    from adjudge.judges.endpoint.settings import EndpointSettings  # noqa: PLC0415

    check_keys(given, sorted(EndpointSettings.__struct_fields__), "endpoint.")
    try:
        return msgspec.convert(given, EndpointSettings)
    except msgspec.ValidationError as error:  # a ConfigError of the settings' own comes as one
        raise ConfigError(f"endpoint: {str(error).replace('`$.', '`')}") from None
