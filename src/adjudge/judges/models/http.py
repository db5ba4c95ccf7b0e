"""Chat models behind an HTTP API: ``OpenAIChatModel`` and ``AnthropicChatModel``.

The first asks any server that speaks ``/chat/completions``, the second Anthropic's
``/v1/messages``. Keys, addresses and the way to an endpoint are the same for both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec

from adjudge.engine.loop import on_engine, run_blocking, run_on_engine
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.hosts import is_loopback
from adjudge.judges.base import PRESETS, ChatCall, ChatModel, Preset, Reply, Wire, resolve_features
from adjudge.judges.base import get_preset as named_preset
from adjudge.judges.cassette.cache import ReplyCache
from adjudge.judges.endpoint.connections import Connection, EndpointKey, connect
from adjudge.judges.endpoint.settings import EndpointSettings, Price, SpendCeiling
from adjudge.judges.wire.anthropic import AnthropicWire
from adjudge.judges.wire.openai import OpenAIWire
from adjudge.judges.wire.transport import normalize_url
from adjudge.prompts.fence import PROCESS_KEY

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
    "n": "Call achat with draw = 0, 1, …; several choices of one reply are not several draws",
    "stream_options": "Leave it out: usage is always requested",
}


@dataclass
class _LoopBinding:
    """A model's way out of one event loop: the connection, and the wires for the key in use."""

    key: str | None
    connection: Connection
    plain: Wire
    streaming: Wire | None


class HttpChatModel(ChatModel):
    """A chat model behind an address; subclasses say which wire speaks to it."""

    def __init__(
        self,
        model: Any,
        preset: Preset,
        *,
        api_key_env: str | None,
        base_url: str | Sequence[str] | None,
        stream: bool,
        features: Iterable[str] | None,
        settings: EndpointSettings | None,
        cache: str | Path | ReplyCache | None,
        price: Price | Mapping[str, float] | None,
        trust_env: bool,
        budget: SpendCeiling | None,
        sampling: Mapping[str, Any],
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigError(f"model: must be the name of a model (found {model!r})")
        self.model: str = model
        self.preset = preset.name
        self.features = resolve_features(preset, features)
        self.stream = stream
        self.sampling = _flatten_sampling(sampling)
        self.price = _parse_price(price)
        self._preset = preset
        env = preset.key_env if api_key_env is None else api_key_env
        if not env.isidentifier():
            # Not shown: this may be the key itself.
            raise ConfigError("api_key_env: must be the name of an environment variable")
        urls = _base_urls(preset, base_url)
        self._endpoint_key = EndpointKey(
            provider=self.kind,
            base_urls=urls,
            key_env=env,
            settings=settings,
            cache=str(Path(cache).expanduser().absolute())
            if isinstance(cache, str | Path)
            else cache,
            # Replies of a provider's own address are kept under its name, whoever recorded
            # them; elsewhere one model name may be many models.
            cache_name=preset.name if preset.needs_key and urls == (preset.base_url,) else None,
            trust_env=trust_env,
            budget=budget,
            owner=f"{preset.name}:{model}",
        )
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopBinding] = (
            WeakKeyDictionary()
        )
        self._fence_key: bytes | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r}, base_url={list(self.base_urls)})"

    def __getstate__(self) -> dict[str, Any]:
        left = ("_lines", "_fence_key")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lines=WeakKeyDictionary(), _fence_key=None)

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The addresses that calls are spread over."""
        return self._endpoint_key.base_urls

    @property
    def api_key_env(self) -> str:
        """The environment variable that holds the key; read at every call."""
        return self._endpoint_key.key_env

    @property
    def fingerprint(self) -> str:
        """The addresses, which a variable of the environment may have set."""
        return " ".join(self.base_urls)

    @property
    def fence_key(self) -> bytes:
        """The key for tags that fence text in prompts; its cassette's, if it has one."""
        if self._fence_key is None:
            cache = self._endpoint_key.cache
            if cache is None:
                self._fence_key = PROCESS_KEY
            elif isinstance(cache, ReplyCache):
                self._fence_key = cache.fence_key
            else:
                with contextlib.closing(ReplyCache(cache)) as opened:
                    self._fence_key = opened.fence_key
        return self._fence_key

    @abstractmethod
    def _wire(self, key: str | None, *, stream: bool) -> Wire | None:
        """The wire to speak with; ``None`` when streams are not spoken here."""

    async def achat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        schema: Mapping[str, Any] | None = None,
        choices: Sequence[str] | None = None,
        logprobs: bool = False,
        draw: int = 0,
        group: str | None = None,
        **sampling: Any,
    ) -> Reply:
        """Ask, from any event loop, and return one complete reply; see ``ChatModel.achat``.

        ``sampling`` overrides the model's own. Raises ``GradingFailure``, and ``ConfigError`` when
        another model has opened the same endpoint with other settings.
        """
        call = self._call(messages, schema, choices, logprobs, draw, sampling)
        if on_engine():
            return await self.ask(call, group=group)
        return await run_on_engine(self.ask(call, group=group))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        schema: Mapping[str, Any] | None = None,
        choices: Sequence[str] | None = None,
        logprobs: bool = False,
        draw: int = 0,
        group: str | None = None,
        **sampling: Any,
    ) -> Reply:
        """The blocking twin of :meth:`achat`, for ordinary code in any thread."""
        call = self._call(messages, schema, choices, logprobs, draw, sampling)
        return run_blocking(self.ask(call, group=group))

    def _call(
        self,
        messages: Sequence[Mapping[str, Any]],
        schema: Mapping[str, Any] | None,
        choices: Sequence[str] | None,
        logprobs: bool,
        draw: int,
        sampling: Mapping[str, Any],
    ) -> ChatCall:
        return ChatCall(
            model=self.model,
            messages=messages,
            schema=schema,
            choices=choices,
            logprobs=logprobs,
            draw=draw,
            sampling={**self.sampling, **_flatten_sampling(sampling)}
            if sampling
            else self.sampling,
        )

    async def ask(self, call: ChatCall, *, group: str | None = None) -> Reply:
        """Send a call on the running loop, whichever it is; what :meth:`achat` does on the engine.

        A server that says it only streams is asked once more for a stream, and remembered.
        """
        line = self._lines.get(asyncio.get_running_loop())
        key = None if self._replays() else self._key()
        if line is None or line.key != key or line.connection.closed:
            line = await self._connect(key)
        connection = line.connection
        wire = line.plain
        if line.streaming is not None and self.model in connection.stream_only:
            wire = line.streaming
        try:
            return await connection.endpoint.ask(call, wire, group=group, price=self.price)
        except GradingFailure as failure:
            if line.streaming is None or wire is line.streaming:
                raise
            if "stream_only" not in failure.metadata:
                raise
        connection.stream_only.add(self.model)
        return await connection.endpoint.ask(call, line.streaming, group=group, price=self.price)

    async def _connect(self, key: str | None) -> _LoopBinding:
        connection = await connect(self._endpoint_key, key)
        connection.models.add(self.model)
        plain = self._wire(key, stream=self.stream)
        if plain is None:
            raise ConfigError(f"{self!r}: stream=True is not possible here")
        streaming = None if self.stream else self._wire(key, stream=True)
        line = _LoopBinding(key, connection, plain, streaming)
        self._lines[asyncio.get_running_loop()] = line
        return line

    def check_machine(self) -> None:
        """The key is in the environment, where one is needed."""
        if not self._replays():
            try:
                self._key()
            except GradingFailure as failure:
                raise ConfigError(f"{failure}. Run: export {self.api_key_env}=…") from None

    def _key(self) -> str | None:
        """The key; ``GradingFailure(auth)`` names the variable when it lacks or cannot be one."""
        name = self._endpoint_key.key_env
        key = os.environ.get(name, "").strip()
        if key:
            if key.isascii() and key.isprintable():
                return key
            problem = "has characters that no key has"
        elif self._preset.needs_key and not self._local():
            problem = "is not set"
        else:
            return None
        raise GradingFailure(
            ErrorKind.AUTH, f"the environment variable {name}, which must hold the key, {problem}"
        )

    def _replays(self) -> bool:
        """Whether a cassette answers everything, so that no key is needed."""
        cache = self._endpoint_key.cache
        return isinstance(cache, ReplyCache) and cache.replays

    def _local(self) -> bool:
        """Whether all addresses are this machine's own, whose servers rarely want a key."""
        return all(is_loopback(_describe_host(url)) for url in self._endpoint_key.base_urls)


def _describe_host(url: str) -> str:
    host = url.partition("://")[2].partition("/")[0]
    return host.partition("]")[0].strip("[]") if "[" in host else host.partition(":")[0]


def _base_urls(preset: Preset, base_url: str | Sequence[str] | None) -> tuple[str, ...]:
    if base_url is None and preset.url_from_env:
        base_url = os.environ.get("OPENAI_BASE_URL") or None
    if base_url is None:
        base_url = preset.base_url
    urls = [base_url] if isinstance(base_url, str) else list(base_url)
    if not urls:
        raise ConfigError("base_url: must have at least one address (found an empty list)")
    return tuple(dict.fromkeys(normalize_url(url) for url in urls))


def _flatten_sampling(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling as the request's fields: ``extra_body`` spread out, what is ``None`` left out."""
    fields = {**sampling, **(sampling.get("extra_body") or {})}
    fields.pop("extra_body", None)
    for name in fields:
        if name in _ELSEWHERE:
            raise ConfigError(f"{name}: is not a sampling parameter. {_ELSEWHERE[name]}.")
    return {name: value for name, value in fields.items() if value is not None}


def _parse_price(price: Price | Mapping[str, float] | None) -> Price | None:
    if price is None or isinstance(price, Price):
        return price
    try:
        return msgspec.convert(dict(price), Price)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ConfigError(
            "price: must be US dollars per million tokens: input, output and, if they differ, "
            f"cached_input (found: {error})"
        ) from None


class OpenAIChatModel(HttpChatModel):
    """A chat model of OpenAI, Groq, DashScope, vLLM, SGLang, or what speaks like them.

    ``model``: its name at the server. ``preset``: what is known about the server; sets the
    address, the key's variable and what is sent (:mod:`adjudge.judges.base`). ``api_key_env``: name
    of the environment variable with the key, read at every call; by default the provider's own
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
            raise ConfigError("preset: 'anthropic' has a class of its own. Use AnthropicChatModel.")
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
                raise ConfigError(f"base_url: must end before /chat/completions (found {url!r})")

    def _wire(self, key: str | None, *, stream: bool) -> OpenAIWire:
        return OpenAIWire(self._preset, key, features=self.features, stream=stream)


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
            base_url=_strip_version(base_url),
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


def _strip_version(base_url: str | Sequence[str] | None) -> str | list[str] | None:
    """The address without the ``/v1`` that some write and some do not."""
    if base_url is None:
        return None
    if isinstance(base_url, str):
        return base_url.rstrip("/").removesuffix("/v1")
    return [url.rstrip("/").removesuffix("/v1") for url in base_url]
