"""A service with a backend that does what the completion says, for the tests beside this file.

python service_backend.py SETTINGS_JSON [one_by_one] [impatient]
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from adjudge.service import ServiceSettings, server
from adjudge.service.backend import Backend
from adjudge.service.server import GuardedProtocol, run_service
from adjudge.wire import JudgeRequest, JudgeResponse


class Obedient(Backend):
    """``metadata`` tells how many were judged together, and how many calls were cancelled."""

    name, version = "obedient", "7"

    def __init__(self, one_by_one: bool) -> None:
        self.one_by_one = one_by_one
        self.cancelled = 0

    async def start(self) -> None:
        await asyncio.sleep(0.05)

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        said = {request.completion for request in requests}
        if "poison" in said:
            raise ValueError("poisoned by the text of a request")
        if "exit" in said:
            raise SystemExit(3)
        if "short" in said:
            return []
        try:
            if "hang" in said:
                await asyncio.sleep(3600)
            if "slow" in said:
                await asyncio.sleep(0.4)
            if "slow for long" in said:
                await asyncio.sleep(1.5)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [self.answer(request, len(requests)) for request in requests]

    def answer(self, request: JudgeRequest, together: int) -> JudgeResponse:
        metadata: dict[str, Any] = {"together": together, "cancelled": self.cancelled}
        score = {"nan": float("nan"), "infinite": float("inf"), "neither": None}.get(
            request.completion, float(request.answer == request.completion)
        )
        return JudgeResponse(score=score, metadata=metadata)


def announce(running: object) -> None:
    print(msgspec.json.encode(running).decode(), flush=True)


if __name__ == "__main__":
    settings = ServiceSettings(**msgspec.json.decode(sys.argv[1]))
    if "impatient" in sys.argv:
        GuardedProtocol.read_timeout_s = 0.7
        vars(server)["DRAIN_S"] = 0.2
    run_service(Obedient("one_by_one" in sys.argv), settings, announce, until_eof=True)
