"""Killable worker processes, with real processes: functions of the standard library run in them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from adjudge.engine.processes import WorkerPool, get_pool
from adjudge.engine.worker import WorkerPhase
from adjudge.errors import CandidateLimitExceeded, ErrorKind, GradingFailure, is_suspect

PID = "os:getpgid"  # of 0: the group that the child leads, so its own number
SEARCH = "adjudge.graders.answers.choices:search_patterns"


@pytest.fixture(
    params=[
        pytest.param(None, id="asyncio"),
        pytest.param(uvloop.new_event_loop, id="uvloop", marks=pytest.mark.slow),
    ]
)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


class Asked:
    """A pool, asked from a loop of its own."""

    def __init__(self, runner: asyncio.Runner, pool: WorkerPool) -> None:
        self.run, self.pool = runner.run, pool

    def __call__(self, function: str, value: Any, s: float = 30) -> Any:
        return self.run(self.pool.call(function, value, deadline_s=s))

    def failure(self, function: str, value: Any, s: float = 30) -> GradingFailure:
        with pytest.raises(GradingFailure) as caught:
            self(function, value, s)
        return caught.value


@pytest.fixture
def asked(runner: asyncio.Runner) -> Iterator[Asked]:
    pool = WorkerPool(size=1)
    yield Asked(runner, pool)
    pool.close()


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not collected does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pid: int) -> bool:
    for _ in range(500):
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


FOR_EVER = "10 ** 10 ** 10"


def in_phases(*steps: tuple[WorkerPhase, str]) -> str:
    """An expression that does each step in its phase."""
    phases = "__import__('adjudge.engine.worker', fromlist=['x'])"
    return ", ".join(
        f"{phases}.enter_phase({phases}.WorkerPhase({str(phase)!r})), {body}"
        for phase, body in steps
    )


def busy(seconds: float) -> str:
    """An expression that uses so much processor time."""
    code = f"import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: 1"
    return f"exec({code!r})"


@pytest.mark.parametrize("phase", WorkerPhase)
def test_only_the_candidates_phase_is_held_against_it(asked: Asked, phase: WorkerPhase) -> None:
    steps = in_phases(
        (WorkerPhase.REFERENCE, "1"), (phase, FOR_EVER), (WorkerPhase.COMPARISON, "1")
    )
    asked("builtins:eval", "1")
    error = asked.failure("builtins:eval", steps, 0.2)
    assert error.kind is ErrorKind.TIMEOUT
    assert error.metadata["local"]
    assert "0.2 s of processor time" in str(error)
    assert isinstance(error, CandidateLimitExceeded) is (phase is WorkerPhase.CANDIDATE)
    assert asked("builtins:len", "ab") == 2


def test_each_phase_has_its_own_time_and_keeps_what_is_left(asked: Asked) -> None:
    once = in_phases((WorkerPhase.REFERENCE, busy(0.2)), (WorkerPhase.CANDIDATE, busy(0.2)))
    assert asked("builtins:eval", f"[{once}] and 1", 0.3) == 1
    twice = in_phases((WorkerPhase.CANDIDATE, busy(0.2)), (WorkerPhase.REFERENCE, "1"))
    again = in_phases((WorkerPhase.CANDIDATE, busy(0.2)))
    error = asked.failure("builtins:eval", f"[{twice}, {again}] and 1", 0.3)
    assert isinstance(error, CandidateLimitExceeded)


@pytest.mark.parametrize(
    ("function", "value", "s"),
    [
        ("builtins:bytearray", 6 << 30, 30),
        ("ctypes:string_at", 1, 30),
        ("builtins:eval", FOR_EVER, 0.2),
    ],
)
def test_memory_crashes_and_time_of_the_candidate_are_its_own(
    asked: Asked, function: str, value: Any, s: float
) -> None:
    with pytest.raises(CandidateLimitExceeded):
        asked.run(asked.pool.call(function, value, deadline_s=s, phase=WorkerPhase.CANDIDATE))


@pytest.mark.parametrize(
    ("function", "value", "kind", "said", "survives"),
    [
        ("time:sleep", 600, ErrorKind.TIMEOUT, "0.5 s", False),  # of wall time: it only sleeps
        ("os:_exit", 3, ErrorKind.BUG, "exit code 3", False),
        ("builtins:bytearray", 6 << 30, ErrorKind.UNSUPPORTED, "MemoryError", False),
        ("builtins:str", "x" * 2_000_000, ErrorKind.UNSUPPORTED, "longer than", False),
        (SEARCH, {"patterns": ["("], "text": "x"}, ErrorKind.INVALID_INPUT, "no", True),
        ("builtins:len", "\ud800", ErrorKind.INVALID_INPUT, "Unicode", True),
        ("no_such_module:f", 1, ErrorKind.BUG, "no_such_module", True),
        ("builtins:int", "four", ErrorKind.BUG, "ValueError: invalid literal", True),
        ("builtins:range", 3, ErrorKind.BUG, "", True),  # not JSON
    ],
)
def test_a_failure_has_its_kind_and_the_pool_goes_on(
    asked: Asked, function: str, value: Any, kind: ErrorKind, said: str, survives: bool
) -> None:
    pid = asked(PID, 0)
    error = asked.failure(function, value, 0.05 if function == "time:sleep" else 30)
    assert error.kind is kind
    assert said in str(error)
    assert (asked(PID, 0) == pid) is survives
    assert survives or gone(pid)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (signal.SIGKILL, ErrorKind.UNSUPPORTED),
        pytest.param(signal.SIGSTOP, ErrorKind.TIMEOUT, marks=pytest.mark.slow),
    ],
)
def test_a_child_that_is_killed_or_stopped_is_never_the_candidates(
    asked: Asked, sent: signal.Signals, kind: ErrorKind
) -> None:
    async def ended() -> GradingFailure:
        call, phase = asked.pool.call, WorkerPhase.CANDIDATE
        await call("builtins:eval", "1", deadline_s=30)
        pid = await call(PID, 0, deadline_s=30)
        asking = asyncio.create_task(call("builtins:eval", FOR_EVER, deadline_s=1, phase=phase))
        await asyncio.sleep(0.1)
        os.kill(pid, sent)
        with pytest.raises(GradingFailure) as caught:
            await asking
        return caught.value

    error = asked.run(ended())
    assert not isinstance(error, CandidateLimitExceeded)
    assert error.kind is kind
    assert asked("builtins:len", "ab") == 2


@pytest.mark.parametrize("body", ["import os; os.abort()", "raise MemoryError('no room')"])
def test_a_failure_to_load_a_function_is_never_the_candidates(
    asked: Asked,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
) -> None:
    (tmp_path / "fails_to_load.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    # The last that a reused child was busy with was a candidate's.
    asked.run(asked.pool.call("builtins:len", "ab", deadline_s=30, phase=WorkerPhase.CANDIDATE))
    with pytest.raises(GradingFailure) as caught:
        asked.run(asked.pool.call("fails_to_load:f", 0, deadline_s=30, phase=WorkerPhase.CANDIDATE))
    assert not isinstance(caught.value, CandidateLimitExceeded)
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert not is_suspect(caught.value.kind, caught.value.metadata)


@pytest.mark.parametrize("phase", WorkerPhase)
def test_an_exception_may_be_the_candidates_unless_the_reference_raised_it(
    asked: Asked, phase: WorkerPhase
) -> None:
    error = asked.failure("builtins:eval", in_phases((phase, "1 / 0")))
    assert error.kind is ErrorKind.BUG
    assert is_suspect(error.kind, error.metadata) is (phase is not WorkerPhase.REFERENCE)


def test_the_start_and_the_import_are_not_held_against_the_deadline(asked: Asked) -> None:
    # Starting an interpreter takes longer than this deadline.
    assert asked("builtins:len", "abc", 0.02) == 3


def test_a_reply_that_waits_for_a_busy_loop_is_in_time(asked: Asked) -> None:
    asked("time:sleep", 0)

    async def with_a_blocked_loop() -> Any:
        call = asyncio.create_task(asked.pool.call("time:sleep", 0.05, deadline_s=0.03))
        await asyncio.sleep(0.01)
        time.sleep(0.5)  # noqa: ASYNC251  (the loop is meant to be blocked)
        return await call

    assert asked.run(with_a_blocked_loop()) is None


def test_a_child_killed_while_idle_is_replaced(asked: Asked) -> None:
    pid = asked(PID, 0)
    os.kill(pid, 9)
    assert gone(pid)
    assert asked(PID, 0) != pid


def test_prints_and_reads_miss_the_channel(asked: Asked) -> None:
    assert asked("builtins:print", "\x00\x00\x00\x02{}") is None
    assert "EOFError" in str(asked.failure("builtins:input", "?"))
    assert asked("builtins:len", "still in step") == 13


def test_cancelling_a_call_kills_its_child(asked: Asked) -> None:
    async def cancel_in_the_middle() -> tuple[int, int]:
        pid = await asked.pool.call(PID, 0, deadline_s=30)
        call = asyncio.create_task(asked.pool.call("time:sleep", 600, deadline_s=600))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return pid, await asked.pool.call(PID, 0, deadline_s=30)

    before, after = asked.run(cancel_in_the_middle())
    assert before != after
    assert gone(before)


def test_cancelling_a_waiting_call_loses_no_slot(asked: Asked) -> None:
    async def cancel_while_waiting() -> Any:
        busy = asyncio.create_task(asked.pool.call("time:sleep", 0.1, deadline_s=30))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(asked.pool.call(PID, 0, deadline_s=30)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await busy
        waiting[1].cancel()  # it has been given the slot and does not know yet
        return await asyncio.wait_for(waiting[2], 30)

    assert asked.run(cancel_while_waiting()) == asked(PID, 0)


def test_closing_ends_children_and_calls(runner: asyncio.Runner) -> None:
    pool = WorkerPool(size=2)

    async def close_in_the_middle() -> tuple[int, GradingFailure]:
        pid: int = await pool.call(PID, 0, deadline_s=30)
        call = asyncio.create_task(pool.call("time:sleep", 600, deadline_s=600))
        await asyncio.sleep(0.1)
        pool.close()
        with pytest.raises(GradingFailure) as caught:
            await call
        with pytest.raises(RuntimeError, match="closed"):
            await pool.call(PID, 0, deadline_s=30)
        return pid, caught.value

    pid, error = runner.run(close_in_the_middle())
    assert error.kind is ErrorKind.CANCELLED
    assert gone(pid)


def test_the_environment_of_a_child_holds_no_secrets(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert asked("os:getenv", "OPENAI_API_KEY") is None


def test_every_loop_has_a_pool_of_its_own_and_takes_it_along() -> None:
    async def pool_and_pid() -> tuple[int, int]:
        assert get_pool() is get_pool()
        return id(get_pool()), await get_pool().call(PID, 0, deadline_s=30)

    _, first = asyncio.run(pool_and_pid())
    gc.collect()
    assert gone(first)
    _, second = asyncio.run(pool_and_pid())
    assert first != second


SCRIPT_HEAD = """
    import asyncio, atexit, os, signal
    from adjudge.engine.processes import get_pool

    async def pid():
        return await get_pool().call("os:getpgid", 0, deadline_s=30)
"""


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    code = textwrap.dedent(SCRIPT_HEAD) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_fork_starts_afresh_and_leaves_the_parents_children_alone() -> None:
    done = run_script("""
        async def main():
            first = await pid()
            fork = os.fork()
            if fork == 0:
                code = 1
                try:
                    code = 0 if asyncio.run(pid()) != first else 2
                    # What a normal exit runs; it must not touch the parent's children.
                    atexit._run_exitfuncs()
                finally:
                    os._exit(code)
            _, status = os.waitpid(fork, 0)
            print(os.waitstatus_to_exitcode(status), await pid() == first)
        asyncio.run(main())
    """)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a busy child with its parent")
def test_busy_children_die_with_a_killed_parent() -> None:
    done = run_script("""
        async def main():
            print(await pid(), flush=True)
            sleeping = asyncio.create_task(get_pool().call("time:sleep", 600, deadline_s=600))
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
    """)
    assert done.returncode == -9
    assert gone(int(done.stdout))
