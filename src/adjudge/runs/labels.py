"""What people say of a run's samples: ``labels.jsonl`` in the run folder, which only grows.

A label says one thing: that the judge is right or wrong about a sample, a person's own score, that
one sample of a group is better than another, or a note. It is about one grader, or about the reward
as a whole. Nothing is ever changed: of several labels of an author about the same thing the last
one counts, and a withdrawal is a row of its own that names the row it takes back.

Several processes may write at once. Each row is one append under a lock and is on the disk when
:meth:`LabelLog.append` returns, so a kill loses the row that was being written and no other.

Half of a run's samples, chosen by a hash of their place, are the pool of random ones in the queue;
those where the run disagrees with itself and those that nearly tie in their group come from the
other half. So what the random ones say of the judge holds for the run, whatever is asked besides;
what the others say holds for samples where it is in doubt. Two people get the same samples.

The live page writes labels, and nothing else. A request that writes must come from the page itself:
from the same origin by two headers that a browser sets and a page cannot, as JSON, which a form of
another site cannot send, and with the token of this server, which another site cannot read.
"""

from __future__ import annotations

import fcntl
import getpass
import hmac
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
from adjudge.files import iter_rows, warn_damaged_lines
from adjudge.runs.sample_index import RolloutIndex, present_number
from adjudge.runs.samples import SCORE, RunSamples, find_run_disagreements
from adjudge.stats import snap_ties
from adjudge.text import encode_json

LABELS_FILE = "labels.jsonl"
MAX_NOTE, MAX_NAME = 4_000, 80
"""Characters of a note, and of the name of an author or a grader."""

QueueReason = Literal["random", "disagreement", "near tie"]
_ORDER: tuple[QueueReason, ...] = (  # as long as there are samples for each
    "random", "disagreement", "random", "near tie", "random", "disagreement", "random",
    "disagreement", "random", "near tie",
)  # fmt: skip

QUEUE_SIZE = 50
"""Labels of a round, of which the page says how many are done."""


class Statement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person said of a sample, as a page sends it and ``labels.jsonl`` has it.

    ``grader`` is ``None`` for the reward as a whole. ``verdict``: whether the judge is right.
    ``score``: the person's own, on the judge's scale. ``blind``: whether the judge's words and
    numbers were hidden then. ``queue``: why the sample was proposed, ``None`` where the person
    chose it. ``withdrawn``: the ``id`` of the label of the same author that this takes back; what
    that author said before then counts again.
    """

    author: str
    grader: str | None = None
    verdict: Literal["right", "wrong"] | None = None
    score: float | None = None
    note: str = ""
    blind: bool = False
    queue: QueueReason | None = None
    withdrawn: str | None = None


class Label(Statement, frozen=True, kw_only=True, omit_defaults=True):
    """A row of ``labels.jsonl``: what ``author`` said of one sample, or took back.

    The sample is named by ``key``, the hash of what was judged, and by ``step`` and ``index`` as
    the run counts it. ``preferred_over``: the key of the sample that this one is better than, and
    ``over_index`` its index. ``judge_score``: what the judge gave when the label was made, ``None``
    where that is not known.

    Raises ``ValueError`` for a row that says nothing or two things, or that is too long.
    """

    id: str
    time: str
    index: int
    key: str = ""
    step: int | None = None
    group: str | None = None
    preferred_over: str | None = None
    over_index: int | None = None
    judge_score: float | None = None

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
    def kind(self) -> Literal["verdict", "score", "preferred", "note"]:
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


def _user_name() -> str:
    try:
        return check_author(getpass.getuser())
    except (OSError, KeyError, ImportError, ValueError):  # a container's user may have no name
        return "anonymous"


def stamp_label() -> dict[str, Any]:
    """A new label's ``id``, which no other has, and its ``time``."""
    return {
        "id": secrets.token_hex(8),
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


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
        damaged: list[int] = []
        if not self.path.exists():
            return []
        with self._opened(os.O_RDONLY, fcntl.LOCK_SH):
            found = list(iter_rows(self.path, Label, damaged=damaged))
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


# --- the queue ------------------------------------------------------------------------------------


class QueueEntry(NamedTuple):
    """A sample to be labelled, why, and the row of the one that it nearly ties with."""

    row: int
    queue: QueueReason
    beside: int | None = None


def build_queue(rollouts: RolloutIndex, disputed: Sequence[int] = ()) -> list[QueueEntry]:
    """All samples of a run that have a reward, once each at most: the most useful first.

    ``disputed``: the rows that the run disagrees with itself about
    (:func:`~adjudge.runs.sample_index.find_disagreements`), the worst first.
    Reasons alternate; where one has no samples left, the others go on. Of the half that is not
    random only samples with a reason are in the queue.
    """
    order: dict[int, int] = {}
    for row, reward in enumerate(rollouts.reward):
        if not math.isnan(reward):
            step = rollouts.groups[rollouts.group_of[row]].step
            place = f"0/{step}/{rollouts.places[row]}".encode()
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
    found: list[QueueEntry] = []
    used: set[int] = set()
    while streams:
        for reason in _ORDER:
            entry = next((one for one in streams.get(reason, ()) if one.row not in used), None)
            if entry is None:
                streams.pop(reason, None)
            else:
                used.add(entry.row)
                found.append(entry)
    return found


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


# --- the live page --------------------------------------------------------------------------------


MAX_BODY = 65_536
"""Bytes of a request that writes; a note of the longest kind fits."""
TOKEN_HEADER = "X-Adjudge-Token"  # noqa: S105 (a header's name)
_MAX_LEVELS = 20


class RequestRefused(Exception):
    """A request that is not answered: an HTTP status and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LabelRequest(Statement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request that writes one label, or takes one back.

    ``row``: the sample's row; ``over``: that of the sample that it is better than.
    """

    generation: int
    row: int
    over: int | None = None


class LabelDesk:
    """Takes labels for one run folder, and says which are there and what comes next.

    ``reading`` is refreshed by others. Who labels is this process's user, if the page says nothing
    else.
    """

    def __init__(self, reading: RunSamples, *, read_only: bool = False) -> None:
        self.reading, self.read_only = reading, read_only
        self.author = _user_name()
        self.token = secrets.token_urlsafe(24)
        self._log = LabelLog(reading.folder)
        self._size = 0
        self._labels: list[Label] = []
        self._queue_of: tuple[int, int] | None = None
        self._queue: list[QueueEntry] = []

    def check_request(self, headers: Mapping[str, str]) -> None:
        """Raise :class:`RequestRefused` unless a request to write comes from our own page."""
        if self.read_only:
            raise RequestRefused(403, "this page is read only (adjudge view --read-only)")
        # The host was found to be this machine before; a page of another port has another origin.
        if headers.get("Sec-Fetch-Site") != "same-origin":
            raise RequestRefused(403, "labels are taken from this page only (Sec-Fetch-Site)")
        if headers.get("Origin") != f"http://{headers.get('Host', '')}":
            raise RequestRefused(403, "labels are taken from this page only (Origin)")
        kind, _, parameters = headers.get("Content-Type", "").partition(";")
        if kind.strip().lower() != "application/json" or parameters.strip():
            raise RequestRefused(415, "a label must be sent as application/json")
        given = headers.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            raise RequestRefused(403, "the server was started anew: load the page again")

    def write(self, body: bytes) -> dict[str, Any]:
        """Append what a request says; the label as written."""
        try:
            asked = msgspec.json.decode(body, type=LabelRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestRefused(400, f"not a label: {error}") from None
        if asked.generation != self.reading.generation:
            raise RequestRefused(409, "the run was written anew")
        label = self._label(asked)
        known = {(one.id, one.author) for one in self._current()}
        if label.withdrawn is not None and (label.withdrawn, label.author) not in known:
            raise RequestRefused(404, "there is no such label of this author to take back")
        self._log.append(label)
        return {"label": msgspec.to_builtins(label)}

    def _label(self, asked: LabelRequest) -> Label:
        place = self._place(asked.row)
        scores = self.reading.rollouts.scores
        if asked.grader is not None and f"{asked.grader}{SCORE}" not in scores:
            raise RequestRefused(400, "grader: the run has no such grader")
        facts = self.reading.graders.get(asked.grader or "")
        if asked.score is not None and facts and facts.range and not facts.mapper:
            low, high = facts.range
            low, high = -math.inf if low is None else low, math.inf if high is None else high
            if not low <= asked.score <= high:
                why = f"is not on the scale (found {asked.score:g}; allowed {low:g} to {high:g})"
                raise RequestRefused(400, f"score: {why}")
        over: dict[str, Any] = {}
        if asked.over is not None:
            rollouts = self.reading.rollouts
            other = self._place(asked.over)
            if asked.over == asked.row or (
                rollouts.group_of[asked.over] != rollouts.group_of[asked.row]
            ):
                raise RequestRefused(400, "over: must be another sample of the same group")
            over = {"preferred_over": other["key"], "over_index": other["index"]}
        said = {name: getattr(asked, name) for name in Statement.__struct_fields__}
        judged = present_number(self.reading.rollouts.reward[asked.row])
        if asked.grader is not None:
            judged = self.reading.rollouts.score(f"{asked.grader}{SCORE}", asked.row)
        try:
            return Label(**stamp_label(), **place, **over, **said, judge_score=judged)
        except ValueError as error:
            raise RequestRefused(400, str(error)) from None

    def _place(self, row: int) -> dict[str, Any]:
        """What names the sample of a row: key, index, step, group."""
        rollouts = self.reading.rollouts
        found = self.reading.row(row) if 0 <= row < len(rollouts) else None
        if found is None:
            raise RequestRefused(404, "no such sample")
        (step, index), key = self._sample(row), found.get("key")
        group = rollouts.groups[rollouts.group_of[row]].name
        key = key if isinstance(key, str) else ""
        return {"key": key, "index": index, "step": step, "group": group}

    def _labels_of(self, name: str | None) -> tuple[str, list[Label]]:
        """Who labels, and what they said that counts."""
        try:
            author = check_author(name) if name else self.author
        except ValueError as error:
            raise RequestRefused(400, str(error)) from None
        return author, [one for one in self._current() if one.author == author]

    def describe(self, author: str | None = None, row: int | None = None) -> dict[str, Any]:
        """Who labels, with what token, on which scales; and the author's labels of one sample.

        Labels of others are counted and not shown: they would lead whoever labels.
        """
        author, own = self._labels_of(author)
        found: dict[str, Any] = {
            "author": author,
            "read_only": self.read_only,
            "token": "" if self.read_only else self.token,
            "scales": self._scales(),
            "labelled": len({one.sample for one in own}),
        }
        if row is not None and 0 <= row < len(self.reading.rollouts):
            sample = self._sample(row)
            found["labels"] = [
                msgspec.to_builtins(one) for one in own if (one.step, one.index) == sample
            ]
        return found

    def next_entries(self, author: str | None = None) -> dict[str, Any]:
        """What is left of the author's round of the queue, and how many of it are done."""
        _, own = self._labels_of(author)
        # A random one that the person had chosen is asked again: left out, it would bias the rest.
        queued = [one for one in own if one.queue is not None]
        done = {(one.step, at) for one in queued for at in (one.index, one.over_index)}
        by_choice = {(one.step, one.index) for one in own}
        rollouts = self.reading.rollouts
        if (version := (self.reading.generation, len(rollouts))) != self._queue_of:
            disputed = find_run_disagreements(self.reading, most=None).worst
            self._queue = build_queue(rollouts, [one.place for one in disputed])
            self._queue_of = version
        left = [
            one
            for one in self._queue
            if self._sample(one.row) not in (done if one.queue == "random" else by_choice)
        ]
        labelled = len({one.sample for one in queued}) % QUEUE_SIZE
        round_size = min(QUEUE_SIZE, labelled + len(left))
        return {
            "of": round_size,
            "labelled": labelled,
            "left": len(left),
            "entries": [one._asdict() for one in left[: round_size - labelled]],
        }

    def _sample(self, row: int) -> tuple[int | None, int]:
        rollouts = self.reading.rollouts
        step = rollouts.groups[rollouts.group_of[row]].step
        return step if self.reading.kind == "train" else None, rollouts.places[row]

    def _scales(self) -> list[dict[str, Any]]:
        """What the judge's numbers range over; ``levels`` where there are few."""
        rollouts = self.reading.rollouts
        found = []
        for key, column in (("", rollouts.reward), *rollouts.scores.items()):
            if key and not key.endswith(SCORE):
                continue
            levels = sorted({value for value in column if value == value})  # noqa: PLR0124 (NaN)
            ends = (levels[0], levels[-1]) if levels else (None, None)
            few = levels if len(levels) <= _MAX_LEVELS else []
            name = key.removesuffix(SCORE) or None
            found.append({"grader": name, "low": ends[0], "high": ends[1], "levels": few})
        return found

    def _current(self) -> list[Label]:
        """The labels that count, those of other processes too; the file only grows."""
        size = self._log.path.stat().st_size if self._log.path.exists() else 0
        if size != self._size:
            self._size, self._labels = size, select_current(self._log.read())
        return self._labels
