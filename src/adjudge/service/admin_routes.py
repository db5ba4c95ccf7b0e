"""The routes that do not judge: health, readiness, metrics, calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adjudge.errors import ErrorKind
from adjudge.judges.endpoint.connections import CallCounter
from adjudge.service.backend import Backend
from adjudge.service.metrics import ServiceMetrics
from adjudge.service.requests import ApiKeyAuth, RequestRefused, error_body
from adjudge.service.settings import ServiceSettings


class AdminState(Protocol):
    """What these routes show of a running service."""

    backend: Backend
    settings: ServiceSettings
    auth: ApiKeyAuth
    metrics: ServiceMetrics
    calls: CallCounter

    @property
    def phase(self) -> str:
        """``loading``, ``ready`` or ``draining``."""


class _AdminRoute(NamedTuple):
    """What a route answers with, and whether a key is needed."""

    answer: Callable[[AdminState], bytes]
    media_type: str = "application/json"
    has_key: bool = False


def _health(service: AdminState) -> bytes:
    """What clients read as :class:`adjudge.client.grader.ServiceInfo`, and more."""
    return _encode({
        "status": "healthy",
        "model_loaded": service.phase != "loading",
        "model_version": service.backend.version,
        "compares_groups": service.backend.compares_groups,
        "graders": list(getattr(service.backend, "grader_names", ())),
        "group_timeout_s": service.settings.group_timeout_s,
        "deadline_s": service.settings.deadline_s,
    })  # fmt: skip


def _ready(service: AdminState) -> bytes:
    if service.phase == "ready":
        return b'{"status":"ready"}'
    raise RequestRefused(503, ErrorKind.SERVER_ERROR, f"the service is {service.phase}", 1)


def _reverify_mode(service: AdminState) -> bytes:
    """Whether NeMo-Gym may verify rows again: unless the spec compares a row with others."""
    return b'"stateless"' if service.backend.compares_groups is None else b'"unsupported"'


_encode = msgspec.json.Encoder().encode
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_ADMIN_ROUTES = {
    "/health": _AdminRoute(_health),
    "/ready": _AdminRoute(_ready),
    "/metrics": _AdminRoute(lambda service: service.metrics.text(), _PROMETHEUS, has_key=True),
    "/calls": _AdminRoute(lambda service: _encode(service.calls.table()), has_key=True),
    "/reverify_mode": _AdminRoute(_reverify_mode),
}
"""``/health`` and ``/ready`` ask for no key: what watches a process has none."""

ADMIN_PATHS = frozenset(_ADMIN_ROUTES)
"""Paths that no format can have."""


def admin_routes(service: AdminState) -> Starlette:
    """``/health /ready /metrics /calls /reverify_mode`` of one service."""
    app = Starlette(
        routes=[Route(path, _endpoint(service, one)) for path, one in _ADMIN_ROUTES.items()],
        exception_handlers={RequestRefused: _refuse, HTTPException: _refuse_route},
    )
    app.router.redirect_slashes = False
    return app


def _endpoint(service: AdminState, route: _AdminRoute) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if route.has_key:
            service.auth.check(request.scope["headers"])
        return Response(route.answer(service), media_type=route.media_type)

    return answer


async def _refuse(_: Request, error: Any) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return _error_response(error.status, error.kind, str(error), headers)


async def _refuse_route(_: Request, error: Any) -> Response:
    """No such path (404), or a method that it does not take (405)."""
    return _error_response(error.status_code, ErrorKind.UNSUPPORTED, error.detail, error.headers)


def _error_response(status: int, kind: ErrorKind, message: str, headers: Any) -> Response:
    return Response(
        error_body(kind, message), status, headers=headers, media_type="application/json"
    )
