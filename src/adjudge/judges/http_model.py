"""What the chat models that speak HTTP have in common: keys, addresses, the way to an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from adjudge.engine.loop import on_engine, run_blocking, run_on_engine
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.hosts import is_loopback
from adjudge.judges.base import ChatCall, ChatModel, Reply, Wire
from adjudge.judges.budget import Price, SpendCeiling
from adjudge.judges.cache import ReplyCache
from adjudge.judges.connections import Connection, Wanted, connect
from adjudge.judges.endpoint import EndpointSettings
from adjudge.judges.presets import Preset, checked_features
from adjudge.judges.transport import checked_url
from adjudge.prompts.fence import PROCESS_KEY

__all__ = ["HttpChatModel"]

_ELSEWHERE = {
    "api_key": "name an environment variable in api_key_env; a key never lives in a model object",
    "timeout": "see deadline_s of settings=EndpointSettings(…)",
    "max_retries": "see max_attempts of settings=EndpointSettings(…)",
    "max_concurrency": "see settings=EndpointSettings(…)",
    "messages": "messages are given to achat",
    "schema": "a schema is given to achat",
    "choices": "choices are given to achat",
    "logprobs": "log-probabilities are asked for in achat",
    "draw": "draws are numbered in achat",
    "group": "groups are named in achat",
    "n": "ask with draw = 0, 1, …: several choices of one reply are not several draws",
    "stream_options": "usage is asked for by itself",
}


@dataclass
class _Line:
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
            raise ConfigError(f"model: found {model!r}, must be the name of a model")
        self.model: str = model
        self.preset = preset.name
        self.features = checked_features(preset, features)
        self.stream = stream
        self.sampling = _flat(sampling)
        self.price = _price(price)
        self._preset = preset
        env = preset.key_env if api_key_env is None else api_key_env
        if not env.isidentifier():
            # Not shown: this may be the key itself.
            raise ConfigError("api_key_env: must be the name of an environment variable")
        urls = _urls(preset, base_url)
        self._wanted = Wanted(
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
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
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
        return self._wanted.base_urls

    @property
    def api_key_env(self) -> str:
        """The environment variable that holds the key; read at every call."""
        return self._wanted.key_env

    @property
    def fingerprint(self) -> str:
        """The addresses, which a variable of the environment may have set."""
        return " ".join(self.base_urls)

    @property
    def fence_key(self) -> bytes:
        """The key for tags that fence text in prompts; its cassette's, if it has one."""
        if self._fence_key is None:
            cache = self._wanted.cache
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
            sampling={**self.sampling, **_flat(sampling)} if sampling else self.sampling,
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

    async def _connect(self, key: str | None) -> _Line:
        connection = await connect(self._wanted, key)
        connection.models.add(self.model)
        plain = self._wire(key, stream=self.stream)
        if plain is None:
            raise ConfigError(f"{self!r}: stream=True is not possible here")
        streaming = None if self.stream else self._wire(key, stream=True)
        line = _Line(key, connection, plain, streaming)
        self._lines[asyncio.get_running_loop()] = line
        return line

    def check_machine(self) -> None:
        """The key is in the environment, where one is needed."""
        if not self._replays():
            try:
                self._key()
            except GradingFailure as failure:
                message = f"{failure} (export {self.api_key_env}=…)"
                raise ConfigError(message) from None

    def _key(self) -> str | None:
        """The key; ``GradingFailure(auth)`` names the variable when it lacks or cannot be one."""
        name = self._wanted.key_env
        key = os.environ.get(name, "").strip()
        if key:
            if key.isascii() and key.isprintable():
                return key
            problem = "holds characters that no key has"
        elif self._preset.needs_key and not self._local():
            problem = "is not set"
        else:
            return None
        raise GradingFailure(
            ErrorKind.AUTH, f"the environment variable {name} {problem}; it must hold the key"
        )

    def _replays(self) -> bool:
        """Whether a cassette answers everything, so that no key is needed."""
        cache = self._wanted.cache
        return isinstance(cache, ReplyCache) and cache.replays

    def _local(self) -> bool:
        """Whether all addresses are this machine's own, whose servers rarely want a key."""
        return all(is_loopback(_host(url)) for url in self._wanted.base_urls)


def _host(url: str) -> str:
    host = url.partition("://")[2].partition("/")[0]
    return host.partition("]")[0].strip("[]") if "[" in host else host.partition(":")[0]


def _urls(preset: Preset, base_url: str | Sequence[str] | None) -> tuple[str, ...]:
    if base_url is None and preset.url_from_env:
        base_url = os.environ.get("OPENAI_BASE_URL") or None
    if base_url is None:
        base_url = preset.base_url
    urls = [base_url] if isinstance(base_url, str) else list(base_url)
    if not urls:
        raise ConfigError("base_url: an empty list, must have at least one address")
    return tuple(dict.fromkeys(checked_url(url) for url in urls))


def _flat(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling as the request's fields: ``extra_body`` spread out, what is ``None`` left out."""
    fields = {**sampling, **(sampling.get("extra_body") or {})}
    fields.pop("extra_body", None)
    for name in fields:
        if name in _ELSEWHERE:
            raise ConfigError(f"{name}: is no sampling parameter; {_ELSEWHERE[name]}")
    return {name: value for name, value in fields.items() if value is not None}


def _price(price: Price | Mapping[str, float] | None) -> Price | None:
    if price is None or isinstance(price, Price):
        return price
    try:
        return msgspec.convert(dict(price), Price)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ConfigError(
            f"price: {error}; must be US dollars per million tokens: input, output and, if they "
            "differ, cached_input"
        ) from None
