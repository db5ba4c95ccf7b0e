"""A judge service as a grader, which is what a reward spec makes of an address.

What the service says about itself is asked before anything is judged.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import msgspec

from adjudge.client.batcher import ServiceClient
from adjudge.client.exchange import is_json, read_key
from adjudge.client.settings import ClientSettings, PatientSettings
from adjudge.engine.loop import run_on_engine
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader
from adjudge.hosts import is_loopback
from adjudge.judges.wire.transport import normalize_url
from adjudge.rewards.spec import RewardSpec
from adjudge.types import GraderScore, Provenance, finite_number
from adjudge.wire import JudgeRequest, JudgeResponse

_MAX_BYTES = 1 << 20
_PAUSE_S = 0.5
_TIMEOUT_S = 5.0


class ServiceInfo(msgspec.Struct, frozen=True):
    """``GET /health`` of a judge service, as far as clients need it.

    ``compares_groups`` says what in its spec needs a whole group, ``None`` when nothing does;
    ``graders`` are the names in its ``detailed_scores``.
    """

    model_loaded: bool = True
    model_version: str | None = None
    compares_groups: str | None = None
    graders: list[str] = []
    group_timeout_s: float = 300.0
    deadline_s: float = 60.0


_info_decoder = msgspec.json.Decoder(ServiceInfo)


def fetch_service_info(url: str, *, patience_s: float = 0.0) -> ServiceInfo | None:
    """What the service at ``url`` says; ``None`` where nothing answers as a judge service does.

    A server without ``/health`` says nothing, and may judge all the same.

    One that still loads does not know everything yet, and counts as no answer. Asked again for
    ``patience_s``, since a service may just be starting. Blocks; needs no key.
    Raises :class:`~adjudge.errors.ConfigError` for an address that cannot be used.
    """
    url = normalize_url(url)
    host = urllib.parse.urlsplit(url).hostname or ""
    # None: those of the environment.
    proxies = urllib.request.ProxyHandler({} if is_loopback(host) else None)
    opener = urllib.request.build_opener(proxies)
    until = time.monotonic() + patience_s
    while True:
        try:
            with opener.open(f"{url}/health", timeout=_TIMEOUT_S) as response:
                found = _info_decoder.decode(response.read(_MAX_BYTES))
            if found.model_loaded:
                return found
        except (OSError, http.client.HTTPException, ValueError) as problem:
            # No HTTP, no such JSON: nothing answers as a judge service does.
            code = getattr(problem, "code", 200 if isinstance(problem, ValueError) else 500)
            if code < 500 or code == 501:
                return ServiceInfo()  # a server that says nothing about itself
        if time.monotonic() >= until:
            return None
        time.sleep(_PAUSE_S)


def refuse_groups(url: str, info: ServiceInfo | None) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` if its spec needs groups, for who has none.

    A service that does not answer now, or says nothing of it, is taken for one that needs none.
    """
    if info is not None and info.compares_groups is not None:
        raise ConfigError(
            f"{url}: the service's spec compares groups ({info.compares_groups}), but each "
            "sample is sent here by itself. Use the spec's file in place of the address (TRL, verl "
            "0.6.1), or the V1 trainer of verl 0.9.1, where JudgeRewardLoopManager sends groups."
        )


_log = logging.getLogger("adjudge")


def make_service_spec(url: str, *, pinned: bool = False) -> RewardSpec:
    """The spec of one :class:`ServedGrader` at ``url``, its scores taken as they are.

    ``pinned``: the service must be there, and only the judge that it has now counts. Raises
    :class:`~adjudge.errors.ConfigError` for an address that cannot be used, and for a
    service with a spec that compares groups.
    """
    settings = ClientSettings.from_config({"judge_url": url})
    info = fetch_service_info(settings.judge_url)
    refuse_groups(settings.judge_url, info)
    kind = "adjudge.client.grader:ServedGrader"
    grader = {"name": "served", "type": kind, "url": settings.judge_url}
    if pinned and info is None:
        raise ConfigError(f"{settings.judge_url}/health: no judge service answers. Start it first.")
    if pinned and info is not None:
        grader["model_version"] = info.model_version or ""
    return RewardSpec.from_dict(
        {"graders": [grader], "reward": {"normalise": False}, "max_concurrency": 512},
        where=settings.judge_url,
    )


class ServedGrader(BaseGrader):
    """Asks a judge service for the sample's score; its range is the service's own.

    ``url``: the service's address. ``timeout`` (120 s): waiting, retries and outages of the service
    included; what may pass is asked again until then. ``max_concurrent_requests`` (32) and
    ``api_key_env`` as in :class:`~adjudge.client.settings.ClientSettings`. Nothing is cached: equal
    completions are asked about once each. ``model_version``: the one version of the service whose
    scores count (any).

    Fields: ``prompt`` and ``response``, or ``messages``; ``reference`` as the answer,
    ``answer_type``, ``images``; all others go along in ``metadata`` by name, ``env_reward`` too
    (:func:`fields_to_request`). Raises ``GradingFailure`` with the kind that the
    service gave, or that of what happened on the way, and ``ConfigError`` when the service's spec
    compares groups. Metadata: ``detailed_scores``,
    ``confidence`` and ``model_version`` where the service says them.
    """

    def __init__(
        self,
        url: str,
        timeout: float = 120.0,
        max_concurrent_requests: int = 32,
        api_key_env: str | None = None,
        model_version: str = "",
        name: str = "",
    ) -> None:
        super().__init__(name, description="the score that a judge service gives")
        settings = PatientSettings.from_config(
            {
                "judge_url": url,
                "timeout": timeout,
                "batch_timeout": min(0.01, timeout / 2),
                "max_concurrent_requests": max_concurrent_requests,
                "api_key_env": api_key_env,
            }
        )
        self._version = model_version
        self._client = ServiceClient(settings)

    def check_machine(self) -> None:
        """The key is in the environment, where its variable is named."""
        try:
            read_key(self._client.settings.api_key_env)
        except GradingFailure as failure:
            raise ConfigError(str(failure)) from None

    async def aevaluate(self, **fields: Any) -> GraderScore:
        """Ask about one sample."""
        [result] = await run_on_engine(self._client.ask([fields_to_request(fields)]))
        if (failure := result.failure) is not None:
            if failure.kind is ErrorKind.UNSUPPORTED:
                url = self._client.settings.judge_url
                refuse_groups(url, await asyncio.to_thread(fetch_service_info, url))
            raise failure
        response = cast("JudgeResponse", result.response)
        version = response.model_version
        if self._version and version not in (None, self._version):
            problem = f"the service has another judge now ({version}; the run's {self._version})"
            raise GradingFailure(ErrorKind.UNSUPPORTED, problem)
        metadata = {
            "model_version": version,
            "detailed_scores": response.detailed_scores,
            "confidence": response.confidence,
        }
        return GraderScore(
            self.name,
            cast("float", response.score),
            response.explanation or "",
            {name: value for name, value in metadata.items() if value is not None},
            self.score_range,
            self.role,
            Provenance(
                source="live",
                model=version,
                latency_s=result.latency,
            ),
        )


def fields_to_request(fields: Mapping[str, Any]) -> JudgeRequest:
    """A sample's fields as a request: all that graders see in process, each value as it is.

    NaN becomes ``null``, and so does an infinite number in a column: JSON has neither. A column
    that JSON cannot hold (an image object, bytes, an array) is left out, and a warning names it
    once; a grader that needs it answers ``invalid_input``. Raises ``GradingFailure(invalid_input)``
    for no sample, and for a reference or messages that JSON cannot hold.
    """
    names = ("prompt", "response", "messages", "reference", "answer_type", "images")
    own = {name: fields.get(name) for name in names}
    if own["messages"] is None and (own["prompt"] is None or own["response"] is None):
        lacks = "prompt" if own["prompt"] is None else "response"
        raise GradingFailure(ErrorKind.INVALID_INPUT, f"the sample has no {lacks} and no messages")
    for name in ("reference", "messages"):
        if not is_json(own[name]):
            problem = f"{name}: JSON cannot hold it ({type(own[name]).__name__})"
            raise GradingFailure(ErrorKind.INVALID_INPUT, problem)
    own["reference"] = _as_sent(own["reference"])
    if not isinstance(own["answer_type"], str):
        own["answer_type"] = None
    images = own["images"]
    if not isinstance(images, list) or not all(isinstance(one, str) for one in images):
        own["images"] = None
    columns = {name: value for name, value in fields.items() if own.get(name) is None}
    if "env_reward" in columns and not is_json(columns["env_reward"]):
        columns["env_reward"] = finite_number(columns["env_reward"])  # of any library
    for name in [name for name, value in columns.items() if not is_json(value)]:
        _warn_left_out(name, type(columns.pop(name)).__name__)
    return JudgeRequest(
        own["prompt"],
        "" if own["response"] is None else own["response"],
        own["reference"],
        own["answer_type"],
        metadata=columns or None,
        messages=own["messages"],
        images=own["images"],
    )


def _as_sent(value: Any) -> Any:
    """A reference as JSON has it: tuples are lists, NaN is ``null``."""
    if isinstance(value, list | tuple):
        return [_as_sent(one) for one in value]
    if isinstance(value, dict):
        return {name: _as_sent(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


@cache
def _warn_left_out(column: str, kind: str) -> None:
    """Name a column that is not sent, once."""
    _log.warning(
        "column %r is not sent to the judge service: JSON cannot hold its values (%s). A grader "
        "that needs the column gives no score. This is logged once.", column, kind)  # fmt: skip
