"""What went wrong between client and service, in words that name the setting to change."""

from __future__ import annotations

from adjudge.client.settings import ClientSettings
from adjudge.errors import ErrorKind, GradingFailure, is_passing

__all__ = ["advised", "falls_back"]


def falls_back(failure: GradingFailure) -> bool:
    """Whether a rule may stand in: the service is away, fails after retries, is given up, is late.

    Not where this side is at fault (``metadata["local"]``), the key is refused, the request is
    wrong, or a judge answered and could not be read.
    """
    return is_passing(failure.kind, failure.metadata)


def advised(failure: GradingFailure, settings: ClientSettings) -> GradingFailure:
    """``failure`` with what to do about it; a new object, since many may get the same one."""
    kind, said = failure.kind, str(failure)
    if failure.metadata.get("judge"):  # said by a judge, about this request
        message = said
    elif kind is ErrorKind.CIRCUIT_OPEN:
        message = (
            f"circuit breaker open: {settings.judge_url} failed circuit_breaker_threshold = "
            f"{settings.circuit_breaker_threshold} times in a row and is asked again after "
            f"circuit_breaker_timeout = {settings.circuit_breaker_timeout:g} s; see its /health"
        )
    elif kind is ErrorKind.TIMEOUT:
        message = (
            f"timeout waiting for results: {said} (timeout = {settings.timeout:g} s); raise "
            "timeout, or max_concurrent_requests where requests wait to be sent"
        )
    elif kind is ErrorKind.RATE_LIMITED and not failure.metadata.get("local"):
        message = (
            f"request queue full: {said}; lower max_concurrent_requests or max_batch_size, or raise"
            " the service's queue_size"
        )
    elif kind in (ErrorKind.CONNECTION, ErrorKind.SERVER_ERROR):
        tries = failure.metadata.get("attempts", 1)
        message = f"{settings.judge_url}: {said} (sent {tries} ×, max_retries = "
        message += f"{settings.max_retries})"
    elif kind is ErrorKind.INVALID_INPUT and failure.metadata.get("status") in (404, 405):
        message = f"{said}; is judge_url = {settings.judge_url} a judge service's address?"
    elif kind is ErrorKind.AUTH:
        message = f"{said} (the key comes from the variable {settings.api_key_env}, api_key_env)"
    else:
        message = said
    return GradingFailure(kind, message, dict(failure.metadata))
