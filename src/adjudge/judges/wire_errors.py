"""What a provider's refusal means: from status and error body to a ``GradingFailure``.

================================  ======================================================
402, or 400/403/429 about money   ``budget``
400/403/422 about content         ``refused``
400/403/422 about a parameter     ``unsupported`` (log-probabilities of a reasoning model, …)
401, other 403                    ``auth``; the endpoint knows when a 403 is not about the key
other 429                         ``rate_limited``
408, 409, 425, 5xx (529 too)      ``server_error``
3xx                               ``unsupported``: redirects are not followed
other 4xx                         ``invalid_input``
200 with an error inside          ``budget refused rate_limited``, else ``server_error``
================================  ======================================================

Of an error body only code, type, parameter name and message are read, and whether it has reasons of
a moderator. The message is quoted short,
without what looks like a key and without the input that some servers echo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpResponse

__all__ = ["Complaint", "complaint_in", "error_in_success", "failure_of", "malformed"]

_QUOTE = 200
_READ = 600

_MONEY_NAMES = (
    "insufficient_quota",
    "billing",
    "arrearage",
    "freetieronly",
    "insufficient_balance",
)
_MONEY_PHRASES = (
    "exceeded your current quota",
    "credit balance",
    "insufficient balance",
    "insufficient credits",
    "free allocated quota",
    "spend limit",
)
_CONTENT_NAMES = (
    "content_filter",
    "content_policy",
    "data_inspection_failed",
    "datainspectionfailed",
    "moderation",
    "invalid_prompt",
    "prohibited_content",
    "responsibleaipolicyviolation",
)
_CONTENT_PHRASES = (
    "content management policy",
    "content filtering policy",
    "usage policy",
    "moderation",
    "flagged",
    "safety system",
    "due to safety",
    "prompt was blocked",
    "content was blocked",
)
_MODERATED = ("reasons", "flagged_input")
"""What OpenRouter has in the metadata of an error when its moderator objects."""
_ACCOUNT_PHRASES = ("account", "organization", "api key")
"""An account may be flagged or blocked as well: then the request is not what is objected to."""
_PARAMETER_NAMES = ("unsupported_parameter", "unsupported_value")
_STREAM_PHRASES = (
    "only support stream",
    "only supports stream",
    "enable the stream parameter",
    "for non-streaming calls",
    "must be streamed",
)
_ECHOES = ("'input':", '"input":', "input_value=", "'messages':", '"messages":')
_LIMIT_HEADERS = ("retry-after", "x-ratelimit-", "anthropic-ratelimit-", "x-should-retry")
# A request that is too long or malformed, as a candidate may have made it.
_ABOUT_ONE_REQUEST = (400, 413, 422)
_BY_STATUS = {
    401: ErrorKind.AUTH,
    402: ErrorKind.BUDGET,
    403: ErrorKind.AUTH,
    408: ErrorKind.SERVER_ERROR,
    409: ErrorKind.SERVER_ERROR,
    425: ErrorKind.SERVER_ERROR,
    429: ErrorKind.RATE_LIMITED,
}
_SECRET = re.compile(
    r"(?i)\bbearer\s+\S+|\b(?:sk|gsk|pk|rk)[-_][\w*.-]+|\bkey\s?[:=]\s?\S+|[\w*-]{28,}"
)


class Complaint(msgspec.Struct, frozen=True):
    """What a server says is wrong; ``names`` are type, code and parameter in lower case.

    ``moderated``: it says what a moderator objected to.
    """

    message: str = ""
    names: str = ""
    moderated: bool = False


def complaint_in(data: Any) -> Complaint | None:
    """The complaint in a decoded JSON body; ``None`` when there is none."""
    if not isinstance(data, dict):
        return None
    error = data.get("error")
    if isinstance(error, str):
        return Complaint(error[:_READ], _names(data))
    if isinstance(error, dict):
        return Complaint(_text(error.get("message")), _names(error), _moderated(error))
    if "error" in (data.get("object"), data.get("type")) or "message" in data:
        return Complaint(_text(data.get("message")), _names(data))
    detail = data.get("detail")
    return Complaint(detail[:_READ]) if isinstance(detail, str) else None


def failure_of(response: HttpResponse) -> GradingFailure:
    """The failure that a response with a status outside 2xx stands for."""
    complaint = complaint_in(_decoded(response.body)) or Complaint()
    kind = _kind(response.status, complaint)
    metadata = _metadata(response)
    if kind is ErrorKind.INVALID_INPUT and response.status in _ABOUT_ONE_REQUEST:
        metadata["suspect"] = True
    said = complaint.message.lower()
    if response.status in (400, 422) and any(phrase in said for phrase in _STREAM_PHRASES):
        metadata["stream_only"] = True
    what = f"the server answered {response.status}"
    if 300 <= response.status < 400:
        what += ", a redirect; redirects are not followed, so correct base_url"
    return GradingFailure(kind, what + _quoted(complaint), metadata)


def error_in_success(response: HttpResponse, data: Any) -> GradingFailure:
    """The failure that an error inside a 2xx response, or inside a stream, stands for."""
    complaint = complaint_in(data) or Complaint()
    names = complaint.names.split()
    if _about_money(complaint):
        kind = ErrorKind.BUDGET
    elif _about_content(complaint):
        kind = ErrorKind.REFUSED
    elif "429" in names or "rate_limit" in complaint.names:
        kind = ErrorKind.RATE_LIMITED
    else:
        kind = ErrorKind.SERVER_ERROR
    what = f"the server answered {response.status} with an error inside{_quoted(complaint)}"
    return GradingFailure(kind, what, _metadata(response))


def malformed(response: HttpResponse, problem: str) -> GradingFailure:
    """``server_error``: a 2xx response that is not what the provider promises."""
    return GradingFailure(
        ErrorKind.SERVER_ERROR,
        f"the server answered {response.status}, but {problem}",
        _metadata(response),
    )


def _kind(status: int, complaint: Complaint) -> ErrorKind:
    if status in (400, 403, 422, 429):
        if _about_money(complaint) and status != 422:
            return ErrorKind.BUDGET
        if status != 429 and _about_content(complaint):
            return ErrorKind.REFUSED
        if status != 429 and _about_parameter(complaint):
            return ErrorKind.UNSUPPORTED
    if (kind := _BY_STATUS.get(status)) is not None:
        return kind
    if 300 <= status < 400:
        return ErrorKind.UNSUPPORTED
    return ErrorKind.INVALID_INPUT if 400 <= status < 500 else ErrorKind.SERVER_ERROR


def _about_money(complaint: Complaint) -> bool:
    said = complaint.message.lower()
    # DashScope says "insufficient_quota" of its per-minute token limit as well, with this message.
    if "allocated quota exceeded" in said and "free" not in said:
        return False
    return _any(_MONEY_NAMES, complaint.names) or _any(_MONEY_PHRASES, said)


def _about_content(complaint: Complaint) -> bool:
    if complaint.moderated or _any(_CONTENT_NAMES, complaint.names):
        return True
    said = complaint.message.lower()
    return _any(_CONTENT_PHRASES, said) and not _any(_ACCOUNT_PHRASES, said)


def _about_parameter(complaint: Complaint) -> bool:
    if _any(_PARAMETER_NAMES, complaint.names):
        return True
    return "logprobs" in complaint.names or "logprobs" in complaint.message.lower()


def _any(needles: tuple[str, ...], text: str) -> bool:
    return any(needle in text for needle in needles)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def _names(error: Mapping[str, Any]) -> str:
    values = (error.get(key) for key in ("type", "code", "param"))
    return " ".join(str(v)[:80].lower() for v in values if isinstance(v, str | int))


def _moderated(error: Mapping[str, Any]) -> bool:
    metadata = error.get("metadata")
    return isinstance(metadata, dict) and any(metadata.get(key) for key in _MODERATED)


def _text(message: object) -> str:
    """The message as far as the server speaks itself, before it echoes its input."""
    if not isinstance(message, str):
        return ""
    message = message[:_READ]
    ends = [at for echo in _ECHOES if (at := message.find(echo)) >= 0]
    return message[: min(ends)] if ends else message


def _quoted(complaint: Complaint) -> str:
    """``: "what the server said"``, on one line, without keys, at most 200 characters."""
    printable = "".join(c if c.isprintable() else " " for c in complaint.message)
    words = " ".join(_SECRET.sub("[redacted]", printable).split())
    if not words:
        return ""
    return f": {words[:_QUOTE]}…" if len(words) > _QUOTE else f": {words}"


def _metadata(response: HttpResponse) -> dict[str, Any]:
    """The status, and those headers that say when to come back."""
    limits = {
        name: value[:100]
        for name, value in response.headers.items()
        if name.startswith(_LIMIT_HEADERS)
    }
    return {"status": response.status, "headers": limits}
