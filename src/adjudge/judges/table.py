"""A ``[judges.NAME]`` table of a reward spec, and the chat model that it means.

Also what a judge's server really honours, found out by a handful of small calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

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
from adjudge.errors import ConfigError, GradingFailure
from adjudge.extensions import check_extension_name, import_named, load_extension
from adjudge.judges.base import ALL_FEATURES, PRESETS, ChatModel, LocalTask, Reply, RouteName

if TYPE_CHECKING:
    from adjudge.judges.cassette.cache import ReplyCache
    from adjudge.judges.endpoint.settings import EndpointSettings, SpendCeiling

JUDGE_GROUP, WIRE_GROUP = "adjudge.judges", "adjudge.wire_formats"
"""The entry-point groups of judges and wire formats that other packages offer."""

_MODELS = "adjudge.judges.models"

SHIPPED_JUDGES: Mapping[str, str] = {
    "openai": f"{_MODELS}.http:OpenAIChatModel",
    "groq": f"{_MODELS}.http:OpenAIChatModel",
    "anthropic": f"{_MODELS}.http:AnthropicChatModel",
    "dashscope": f"{_MODELS}.http:OpenAIChatModel",
    "vllm": f"{_MODELS}.http:OpenAIChatModel",
    "sglang": f"{_MODELS}.http:OpenAIChatModel",
    "llamacpp": f"{_MODELS}.http:OpenAIChatModel",
    "ollama": f"{_MODELS}.http:OpenAIChatModel",
    "embedded": f"{_MODELS}.embedded:EmbeddedChatModel",
    "classifier": f"{_MODELS}.classifier:ClassifierModel",
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
NOT_ABOUT_REPLIES = frozenset(
    {
        "api_key_env",
        "cache",
        "cache_sampled",
        "price",
        "trust_env",
        "endpoint",
        "batch_size",
        "slots",
        "threads",
    }
)
"""Keys that change how calls travel or what is kept of them, never what a judge is asked."""

_LOADING_KEYS = ("device", "dtype", "max_length", "batch_size")
_SERVER_KEYS = ("max_length", "slots", "threads")
_LOCAL_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "extra_body")
_KEYS_WITHOUT_SERVER = {
    "cassette", "provider", "script", "function", "task", "options", "route",
    *_LOADING_KEYS, *_SERVER_KEYS,
}  # fmt: skip
_KEYS_OF_TYPE = {
    "embedded": {
        "model",
        *_SERVER_KEYS,
        "cache",
        "cache_sampled",
        "endpoint",
        "features",
        "tokenizer",
        *SAMPLING,
    },
    "classifier": {
        "model",
        "base_url",
        "route",
        "tokenizer",
        "api_key_env",
        "cache",
        "price",
        "trust_env",
        "endpoint",
        "extra_body",
    },
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
    output: float = Field(ge=0, allow_inf_nan=False)
    cached_input: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class JudgeTable(ConfigTable):
    """One ``[judges.NAME]`` table.

    ``type`` says which keys it may have: a server's (``model``, ``base_url``, …, sampling), those
    of ``classifier`` (a scalar judge behind a server: ``route``, ``tokenizer``, no sampling), of
    ``local`` (``model``, a folder beside the file or a name that transformers knows; ``task``:
    ``chat`` or, for a scalar judge, ``score``; ``device``, ``dtype``, ``max_length``,
    ``batch_size``, some sampling), of ``recorded`` (``cassette``, and ``model`` and ``provider``
    where the cassette has several), of ``embedded`` (``model``, a name that ``adjudge models
    fetch`` knows or a GGUF file; ``slots``, ``max_length``, ``threads``, sampling) or of
    ``scripted`` (``script``: one reply, a list by draw, or replies by words of the question; or
    ``function``: ``module:name`` of a function of the messages). Any other type is a class of the
    user's own (``module:Class``, or the name that a package gave it): all other keys are
    ``options``, the arguments of its constructor. ``wire``: a server's format is the user's own
    class. Sampling is sent as written, and nothing that is not; fields that only one server knows
    go into ``extra_body``. ``tokenizer`` (not of ``local``, which has its own): the served model's,
    whose control tokens are broken up in what is judged: a folder with ``tokenizer.json`` or such a
    file, beside the spec or not, or a name that transformers knows. ``endpoint`` has the names and
    defaults of :class:`~adjudge.judges.EndpointSettings`.
    """

    type: str
    options: dict[str, Any] = Field(default={})
    wire: str | None = None
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
    endpoint: dict[str, Any] = Field(default={})

    cassette: str | None = None
    provider: str | None = None
    script: str | list[str] | dict[str, str] | None = None
    function: str | None = None

    route: RouteName | None = None
    task: LocalTask | None = None
    device: str | None = None
    dtype: str | None = None
    max_length: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    slots: int | None = Field(default=None, ge=1)
    threads: int | None = Field(default=None, ge=1)

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
        """The keys as a file has them; a table that has no newer key keeps the hash it had."""
        said: dict[str, Any] = serialize(self)
        options: dict[str, Any] = said.pop("options", {})
        if self.type not in SHIPPED_JUDGES:
            return {key: said[key] for key in _KEYS_OF_ALL if key in said} | options
        for key in ("wire", "route", "slots", "threads"):
            if said.get(key) is None:
                said.pop(key, None)
        return said

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

            model.control_tokens = read_control_tokens(_locate_tokenizer(table.tokenizer, folder))
    except ConfigError as error:
        raise ConfigError(f"{where}: judges.{name}: {error}") from None
    return model


def _locate_tokenizer(tokenizer: str, folder: Path) -> str:
    """A path beside the file, or what transformers may know by this name."""
    beside = folder / tokenizer
    return str(beside) if beside.exists() else tokenizer


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
        path = table.model or ""
        if (folder / path).is_dir():
            path = str(folder / path)
        model = cls(path, **table.chosen(_LOADING_KEYS), **table.sampling())
    elif table.type == "embedded":
        path = table.model or ""
        if (folder / path).is_file():
            path = str(folder / path)
        arguments = _http_arguments(table, folder, cache, budget)
        if table.endpoint:
            defaults = cls.endpoint_defaults(table.slots or cls.slots)
            arguments["settings"] = _parse_settings({**defaults, **table.endpoint})
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
        **table.chosen(("api_key_env", "base_url", "features", "stream", "trust_env")),
        "preset": table.type,
        "settings": _parse_settings(table.endpoint) if table.endpoint else None,
        "cache": own,
        "price": None if table.price is None else table.price.model_dump(exclude_none=True),
        "budget": budget,
        **table.sampling(),
    }
    if table.type == "classifier":
        found |= table.chosen(["route"])
        if table.tokenizer is not None:
            found["tokenizer"] = _locate_tokenizer(table.tokenizer, folder)
    if table.wire is not None:
        found["wire"] = load_extension(
            WIRE_GROUP, table.wire, where="wire", folder=folder, methods=["request", "reply"]
        )
    return found


def _parse_settings(given: Mapping[str, Any]) -> EndpointSettings:
    from adjudge.judges.endpoint.settings import EndpointSettings  # noqa: PLC0415

    check_keys(given, sorted(EndpointSettings.__struct_fields__), "endpoint.")
    try:
        return msgspec.convert(given, EndpointSettings)
    except msgspec.ValidationError as error:  # a ConfigError of the settings' own comes as one
        raise ConfigError(f"endpoint: {str(error).replace('`$.', '`')}") from None


FeatureStatus = Literal["yes", "no", "unclear", "failed", "not offered"]

_CHOICES = ("alpha", "omega")
_COLOUR_MESSAGES = [{"role": "user", "content": "Name a colour. Answer with one word."}]
_WORDS_MESSAGES = [{"role": "user", "content": "Write eight random words."}]
_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
_TOKENS = 64

ModelBuilder = Callable[[JudgeTable], ChatModel]


class FeatureCheck(msgspec.Struct, frozen=True):
    """Whether a server honours one thing, and what its reply showed.

    ``honoured``: ``yes``; ``no`` (asked for and evidently not there); ``unclear`` (the reply was
    cut by its length limit before it could show); ``failed`` (the call failed: ``note`` has kind
    and message); ``not offered`` (this kind of server has no field for it).
    ``sent``: whether calls with this judge ask for it, ``None`` where that is not a setting.
    """

    feature: str
    honoured: FeatureStatus
    note: str = ""
    sent: bool | None = None


async def check_judge_features(table: JudgeTable, build: ModelBuilder) -> list[FeatureCheck]:
    """Seven small calls to a judge with a server; one where the first fails.

    ``build`` makes the chat model of a table. Everything is asked for once, also what this kind of
    server is not sent by default, so that the table's ``features`` can be set to what is true.
    """
    bare = table.model_copy(update={"cache": None, "cache_sampled": False})
    everything = bare.model_copy(update={"features": sorted(ALL_FEATURES)})
    if table.type == "classifier":
        return await _check_classifier(build(bare))
    sent = PRESETS[table.type].features if table.features is None else frozenset(table.features)
    model, full = build(bare), build(everything)
    try:
        first = await model.achat(_COLOUR_MESSAGES)
    except GradingFailure as failure:
        return [_failed_check("reply", failure)]
    except ConfigError as error:  # a server in a child process that cannot be started
        return [FeatureCheck("reply", "failed", str(error))]
    found = [_check_reply(first), FeatureCheck("usage", *_check_usage(first))]
    found.append(
        await _check_feature(
            "schema", full.achat(_COLOUR_MESSAGES, schema=_SCHEMA), "schema" in sent,
            lambda _: "the reply is JSON with its keys",
        )
    )  # fmt: skip
    if PRESETS[table.type].choices_field is None:
        note = "replies are checked against the list instead"
        found.append(FeatureCheck("choices", "not offered", note))
    else:
        found.append(
            await _check_feature(
                "choices", full.achat(_COLOUR_MESSAGES, choices=_CHOICES), "choices" in sent,
                lambda _: "the reply is one of the list",
            )
        )  # fmt: skip
    if table.type == "anthropic":
        note = "no expected scores from this API"
        found.append(FeatureCheck("logprobs", "not offered", note))
    else:
        found.append(
            await _check_feature(
                "logprobs", full.achat(_COLOUR_MESSAGES, logprobs=True), "logprobs" in sent,
                _describe_logprobs,
            )
        )  # fmt: skip
    if table.type == "anthropic" or table.wire is not None:
        note = "this client asks it for whole replies only"
        found.append(FeatureCheck("streaming", "not offered", note))
    else:
        streaming = build(everything.model_copy(update={"stream": True}))
        found.append(
            await _check_feature(
                "streaming", streaming.achat(_COLOUR_MESSAGES), table.stream,
                lambda reply: f"joined, {'with' if reply.usage else 'without'} usage",
            )
        )  # fmt: skip
    found.append(await _check_seed(model, table))
    return found


async def _check_classifier(model: ChatModel) -> list[FeatureCheck]:
    """What a scalar judge's server answers: its route, whether outputs are raw, whose template."""
    from adjudge.judges.models.classifier import ClassifierModel  # noqa: PLC0415  (few judges)

    if not isinstance(model, ClassifierModel):
        raise TypeError("unreachable: a table of type classifier")
    try:
        found, (reply, again) = await model.inspect_server()
    except GradingFailure as failure:
        return [_failed_check("reply", failure)]
    except ConfigError as error:
        return [FeatureCheck("reply", "failed", str(error))]
    shown = " and ".join(f"{score:.4g}" for score in found.scores)
    raw = f"two conversations scored {shown}"
    if found.activation is not None:
        raw += f", sent with {found.activation} = false"
    template = {"server": "applied by the server", "here": "applied here; token ids are sent"}
    pair = "prompt and response go out as two texts"
    return [
        _check_reply(reply),
        FeatureCheck("usage", *_check_usage(reply)),
        FeatureCheck("route", "yes", found.facts["route"]),
        FeatureCheck("raw output", "yes" if found.is_raw else "unclear", raw),
        FeatureCheck(
            "chat template",
            "yes" if found.template in template else "not offered",
            template.get(found.template, pair),
        ),
        FeatureCheck(
            "repeatable",
            "yes" if again.text == reply.text else "no",
            "one conversation, asked twice",
        ),
    ]


def _describe_logprobs(reply: Reply) -> str:
    return f"{max(len(token.top) for token in reply.logprobs or ())} alternatives a token"


def _failed_check(feature: str, failure: GradingFailure, sent: bool | None = None) -> FeatureCheck:
    return FeatureCheck(feature, "failed", f"{failure.kind}: {failure}", sent)


def _check_reply(reply: Reply) -> FeatureCheck:
    took = f"{reply.provenance.latency_s:.2f} s" if reply.provenance.latency_s is not None else ""
    thinking = "thinks" if reply.reasoning else ""
    says = f"says it is {reply.model}" if reply.model else "does not say what model it is"
    note = ", ".join(part for part in (says, took, thinking) if part)
    if not reply.text:
        return FeatureCheck("reply", "no", f"{note}; the reply has no text ({reply.finish_reason})")
    return FeatureCheck("reply", "yes", note)


def _check_usage(reply: Reply) -> tuple[FeatureStatus, str]:
    usage = reply.usage
    if usage is None:
        return "no", "tokens are not counted, so costs are assumed"
    return "yes", f"{usage.input_tokens} tokens in, {usage.output_tokens} out"


async def _check_feature(
    feature: str,
    asked: Awaitable[Reply],
    sent: bool | None,
    describe: Callable[[Reply], str],
) -> FeatureCheck:
    """A call for one feature; ``describe`` words what the reply shows."""
    try:
        reply = await asked
    except GradingFailure as failure:
        return _failed_check(feature, failure, sent)
    if feature in reply.ignored:
        return FeatureCheck(feature, "no", "the reply does not have it: dropped silently", sent)
    if feature in ("schema", "choices") and reply.finish_reason == "length":
        return _check_truncated(feature, reply, sent)
    if not reply.text and feature != "logprobs":
        return FeatureCheck(feature, "no", f"the reply has no text ({reply.finish_reason})", sent)
    return FeatureCheck(feature, "yes", describe(reply), sent)


def _check_truncated(feature: str, reply: Reply, sent: bool | None) -> FeatureCheck:
    """A cut reply shows at most that the form was not kept: an object begins with a brace."""
    if feature == "schema" and not reply.text.lstrip().startswith("{"):
        return FeatureCheck(feature, "no", "the reply is no JSON: dropped silently", sent)
    return FeatureCheck(feature, "unclear", "the reply was cut: raise max_tokens", sent)


async def _check_seed(model: ChatModel, table: JudgeTable) -> FeatureCheck:
    if table.type == "anthropic":
        return FeatureCheck("seed", "not offered")
    sent = table.seed is not None
    try:
        texts = [
            (await model.achat(_WORDS_MESSAGES, seed=7, temperature=1.0, max_tokens=_TOKENS)).text
            for _ in range(2)
        ]
    except GradingFailure as failure:
        return _failed_check("seed", failure, sent)
    if texts[0] == texts[1]:
        return FeatureCheck("seed", "yes", "two replies at temperature 1 are the same", sent)
    return FeatureCheck("seed", "no", "two replies at temperature 1 differ", sent)
