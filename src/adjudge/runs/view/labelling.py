"""What the live page writes and reads of people's labels.

It is the only thing that the page's server ever writes, and it only appends to ``labels.jsonl``. A
request that writes must come from the page itself: from the same origin by two headers that a
browser sets and a page cannot, as JSON, which a form of another site cannot send, and with the
token of this server, which another site cannot read. It names a sample by its row; key, index,
group and the judge's score are taken from the run, not from the request.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from adjudge.runs.labels import (
    QUEUE_SIZE,
    Label,
    LabelLog,
    QueueEntry,
    QueueReason,
    build_queue,
    check_author,
    select_current,
    stamp_label,
)
from adjudge.runs.sample_index import present_number
from adjudge.runs.samples import SCORE, find_run_disagreements
from adjudge.runs.view.run_reader import RunReader

MAX_BODY = 65_536
"""Bytes of a request that writes; a note of the longest kind fits."""
TOKEN_HEADER = "X-Adjudge-Token"  # noqa: S105 (a header's name)
_MAX_LEVELS = 20
_TAKEN_OVER = ("author", "grader", "verdict", "score", "note", "blind", "queue", "withdrawn")
"""What a label has as the request has it."""


class RequestRefused(Exception):
    """A request that is not answered: an HTTP status and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LabelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that writes one label, or takes one back."""

    generation: int
    row: int
    author: str
    grader: str | None = None
    verdict: Literal["right", "wrong"] | None = None
    score: float | None = None
    over: int | None = None
    """The row of the sample that this one is better than."""
    note: str = ""
    blind: bool = False
    queue: QueueReason | None = None
    withdrawn: str | None = None


class LabelDesk:
    """Takes labels for one run folder, and says which are there and what comes next.

    ``reading`` is refreshed by others; ``author`` is who labels if the page says nothing else.
    """

    def __init__(self, reading: RunReader, author: str, *, read_only: bool = False) -> None:
        self.reading, self.author, self.read_only = reading, author, read_only
        self.token = secrets.token_urlsafe(24)
        self._log = LabelLog(reading.folder)
        self._stamp: tuple[int, int] | None = None
        self._labels: list[Label] = []
        self._queue_of: tuple[int, int] | None = None
        self._queue: list[QueueEntry] = []

    def check_request(self, headers: Mapping[str, str], length: int | None) -> None:
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
        if length is None:
            raise RequestRefused(411, "a label must say how long it is")
        if length > MAX_BODY:
            raise RequestRefused(413, f"a label may have {MAX_BODY:,} bytes")

    def write(self, body: bytes) -> dict[str, Any]:
        """Append what a request says; the label as written."""
        try:
            asked = msgspec.json.decode(body, type=LabelRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestRefused(400, f"not a label: {error}") from None
        if asked.generation != self.reading.generation:
            raise RequestRefused(409, "the run was written anew")
        label = self._label(asked)
        if label.withdrawn is not None and not any(
            (one.id, one.author) == (label.withdrawn, label.author) for one in self._current()
        ):
            raise RequestRefused(404, "there is no such label of this author to take back")
        self._log.append(label)
        return {"label": msgspec.to_builtins(label)}

    def _label(self, asked: LabelRequest) -> Label:
        place = self._place(asked.row)
        scores = self.reading.rollouts.scores
        if asked.grader is not None and f"{asked.grader}{SCORE}" not in scores:
            raise RequestRefused(400, "grader: the run has no such grader")
        self._check_score(asked)
        over: dict[str, Any] = {}
        if asked.over is not None:
            rollouts = self.reading.rollouts
            other = self._place(asked.over)
            if asked.over == asked.row or (
                rollouts.group_of[asked.over] != rollouts.group_of[asked.row]
            ):
                raise RequestRefused(400, "over: must be another sample of the same group")
            over = {"preferred_over": other["key"], "over_index": other["index"]}
        said = {name: getattr(asked, name) for name in _TAKEN_OVER}
        judged = present_number(self.reading.rollouts.reward[asked.row])
        if asked.grader is not None:
            judged = self.reading.rollouts.score(f"{asked.grader}{SCORE}", asked.row)
        try:
            return Label(**stamp_label(), **place, **over, **said, judge_score=judged)
        except ValueError as error:
            raise RequestRefused(400, str(error)) from None

    def _check_score(self, asked: LabelRequest) -> None:
        """Refuse a score outside the scale that the grader states."""
        facts = self.reading.graders.get(asked.grader or "")
        if asked.score is None or facts is None or facts.range is None or facts.mapper:
            return
        low, high = facts.range
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        if not low <= asked.score <= high:
            raise RequestRefused(
                400,
                f"score: is not on the scale (found {asked.score:g}; allowed {low:g} to {high:g})",
            )

    def _place(self, row: int) -> dict[str, Any]:
        """What names the sample of a row: key, index, step, group."""
        rollouts = self.reading.rollouts
        found = self.reading.row(row) if 0 <= row < len(rollouts) else None
        if found is None:
            raise RequestRefused(404, "no such sample")
        group = rollouts.groups[rollouts.group_of[row]]
        key = found.get("key")
        return {
            "key": key if isinstance(key, str) else "",
            "index": rollouts.places[row],
            "step": group.step if self.reading.kind == "train" else None,
            "group": group.name,
        }

    def _parse_author(self, name: str | None) -> str:
        try:
            return check_author(name) if name else self.author
        except ValueError as error:
            raise RequestRefused(400, str(error)) from None

    # --- what there is --------------------------------------------------------------------------

    def describe(self, author: str | None = None, row: int | None = None) -> dict[str, Any]:
        """Who labels, with what token, on which scales; and the author's labels of one sample.

        Labels of others are counted and not shown: they would lead whoever labels.
        """
        author = self._parse_author(author)
        own = [one for one in self._current() if one.author == author]
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
        author = self._parse_author(author)
        own = [one for one in self._current() if one.author == author]
        # A random one that the person had chosen is asked again: left out, it would bias the rest.
        done = {(one.step, one.index) for one in own if one.queue is not None}
        done |= {
            (one.step, one.over_index)
            for one in own
            if one.queue is not None and one.over_index is not None
        }
        by_choice = {(one.step, one.index) for one in own}
        queue = self._ordered_queue()
        left = [
            one
            for one in queue
            if self._sample(one.row) not in (done if one.queue == "random" else by_choice)
        ]
        labelled = len({one.sample for one in own if one.queue is not None}) % QUEUE_SIZE
        round_size = min(QUEUE_SIZE, labelled + len(left))
        return {
            "of": round_size,
            "labelled": labelled,
            "left": len(left),
            "entries": [one._asdict() for one in left[: round_size - labelled]],
        }

    def _ordered_queue(self) -> list[QueueEntry]:
        rollouts = self.reading.rollouts
        version = (self.reading.generation, len(rollouts))
        if version != self._queue_of:
            disputed = find_run_disagreements(self.reading, most=None).worst
            self._queue = build_queue(rollouts, [one.place for one in disputed])
            self._queue_of = version
        return self._queue

    def _sample(self, row: int) -> tuple[int | None, int]:
        rollouts = self.reading.rollouts
        step = rollouts.groups[rollouts.group_of[row]].step
        return step if self.reading.kind == "train" else None, rollouts.places[row]

    def _scales(self) -> list[dict[str, Any]]:
        """What the judge's numbers range over; ``levels`` where there are few."""
        rollouts = self.reading.rollouts
        named = [key for key in rollouts.scores if key.endswith(SCORE)]
        columns = [
            (None, rollouts.reward),
            *((key.removesuffix(SCORE), rollouts.scores[key]) for key in named),
        ]
        found = []
        for name, column in columns:
            levels = sorted({value for value in column if value == value})  # noqa: PLR0124 (NaN)
            ends = (levels[0], levels[-1]) if levels else (None, None)
            few = levels if len(levels) <= _MAX_LEVELS else []
            found.append({"grader": name, "low": ends[0], "high": ends[1], "levels": few})
        return found

    def _current(self) -> list[Label]:
        """The labels that count; the file is read again when it has changed."""
        try:
            found = self._log.path.stat()
            stamp = (found.st_size, found.st_mtime_ns)
        except OSError:
            return []
        if stamp != self._stamp:
            self._stamp, self._labels = stamp, select_current(self._log.read())
        return self._labels
