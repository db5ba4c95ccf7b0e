"""The routes that do not judge: health, readiness, metrics, calls, and the service's documents.

The documents are the OpenAPI document and the same in words.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from adjudge.errors import ErrorKind
from adjudge.judges.endpoint.connections import CallCounter
from adjudge.rewards.spec import RewardSpec
from adjudge.service.backend import Backend
from adjudge.service.metrics import ServiceMetrics
from adjudge.service.requests import ApiKeyAuth, RequestRefused, WireFormat, error_body
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
_ADMIN_STATUSES = {"/ready": ("503",), "/metrics": ("401",), "/calls": ("401",)}


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


def complete_openapi(document: dict[str, Any], service: AdminState) -> dict[str, Any]:
    """FastAPI's document of the admin routes, with the judging routes and all statuses added."""
    document = copy.deepcopy(document)
    types = (JudgeRequest, BatchRequest, GroupRequest, JudgeResponse, BatchResponse, ErrorBody)
    _, schemas = msgspec.json.schema_components(types, ref_template=_SCHEMA_PREFIX + "{name}")
    requests = schemas["BatchRequest"]["properties"]["requests"]
    requests |= {"minItems": 1, "maxItems": MAX_BATCH}
    for name in ("JudgeRequest", "GroupRequest"):
        schemas[name]["properties"]["images"]["anyOf"][0]["items"]["pattern"] = _IMAGE_PATTERN
    components = document.setdefault("components", {})
    components["schemas"] = schemas
    paths = document["paths"]
    for path, statuses in _ADMIN_STATUSES.items():
        for status in statuses:
            paths[path]["get"]["responses"][status] = _error_content(status)
    for path in ("/metrics", "/docs"):
        paths[path]["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT_SCHEMA}}
    for path, (summary, asked, answered) in _JUDGING_ROUTES.items():
        paths[path] = {
            "post": _operation(summary, _schema_reference(asked), _schema_reference(answered))
        }
    for one in service.formats:
        paths[one.path] = {"post": _operation(_format_summary(one), {"type": "object"}, {})}
    if service.auth.required:
        components["securitySchemes"] = {
            name: {"type": "http", "scheme": name} for name in ("bearer", "basic")
        }
        for path in (*_JUDGING_ROUTES, *(one.path for one in service.formats)):
            paths[path]["post"]["security"] = _EITHER_KEY
        for path in ("/metrics", "/calls"):
            paths[path]["get"]["security"] = _EITHER_KEY
    return document


def _format_summary(one: WireFormat) -> str:
    return f"As {getattr(one, 'trainer', 'a trainer')} asks for rewards"


_IMAGE_PATTERN = "^(data:[^,]*;base64,)?[A-Za-z0-9+/=]+$"
_TEXT_SCHEMA = {"type": "string"}
_EITHER_KEY: list[dict[str, list[str]]] = [{"bearer": []}, {"basic": []}]


def _schema_reference(of: type) -> dict[str, Any]:
    return {"$ref": _SCHEMA_PREFIX + of.__name__}


def _operation(summary: str, asked: dict[str, Any], answered: dict[str, Any]) -> dict[str, Any]:
    responses = {"200": _json_content("Judged", answered)}
    responses |= {status: _error_content(status) for status in _STATUSES}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": responses,
    }


def _json_content(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _error_content(status: str) -> dict[str, Any]:
    return _json_content(_STATUSES[status], _schema_reference(ErrorBody))


def describe_service(service: AdminState) -> str:
    """The service in words, for somebody who has found its address."""
    routes = [f"POST {path}: {summary}" for path, (summary, _, _) in _JUDGING_ROUTES.items()]
    routes += [f"POST {one.path}: {_format_summary(one)}" for one in service.formats]
    routes += [
        "GET /health: alive; /ready: requests are taken; /metrics: numbers for Prometheus",
        "GET /calls: what each judge was asked, and what came of it",
        "GET /openapi.json: all of this for programs",
    ]
    statuses = [f"{status}: {meaning}" for status, meaning in _STATUSES.items()]
    backend = service.backend
    key = "\nSend Authorization: Bearer KEY with everything but /health and /ready.\n"
    return "\n".join([
        f"adjudge judge service: {backend.name}, version {backend.version}",
        "",
        *routes,
        key if service.auth.required else "",
        'curl -d \'{"prompt": "What is 2 + 2?", "completion": "4", "answer": "4"}\' ADDRESS/judge',
        "",
        'A response has a "score", or an "error" with "kind" and "message" and no score: a failed',
        "judge call yields no score. In /batch_judge the status is 200 and each item has a score",
        "or an error of its own; elsewhere a failed judge is 503.",
        "",
        *statuses,
        "",
    ])  # fmt: skip


_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_KIND_BY_STATUS = {404: ErrorKind.UNSUPPORTED, 405: ErrorKind.UNSUPPORTED}


def admin_routes(service: AdminState) -> FastAPI:
    """``/health /ready /metrics /calls /docs /openapi.json`` of one service.

    ``/health`` and ``/ready`` ask for no key: what watches a process has none. The documents hold
    no secret either.
    """
    app = FastAPI(
        title="adjudge judge service",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )

    @app.get("/health", summary="Alive: the process answers")
    async def health() -> JSONResponse:
        return JSONResponse(_health_report(service))

    @app.get("/ready", summary="Ready: requests are taken now")
    async def ready() -> Response:
        if service.phase == "ready":
            return JSONResponse({"status": "ready"})
        message = f"the service is {service.phase}"
        return _error_response(503, ErrorKind.SERVER_ERROR, message, {"retry-after": "1"})

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics(request: Request) -> Response:
        try:
            service.auth.check(request.scope["headers"])
        except RequestRefused as refused:
            return _error_response(refused.status, refused.kind, str(refused))
        return Response(service.metrics.text(), media_type=_METRICS_TYPE)

    @app.get("/calls", summary="What each judge behind it was asked, and what came of it")
    async def calls(request: Request) -> Response:
        try:
            service.auth.check(request.scope["headers"])
        except RequestRefused as refused:
            return _error_response(refused.status, refused.kind, str(refused))
        return Response(msgspec.json.encode(service.calls.table()), media_type="application/json")

    @app.get("/docs", summary="This service in words")
    async def docs() -> PlainTextResponse:
        return PlainTextResponse(describe_service(service))

    document: dict[str, Any] = {}

    @app.get("/openapi.json", summary="This document")
    async def openapi() -> JSONResponse:
        if not document:
            document.update(complete_openapi(app.openapi(), service))
        return JSONResponse(document)

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        kind = _KIND_BY_STATUS.get(error.status_code, ErrorKind.INVALID_INPUT)
        return _error_response(error.status_code, kind, str(error.detail), error.headers)

    return app


def _health_report(service: AdminState) -> dict[str, Any]:
    """What clients read as :class:`adjudge.client.grader.ServiceInfo`, and more."""
    spec = getattr(service.backend, "spec", None)
    return {
        "status": "healthy",
        "model_loaded": service.phase != "loading",
        "model_version": service.backend.version,
        "compares_groups": service.backend.compares_groups,
        "graders": [one.name for one in spec.graders] if isinstance(spec, RewardSpec) else [],
        "group_timeout_s": service.settings.group_timeout_s,
        "deadline_s": service.settings.deadline_s,
    }


def _error_response(status: int, kind: ErrorKind, message: str, headers: Any = None) -> Response:
    return Response(
        error_body(kind, message), status, headers=headers, media_type="application/json"
    )
