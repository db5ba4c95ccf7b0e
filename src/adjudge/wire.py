"""What travels between a client and the judge service: requests, responses, their JSON.

Both ends use these shapes, so they are defined once. A response has a ``score``, or an ``error``
and no score: a judge that failed has said nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from adjudge.errors import FINAL, ErrorKind, GradingFailure, Metadata, is_passing
from adjudge.types import GraderError

JUDGE_KEY_VARIABLE = "JUDGE_MODEL_API_KEY"
"""The environment variable with the key that a service asks its clients for, on both sides."""

MAX_BATCH = 128
"""The most requests in one ``/batch_judge``."""

MAX_GROUP_SIZE = 1024
"""The most samples of one group."""

MAX_ID_LENGTH = 256
"""Characters of what tells groups, the samples of a group, and runs apart."""

MAX_NESTING_DEPTH = 64
"""How deep lists and objects may be nested in what a request brings along."""


class JudgeRequest(msgspec.Struct, omit_defaults=True):
    """``POST /judge``: one completion to be judged.

    ``answer`` is the reference, any JSON value, and reaches the graders as it was sent; ``null`` is
    no reference. ``answer_type`` says how to compare with it (``NUMBER``, ``MULTIPLE_CHOICE``, …).
    ``metadata`` holds further fields of the sample by name; ``messages`` an agent's whole
    conversation in any maker's form, of which the first ``opening_turns`` (of ``metadata``) are the
    prompt's; ``images`` base64 or ``data:`` URIs, never addresses. ``request_id`` comes back with
    the response.
    """

    prompt: str | None
    completion: str
    answer: Any = None
    answer_type: str | None = None
    request_id: str | None = None
    metadata: Metadata | None = None
    messages: list[Metadata] | None = None
    images: list[str] | None = None


class GroupRequest(JudgeRequest, omit_defaults=True, kw_only=True):
    """``POST /group_judge``: one sample of a group of ``group_size``, answered when all are there.

    ``aborted`` announces that this sample will never be complete; it is not judged, and the others
    do not wait for it. ``request_id`` identifies a sample of the group. ``replays``: a trainer that
    plays a lost rollout again under its ``request_id`` sends it; then the last text counts.
    """

    group_id: str
    group_size: int
    aborted: bool = False
    replays: bool = False


class ErrorInfo(msgspec.Struct, omit_defaults=True):
    """Why there is no score: a kind of :class:`~adjudge.errors.ErrorKind` and what happened.

    ``local``: a deadline of the service's own work passed, so asking again would not help and
    nothing is down. ``suspect``: whether the completion may have brought it about; where it is not
    said, the kind decides (:func:`~adjudge.errors.is_suspect`). ``final``: no request will do
    better.
    """

    kind: ErrorKind
    message: str
    local: bool = False
    suspect: bool | None = None
    final: bool = False

    @classmethod
    def of(cls, failure: GradingFailure | GraderError, message: str) -> ErrorInfo:
        """What ``failure`` says on the wire, in these words."""
        local = bool(failure.metadata.get("local"))
        return cls(failure.kind, message, local, failure.suspect, failure.final)

    @property
    def failure_metadata(self) -> dict[str, bool]:
        """What is said of it, as metadata of a failure."""
        marks = {mark: True for mark in ("local", FINAL) if getattr(self, mark)}
        return marks if self.suspect is None else {**marks, "suspect": self.suspect}

    @property
    def passing(self) -> bool:
        """Whether it may pass by itself, so that asking again makes sense."""
        return is_passing(self.kind, self.failure_metadata)


class JudgeResponse(msgspec.Struct, omit_defaults=True):
    """The answer to one request: ``score`` or ``error``, never both and never neither.

    ``detailed_scores`` are the graders' own, by name; ``confidence`` in [0, 1] where the judge
    gives one; ``metadata`` has ``latency`` in seconds and ``model_version``. ``warnings`` names
    keys of the request that nothing reads. ``reward_components``: where several graders count, what
    each brings to the score, normalised by its range and not weighted, in the order of the spec.
    ``failures``: of graders that failed although there is a score, the kinds.
    """

    score: float | None = None
    request_id: str | None = None
    explanation: str | None = None
    detailed_scores: dict[str, float | None] | None = None
    confidence: float | None = None
    metadata: Metadata | None = None
    error: ErrorInfo | None = None
    warnings: list[str] | None = None
    reward_components: dict[str, float] | None = None
    failures: dict[str, ErrorKind] | None = None

    @property
    def model_version(self) -> str | None:
        """Of the judge, where it says so."""
        version = (self.metadata or {}).get("model_version")
        return version if isinstance(version, str) else None


BATCH_LENGTH = msgspec.Meta(min_length=1, max_length=MAX_BATCH)


class BatchRequest(msgspec.Struct):
    """``POST /batch_judge``: 1 to :data:`MAX_BATCH` requests."""

    requests: Annotated[list[JudgeRequest], BATCH_LENGTH]


class BatchResponse(msgspec.Struct, omit_defaults=True):
    """One response per request, in the same order; ``warnings`` as in :class:`JudgeResponse`."""

    responses: list[JudgeResponse]
    warnings: list[str] | None = None
