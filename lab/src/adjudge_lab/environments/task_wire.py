"""The wire format of task apps: the body of ``POST /rollout`` and its answer."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import aiohttp
import msgspec
import yarl
from aiohttp import web
from pydantic import Field, field_validator

from adjudge.config_tables import ConfigTable, validate_model
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.wire.transport import normalize_url
from adjudge.types import Message
from adjudge_lab.environments.tasks import Environment, Episode, OutOfContext, Step

_MAX_REPLY = 4 << 20
_MAX_OPS = 20_000


def json_response(status: int, data: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """``data`` as the JSON body of an answer."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(data),
        content_type="application/json",
        headers=headers,
    )


async def listen(runner: web.AppRunner, host: str, port: int, what: str) -> str:
    """Listen at ``host``; the address. Raises :class:`ConfigError` where the port is taken.

    ``what`` names who listens and where, for that.
    """
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise ConfigError(
            f"{what} cannot listen there ({error.strerror or error}). Use port 0 to take a free "
            "port."
        ) from None
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{runner.addresses[0][1]}"


async def read_body(content: aiohttp.StreamReader, most: int) -> bytes | None:
    """A whole body; ``None`` for one of more than ``most`` bytes."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


class RolloutEnvironment(ConfigTable):
    """``env``: what is played, and from which beginning."""

    env_name: str | None = None
    config: dict[str, Any] = Field(default={})
    seed: int = Field(ge=0, lt=2**53)


class PolicyConfig(ConfigTable):
    """``policy.config``: where the policy is asked, and how; ``max_turns`` bounds its replies."""

    inference_url: str
    max_turns: int | None = Field(default=None, ge=1)
    model: str = "policy"
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)

    @field_validator("inference_url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        try:
            normalize_url(url.partition("?")[0])
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("base_url: ")) from None
        return url

    @property
    def completions_url(self) -> yarl.URL:
        """``inference_url`` up to ``/v1/chat/completions``, whatever of that it says itself."""
        url = yarl.URL(self.inference_url)
        path = url.path.rstrip("/")
        if not path.endswith("/chat/completions"):
            path += "/chat/completions" if path.endswith("/v1") else "/v1/chat/completions"
        return url.with_path(path, keep_query=True)


class RolloutPolicy(ConfigTable):
    """``policy``: who plays."""

    policy_name: str | None = None
    config: PolicyConfig


class RecordOptions(ConfigTable):
    """``record``: what the answer holds beside the steps."""

    return_trace: bool = False
    trace_format: Literal["compact", "full"] = "compact"


class RolloutRequest(ConfigTable):
    """The body of ``POST /rollout``."""

    run_id: str = Field(max_length=200)
    env: RolloutEnvironment
    policy: RolloutPolicy
    ops: list[Literal["agent", "env"]] = Field(default=[], max_length=_MAX_OPS)
    record: RecordOptions = RecordOptions()

    @field_validator("ops")
    @classmethod
    def _in_turns(cls, ops: list[str]) -> list[str]:
        if ops != ["agent", "env"] * (len(ops) // 2):
            raise ValueError('must be "agent", "env" in turns, from the first to the last')
        return ops

    @property
    def turns(self) -> int | None:
        """The most replies, by ``ops`` and ``max_turns``; ``None`` where neither says."""
        bounds = [len(self.ops) // 2, self.policy.config.max_turns]
        return min((bound for bound in bounds if bound), default=None)


def read_rollout_request(body: bytes) -> RolloutRequest:
    """Raises :class:`ConfigError` that names what is wrong."""
    try:
        data = msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body: must be a JSON object ({error})"[:200]) from None
    return validate_model(RolloutRequest, data, "the body")


class PolicyEndpoint:
    """A policy to play with, behind an OpenAI endpoint.

    Raises ``GradingFailure`` where there is no reply, and OutOfContext where the conversation has
    become too long.
    """

    def __init__(self, session: aiohttp.ClientSession, config: PolicyConfig) -> None:
        self._session, self._url = session, config.completions_url
        sampling = config.model_dump(exclude={"inference_url", "max_turns"}, exclude_none=True)
        self._sampling: dict[str, Any] = sampling

    async def __call__(self, messages: Sequence[Message]) -> str:
        """The next reply."""
        status, body = await self._ask({**self._sampling, "messages": messages})
        try:
            data = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            data = None
        if status == 200:
            return _reply_text(data)
        if _get_nested(data, "error", "code") == "context_length_exceeded":
            raise OutOfContext
        raise GradingFailure(ErrorKind.SERVER_ERROR, f"the policy answered HTTP {status}")

    async def _ask(self, body: dict[str, Any]) -> tuple[int, bytes]:
        try:
            async with self._session.post(
                self._url,
                data=io.BytesIO(msgspec.json.encode(body)),  # bytes of a size make aiohttp warn
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                content = await read_body(response.content, _MAX_REPLY)
                if content is None:
                    raise GradingFailure(ErrorKind.SERVER_ERROR, "the policy's reply is too long")
                return response.status, content
        except TimeoutError:
            raise GradingFailure(ErrorKind.TIMEOUT, "the policy did not reply in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = type(error).__name__
            raise GradingFailure(
                ErrorKind.CONNECTION, f"the policy could not be asked ({why})"
            ) from None


def _reply_text(data: Any) -> str:
    choices = _get_nested(data, "choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    content = _get_nested(first, "message", "content")
    if not isinstance(content, str):
        raise GradingFailure(ErrorKind.UNPARSABLE, "the policy's reply has no text")
    return content


def _get_nested(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


class RecordedEnvironment:
    """An environment that keeps what happened: what was seen before each reply, and the steps."""

    def __init__(self, environment: Environment, name: str) -> None:
        self._environment = environment
        self.name, self.instructions = name, environment.instructions
        self.seen: list[str] = []
        self.steps: list[Step] = []

    def reset(self, seed: int) -> str:
        """Begin."""
        opening = self._environment.reset(seed)
        self.seen.append(opening)
        return opening

    def step(self, reply: str) -> Step:
        """Take a turn; raises ``GradingFailure(bug)`` for an info that cannot be sent."""
        step = self._environment.step(reply)
        try:
            msgspec.json.encode(step.info)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise GradingFailure(
                ErrorKind.BUG, f"the environment's info is no plain data: {error}"[:300]
            ) from None
        self.steps.append(step)
        self.seen.append(step.observation)
        return step


def build_rollout_answer(
    wanted: RolloutRequest,
    episode: Episode,
    played: RecordedEnvironment,
    scores: Mapping[str, float | None],
) -> dict[str, Any]:
    """The answer to ``wanted``; ``obs`` of a step is what the policy had seen before it."""
    steps = [
        {
            "obs": {"text": seen},
            "tool_calls": [],
            "reward": reward,
            "done": step.done,
            "info": step.info,
        }
        for seen, step, reward in zip(played.seen, played.steps, episode.rewards, strict=False)
    ]
    final = {"observation": {"text": played.seen[-1]}, "done": episode.done}
    total = math.fsum(episode.rewards)
    trace = _build_trace(wanted, episode, steps, final) if wanted.record.return_trace else None
    return {
        "run_id": wanted.run_id,
        "trajectories": [{"steps": steps, "final": final, "length": len(steps)}],
        "metrics": {
            "episode_returns": [total],
            "mean_return": total,
            "num_steps": len(steps),
            **scores,
        },
        "trace": trace,
    }


def _build_trace(
    wanted: RolloutRequest, episode: Episode, steps: list[dict[str, Any]], final: dict[str, Any]
) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "markov_blanket_message_history": episode.messages,
        "metadata": {
            "run_id": wanted.run_id,
            "env_name": episode.env_name,
            "seed": episode.seed,
            "policy_name": wanted.policy.policy_name,
        },
    }
    if wanted.record.trace_format == "full":
        events = [{"observation": one["obs"], **one, "truncated": False} for one in steps]
        trace["event_history"] = [
            *({key: value for key, value in one.items() if key != "obs"} for one in events),
            final,
        ]
    return trace
