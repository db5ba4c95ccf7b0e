"""One of several processes that train a judge: ``python -m adjudge.judge_training.process JOB``.

Started by :func:`adjudge.judge_training.distributed.run_launched`, to which the first process
reports by marked lines on its output. Every process loads, encodes and trains; the first alone
claims the folder and writes.
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

from adjudge.judge_training.distributed import MARK, leads
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.run import JudgeJob, run_judge

__all__ = ["job_of", "main"]

_LONGEST = 3000  # characters of a message: a line that comes in one piece


def main(said: Path) -> None:
    """Train what the file ``said`` describes."""
    # Whoever stops us wants an end, and a checkpoint is whole at any moment.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.excepthook = _report
    logging.getLogger("adjudge").setLevel(logging.ERROR)  # the starter has said it
    job = job_of(said.read_bytes())
    if leads():
        job.on_row, job.on_progress = _teller("row"), _teller("progress")
    run_judge(job)


def job_of(text: bytes) -> JudgeJob:
    """What the starter was asked for."""
    given = msgspec.json.decode(text)
    judge = JudgeFile.from_dict(
        given["judge"],
        where=given["where"],
        folder=Path(given["beside"]),
        environ=given["overrides"],
    )
    return JudgeJob(judge, Path(given["source"]), Path(given["folder"]))


def _teller(name: str) -> Callable[..., None]:
    return lambda *given: _tell(name, *given)


def _tell(*event: Any) -> None:
    """One line, at once and in one piece, between those of other processes."""
    line = os.environ[MARK].encode() + msgspec.json.encode(event) + b"\n"
    sys.stdout.flush()
    os.write(1, line)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _tell("failed", kind.__name__, str(error)[:_LONGEST])
    traceback.print_exception(kind, error, trace)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
