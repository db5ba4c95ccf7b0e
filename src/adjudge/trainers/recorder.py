"""The flight recorder: what a trainer's rewards were made of, in a run folder, while it trains.

The folder is read as one of ``adjudge train``: ``rollouts.jsonl`` has a row a sample,
``metrics.jsonl`` one a step. A thread of its own writes them. It never makes the trainer wait: of
what it cannot write in time, or for want of room, it writes nothing, and counts it in
``recorder.jsonl``. Several processes write to one folder, under a lock that each holds for one
append; a process that is killed leaves whole lines, or one torn line that the next writer cuts off.

A process that opens a folder in which nobody records any more starts the run again, perhaps from a
checkpoint, perhaps another run by mistake: that is logged, and its rows have ``start``, 2 or more.

Texts come from a policy and from datasets: they are written as JSON and nothing else.
"""

from __future__ import annotations

import atexit
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
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import compare_settings, flatten
from adjudge.errors import RunFolderError, TrainingStopped
from adjudge.files import atomic_write, cut_torn_line, iter_lines, write_json
from adjudge.intake.rollouts import read_conversation
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.folder import read_json_object
from adjudge.runs.records import RECORDER_FILE, STOP_FILE, RecorderRow, RunRecord
from adjudge.runs.story import describe_spec
from adjudge.text import encode_json
from adjudge.trainers.metrics import RecordedCall, batch_metrics
from adjudge.types import DATASET_COLUMNS, GradedSample, RewardResult, Sample
from adjudge.version import describe_writer

DEFAULT_MAX_BYTES = 4 * 2**30

_MANIFEST, _KIND = "run.json", "record"
_ROLLOUTS, _EVALUATION = "rollouts.jsonl", "evaluation_rollouts.jsonl"
_METRICS = "metrics.jsonl"
_ROWS = (_ROLLOUTS, _EVALUATION, "rewards.jsonl")
_TEXTS = ("prompt", "response", "messages", "opening_turns")
_OWN_NAMES = {*RunRecord.__struct_fields__, DATASET_COLUMNS, "start", "policy_version", "rank"}
"""What readers of a row know by name; a dataset's column of that name stands apart."""
_LOCK = ".recorder.lock"
_LIVE = ".recorder.live"
"""Who records holds a shared lock on it; who opens the folder sees so whether it is alone."""

_MOST_WAITING = 16_384
"""Samples that wait to be written; a call that finds more is not recorded."""
_WINDOW = 256
"""Samples of a row of metrics where the trainer hands them in one by one, without a step."""
_ROWS_AT_ONCE, _YIELD_S = 8, 0.001

_log = logging.getLogger("adjudge")


class FlightRecorder:
    """Writes what a trainer's rewards were made of to ``folder``.

    ``max_bytes``: how large ``rollouts.jsonl`` may become; what comes then is counted, not written.

    One object serves any thread; a pickled one, or one in a forked child, has a thread and a count
    of its own. Where writing fails, the run goes on: that is logged once, and counted.

    >>> from tempfile import TemporaryDirectory
    >>> from adjudge import RewardSample, RewardSpec
    >>> from adjudge.trainers.scoring import Scorer
    >>> spec = RewardSpec.from_dict({"graders": [{"name": "right", "type": "string_match"}]})
    >>> samples = [RewardSample(0, 0, "2 + 2?", "4", extra={"reference": "4"})]
    >>> with TemporaryDirectory() as folder:
    ...     recorder = FlightRecorder(folder)
    ...     rewards = Scorer(spec, record=recorder).score(samples, ["2 + 2?"]).rewards
    ...     recorder.close()
    ...     rewards, len((Path(folder) / "rollouts.jsonl").read_bytes().splitlines())
    ([1.0], 1)
    """

    def __init__(self, folder: Path | str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes
        self._lock = threading.Lock()
        self._writer: _Writer | None = None
        self._acknowledged = False
        self._live: int | None = None
        self._start = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(FlightRecorder, max_bytes=self.max_bytes), (self.folder,)

    def open(self, spec: RewardSpec, graders: Mapping[str, Any]) -> None:
        """Claim the folder for a run under ``spec``, or go on with one.

        Raises :class:`~adjudge.errors.RunFolderError` for the folder of anything else, and for one
        that cannot be used.
        """
        facts = _describe_run(spec, graders)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _exclusive_folder(self.folder):
                alone = self._live is None and _is_alone(self.folder)
                _claim(self.folder, facts, alone=alone)
                if self._live is None:
                    self._count_start(alone=alone)
        except OSError as error:
            raise RunFolderError(
                f"{self.folder}: cannot be recorded to: {error.strerror or error}. Give a folder "
                "on a disk that knows file locks."
            ) from error

    def _count_start(self, *, alone: bool) -> None:
        """Hold the folder, and count a start where nobody else does."""
        self._live = os.open(self.folder / _LIVE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._live, fcntl.LOCK_SH)
        facts = read_json_object(self.folder / _MANIFEST) or {}
        self._start = facts.get("starts", 0)
        if alone and (not self._start or (self.folder / _ROLLOUTS).exists()):
            self._start += 1
            write_json(self.folder / _MANIFEST, {**facts, "starts": self._start})
        if self._start > 1:
            _log.warning(
                "%s: has rows of an earlier start of the run; those of this one have start = %d. "
                "Record another run to another folder.",
                self.folder,
                self._start,
            )

    def record(self, call: RecordedCall) -> None:
        """Have a call written; returns at once and never raises."""
        self._writer_here().put(call)

    @property
    def stop_reason(self) -> str | None:
        """Why the run is to end; ``None`` while nobody wants that, or who asks will see to it."""
        path = self.folder / STOP_FILE
        if self._acknowledged or not path.exists():
            return None
        found = read_json_object(path) or {}
        return (
            f"{found.get('rule', 'adjudge watch')}: {found.get('seen', '')} (by `adjudge watch "
            f"--stop`; remove {path} before you train on)"
        )

    def acknowledge_stop(self) -> None:
        """Let :meth:`check_stop` pass: the trainer ends the run by its own means."""
        self._acknowledged = True

    def check_stop(self) -> None:
        """Raise :class:`~adjudge.errors.TrainingStopped` where the run is to end."""
        if (reason := self.stop_reason) is not None:
            raise TrainingStopped(f"{self.folder}: the run is stopped: {reason}")

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until what was recorded here is written; whether it is."""
        return self._writer_here().flush(timeout_s)

    def close(self) -> None:
        """Write what waits and the last counts; called at the end of the process, too."""
        with self._lock:
            writer, self._writer = self._writer, None
            live, self._live = self._live, None
        if live is not None:
            os.close(live)
        if writer is not None:
            atexit.unregister(writer.close)
            writer.close()

    def _writer_here(self) -> _Writer:
        """The thread of this process, which a forked child has not."""
        with self._lock:
            if self._writer is None or self._writer.pid != os.getpid():
                self._writer = _Writer(self.folder, self.max_bytes, self._start)
                atexit.register(self._writer.close)
            return self._writer


# --- the folder ---------------------------------------------------------------------------------


def _describe_run(spec: RewardSpec, graders: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        "kind": _KIND,
        **describe_writer(),
        "pid": os.getpid(),
        "spec_path": spec.where,
        **describe_spec(spec, graders),
    }
    return dict(msgspec.to_builtins(facts, enc_hook=str))


def _is_alone(folder: Path) -> bool:
    """Whether nobody else records to ``folder``: no process of this start, no other recorder."""
    with suppress(BlockingIOError), (folder / _LIVE).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _claim(folder: Path, facts: Mapping[str, Any], *, alone: bool) -> None:
    """Make ``folder`` the run's, unless it is another's; of a start without rows nothing stays."""
    known = read_json_object(folder / _MANIFEST)
    there = [name for name in _ROWS if (folder / name).exists()]
    if known is None or (alone and not there and known.get("kind") == _KIND):
        if there:
            raise RunFolderError(
                f"{folder}: holds {there[0]} of another run. Record to another folder."
            )
        write_json(folder / _MANIFEST, facts)
        return
    if known.get("kind") != _KIND:
        raise RunFolderError(f"{folder}: holds another kind of run. Record to another folder.")
    sides = [dict(flatten(one.get("settings") or {})) for one in (known, facts)]
    for other in compare_settings(*sides):
        raise RunFolderError(
            f"{folder}: holds a recorded run of another spec: {other.key} was {other.left!r:.200} "
            f"(in {known.get('spec_path')}), and now is {other.right!r:.200} (in "
            f"{facts['spec_path']}). Record to another folder."
        )


# --- the thread that writes -----------------------------------------------------------------------


@contextmanager
def _exclusive_folder(folder: Path) -> Iterator[None]:
    """``folder`` for this process alone, for the time of one append."""
    with (folder / _LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _append(path: Path, bodies: Sequence[bytes], most: int | None = None) -> int:
    """Append JSON objects to a log of several processes; how many it had room for.

    ``most``: how many bytes the log may have.
    """
    numbered = path.name in (_ROLLOUTS, _EVALUATION)
    with _exclusive_folder(path.parent), path.open("ab+", buffering=0) as file:
        end = size = cut_torn_line(file)
        counter, first = path.with_name(f".{path.name}.next"), 0
        if numbered:  # a copied folder may lack the counter
            known = counter.exists()
            first = int(counter.read_text()) if known else sum(1 for _ in iter_lines(path))
        lines: list[bytes] = []
        for body in bodies:
            # So no two samples have the same index, whichever processes they come from.
            index = b'{"index":%d,' % (first + len(lines)) if numbered else b"{"
            line = b"%b%b\n" % (index, body[1:])
            end += len(line)
            if most is not None and end > most:
                break
            lines.append(line)
        if numbered:  # first: a number that is lost is better than one twice
            atomic_write(counter, b"%d" % (first + len(lines)))
        view = memoryview(b"".join(lines))
        try:
            while view:
                view = view[file.write(view) or 0 :]
        except OSError:
            file.truncate(size)
            raise
        return len(lines)


class _Writer:
    """The thread of one process that writes to ``folder``, and its bounded queue.

    ``most``: how many bytes a log of rollouts may have; ``start`` counts the starts of the run.
    """

    def __init__(self, folder: Path, most: int, start: int) -> None:
        self.pid = os.getpid()
        self._folder, self._most = folder, most
        self._mark = {"start": start} if start > 1 else {}
        rank = os.environ.get("RANK", "")
        self._rank = int(rank) if rank.isdecimal() else None
        self._name = secrets.token_hex(3)
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
        step = call.progress.step
        if step is None and len(call.samples) != 1:
            step = self._calls
        bodies = self._encode_rows(call, step)
        if not self._rows and not self._dropped:
            self._report()  # who writes here, before the first row
        self._calls += 1
        name = _EVALUATION if call.progress.evaluating else _ROLLOUTS
        written = _append(self._folder / name, bodies, self._most)
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
                body = encode_json(self._row(sample, judged, result, call, step), _as_value)
            except Exception as error:  # noqa: BLE001  (the fields are the user's objects)
                self._drop("no_json", 1, f"a sample cannot be written as JSON: {error!r:.200}")
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
        own = [name for name in _TEXTS if name in fields and getattr(sample, name) is not None]
        texts = {name: fields.pop(name) for name in own}
        if messages is None:
            texts.setdefault("response", "")
        else:  # whoever reads the row takes both from there, and texts are most of it
            read = read_conversation(messages, sample.opening_turns)
            for name in ("response", "prompt"):
                if name in texts and texts[name] == getattr(read, name):
                    del texts[name]
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
            **texts,
            **({"lost_rollout": sample.problem} if sample.is_lost else {}),
        }
        fields.pop("env_reward", None)
        apart = {name: fields.pop(name) for name in [*fields] if name in _OWN_NAMES}
        return row | fields | ({DATASET_COLUMNS: apart} if apart else {})

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
        reward = metrics.get("judge/score_mean")
        row: dict[str, float] = {
            "step": step,
            **self._mark,
            "samples": len(lengths),
            "length": sum(lengths) / len(lengths),
            **({} if reward is None else {"reward": reward}),
            **metrics,
        }
        _append(self._folder / _METRICS, [encode_json(row, str)])

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
        _append(self._folder / RECORDER_FILE, [encode_json(row)])


def _as_value(one: object) -> object:
    """Arrays and numbers of any library as values, another object as its text."""
    return getattr(one, "tolist", one.__str__)()


def _lengths(calls: Sequence[RecordedCall]) -> list[int]:
    return [len(one.response or "") for call in calls for one in call.samples]
