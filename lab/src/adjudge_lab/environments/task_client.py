"""A task behind HTTP: a task app plays the episodes and asks the policy for every turn.

Each request to the app returns an answer, or the reason why the answer is missing.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import secrets
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import yarl
from aiohttp.helpers import get_env_proxy_for_url

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.hosts import is_loopback
from adjudge.judges.wire.transport import normalize_url
from adjudge.rubrics import Rubric, RubricBundle, parse_rubric
from adjudge_lab.environments.gateway import PolicyGateway, PolicySession
from adjudge_lab.environments.task_wire import read_body
from adjudge_lab.environments.tasks import LARGEST_REWARD, Episode, Policy, count_achievements

_CONNECT_S = 10.0
_MAX_ANSWER = 32 << 20
_MAX_PAUSE_S = 60.0
_MAX_ERROR_TEXT = 200


def check_app_url(url: str) -> str:
    """``url`` without its trailing slash; raises :class:`ConfigError` for one that cannot be."""
    try:
        return normalize_url(url)
    except ConfigError as error:
        raise ConfigError(str(error).replace("base_url", "task_url")) from None


async def request_task_app(
    method: str, base: str, path: str, key_env: str, body: bytes | None = None
) -> bytes:
    """A successful answer's body; the key, if there is one, is in the variable ``key_env``.

    On a connection of its own: an episode takes long beside that, and nothing is left to close.
    Raises ``GradingFailure``: ``connection``, or by the status, which ``metadata`` has, with
    ``retry_after_s`` for 429 and 503; and :class:`~adjudge.errors.JudgeAuthError`.
    """
    url = yarl.URL(base + path)
    key = os.environ.get(key_env, "").strip()
    headers = {"Content-Type": "application/json", **({"X-API-Key": key} if key else {})}
    data = None if body is None else io.BytesIO(body)  # bytes of a size make aiohttp warn
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                method,
                url,
                data=data,
                headers=headers,
                allow_redirects=False,
                proxy=_proxy_for(url),
            ) as response,
        ):
            content = await read_body(response.content, _MAX_ANSWER)
            if content is None:
                raise GradingFailure(
                    ErrorKind.SERVER_ERROR,
                    f"task app {base}: the answer is longer than {_MAX_ANSWER >> 20} MiB",
                )
            if response.status != 200:
                raise _response_error(base, response, content, key, key_env)
            return content
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise GradingFailure(
            ErrorKind.CONNECTION, f"task app {base}: no answer ({type(error).__name__})"
        ) from None


def _proxy_for(url: yarl.URL) -> yarl.URL | None:
    """By ``HTTP_PROXY`` and its kin, never for this machine; ``.netrc`` is not read."""
    if is_loopback(url.host or ""):
        return None
    try:
        return get_env_proxy_for_url(url)[0]
    except LookupError:
        return None


def _response_error(
    base: str, response: aiohttp.ClientResponse, content: bytes, key: str, key_env: str
) -> Exception:
    status = response.status
    if status in (401, 403):
        sent = "refused the key in" if key else "wants a key; set"
        return JudgeAuthError(
            f"task app {base}: {sent} the environment variable {key_env} (HTTP {status})"
        )
    said = _error_text(content, key)
    metadata: dict[str, Any] = {"status": status}
    if status in (429, 503):
        metadata["retry_after_s"] = _retry_after(response.headers.get("Retry-After", ""))
    return GradingFailure(
        _error_kind(status), f"task app {base}: HTTP {status}{said and f': {said}'}", metadata
    )


def _error_kind(status: int) -> ErrorKind:
    if status == 429:
        return ErrorKind.RATE_LIMITED
    if status in (408, 504):
        return ErrorKind.TIMEOUT
    if status >= 500:
        return ErrorKind.SERVER_ERROR
    if status < 400 or status in (404, 405):  # a redirect, or nothing there: no task app
        return ErrorKind.UNSUPPORTED
    return ErrorKind.INVALID_INPUT


def _error_text(content: bytes, key: str) -> str:
    """An app's own words about an error, without the key, cut and made printable."""
    try:
        data = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return ""
    for part in ("error", "message", "detail"):
        data = data.get(part, data) if isinstance(data, dict) else data
    text = data if isinstance(data, str) else ""
    text = text.replace(key, "***") if key else text
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_ERROR_TEXT])


def _retry_after(value: str) -> float:
    """Whole seconds; a date, or anything else, counts as one second."""
    return min(float(value), _MAX_PAUSE_S) if value.isdecimal() and len(value) < 9 else 1.0


_INFO_S = 30.0
_MAX_INFO = 1 << 20
_MAX_OBSERVATION = 1 << 20
_ATTEMPTS = 3
_PAUSE_S = 0.25


class _Step(msgspec.Struct):
    reward: float | None = None
    done: bool = False
    info: dict[str, Any] | None = None


class _Trajectory(msgspec.Struct):
    steps: list[_Step]
    final: Any = None
    length: int | None = None


class _Metrics(msgspec.Struct):
    outcome_score: float | None = None
    events_score: float | None = None


class _RolloutAnswer(msgspec.Struct):
    """Of an app's answer what is read; the rest may be as it likes."""

    trajectories: list[_Trajectory]
    metrics: _Metrics | None = None


class TaskAppTask:
    """Episodes that a task app at ``url`` plays (``POST /rollout``), asking the policy over HTTP.

    The key, where the app wants one, is in the environment variable ``key_env`` and sent as
    ``X-API-Key``. Without ``env_name`` an app that has one environment plays that; ``env_config``
    goes to it. An episode has at most ``max_turns`` replies and ``timeout_s`` seconds, waiting for
    a busy app included. An app on another machine
    needs a ``gateway`` that it can reach, and a key.

    Raises :class:`~adjudge.errors.ConfigError`.
    """

    size: int | None = None

    def __init__(
        self,
        url: str,
        *,
        key_env: str = "ENVIRONMENT_API_KEY",
        env_name: str | None = None,
        env_config: Mapping[str, Any] | None = None,
        policy_name: str = "adjudge",
        max_turns: int,
        timeout_s: float = 600.0,
        gateway: PolicyGateway | None = None,
    ) -> None:
        self._url = check_app_url(url)
        self._key_env, self._env_name = key_env, env_name
        self.name = env_name or "task app"
        self._env_config, self._policy_name = dict(env_config or {}), policy_name
        self._max_turns, self._timeout_s = max_turns, timeout_s
        self._gateway = gateway or PolicyGateway()
        host = yarl.URL(self._url).host or ""
        if self._gateway.is_local and not is_loopback(host):
            raise ConfigError(
                f"task_url {self._url}: the app runs on another machine and cannot reach a policy "
                "on 127.0.0.1. Give a PolicyGateway with host and advertise, or run the app here."
            )
        if not self._gateway.is_local and not os.environ.get(key_env, "").strip():
            raise ConfigError(
                f"task_url {self._url}: the app needs a key, because other machines can reach "
                f"the policy. Set the environment variable {key_env} on both machines."
            )

    async def play(self, seed: int, policy: Policy) -> Episode:
        """One episode from ``seed``.

        ``rewards`` are the app's, one for each reply, ``columns`` its ``outcome_score`` and
        ``events_score`` where it gives them. What ``policy`` raises goes through. Raises
        ``GradingFailure``: ``connection``, ``timeout``, ``rate_limited``, ``server_error`` (also
        for an unusable answer), ``invalid_input`` where the app refuses the request or the
        policy cannot read its first prompt, and ``unsupported`` where it played something that
        cannot be trained on. Asked again only while the policy has not been. Raises
        :class:`~adjudge.errors.JudgeAuthError` where the app refuses the key.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        attempt = 0
        while True:
            attempt += 1
            async with self._gateway.open_session(policy) as seat:
                try:
                    answer = await self._rollout(seed, seat, deadline)
                    return self._episode(seed, seat, answer)
                except GradingFailure as failure:
                    if seat.was_asked:
                        raise
                    pause = _retry_pause(failure, attempt)
                    if pause is None or asyncio.get_running_loop().time() + pause >= deadline:
                        raise
            await asyncio.sleep(pause)

    async def _rollout(self, seed: int, seat: PolicySession, deadline: float) -> bytes:
        """The app's answer, unless the policy's part fails first."""
        loop = asyncio.get_running_loop()
        body = msgspec.json.encode(self._request(seed, seat))
        ask = loop.create_task(request_task_app("POST", self._url, "/rollout", self._key_env, body))
        broken = loop.create_task(seat.failed.wait())
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait({ask, broken}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise GradingFailure(
                ErrorKind.TIMEOUT,
                f"task app {self._url}: the episode was not over after {self._timeout_s:g} s "
                f"({seat.replies} turns)",
            ) from None
        finally:
            broken.cancel()
            ask.cancel()
            await asyncio.wait({ask, broken})
            failed = None if ask.cancelled() else ask.exception()
        if seat.failure is not None:
            raise seat.failure
        if failed is not None:
            raise failed
        return ask.result()

    def _request(self, seed: int, seat: PolicySession) -> dict[str, Any]:
        return {
            "run_id": secrets.token_hex(8),
            "env": {"env_name": self._env_name, "config": self._env_config, "seed": seed},
            "policy": {
                "policy_name": self._policy_name,
                "config": {"inference_url": seat.url, "max_turns": self._max_turns},
            },
            "ops": ["agent", "env"] * self._max_turns,
            "record": {"return_trace": False, "trace_format": "compact"},
        }

    def _episode(self, seed: int, seat: PolicySession, answer: bytes) -> Episode:
        played = self._read(answer)
        (one,) = played.trajectories
        steps = one.steps
        if not seat.was_asked:
            raise self._failure(ErrorKind.UNSUPPORTED, "ended the episode without asking anything")
        if len(steps) != seat.replies:
            raise self._failure(
                ErrorKind.UNSUPPORTED,
                f"reports {len(steps)} steps for {seat.replies} replies of the policy; there must "
                "be one for each, so that each turn has its reward",
            )
        messages = [*seat.messages]
        if messages[-1]["role"] == "assistant" and (seen := _final_observation(one.final)):
            messages.append({"role": "user", "content": seen})
        rewards = [step.reward for step in steps if step.reward is not None]
        scores = msgspec.structs.asdict(played.metrics or _Metrics())
        return Episode(
            self.name,
            seed,
            messages,
            rewards,
            done=bool(steps) and steps[-1].done,
            info=(steps[-1].info or {}) if steps else {},
            achievements=_count_new_achievements([step.info or {} for step in steps])
            if rewards
            else [],
            columns={name: score for name, score in scores.items() if score is not None},
        )

    def _read(self, answer: bytes) -> _RolloutAnswer:
        """The answer, checked as what a stranger sent."""
        try:
            played = msgspec.json.decode(answer, type=_RolloutAnswer)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise self._failure(ErrorKind.SERVER_ERROR, f"answered no rollout: {error}") from None
        if len(played.trajectories) != 1:
            raise self._failure(
                ErrorKind.SERVER_ERROR, f"answered {len(played.trajectories)} trajectories, not 1"
            )
        one = played.trajectories[0]
        paid = [step.reward for step in one.steps]
        scores = played.metrics or _Metrics()
        given = (scores.outcome_score, scores.events_score)
        last = one.steps[-1].info if one.steps else None
        for wrong, what in (
            (one.length not in (None, len(one.steps)), "a length that is not that of its steps"),
            (None in paid and any(reward is not None for reward in paid), "only some rewards"),
            (not all(map(_is_bounded, paid)), f"a reward beyond {LARGEST_REWARD:g}"),
            (not all(map(_is_bounded, given)), f"a score beyond {LARGEST_REWARD:g}"),
            (len(_final_observation(one.final)) > _MAX_OBSERVATION, "too long a final observation"),
            (len(msgspec.json.encode(last)) > _MAX_INFO, "too large an info"),
        ):
            if wrong:
                raise self._failure(ErrorKind.SERVER_ERROR, f"answered {what}")
        return played

    def _failure(self, kind: ErrorKind, message: str) -> GradingFailure:
        return GradingFailure(kind, f"task app {self._url}: {message}"[:500])


async def fetch_rubrics(url: str, key_env: str = "ENVIRONMENT_API_KEY") -> RubricBundle:
    """The rubrics that a task app has (``GET /info``).

    Raises :class:`~adjudge.errors.ConfigError` where it has none or they are wrong,
    ``GradingFailure`` where it cannot be asked, and :class:`~adjudge.errors.JudgeAuthError` where
    it refuses the key.
    """
    url = check_app_url(url)
    where = f"{url}/info"
    try:
        async with asyncio.timeout(_INFO_S):
            answer = await request_task_app("GET", url, "/info", key_env)
    except TimeoutError:
        raise GradingFailure(ErrorKind.TIMEOUT, f"{where}: no answer in {_INFO_S:g} s") from None
    try:
        info = msgspec.json.decode(answer, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: the answer is not a JSON object") from None
    if info.get("rubrics") is None:
        raise ConfigError(f"{where}: the task app has no rubrics. Put them in rubric_dir.")
    found = parse_rubric(info["rubrics"], where=f"{where}: rubrics")
    if isinstance(found, RubricBundle):
        return found
    if isinstance(found, Rubric):
        return RubricBundle(outcome=found)
    return RubricBundle(global_rubric=found)


def _retry_pause(failure: GradingFailure, attempt: int) -> float | None:
    """How long to wait before asking again; ``None``: not at all."""
    jitter = random.uniform(1.0, 1.5)  # noqa: S311  (no secret)
    wanted = float(failure.metadata.get("retry_after_s", 0.0))
    if failure.kind is ErrorKind.RATE_LIMITED:
        return max(0.05, wanted) * jitter
    passing = failure.kind is ErrorKind.CONNECTION or failure.metadata.get("status", 0) >= 500
    if not passing or attempt >= _ATTEMPTS:
        return None
    return max(_PAUSE_S * float(2**attempt), wanted) * jitter


def _is_bounded(number: float | None) -> bool:
    """Whether it can be added up; JSON has no NaN."""
    return number is None or abs(number) <= LARGEST_REWARD


def _final_observation(final: Any) -> str:
    """What the app said after the last reply; nothing where it says that in a way of its own."""
    seen = final.get("observation") if isinstance(final, dict) else None
    text = seen.get("text") if isinstance(seen, dict) else seen
    return text if isinstance(text, str) else ""


def _count_new_achievements(infos: list[dict[str, Any]]) -> list[int]:
    """How many achievements each turn added."""
    found, unlocked = [], 0
    for info in infos:
        count = count_achievements(info)
        found.append(max(0, count - unlocked))
        unlocked = max(unlocked, count)
    return found
