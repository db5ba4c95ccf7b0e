"""The child's side of a killable worker process: one function call at a time, JSON in and out.

Started by :mod:`adjudge.engine.processes`. A function that runs here says by :func:`enter_phase`
what it does next, so that a reference that takes for ever is not held against the answer. Each
phase has processor time of its own, counted by the kernel, which ends the process with ``SIGPROF``
when it is used up: a process that is stopped or waits for a processor uses none, and a single long
operation of the interpreter is ended as well.

A message is a line of JSON, over the socket that the parent gave as standard input. Requests are
``{"load": "module:function"}`` and ``{"call": "module:function", "value": …, "phase": …, "cpu_s":
…}``; a reply is ``{"ok": true, "value": …}`` or ``{"kind": …, "message": …, "exhausted": …,
"foreseen": …}``. Before it comes ``{"phase": …}`` for each phase that was entered.

The functions named here read hostile text. So the child drops its core dumps, caps its address
space, sees none of the parent's secrets in its environment, and can answer in plain JSON only.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any, BinaryIO

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.text import replace_surrogates

_LEAST_CPU_S = 0.001  # a timer of 0 would never ring


class WorkerPhase(StrEnum):
    """Whose input a worker is busy with; only :attr:`CANDIDATE` is ever held against it."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"
    COMPARISON = "comparison"


class InputTooLarge(MemoryError):
    """An input that is refused before it is tried, so nothing of it is left in memory."""


class _PhaseTimer:
    """Processor time left to each phase of one call; ``replies`` hear of each new phase."""

    def __init__(self, replies: BinaryIO, phase: WorkerPhase, cpu_s: float) -> None:
        self._replies, self._phase = replies, phase
        self._left = dict.fromkeys(WorkerPhase, cpu_s)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)

    def enter(self, phase: WorkerPhase) -> None:
        if phase is self._phase:
            return
        self._left[self._phase], _ = signal.setitimer(signal.ITIMER_PROF, 0)
        # Told before the time runs: a dead process cannot say what it was doing.
        _send(self._replies, {"phase": phase})
        self._phase = phase
        signal.setitimer(signal.ITIMER_PROF, max(self._left[phase], _LEAST_CPU_S))

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


_timer: _PhaseTimer | None = None


def enter_phase(phase: WorkerPhase) -> None:
    """What follows in this call is ``phase``; it goes on where it was left. No worker: no effect.

    A phase that uses up the call's processor time ends the process.
    """
    if _timer is not None:
        _timer.enter(phase)


MEMORY_BYTES = 4 << 30
"""Address space of a child; more is a ``MemoryError`` inside it, not a dead machine."""

_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE = 500


_functions: dict[str, Callable[[Any], Any]] = {}


def main() -> None:
    """Answer requests until the parent closes its end."""
    global _timer  # noqa: PLW0603  one call at a time
    requests, replies = _claim_channel()
    _limit_resources()
    while (request := requests.readline()).endswith(b"\n"):
        call = msgspec.json.decode(request)
        if "load" in call:  # not limited: a warm-up calls functions that enter phases
            reply = _answer(call)
        else:
            _timer = _PhaseTimer(replies, WorkerPhase(call["phase"]), call["cpu_s"])
            reply = _answer(call)
            _timer.stop()
            _timer = None
        _send(replies, reply)


def _claim_channel() -> tuple[BinaryIO, BinaryIO]:
    """The socket, moved away from descriptor 0 so that a stray ``print`` cannot reach it."""
    channel = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return os.fdopen(channel, "rb"), os.fdopen(os.dup(channel), "wb")


def _limit_resources() -> None:
    # A busy child does not see the closed socket, so it asks the kernel to end it with its parent.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Both may have been inherited from a parent that profiles itself.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, MEMORY_BYTES)):
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # noqa: PLW2901
        # macOS refuses a cap on the address space; the deadline still holds there.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the function returned, or which failure it stated, or how it broke."""
    try:
        if "load" in request:
            _load(request["load"])
            return {"ok": True, "value": None}
        value = _load(request["call"])(request["value"])
        # Encoded here, where a value that is not JSON is reported as the function's own mistake.
        return {"ok": True, "value": msgspec.Raw(msgspec.json.encode(value))}
    except GradingFailure as failure:
        return {"kind": failure.kind, "message": str(failure)}
    except Exception as error:  # noqa: BLE001  whatever the function raises is reported to the parent
        said = replace_surrogates(f"{type(error).__name__}: {error}"[:_MAX_MESSAGE])
        if not isinstance(error, MemoryError | RecursionError):
            return {"kind": ErrorKind.BUG, "message": said}
        facts = {"exhausted": True, "foreseen": isinstance(error, InputTooLarge)}
        return {"kind": ErrorKind.UNSUPPORTED, "message": said, **facts}


def _load(name: str) -> Callable[[Any], Any]:
    """The function ``module:function``; a ``warm_up`` beside it runs once, before any deadline."""
    if name not in _functions:
        module_name, _, attribute = name.partition(":")
        module = importlib.import_module(module_name)
        function: Callable[[Any], Any] = getattr(module, attribute)
        getattr(module, "warm_up", lambda: None)()
        _functions[name] = function
    return _functions[name]


def _send(replies: BinaryIO, message: dict[str, Any]) -> None:
    body = msgspec.json.encode(message)
    replies.write(body + b"\n")
    replies.flush()
