"""What has been graded already, so that an interrupted run resumes.

One JSON line a result: ``{"s": sample key, "g": grader, "d": draw, "r": result, "c": checksum}``,
after a first line that names the spec's hash. Failures are not written, so a resumed run asks them
again (but see :attr:`Journal.keeps`). A torn last line (the process died while writing) is ignored;
a damaged line is named in a warning and its result asked again; another spec's journal is refused.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from adjudge.errors import ErrorKind, Fields, RunFolderError
from adjudge.files import (
    UNENCODABLE,
    JsonlLog,
    atomic_write,
    encode_checked_line,
    iter_lines,
    iter_placed_rows,
    warn_damaged_lines,
)
from adjudge.types import GraderError, GraderResult

_FLUSH_BYTES = 1 << 16
_FLUSH_S = 0.5
_READ_BYTES = 1 << 14


class _Head(msgspec.Struct):
    journal: int
    spec: str


class _Line(msgspec.Struct):
    s: str
    g: str
    d: int
    r: msgspec.Raw


_Key = tuple[str, str, int]
_line = msgspec.json.Decoder(_Line)
_head = msgspec.json.Decoder(_Head)
_result: msgspec.json.Decoder[GraderResult] = msgspec.json.Decoder(GraderResult)
_canonical = msgspec.json.Encoder(order="deterministic")


def sample_key(fields: Fields) -> str | None:
    """The content hash of a sample's fields; ``None`` where they are not plain data.

    What has no exact JSON form (an array, an object of the user's) cannot be told apart by
    content, so such a sample is not journalled.
    """
    try:
        try:
            data = _canonical.encode(fields)
        except UnicodeEncodeError:  # a lone surrogate somewhere: only escapes can write it
            data = json.dumps(fields, sort_keys=True).encode()
    except UNENCODABLE:
        return None
    return blake2b(data, digest_size=16).hexdigest()


def _key(line: _Line) -> _Key:
    return line.s, line.g, line.d


class _StoredLines:
    """The lines of a journal by their keys: each in memory is a hash and its place in the file.

    There may be millions. They are mostly asked for in nearly the order of the file, so a block of
    it is read at once.
    """

    def __init__(self, path: Path, keys: Iterable[tuple[_Key, int]]) -> None:
        hashes, places = array("q"), array("q")
        for key, place in keys:
            hashes.append(hash(key))
            places.append(place)
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self._hashes = array("q", map(hashes.__getitem__, order))
        self._places = array("q", map(places.__getitem__, order))
        """A negative one was given out: it says which line of this hash is next."""
        self._left = len(order)
        self._block, self._block_place = b"", 0
        self._file = path.open("rb")
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._left

    def pop(self, key: _Key) -> _Line | None:
        """The first line of ``key`` that was not given out yet."""
        if not self._left:  # of a run that resumes nothing, and of the rest of one that does
            return None
        hashed = hash(key)
        first = at = bisect_left(self._hashes, hashed)
        while at < len(self._hashes) and self._hashes[at] == hashed:
            place, following = self._places[at], at + 1
            if place < 0:
                at = -place
            elif (line := self._read(place)) is None or _key(line) != key:
                at = first = following  # the file was changed, or two keys have one hash
            else:
                self._places[at] = self._places[first] = -following
                self._left -= 1
                return line
        return None

    def _read(self, place: int) -> _Line | None:
        start = place - self._block_place
        end = self._block.find(b"\n", start) if start >= 0 else -1
        size, before = _READ_BYTES, min(place, _READ_BYTES // 4)
        while end < 0:
            # Not by the file's position, which a forked child shares.
            self._block = os.pread(self._file.fileno(), size, place - before)
            self._block_place, start = place - before, before
            end = self._block.find(b"\n", start)
            if end < 0 and len(self._block) < size:
                return None
            size *= 4
        try:
            return _line.decode(self._block[start:end])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


class Journal:
    """Results on disk by (sample key, grader, draw); see the module's description.

    Equal samples are separate questions: each stored answer is given out once, so of two equal
    samples of which one was answered before, the other is asked.

    Not for two writers at once: the run folder's lock sees to that. Pickling carries the path and
    the spec hash only.

    >>> from tempfile import TemporaryDirectory
    >>> from adjudge import FunctionGrader, GradingRunner
    >>> calls = []
    >>> def costly(response):
    ...     calls.append(response)
    ...     return 1.0
    >>> with TemporaryDirectory() as folder:
    ...     for _ in range(2):  # the second run finds the answer of the first
    ...         journal = Journal(f"{folder}/journal.jsonl", "spec 1")
    ...         grader = FunctionGrader(costly, "costly", score_range=(0, 1))
    ...         runner = GradingRunner({"costly": grader}, journal=journal)
    ...         found = runner.run([{"response": "yes"}])
    >>> calls, found["costly"][0].score
    (['yes'], 1.0)
    """

    keeps: frozenset[ErrorKind] = frozenset()
    """Failures that are remembered like scores, where they are what is measured."""

    def __init__(self, path: Path | str, spec_hash: str) -> None:
        self.path = Path(path)
        self.spec_hash = spec_hash
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._flushed_at = 0.0
        self.before_flush: Callable[[], None] | None = None
        """Writes what must be on disk before a result that came from it: a cassette's replies."""
        self._open()
        _journals.add(self)

    def __reduce__(self) -> tuple[object, ...]:
        return Journal, (self.path, self.spec_hash)

    def __len__(self) -> int:
        """How many results found on opening have not been given out yet."""
        return len(self._known)

    def _open(self) -> None:
        head = next(iter_lines(self.path), None)
        if head is not None:
            self._check_head(head[1])
        self._log = JsonlLog(self.path)
        if head is None:
            self._log.rewrite([_Head(journal=1, spec=self.spec_hash)])
        damaged: list[int] = []
        lines = iter_placed_rows(self.path, _Line, first=2, checked=True, damaged=damaged)
        self._known = _StoredLines(self.path, ((_key(line), place) for place, line in lines))
        warn_damaged_lines(self.path, damaged, "Its grader is asked again.")

    def _check_head(self, line: bytes) -> None:
        try:
            spec = _head.decode(line).spec
        except msgspec.MsgspecError as error:
            raise RunFolderError(f"{self.path} is not a journal of adjudge: {error}") from error
        if spec != self.spec_hash:
            raise RunFolderError(
                f"{self.path} was written under another spec (hash {spec}, now {self.spec_hash}). "
                "Give another output folder, or restore the spec."
            )

    def forget(self, graders: Collection[str]) -> int:
        """Take the results of ``graders`` out of the file, to ask them again; their count.

        For a run that resumes: before anything is put. Failures that are kept stay.
        """
        count = 0

        def kept_lines() -> Iterator[bytes]:
            nonlocal count
            for _, line in iter_lines(self.path):
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    row = _line.decode(line)
                    if row.g in graders and not isinstance(_result.decode(row.r), GraderError):
                        count += 1
                        continue
                yield line + b"\n"

        if len(self):
            atomic_write(self.path, kept_lines())
            self._open()
        return count

    def take(self, sample: str, grader: str, draw: int) -> GraderResult | None:
        """A result found on opening, given out once, or ``None``."""
        stored = self._known.pop((sample, grader, draw))
        try:
            return None if stored is None else _result.decode(stored.r)
        except msgspec.MsgspecError:
            return None  # damaged on disk: asked again, as after a torn write

    def put(self, sample: str, grader: str, draw: int, result: GraderResult) -> None:
        """Remember ``result``, a failure only of :attr:`keeps`; written in about half a second."""
        if isinstance(result, GraderError) and result.kind not in self.keeps:
            return
        try:
            line = encode_checked_line({"s": sample, "g": grader, "d": draw, "r": result})
        except UNENCODABLE:  # metadata that JSON cannot hold: asked again on resuming
            return
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= _FLUSH_BYTES or time.monotonic() - self._flushed_at > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Hand what is pending to the operating system, in one append."""
        if self._pending:
            if self.before_flush is not None:
                self.before_flush()
            self._log.append_lines(b"".join(self._pending))
            self._drop_pending()
        self._flushed_at = time.monotonic()

    def _drop_pending(self) -> None:
        self._pending, self._pending_bytes = [], 0


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: what is pending belongs to the parent, which writes it."""
    for journal in _journals:
        journal._drop_pending()  # noqa: SLF001  (a journal's own affair)


os.register_at_fork(after_in_child=_leave_to_parent)
