"""Between the service's wire and judges: requests as samples, rewards and answers as responses.

What a user's judge may not return is an error of that request. Images of requests are base64 or
``data:`` URIs in, ``data:`` URIs out; addresses never.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from adjudge.config_tables import explain_problem
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.intake.rollouts import RolloutParts, read_rollout, sample_of_rollout
from adjudge.text import replace_surrogates
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderScore,
    RewardResult,
    Sample,
)
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

_MAGIC_BYTES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_SNIFFED_CHARACTERS = 64  # characters of base64 that are decoded to see what it is


def to_data_uri(image: str) -> str:
    """``image`` as a ``data:image/…;base64,…`` URI.

    Plain base64 gets its type from its first bytes (PNG, JPEG, GIF, WebP). Only the beginning is
    decoded. Raises ``GradingFailure(invalid_input)`` for anything else: addresses and files are
    never fetched.

    >>> to_data_uri("iVBORw0KGgo=")
    'data:image/png;base64,iVBORw0KGgo='
    """
    head, comma, body = ("", "", image)
    if image[:5].lower() == "data:":
        head, comma, body = image[:100].partition(",")
        body = image[len(head) + 1 :]
        if not comma or not _is_image_head(head.lower()):
            raise _invalid_image("a data: URI must begin with data:image/TYPE;base64,")
    found = _media_type(body)
    if found is None:
        raise _invalid_image(
            "an image must be PNG, JPEG, GIF or WebP in base64, or a data: URI of one; addresses "
            "are not fetched"
        )
    return image if head else f"data:{found};base64,{body}"


def _is_image_head(head: str) -> bool:
    return head.startswith("data:image/") and head.endswith(";base64")


def _media_type(body: str) -> str | None:
    """The media type that the first bytes speak of."""
    if not body.isascii() or len(body) % 4:
        return None
    try:
        start = base64.b64decode(body[:_SNIFFED_CHARACTERS], validate=True)
    except (binascii.Error, ValueError):
        return None
    for magic, kind in _MAGIC_BYTES:
        if start.startswith(magic):
            return kind
    return "image/webp" if start[:4] == b"RIFF" and start[8:12] == b"WEBP" else None


def _invalid_image(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)


EXPLANATION_LIMIT = 4_000
"""Characters of a response's explanation."""

_MESSAGE_LIMIT = 500


def request_to_sample(request: JudgeRequest, place: int = 0) -> Sample:
    """A request as the sample that graders see; ``place`` is its index in batch and group.

    ``completion`` is ``response``, ``answer`` is ``reference``. The keys of ``metadata`` are
    further fields; what the request itself says goes before them. ``images`` are image parts,
    which a prompt shows by ``{images}``; without ``messages`` they also follow the prompt in
    ``query``, which judges are shown. Raises ``GradingFailure(invalid_input)`` for a bad image.
    """
    own: dict[str, Any] = {"reference": request.answer, "answer_type": request.answer_type}
    if request.images:
        urls = ({"url": to_data_uri(image)} for image in request.images)
        parts = [{"type": "image_url", "image_url": url} for url in urls]
        own["images"] = parts
        if not request.messages and "query" not in (request.metadata or {}):
            own["query"] = [{"type": "text", "text": request.prompt or ""}, *parts]
    said = {name: value for name, value in own.items() if value is not None}
    fields = {**(request.metadata or {}), **said}
    turns = fields.pop("opening_turns", None)
    if request.messages is None:  # texts may be as a chat template rendered them
        read = read_rollout(request.prompt, request.completion)
    else:
        turns = turns if type(turns) is int else None
        read = RolloutParts(request.prompt, request.completion, request.messages, turns)
    return sample_of_rollout(place, place, read, fields)


def result_to_response(
    request: JudgeRequest,
    judged: GradedSample,
    result: RewardResult,
    names: Iterable[str],
    components: Mapping[str, float] | None = None,
    members: int = 1,
) -> JudgeResponse:
    """What the graders ``names`` said, as the answer to ``request``.

    ``detailed_scores`` is each grader's own score by name, on its own scale, ``None`` where it is
    missing. ``components`` are those of the reward (:meth:`RewardReducer.components
    <adjudge.rewards.reducer.RewardReducer.components>`); one alone is none. ``members``: in a
    group of so many, this sample's share of what ranking all cost. ``confidence`` where exactly one
    grader stated one.
    """
    named = {name: result.reward_info.get(f"{name}_score") for name in names}
    response = JudgeResponse(
        score=result.score,
        request_id=request.request_id,
        explanation=_join_reasons(judged),
        detailed_scores=named,
        confidence=_stated_confidence(judged),
        metadata=_judge_costs(judged, members),
        reward_components=dict(components) if components and len(components) > 1 else None,
    )
    if result.missing is not None:
        response.score, response.error = None, _missing_error(result.missing, judged)
        response.reward_components = None
    return response


def request_error_response(request: JudgeRequest, kind: ErrorKind, message: str) -> JudgeResponse:
    """The answer to a request that got no score."""
    error = ErrorInfo(kind, replace_surrogates(message[:_MESSAGE_LIMIT]))
    return JudgeResponse(request_id=request.request_id, error=error)


def request_failure_response(request: JudgeRequest, failure: GradingFailure) -> JudgeResponse:
    """:func:`request_error_response`, of an exception."""
    error = ErrorInfo.of(failure, replace_surrogates(str(failure)[:_MESSAGE_LIMIT]))
    return JudgeResponse(request_id=request.request_id, error=error)


def _missing_error(missing: GraderError, judged: GradedSample) -> ErrorInfo:
    said = missing.error
    if missing.kind is ErrorKind.BUG:
        said = _bug_message(missing, judged)
    if not said.startswith(f"{missing.name}: "):
        said = f"{missing.name}: {said}"
    return ErrorInfo.of(missing, replace_surrogates(said[:_MESSAGE_LIMIT]))


def _bug_message(missing: GraderError, judged: GradedSample) -> str:
    """What an exception says may quote the sample: its type and place tell enough."""
    for name, result in judged.results():
        if name == missing.name and isinstance(result, GraderError) and "at" in result.metadata:
            return f"{result.error.partition(':')[0]} at {result.metadata['at']}"
    return missing.error


def _join_reasons(judged: GradedSample) -> str | None:
    """The reason of each grader under its name; those of events are numbered."""
    found = list(judged.outcome.items())
    if not isinstance(judged.events, GraderError):
        for place, event in enumerate(judged.events):
            found += [(f"{name}[{place}]", result) for name, result in event.items()]
    lines = [
        f"{label}: {result.reason}"
        for label, result in found
        if isinstance(result, GraderScore) and result.reason
    ]
    return _shorten(replace_surrogates("\n".join(lines))) or None


def _shorten(text: str) -> str:
    return text if len(text) <= EXPLANATION_LIMIT else text[: EXPLANATION_LIMIT - 1] + "…"


def _stated_confidence(judged: GradedSample) -> float | None:
    """The one confidence that was stated, in a grader's metadata or its reply's fields."""
    stated = []
    for _, result in judged.results():
        fields = result.metadata.get("fields")
        for place in (result.metadata, fields if isinstance(fields, Mapping) else {}):
            value: Any = place.get("confidence")
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            if numeric and 0 <= value <= 1:
                stated.append(float(value))
                break
    return stated[0] if len(stated) == 1 else None


def _judge_costs(judged: GradedSample, members: int) -> dict[str, Any] | None:
    """``cost_usd`` where every call had a price, and the ``judges`` that answered."""
    found = [(r, r.provenance) for _, r in judged.results() if r.provenance is not None]
    models = sorted({source.model for _, source in found if source.model})
    said: dict[str, Any] = {"judges": models} if models else {}
    costs: list[float | None] = []
    for result, source in found:
        if source.paid is not None:
            shared = members if "rank" in result.metadata else 1
            cost = source.paid.cost_usd
            costs.append(None if cost is None else cost / shared)
        elif source.usage is not None:
            costs.append(0.0)  # a kept reply, or another sample's
    known = [cost for cost in costs if cost is not None]
    if costs and len(known) == len(costs):
        said["cost_usd"] = math.fsum(known)
    return said or None


def _read_number(value: Any) -> float:
    """A number, of any library."""
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ValueError("must be a number; for a missing score raise adjudge.GradingFailure")
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except Exception as error:  # an array of several numbers, whatever its library
        raise ValueError("must be one number") from error


def _read_text(value: Any) -> Any:
    return _shorten(replace_surrogates(value)) if isinstance(value, str) else value


def _check_plain(value: Any) -> Any:
    finite = type(value) is float and math.isfinite(value)
    if not finite and value is not None and type(value) not in (str, int, bool):
        raise ValueError("must be text, a whole or finite number, or a boolean")
    return value


_Number = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_read_number)]
_MaybeNumber = _Number | None


_Name = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]
"""A criterion's number is its name, as in JSON."""


class UserAnswer(BaseModel, extra="forbid"):
    """What a user's judge may return for a request, other than a number."""

    score: _Number
    explanation: Annotated[str | None, BeforeValidator(_read_text)] = None
    detailed_scores: dict[_Name, _MaybeNumber] | None = None
    confidence: Annotated[_MaybeNumber, Field(ge=0, le=1)] = None
    metadata: dict[str, Annotated[Any, AfterValidator(_check_plain)]] | None = None


_OUT_OF_RANGE = ("finite_number", "greater_than_equal", "less_than_equal")


def read_answer(request: JudgeRequest, said: Any) -> JudgeResponse:
    """The response to ``request`` that ``said`` stands for.

    ``said`` is a number (of any library), a mapping with the fields of :class:`UserAnswer`, or a
    ``GradingFailure`` (a batch's way to fail one). Everything else is the error ``bug``, a number
    that is not finite ``out_of_range``; there is no default.
    """
    if isinstance(said, GradingFailure):
        return request_failure_response(request, said)
    given = dict(said) if isinstance(said, Mapping) else {"score": said}
    try:
        found = UserAnswer.model_validate(given)
        response = JudgeResponse(request_id=request.request_id, **found.__dict__)
        msgspec.json.encode(found.__dict__)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        kind = ErrorKind.OUT_OF_RANGE if first["type"] in _OUT_OF_RANGE else ErrorKind.BUG
        return request_error_response(request, kind, explain_problem(UserAnswer, first, given))
    except (TypeError, ValueError, OverflowError):  # half surrogates, huge numbers
        message = "detailed_scores or metadata hold what JSON cannot"
        return request_error_response(request, ErrorKind.BUG, message)
    return response
