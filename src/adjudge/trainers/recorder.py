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
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.config import compare_settings, flatten
from adjudge.errors import RunFolderError, TrainingStopped
from adjudge.files import write_json
from adjudge.rewards.function import describe_settings
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.folder import read_json_object
from adjudge.trainers.metrics import RecordedCall
from adjudge.version import __version__

if TYPE_CHECKING:  # most trainers record nothing, and need not wait for what does
    from adjudge.checks.steps import SentinelAction
    from adjudge.trainers.recorder_thread import RecorderThread

RECORD_VARIABLE = "ADJUDGE_RECORD"
"""The environment variable that names the folder where a trainer takes only a dotted path."""

DEFAULT_MAX_BYTES = 4 * 2**30

_MANIFEST, _KIND = "run.json", "record"
_ROWS = ("rollouts.jsonl", "rewards.jsonl")
_LIVE = ".recorder.live"
"""Who records holds a shared lock on it; who opens the folder sees so whether it is alone."""

_log = logging.getLogger("adjudge")


class FlightRecorder:
    """Writes what a trainer's rewards were made of to ``folder``.

    ``max_bytes``: how large ``rollouts.jsonl`` may become; what comes then is counted, not written.
    ``sentinel``: watch the metrics of the first process by the rules of
    :mod:`adjudge.checks.steps`; alarms are logged and written to ``alarms.jsonl``, and under
    ``"stop"`` end the run.

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

    def __init__(
        self,
        folder: Path | str,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        sentinel: SentinelAction | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._options: dict[str, Any] = {"max_bytes": max_bytes, "sentinel": sentinel}
        self._lock = threading.Lock()
        self._writer: RecorderThread | None = None
        self._acknowledged = False
        self._live: int | None = None
        self._start = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(FlightRecorder, **self._options), (self.folder,)

    def open(self, spec: RewardSpec, graders: Mapping[str, Any]) -> None:
        """Claim the folder for a run under ``spec``, or go on with one.

        Raises :class:`~adjudge.errors.RunFolderError` for the folder of anything else, and for one
        that cannot be used.
        """
        from adjudge.trainers.recorder_thread import exclusive_folder  # noqa: PLC0415  (see above)

        facts = _describe_run(spec, graders)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with exclusive_folder(self.folder):
                _claim(self.folder, facts)
                if self._live is None:
                    self._count_start()
        except OSError as error:
            raise RunFolderError(
                f"{self.folder}: cannot be recorded to: {error.strerror or error}. Give a folder "
                "on a disk that knows file locks."
            ) from error

    def _count_start(self) -> None:
        """Hold the folder, and count a start where nobody else does."""
        self._live = os.open(self.folder / _LIVE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        facts = read_json_object(self.folder / _MANIFEST) or {}
        self._start = facts.get("starts", 0)
        try:
            fcntl.flock(self._live, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another process of the same start, or another recorder of this one
        else:
            if not self._start or (self.folder / _ROWS[0]).exists():
                self._start += 1
                write_json(self.folder / _MANIFEST, {**facts, "starts": self._start})
        fcntl.flock(self._live, fcntl.LOCK_SH)
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
        from adjudge.runs.records import STOP_FILE  # noqa: PLC0415  (most trainers record nothing)

        writer, path = self._find_writer(), self.folder / STOP_FILE
        if self._acknowledged:
            return None
        if path.exists():
            found = read_json_object(path) or {}
            return (
                f"{found.get('rule', 'adjudge watch')}: {found.get('seen', '')} (by `adjudge watch "
                f"--stop`; remove {path} before you train on)"
            )
        return None if writer is None else writer.stop_reason

    def acknowledge_stop(self) -> None:
        """Let :meth:`check_stop` pass: the trainer ends the run by its own means."""
        self._acknowledged = True

    def check_stop(self) -> None:
        """Raise :class:`~adjudge.errors.TrainingStopped` where the run is to end."""
        if (reason := self.stop_reason) is not None:
            raise TrainingStopped(f"{self.folder}: the run is stopped: {reason}")

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until what was recorded here is written; whether it is."""
        writer = self._find_writer()
        return writer is None or writer.flush(timeout_s)

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

    def _find_writer(self) -> RecorderThread | None:
        """The thread of this process, which a forked child has not."""
        writer = self._writer
        return None if writer is None or writer.pid != os.getpid() else writer

    def _writer_here(self) -> RecorderThread:
        from adjudge.trainers.recorder_thread import RecorderThread  # noqa: PLC0415  (see above)

        with self._lock:
            writer = self._find_writer()
            if writer is None:
                writer = RecorderThread(self.folder, **self._options, start=self._start)
                atexit.register(writer.close)
                self._writer = writer
            return writer


def open_recorder(record: FlightRecorder | Path | str | None = None) -> FlightRecorder | None:
    """``record`` itself, one for that folder, or for the one that ``ADJUDGE_RECORD`` names."""
    if isinstance(record, FlightRecorder):
        return record
    folder = record or os.environ.get(RECORD_VARIABLE)
    return FlightRecorder(folder) if folder else None


# --- the folder ---------------------------------------------------------------------------------


def _describe_run(spec: RewardSpec, graders: Mapping[str, Any]) -> dict[str, Any]:
    from adjudge.runs.story import describe_graders  # noqa: PLC0415  (few runs are recorded)

    facts = {
        "kind": _KIND,
        "adjudge": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "pid": os.getpid(),
        "spec_path": spec.where,
        "reward": spec.reward.model_dump(mode="json"),
        "graders": describe_graders(spec, graders),
        "settings": describe_settings(spec, graders),
    }
    return dict(msgspec.to_builtins(facts, enc_hook=str))


def _claim(folder: Path, facts: Mapping[str, Any]) -> None:
    known = read_json_object(folder / _MANIFEST)
    if known is None:
        if there := [name for name in _ROWS if (folder / name).exists()]:
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
