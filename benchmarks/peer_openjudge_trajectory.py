"""py-openjudge's trajectory graders behind a pipe: one JSON line in, one JSON line out.

Run by the interpreter of an environment that has ``py-openjudge``; :class:`Peer` starts it from
ours, so that rounds of both can alternate within one run. Only the CPU time inside the
peer's ``aevaluate`` is counted, on an event loop that is already running.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, NamedTuple


class Answer(NamedTuple):
    score: float | None  # None: the peer gave an error instead
    seconds: float
    error: str


class Peer:
    """The peer's process; use it as a context manager."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        hello = self._receive()
        self.version: str = hello["version"]

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=60)

    def grade(
        self, grader: str, messages: Any, *, threshold: float | None = None, repeats: int = 1
    ) -> Answer:
        """Score of ``messages`` and CPU seconds per call, as the mean of ``repeats`` calls."""
        request = {
            "grader": grader,
            "messages": messages,
            "threshold": threshold,
            "repeats": repeats,
        }
        if self._process.stdin is None:
            raise RuntimeError("the peer has no input")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Answer(**self._receive())

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("the peer's process ended; has its environment py-openjudge?")
        received: dict[str, Any] = json.loads(line)
        return received


def serve() -> None:
    """Answer requests from standard input until it ends."""
    from importlib.metadata import version

    from openjudge.graders.agent.action.action_loop import ActionLoopDetectionGrader
    from openjudge.graders.agent.observation.observation_information_gain import (
        ObservationInformationGainGrader,
    )

    classes = {
        "action_loop": ActionLoopDetectionGrader,
        "information_gain": ObservationInformationGainGrader,
    }
    answers, sys.stdout = sys.stdout, sys.stderr  # what the peer prints must not mix with answers
    print(json.dumps({"version": version("py-openjudge")}), file=answers, flush=True)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            request = json.loads(line)
            threshold = request["threshold"]
            cls = classes[request["grader"]]
            grader = cls() if threshold is None else cls(similarity_threshold=threshold)
            answer = runner.run(timed(grader, request["messages"], request["repeats"]))
            print(json.dumps(answer._asdict()), file=answers, flush=True)


async def timed(grader: Any, messages: Any, repeats: int) -> Answer:
    result: Any = None
    start = time.process_time()
    for _ in range(repeats):
        result = await grader.aevaluate(messages=messages)
    seconds = (time.process_time() - start) / repeats
    score = getattr(result, "score", None)
    return Answer(score, seconds, "" if score is not None else str(getattr(result, "error", "")))


if __name__ == "__main__":
    serve()
