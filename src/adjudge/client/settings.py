"""What can be set about the client of a judge service: config keys, environment, defaults."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from adjudge.config import check_keys, interpolate
from adjudge.errors import ConfigError
from adjudge.judges.endpoint.settings import EndpointSettings
from adjudge.judges.wire.transport import normalize_url
from adjudge.wire import JUDGE_KEY_VARIABLE, MAX_BATCH

JUDGE_URL_VARIABLE = "JUDGE_MODEL_URL"

VARIABLES = {
    "judge_url": JUDGE_URL_VARIABLE,
    "max_batch_size": "JUDGE_MAX_BATCH_SIZE",
    "max_concurrent_requests": "JUDGE_MAX_CONCURRENT",
    "batch_timeout": "JUDGE_BATCH_TIMEOUT",
    "timeout": "JUDGE_TIMEOUT",
}
"""Where a key comes from that the config leaves out."""

_ONE_VARIABLE = re.compile(r"\s*\$\{([A-Za-z_][A-Za-z0-9_]*)\}\s*\Z")
_WHERE = "config"


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the client asks; :meth:`from_config` reads a config and the environment.

    ``judge_url``: the service's address, without ``/judge``.
    ``api_key_env``: the variable that holds the key, read at every request.
    ``key_required``: whether that variable was named, so that it must be set (no config key).
    ``use_cache``: whether equal requests get one score, those in flight included.
    ``cache_size``: how many scores are kept; the least recently used goes first.
    ``cache_ttl``: seconds that a score is kept.
    ``max_batch_size``: requests in one HTTP request, up to 128.
    ``batch_timeout``: seconds that the first request of a batch waits for others.
    ``max_concurrent_requests``: HTTP requests in flight.
    ``timeout``: seconds for one reward, waiting and retries included.
    ``fallback_to_rule``: whether a rule replaces a judge that cannot be reached.
    ``max_retries``: further attempts after a failure that may pass.
    ``circuit_breaker_threshold``: failures in a row after which nothing is sent. Each send counts,
    retries too.
    ``circuit_breaker_timeout``: seconds until one request may test the service again.
    ``breaker_waits``: whether requests wait meanwhile instead of failing at once (no config key).
    """

    judge_url: str
    api_key_env: str = JUDGE_KEY_VARIABLE
    key_required: bool = False
    use_cache: bool = True
    cache_size: Annotated[int, Meta(ge=1, le=10_000_000)] = 5000
    cache_ttl: Annotated[float, Meta(ge=0.001, le=1e9)] = 3600.0
    max_batch_size: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 16
    batch_timeout: Annotated[float, Meta(ge=0, le=60)] = 0.05
    max_concurrent_requests: Annotated[int, Meta(ge=1, le=10_000)] = 32
    timeout: Annotated[float, Meta(ge=0.01, le=86_400)] = 30.0
    fallback_to_rule: bool = False
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    circuit_breaker_threshold: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    circuit_breaker_timeout: Annotated[float, Meta(ge=0.001, le=86_400)] = 60.0
    breaker_waits: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None = None) -> ClientSettings:
        """Settings from a config; what it leaves out, or sets to ``None``, from the environment.

        ``${NAME}`` in a value is that environment variable. Raises
        :class:`~adjudge.errors.ConfigError` naming the key, what was found and what is allowed;
        a key's value is never shown.
        """
        if config is None:
            config = {}
        if not isinstance(config, Mapping):
            raise ConfigError(
                f"{_WHERE}: must be a mapping of keys to values (found {type(config).__name__})"
            )
        check_keys(config, _KEYS, f"{_WHERE}: ")
        given = {name: value for name, value in config.items() if value is not None}
        values = _read_key_settings(given.pop("api_key", None), given.pop("api_key_env", None))
        for name, variable in VARIABLES.items():
            if name not in given and (value := os.environ.get(variable)):
                given[name] = value
        for name, value in given.items():
            values[name] = interpolate(value, _WHERE, name)
        if "judge_url" not in values:
            raise ConfigError(
                f"{_WHERE}: judge_url: is missing. Give it, or set the environment variable "
                f"{JUDGE_URL_VARIABLE}."
            )
        values["judge_url"] = _read_url(values["judge_url"])
        try:  # text is read as what it says, since variables are text
            settings = msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            problem, _, name = str(error).rstrip("`").partition(" - at `$.")
            raise ConfigError(
                f"{_WHERE}: {name}: {problem[0].lower()}{problem[1:]} (found {values[name]!r:.60})"
            ) from None
        if not settings.batch_timeout < settings.timeout:  # so is NaN
            raise ConfigError(
                f"{_WHERE}: batch_timeout: must be below timeout (found "
                f"{settings.batch_timeout:g}; timeout is {settings.timeout:g})"
            )
        return settings

    @property
    def endpoint(self) -> EndpointSettings:
        """The same for the line to the service, in its terms.

        Nothing is hedged: the service asks its judges twice where that pays, and a second copy of
        a batch would ask all of them again.
        """
        return EndpointSettings(
            max_concurrency=self.max_concurrent_requests,
            start_concurrency=self.max_concurrent_requests,
            max_attempts=self.max_retries + 1,
            # A batch leaves up to batch_timeout after its first request came.
            deadline_s=max(self.timeout - self.batch_timeout, self.timeout / 2),
            timeout_factor=math.inf,
            hedge=False,
            breaker_failures=self.circuit_breaker_threshold,
            breaker_cooldown_s=self.circuit_breaker_timeout,
            breaker_waits=self.breaker_waits,
            dedupe=False,
        )


_KEYS = ["api_key", *ClientSettings.__struct_fields__]
_KEYS.remove("key_required")
_KEYS.remove("breaker_waits")


def _read_key_settings(api_key: Any, api_key_env: Any) -> dict[str, Any]:
    """Which variable holds the key; the key itself is neither kept nor shown."""
    if api_key_env is not None:
        if api_key is not None:
            raise ConfigError(
                f"{_WHERE}: api_key and api_key_env: both are given. Give one of them."
            )
        if not isinstance(api_key_env, str) or not api_key_env.isidentifier():
            # Not shown: this may be the key itself.
            raise ConfigError(f"{_WHERE}: api_key_env: must be the name of an environment variable")
        return {"api_key_env": api_key_env, "key_required": True}
    if api_key in (None, ""):
        return {}
    if isinstance(api_key, str):
        if found := _ONE_VARIABLE.match(api_key):
            return {"api_key_env": found[1]}
        if api_key == os.environ.get(JUDGE_KEY_VARIABLE):  # filled in by whoever read the file
            return {}
    raise ConfigError(
        f"{_WHERE}: api_key: a config must not contain a key. Use api_key_env: A_VARIABLE, or "
        f"api_key: ${{{JUDGE_KEY_VARIABLE}}}."
    )


def _read_url(value: Any) -> str:
    try:
        url = normalize_url(value)
    except ConfigError as error:
        problem = f"judge_url{str(error).removeprefix('base_url')}"
        raise ConfigError(f"{_WHERE}: {problem}") from None
    if url.endswith(("/judge", "/batch_judge")):
        raise ConfigError(f"{_WHERE}: judge_url: must not end in {url[url.rindex('/') :]}")
    return url
