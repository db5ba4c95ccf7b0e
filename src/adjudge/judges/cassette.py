"""Replies kept between runs: the cache that is also the cassette.

=============  ====================================================================================
``record``     answer stored replies, store what is new; a call that failed is asked again
``replay``     answer from the file only; a call that is not in it fails and says what changed, and
               the report counts what was never asked
=============  ====================================================================================

A stored reply comes back bit for bit (text, reasoning, finish reason, log-probabilities, usage,
model). Its provenance says ``cache`` (``record``) or ``cassette`` (``replay``), no latency and no
attempts, since nothing was sent. A call that failed for good (refused, cut off, timed out after all
retries, not affordable, …) has its failure in the file until a reply comes, so a replay fails in
the same place for the same reason. The file is described in :mod:`adjudge.judges.cassette_file`.

A replay repeats its run only if equal calls of one run ended alike. So while it records, a call
that failed is answered with its failure to whoever asks the same in the same
:data:`~adjudge.judges.base.call_round`, and after :meth:`ReplyCache.keep_failures`.

The key of a call is the SHA-256 of its canonical JSON. Two calls share a key when a server would
read the same question in both: the order of keys in messages and sampling does not count, nor does
tuple or list. Whatever else differs gives another key: ``1`` and ``1.0`` and ``true`` are three
values, ``-0.0`` is not ``0.0``, an absent parameter is not ``null``. The order of keys in a
*schema* does count, because servers generate properties in that order: a judge that is asked for
the score before the reason is asked another question.

Text may contain what UTF-8 cannot carry (lone surrogates), and log-probabilities may be infinite:
both are written in a superset of JSON (surrogates as three bytes each, ``NaN`` and ``Infinity`` by
name), so nothing is lost and nothing collides.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from adjudge.config import check_allowed
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import ChatCall, Reply, call_round
from adjudge.judges.cassette_file import CassetteFile, CassetteRow
from adjudge.text import encode_exactly

CacheMode = Literal["record", "replay"]

_COMPARED = 100
"""Misses of a replay that are compared with what was recorded, which takes milliseconds each."""
_INDEXED = 20_000

_SETTLED = object()
"""The round of failures that are final."""

_log = logging.getLogger(__name__)


class CacheReport(msgspec.Struct, kw_only=True):
    """What a cache did in this process.

    ``failures``: failed calls that were stored. ``not_stored``: replies at a temperature above 0
    (or the server's own), which nobody asked to keep. ``never_asked``: how many recorded calls
    nobody asked for in a replay.
    """

    path: str
    mode: CacheMode
    hits: int = 0
    misses: int = 0
    stored: int = 0
    not_stored: int = 0
    failures: int = 0
    never_asked: int | None = None


class _OpenCall(NamedTuple):
    """A call that is out: its canonical bytes, who answers, and the round in which it was asked."""

    call: bytes
    provider: str
    came: object | None = None


def _close_file(file: CassetteFile) -> None:
    """Close the file of a cache that nobody closed; nobody is there to hear what is raised."""
    try:
        file.close()
    except ConfigError as error:
        _log.warning("%s", error)


class ReplyCache:
    """Replies by the hash of their call, in one SQLite file.

    ``path``: the cassette; created with access for its owner only, because it holds prompts and
    replies. ``mode``: see the module. ``sampled``: also store and answer calls in which chance has
    a say, that is whose temperature is above 0 or not given; ``replay`` answers whatever was
    recorded.

    Of two processes that ask one call at once, the file keeps the reply of the first. Pickling
    carries path and settings; a forked child opens its own handle. Usable from several threads.
    Raises :class:`~adjudge.errors.ConfigError` for a mode that does not exist and a file that
    cannot serve.
    """

    def __init__(
        self, path: Path | str, mode: CacheMode = "record", *, sampled: bool = False
    ) -> None:
        check_allowed("mode", mode, get_args(CacheMode))
        self.path = Path(path)
        self.mode: CacheMode = mode
        self.sampled = sampled
        self.replays = mode == "replay"
        """Answers from the file alone: nothing is ever sent."""
        self._file = CassetteFile(self.path, writable=not self.replays)
        weakref.finalize(self, _close_file, self._file)  # also at the exit
        self.fence_key = self._file.fence_key
        """32 random bytes, drawn once when the cassette was created; for tags that fence text."""
        self._report = CacheReport(path=str(path), mode=mode)
        self._out: dict[str, _OpenCall] = {}
        self._failed: dict[str, tuple[object | None, bytes]] = {}
        self._used: set[str] = set()
        self._parts: list[tuple[str, frozenset[int]]] | None = None
        self._final: CacheReport | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ReplyCache, sampled=self.sampled), (self.path, self.mode)

    def judges(self) -> list[tuple[str, str, Metadata]]:
        """Every (provider, model, sampling) that was recorded."""
        try:
            return [decode_judge(judge) for judge in self._file.judges()]
        except ValueError:
            raise ConfigError(
                f"{self.path}: the name of a judge is damaged. Record it again."
            ) from None

    # -- asking ----------------------------------------------------------------------------------

    def key(self, call: ChatCall, provider: str) -> str:
        """The call's key: 64 hexadecimal digits, the SHA-256 of its canonical JSON.

        ``provider`` names who answers, the same at recording and at replaying. Raises
        ``GradingFailure(invalid_input)`` for a call that JSON cannot express.
        """
        data = canonical_call(call, provider)
        key = sha256(data).hexdigest()
        self._out[key] = _OpenCall(data, provider)
        return key

    def get(self, key: str) -> Reply | None:
        """The stored reply, or ``None`` when the call is to be sent; a stored failure is raised.

        ``record`` raises failures of this process only, and only in the round where they came or
        once they are settled. ``replay`` raises ``GradingFailure(unsupported)`` for a call that is
        not in the cassette, with the names of what changed since (``metadata["changed"]``). A
        stored outcome that does not match its checksum raises ``GradingFailure(invalid_input)``.
        """
        outcome = self._stored(key) or self._failed_before(key)
        if outcome is None:
            self._report.misses += 1
            asked = self._out.get(key)
            if self.replays:
                raise self._not_recorded(key, self._out.pop(key, None))
            if asked is not None:  # the outcome comes in whatever context
                self._out[key] = asked._replace(came=call_round.get())
            return None
        self._report.hits += 1
        self._used.add(key)
        self._out.pop(key, None)
        if isinstance(outcome, GradingFailure):
            raise outcome
        return outcome

    def _failed_before(self, key: str) -> Reply | GradingFailure | None:
        """The failure of an equal call that ended in this round, or for good."""
        came, failure = self._failed.get(key, (None, b""))
        if came is None or came not in (_SETTLED, call_round.get()):
            return None
        return decode_outcome(failure, failed=True)

    def keep_failures(self) -> None:
        """What failed so far has failed for good: equal calls fail alike from now on."""
        self._failed = {key: (_SETTLED, failure) for key, (_, failure) in self._failed.items()}

    def _stored(self, key: str) -> Reply | GradingFailure | None:
        row = self._file.read(key)
        if row is None or (not self.replays and (row.failed or (row.sampled and not self.sampled))):
            return None
        try:
            outcome = decode_outcome(row.outcome, failed=row.failed)
        except ValueError:
            outcome = None
        if outcome is None or row.digest != compute_checksum(key, row.outcome):
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"{self.path}: the outcome stored under {key} does not match its checksum; restore "
                "a copy of the cassette, or record it again",
                {"cassette": str(self.path), "key": key},
            )
        if isinstance(outcome, Reply):
            changes = {"latency_s": None, "attempts": 0, "hedged": False}
            source = "cassette" if self.replays else "cache"
            kept = msgspec.structs.replace(outcome.provenance, source=source, **changes)
            return msgspec.structs.replace(outcome, provenance=kept)
        return outcome

    # -- misses ----------------------------------------------------------------------------------

    def _not_recorded(self, key: str, asked: _OpenCall | None) -> GradingFailure:
        message = f"not in the cassette {self.path} (call {key[:12]})"
        metadata: Metadata = {"cassette": str(self.path), "key": key}
        if asked is not None and self._report.misses <= _COMPARED:
            nearest, changed = self._compare(asked.call)
            if nearest is not None:
                metadata |= {"nearest": nearest, "changed": changed}
                message += f"; the nearest recorded call, {nearest[:12]}, has another "
                message += ", ".join(changed[:6])
            else:
                message += "; it holds no call to compare with"
        return GradingFailure(ErrorKind.UNSUPPORTED, message, metadata)

    def _compare(self, asked: bytes) -> tuple[str | None, list[str]]:
        """The recorded call that shares most parts with ``asked``, and which parts differ."""
        if self._parts is None:
            recorded = self._file.calls(_INDEXED)
            self._parts = [
                (key, frozenset(map(hash, describe_parts(call).items()))) for key, call in recorded
            ]
        new = describe_parts(asked)
        parts = frozenset(map(hash, new.items()))
        nearest, _ = max(self._parts, key=lambda one: len(parts & one[1]), default=(None, None))
        row = None if nearest is None else self._file.read(nearest)
        if row is None or row.call is None or sha256(row.call).hexdigest() != nearest:
            return None, []  # there is none, or its text was altered in the file
        old = describe_parts(row.call)
        return nearest, [name for name in old | new if old.get(name) != new.get(name)]

    # -- storing ---------------------------------------------------------------------------------

    def keep(self, key: str, outcome: Reply | Exception | None, call: ChatCall) -> None:
        """Store what ``call`` ended with under ``key``, which :meth:`key` gave for it.

        A reply, or a failure until there is a reply; a call that was cancelled has no outcome. The
        call as it was asked is stored too, so that a replay can say what changed. Written within a
        twentieth of a second, with others.
        """
        asked = self._out.pop(key, None)
        if isinstance(outcome, GradingFailure):
            kept = outcome.kind not in (ErrorKind.CANCELLED, ErrorKind.BUG)
        else:
            kept = isinstance(outcome, Reply)
        if not kept or not isinstance(outcome, Reply | GradingFailure):
            return
        failed, sampled = isinstance(outcome, GradingFailure), is_sampled(call)
        if sampled and not self.sampled:
            self._report.not_stored += not failed
            return
        data, written, judge = encode_outcome(outcome), None, None
        if asked is not None:
            written, judge = asked.call, encode_judge(call, asked.provider)
        checksum = compute_checksum(key, data)
        self._file.add(CassetteRow(key, failed, sampled, judge, checksum, data, written))
        if isinstance(outcome, Reply):
            self._report.stored += 1
            self._failed.pop(key, None)
            return
        self._report.failures += 1
        if not {"stream_only", "no_temperature"} & outcome.metadata.keys():  # it is asked again
            self._failed[key] = None if asked is None else asked.came, data

    # -- the end ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is pending now, so that nothing else is on disk before it."""
        self._file.flush()

    def report(self) -> CacheReport:
        """What this cache did so far, in this process."""
        self._file.flush()
        never = self._file.count() - len(self._used) if self.replays else None
        return msgspec.structs.replace(self._report, never_asked=never)

    def close(self) -> CacheReport:
        """Write what is pending, let go of the file, and report; closing twice is no error.

        A warning is logged when recorded calls were never asked (``replay``), and when nothing was
        stored because every call was sampled. Raises :class:`~adjudge.errors.ConfigError` when
        replies could not be written.
        """
        if self._final is None:
            self._final = report = self.report()
            self._file.close()
            if report.never_asked:
                _log.warning("%s: %d recorded calls were not used", self.path, report.never_asked)
            if report.not_stored and not report.stored:
                problem = (
                    f"none of {report.not_stored} replies was stored: their temperature is above 0 "
                    "or not given. Set it to 0.0, or record the run (sampled=True)"
                )
                _log.warning("%s: %s.", self.path, problem)
        return self._final


# -- calls and their outcomes as bytes ------------------------------------------------------------


CALL_PARTS = (
    *("provider", "model", "messages", "schema", "choices", "logprobs", "sampling", "draw"),
    "attempt",
)
"""What a key is made of, in the order of the canonical JSON array."""


T = TypeVar("T")


def _to_builtin(value: Any) -> Any:
    """Mappings and sequences of other types than ``dict`` and ``list``."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"objects of type {type(value).__name__} cannot be part of a call")


_sorted = msgspec.json.Encoder(order="deterministic", enc_hook=_to_builtin).encode
_in_order = msgspec.json.Encoder(enc_hook=_to_builtin).encode


def canonical_call(call: ChatCall, provider: str) -> bytes:
    """The bytes that are hashed: a JSON array of :data:`CALL_PARTS`.

    Raises ``GradingFailure(invalid_input)`` for a call that JSON cannot express.
    """
    before = (provider, call.model, call.messages)
    after = (call.choices, call.logprobs, call.sampling, call.draw, call.attempt)
    parts = [
        *(_encode(part) for part in before),
        _encode(call.schema, in_order=True),
        *(_encode(part) for part in after),
    ]
    return b"[" + b",".join(parts) + b"]"


def encode_judge(call: ChatCall, provider: str) -> bytes:
    """JSON of provider, model and sampling: what tells one recorded judge from another."""
    return _encode((provider, call.model, call.sampling))


def _encode(value: Any, *, in_order: bool = False) -> bytes:
    """``value`` as JSON, keys sorted unless ``in_order``; lone surrogates as three bytes each.

    Raises ``GradingFailure(invalid_input)`` for what JSON cannot express.
    """
    try:
        try:
            return _in_order(value) if in_order else _sorted(value)
        except UnicodeEncodeError:
            return _dump(value, _to_builtin, by_key=not in_order)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"the call cannot be written as JSON: {type(error).__name__}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, problem) from None


def is_sampled(call: ChatCall) -> bool:
    """Whether chance has a say in the reply: a temperature above 0, or the server's own default."""
    temperature = call.sampling.get("temperature")
    return temperature is None or temperature != 0


def _type_name(value: Any) -> str:
    return type(value).__name__


def _dump(value: Any, default: Callable[[Any], Any] = _type_name, *, by_key: bool = False) -> bytes:
    """``value`` as JSON with all texts and numbers."""
    form: Any = {"sort_keys": by_key, "separators": (",", ":"), "default": default}
    return encode_exactly(json.dumps(value, ensure_ascii=False, **form))


def _load(data: bytes, kind: type[T]) -> T:
    """What :func:`_dump` wrote; ``ValueError`` for other bytes."""
    try:
        return msgspec.convert(json.loads(data.decode("utf-8", "surrogatepass")), kind)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def decode_judge(data: bytes) -> tuple[str, str, Metadata]:
    """The provider, model and sampling that :func:`encode_judge` wrote; else ``ValueError``."""
    return _load(data, tuple[str, str, Metadata])


def encode_outcome(outcome: Reply | GradingFailure) -> bytes:
    """A reply or failure as JSON from which :func:`decode_outcome` makes an equal one.

    Of what JSON cannot hold in the metadata of a failure, its type is written.
    """
    if isinstance(outcome, Reply):
        return _dump(msgspec.to_builtins(outcome))
    try:
        return _dump((outcome.kind, str(outcome), outcome.metadata))
    except (TypeError, ValueError, RecursionError):  # nobody's reply depends on the metadata
        return _dump((outcome.kind, str(outcome), {}))


def decode_outcome(data: bytes, *, failed: bool) -> Reply | GradingFailure:
    """What :func:`encode_outcome` wrote, a new object; raises ``ValueError`` for other bytes."""
    if failed:
        return GradingFailure(*_load(data, tuple[ErrorKind, str, Metadata]))
    return _load(data, Reply)


def compute_checksum(key: str, outcome: bytes) -> bytes:
    """The checksum of a stored outcome: of its bytes and of the key that it has."""
    return sha256(key.encode() + outcome).digest()[:16]


def describe_parts(data: bytes) -> dict[str, str]:
    """The parts of a canonical call by name, to compare by: messages and mappings field by field.

    ``messages`` is how many there are. None of bytes that are no canonical call.

    >>> call = b'["p","m",[{"role":"user"}],null,null,false,{"seed":1},0,0]'
    >>> describe_parts(call)["sampling.seed"]
    '1'
    """
    try:
        parts = dict(zip(CALL_PARTS, _load(data, list[object]), strict=True))
        messages = msgspec.convert(parts["messages"], list[object])
    except ValueError:
        return {}
    parts |= {"messages": len(messages), **{f"messages[{i}]": m for i, m in enumerate(messages)}}
    flat: dict[str, str] = {}
    for name, part in parts.items():
        if isinstance(part, dict) and name != "schema":
            flat |= {f"{name}.{field}": repr(value) for field, value in part.items()}
        else:
            flat[name] = repr(part)
    return flat
