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
the same place for the same reason. The file is described in :mod:`adjudge.judges.cassette.file`.

A replay repeats its run only if equal calls of one run ended alike. So while it records, a call
that failed is answered with its failure to whoever asks the same in the same
:data:`~adjudge.judges.base.call_round`, and after :meth:`ReplyCache.keep_failures`.
"""

from __future__ import annotations

import logging
import weakref
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from adjudge.config import check_allowed
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import ChatCall, Reply, call_round
from adjudge.judges.cassette import encoding
from adjudge.judges.cassette.file import CassetteFile, CassetteRow

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
            return [encoding.decode_judge(judge) for judge in self._file.judges()]
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
        data = encoding.canonical_call(call, provider)
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
        return encoding.decode_outcome(failure, failed=True)

    def keep_failures(self) -> None:
        """What failed so far has failed for good: equal calls fail alike from now on."""
        self._failed = {key: (_SETTLED, failure) for key, (_, failure) in self._failed.items()}

    def _stored(self, key: str) -> Reply | GradingFailure | None:
        row = self._file.read(key)
        if row is None or (not self.replays and (row.failed or (row.sampled and not self.sampled))):
            return None
        try:
            outcome = encoding.decode_outcome(row.outcome, failed=row.failed)
        except ValueError:
            outcome = None
        if outcome is None or row.digest != encoding.compute_checksum(key, row.outcome):
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
                (key, frozenset(map(hash, encoding.describe_parts(call).items())))
                for key, call in recorded
            ]
        new = encoding.describe_parts(asked)
        parts = frozenset(map(hash, new.items()))
        nearest, _ = max(self._parts, key=lambda one: len(parts & one[1]), default=(None, None))
        row = None if nearest is None else self._file.read(nearest)
        if row is None or row.call is None or sha256(row.call).hexdigest() != nearest:
            return None, []  # there is none, or its text was altered in the file
        old = encoding.describe_parts(row.call)
        return nearest, [name for name in old | new if old.get(name) != new.get(name)]

    # -- storing ---------------------------------------------------------------------------------

    def put(self, key: str, reply: Reply, call: ChatCall | None = None) -> None:
        """Store ``reply`` under ``key``, the key that :meth:`key` gave for ``call``.

        ``call`` as it was asked is stored too, so that a replay can say what changed; without it
        chance is taken to have had no say in the reply. Written within a twentieth of a second,
        with others. Raises ``RuntimeError`` under ``replay``, which writes nothing.
        """
        if self._write(key, reply, call) is None:
            self._report.not_stored += 1
            return
        self._report.stored += 1
        self._failed.pop(key, None)

    def put_failure(self, key: str, failure: GradingFailure, call: ChatCall | None = None) -> None:
        """Store that ``call`` failed for good, until there is a reply; else as :meth:`put`.

        A cancelled call has no outcome and is not stored.
        """
        came = self._out[key].came if key in self._out else None
        if failure.kind in (ErrorKind.CANCELLED, ErrorKind.BUG):  # no outcome of the call
            self.forget(key)
        elif (data := self._write(key, failure, call)) is not None:
            self._report.failures += 1
            if not {"stream_only", "no_temperature"} & failure.metadata.keys():  # it is asked again
                self._failed[key] = came, data

    def keep(self, key: str, outcome: Reply | Exception | None, call: ChatCall) -> None:
        """Store what ``call`` ended with, if that is an outcome."""
        if isinstance(outcome, Reply):
            self.put(key, outcome, call)
        elif isinstance(outcome, GradingFailure):
            self.put_failure(key, outcome, call)
        else:
            self.forget(key)

    def forget(self, key: str) -> None:
        """The call that :meth:`get` knew nothing of has ended without an outcome."""
        self._out.pop(key, None)

    def _write(
        self, key: str, outcome: Reply | GradingFailure, call: ChatCall | None
    ) -> bytes | None:
        """Write an outcome; its bytes, or ``None`` where it is not to be kept."""
        if self.replays:
            raise RuntimeError(f"mode {self.mode!r} stores nothing")
        asked = self._out.pop(key, None)
        sampled = call is not None and encoding.is_sampled(call)
        if sampled and not self.sampled:
            return None
        data, failed = encoding.encode_outcome(outcome), isinstance(outcome, GradingFailure)
        written = judge = None
        if asked is not None and call is not None:
            written, judge = asked.call, encoding.encode_judge(call, asked.provider)
        digest = encoding.compute_checksum(key, data)
        self._file.add(CassetteRow(key, failed, sampled, judge, digest, data, written))
        return data

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
                    "or not given. Set it to 0.0, or record the run"
                )
                _log.warning("%s: %s.", self.path, problem)
        return self._final
