"""A ``[judges.NAME]`` table of a reward spec, and the chat model that it means."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    field_validator,
    model_validator,
)

from adjudge.config import check_keys
from adjudge.config_tables import ConfigTable, check_setting
from adjudge.errors import ConfigError, Fields, Metadata
from adjudge.extensions import check_extension_name, import_named, load_extension
from adjudge.judges.base import ChatModel, LocalDtype, LocalTask, RouteName
from adjudge.judges.endpoint.settings import EndpointSettings, Price
from adjudge.judges.presets import PRESETS, check_features, flatten_sampling

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache
    from adjudge.judges.endpoint.settings import SpendCeiling

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
    "recorded": f"{_MODELS}.offline:RecordedModel",
    "scripted": f"{_MODELS}.offline:ScriptedModel",
}
"""``type`` → ``module:Class`` of every judge that ships; imported when a spec names it."""

NOT_ABOUT_REPLIES = frozenset(
    {"api_key_env", "cache", "price", "ca_file", "headers", "endpoint", "batch_size"}
)
"""Keys that change how calls travel or what is kept of them, never what a judge is asked."""


TableClass = type[ConfigTable]
"""Named, since ``type`` is a key of a judge's table."""


class _JudgeContext(NamedTuple):
    """What a table's model is built with beside its keys; see :func:`build_judge`."""

    name: str
    folder: Path
    cache: ReplyCache | None
    budget: SpendCeiling | None

    def locate(self, name: str | None) -> str | None:
        """A path beside the file, or what a library may know by this name."""
        beside = self.folder / (name or "")
        return str(beside) if name and beside.exists() else name


class JudgeTable(ConfigTable):
    """One ``[judges.NAME]`` table: the class of its ``type`` has the keys, and builds the model.

    Sampling is sent as written, and nothing that is not set; fields that only one server knows go
    into ``extra_body``. Paths may be beside the file.
    """

    has_server: ClassVar[bool] = False
    """Whether its calls go over the network."""
    is_unrecorded: ClassVar[bool] = False
    """Whether its replies are kept nowhere: a model in this process, a class of the user's."""

    type: str
    """The kind of server or model, or ``module:Class`` of your own."""
    tokenizer: str | None = Field(default=None, min_length=1)
    """The served model's tokenizer: its control tokens are broken up in judged text."""

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        if "api_key" in data:
            raise ValueError(
                "api_key: a literal key is not allowed. Name the environment variable that holds "
                "it in api_key_env."
            )
        owner = cls.table_for(data)
        return handler(data) if owner is cls else cast("Self", owner.model_validate(data))

    @classmethod
    def table_for(cls, data: Fields) -> TableClass:
        """The class of the table's ``type``."""
        kind = data.get("type")
        if cls is not JudgeTable or not isinstance(kind, str):
            return cls
        return _TABLES.get(kind, OpenAITable if kind in PRESETS else OwnTable)

    def build(self, how: _JudgeContext) -> ChatModel:
        """The chat model that it means."""
        return self._load_class(how)(**self._arguments(how))

    def _load_class(self, how: _JudgeContext) -> Callable[..., ChatModel]:
        found: Callable[..., ChatModel] = load_extension(
            JUDGE_GROUP, self.type, where="type", folder=how.folder, shipped=SHIPPED_JUDGES
        )
        return found

    def _arguments(self, how: _JudgeContext) -> Metadata:  # noqa: ARG002  (those that need it)
        """Those of the model's class: the keys that are set, but ``type`` and ``tokenizer``."""
        left_out = {"type", "tokenizer"}
        return self.model_dump(exclude=left_out, exclude_unset=True, exclude_none=True)


class _Sampling(ConfigTable):
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    extra_body: Metadata = Field(default={})


class _RemoteSampling(_Sampling):
    features: list[str] | None = None
    """What the server supports: ``schema``, ``choices``, ``logprobs``, ``stream_usage``; by default
    that of the type."""


class _OpenAISampling(_RemoteSampling):
    seed: int | None = None


class CalledTable(JudgeTable):
    """What all tables have whose calls go through an endpoint."""

    has_server = True

    model: str = Field(min_length=1)
    """The model's name at the server; for ``embedded`` and ``local`` a file, a folder or a known
    name."""
    cache: str | None = Field(default=None, min_length=1)
    """A file that keeps the replies at temperature 0, beside the spec."""
    endpoint: EndpointSettings | None = None
    """Limits, time limits and retries."""

    def _arguments(self, how: _JudgeContext) -> Metadata:
        given = super()._arguments(how)
        given.pop("endpoint", None)
        kept = None if self.cache is None else how.folder / self.cache
        return given | {
            "preset": self.type,
            "settings": self.endpoint,
            "cache": kept if how.cache is None else how.cache,
            "budget": how.budget,
        }


class AddressedTable(CalledTable):
    """What all tables have whose calls go to an address, and may cost money."""

    price: Price | None = None
    """US dollars per million tokens: ``input``, ``output``, ``cached_input``. A budget needs it."""
    base_url: str | list[str] | None = None
    """The address with ``/v1``, or a list of replicas; by default that of the type."""
    api_key_env: str | None = None
    """The name of the environment variable with the key; a literal key is refused. One that is
    named here must have a value, but for servers of this machine."""
    ca_file: str | None = Field(default=None, min_length=1)
    """A PEM file with the authority of the server's certificate, beside the spec or not."""
    headers: dict[str, str] = Field(default={})
    """Further headers: each name with the environment variable that has its value."""

    def _arguments(self, how: _JudgeContext) -> Metadata:
        authority = None if self.ca_file is None else how.folder / self.ca_file
        return super()._arguments(how) | {"ca_file": authority}


class AnthropicTable(_RemoteSampling, AddressedTable):
    """A chat model behind an address; the Messages API knows these parameters."""

    wire: str | None = None
    """``module:Class`` of your own request format."""

    def _arguments(self, how: _JudgeContext) -> Metadata:
        given = super()._arguments(how)
        if self.wire is not None:
            given["wire"] = load_extension(
                WIRE_GROUP, self.wire, where="wire", folder=how.folder, methods=["request", "reply"]
            )
        return given


class OpenAITable(_OpenAISampling, AnthropicTable):
    """A chat model behind an address of an API like OpenAI's."""

    stream: bool = False
    """Ask for streams; models that only stream are recognised without it."""


class ClassifierTable(AddressedTable):
    """A scalar judge behind an address."""

    route: RouteName | None = None
    """``classify``, ``sglang``, ``pooling``, ``score`` or ``judge``; by default the server is
    asked."""
    extra_body: Metadata = Field(default={})

    def _arguments(self, how: _JudgeContext) -> Metadata:
        return super()._arguments(how) | {"tokenizer": how.locate(self.tokenizer)}


class _MachineTable(ConfigTable):
    """What a model on this machine has."""

    max_length: int | None = Field(default=None, ge=1)
    """The most tokens of an input; by default the model's."""
    batch_size: int | None = Field(default=None, ge=1)
    """How many questions the model answers at the same time."""


class EmbeddedTable(_OpenAISampling, _MachineTable, CalledTable):
    """A model of llama.cpp that adjudge starts."""

    def _arguments(self, how: _JudgeContext) -> Metadata:
        return super()._arguments(how) | {"model": how.locate(self.model)}


class LocalTable(_Sampling, _MachineTable, JudgeTable):
    """A model of transformers in this process."""

    is_unrecorded = True

    model: str = Field(min_length=1)
    tokenizer: None = None
    task: LocalTask | None = None
    """``chat``: a model that replies (default); ``score``: a scalar judge."""
    device: str | None = None
    """As torch names it, such as ``cuda:1``; by default the GPU of ``LOCAL_RANK``, else the CPU."""
    dtype: LocalDtype | None = None
    """``float32``, ``bfloat16`` or ``float16``; by default ``bfloat16`` on a GPU, else
    ``float32``."""

    def _load_class(self, how: _JudgeContext) -> Callable[..., ChatModel]:
        name = f"{_MODELS}.local:LocalScalarModel"
        return (
            import_named(name, where="type") if self.task == "score" else super()._load_class(how)
        )

    def _arguments(self, how: _JudgeContext) -> Metadata:
        given = super()._arguments(how) | {"model": how.locate(self.model)}
        given.pop("task", None)
        return given


class RecordedTable(_OpenAISampling, JudgeTable):
    """Replies that another judge's cache has."""

    model: str | None = Field(default=None, min_length=1)
    cassette: str = Field(min_length=1)
    """A cache that another judge filled; its replies are given again."""
    provider: str | None = None
    """Which provider's replies, where the cassette has several."""

    def _arguments(self, how: _JudgeContext) -> Metadata:
        given = super()._arguments(how)
        own = {name: given.pop(name, None) for name in ("model", "provider", "features")}
        path = how.folder / given.pop("cassette")
        return {"path": path, "sampling": flatten_sampling(given) or None, **own}


class ScriptedTable(JudgeTable):
    """Stated replies."""

    model: str | None = Field(default=None, min_length=1)
    script: str | list[str] | dict[str, str] | None = None
    """One reply, a list with one for each draw (repeat), or a table by words of the question."""
    function: str | None = None
    """``module:name`` of a function of the messages, in place of ``script``."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.script is None) == (self.function is None):
            raise ValueError("type 'scripted' needs script or function")
        return self

    def _arguments(self, how: _JudgeContext) -> Metadata:
        given = {"script": self.script, "model": self.model or how.name}
        if self.function is not None:
            given["script"] = import_named(self.function, how.folder, where="function")
            if not callable(given["script"]):
                raise ConfigError(f"function: must be a function (found {self.function!r})")
        return given


class OwnTable(JudgeTable):
    """A class of the user's own: all keys but two are the arguments of its constructor."""

    model_config = ConfigDict(extra="allow")
    is_unrecorded = True

    @field_validator("type")
    @classmethod
    def _known_type(cls, kind: str) -> str:
        try:
            check_extension_name(JUDGE_GROUP, kind, where="type", shipped=SHIPPED_JUDGES)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("type: ")) from None
        return kind

    def build(self, how: _JudgeContext) -> ChatModel:
        """The chat model that it means."""
        return _build_custom(how.name, self.type, self._load_class(how), self.model_extra or {})


_TABLES: Mapping[str, type[JudgeTable]] = {
    "anthropic": AnthropicTable,
    "embedded": EmbeddedTable,
    "classifier": ClassifierTable,
    "local": LocalTable,
    "recorded": RecordedTable,
    "scripted": ScriptedTable,
}
JUDGE_TABLES: tuple[type[JudgeTable], ...] = (OpenAITable, *_TABLES.values())
"""The classes of tables of the types that ship."""


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

    Paths are relative to ``folder``; ``cache`` is used instead of the table's own; ``budget``
    bounds the spending of several judges together. Raises :class:`ConfigError`.
    """
    how = _JudgeContext(name, folder or Path(), cache, budget)
    try:
        model = table.build(how)
        if table.tokenizer is not None and not isinstance(table, ClassifierTable):
            from adjudge.judges.models.local_loading import read_control_tokens  # noqa: PLC0415

            model.control_tokens = read_control_tokens(how.locate(table.tokenizer) or "")
    except ConfigError as error:
        raise ConfigError(f"{where}: judges.{name}: {error}") from None
    return model


def _build_custom(name: str, type_name: str, cls: object, options: Fields) -> ChatModel:
    """A model of the user's own; its constructor says which keys the table may have."""
    if not (isinstance(cls, type) and issubclass(cls, ChatModel)):
        raise ConfigError(
            f"type: must be a class derived from ChatModel (found {type_name!r}, of type "
            f"{type(cls).__name__})"
        )
    parameters = list(inspect.signature(cls).parameters.values())
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        check_keys(options, ["type", "tokenizer", *(p.name for p in by_name)], "")
    hints: Metadata = {}
    with suppress(NameError, TypeError):  # names that only a type checker knows
        hints = typing.get_type_hints(cls.__init__)
    for parameter in by_name:
        key = parameter.name
        if key in options:
            check_setting(hints.get(key, Any), options[key], key)
        elif parameter.default is parameter.empty:
            raise ConfigError(f"{key}: is required by type {cls.__qualname__!r}")
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
    check_features(model.features or (), cls.__qualname__)
    return model
