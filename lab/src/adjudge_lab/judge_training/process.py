"""A process of several that train a judge: ``python -m adjudge_lab.judge_training.process JOB``.

Started by :func:`adjudge_lab.judge_training.distributed.run_distributed`, to which the first
process reports by marked lines on its output. Every process loads, encodes and trains; the first
alone claims the folder and writes.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from adjudge_lab.judge_training.distributed import EVENT_MARK_VARIABLE, is_main_process
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.judge_training.run import run_judge

_MAX_MESSAGE = 3000  # characters of a message: a line that comes in one piece


def main(said: Path) -> None:
    """Train what the file ``said`` describes."""
    # Whoever stops us wants an end, and a checkpoint is whole at any moment.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.excepthook = _report_failure
    logging.getLogger("adjudge").setLevel(logging.ERROR)  # the starter has said it
    job = read_job(said.read_bytes())
    if is_main_process():
        job.on_row, job.on_progress = _event_sender("row"), _event_sender("progress")
        job.on_resume = _event_sender("resume")
    run_judge(job)


def read_job(text: bytes) -> JudgeJob:
    """What the starter was asked for."""
    given = msgspec.json.decode(text)
    judge = JudgeFile.from_dict(
        given["judge"],
        where=given["where"],
        folder=Path(given["beside"]),
        environ=given["overrides"],
    )
    return JudgeJob(judge, Path(given["source"]), Path(given["folder"]))


def _event_sender(name: str) -> Callable[..., None]:
    return lambda *given: _send_event(name, *given)


def _send_event(*event: Any) -> None:
    """One line, at once and in one piece, between those of other processes."""
    line = os.environ[EVENT_MARK_VARIABLE].encode() + msgspec.json.encode(event) + b"\n"
    sys.stdout.flush()
    os.write(1, line)


def _report_failure(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    _send_event("failed", kind.__name__, str(error)[:_MAX_MESSAGE])
    traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
