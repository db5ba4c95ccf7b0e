"""Judges as users write them, for ``adjudge serve module:Class``: the score is the completion."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any


def number(completion: str) -> float:
    if completion == "exit":
        os._exit(7)
    return float(completion)


class Batches:
    """``exit`` ends the process there and then."""

    def score_batch(self, requests: list[dict[str, Any]]) -> list[float]:
        return [number(one["completion"]) for one in requests]


class Slow:
    """Each takes its time, without blocking others."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds

    async def score(self, completion: str) -> float:
        await asyncio.sleep(self.seconds)
        return number(completion)


class Halts:
    """``halt`` stops the whole process for a second, as it is about to run its timers."""

    async def start(self) -> None:
        self._read, self._write = os.pipe()
        asyncio.get_running_loop().add_reader(self._read, self._halt)

    def _halt(self) -> None:
        os.read(self._read, 1)
        time.sleep(1.0)

    async def score(self, completion: str) -> float:
        if completion == "halt":
            os.write(self._write, b"x")
            return 0.0
        return number(completion)
