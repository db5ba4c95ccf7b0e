"""What a backend answered, checked: a score that is a number, or an error that says why not."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Collection, Iterable
from typing import Any

from adjudge.client.wire import ErrorInfo, JudgeRequest, JudgeResponse
from adjudge.config import nearest
from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["Complaints", "UnknownKeys", "checked", "failed", "wrong_shape"]

_log = logging.getLogger("adjudge.service")
_REMEMBERED = 100
_MOST_NAMED, _NAME_LENGTH = 10, 60


def failed(kind: ErrorKind, message: str) -> JudgeResponse:
    """A response without a score."""
    return JudgeResponse(error=ErrorInfo(kind, message))


def wrong_shape(responses: Any, asked: int) -> str | None:
    """Why this cannot be the answer to ``asked`` requests; ``None`` when it can."""
    if not isinstance(responses, list | tuple):
        return f"the backend returned {type(responses).__name__}, not a list of responses"
    if len(responses) != asked:
        return f"the backend returned {len(responses)} responses to {asked} requests"
    for one in responses:
        if not isinstance(one, JudgeResponse):
            return f"the backend returned {type(one).__name__} instead of a JudgeResponse"
    return None


def checked(response: JudgeResponse, request: JudgeRequest, facts: dict[str, Any]) -> JudgeResponse:
    """The response as it goes out: with the request's id and ``facts`` in its metadata.

    Always a new object, since a backend may give the same one twice. A response with an error has
    no score; one without either, or with a score that is no finite number, gets an error.
    """
    score, error = response.score, response.error
    if error is not None:
        score = None
    elif type(score) is not float or not math.isfinite(score):
        score, error = _questionable(score)
    metadata = response.metadata
    return JudgeResponse(
        score,
        request.request_id,
        response.explanation,
        response.detailed_scores,
        response.confidence,
        {**metadata, **facts} if metadata else facts,
        error,
    )


def _questionable(score: Any) -> tuple[float | None, ErrorInfo | None]:
    if score is None:
        return None, ErrorInfo(ErrorKind.BUG, "the backend gave neither a score nor an error")
    if isinstance(score, bool) or not isinstance(score, int | float):
        return None, ErrorInfo(ErrorKind.BUG, f"the score is no number but {type(score).__name__}")
    try:
        number = float(score)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return None, ErrorInfo(ErrorKind.OUT_OF_RANGE, "the score is not a finite number")
    return number, None


class Complaints:
    """What backends raised: as an error for the client, and once each in the log.

    Neither has the exception's own text unless it is a :class:`GradingFailure`: it may quote the
    request. The log has the place instead.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def about(self, problem: BaseException | str) -> JudgeResponse:
        """The answer to the one request that the problem was traced to."""
        if isinstance(problem, GradingFailure):
            return JudgeResponse(error=ErrorInfo.of(problem, str(problem)))
        if isinstance(problem, str):
            message = place = problem
        else:
            message = f"the backend raised {type(problem).__name__}"
            place = f"{message} in {_where(problem)}"
        if place not in self._seen and len(self._seen) < _REMEMBERED:
            self._seen.add(place)
            _log.error("%s; the others of its batch were judged. Told once.", place)
        return failed(ErrorKind.BUG, message)


class UnknownKeys:
    """Keys of requests that nothing reads: as warnings for the client, and once each in the log.

    A misspelt ``answer`` would else be judged without a reference, and nobody would know.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def warnings(self, found: Iterable[str], known: Collection[str]) -> list[str] | None:
        """What is said of the keys ``found`` that are not ``known``; ``None`` where all are."""
        unknown = [key for key in found if key not in known]
        said = []
        for key in unknown[:_MOST_NAMED]:
            name = repr(key[:_NAME_LENGTH])
            said.append(f"unknown key {name} was ignored{nearest(key[:_NAME_LENGTH], known)}")
            if name not in self._seen and len(self._seen) < _REMEMBERED:
                self._seen.add(name)
                _log.warning("a request: %s (told once)", said[-1])
        if (more := len(unknown) - _MOST_NAMED) > 0:
            said.append(f"{more} more unknown keys were ignored")
        return said or None


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
