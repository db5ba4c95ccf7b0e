"""Graders of probes whose answers a test makes up: read for what they take, never asked."""

from __future__ import annotations

from adjudge.graders.base import BaseGrader


class Scorer(BaseGrader):
    score_range = (0.0, 10.0)

    async def aevaluate(self, prompt: str, response: str) -> float:
        raise NotImplementedError


class Referring(BaseGrader):
    score_range = (0.0, 10.0)

    async def aevaluate(self, response: str, reference: str) -> float:
        raise NotImplementedError
