"""Between the service's wire and a reward function: requests as samples, rewards as responses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from adjudge.client.wire import ErrorInfo, JudgeRequest, JudgeResponse, answer_text
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.rewards.batch import Judged
from adjudge.rewards.samples import RewardResult, RewardSample
from adjudge.service.backends.images import data_uri
from adjudge.types import GraderError, GraderResult, GraderScore

__all__ = [
    "EXPLANATION_LIMIT",
    "failed",
    "refused",
    "response_of",
    "sample_of",
    "sendable_text",
]

EXPLANATION_LIMIT = 4_000
"""Characters of a response's explanation."""

_MESSAGE_LIMIT = 500


def sample_of(request: JudgeRequest, place: int = 0, max_image_mb: float = 8.0) -> RewardSample:
    """A request as the sample that graders see; ``place`` is its index in batch and group.

    ``completion`` is ``response``, ``answer`` is ``reference`` (as text). The keys of ``metadata``
    are further fields; what the request itself says goes before them. ``images`` are image parts,
    which a prompt shows by ``{images}``; without ``messages`` they also follow the prompt in
    ``query``, which judges are shown. Raises ``GradingFailure(invalid_input)`` for a bad image.
    """
    own: dict[str, Any] = {
        "prompt": request.prompt,
        "response": request.completion,
        "messages": request.messages,
        "reference": answer_text(request.answer),
        "answer_type": request.answer_type,
    }
    if request.images:
        parts = [_part(data_uri(image, max_image_mb)) for image in request.images]
        own["images"] = parts
        if not request.messages and "query" not in (request.metadata or {}):
            own["query"] = [{"type": "text", "text": request.prompt}, *parts]
    said = {name: value for name, value in own.items() if value is not None}
    fields = {**(request.metadata or {}), **said}
    messages = fields.pop("messages", None)
    return RewardSample(
        place, place, fields.pop("prompt"), fields.pop("response"), messages, fields
    )


def _part(uri: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri}}


def response_of(
    request: JudgeRequest,
    judged: Judged,
    result: RewardResult,
    names: Iterable[str],
    members: int = 1,
) -> JudgeResponse:
    """What the graders ``names`` said, as the answer to ``request``.

    ``detailed_scores`` is each grader's own score by name, on its own scale, ``None`` where it is
    missing. ``members``: in a group of so many, this sample's share of what ranking all cost.
    ``confidence`` where exactly one grader stated one.
    """
    named = {name: result.reward_info.get(f"{name}_score") for name in names}
    response = JudgeResponse(
        score=result.score,
        request_id=request.request_id,
        explanation=_explanation(judged),
        detailed_scores=named,
        confidence=_confidence(judged),
        metadata=_spent(judged, members),
    )
    if result.missing is not None:
        response.score, response.error = None, _error(result.missing, judged)
    return response


def failed(request: JudgeRequest, kind: ErrorKind, message: str) -> JudgeResponse:
    """The answer to a request that got no score."""
    error = ErrorInfo(kind, sendable_text(message[:_MESSAGE_LIMIT]))
    return JudgeResponse(request_id=request.request_id, error=error)


def sendable_text(text: str) -> str:
    """``text`` that UTF-8 can hold: halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode()


def refused(request: JudgeRequest, failure: GradingFailure) -> JudgeResponse:
    """:func:`failed`, of an exception."""
    error = ErrorInfo.of(failure, sendable_text(str(failure)[:_MESSAGE_LIMIT]))
    return JudgeResponse(request_id=request.request_id, error=error)


def _error(missing: GraderError, judged: Judged) -> ErrorInfo:
    said = missing.error
    if missing.kind is ErrorKind.BUG:
        said = _bug_words(missing, judged)
    if not said.startswith(f"{missing.name}: "):
        said = f"{missing.name}: {said}"
    return ErrorInfo.of(missing, sendable_text(said[:_MESSAGE_LIMIT]))


def _bug_words(missing: GraderError, judged: Judged) -> str:
    """What an exception says may quote the sample: its type and place tell enough."""
    for name, result in judged.results():
        if name == missing.name and isinstance(result, GraderError) and "at" in result.metadata:
            return f"{result.error.partition(':')[0]} at {result.metadata['at']}"
    return missing.error


def _labelled(judged: Judged) -> Iterator[tuple[str, GraderResult]]:
    """Every result under its grader's name, those of events numbered."""
    events = [] if isinstance(judged.events, GraderError) else judged.events
    numbered = (
        (f"{name}[{place}]", result)
        for place, event in enumerate(events)
        for name, result in event.items()
    )
    return chain(judged.outcome.items(), numbered)


def _explanation(judged: Judged) -> str | None:
    lines: list[str] = []
    left = EXPLANATION_LIMIT
    for label, result in _labelled(judged):
        if not isinstance(result, GraderScore) or not result.reason:
            continue
        line = f"{label}: {result.reason}"
        if len(line) > left:
            lines.append(line[: max(left - 1, 0)] + "…")
            break
        lines.append(line)
        left -= len(line) + 1
    return sendable_text("\n".join(lines)) or None


def _confidence(judged: Judged) -> float | None:
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


def _spent(judged: Judged, members: int) -> dict[str, Any] | None:
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
