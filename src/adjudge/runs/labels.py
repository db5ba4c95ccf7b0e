"""What people say of a run's samples: ``labels.jsonl`` in the run folder, which only grows.

A label says one thing: that the judge is right or wrong about a sample, a person's own score, that
one sample of a group is better than another, or a note. It is about one grader, or about the reward
as a whole. Nothing is ever changed: of several labels of an author about the same thing the last
one counts, and a withdrawal is a row of its own that names the row it takes back.

Several processes may write at once. Each row is one append under a lock and is on the disk when
:meth:`LabelLog.append` returns, so a kill loses the row that was being written and no other.

Half of a run's samples, chosen by a hash of their place, are the pool of random ones in the queue;
those where the run disagrees with itself and those that nearly tie in their group come from the
other half. So the random ones are a simple random sample of the run whatever is asked besides, and
what they say of the judge holds for the run; what the others say holds for the samples where it is
in doubt. The order depends on the run alone: two people get the same samples.
"""

from __future__ import annotations

import fcntl
import math
import os
import secrets
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from adjudge.errors import RunFolderError
from adjudge.files import warn_damaged_lines
from adjudge.runs.sample_index import RolloutIndex
from adjudge.stats import snap_ties
from adjudge.text import encode_json

LABELS_FILE = "labels.jsonl"
MAX_NOTE, MAX_NAME = 4_000, 80
"""Characters of a note, and of the name of an author or a grader."""

QueueReason = Literal["random", "disagreement", "near tie"]
QUEUE_SHARES: Mapping[QueueReason, float] = {"random": 0.5, "disagreement": 0.3, "near tie": 0.2}
"""The share of each reason in the queue, as long as there are samples for it."""

_ORDER: tuple[QueueReason, ...] = (
    "random", "disagreement", "random", "near tie", "random", "disagreement", "random",
    "disagreement", "random", "near tie",
)  # fmt: skip

QUEUE_SIZE = 50
"""Labels of a round, of which the page says how many are done."""

LabelKind = Literal["verdict", "score", "preferred", "note"]


class Label(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of ``labels.jsonl``: what ``author`` said of one sample, or took back.

    The sample is named by ``key``, the hash of what was judged, and by ``step`` and ``index`` as
    the run counts it. ``grader`` is ``None`` for the reward as a whole. ``verdict``: whether the
    judge is right. ``score``: the person's own, on the judge's scale. ``preferred_over``: the key
    of the sample that this one is better than, and ``over_index`` its index. ``judge_score``: what
    the judge gave when the label was made, ``None`` where that is not known. ``blind``: whether the
    judge's words and numbers were hidden then. ``queue``: why the sample was proposed, ``None``
    where the person chose it. ``withdrawn``: the ``id`` of the label of the same author that this
    row takes back; what that author said before then counts again.

    Raises ``ValueError`` for a row that says nothing or two things, or that is too long.
    """

    id: str
    time: str
    author: str
    index: int
    key: str = ""
    step: int | None = None
    group: str | None = None
    grader: str | None = None
    verdict: Literal["right", "wrong"] | None = None
    score: float | None = None
    preferred_over: str | None = None
    over_index: int | None = None
    note: str = ""
    judge_score: float | None = None
    blind: bool = False
    queue: QueueReason | None = None
    withdrawn: str | None = None

    def __post_init__(self) -> None:
        check_author(self.author)
        if len(self.note) > MAX_NOTE:
            raise ValueError(f"note: has {len(self.note):,} characters (allowed: {MAX_NOTE:,})")
        for name in ("score", "judge_score"):
            if not math.isfinite(getattr(self, name) or 0.0):
                raise ValueError(f"{name}: must be a finite number")
        kinds = [self.verdict, self.score, self.preferred_over, self.withdrawn]
        count = sum(one is not None for one in kinds)
        if count > 1 or (count == 0 and not self.note):
            raise ValueError(
                "must have one of verdict, score, preferred_over, withdrawn, or a note"
            )

    @property
    def kind(self) -> LabelKind:
        """What it says; a note beside something else is no label of its own."""
        if self.verdict is not None:
            return "verdict"
        if self.score is not None:
            return "score"
        return "note" if self.preferred_over is None else "preferred"

    @property
    def sample(self) -> tuple[int | None, int, str]:
        """Which sample it is about: step, index and key."""
        return self.step, self.index, self.key

    @property
    def _subject(self) -> Hashable:
        """A later label of the same author about the same replaces it."""
        if self.kind != "preferred":
            return self.author, self.grader, self.kind, self.sample
        pair = frozenset({(self.index, self.key), (self.over_index, self.preferred_over)})
        return self.author, self.grader, self.kind, self.step, pair


def check_author(name: str) -> str:
    """``name`` as it is; raises ``ValueError`` for one that cannot stand in a table."""
    if not 0 < len(name.strip()) <= len(name) <= MAX_NAME or not name.isprintable():
        raise ValueError(f"author: must be 1 to {MAX_NAME} printable characters")
    return name


def stamp_label() -> dict[str, Any]:
    """A new label's ``id``, which no other has, and its ``time``."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"id": secrets.token_hex(8), "time": now}


def select_current(rows: Iterable[Label]) -> list[Label]:
    """The labels that count, oldest first: what was withdrawn or replaced is left out."""
    rows = list(rows)
    back = {(one.author, one.withdrawn) for one in rows if one.withdrawn is not None}
    current: dict[Hashable, Label] = {}
    for one in rows:
        if one.withdrawn is None and (one.author, one.id) not in back:
            current.pop(one._subject, None)  # noqa: SLF001 (so that the last one comes last)
            current[one._subject] = one  # noqa: SLF001
    return list(current.values())


def implied_score(label: Label, judge: float | None, levels: Sequence[float]) -> float | None:
    """What right or wrong comes to as a score, where the judge gives one of two ``levels``.

    ``judge``: what it gives the sample now, if the label does not say what it gave then.
    """
    about = judge if label.judge_score is None else label.judge_score
    if label.verdict is None or about is None or len(levels) != 2:
        return None
    if label.verdict == "right":
        return about
    return max(levels, key=lambda level: abs(level - about))


class LabelLog:
    """The labels of the run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LABELS_FILE

    def append(self, *labels: Label) -> None:
        """Write labels so that no other writer's are lost, and wait until the disk has them.

        Raises :class:`~adjudge.errors.RunFolderError` where the file cannot be written.
        """
        data = b"".join(encode_json(one) + b"\n" for one in labels)
        with self._opened(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as handle:
            size = os.fstat(handle).st_size
            # Whoever was killed while writing left half a row: it ends here, and the next begins.
            if size and os.pread(handle, 1, size - 1) != b"\n":
                data = b"\n" + data
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)

    def read(self) -> list[Label]:
        """All rows in the order of writing; a damaged one is passed over with a warning."""
        if not self.path.exists():
            return []
        with self._opened(os.O_RDONLY, fcntl.LOCK_SH), self.path.open("rb") as file:
            lines = file.read().split(b"\n")
        found, damaged = [], []
        for number, line in enumerate(lines, start=1):
            try:
                if line:
                    found.append(_decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                damaged.append(number)
        warn_damaged_lines(self.path, damaged, "The label is left out.")
        return found

    @contextmanager
    def _opened(self, flags: int, lock: int) -> Iterator[int]:
        try:
            handle = os.open(self.path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(handle, lock)
            yield handle
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be used: {error.strerror}") from error
        finally:
            os.close(handle)


_decoder = msgspec.json.Decoder(Label)


# --- the queue ------------------------------------------------------------------------------------


class QueueEntry(NamedTuple):
    """A sample to be labelled, why, and the row of the one that it nearly ties with."""

    row: int
    queue: QueueReason
    beside: int | None = None


def build_queue(
    rollouts: RolloutIndex, disputed: Sequence[int] = (), *, seed: int = 0
) -> list[QueueEntry]:
    """All samples of a run that have a reward, once each at most: the most useful first.

    ``disputed``: the rows that the run disagrees with itself about
    (:func:`~adjudge.runs.sample_index.find_disagreements`), the worst first.
    Reasons alternate by :data:`QUEUE_SHARES`; where one has no samples left, the others go on. Of
    the half that is not random only samples with a reason are in the queue.
    """
    order: dict[int, int] = {}
    for row, reward in enumerate(rollouts.reward):
        if not math.isnan(reward):
            step = rollouts.groups[rollouts.group_of[row]].step
            place = f"{seed}/{step}/{rollouts.places[row]}".encode()
            order[row] = int.from_bytes(blake2b(place, digest_size=8).digest())
    pool = sorted((row for row in order if order[row] & 1), key=order.__getitem__)
    streams: dict[QueueReason, Iterator[QueueEntry]] = {
        "random": (QueueEntry(row, "random") for row in pool),
        "disagreement": (
            QueueEntry(row, "disagreement") for row in disputed if not order.get(row, 1) & 1
        ),
        "near tie": (
            QueueEntry(row, "near tie", other)
            for row, other in _near_ties(rollouts)
            if not order[row] & 1
        ),
    }
    return list(_interleave(streams))


def _near_ties(rollouts: RolloutIndex) -> Iterator[tuple[int, int]]:
    """Two samples of a group with rewards next to each other, the closest first; equal ones not."""
    gaps = []
    for group in rollouts.groups:
        rows = [row for row in group.rows if not math.isnan(rollouts.reward[row])]
        rewards = snap_ties([rollouts.reward[row] for row in rows])
        ranked = sorted(zip(rewards, rows, strict=True))
        gaps += [(high - low, row, other) for (low, other), (high, row) in pairwise(ranked)]
    for gap, row, other in sorted(gaps):
        if gap > 0:
            yield row, other


def _interleave(streams: dict[QueueReason, Iterator[QueueEntry]]) -> Iterator[QueueEntry]:
    """By the shares of the reasons, until all streams are empty; a row once."""
    used: set[int] = set()
    while streams:
        for reason in _ORDER:
            entry = next((one for one in streams.get(reason, ()) if one.row not in used), None)
            if entry is None:
                streams.pop(reason, None)
            else:
                used.add(entry.row)
                yield entry
