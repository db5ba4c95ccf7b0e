"""The servers for benchmarks/service.py: ours, and the same endpoints written plainly.

    python -m benchmarks.service_peers ours|fastapi|asgi PORT

``ours`` is ``adjudge serve`` with a backend that compares two texts. ``fastapi`` is what its
tutorial teaches: pydantic models in, pydantic models out. ``asgi`` is the least that an ASGI server
can run: msgspec, no routes beyond these two, no limits, no queue. Both on uvicorn with httptools
and uvloop, without an access log; all score alike.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from adjudge.service import ServiceSettings
from adjudge.service.backend import Backend
from adjudge.service.server import run_service
from adjudge.wire import BatchRequest, BatchResponse, JudgeRequest, JudgeResponse


class Request(BaseModel):
    prompt: str
    completion: str
    answer: str | int | float | bool | list[str] | None = None
    answer_type: str | None = None
    request_id: str | None = None
    metadata: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    images: list[str] | None = None


class Response(BaseModel):
    score: float | None = None
    request_id: str | None = None
    explanation: str | None = None
    detailed_scores: dict[str, float | None] | None = None
    confidence: float | None = None
    metadata: dict[str, Any] | None = None


class Requests(BaseModel):
    requests: list[Request]


class Responses(BaseModel):
    responses: list[Response]


def plain() -> FastAPI:
    app = FastAPI()

    def judged(request: Request) -> Response:
        right = float(request.answer == request.completion)
        metadata = {"latency": 0.0, "model_version": "1"}
        return Response(score=right, request_id=request.request_id, metadata=metadata)

    @app.post("/judge", response_model_exclude_none=True)
    async def judge(request: Request) -> Response:
        return judged(request)

    @app.post("/batch_judge", response_model_exclude_none=True)
    async def batch_judge(batch: Requests) -> Responses:
        return Responses(responses=[judged(one) for one in batch.requests])

    return app


Message = dict[str, Any]
_one = msgspec.json.Decoder(JudgeRequest)
_many = msgspec.json.Decoder(BatchRequest)
_encode = msgspec.json.Encoder().encode


def _judged(request: JudgeRequest) -> JudgeResponse:
    right = float(request.answer == request.completion)
    metadata = {"latency": 0.0, "model_version": "1"}
    return JudgeResponse(score=right, request_id=request.request_id, metadata=metadata)


async def bare(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    if scope["path"] == "/judge":
        answer = _encode(_judged(_one.decode(body)))
    else:
        answer = _encode(BatchResponse([_judged(one) for one in _many.decode(body).requests]))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(answer)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


class Trivial(Backend):
    """A backend that costs as good as nothing."""

    name, version = "trivial", "1"

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        return [JudgeResponse(float(one.answer == one.completion)) for one in requests]


def main(kind: str, port: str) -> None:
    if kind == "ours":
        gc.set_threshold(50_000, 10, 10)  # as adjudge.cli.main does
        run_service(Trivial(), ServiceSettings(port=int(port)), lambda running: None)
        return
    app: Any = plain() if kind == "fastapi" else bare
    uvicorn.run(
        app,
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        lifespan="off",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
