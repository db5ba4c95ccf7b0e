"""The routes that do not judge: health, readiness, metrics, calls, and the service's documents.

The documents are the OpenAPI document and the same in words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
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
from adjudge.service.formats.base import WireFormat
from adjudge.service.metrics import ServiceMetrics
from adjudge.service.requests import ApiKeyAuth, RequestRefused, error_body
from adjudge.service.settings import ServiceSettings
from adjudge.version import __version__
from adjudge.wire import (
    MAX_BATCH,
    BatchRequest,
    BatchResponse,
    ErrorInfo,
    GroupRequest,
    JudgeRequest,
    JudgeResponse,
)

_SCHEMA_PREFIX = "#/components/schemas/"
_JUDGING_ROUTES: dict[str, tuple[str, type, type]] = {
    "/judge": ("Judge one completion", JudgeRequest, JudgeResponse),
    "/batch_judge": (f"Judge 1 to {MAX_BATCH} completions", BatchRequest, BatchResponse),
    "/group_judge": (
        "Judge one sample of a group, answered when the group is there",
        GroupRequest,
        JudgeResponse,
    ),
}
_STATUSES = {
    "400": "Not JSON, not UTF-8, or nested too deep",
    "401": "No key, or a wrong one",
    "405": "This route takes POST",
    "413": "The body or an image is too large",
    "422": "A field is missing or has the wrong type, or this cannot be judged",
    "429": "The queue is full; Retry-After says when to try again",
    "503": "The judge failed (the error's kind says how), or the service is not ready",
}


class AdminState(Protocol):
    """What these routes show of a running service."""

    backend: Backend
    settings: ServiceSettings
    auth: ApiKeyAuth
    metrics: ServiceMetrics
    calls: CallCounter
    formats: tuple[WireFormat, ...]

    @property
    def phase(self) -> str:
        """``loading``, ``ready`` or ``draining``."""


class ErrorBody(msgspec.Struct):
    """What every refusal and every failed judge looks like."""

    error: ErrorInfo


def openapi_document(service: AdminState) -> dict[str, Any]:
    """All routes of this service for programs, the shapes written from the types on the wire."""
    types = (JudgeRequest, BatchRequest, GroupRequest, JudgeResponse, BatchResponse, ErrorBody)
    _, schemas = msgspec.json.schema_components(types, ref_template=_SCHEMA_PREFIX + "{name}")
    for schema in schemas.values():  # an example in Python is for readers of Python
        schema["description"] = schema.get("description", "").partition(">>>")[0].rstrip()
    requests = schemas["BatchRequest"]["properties"]["requests"]
    requests |= {"minItems": 1, "maxItems": MAX_BATCH}
    for name in ("JudgeRequest", "GroupRequest"):
        schemas[name]["properties"]["images"]["anyOf"][0]["items"]["pattern"] = _IMAGE_PATTERN
    schemes = {name: {"type": "http", "scheme": name} for name in ("bearer", "basic")}
    key: list[dict[str, list[str]]] = [{name: []} for name in schemes]
    shown = key if service.auth.required else []
    paths = {
        path: {"post": _operation(summary, asked, answered) | {"security": shown}}
        for path, summary, asked, answered in _judging_routes(service)
    }
    for path, one in _ADMIN_ROUTES.items():
        paths[path] = {"get": one.operation() | {"security": shown if one.has_key else []}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "adjudge judge service", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


_Schema = dict[str, Any]


def _judging_routes(service: AdminState) -> Iterator[tuple[str, str, _Schema, _Schema]]:
    """Path, summary, and the schemas of request and response."""
    for path, (summary, asked, answered) in _JUDGING_ROUTES.items():
        yield path, summary, _schema_reference(asked), _schema_reference(answered)
    for one in service.formats:
        trainer = getattr(one, "trainer", "a trainer")
        yield one.path, f"As {trainer} asks for rewards", {"type": "object"}, {}


_IMAGE_PATTERN = "^(data:[^,]*;base64,)?[A-Za-z0-9+/=]+$"


def _schema_reference(of: type) -> dict[str, Any]:
    return {"$ref": _SCHEMA_PREFIX + of.__name__}


def _operation(summary: str, asked: _Schema, answered: _Schema) -> dict[str, Any]:
    responses = {"200": _content("Judged", "application/json", answered)}
    responses |= {status: _error_content(status) for status in _STATUSES}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": responses,
    }


def _content(description: str, media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _error_content(status: str) -> dict[str, Any]:
    return _content(_STATUSES[status], "application/json", _schema_reference(ErrorBody))


def describe_service(service: AdminState) -> str:
    """The service in words, for somebody who has found its address."""
    backend = service.backend
    routes = [f"POST {path}: {summary}" for path, summary, _, _ in _judging_routes(service)]
    routes += [f"GET {path}: {one.summary}" for path, one in _ADMIN_ROUTES.items()]
    key = "Send Authorization: Bearer KEY with everything but /health and /ready.\n"
    return "\n".join([
        f"adjudge judge service: {backend.name}, version {backend.version}",
        "",
        *routes,
        "",
        key if service.auth.required else "",
        _WORDS,
        *(f"{status}: {meaning}" for status, meaning in _STATUSES.items()),
        "",
    ])  # fmt: skip


_WORDS = """\
curl -d '{"prompt": "What is 2 + 2?", "completion": "4", "answer": "4"}' ADDRESS/judge

A response has a "score", or an "error" with "kind" and "message" and no score: a failed judge call
yields no score. In /batch_judge the status is 200 and each item has a score or an error of its own;
elsewhere a failed judge is 503.
"""


class _AdminRoute(NamedTuple):
    """What a route answers with, whether a key is needed, and how it may be refused."""

    summary: str
    answer: Callable[[AdminState], bytes]
    media_type: str = "application/json"
    has_key: bool = False
    refusals: tuple[str, ...] = ()

    def operation(self) -> dict[str, Any]:
        """What the OpenAPI document says of it."""
        media_type, _, parameters = self.media_type.partition(";")
        answered = _content("Answered", media_type, {"type": "string"} if parameters else {})
        refused = {status: _error_content(status) for status in self.refusals}
        return {"summary": self.summary, "responses": {"200": answered, **refused}}


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
    """A row is judged by itself, unless the spec compares it with others."""
    return b'"stateless"' if service.backend.compares_groups is None else b'"unsupported"'


_encode = msgspec.json.Encoder().encode
_TEXT = "text/plain; charset=utf-8"
_KEY: Any = {"has_key": True, "refusals": ("401",)}
_ADMIN_ROUTES = {
    "/health": _AdminRoute("Alive: the process answers", _health),
    "/ready": _AdminRoute("Ready: requests are taken now", _ready, refusals=("503",)),
    "/metrics": _AdminRoute(
        "Numbers for Prometheus",
        lambda service: service.metrics.text(),
        "text/plain; version=0.0.4; charset=utf-8",
        **_KEY,
    ),
    "/calls": _AdminRoute(
        "What each judge behind it was asked, and what came of it",
        lambda service: _encode(service.calls.table()),
        **_KEY,
    ),
    "/reverify_mode": _AdminRoute("Whether NeMo-Gym may verify rows again", _reverify_mode),
    "/docs": _AdminRoute(
        "This service in words", lambda service: describe_service(service).encode(), _TEXT
    ),
    "/openapi.json": _AdminRoute(
        "This document", lambda service: _encode(openapi_document(service))
    ),
}
"""``/health`` and ``/ready`` ask for no key: what watches a process has none. The documents hold
no secret either."""

ADMIN_PATHS = frozenset(_ADMIN_ROUTES)
"""Paths that no format can have."""


def admin_routes(service: AdminState) -> Starlette:
    """``/health /ready /metrics /calls /reverify_mode /docs /openapi.json`` of one service."""
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
