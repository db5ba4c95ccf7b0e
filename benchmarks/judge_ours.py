"""adjudge's judge calls for benchmarks/judge_calls.py, layer by layer.

    python -m benchmarks.judge_ours KIND BASE_URL IN_FLIGHT

===============  ===============================================================================
``transport``    posts and decodes
``model``        ``OpenAIChatModel.achat`` in a worker pool, endpoint and all
``grader``       a grader of a few lines in ``GradingRunner`` on top
``schema``       the same with a JSON Schema for the reply, as py-openjudge sends one
``llm``          ``LLMGrader`` with the same prompt as a template, and that schema
``llm-plain``    the same without a schema: the reply's form is the prompt's own
``relevance``    the shipped ``RelevanceGrader``, whose prompt is longer
``steps``        ``grader`` through one ``asyncio.run`` after the other, then in threads
===============  ===============================================================================

Endpoint settings are the defaults, except that ``max_concurrency`` is raised where more calls are
to be in flight than that.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
from benchmarks.judge_question import (
    SAMPLING,
    SCHEMA,
    SYSTEM,
    USER,
    Item,
    messages,
    pool,
    serve_calls,
    serve_steps,
)

from adjudge import BaseGrader, GraderScore, GradingRunner
from adjudge.engine.loop import run_blocking
from adjudge.judges import EndpointSettings, OpenAIChatModel
from adjudge.judges.base import ChatCall
from adjudge.judges.wire.openai import OpenAIWire
from adjudge.judges.wire.transport import AiohttpTransport


class Verdict(msgspec.Struct):
    score: float
    reason: str


verdict = msgspec.json.Decoder(Verdict)


class Judge(BaseGrader):
    """Renders the prompt, asks, and reads the score."""

    score_range = (0.0, 1.0)

    def __init__(self, model: OpenAIChatModel, schema: dict[str, Any] | None = None) -> None:
        super().__init__("judge")
        self._model = model
        self._schema = schema

    async def aevaluate(self, query: str, response: str) -> GraderScore:
        reply = await self._model.achat(messages(query, response), schema=self._schema)
        found = verdict.decode(reply.text)
        return GraderScore(self.name, found.score, found.reason, provenance=reply.provenance)


def judge_model(base_url: str, in_flight: int) -> OpenAIChatModel:
    limit = max(in_flight, EndpointSettings().max_concurrency)
    settings = EndpointSettings(max_concurrency=limit)
    return OpenAIChatModel("mock", base_url=base_url, settings=settings, **SAMPLING)


def good(results: dict[str, list[Any]]) -> int:
    return sum(getattr(result, "score", None) == 1.0 for result in results["judge"])


def grader_of(kind: str, model: OpenAIChatModel) -> BaseGrader:
    if kind == "relevance":
        from adjudge.graders import RelevanceGrader  # here: other rows' memory is without it

        return RelevanceGrader(model)
    if kind.startswith("llm"):
        from adjudge.graders import LLMGrader

        template = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
        schema = SCHEMA if kind == "llm" else None
        return LLMGrader(
            model, "judge", template=template, structured_model=schema, score_range=(0.0, 1.0)
        )
    return Judge(model, SCHEMA if kind == "schema" else None)


def runner_of(kind: str, base_url: str, in_flight: int) -> GradingRunner:
    grader = grader_of(kind, judge_model(base_url, in_flight))
    return GradingRunner({"judge": grader}, max_concurrency=in_flight, show_progress=False)


class Transport:
    """What stays when the endpoint is left out."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._wire = OpenAIWire(key="sk-none")
        self._transport = AiohttpTransport()

    async def ask(self, item: Item) -> float:
        call = ChatCall(model="mock", messages=messages(**item), sampling=SAMPLING)
        response = await self._transport.post(self._base_url, self._wire.request(call))
        return verdict.decode(self._wire.reply(call, response).text).score

    async def close(self) -> None:
        await self._transport.aclose()


def serve_model(base_url: str, in_flight: int) -> None:
    model = judge_model(base_url, in_flight)

    async def ask(item: Item) -> float:
        reply = await model.achat(messages(**item))
        return verdict.decode(reply.text).score

    serve_calls(lambda items: run_blocking(pool(ask, items, in_flight)))


def serve_transport(base_url: str, in_flight: int) -> None:
    transport = Transport(base_url)
    serve_calls(lambda items: run_blocking(pool(transport.ask, items, in_flight)))
    run_blocking(transport.close())


def main(kind: str, base_url: str, in_flight: str) -> None:
    workers = int(in_flight)
    if kind == "transport":
        serve_transport(base_url, workers)
    elif kind == "model":
        serve_model(base_url, workers)
    elif kind == "steps":
        runner = runner_of("grader", base_url, workers)
        serve_steps(lambda items: good(asyncio.run(runner.arun(items))))
    else:
        runner = runner_of(kind, base_url, workers)
        serve_calls(lambda items: good(runner.run(items)))


if __name__ == "__main__":
    main(*sys.argv[1:])
