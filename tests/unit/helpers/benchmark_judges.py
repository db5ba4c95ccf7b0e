"""Judges of known quality for the self-made samples of benchmarks, as graders of a spec."""

from __future__ import annotations

from hashlib import sha256
from typing import ClassVar

from tests.unit.helpers.benchmark_samples import is_right_sample_answer

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader

__all__ = ["Knower", "picked"]


def picked(every: int, prompt: str, response: str) -> bool:
    """One of ``every`` answers, always the same ones."""
    digest = sha256(f"{prompt}\n{response}".encode()).digest()
    return every > 0 and int.from_bytes(digest[:4]) % every == 0


class Knower(BaseGrader):
    """1 for right answers and 0 for wrong ones, but for those that are turned round or fail."""

    asked: ClassVar[list[str]] = []
    down: ClassVar[ErrorKind | None] = None

    def __init__(self, name: str = "", turned: int = 0, failing: int = 0) -> None:
        super().__init__(name)
        self._turned, self._failing = turned, failing

    async def aevaluate(self, prompt: str, response: str) -> float:
        Knower.asked.append(response)
        if Knower.down is not None and picked(self._failing or 1, prompt, response):
            raise GradingFailure(Knower.down, "<b>away</b>")
        right = is_right_sample_answer(prompt, response)
        return float(right != picked(self._turned, prompt, response))
