"""What writes a flight recorder's folder: a thread with a bounded queue, logs of many writers."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any

import msgspec

from adjudge.checks.steps import SentinelAction, StepWatch
from adjudge.files import atomic_write
from adjudge.intake.rollouts import read_conversation
from adjudge.runs.records import RECORDER_FILE, RecorderRow
from adjudge.stats import mean
from adjudge.text import encode_json
from adjudge.trainers.metrics import RecordedCall, batch_metrics
from adjudge.types import GradedSample, RewardResult, Sample

_LOCK = ".recorder.lock"
_ROLLOUTS, _EVALUATION = "rollouts.jsonl", "evaluation_rollouts.jsonl"
_METRICS, _ALARMS = "metrics.jsonl", "alarms.jsonl"
_MOST_WAITING = 16_384
"""Samples that wait to be written; a call that finds more is not recorded."""
_MOST_ROW_BYTES = 8 * 2**20
_WINDOW = 256
"""Samples of a row of metrics where the trainer hands them in one by one, without a step."""
_ROWS_AT_ONCE, _YIELD_S = 8, 0.001

_log = logging.getLogger("adjudge")


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """``folder`` for this process alone, for the time of one append."""
    handle = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class _SharedLog:
    """A file of JSON lines that several processes append to, under the folder's lock.

    Where lines are ``numbered``, each gets the next number of the file as its ``index``: so no two
    samples have the same, whichever processes they come from. The next number is in a file beside.
    """

    def __init__(self, path: Path, *, numbered: bool = False) -> None:
        self.path = path
        self._counter = path.with_name(f".{path.name}.next") if numbered else None

    def append(self, bodies: Sequence[bytes], most: int | None = None) -> int:
        """Append JSON objects; how many, of which the file stays within ``most`` bytes."""
        with self.path.open("ab+", buffering=0) as file:
            size = _cut_torn_line(file)
            first, lines, end = self._next_number(), list[bytes](), size
            for body in bodies:
                line = body + b"\n"
                if self._counter is not None:
                    line = b'{"index":%d,%b' % (first + len(lines), line[1:])
                end += len(line)
                if most is not None and end > most:
                    break
                lines.append(line)
            if self._counter is not None:  # first: a number that is lost is better than one twice
                atomic_write(self._counter, b"%d" % (first + len(lines)))
            view = memoryview(b"".join(lines))
            try:
                while view:
                    view = view[file.write(view) or 0 :]
            except OSError:
                file.truncate(size)
                raise
            return len(lines)

    def _next_number(self) -> int:
        if self._counter is None:
            return 0
        if self._counter.exists():
            return int(self._counter.read_text())
        with self.path.open("rb") as file:  # a folder that was copied without it
            return sum(1 for _ in file)


def _cut_torn_line(file: IO[bytes]) -> int:
    """The size of a file without a last line that a killed process did not end."""
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            size = content.rfind(b"\n") + 1
        file.truncate(size)
    return size


class RecorderThread:
    """The thread of one process that writes to ``folder``, and its queue.

    ``start`` counts the starts of the run; the other options are those of
    :class:`~.recorder.FlightRecorder`.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int, sentinel: SentinelAction | None, start: int = 1
    ) -> None:
        self.pid = os.getpid()
        self.stop_reason: str | None = None
        self._folder, self._most = folder, max_bytes
        self._mark = {"start": start} if start > 1 else {}
        rank = os.environ.get("RANK", "")
        self._rank = int(rank) if rank.isdecimal() else None
        self._name = secrets.token_hex(3)
        self._watch = StepWatch(sentinel) if sentinel and not self._rank else None
        self._logs = {
            name: _SharedLog(folder / name, numbered=name in (_ROLLOUTS, _EVALUATION))
            for name in (_ROLLOUTS, _EVALUATION, _METRICS, _ALARMS, RECORDER_FILE)
        }
        self._counting = threading.Lock()
        self._waiting = self._calls = self._windows = self._rows = 0
        self._dropped: Counter[str] = Counter()
        self._error = ""
        self._reported = 0, ""
        self._window: list[RecordedCall] = []  # of a sample each, until they are a row of metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adjudge-recorder")

    def put(self, call: RecordedCall) -> None:
        """Leave a call to the thread, or count it where too much waits."""
        count = len(call.samples)
        with self._counting:
            full = self._waiting and self._waiting + count > _MOST_WAITING
            self._waiting += 0 if full else count
        if full:
            self._drop("queue_full", count, "the disk is slower than the trainer")
        else:
            self._thread.submit(self._take, call, count)

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was put before is written; whether it is."""
        return not wait([self._thread.submit(self._report_changes)], timeout_s).not_done

    def close(self) -> None:
        """Write what waits and the last counts, and end the thread."""
        if self.pid == os.getpid():
            self._thread.shutdown()
            self._do(self._end_window)
            self._do(self._report)

    def _take(self, call: RecordedCall, count: int) -> None:
        self._do(partial(self._write, call), count)
        with self._counting:
            self._waiting -= count
        if not self._waiting:
            self._report_changes()

    def _do(self, work: Callable[[], None], count: int = 0) -> None:
        """Whatever goes wrong, the run goes on."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  (a full disk, a user's object in a sample)
            self._error = f"{type(error).__name__}: {error}"[:300]
            self._drop("error", count, self._error)

    def _drop(self, why: str, count: int, message: str) -> None:
        """Count samples that are not written; ``message`` says why, once."""
        with self._counting:
            first = why not in self._dropped
            self._dropped[why] += count
        if first:
            _log.warning(
                "%s: rollouts are not recorded: %s. Training goes on; recorder.jsonl counts them. "
                "This is said once.",
                self._folder,
                message,
            )

    # --- one call -----------------------------------------------------------------------------

    def _write(self, call: RecordedCall) -> None:
        one_by_one = len(call.samples) == 1 and call.progress.step is None
        step = call.progress.step
        if step is None and not one_by_one:
            step = self._calls
        bodies = self._encode_rows(call, step)
        if not self._rows and not self._dropped:
            self._report()  # who writes here, before the first row
        self._calls += 1
        name = _EVALUATION if call.progress.evaluating else _ROLLOUTS
        with exclusive_folder(self._folder):
            written = self._logs[name].append(bodies, self._most)
        self._rows += written
        if written < len(bodies):
            said = f"{name} has {self._most:,} bytes, which is max_bytes"
            self._drop("byte_limit", len(bodies) - written, said)
        if not call.progress.evaluating:
            self._do(partial(self._measure, call, step))

    def _encode_rows(self, call: RecordedCall, step: int | None) -> list[bytes]:
        found = []
        triples = zip(call.samples, call.judged, call.results, strict=True)
        for number, (sample, judged, result) in enumerate(triples):
            if number % _ROWS_AT_ONCE == 0:
                time.sleep(_YIELD_S)  # or the trainer's thread waits for the interpreter's lock
            try:
                body = encode_json(self._row(sample, judged, result, call, step), str)
            except Exception as error:  # noqa: BLE001  (the fields are the user's objects)
                self._drop("no_json", 1, f"a sample cannot be written as JSON: {error!r:.200}")
                continue
            if len(body) > _MOST_ROW_BYTES:
                self._drop(
                    "too_long", 1, f"a row has {len(body):,} bytes (at most {_MOST_ROW_BYTES})"
                )
                continue
            found.append(body)
        return found

    def _row(
        self,
        sample: Sample,
        judged: GradedSample,
        result: RewardResult,
        call: RecordedCall,
        step: int | None,
    ) -> dict[str, Any]:
        """As ``adjudge train`` has it, with the fields that graders saw beside it."""
        fields, missing, messages = sample.fields(), result.missing, sample.messages
        if messages is None:
            fields.setdefault("response", "")
        else:  # whoever reads the row takes both from there, and texts are most of it
            read = read_conversation(messages, sample.opening_turns)
            for name in ("response", "prompt"):
                if name in fields and fields[name] == getattr(read, name):
                    del fields[name]
        row = {
            "step": step,
            **self._mark,
            "group": self._group_name(judged.group, call),
            "policy_version": call.progress.policy_version,
            "rank": self._rank,
            "reward": result.score,
            "missing": missing and {"kind": str(missing.kind), "message": missing.error},
            "env_reward": judged.env_reward,
            "reward_info": result.reward_info,
            "details": result.details,
        }
        return {**row, **{name: value for name, value in fields.items() if name not in row}}

    def _group_name(self, group: str, call: RecordedCall) -> str:
        """One name a group, whoever writes of it: the trainer's own begin anew in each call."""
        if len(call.samples) == 1:
            return group  # its others come in calls of their own, perhaps from other processes
        if not call.whole_groups:
            return f"{self._calls}/{group}"
        return f"{self._name}.{self._calls}/{group}"

    # --- metrics, their checks, counts --------------------------------------------------------

    def _measure(self, call: RecordedCall, step: int | None) -> None:
        if step is not None and len(call.samples) > 1:
            self._write_metrics(step, call.metrics, [call])
            return
        if self._window and self._window[0].progress.step != step:
            self._end_window()
        self._window.append(call)
        if len(self._window) >= _WINDOW:
            self._end_window()

    def _end_window(self) -> None:
        calls, self._window = self._window, []
        if calls:
            step = calls[0].progress.step
            judged = [one for call in calls for one in call.judged]
            results = [one for call in calls for one in call.results]
            metrics = batch_metrics(judged, results, _lengths(calls))
            self._write_metrics(self._windows if step is None else step, metrics, calls)
            self._windows += 1

    def _write_metrics(
        self, step: int, metrics: Mapping[str, float], calls: Sequence[RecordedCall]
    ) -> None:
        lengths = _lengths(calls)
        scores = [one.score for call in calls for one in call.results]
        reward = mean([score for score in scores if score is not None])
        row: dict[str, float] = {
            "step": step,
            **self._mark,
            "samples": len(lengths),
            "length": sum(lengths) / len(lengths),
            **({} if reward is None else {"reward": reward}),
            **metrics,
        }
        self._append(_METRICS, row)
        if (watch := self._watch) is None:
            return
        for alarm in watch.observe(step, row):
            self._append(_ALARMS, asdict(alarm))
            words = f"{alarm.rule}: {alarm.seen}; {alarm.advice}"
            _log.warning("step %d: %s", step, words)
            if watch.should_stop and not alarm.note:
                self.stop_reason = self.stop_reason or words

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with exclusive_folder(self._folder):
            self._logs[name].append([encode_json(row, str)])

    def _report_changes(self) -> None:
        if (self._dropped.total(), self._error) != self._reported:
            self._do(self._report)

    def _report(self) -> None:
        with self._counting:
            dropped = dict(+self._dropped)  # those of which there are any
        self._reported = sum(dropped.values()), self._error
        row = RecorderRow(
            writer=self._name,
            rank=self._rank,
            pid=self.pid,
            host=socket.gethostname(),
            time=time.time(),
            rows=self._rows,
            dropped=dropped,
            error=self._error,
        )
        self._append(RECORDER_FILE, msgspec.to_builtins(row))


def _lengths(calls: Sequence[RecordedCall]) -> list[int]:
    return [len(one.response or "") for call in calls for one in call.samples]
