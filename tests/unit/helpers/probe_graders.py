"""Graders of probes whose answers a test makes up: read for what they take, never asked."""

from __future__ import annotations

import re

from adjudge.graders.base import BaseGrader


def count_words(text: str) -> int:
    """Runs of letters and digits; a Chinese character is a word."""
    return len(re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text))


class Scorer(BaseGrader):
    score_range = (0.0, 10.0)

    async def aevaluate(self, prompt: str, response: str) -> float:
        raise NotImplementedError


class Referring(BaseGrader):
    score_range = (0.0, 10.0)

    async def aevaluate(self, response: str, reference: str) -> float:
        raise NotImplementedError
