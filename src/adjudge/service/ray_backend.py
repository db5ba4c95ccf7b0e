"""``adjudge serve --ray``: the same service, its judging done by replicas on a Ray cluster.

HTTP stays with this process: the same application, so the same formats, keys, limits and status
codes, and the same drain. Only the backend is another one: it hands each request to a replica,
chosen so that the samples of a group, and those of a prompt, meet in the same one. A replica is a
backend with its own queue and its own groups.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from adjudge.engine.loop import run_blocking, run_on_engine
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.installation import install_command
from adjudge.service import DRAIN_S, ServiceSettings
from adjudge.service.backend import Backend, Damping, GroupRendezvous, failure_response
from adjudge.service.queue import BackendQueue
from adjudge.service.rendezvous import make_rendezvous
from adjudge.service.user_backend import load_backend
from adjudge.text import encode_exactly
from adjudge.wire import GroupRequest, JudgeRequest, JudgeResponse

try:
    from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
except ImportError:  # said in words by what connects
    RequestRouter = object


class JudgeReplica:
    """What Ray Serve runs so many times. All judging happens on the process's engine loop."""

    def __init__(
        self,
        cwd: str,
        target: str,
        settings: ServiceSettings,
        arguments: Mapping[str, str] | None,
        damping: Damping | None,
    ) -> None:
        try:
            os.chdir(cwd)  # relative paths mean what they mean where the command was given
        except OSError as error:
            raise ConfigError(
                f"{cwd}: the machine of a replica does not have this folder. Use a folder that all "
                "machines share."
            ) from error
        self._settings = settings
        self._backend = load_backend(target, arguments=arguments, damping=damping)
        run_blocking(self._start())

    async def _start(self) -> None:
        await self._backend.start()
        self._queue = BackendQueue(self._backend, self._settings, lambda _: None)
        self._rendezvous = make_rendezvous(self._backend, self._settings)

    async def version(self, key: str) -> str:  # noqa: ARG002  (for the router)
        """The backend's, once it has started; the same of all replicas."""
        return self._backend.version

    async def judge(self, key: str, request: JudgeRequest) -> JudgeResponse | GradingFailure:  # noqa: ARG002
        """Judge one request; a sample of a group is answered when the group is settled.

        What is raised goes to the client as this service would have refused it.
        """
        try:
            return await run_on_engine(self._judge(request))
        except GradingFailure as failure:
            return failure

    async def _judge(self, request: JudgeRequest) -> JudgeResponse:
        if isinstance(request, GroupRequest):
            return await self._rendezvous.join(request)
        [response] = await self._queue.score((request,))
        return response


_log = logging.getLogger("adjudge")
_MAX_ATTEMPTS = 2
"""A replica that dies takes its requests with it; they are asked once more, elsewhere."""
_UNBOUNDED = 1_000_000
"""Ongoing requests of a replica: it bounds them itself, and waiting samples must not fill it up."""
_OBJECT_STORE = 256 << 20
_POLL_S = 0.25
_LOG_EVERY_S = 20.0


def compute_route_key(request: JudgeRequest) -> str:
    """What requests have in common that belong in one replica: their group, else their prompt."""
    if isinstance(request, GroupRequest):
        run = (request.metadata or {}).get("run_id")
        return f"group {run} {request.group_id}"[:600]
    return blake2b(encode_exactly(request.prompt or ""), digest_size=8).hexdigest()


class RayBackend(Backend, GroupRendezvous):
    """A backend whose judging replicas do.

    Is its own rendezvous: the samples of a group meet in the replica that their key leads to, and
    a group whose replica dies meets again in another.

    ``local`` is the backend of ``target`` as this process knows it, which is never started;
    ``arguments`` and ``damping`` are :func:`~adjudge.service.user_backend.load_backend`'s. Ray
    Serve keeps from ``least`` to ``most`` replicas, so that each has about 32 requests. ``gpus``:
    of each. ``address`` as for :class:`~adjudge.runs.ray_engine.RayEngine`.
    """

    one_by_one = True

    def __init__(
        self,
        local: Backend,
        target: str,
        settings: ServiceSettings,
        *,
        least: int = 1,
        most: int = 1,
        gpus: float = 0.0,
        address: str | None = None,
        arguments: Mapping[str, str] | None = None,
        damping: Damping | None = None,
    ) -> None:
        self.name, self.version = f"{local.name} on Ray Serve", local.version
        self.compares_groups, self.grader_names = local.compares_groups, local.grader_names
        self.rendezvous = self
        self._least, self._most, self._gpus, self._address = least, most, gpus, address
        self._app = f"adjudge-{os.getpid()}"
        self._replica_arguments = (str(Path.cwd()), target, settings, arguments, damping)
        self._connected = False
        self._handle: Any = None

    async def start(self) -> None:
        """Start the replicas, and learn from one the version of what they judge with.

        Waits for free CPUs (GPUs) as long as it takes, and says so. Raises :class:`ConfigError`
        when there is no cluster, or a replica cannot start.
        """
        self._handle = await asyncio.to_thread(self._deploy)
        await self._wait_until_running()
        self.version = await self._handle.version.remote("")

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """One response per request; raises what a replica refused."""
        # One at a time (``one_by_one``), and many calls of this at once.
        return [await self.join(request) for request in requests]

    async def join(self, request: JudgeRequest) -> JudgeResponse:
        """A replica's answer; where it died, another's."""
        from ray.exceptions import RayError  # noqa: PLC0415  (heavy)
        from ray.serve.exceptions import RayServeException  # noqa: PLC0415

        said = ""
        for _ in range(_MAX_ATTEMPTS):
            answer = self._handle.judge.remote(compute_route_key(request), request)
            try:
                reply: JudgeResponse | GradingFailure = await answer
            except asyncio.CancelledError:
                answer.cancel()
                raise
            except (RayError, RayServeException) as error:
                said = type(error).__name__
                _log.warning("a replica gave no answer (%s)", said)
                continue
            if isinstance(reply, GradingFailure):
                raise reply
            return reply
        failure = GradingFailure(ErrorKind.CONNECTION, f"replicas died while judging ({said})")
        return failure_response(failure, request.request_id)

    async def aclose(self) -> None:
        """Stop the replicas, and leave the cluster."""
        if self._connected:
            self._connected = False
            await asyncio.to_thread(self._shut_down)

    def _deploy(self) -> Any:
        serve = _connect_cluster(self._address)
        from ray.serve.config import ProxyLocation, RequestRouterConfig  # noqa: PLC0415

        self._connected = True
        serve.start(proxy_location=ProxyLocation.Disabled, logging_config={"log_level": "WARNING"})
        deployment = serve.deployment(JudgeReplica, name="judge").options(
            autoscaling_config={
                "min_replicas": self._least,
                "max_replicas": self._most,
                "target_ongoing_requests": 32,
            },
            max_ongoing_requests=_UNBOUNDED,
            ray_actor_options={"num_cpus": 1, "num_gpus": self._gpus},
            request_router_config=RequestRouterConfig(request_router_class=AffinityRouter),
            graceful_shutdown_timeout_s=DRAIN_S,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=2.0,
        )
        target = serve.RunTarget(
            deployment.bind(*self._replica_arguments), name=self._app, route_prefix=None
        )
        [handle] = serve.run_many([target], wait_for_applications_running=False)
        return handle

    async def _wait_until_running(self) -> None:
        """Return when the replicas are there."""
        from ray import serve  # noqa: PLC0415

        waited = 0.0
        while True:
            status = (await asyncio.to_thread(serve.status)).applications.get(self._app)
            state = None if status is None else status.status.value
            if state == "RUNNING":
                return
            if state in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise ConfigError(f"--ray: a replica does not start: {_failure_reason(status)}")
            await asyncio.sleep(_POLL_S)
            waited += _POLL_S
            if waited % _LOG_EVERY_S < _POLL_S:
                _log.warning(
                    "replicas have not started for %d s. Check that CPUs and GPUs are free.", waited
                )

    def _shut_down(self) -> None:
        import ray  # noqa: PLC0415
        from ray import serve  # noqa: PLC0415

        serve.delete(self._app)
        if not serve.status().applications:
            serve.shutdown()
        ray.shutdown()


def _failure_reason(status: Any) -> str:
    """The last lines of what Ray Serve says of an application that failed."""
    said = [status.message, *(one.message for one in status.deployments.values())]
    lines = [line.strip() for one in said for line in str(one).splitlines() if line.strip()]
    found = [line for line in lines if "Error" in line] or lines
    return " ".join(found[-1:])[:500]


def _connect_cluster(address: str | None) -> Any:
    """Ray Serve, on the cluster at this address."""
    try:
        import ray  # noqa: PLC0415  (an extra, heavy)
        from ray import serve  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"--ray: Ray Serve cannot be imported ({error}). Run: {install_command('ray')}"
        ) from error
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"address": address, "log_to_driver": False}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    try:
        ray.init(logging_level=logging.WARNING, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--ray-address {address}: cannot connect to Ray: {error}") from error
    return serve


_MAX_OWNERS = 65_536


class AffinityRouter(RequestRouter):  # type: ignore[misc]  # Ray is not installed where types are checked
    """Which replica gets a request: the one that got those with the same key, its first argument.

    By highest random weight (Thaler and Ravishankar 1998): every process that routes chooses alike
    without talking to others, and a replica that comes or goes moves only its own share of the
    keys. Keys of groups stay where they were begun, as long as that replica is there.
    """

    def initialize_state(self, **_: Any) -> None:
        """Nothing is remembered yet."""
        self._owners: OrderedDict[str, Any] = OrderedDict()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The key's own replica, and no other."""
        if not candidate_replicas or pending_request is None or not pending_request.args:
            return [candidate_replicas] if candidate_replicas else []
        return [[self._owner(str(pending_request.args[0]), candidate_replicas)]]

    def _owner(self, key: str, replicas: list[RunningReplica]) -> RunningReplica:
        kept = [one for one in replicas if one.replica_id == self._owners.get(key)]
        owner = kept[0] if kept else max(replicas, key=lambda one: _route_weight(key, one))
        if key.startswith("group "):
            self._owners[key] = owner.replica_id
            self._owners.move_to_end(key)
            if len(self._owners) > _MAX_OWNERS:
                self._owners.popitem(last=False)
        return owner


def _route_weight(key: str, replica: RunningReplica) -> bytes:
    name = replica.replica_id.unique_id.encode()[:64]
    return blake2b(encode_exactly(key), key=name, digest_size=8).digest()
