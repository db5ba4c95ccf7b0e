"""Everything that can go wrong, named once.

The judge's fault is a missing reward, the candidate's fault is a verdict (:class:`Cause`). A judge
that failed has said nothing, so a failure is a value with a kind (:class:`ErrorKind`), carried by
:class:`adjudge.GraderError`; it is never a score.
Exceptions are for what must stop the caller::

    AdjudgeError
    ├── GradingFailure       a grader could not answer; the runner turns it into GraderError(kind)
    ├── ConfigError          a file or argument that the user wrote is wrong   (also a ValueError)
    ├── RolloutError         a row of a rollout file is wrong                  (also a ValueError)
    ├── RunFolderError       a run folder or journal belongs to another run    (also a ValueError)
    ├── JudgeAuthError       a provider refused the key; no retry cures it     (also a RuntimeError)
    ├── JudgeUnavailable     no judge gives rewards any more                   (also a RuntimeError)
    ├── MissingRewardError   rewards are missing and the policy is ``raise``   (also a RuntimeError)
    └── TrainingStopped      `adjudge watch --stop` ends a recorded run       (also a RuntimeError)

Every exception here survives pickling with its attributes, because Ray and process pools pickle.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

Metadata = dict[str, Any]
"""Plain data by name: what else is known of an answer or a failure, a row, a message."""

Fields = Mapping[str, Any]
"""The same to be read only: a sample's fields, a table of settings."""


class Cause(StrEnum):
    """Whose doing it is that a grader has no ordinary answer.

    ``CANDIDATE``: the answer is empty, unfinished, or alone exceeds a budget; it gets the grader's
    minimum, which is a verdict. ``NOT_APPLICABLE``: there was nothing for this grader to judge.
    ``JUDGE``: the judge, the network, the reference or this machine failed; the score is missing.
    """

    CANDIDATE = "candidate"
    NOT_APPLICABLE = "not_applicable"
    JUDGE = "judge"


class ErrorKind(StrEnum):
    """Why a grader has no answer. A flat vocabulary; reports count by it.

    >>> ErrorKind("timeout") is ErrorKind.TIMEOUT, str(ErrorKind.TIMEOUT)
    (True, 'timeout')
    """

    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    CONNECTION = "connection"
    SERVER_ERROR = "server_error"
    REFUSED = "refused"
    UNPARSABLE = "unparsable"
    OUT_OF_RANGE = "out_of_range"
    TRUNCATED = "truncated"
    INCOMPLETE = "incomplete"
    QUORUM = "quorum"
    NOT_SAMPLED = "not_sampled"
    BUDGET = "budget"
    CIRCUIT_OPEN = "circuit_open"
    NOT_APPLICABLE = "not_applicable"
    INVALID_INPUT = "invalid_input"
    TOO_LONG = "too_long"
    UNSUPPORTED = "unsupported"
    AUTH = "auth"
    BUG = "bug"
    CANCELLED = "cancelled"

    @classmethod
    def _missing_(cls, value: object) -> ErrorKind:
        raise ValueError(f"the kind is unknown (found {value!r:.80}; allowed: {', '.join(cls)})")


PASSING_KINDS = frozenset(
    {
        ErrorKind.TIMEOUT,
        ErrorKind.RATE_LIMITED,
        ErrorKind.CONNECTION,
        ErrorKind.SERVER_ERROR,
        ErrorKind.CIRCUIT_OPEN,
    }
)
"""Kinds that pass by themselves: asked once more."""

REDRAW_KINDS = frozenset({ErrorKind.UNPARSABLE, ErrorKind.TRUNCATED, ErrorKind.REFUSED})
"""Kinds that a fresh draw may cure: asked once more with a new ``draw``."""

SUSPECT_KINDS = REDRAW_KINDS | {
    ErrorKind.OUT_OF_RANGE,
    ErrorKind.INCOMPLETE,
    ErrorKind.TOO_LONG,
}
"""Kinds that the candidate may have brought about: missing, and watched for what predicts them."""


LACKED = "lacked_fields"
"""In a failure's metadata: the fields of the sample for lack of which there is no answer."""

ASKED_AGAIN = "asked_again"
"""In a failure's metadata: who asked has asked again, so nobody else has to."""

BLAMED = "blamed"
"""In a failure's metadata: this sample alone made the judge of its group fail."""

FINAL = "final"
"""In a failure's metadata: no call will do better, whatever the sample is; see :func:`is_final`."""

_NOT_FOUND_STATUSES = (404, 405, 410)

LOST = "lost"
"""The key of metadata of a result about a rollout that was lost: no grader was asked."""


def is_suspect(kind: ErrorKind, metadata: Fields) -> bool:
    """Whether the candidate may have brought a failure about.

    ``metadata["suspect"]`` says so where it is there: of a request refused as malformed, of an
    answer of several parts by their kinds. Else the kind decides, and a ``timeout`` that
    ``metadata["local"]`` marks as a deadline of our own, which a hostile answer may have spent.
    """
    marked = metadata.get("suspect")
    if marked is None:
        spent = kind is ErrorKind.TIMEOUT and bool(metadata.get("local"))
        return spent or kind in SUSPECT_KINDS
    return bool(marked)


def is_passing(kind: ErrorKind, metadata: Fields) -> bool:
    """Whether a failure may pass by itself: a passing kind whose cause is not on this side.

    ``metadata["local"]`` marks what this side did: work here that ran past its deadline (a hostile
    expression, say), a full queue, a row that is wrong. It would again, and says nothing about a
    judge being down.
    """
    return kind in PASSING_KINDS and not metadata.get("local")


def is_final(kind: ErrorKind, metadata: Fields) -> bool:
    """Whether a failure cannot pass by itself: every further call would fail in the same way.

    A refused key, a spent budget, and what a server says (by its ``status``) of the model's name,
    the address or a parameter, which all calls have. ``metadata["final"]`` says so where it is
    there: of an answer of several parts by their failures, of a judge behind a service.
    """
    if kind in (ErrorKind.AUTH, ErrorKind.BUDGET) or metadata.get(FINAL):
        return True
    status = None if FINAL in metadata else metadata.get("status")
    if not isinstance(status, int) or status == 500:
        return False
    moved = 300 <= status < 400 or status in _NOT_FOUND_STATUSES
    return moved or (kind is ErrorKind.UNSUPPORTED and status >= 400)


_WORD = re.compile(r"\S+")
_SCHEME = re.compile(r"(?i)https?:/{1,2}|[\"'(\[]*")
_QUERY = re.compile(r"\?[^\s#'\")]+")


def redact_addresses(text: str) -> str:
    """``text`` without the users, passwords and queries of the addresses in it.

    >>> redact_addresses("HTTP://any:secret@host/v1?key=secret: user:secret@host, a@b.org, why?")
    'HTTP://[redacted]@host/v1?[redacted] [redacted]@host, a@b.org, why?'
    """
    return _WORD.sub(_redact_word, text) if "@" in text or "://" in text else text


def _redact_word(found: re.Match[str]) -> str:
    word = found[0]
    user, at, rest = word.rpartition("@")
    is_user = bool(at) and (":" in user or "//" in user)
    if is_user:
        scheme = _SCHEME.search(user)
        word = f"{user[: scheme.end() if scheme else 0]}[redacted]@{rest}"
    return _QUERY.sub("?[redacted]", word) if is_user or "://" in word else word


class AdjudgeError(Exception):
    """Base of all exceptions raised on purpose by adjudge; no message has an address's password."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact_addresses(one) if isinstance(one, str) else one for one in args))

    def __reduce__(self) -> tuple[object, ...]:
        # The default rebuilds from ``args`` (the message) and so loses keyword attributes.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[AdjudgeError], args: tuple[object, ...], state: Metadata) -> AdjudgeError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class GradingFailure(AdjudgeError):
    """Raised inside a grader or judge that cannot answer; becomes ``GraderError(kind)``.

    ``metadata`` travels into the error, so partial knowledge is kept, and so does ``provenance``
    (:class:`~adjudge.types.Provenance`): what was spent on the failure.

    >>> failure = GradingFailure("invalid_input", "nothing to measure")
    >>> failure.kind, str(failure)
    (<ErrorKind.INVALID_INPUT: 'invalid_input'>, 'nothing to measure')
    """

    def __init__(
        self,
        kind: ErrorKind | str,
        message: str,
        metadata: Metadata | None = None,
        *,
        provenance: Any = None,
    ) -> None:
        super().__init__(message)
        self.kind = ErrorKind(kind)
        self.metadata = metadata or {}
        self.provenance = provenance

    @property
    def suspect(self) -> bool:
        """Whether the candidate may have brought it about; see :func:`is_suspect`."""
        return is_suspect(self.kind, self.metadata)

    @property
    def final(self) -> bool:
        """Whether every further call would fail in the same way; see :func:`is_final`."""
        return is_final(self.kind, self.metadata)


class InvalidInput(GradingFailure):
    """The sample cannot be judged as it is: the kind ``invalid_input``."""

    def __init__(self, message: str, metadata: Metadata | None = None) -> None:
        super().__init__(ErrorKind.INVALID_INPUT, message, metadata)


class CandidateLimitExceeded(GradingFailure):
    """The candidate's text alone used up a worker's processor time, memory or stack.

    Graders answer it with their minimum. Elsewhere it is a failure of this machine's own.
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(kind, message, {"local": True, "suspect": True})


_FILE = re.compile(r"/|\.(toml|ya?ml|jsonl?|csv|parquet|md|py|gguf|txt|gz|zst)(:\d+)?$")
_NAME = re.compile(r"\S+|--[\w-]+ \S+")


class ConfigError(AdjudgeError, ValueError):
    """A file or argument written by the user is wrong; the message names file, key and remedy.

    >>> import adjudge
    >>> try:
    ...     adjudge.grade("no_such_file.jsonl", {"graders": [{"name": "right", "type": "answer"}]})
    ... except ConfigError as error:
    ...     print(error, [error.where, error.key])
    no_such_file.jsonl: no such file ['no_such_file.jsonl', '']
    """

    @property
    def where(self) -> str:
        """The file that the message begins with, or ``""``."""
        return self._names[0]

    @property
    def key(self) -> str:
        """The dotted key, or the option, that the message names before it says what is wrong."""
        return self._names[1]

    @property
    def _names(self) -> tuple[str, str]:
        # The form is `file: key: key: what is wrong`. A name is one word; a reason has more.
        *names, _ = str(self).partition("\n")[0].split(": ")
        words = list(itertools.takewhile(_NAME.fullmatch, names))
        files = [word for word in words if _FILE.search(word)]
        return "".join(files[:1]), ".".join(w.split()[0] for w in words if w not in files)


class RolloutError(AdjudgeError, ValueError):
    """A row of a rollout file cannot become a sample, or no rollout can be played.

    ``where`` is ``FILE:LINE``.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class RunFolderError(AdjudgeError, ValueError):
    """A run folder or journal was written by another spec, or cannot be used."""


class JudgeAuthError(AdjudgeError, RuntimeError):
    """A provider refused the credentials: every further call would fail, so the run stops."""


class JudgeUnavailable(AdjudgeError, RuntimeError):
    """No judge gives rewards any more: stopping beats learning from nothing.

    Judges gave none for longer than ``patience_s``, or will give none: the budget is spent, a
    server refuses the form of every request. ``kind`` is that of the failure, where one is to
    blame.

    >>> import adjudge
    >>> judge = {"type": "vllm", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    >>> spec = {"graders": [{"name": "good", "type": "helpfulness"}], "judges": {"main": judge}}
    >>> try:
    ...     adjudge.grade([{"prompt": "?", "response": "!"}], spec)
    ... except JudgeUnavailable as error:
    ...     print(str(error).partition(";")[0])
    good: never reached its judge: no response from http://127.0.0.1:9/v1: connection refused
    """

    def __init__(self, message: str, kind: ErrorKind | None = None) -> None:
        super().__init__(message)
        self.kind = kind


class MissingRewardError(AdjudgeError, RuntimeError):
    """Rewards are missing under ``policy = "raise"``; ``errors`` has every collected failure."""

    def __init__(self, message: str, errors: Sequence[object]) -> None:
        super().__init__(message)
        self.errors: list[Any] = list(errors)


class TrainingStopped(AdjudgeError, RuntimeError):
    """A recorded training run is to end, by ``adjudge watch --stop``."""
