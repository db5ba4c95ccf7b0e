"""What all wire formats share: bodies, token counts, and what an error response means.

Status and error body of a refusal become a ``GradingFailure``:

================================  ======================================================
402, or 400/403/429 about money   ``budget``
400/403/422 about content         ``refused``
400/403/422 about a parameter     ``unsupported`` (log-probabilities, an unknown field, …)
401, other 403                    ``auth``; the endpoint knows when a 403 is not about the key
other 429                         ``rate_limited``
408, 409, 425, 5xx (529 too)      ``server_error``
3xx                               ``unsupported``: redirects are not followed
400/413/422 about a length        ``too_long``
other 4xx                         ``invalid_input``
200 with an error inside          ``budget refused rate_limited``, else ``server_error``
================================  ======================================================

What is ``unsupported`` stops a run (:func:`~adjudge.errors.is_final`), and no candidate may bring
that about. So a parameter counts only where the server names it as such, or begins with it: further
on a message may quote the candidate.

Of an error body only code, type, parameter name and message are read, and whether it has reasons of
a moderator. The message is quoted short, without what looks like a key and without the input that
some servers echo.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

from adjudge.errors import ErrorKind, Fields, GradingFailure, Metadata
from adjudge.judges.base import HttpRequest, HttpResponse, Reply
from adjudge.text import split_thinking
from adjudge.types import Usage

_encoder = msgspec.json.Encoder()


class ReplyBody(msgspec.Struct):
    """What bodies of all formats may have."""

    model: object = None
    usage: object = None
    error: object = None


_Form = TypeVar("_Form", bound=ReplyBody)


def build_headers(key: str | None) -> dict[str, str]:
    """The headers of a request with a JSON body, and with the key if there is one."""
    own = {"authorization": f"Bearer {key}"} if key else {}
    return {"content-type": "application/json", "user-agent": "adjudge", **own}


def encode_body(body: Fields) -> bytes:
    """``body`` as JSON; ``GradingFailure(invalid_input)`` for what JSON or UTF-8 cannot hold."""
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError:
        problem = "a message has half of a surrogate pair, which UTF-8 cannot hold"
    except (TypeError, ValueError, OverflowError):
        problem = "messages, schema or sampling hold something that is no JSON"
    except RecursionError:
        problem = "messages, schema or sampling are nested too deeply"
    raise GradingFailure(ErrorKind.INVALID_INPUT, f"the call cannot be sent: {problem}")


def parse_token_count(value: object) -> int | None:
    """A token count as servers write it; ``None`` for what is none (negative, text, NaN, …)."""
    if type(value) is int:
        return value if value >= 0 else None
    if type(value) is float and 0.0 <= value < 1e15:
        return int(value)
    return None


_QUOTE = 200
_READ = 600

_MONEY_NAME = re.compile("insufficient_quota|billing|arrearage|freetieronly|insufficient_balance")
_MONEY = re.compile(
    r"""exceeded\ your\ current\ quota | credit\ balance | insufficient\ (?:balance|credits)
      | free\ allocated\ quota | spend\ limit | api\ usage\ limits""",
    re.VERBOSE,
)
_CONTENT_NAME = re.compile(
    r"""content_(?:filter|policy) | data_?inspection_?failed | moderation | invalid_prompt
      | prohibited_content | responsibleaipolicyviolation""",
    re.VERBOSE,
)
_CONTENT = re.compile(
    r"""content\ (?:management|filtering)\ policy | usage\ policy | moderation | flagged
      | (?:due\ to\ safety | safety\ system) | (?:prompt|content)\ was\ blocked""",
    re.VERBOSE,
)
_ACCOUNT = re.compile("account|organization|api key")
"""An account may be flagged or blocked as well: then the request is not what is objected to."""
_MODERATED = ("reasons", "flagged_input")
"""What OpenRouter has in the metadata of an error when its moderator objects."""
_PARAMETER = r"""(?:
    response_format | response_schema | (?:json_)?schema | json_object | structured_outputs?
  | grammar | guided_\w+ | output_config | generation_?config | temperature | (?:top|min)_?[pka]
  | \w+_penalty | max(?:_\w+)?_tokens | maxoutputtokens | (?:top_)?logprobs | seed | stop
  | stream(?:_options)? | reasoning(?:_\w+)? | (?:enable_)?thinking | chat_template_kwargs
  | verbosity | tool_choice
)(?!\w)"""
_NAMED_PARAMETER = re.compile(
    rf"unsupported_(?:parameter|value) | unknown_parameter | extra_f | (?:^|[\s.]){_PARAMETER}",
    re.VERBOSE,
)
_COMPLAINT = re.compile(
    rf"""(?:[\w.\ ]{{0,40}}(?:error|exception|request)\W+){{0,2}}\W*(?:the\ |this\ )?  # who says it
    (?: (?:(?:unsupported|invalid|unknown|unexpected|provided|value|parameter|schema|for|in)\W+)*
            (?:json\ )?{_PARAMETER}
      | (?:json:\ )?(?:unsupported|unknown|unrecognized|unexpected)\ (?:request\ )?
            (?:field|param|argument|property|keyword)
      | (?!messages|input|prompt).{{0,30}}?extra[_\ ](?:inputs|fields|forbidden)
      | additional\ properties | property\ '[\w.]+'\ is\ unsupported
      | invalid\ json\ payload\ received\W+unknown\ name
      | (?:failed\ to\ initialize\ samplers\W+)?failed\ to\ parse\ grammar
      | (?:unable\ to\ generate\ parser\ [\w\ ]{{0,40}}\W+automatic\ parser\ generation\ )?
            (?:failed\W+)? json\ schema\ error
      | type\W+\w+\W+loc\W+body\W+{_PARAMETER}
      | [\w\-/`\ ]{{0,60}}\ (?:support|accept|allow)\w*\W
            (?:(?:the|parameters?|field|to|request)\W+)*\W*{_PARAMETER}
    )""",
    re.VERBOSE,
)
"""How a message begins that is about a parameter, a schema, or a choice list."""
_LENGTH = re.compile(r"context[ _](?:length|window|size)|input|prompt|messages")
"""Where a text exceeds a limit, servers also name the parameter that is left less room."""
_TOO_LONG = re.compile(r"too (?:long|large|many)|context|maximum|exceed|tokens\b")
_MEDIA_PHRASE = "input is not supported"
"""What llama.cpp says, with status 500, of an image for a model that reads text only."""
_STREAMS_ONLY = re.compile(
    "only supports? stream|enable the stream parameter|for non-streaming calls|must be streamed"
)
_ECHO = re.compile(r"""['"](?:input|messages)['"]:|input_value=""")
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
_REDACTED = "[redacted]"
_REPLY_TEXTS = ("text", "reasoning", "model", "finish_reason")
_SECRET = re.compile(
    r"(?i)\bbearer\s+\S+|\b(?:sk|gsk|pk|rk)[-_][\w*.-]+|\bkey\s?[:=]\s?\S+|[\w*-]{28,}"
)


_SECRET_HEADER = re.compile(r"auth|key|token|secret")
_SHORTEST_SECRET = 8
"""What is shorter stands for no key at all (``EMPTY``), and may be a word of a reply."""


def _find_keys(request: HttpRequest) -> list[str]:
    keys = [
        value.rpartition(" ")[2]
        for name, value in request.headers.items()
        if _SECRET_HEADER.search(name.lower())
    ]
    return [key for key in keys if len(key) >= _SHORTEST_SECRET]


def hide_key(reply: Reply, request: HttpRequest) -> Reply:
    """``reply`` without the key of ``request``, which some servers repeat.

    Log-probabilities of a text that had the key are left out, for the key is in their tokens.
    """
    for key in _find_keys(request):
        texts = {name: getattr(reply, name) or "" for name in _REPLY_TEXTS}
        if any(key in text for text in texts.values()):
            clean = {name: text.replace(key, _REDACTED) for name, text in texts.items() if text}
            reply = msgspec.structs.replace(reply, **clean, logprobs=None)
    return reply


def hide_key_in_failure(failure: GradingFailure, request: HttpRequest) -> GradingFailure:
    """``failure`` without the key of ``request``; metadata that quote it are left out."""
    for key in _find_keys(request):
        said, metadata = str(failure).replace(key, _REDACTED), failure.metadata
        if key in repr(metadata):
            metadata = {"status": metadata.get("status")}
        failure = GradingFailure(failure.kind, said, metadata, provenance=failure.provenance)
    return failure


class ProviderError(msgspec.Struct, frozen=True):
    """What a server says is wrong; ``names`` are type, code and parameter in lower case.

    ``moderated``: it says what a moderator objected to.
    """

    message: str = ""
    names: str = ""
    moderated: bool = False


def parse_provider_error(data: object) -> ProviderError | None:
    """The complaint in a decoded JSON body; ``None`` when there is none."""
    if not isinstance(data, dict):
        return None
    error = data.get("error")
    if isinstance(error, str):
        return ProviderError(error[:_READ], _error_names(data))
    if isinstance(error, dict):
        metadata = error.get("metadata")
        moderated = isinstance(metadata, dict) and any(map(metadata.get, _MODERATED))
        return ProviderError(_own_text(error.get("message")), _error_names(error), moderated)
    if "error" in (data.get("object"), data.get("type")) or "message" in data:
        return ProviderError(_own_text(data.get("message")), _error_names(data))
    detail = data.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):  # pydantic's
        names = [detail[0].get("type"), *(detail[0].get("loc") or ())]
        said = _own_text(detail[0].get("msg"))
        return ProviderError(said, " ".join(map(str, names))[:_QUOTE].lower())
    return ProviderError(detail[:_READ]) if isinstance(detail, str) else None


def response_failure(response: HttpResponse) -> GradingFailure:
    """The failure that a response with a status outside 2xx stands for."""
    complaint = parse_provider_error(_decode_json(response.body)) or ProviderError()
    kind = _error_kind(response.status, complaint)
    metadata = _failure_metadata(response)
    said = complaint.message.lower()
    if kind is ErrorKind.INVALID_INPUT and response.status in _ABOUT_ONE_REQUEST:
        metadata["suspect"] = True
        if response.status == 413 or _TOO_LONG.search(said):
            kind = ErrorKind.TOO_LONG
    if response.status in (400, 422) and _STREAMS_ONLY.search(said):
        metadata["stream_only"] = True
    if response.status in (400, 422) and "temperature" in f"{said} {complaint.names}":
        metadata["no_temperature"] = True
    what = f"the server answered {response.status}"
    if 300 <= response.status < 400:
        what += ", a redirect, which is not followed: give the address that it leads to"
    return GradingFailure(kind, what + _quote_error(complaint), metadata)


def error_body_failure(response: HttpResponse, data: object) -> GradingFailure:
    """The failure that an error inside a 2xx response, or inside a stream, stands for."""
    complaint = parse_provider_error(data) or ProviderError()
    names = complaint.names.split()
    if _is_about_money(complaint) or "402" in names:
        kind = ErrorKind.BUDGET
    elif _is_about_content(complaint):
        kind = ErrorKind.REFUSED
    elif "429" in names or "rate_limit" in complaint.names:
        kind = ErrorKind.RATE_LIMITED
    else:
        kind = ErrorKind.SERVER_ERROR
    what = f"the server answered {response.status} with an error inside{_quote_error(complaint)}"
    return GradingFailure(kind, what, _failure_metadata(response))


def decode_body(response: HttpResponse, data: bytes, form: type[_Form], name: str) -> _Form:
    """``data``, the body of a 2xx ``response`` or an event of it, in its provider's format.

    Raises the ``GradingFailure`` of an error inside, in whatever shape, and of what is no ``name``.
    """
    try:
        body: _Form = _decoder_of(form).decode(data)
    except msgspec.ValidationError:
        said = _decode_json(data)
        if isinstance(said, dict) and said.get("error"):
            raise error_body_failure(response, said) from None
        raise malformed_failure(response, f"its body is no {name}") from None
    except (ValueError, RecursionError):
        raise malformed_failure(response, "its body is not complete JSON") from None
    if body.error:
        raise error_body_failure(response, {"error": body.error})
    return body


@functools.cache
def _decoder_of(form: type[_Form]) -> msgspec.json.Decoder[_Form]:
    return msgspec.json.Decoder(form)


def parse_usage(
    raw: object, sent: str, received: str, cached: int | None, *, apart: int = 0
) -> Usage | None:
    """The token counts that ``raw`` has under these names; ``None`` where it has neither.

    ``cached``: input tokens from the server's cache; ``apart``: those that the count of what was
    ``sent`` leaves out.
    """
    counts = raw if isinstance(raw, dict) else {}
    reads, writes = parse_token_count(counts.get(sent)), parse_token_count(counts.get(received))
    if reads is None and writes is None:
        return None
    total = (reads or 0) + apart
    return Usage(
        input_tokens=total, output_tokens=writes or 0, cached_tokens=min(cached or 0, total)
    )


def refused_failure(response: HttpResponse, why: str) -> GradingFailure:
    """The failure of a complete reply that the model or a filter withheld."""
    return GradingFailure(ErrorKind.REFUSED, why, {"status": response.status, "headers": {}})


def part_thinking(text: str, thought: str) -> tuple[str, str]:
    """Text and reasoning; what a text thinks inline is added to a ``thought`` of its own field."""
    text, inline = split_thinking(text)
    return text, f"{thought}\n{inline}" if thought and inline else thought or inline


def cut_failure(response: HttpResponse, *, streamed: bool = False) -> GradingFailure:
    """The failure of a body that ended too early; ``streamed``: a part of a stream had come."""
    kind, what = ErrorKind.CONNECTION, "the connection ended in the middle of the response"
    if streamed:
        kind = ErrorKind.TRUNCATED
        what = "the stream ended before its end; half an answer is no answer"
    return GradingFailure(kind, what, {"status": response.status, "headers": {}})


def malformed_failure(response: HttpResponse, problem: str) -> GradingFailure:
    """``server_error``: a 2xx response that is not what the provider promises."""
    return GradingFailure(
        ErrorKind.SERVER_ERROR,
        f"the server answered {response.status}, but {problem}",
        _failure_metadata(response),
    )


def _error_kind(status: int, complaint: ProviderError) -> ErrorKind:
    if status in (400, 403, 422, 429):
        if _is_about_money(complaint) and status != 422:
            return ErrorKind.BUDGET
        if status != 429 and _is_about_content(complaint):
            return ErrorKind.REFUSED
        if status != 429 and _is_about_parameter(complaint):
            return ErrorKind.UNSUPPORTED
    if (kind := _BY_STATUS.get(status)) is not None:
        return kind
    no_media = status == 500 and _MEDIA_PHRASE in complaint.message.lower()
    if no_media or 300 <= status < 400:
        return ErrorKind.UNSUPPORTED
    return ErrorKind.INVALID_INPUT if 400 <= status < 500 else ErrorKind.SERVER_ERROR


def _is_about_money(complaint: ProviderError) -> bool:
    said = complaint.message.lower()
    # DashScope says "insufficient_quota" of its per-minute token limit as well, with this message.
    if "allocated quota exceeded" in said and "free" not in said:
        return False
    if "retry in" in said:  # Gemini says "current quota" of a limit a minute, too
        return False
    return bool(_MONEY_NAME.search(complaint.names) or _MONEY.search(said))


def _is_about_content(complaint: ProviderError) -> bool:
    if complaint.moderated or _CONTENT_NAME.search(complaint.names):
        return True
    said = complaint.message.lower()
    return bool(_CONTENT.search(said) and not _ACCOUNT.search(said))


def _is_about_parameter(complaint: ProviderError) -> bool:
    """Whether the server names a parameter of the request as what is wrong, for any sample."""
    said, names = complaint.message.lower(), complaint.names
    if "messages" in names or ("token" in said and _LENGTH.search(said)):
        return False
    return bool(_NAMED_PARAMETER.search(names) or _COMPLAINT.match(said))


def _decode_json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None


def _error_names(error: Fields) -> str:
    values = (error.get(key) for key in ("type", "code", "param"))
    return " ".join(str(v)[:80].lower() for v in values if isinstance(v, str | int))


def _own_text(message: object) -> str:
    """The message as far as the server speaks itself, before it echoes its input."""
    if not isinstance(message, str):
        return ""
    return _ECHO.split(message[:_READ])[0]


def _quote_error(complaint: ProviderError) -> str:
    """``: "what the server said"``, on one line, without keys, at most 200 characters."""
    printable = "".join(c if c.isprintable() else " " for c in complaint.message)
    words = " ".join(_SECRET.sub(_REDACTED, printable).split())
    if not words:
        return ""
    return f": {words[:_QUOTE]}…" if len(words) > _QUOTE else f": {words}"


def _failure_metadata(response: HttpResponse) -> Metadata:
    """The status, and those headers that say when to come back."""
    limits = {
        name: value[:100]
        for name, value in response.headers.items()
        if name.startswith(_LIMIT_HEADERS)
    }
    return {"status": response.status, "headers": limits}


MAX_RETRY_AFTER_S = 3600.0


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait, or ``None`` when it does not say; at most an hour.

    Reads ``retry-after-ms``, else ``retry-after`` (seconds or a date), which providers send with
    429. Header names are in lower case; values that make no sense are as good as absent.

    >>> parse_retry_after({"retry-after-ms": "250"})
    0.25
    """
    wait = _parse_number(headers.get("retry-after-ms"))
    if wait is not None:
        wait /= 1000
    elif (value := headers.get("retry-after")) is not None:
        wait = _parse_number(value)
        if wait is None and (end := _parse_date(value)) is not None:
            # From the response's own date, else from this machine's.
            start = _parse_date(headers.get("date", ""))
            wait = end - (time.time() if start is None else start)
    return None if wait is None else min(max(wait, 0.0), MAX_RETRY_AFTER_S)


def _parse_number(text: str | None) -> float | None:
    """A finite number ≥ 0."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value < math.inf else None


def _parse_date(text: str) -> float | None:
    """An HTTP date as POSIX seconds."""
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
