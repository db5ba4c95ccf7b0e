"""Replies kept between runs: the cache that is also the cassette.

=============  ====================================================================================
``record``     answer stored replies, store what is new; a call that failed is asked again
``replay``     answer from the file only; a call that is not in it fails
``strict``     ``replay``, and a failure says what changed; the report lists what was never asked
``refresh``    answer nothing, store everything (a call that fails now loses its old reply), and
               count the replies whose text changed
=============  ====================================================================================

A stored reply comes back bit for bit (text, reasoning, finish reason, log-probabilities, usage,
model). Its provenance says ``cache`` (``record``) or ``cassette`` (``replay``, ``strict``), no
latency and no attempts, since nothing was sent. A call that failed for good (refused, cut off,
timed out after all retries, not affordable, …) has its failure in the file until a reply comes, so
a replay fails in the same place for the same reason. The file is described in
:mod:`adjudge.judges.cassette.file`.

A replay repeats its run only if equal calls of one run ended alike. So while it records, a call
that failed is answered with its failure to whoever asks the same in the same
:data:`~adjudge.judges.base.call_round`, and after :meth:`ReplyCache.keep_failures`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import OrderedDict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from adjudge.config import check_allowed
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, Reply, call_round
from adjudge.judges.cassette.encoding import (
    CallIndex,
    canonical_call,
    compare_calls,
    compute_checksum,
    decode_failure,
    decode_judge,
    decode_reply,
    describe_call,
    describe_changes,
    encode_failure,
    encode_judge,
    encode_reply,
    is_sampled,
)
from adjudge.judges.cassette.file import CassetteFile, CassetteRow
from adjudge.types import Provenance

CacheMode = Literal["record", "replay", "strict", "refresh"]

_MEMORY = 4096
_RECENT = 256
_INDEXED = 20_000
_LISTED = 20

_FAILED = 65_536
"""Failures that are remembered before they are settled."""
_UNRECORDED_KINDS = frozenset({ErrorKind.CANCELLED, ErrorKind.BUG})
"""What is no outcome of the call."""

_log = logging.getLogger(__name__)


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache did in this process.

    ``failures``: failed calls that were stored. ``not_stored``: replies at a temperature above 0
    (or the server's own), which nobody asked to keep. ``compared`` and ``changed``: under
    ``refresh``, calls that were recorded before, and the keys of those whose text is another now.
    ``never_asked``: under ``strict``, how many recorded calls nobody asked for, with the first 20
    described (model, sizes, draw); ``None`` elsewhere.
    """

    path: str
    mode: CacheMode
    hits: int
    misses: int
    stored: int
    not_stored: int
    failures: int = 0
    compared: int = 0
    changed: tuple[str, ...] = ()
    never_asked: int | None = None
    never_asked_calls: tuple[str, ...] = ()


class ReplyCache:
    """Replies by the hash of their call, in memory (the last 4,096) and in one SQLite file.

    ``path``: the cassette; created with access for its owner only, because it holds prompts and
    replies. ``mode``: see the module. ``sampled``: also store and answer calls in which chance has
    a say, that is whose temperature is above 0 or not given; ``replay`` and ``strict`` answer
    whatever was recorded.

    Two processes that ask one call at once each keep their own reply, and the file the first.
    Pickling carries path and settings; a forked child opens its own handle. Usable from several
    threads. Raises :class:`~adjudge.errors.ConfigError` for a mode that does not exist and a file
    that cannot serve.
    """

    def __init__(
        self,
        path: Path | str,
        mode: CacheMode = "record",
        *,
        sampled: bool = False,
    ) -> None:
        check_allowed("mode", mode, get_args(CacheMode))
        self.path = Path(path)
        self.mode: CacheMode = mode
        self.sampled = sampled
        self.replays = mode in {"replay", "strict"}
        """Answers from the file alone: nothing is ever sent."""
        self._source = "cassette" if self.replays else "cache"
        self._file = CassetteFile(self.path, writable=not self.replays, replace=mode == "refresh")
        self._memory: OrderedDict[str, Reply | bytes] = OrderedDict()  # bytes: of a failure
        self._failed: OrderedDict[str, tuple[object | None, bytes]] = OrderedDict()
        self._settled: dict[str, bytes] = {}
        self._rounds: dict[str, object] = {}  # of calls that are out
        self._providers: dict[str, None] = {}
        self._asked: set[str] | None = set() if mode == "strict" else None
        self._recent: OrderedDict[str, tuple[ChatCall, str]] = OrderedDict()
        self._index: CallIndex | None = None
        self._hits = self._misses = self._stored = self._not_stored = 0
        self._failures = 0
        self._final: CacheReport | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ReplyCache, sampled=self.sampled), (self.path, self.mode)

    @property
    def fence_key(self) -> bytes:
        """32 random bytes, drawn once when the cassette was created; for tags that fence text."""
        return self._file.fence_key

    def judges(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Every (provider, model, sampling) that was recorded."""
        try:
            return [decode_judge(judge) for judge in self._file.judges()]
        except ValueError:
            raise ConfigError(
                f"{self.path}: the list of judges is damaged. Record it again."
            ) from None

    # -- asking ----------------------------------------------------------------------------------

    def key(self, call: ChatCall, provider: str) -> str:
        """The call's key: 64 hexadecimal digits, the SHA-256 of its canonical JSON.

        ``provider`` names who answers, the same at recording and at replaying. Raises
        ``GradingFailure(invalid_input)`` for a call that JSON cannot express.
        """
        key = sha256(canonical_call(call, provider)).hexdigest()
        if self._asked is not None:
            self._recent[key] = (call, provider)
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        elif provider not in self._providers:
            self._providers[provider] = None  # put() is not told
        return key

    def get(self, key: str) -> Reply | None:
        """The stored reply, or ``None`` when the call is to be sent; a stored failure is raised.

        ``record`` and ``refresh`` raise failures of this process only, and only in the round where
        they came or once they are settled. ``refresh`` says ``None`` otherwise. ``replay`` and
        ``strict`` never do: a call that is not in the cassette raises
        ``GradingFailure(unsupported)``, under ``strict`` with the names of what changed since
        (``metadata["changed"]``). A stored outcome that does not match its checksum raises
        ``GradingFailure(invalid_input)`` in every mode but ``refresh``.
        """
        found = self._memory.pop(key, None)
        if found is None:
            found = None if self.mode == "refresh" else self._from_file(key)
        elif isinstance(found, Reply) and found.provenance.source != self._source:
            found = self._stamped(found)
        if found is None:
            found = self._failed_before(key)
        else:
            self._remember(key, found)
        if found is None:
            self._misses += 1
            if self.replays:
                raise self._not_recorded(key)
            if (now := call_round.get()) is not None:
                self._rounds[key] = now  # the outcome comes in whatever context
            return None
        self._hits += 1
        if self._asked is not None:
            self._asked.add(key)
        if isinstance(found, bytes):
            raise decode_failure(found)  # a new one each time: callers add to its metadata
        return found

    def _failed_before(self, key: str) -> bytes | None:
        """The failure of an equal call that ended in this round, or for good."""
        if (settled := self._settled.get(key)) is not None:
            return settled
        came, failure = self._failed.get(key, (None, b""))
        return failure if came is not None and came is call_round.get() else None

    def keep_failures(self) -> None:
        """What failed so far has failed for good: equal calls fail alike from now on."""
        self._settled.update((key, failure) for key, (_, failure) in self._failed.items())
        self._failed.clear()

    def _from_file(self, key: str) -> Reply | bytes | None:
        try:
            row = self._file.read(key)
        except sqlite3.Error as error:
            raise self._damaged(key, f"cannot be read: {error}") from error
        if row is None:
            return None
        digest, sampled, data, failed = row
        if failed and not self.replays:
            return None
        if digest != compute_checksum(key, data):
            raise self._damaged(key, "does not match its checksum")
        if sampled and not self.sampled and not self.replays:
            return None
        try:
            if failed:
                decode_failure(data)
                return data
            return self._stamped(decode_reply(data))
        except ValueError:
            raise self._damaged(key, "is no reply of this version") from None

    def _damaged(self, key: str, what: str) -> GradingFailure:
        remedy = "delete that row, or ask again with mode 'refresh'"
        return GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"{self.path}: the reply stored under {key} {what}; {remedy}",
            {"cassette": str(self.path), "key": key},
        )

    def _stamped(self, reply: Reply) -> Reply:
        live = reply.provenance
        provenance = Provenance(
            source=self._source,
            model=live.model,
            prompt_hash=live.prompt_hash,
            usage=live.usage,
            attempts=0,
        )
        return msgspec.structs.replace(reply, provenance=provenance)

    def _remember(self, key: str, outcome: Reply | bytes) -> None:
        self._memory[key] = outcome
        if len(self._memory) > _MEMORY:
            self._memory.popitem(last=False)

    # -- misses ----------------------------------------------------------------------------------

    def _not_recorded(self, key: str) -> GradingFailure:
        message = f"not in the cassette {self.path} (call {key[:12]})"
        metadata: dict[str, Any] = {"cassette": str(self.path), "key": key}
        if self._asked is not None and key in self._recent:
            nearest, changes = self._changes(*self._recent[key])
            if nearest is not None:
                metadata |= {"nearest": nearest, "changed": changes}
                told = describe_changes(changes)
                message += f"; beside the nearest recorded call, {nearest[:12]}: {told}"
            else:
                message += "; it holds no call to compare with"
        return GradingFailure(ErrorKind.UNSUPPORTED, message, metadata)

    def _changes(self, call: ChatCall, provider: str) -> tuple[str | None, dict[str, str]]:
        """The nearest recorded call, and how the one that was asked differs from it."""
        if self._index is None:
            self._index = CallIndex(self._file.calls(_INDEXED))
        asked = canonical_call(call, provider)
        nearest = self._index.nearest(asked)
        recorded = self._file.read_call(nearest) if nearest is not None else None
        if recorded is None:
            return None, {}
        if sha256(recorded).hexdigest() != nearest:
            return nearest, {"the recorded call": "its text was altered in the file"}
        return nearest, compare_calls(recorded, asked)

    # -- storing ---------------------------------------------------------------------------------

    def put(self, key: str, reply: Reply, call: ChatCall | None = None) -> None:
        """Store ``reply`` under ``key``, the key that :meth:`key` gave for ``call``.

        ``call`` is stored too, so that a strict replay can say what changed; without it chance is
        taken to have had no say in the reply. Written within a twentieth of a second, with others.
        Raises ``RuntimeError`` under ``replay`` and ``strict``, which write nothing.
        """
        if self.replays:
            raise RuntimeError(f"mode {self.mode!r} stores nothing")
        self._rounds.pop(key, None)
        sampled = call is not None and is_sampled(call)
        if sampled and not self.sampled:
            self._not_stored += 1
            return
        self._write(key, encode_reply(reply), call, sampled, failed=False)
        self._stored += 1
        self._failed.pop(key, None)
        if self.mode == "record":
            self._remember(key, reply)

    def put_failure(self, key: str, failure: GradingFailure, call: ChatCall | None = None) -> None:
        """Store that ``call`` failed for good, until there is a reply; else as :meth:`put`.

        A cancelled call has no outcome and is not stored.
        """
        if self.replays:
            raise RuntimeError(f"mode {self.mode!r} stores nothing")
        sampled = call is not None and is_sampled(call)
        came = self._rounds.pop(key, None)
        if failure.kind in _UNRECORDED_KINDS or (sampled and not self.sampled):
            return
        data = encode_failure(failure)
        self._write(key, data, call, sampled, failed=True)
        self._failures += 1
        if "stream_only" not in failure.metadata:  # then it is asked again at once, as a stream
            self._failed[key] = came, data
            if len(self._failed) > _FAILED:
                self._failed.popitem(last=False)

    def _write(
        self, key: str, data: bytes, call: ChatCall | None, sampled: bool, *, failed: bool
    ) -> None:
        digest = compute_checksum(key, data)
        written, judge = self._described(key, call)
        self._file.write_later(
            CassetteRow(bytes.fromhex(key), digest, sampled, data, written, judge, failed)
        )

    def forget(self, key: str) -> None:
        """The call that :meth:`get` knew nothing of has ended without an outcome."""
        self._rounds.pop(key, None)

    def _described(self, key: str, call: ChatCall | None) -> tuple[bytes | None, bytes | None]:
        """The call and its judge as bytes.

        Nothing when the call is not the one of ``key`` (any more: messages are the caller's, and
        may have grown since).
        """
        if call is None:
            return None, None
        for provider in self._providers:
            data = canonical_call(call, provider)
            if sha256(data).hexdigest() == key:
                return data, encode_judge(call, provider)
        return None, None

    # -- the end ---------------------------------------------------------------------------------

    def report(self) -> CacheReport:
        """What this cache did so far, in this process."""
        self._file.flush()
        never = None
        if self._asked is not None:
            asked = self._asked
            never = [key for key in self._file.recorded() if key not in asked]
        return CacheReport(
            path=str(self.path),
            mode=self.mode,
            hits=self._hits,
            misses=self._misses,
            stored=self._stored,
            not_stored=self._not_stored,
            failures=self._failures,
            compared=self._file.compared,
            changed=tuple(self._file.changed),
            never_asked=None if never is None else len(never),
            never_asked_calls=tuple(
                describe_call(key, self._file.read_call(key)) for key in (never or [])[:_LISTED]
            ),
        )

    def close(self) -> CacheReport:
        """Write what is pending, let go of the file, and report; closing twice is no error.

        A warning is logged when recorded calls were never asked (``strict``), and when nothing was
        stored because every call was sampled. Raises :class:`~adjudge.errors.ConfigError` when
        replies could not be written.
        """
        if self._final is None:
            self._final = self.report()
            self._file.close()
            _warn_unused(self._final)
        return self._final


def _warn_unused(report: CacheReport) -> None:
    if report.never_asked:
        calls = "; ".join(report.never_asked_calls)
        _log.warning(
            "%s: %d recorded calls were not used: %s", report.path, report.never_asked, calls
        )
    if report.not_stored and not report.stored:
        _log.warning(
            "%s: none of %d replies was stored: their temperature is above 0 or not given. "
            "Set temperature = 0.0, or cache_sampled = true, in the judge's table (in Python: "
            "sampled=True).",
            report.path,
            report.not_stored,
        )
