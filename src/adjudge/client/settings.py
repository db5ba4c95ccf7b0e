"""What can be set about the client of a judge service: config keys, environment, defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from adjudge.config import interpolate
from adjudge.config_tables import ConfigTable, validate_model
from adjudge.errors import ConfigError
from adjudge.judges.endpoint.settings import CallPolicy, EndpointKey, EndpointSettings
from adjudge.judges.wire.transport import normalize_url
from adjudge.wire import JUDGE_KEY_VARIABLE, MAX_BATCH

VARIABLES = {
    "judge_url": "JUDGE_MODEL_URL",
    "max_batch_size": "JUDGE_MAX_BATCH_SIZE",
    "max_concurrent_requests": "JUDGE_MAX_CONCURRENT",
}
"""Where a key comes from that the config leaves out."""

_ONE_VARIABLE = re.compile(r"\s*\$\{([A-Za-z_][A-Za-z0-9_]*)\}\s*\Z")


class ClientSettings(ConfigTable):
    """How the client asks; :meth:`from_config` reads a config and the environment.

    ``judge_url``: the service's address, without ``/judge``.
    ``api_key_env``: the variable that holds the key, read at every request.
    ``use_cache``: whether equal requests get one score, those in flight included.
    ``cache_size``: how many scores are kept; the least recently used goes first.
    ``max_batch_size``: requests in one HTTP request, up to 128.
    ``batch_timeout``: seconds that the first request of a batch waits for others.
    ``max_concurrent_requests``: HTTP requests in flight.
    ``timeout``: seconds for one reward, waiting and retries included.
    ``fallback_to_rule``: whether a rule replaces a judge that cannot be reached.
    ``max_retries``: further attempts after a failure that may pass.
    ``circuit_breaker_threshold``: failures in a row after which nothing is sent. Each send counts,
    retries too.
    ``circuit_breaker_timeout``: seconds until one request may test the service again.
    """

    model_config = ConfigDict(strict=False)  # text is read as what it says: variables are text

    judge_url: str
    api_key_env: str = JUDGE_KEY_VARIABLE
    use_cache: bool = True
    cache_size: Annotated[int, Field(ge=1, le=10_000_000)] = 5000
    max_batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH)] = 16
    batch_timeout: Annotated[float, Field(ge=0, le=60)] = 0.05
    max_concurrent_requests: Annotated[int, Field(ge=1, le=10_000)] = 32
    timeout: Annotated[float, Field(ge=0.01, le=86_400)] = 30.0
    fallback_to_rule: bool = False
    max_retries: Annotated[int, Field(ge=0, le=100)] = 3
    circuit_breaker_threshold: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    circuit_breaker_timeout: Annotated[float, Field(ge=0.001, le=86_400)] = 60.0

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """``true`` is no number, though Python counts with it."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("must be no true or false")
        return value

    @field_validator("judge_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            url = normalize_url(url)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("base_url: ")) from None
        if url.endswith(("/judge", "/batch_judge")):
            raise ValueError("must be the address of the service, without a route")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, name: str) -> str:
        if not name.isidentifier():
            raise ValueError(  # not shown: this may be the key itself
                "must be the name of an environment variable (found something else)"
            )
        return name

    @field_validator("timeout")
    @classmethod
    def _check_timeout(cls, timeout: float, info: ValidationInfo) -> float:
        if timeout <= info.data.get("batch_timeout", 0.0):
            raise ValueError("must be above batch_timeout")
        return timeout

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None = None) -> ClientSettings:
        """Settings from a config; what it leaves out, or sets to ``None``, from the environment.

        ``${NAME}`` in a value is that environment variable; a config says ``api_key: ${NAME}`` for
        ``api_key_env: NAME``. Raises :class:`~adjudge.errors.ConfigError` naming the key, what was
        found and what is allowed; the judge's key is never shown.
        """
        if not isinstance(config, Mapping | None):
            kind = type(config).__name__
            raise ConfigError(f"config: must be a mapping of keys to values (found {kind})")
        given = {name: value for name, value in (config or {}).items() if value is not None}
        key = given.pop("api_key", "")
        found = {name: os.environ.get(variable) for name, variable in VARIABLES.items()}
        values: dict[str, object] = {name: value for name, value in found.items() if value}
        values |= {name: interpolate(value, "config", name) for name, value in given.items()}
        if key not in ("", os.environ.get(JUDGE_KEY_VARIABLE)):  # else its reader filled it in
            variable = _ONE_VARIABLE.match(key) if isinstance(key, str) else None
            if variable is None or "api_key_env" in values:
                raise ConfigError(
                    "config: api_key: a config must not contain a key, and name one of them at "
                    f"most. Use api_key_env: A_VARIABLE, or api_key: ${{{JUDGE_KEY_VARIABLE}}}."
                )
            values["api_key_env"] = variable[1]
        return validate_model(cls, values, "config")

    waits: ClassVar[bool] = False
    """Whether requests wait for the end of an outage, and are sent again until ``timeout``."""

    def endpoint_key(self, provider: str) -> EndpointKey:
        """The same for the line to the service, in its terms.

        Nothing is hedged: the service asks its judges twice where that pays, and a second copy of a
        batch would ask all of them again.
        """
        endpoint = EndpointSettings(
            max_concurrency=self.max_concurrent_requests,
            max_attempts=self.max_retries + 1,
            # A batch leaves up to batch_timeout after its first request came.
            deadline_s=max(self.timeout - self.batch_timeout, self.timeout / 2),
            hedge=False,
        )
        policy = CallPolicy(
            start_concurrency=self.max_concurrent_requests,
            resends_silent=False,
            breaker_failures=self.circuit_breaker_threshold,
            breaker_cooldown_s=self.circuit_breaker_timeout,
            breaker_waits=self.waits,
        )
        return EndpointKey(provider, (self.judge_url,), self.api_key_env, endpoint, policy)


class PatientSettings(ClientSettings):
    """Those of who trains with a service: ``timeout`` alone ends a request that may pass.

    The breaker opens early, and is no failure: requests wait while one of them tries again.
    """

    waits = True
    use_cache: bool = False
    max_retries: int = 1000
    circuit_breaker_threshold: int = 5
    circuit_breaker_timeout: float = 5.0
