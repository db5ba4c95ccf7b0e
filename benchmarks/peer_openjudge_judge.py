"""py-openjudge's judge calls for benchmarks/judge_calls.py, run by the peer's interpreter.

    python -m benchmarks.peer_openjudge_judge calls|steps BASE_URL IN_FLIGHT

Its runner, its ``LLMGrader`` with the same prompt, its ``OpenAIChatModel``; everything at its
defaults, its log off (``LOGURU_AUTOINIT``), ``calls`` on uvloop as for the others.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import Any

import uvloop
from benchmarks.judge_question import SAMPLING, SYSTEM, USER, serve_calls, serve_steps
from openjudge.graders.llm_grader import LLMGrader
from openjudge.models.openai_chat_model import OpenAIChatModel
from openjudge.runner.grading_runner import GraderConfig, GradingRunner


def runner_of(base_url: str, in_flight: int) -> Any:
    model = OpenAIChatModel("mock", base_url=base_url, **SAMPLING)
    template = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
    grader = GraderConfig(LLMGrader(model, name="judge", template=template))
    return GradingRunner({"judge": grader}, max_concurrency=in_flight, show_progress=False)


def good(results: dict[str, list[Any]]) -> int:
    return sum(getattr(result, "score", None) == 1.0 for result in results["judge"])


def main(kind: str, base_url: str, in_flight: str) -> None:
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")
    runner = runner_of(base_url, int(in_flight))
    if kind == "steps":
        serve_steps(lambda items: good(asyncio.run(runner.arun(items))))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        serve_calls(lambda items: good(loop.run(runner.arun(items))))


if __name__ == "__main__":
    main(*sys.argv[1:])
