"""Which instructions a response follows: strictly, or in any of eight looser readings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal

from adjudge.engine.phases import Phase, enter_phase
from adjudge.graders.instructions.registry import Check, checks

__all__ = ["Reading", "follows", "follows_json", "loosened", "readings"]

Reading = Literal["strict", "loose"]
"""``strict``: the response as it is. ``loose``: any of :func:`readings`."""


def readings(response: str) -> Iterator[str]:
    """The response and its looser readings, equal ones once.

    Without asterisks; without its first line, its last, or both; and these without asterisks.
    """
    seen = {response}
    yield response
    for text in _shorter(response):
        for reading in (text.replace("*", ""), text):
            if reading not in seen:
                seen.add(reading)
                yield reading


def _shorter(response: str) -> Iterator[str]:
    yield response
    _, _, rest = response.partition("\n")
    yield rest.strip()
    yield response.rpartition("\n")[0].strip()
    yield rest.rpartition("\n")[0].strip()


def follows(response: str, asked: Sequence[Check], reading: Reading) -> list[bool]:
    """Whether the response follows each instruction; a blank response follows none.

    Raises what a check raises: ``ConfigError`` without the language detection.
    """
    strict = [not _blank(response) and check(response) for check in asked]
    return strict if reading == "strict" else loosened(response, asked, strict)


def loosened(response: str, asked: Sequence[Check], strict: Sequence[bool]) -> list[bool]:
    """The loose answers, where ``strict`` are the strict ones: those followed stay followed."""
    if all(strict):
        return list(strict)
    _, *others = readings(response)
    texts = [text for text in others if not _blank(text)]
    return [ok or any(map(check, texts)) for ok, check in zip(strict, asked, strict=True)]


def follows_json(payload: str) -> list[bool]:
    """:func:`follows` for a worker process: all that it needs as JSON text."""
    enter_phase(Phase.REFERENCE)
    given = json.loads(payload)
    asked = [check for _, check in checks(given["ids"], given["kwargs"])]
    # What a check takes per character is ours to bound: only the length is left.
    enter_phase(Phase.CANDIDATE)
    return follows(given["response"], asked, given["reading"])


def _blank(text: str) -> bool:
    return not text or text.isspace()
