"""Environments behind HTTP: an app that plays episodes for trainers on ``POST /rollout``."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from adjudge.config import suggest_name
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.hosts import is_loopback, is_loopback_header
from adjudge.rubrics import RubricBundle
from adjudge_lab.environments.task_wire import (
    PolicyEndpoint,
    RecordedEnvironment,
    RolloutRequest,
    build_rollout_answer,
    json_response,
    listen,
    read_rollout_request,
)
from adjudge_lab.environments.tasks import Environment, Episode, environment_settings, play

TASK_APP_KEY_VARIABLE = "ENVIRONMENT_API_KEY"
"""The environment variable with the key that trainers must send as ``X-API-Key``, if it is set."""

_MAX_BODY = 1 << 20
_READ_S = 20.0
_CLOSE_S = 2.0
_MAX_SEEDS = 32
_PATHS_WITHOUT_KEY = ("/", "/health")
_log = logging.getLogger("adjudge")

EpisodeScore = Callable[[Episode], float | None]


@dataclass(frozen=True, kw_only=True)
class TaskAppConfig:
    """What a task app is.

    ``make`` gives a fresh environment, from a request's ``env.config`` as keyword arguments;
    several kinds are ``environments`` by name. ``rubrics`` are what trainers should judge by.
    ``outcome_score`` and ``events_score`` may say how an episode went beside its rewards.
    ``max_turns``: of an episode, whatever is asked for; ``max_concurrent``: episodes at a time,
    more are answered 429; ``policy_timeout_s``: for one reply of the policy.

    Raises :class:`~adjudge.errors.ConfigError`.
    """

    app_id: str
    name: str
    make: Callable[..., Environment] | None = None
    environments: Mapping[str, Callable[..., Environment]] = field(default_factory=dict)
    rubrics: RubricBundle | None = None
    description: str = ""
    outcome_score: EpisodeScore | None = None
    events_score: EpisodeScore | None = None
    max_turns: int = 1000
    max_concurrent: int = 64
    policy_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.app_id.strip():
            raise ConfigError("app_id: must not be empty")
        if (self.make is None) is not bool(self.environments):
            raise ConfigError(
                "make, environments: one of them must be given, and environments must not be empty"
            )
        for name in ("max_turns", "max_concurrent", "policy_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0 (found {getattr(self, name)!r})")

    @property
    def kinds(self) -> Mapping[str, Callable[..., Environment]]:
        """The environments by name; a single ``make`` goes by its ``name``, else by ``app_id``."""
        if self.make is None:
            return self.environments
        name = getattr(self.make, "name", None)
        return {name if isinstance(name, str) else self.app_id: self.make}


def build_app(config: TaskAppConfig) -> web.Application:
    """The app, for any server that takes one of aiohttp; :func:`serve_task_app` is simpler.

    With a key in ``ENVIRONMENT_API_KEY`` all but ``/`` and ``/health`` ask for it. Without a
    key, serve the app on this machine only.
    """
    app = web.Application(client_max_size=_MAX_BODY, middlewares=[_answer_as_json])
    handlers = _Handlers(config, _read_key())
    app[_HANDLERS] = handlers
    app.cleanup_ctx.append(handlers.connections)
    app.add_routes(
        [
            web.get("/", handlers.health),
            web.get("/health", handlers.health),
            web.get("/info", handlers.info),
            web.get("/task_info", handlers.task_info),
            web.post("/rollout", handlers.rollout),
        ]
    )
    return app


def serve_task_app(
    config: TaskAppConfig,
    host: str = "127.0.0.1",
    port: int = 8001,
    *,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; ``port`` 0 picks a free one.

    ``ready`` hears the address once requests are taken; without it, standard output does. Raises
    :class:`~adjudge.errors.ConfigError` for a public ``host`` without a key in
    ``ENVIRONMENT_API_KEY``, and for a port that is taken.
    """
    if _read_key() is None and not is_loopback(host):
        raise ConfigError(
            f"host {host}: other machines could use your task app without a key. Set the "
            f"environment variable {TASK_APP_KEY_VARIABLE} to a key that trainers must send, "
            "or use 127.0.0.1."
        )
    asyncio.run(_serve(config, host, port, ready or _print_address))


async def _serve(config: TaskAppConfig, host: str, port: int, ready: Callable[[str], None]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        build_app(config), access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSE_S
    )
    try:
        ready(await listen(runner, host, port, f"host {host}, port {port}: the task app"))
        await stop.wait()
    finally:
        await runner.cleanup()


def _print_address(url: str) -> None:
    keyed = f"key from {TASK_APP_KEY_VARIABLE}" if _read_key() else "no key, this machine only"
    sys.stdout.write(f"task app at {url} ({keyed})\n")
    sys.stdout.flush()


def _read_key() -> str | None:
    return os.environ.get(TASK_APP_KEY_VARIABLE, "").strip() or None


class _RequestRefused(Exception):
    """An answer with an error."""

    def __init__(
        self, status: int, kind: ErrorKind, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


class _Handlers:
    """The endpoints."""

    def __init__(self, config: TaskAppConfig, key: str | None) -> None:
        self._config = config
        self._wanted = None if key is None else key.encode()
        self._playing = 0
        self._session: aiohttp.ClientSession | None = None

    async def connections(self, _: web.Application) -> AsyncIterator[None]:
        """Hold the connections to policies while the app runs."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self._config.policy_timeout_s)
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=jar
        ) as session:
            self._session = session
            yield

    def check(self, request: web.Request) -> None:
        """Let the right key in; without one, no web page of this machine's browser."""
        if request.path in _PATHS_WITHOUT_KEY:
            return
        if self._wanted is None:
            here = is_loopback_header(request.headers.get("Host", ""))
            if "Origin" in request.headers or not here:
                raise _RequestRefused(
                    401, ErrorKind.AUTH, "requests from web pages, and by other names, need a key"
                )
            return
        shown = request.headers.getall("X-API-Key", [])
        if len(shown) != 1 or not hmac.compare_digest(
            shown[0].encode("utf-8", "surrogateescape"), self._wanted
        ):
            raise _RequestRefused(401, ErrorKind.AUTH, "no key or a wrong one (X-API-Key: …)")

    async def health(self, _: web.Request) -> web.Response:
        """``/`` and ``/health``: that it lives, for anybody."""
        needs_key = self._wanted is not None
        return json_response(
            200, {"status": "ok", "app_id": self._config.app_id, "needs_key": needs_key}
        )

    async def info(self, _: web.Request) -> web.Response:
        """``/info``: what there is to play, and the rubrics to judge it by."""
        config = self._config
        return json_response(
            200,
            {
                "app_id": config.app_id,
                "name": config.name,
                "description": config.description,
                "environments": [*config.kinds],
                "rubrics": config.rubrics,
                "limits": {
                    "max_turns": config.max_turns,
                    "max_concurrent": config.max_concurrent,
                },
            },
        )

    async def task_info(self, request: web.Request) -> web.Response:
        """``/task_info?seed=1&seed=2``: how episodes begin, a list where several are asked for."""
        query = request.query
        allowed = ("seed", "env_name")
        for name in query:
            if name not in allowed:
                raise _invalid_request(
                    f"{name}: unknown{suggest_name(name, allowed)} (allowed: seed, env_name)"
                )
        seeds = query.getall("seed", [])
        if not 1 <= len(seeds) <= _MAX_SEEDS:
            raise _invalid_request(
                f"seed: must be given 1 to {_MAX_SEEDS} times (found {len(seeds)})"
            )
        if wrong := [seed for seed in seeds if not (seed.isdecimal() and len(seed) <= 15)]:
            raise _invalid_request(f"seed: must be a whole number from 0 (found {wrong[0][:40]!r})")
        name, kind = self._kind(query.get("env_name"))
        begun = []
        for seed in seeds:
            environment = await asyncio.to_thread(_make_environment, kind, {})
            opening = await asyncio.to_thread(environment.reset, int(seed))
            begun.append(
                {
                    "seed": int(seed),
                    "env_name": name,
                    "instructions": environment.instructions,
                    "observation": opening,
                }
            )
        return json_response(200, begun if len(seeds) > 1 else begun[0])

    async def rollout(self, request: web.Request) -> web.Response:
        """``POST /rollout``: one episode, asking the policy for every turn."""
        if self._playing >= self._config.max_concurrent:
            raise _RequestRefused(
                429,
                ErrorKind.RATE_LIMITED,
                f"{self._playing} episodes are under way",
                {"Retry-After": "1"},
            )
        self._playing += 1
        try:
            return await self._played(await _parse_request(request))
        finally:
            self._playing -= 1

    async def _played(self, wanted: RolloutRequest) -> web.Response:
        assert self._session is not None  # noqa: S101  (the app has started)
        name, kind = self._kind(wanted.env.env_name)
        environment = RecordedEnvironment(
            await asyncio.to_thread(_make_environment, kind, wanted.env.config), name
        )
        policy = PolicyEndpoint(self._session, wanted.policy.config)
        most = min(wanted.turns or self._config.max_turns, self._config.max_turns)
        episode = await play(environment, policy, seed=wanted.env.seed, max_turns=most)
        scores = {
            which: None if score is None else score(episode)
            for which, score in (
                ("outcome_score", self._config.outcome_score),
                ("events_score", self._config.events_score),
            )
        }
        return json_response(200, build_rollout_answer(wanted, episode, environment, scores))

    def _kind(self, asked: str | None) -> tuple[str, Callable[..., Environment]]:
        kinds = self._config.kinds
        if asked is None and len(kinds) == 1:
            asked = next(iter(kinds))
        if asked is None or asked not in kinds:
            hint = "" if asked is None else suggest_name(asked[:40], kinds)
            found = "nothing" if asked is None else repr(asked[:40])
            raise _invalid_request(
                f"env.env_name: is unknown{hint} (found {found}; allowed: {', '.join(kinds)})"
            )
        return asked, kinds[asked]


_HANDLERS = web.AppKey("handlers", _Handlers)


@web.middleware
async def _answer_as_json(request: web.Request, handler: Any) -> web.StreamResponse:
    """Every answer as JSON; what goes wrong as ``{"error": {"kind", "message"}}``."""
    try:
        request.app[_HANDLERS].check(request)
        answer: web.StreamResponse = await handler(request)
    except _RequestRefused as refused:
        return _error_response(refused.status, refused.kind, str(refused), refused.headers)
    except GradingFailure as failure:
        status = 500 if failure.kind is ErrorKind.BUG else 502
        return _error_response(status, failure.kind, str(failure))
    except web.HTTPException as problem:
        return _error_response(problem.status, ErrorKind.INVALID_INPUT, problem.reason)
    except Exception as problem:  # noqa: BLE001  (an environment of the user's own raised)
        # Where it was raised, and no more: what an exception says may be what the policy said.
        where = "".join(traceback.format_tb(problem.__traceback__)).rstrip()
        _log.error("the task app's episode failed: %s\n%s", type(problem).__name__, where)
        return _error_response(500, ErrorKind.BUG, f"the episode failed: {type(problem).__name__}")
    return answer


async def _parse_request(request: web.Request) -> RolloutRequest:
    try:
        async with asyncio.timeout(_READ_S):
            body = await request.read()
    except TimeoutError:
        raise _RequestRefused(
            408, ErrorKind.TIMEOUT, f"no whole request in {_READ_S:g} s"
        ) from None
    try:
        return read_rollout_request(body)
    except ConfigError as error:
        raise _invalid_request(str(error)) from None


def _make_environment(make: Callable[..., Environment], config: Mapping[str, Any]) -> Environment:
    """A fresh environment; raises :class:`_RequestRefused` naming the key that it does not take."""
    given, unknown, known = environment_settings(make, config)
    if unknown is not None:
        hint = suggest_name(unknown[:40], known)
        raise _invalid_request(
            f"env.config.{unknown[:40]}: unknown{hint} (allowed: {', '.join(known) or 'nothing'})"
        )
    try:
        return make(**given)
    except (ConfigError, TypeError, ValueError) as error:
        raise _invalid_request(f"env.config: {error}"[:300]) from None


def _invalid_request(message: str) -> _RequestRefused:
    return _RequestRefused(400, ErrorKind.INVALID_INPUT, message)


def _error_response(
    status: int, kind: ErrorKind, message: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    return json_response(status, {"error": {"kind": kind, "message": message}}, headers)
