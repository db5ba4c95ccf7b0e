"""What has been graded already, so that an interrupted run resumes.

One JSON line a result: ``{"s": sample key, "g": grader, "d": draw, "r": result, "c": checksum}``,
after a first line that names the spec's hash. Failures are not written, so a resumed run asks them
again (but see :attr:`Journal.keeps`). A torn last line (the process died while writing) is ignored;
a damaged line is named in a warning and its result asked again; another spec's journal is refused.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, RunFolderError
from adjudge.types import GraderError, GraderResult, encode_result

__all__ = ["Journal", "add_checksum", "is_intact", "sample_key"]

_log = logging.getLogger("adjudge")
_NAMED_LINES = 5
_FLUSH_BYTES = 1 << 16
_FLUSH_S = 0.5


_CHECKSUM = b',"c":"%08x"}'
_CHECKSUM_MARK, _CHECKSUM_BYTES = b',"c":"', len(_CHECKSUM % 0)


def add_checksum(line: bytes) -> bytes:
    """A JSON object on a line, with the CRC-32 of all before it as its last key ``c``."""
    body = line[:-1]
    return body + _CHECKSUM % zlib.crc32(body)


def is_intact(line: bytes) -> bool:
    """Whether ``line`` is as :func:`add_checksum` wrote it; lines without checksum pass.

    Earlier versions of adjudge wrote none.
    """
    said = line[-_CHECKSUM_BYTES:]
    if not said.startswith(_CHECKSUM_MARK):
        return True
    return said == _CHECKSUM % zlib.crc32(line[:-_CHECKSUM_BYTES])


class _Head(msgspec.Struct):
    journal: int
    spec: str


class _Line(msgspec.Struct):
    s: str
    g: str
    d: int
    r: msgspec.Raw


_head = msgspec.json.Decoder(_Head)
_line = msgspec.json.Decoder(_Line)
_result: msgspec.json.Decoder[GraderResult] = msgspec.json.Decoder(GraderResult)
_canonical = msgspec.json.Encoder(order="deterministic")
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)


def sample_key(fields: Mapping[str, Any]) -> str | None:
    """The content hash of a sample's fields; ``None`` where they are not plain data.

    What has no exact JSON form (an array, an object of the user's) cannot be told apart by
    content, so such a sample is not journalled.
    """
    try:
        try:
            data = _canonical.encode(fields)
        except UnicodeEncodeError:  # a lone surrogate somewhere: only escapes can write it
            data = json.dumps(fields, sort_keys=True).encode()
    except _UNWRITABLE:
        return None
    return blake2b(data, digest_size=16).hexdigest()


class Journal:
    """Results on disk by (sample key, grader, draw); see the module's description.

    Equal samples are separate questions: each stored answer is given out once, so of two equal
    samples of which one was answered before, the other is asked.

    Not for two writers at once: the run folder's lock sees to that. Pickling carries the path and
    the spec hash only.
    """

    keeps: frozenset[ErrorKind] = frozenset()
    """Failures that are remembered like scores, where they are what is measured."""

    def __init__(self, path: Path | str, spec_hash: str) -> None:
        self.path = Path(path)
        self.spec_hash = spec_hash
        self._known: dict[tuple[str, str, int], deque[bytes]] = {}
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._flushed_at = 0.0
        self._pid = os.getpid()
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return Journal, (self.path, self.spec_hash)

    def __len__(self) -> int:
        """How many results found on opening have not been given out yet."""
        return sum(map(len, self._known.values()))

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = self.path.read_bytes() if self.path.exists() else b""
        lines = data.split(b"\n")
        torn = lines.pop()
        if lines:
            self._check_head(lines[0])
            self._read(lines[1:])
        if torn or not lines:
            self._rewrite(lines)

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

    def _read(self, lines: list[bytes]) -> None:
        damaged = []
        for number, line in enumerate(lines, start=2):
            try:
                entry = _line.decode(line) if is_intact(line) else None
            except (msgspec.MsgspecError, UnicodeDecodeError):
                entry = None
            if entry is None:
                damaged.append(number)
                continue
            key = (entry.s, entry.g, entry.d)
            self._known.setdefault(key, deque()).append(bytes(entry.r))
        self._warn_damaged(damaged)

    def _warn_damaged(self, numbers: list[int]) -> None:
        """Name damaged lines; their results are asked again, like those of a torn last line."""
        for number in numbers[:_NAMED_LINES]:
            _log.warning(
                "%s:%d: the line is damaged (its checksum or form is wrong). "
                "Its grader is asked again.",
                self.path,
                number,
            )
        if (more := len(numbers) - _NAMED_LINES) > 0:
            _log.warning(
                "%s: %d more lines are damaged. Their graders are asked again.", self.path, more
            )

    def _rewrite(self, lines: list[bytes]) -> None:
        """Write a fresh head, or cut a torn tail off so that appending starts on a line."""
        head = msgspec.json.encode(_Head(journal=1, spec=self.spec_hash))
        whole = lines or [head]
        fresh = self.path.with_suffix(".tmp")
        fresh.write_bytes(b"\n".join(whole) + b"\n")
        fresh.replace(self.path)

    def take(self, sample: str, grader: str, draw: int) -> GraderResult | None:
        """A result found on opening, given out once, or ``None``."""
        stored = self._known.get((sample, grader, draw))
        try:
            return _result.decode(stored.popleft()) if stored else None
        except msgspec.MsgspecError:
            return None  # damaged on disk: asked again, as after a torn write

    def put(self, sample: str, grader: str, draw: int, result: GraderResult) -> None:
        """Remember ``result``, a failure only of :attr:`keeps`; written in about half a second."""
        if isinstance(result, GraderError) and result.kind not in self.keeps:
            return
        if self._pid != os.getpid():  # a forked child: what is pending belongs to the parent
            self._pid, self._pending, self._pending_bytes = os.getpid(), [], 0
        try:
            line = _line_bytes(sample, grader, draw, result)
        except _UNWRITABLE:  # metadata that JSON cannot hold: asked again on resuming
            return
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= _FLUSH_BYTES or time.monotonic() - self._flushed_at > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Hand what is pending to the operating system, in one append."""
        if self._pending and self._pid == os.getpid():
            with self.path.open("ab") as file:
                file.write(b"".join(self._pending))
            self._pending, self._pending_bytes = [], 0
        self._flushed_at = time.monotonic()


_line_encoder = msgspec.json.Encoder()


def _line_bytes(sample: str, grader: str, draw: int, result: GraderResult) -> bytes:
    entry = _Line(sample, grader, draw, msgspec.Raw(encode_result(result)))
    return add_checksum(_line_encoder.encode(entry)) + b"\n"
