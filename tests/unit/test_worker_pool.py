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

from adjudge.engine.phases import WorkerPhase
from adjudge.engine.processes import WorkerPool, get_pool
from adjudge.errors import CandidateLimitExceeded, ErrorKind, GradingFailure, is_suspect

PID = "os:getpgid"  # of 0: the group that the child leads, so its own number
SEARCH = "adjudge.graders.answers.likeness:search_patterns"


@pytest.fixture(
    params=[
        pytest.param(None, id="asyncio"),
        pytest.param(uvloop.new_event_loop, id="uvloop", marks=pytest.mark.slow),
    ]
)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(size=1)
    yield pool
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


def ask(runner: asyncio.Runner, pool: WorkerPool, function: str, value: Any, s: float = 30) -> Any:
    return runner.run(pool.call(function, value, deadline_s=s))


def failure(
    runner: asyncio.Runner, pool: WorkerPool, function: str, value: Any, s: float = 30
) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        ask(runner, pool, function, value, s)
    return caught.value


def test_a_passed_deadline_kills_the_child_and_the_pool_recovers(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    pid = ask(runner, pool, PID, 0)
    error = failure(runner, pool, "time:sleep", 600, 0.05)
    assert error.kind is ErrorKind.TIMEOUT
    assert "0.5 s" in str(error)  # of wall time: a sleeper uses no processor
    assert gone(pid)
    assert ask(runner, pool, PID, 0) != pid


FOR_EVER = "10 ** 10 ** 10"


def in_phases(*steps: tuple[WorkerPhase, str]) -> str:
    """An expression that does each step in its phase."""
    phases = "__import__('adjudge.engine.phases', fromlist=['x'])"
    return ", ".join(
        f"{phases}.enter_phase({phases}.WorkerPhase({str(phase)!r})), {body}"
        for phase, body in steps
    )


def busy(seconds: float) -> str:
    """An expression that uses so much processor time."""
    code = f"import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: 1"
    return f"exec({code!r})"


@pytest.mark.parametrize("phase", WorkerPhase)
def test_only_the_candidates_phase_is_held_against_it(
    runner: asyncio.Runner, pool: WorkerPool, phase: WorkerPhase
) -> None:
    steps = in_phases(
        (WorkerPhase.REFERENCE, "1"), (phase, FOR_EVER), (WorkerPhase.COMPARISON, "1")
    )
    ask(runner, pool, "builtins:eval", "1")
    error = failure(runner, pool, "builtins:eval", steps, 0.2)
    assert error.kind is ErrorKind.TIMEOUT
    assert error.metadata["local"]
    assert "0.2 s of processor time" in str(error)
    assert isinstance(error, CandidateLimitExceeded) is (phase is WorkerPhase.CANDIDATE)
    assert ask(runner, pool, "builtins:len", "ab") == 2


def test_each_phase_has_its_own_time_and_keeps_what_is_left(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    once = in_phases((WorkerPhase.REFERENCE, busy(0.2)), (WorkerPhase.CANDIDATE, busy(0.2)))
    assert ask(runner, pool, "builtins:eval", f"[{once}] and 1", 0.3) == 1
    twice = in_phases((WorkerPhase.CANDIDATE, busy(0.2)), (WorkerPhase.REFERENCE, "1"))
    again = in_phases((WorkerPhase.CANDIDATE, busy(0.2)))
    error = failure(runner, pool, "builtins:eval", f"[{twice}, {again}] and 1", 0.3)
    assert isinstance(error, CandidateLimitExceeded)


@pytest.mark.parametrize(
    ("function", "value"), [("builtins:bytearray", 6 << 30), ("ctypes:string_at", 1)]
)
def test_memory_and_crashes_of_the_candidate_are_its_own(
    runner: asyncio.Runner, pool: WorkerPool, function: str, value: int
) -> None:
    with pytest.raises(CandidateLimitExceeded):
        runner.run(pool.call(function, value, deadline_s=30, phase=WorkerPhase.CANDIDATE))


def test_a_child_that_is_killed_in_the_middle_is_never_the_candidates(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    async def killed() -> GradingFailure:
        await pool.call("builtins:eval", "1", deadline_s=30)
        pid = await pool.call(PID, 0, deadline_s=30)
        call = asyncio.create_task(
            pool.call("builtins:eval", FOR_EVER, deadline_s=30, phase=WorkerPhase.CANDIDATE)
        )
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GradingFailure) as caught:
            await call
        return caught.value

    error = runner.run(killed())
    assert not isinstance(error, CandidateLimitExceeded)
    assert error.kind is ErrorKind.UNSUPPORTED
    assert ask(runner, pool, "builtins:len", "ab") == 2


@pytest.mark.parametrize("body", ["import os; os.abort()", "raise MemoryError('no room')"])
def test_a_failure_to_load_a_function_is_never_the_candidates(
    runner: asyncio.Runner,
    pool: WorkerPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
) -> None:
    (tmp_path / "fails_to_load.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    # The last that a reused child was busy with was a candidate's.
    runner.run(pool.call("builtins:len", "ab", deadline_s=30, phase=WorkerPhase.CANDIDATE))
    with pytest.raises(GradingFailure) as caught:
        runner.run(pool.call("fails_to_load:f", 0, deadline_s=30, phase=WorkerPhase.CANDIDATE))
    assert not isinstance(caught.value, CandidateLimitExceeded)
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert not is_suspect(caught.value.kind, caught.value.metadata)


@pytest.mark.parametrize("phase", WorkerPhase)
def test_an_exception_may_be_the_candidates_unless_the_reference_raised_it(
    runner: asyncio.Runner, pool: WorkerPool, phase: WorkerPhase
) -> None:
    error = failure(runner, pool, "builtins:eval", in_phases((phase, "1 / 0")))
    assert error.kind is ErrorKind.BUG
    assert is_suspect(error.kind, error.metadata) is (phase is not WorkerPhase.REFERENCE)


def test_the_start_and_the_import_are_not_held_against_the_deadline(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    # Starting an interpreter takes longer than this deadline.
    assert ask(runner, pool, "builtins:len", "abc", 0.02) == 3


def test_a_reply_that_waits_for_a_busy_loop_is_in_time(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    ask(runner, pool, "time:sleep", 0)

    async def with_a_blocked_loop() -> Any:
        call = asyncio.create_task(pool.call("time:sleep", 0.05, deadline_s=0.03))
        await asyncio.sleep(0.01)
        time.sleep(0.5)  # noqa: ASYNC251  (the loop is meant to be blocked)
        return await call

    assert runner.run(with_a_blocked_loop()) is None


def test_a_child_that_exits_is_a_bug_with_its_exit_code(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    error = failure(runner, pool, "os:_exit", 3)
    assert (error.kind, error.metadata) == (ErrorKind.BUG, {"exit_code": 3})
    assert ask(runner, pool, "builtins:len", "ab") == 2


def test_a_child_that_crashes_is_unsupported_input(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    error = failure(runner, pool, "ctypes:string_at", 1)
    assert (error.kind, error.metadata["exit_code"]) == (ErrorKind.UNSUPPORTED, -11)


def test_an_exception_is_a_bug_and_the_child_lives_on(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    pid = ask(runner, pool, PID, 0)
    error = failure(runner, pool, "builtins:int", "four")
    assert error.kind is ErrorKind.BUG
    assert "ValueError: invalid literal" in str(error)
    missing = failure(runner, pool, "no_such_module:f", 1)
    assert (missing.kind, missing.metadata) == (ErrorKind.BUG, {})
    assert failure(runner, pool, "builtins:range", 3).kind is ErrorKind.BUG  # not JSON
    assert ask(runner, pool, PID, 0) == pid


def test_a_stated_failure_keeps_its_kind(runner: asyncio.Runner, pool: WorkerPool) -> None:
    error = failure(runner, pool, SEARCH, {"patterns": ["("], "flags": "", "text": "x"})
    assert (error.kind, error.metadata) == (ErrorKind.INVALID_INPUT, {})
    assert "not a pattern" in str(error)


def test_memory_is_capped_and_what_is_left_of_it_meets_no_other_call(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    pid = ask(runner, pool, PID, 0)
    error = failure(runner, pool, "builtins:bytearray", 6 << 30)
    assert error.kind is ErrorKind.UNSUPPORTED
    assert "MemoryError" in str(error)
    assert ask(runner, pool, PID, 0) != pid


def test_prints_and_reads_miss_the_channel(runner: asyncio.Runner, pool: WorkerPool) -> None:
    assert ask(runner, pool, "builtins:print", "\x00\x00\x00\x02{}") is None
    assert "EOFError" in str(failure(runner, pool, "builtins:input", "?"))
    assert ask(runner, pool, "builtins:len", "still in step") == 13


def test_large_requests_pass_and_large_replies_do_not(
    runner: asyncio.Runner, pool: WorkerPool
) -> None:
    assert ask(runner, pool, "builtins:len", "é" * 3_000_000) == 3_000_000
    assert failure(runner, pool, "builtins:str", "x" * 2_000_000).kind is ErrorKind.UNSUPPORTED
    assert ask(runner, pool, "builtins:str", "x" * 500) == "x" * 500


def test_text_without_encoding_is_invalid_input(runner: asyncio.Runner, pool: WorkerPool) -> None:
    assert failure(runner, pool, "builtins:len", "\ud800").kind is ErrorKind.INVALID_INPUT


def test_cancelling_a_call_kills_its_child(runner: asyncio.Runner, pool: WorkerPool) -> None:
    async def cancel_in_the_middle() -> tuple[int, int]:
        pid = await pool.call(PID, 0, deadline_s=30)
        call = asyncio.create_task(pool.call("time:sleep", 600, deadline_s=600))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return pid, await pool.call(PID, 0, deadline_s=30)

    before, after = runner.run(cancel_in_the_middle())
    assert before != after
    assert gone(before)


def test_many_calls_share_few_children(runner: asyncio.Runner) -> None:
    pool = WorkerPool(size=2)

    async def many() -> set[int]:
        calls = [asyncio.create_task(pool.call(PID, 0, deadline_s=30)) for _ in range(200)]
        return {await call for call in calls}

    assert len(runner.run(many())) == 2
    pool.close()


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
    runner: asyncio.Runner, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert ask(runner, pool, "os:getenv", "OPENAI_API_KEY") is None


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
