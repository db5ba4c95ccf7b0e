"""Chat models behind an HTTP API: ``OpenAIChatModel`` and ``AnthropicChatModel``.

The first asks any server that speaks ``/chat/completions``, the second Anthropic's
``/v1/messages``. Keys, addresses and the way to an endpoint are the same for both.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
from pydantic import Field

from adjudge.config import check_allowed
from adjudge.config_tables import check_setting
from adjudge.engine.loop import on_engine, run_on_engine
from adjudge.errors import (
    ConfigError,
    ErrorKind,
    Fields,
    GradingFailure,
    JudgeUnavailable,
    Metadata,
)
from adjudge.hosts import is_loopback
from adjudge.judges.base import (
    ChatCall,
    ChatModel,
    HttpRequest,
    HttpResponse,
    Reply,
    Transport,
    Wire,
    digest_source,
)
from adjudge.judges.endpoint.connections import connect
from adjudge.judges.endpoint.settings import EndpointKey, EndpointSettings, Price, SpendCeiling
from adjudge.judges.presets import ALL_FEATURES, PRESETS, Preset, check_features, flatten_sampling
from adjudge.judges.wire import hide_key_in_failure
from adjudge.judges.wire.transport import (
    check_headers,
    load_authority,
    normalize_url,
    read_headers,
    read_url_from_environment,
)
from adjudge.prompts import PROCESS_KEY

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache
    from adjudge.judges.endpoint.endpoint import Endpoint

_log = logging.getLogger("adjudge")
_T = TypeVar("_T")


Line = tuple["Endpoint", Wire, Wire | None]
"""A model's endpoint, and the wires for its key: the model's own, and the one for streams."""


class _OwnWire:
    """A wire of the user's own: it knows the key, so nothing that it raises is shown unread."""

    def __init__(self, cls: type[Any], key: str | None) -> None:
        self._name, self._key = _class_path(cls), key or ""
        self._secret = HttpRequest(path="", headers={"authorization": self._key}, body=b"")
        self._wire: Any = self._call(object, cls, key)

    def request(self, call: ChatCall) -> HttpRequest:
        return self._call(HttpRequest, self._wire.request, call)

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        return self._call(Reply, self._wire.reply, call, response)

    def _call(self, wanted: type[_T], function: Callable[..., Any], *arguments: Any) -> _T:
        try:
            made = function(*arguments)
        except GradingFailure as failure:
            raise hide_key_in_failure(failure, self._secret) from None
        except Exception as error:  # noqa: BLE001  (somebody else's code)
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise GradingFailure(
                ErrorKind.BUG,
                f"the wire format {self._name} raised {type(error).__name__}",
                {"at": f"{Path(where.filename).name}:{where.lineno} in {where.name}"},
            ) from None
        if not isinstance(made, wanted):
            expected, found = wanted.__name__, type(made).__name__
            raise TypeError(f"the wire made no {expected} (found {found})")
        return made


class _OwnTemperature:
    """A wire for a server that has one temperature only: the request names none."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.reply = wire, wire.reply

    def request(self, call: ChatCall) -> HttpRequest | Awaitable[HttpRequest]:
        sampling = {key: one for key, one in call.sampling.items() if key != "temperature"}
        return self._wire.request(msgspec.structs.replace(call, sampling=sampling))


class HttpChatModel(ChatModel):
    """A chat model behind an address; subclasses say which wire speaks to it.

    ``model``: its name at the server. ``preset``: what is known about the server; sets the
    address, the key's variable and what is sent (:mod:`adjudge.judges.base`). ``api_key_env``: name
    of the environment variable with the key, read at every call; by default the provider's own
    (``OPENAI_API_KEY``, ``VLLM_API_KEY``, …), so that no server gets another's key. A key that a
    provider needs, or whose variable is named here, and that is not there is an error at the first
    call (``GradingFailure(auth)``), and none for local servers.
    ``base_url``: the address, or a list of replicas; default ``OPENAI_BASE_URL`` (for ``openai``,
    ``vllm``, ``sglang``, ``llamacpp`` and ``ollama``), else the preset's. ``stream``: ask for
    streams; models that only stream are found out by themselves. ``features``: what this model
    honours, instead of the preset's.
    ``settings``: how calls survive; models of one address and key that agree share an endpoint.
    ``cache``: a file for replies (mode ``record``), or a ``ReplyCache``; off unless given.
    ``price``: US dollars per million tokens. ``budget``: a ceiling that several models share.
    ``ca_file``: a PEM file; the server's certificate must come from an authority in it.
    ``headers``: further headers, and the environment variable of each value. ``wire``: a format of
    your own, a class that is made with the key (or ``None``) and meets
    :class:`~adjudge.judges.base.Wire`; it has the features of its attribute ``features``, or
    none. Everything else (``temperature``, ``max_tokens``, ``seed``, ``top_p``, ``extra_body``, …)
    is sent with each call, as the server names it.

    Configuration only: picklable, and serves any thread and any event loop. Raises ``ConfigError``
    for what cannot be meant.
    """

    has_server = True
    streams: ClassVar[bool] = True
    """Whether its format has streams."""
    _line: Line | None = None
    """That of the last call."""

    def __init__(
        self,
        model: str,
        *,
        preset: str | None = None,
        api_key_env: str | None = None,
        base_url: str | Sequence[str] | None = None,
        stream: bool = False,
        features: Iterable[str] | None = None,
        settings: EndpointSettings | None = None,
        cache: str | Path | ReplyCache | None = None,
        price: Price | Mapping[str, float] | None = None,
        ca_file: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        budget: SpendCeiling | None = None,
        wire: type[Any] | None = None,
        **sampling: Any,
    ) -> None:
        check_setting(Annotated[str, Field(min_length=1)], model, "model")
        spoken = [name for name, one in PRESETS.items() if one.api == self.kind]
        known = PRESETS[check_allowed("preset", preset or self.kind, spoken)]
        env = known.key_env if api_key_env is None else api_key_env
        if not env.isidentifier():
            # Not shown: this may be the key itself.
            raise ConfigError("api_key_env: must be the name of an environment variable")
        self.model = model
        self.preset = known.name
        self.stream = stream
        self.sampling = flatten_sampling(sampling)
        self.price = Price(**price) if isinstance(price, Mapping) else price
        owner = f"type {known.name!r}"
        self.offered_features = known.offered_features
        default: Iterable[str] = known.features & known.offered_features
        if wire is not None:
            owner, self.offered_features = _class_path(wire), ALL_FEATURES
            default = getattr(wire, "features", ())
        asked = default if features is None else features
        self.features = check_features(asked, owner, self.offered_features)
        if stream and not (self.streams and wire is None):
            raise ConfigError(f"stream: is not possible with {owner}. Leave it out.")
        self._preset = known
        self._needs_key = known.needs_key or api_key_env is not None
        self._own_wire = wire
        urls = self._resolve_urls(known, base_url)
        # Replies of a provider's own address are kept under its name, whoever recorded them;
        # elsewhere one model name may be many models.
        cache_name = known.name if known.needs_key and urls == (known.base_url,) else urls[0]
        if wire is not None:
            cache_name += f" ({_class_path(wire)} {digest_source(wire)[:16]})"
        self._endpoint_key = EndpointKey(
            provider=self.kind if wire is None else _class_path(wire),
            base_urls=urls,
            key_env=env,
            settings=settings,
            cache=_absolute(cache) if isinstance(cache, str | Path) else cache,
            cache_name=cache_name,
            ca_file=None if ca_file is None else _absolute(ca_file),
            headers=tuple(check_headers(headers or {}).items()),
            budget=budget,
        )
        if self._endpoint_key.ca_file is not None and not self._replays():
            load_authority(self._endpoint_key.ca_file)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r}, base_url={list(self.base_urls)})"

    def __getstate__(self) -> Metadata:
        left = ("_line", "fence_key")
        return {name: value for name, value in self.__dict__.items() if name not in left}

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
        """The addresses, which a variable of the environment may have set; an own wire's file."""
        said = " ".join(self.base_urls)
        if self._own_wire is None:
            return said
        return f"{said} {_class_path(self._own_wire)} {digest_source(self._own_wire)}"

    @cached_property
    def fence_key(self) -> bytes:
        """The key for tags that fence text in prompts; its cassette's, if it has one."""
        cache = self._endpoint_key.open_cache()
        if cache is None:
            return PROCESS_KEY
        if cache is not self._endpoint_key.cache:
            cache.close()
        return cache.fence_key

    def _make_wires(self, endpoint: Endpoint) -> tuple[Wire, Wire | None]:
        """The wire to speak with, and the one for streams where that is another."""
        raise NotImplementedError

    @staticmethod
    def _normalize(url: str) -> str:
        """One address as its wire wants it."""
        return normalize_url(url)

    def _resolve_urls(
        self, preset: Preset, base_url: str | Sequence[str] | None
    ) -> tuple[str, ...]:
        if base_url is None and preset.url_from_env:
            base_url = read_url_from_environment()
        if base_url is None:
            base_url = preset.base_url
        urls = [base_url] if isinstance(base_url, str) else base_url
        check_setting(Annotated[Sequence[str], Field(min_length=1)], urls, "base_url")
        return tuple(dict.fromkeys(self._normalize(url) for url in urls))

    @property
    def can_stream(self) -> bool:
        """Whether it can be asked for streams: its format has them, and is no wire of one's own."""
        return self.streams and self._own_wire is None

    def variant(
        self, *, features: frozenset[str] | None = None, stream: bool | None = None
    ) -> Self:
        """The same judge with other features or streams, which keeps no replies."""
        other = copy.copy(self)
        other.features = self.features if features is None else features
        other.stream = self.stream if stream is None else stream
        other._endpoint_key = replace(self._endpoint_key, cache=None)  # noqa: SLF001  (a copy)
        return other

    async def answer(self, call: ChatCall) -> Reply:
        """Send a call on the engine's loop."""
        return await (self.ask(call) if on_engine() else run_on_engine(self.ask(call)))

    def merge_sampling(self, sampling: Fields) -> Fields:
        """The model's own sampling as fields of the request, and the call's."""
        return {**self.sampling, **flatten_sampling(sampling)}

    async def ask(self, call: ChatCall) -> Reply:
        """Send a call on the running loop, whichever it is; :meth:`answer` does on the engine's.

        A server that says it only streams is asked once more for a stream, and one that refuses
        temperature 0 without a temperature; both are remembered.
        """
        line, key = self._line, None if self._replays() else self._key()
        if line is None or not line[0].serves(key):
            line = await self._connect(key)
        endpoint, plain, streaming = line
        known, is_zero = endpoint.models[self.model], call.sampling.get("temperature") == 0
        while True:
            sent = frozenset(known)
            wire = (streaming if "stream_only" in sent else None) or plain
            if is_zero and "no_temperature" in sent:
                wire = _OwnTemperature(wire)
            try:
                return await endpoint.ask(call, wire, price=self.price)
            except GradingFailure as failure:
                curable = {"stream_only": streaming is not None, "no_temperature": is_zero}
                found = {name for name, can in curable.items() if can and name in failure.metadata}
                if not found - sent:
                    raise
                if "no_temperature" in found - known:
                    _log.warning(
                        "%s: the judge refuses temperature 0. It is asked without one from now on, "
                        "so its replies may differ from call to call",
                        self.model,
                    )
                known |= found

    async def _connect(self, key: str | None) -> Line:
        endpoint, own = await connect(self._endpoint_key, key), self._own_wire
        wires = self._make_wires(endpoint) if own is None else (_OwnWire(own, key), None)
        self._line = line = (endpoint, *wires)
        return line

    async def wait_until_reachable(
        self, seconds: float, on_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait until its server answers anything; see :func:`wait_for_server`."""
        transport = self._endpoint_key.open_transport()
        try:
            await wait_for_server(self.base_urls, seconds, transport=transport, on_wait=on_wait)
        finally:
            await transport.aclose()

    def check_machine(self) -> None:
        """The key, where one is needed, and the headers' values are in the environment."""
        if not self._replays():
            try:
                self._key()
                read_headers(dict(self._endpoint_key.headers))
            except GradingFailure as failure:
                variable = failure.metadata.get("variable", self.api_key_env)
                raise ConfigError(f"{failure}. Run: export {variable}=…") from None

    def _key(self) -> str | None:
        """The key; ``GradingFailure(auth)`` names the variable when it lacks or cannot be one."""
        name = self._endpoint_key.key_env
        key = os.environ.get(name, "").strip()
        if key:
            if key.isascii() and key.isprintable():
                return key
            problem = "has characters that no key has"
        elif self._needs_key and not all(
            is_loopback(urlsplit(url).hostname or "") for url in self.base_urls
        ):  # this machine's own servers rarely want a key
            problem = "is not set"
        else:
            return None
        raise GradingFailure(
            ErrorKind.AUTH, f"the environment variable {name}, which must hold the key, {problem}"
        )

    def _replays(self) -> bool:
        """Whether a cassette answers everything, so that no key is needed."""
        cache = self._endpoint_key.cache
        return cache is not None and not isinstance(cache, str) and cache.replays


_PING_REQUEST = HttpRequest(path="/models", headers={}, body=b"")
_PING_EVERY_S = 2.0


async def wait_for_server(
    base_urls: Sequence[str],
    seconds: float,
    *,
    transport: Transport,
    on_wait: Callable[[str], None] = lambda _: None,
) -> None:
    """Wait until a server at one of ``base_urls`` answers anything, if only "no"; costs nothing.

    ``on_wait`` hears of each failure. Raises :class:`~adjudge.errors.JudgeUnavailable` with the
    last one after ``seconds``.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + seconds
    while True:
        for url in base_urls:
            try:
                await transport.post(url, _PING_REQUEST)
            except GradingFailure as failure:
                problem = str(failure)
                if failure.metadata.get("sent", True):
                    return
            else:
                return
        left = deadline - now()
        if left <= 0:
            raise JudgeUnavailable(f"{problem} (waited for {seconds:.0f} s)")
        on_wait(f"{problem}; waiting for up to {left:.0f} s")
        await asyncio.sleep(min(_PING_EVERY_S, left))


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())


def _class_path(cls: type[Any]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


class OpenAIChatModel(HttpChatModel):
    """A chat model of OpenAI, Groq, DashScope, vLLM, SGLang, llama.cpp, Ollama, or one like them.

    Parameters as in :class:`HttpChatModel`; ``base_url`` is the address up to and with ``/v1``.

    >>> OpenAIChatModel(model="qwen3-max", temperature=0.0, base_url="http://localhost:8000/v1")
    OpenAIChatModel(model='qwen3-max', base_url=['http://localhost:8000/v1'])
    """

    kind = "openai"

    def _make_wires(self, endpoint: Endpoint) -> tuple[Wire, Wire | None]:
        from adjudge.judges.wire.openai import OpenAIWire  # noqa: PLC0415  (only this format's)

        plain, streaming = (
            OpenAIWire(self._preset, endpoint.key, features=self.features, stream=stream)
            for stream in (self.stream, True)
        )
        return plain, None if self.stream else streaming

    @staticmethod
    def _normalize(url: str) -> str:
        url = normalize_url(url)
        if url.endswith("/chat/completions"):
            raise ConfigError(f"base_url: must end before /chat/completions (found {url!r})")
        return url


class AnthropicChatModel(HttpChatModel):
    """A model of Anthropic, or of a server that speaks the Messages API.

    Parameters as in :class:`HttpChatModel`; ``base_url`` is the address before ``/v1/messages``.
    ``max_tokens`` is 1024 unless given. No streams, no log-probabilities and no choice lists; give
    ``features=[]`` for models that do not take a JSON Schema either.

    >>> AnthropicChatModel("model-name", temperature=0.0)
    AnthropicChatModel(model='model-name', base_url=['https://api.anthropic.com'])
    """

    kind = "anthropic"
    streams = False

    def _make_wires(self, endpoint: Endpoint) -> tuple[Wire, None]:
        from adjudge.judges.wire.anthropic import AnthropicWire  # noqa: PLC0415  (as above)

        return AnthropicWire(endpoint.key, features=self.features), None

    @staticmethod
    def _normalize(url: str) -> str:
        """The address without the ``/v1`` that some write and some do not."""
        return normalize_url(url.rstrip("/").removesuffix("/v1"))
