"""Programs in the sandbox as their caller sees them: results, ends, two that talk, refusal."""

import asyncio
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import fails
from tests.unit.helpers.sandboxed import printed, run

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.code.bubblewrap import SandboxLimits, SandboxResult, interpreter_command
from adjudge.graders.code.sandbox import Sandbox, sandbox_available

# Ordinary programs


def test_program_reads_stdin_and_writes_both_streams(sandbox: Sandbox) -> None:
    program = "import sys; print(sys.stdin.read()[::-1]); print('e', file=sys.stderr); sys.exit(7)"
    result = run(sandbox, program, stdin=b"abc")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"cba\n", b"e\n")
    assert not result.timed_out
    assert not result.truncated
    assert result.duration_s > 0


def test_files_lie_in_the_working_directory_and_it_is_writable(sandbox: Sandbox) -> None:
    program = (
        "print(open('a.txt').read(), open('d/b.bin', 'rb').read());"
        "open('new', 'w').write('n'); print(open('new').read())"
    )
    files = {"a.txt": "text ü", "d/b.bin": b"\xff"}
    assert printed(sandbox, program, files=files) == "text ü b'\\xff'\nn\n"


# The caller's side


def processes_with(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def children() -> set[str]:
    texts = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {pid for text in texts for pid in text.split()}


def open_descriptors() -> set[tuple[str, str]]:
    """What this process has open, as (number, what it is).

    A set and no count: what an earlier test left may be closed meanwhile and would hide a leak.
    """
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself is closed by now
            found.add((one.name, str(one.readlink())))
    return found


HANGS = "import time; time.sleep(600)"


def sleeper(marker: str) -> list[str]:
    return [*interpreter_command(), "-c", HANGS, marker]


async def until(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.01)


def test_deadline_leaves_no_process_and_no_zombie(sandbox: Sandbox) -> None:
    marker, before = uuid.uuid4().hex, children()
    assert run(sandbox, sleeper(marker), deadline_s=0.3).timed_out
    assert processes_with(marker) == []
    assert children() <= before


def test_no_zombie_reaches_the_next_reaper(sandbox: Sandbox) -> None:
    # In a container the caller itself may be process 1, to which orphans go.
    script = """
import asyncio, ctypes, os
from adjudge.graders.code.bubblewrap import SandboxLimits
from adjudge.graders.code.sandbox import Sandbox
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
async def scenario():
    for program in ("pass", "pass", "import os; os._exit(3)", "while True: pass"):
        await Sandbox().run(program, SandboxLimits(0.3))
asyncio.run(scenario())
try: print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError: print("no children")
"""
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "no children\n", done.stderr


def test_program_dies_with_a_killed_caller(sandbox: Sandbox) -> None:
    marker = uuid.uuid4().hex
    script = """
import asyncio, sys
from adjudge.graders.code.bubblewrap import SandboxLimits
from adjudge.graders.code.sandbox import Sandbox
asyncio.run(Sandbox().run(sys.argv[1:], SandboxLimits(600)))
"""
    with subprocess.Popen([sys.executable, "-c", script, *sleeper(marker)]) as caller:
        # The caller, bubblewrap, the program.
        asyncio.run(until(lambda: len(processes_with(marker)) >= 3))
        time.sleep(0.1)  # bubblewrap's child becomes the program
        caller.kill()
    asyncio.run(until(lambda: processes_with(marker) == []))


@pytest.mark.parametrize(("pair", "step_s"), [(False, 0.0005), (True, 0.002)])
def test_cancelling_at_any_moment_leaves_nothing(
    sandbox: Sandbox, pair: bool, step_s: float
) -> None:
    marker, before = uuid.uuid4().hex, children()
    files: dict[str, Any] = {"leader_files": {marker: ""}, "helper_files": {marker: ""}}

    async def scenario() -> set[tuple[str, str]]:
        await sandbox.run("pass")
        descriptors = open_descriptors()
        for step in range(20 if pair else 40):
            asked = (
                sandbox.run_pair(STAYS, STAYS, **files)
                if pair
                else sandbox.run(sleeper(marker), SandboxLimits(600))
            )
            task = asyncio.create_task(asked)
            await asyncio.sleep(step * step_s)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: processes_with(marker) == [])
        return open_descriptors() - descriptors

    assert asyncio.run(scenario()) == set()
    assert children() <= before


def test_descriptors_are_all_closed(sandbox: Sandbox) -> None:
    async def scenario() -> set[tuple[str, str]]:
        await sandbox.run("print(1)")
        before = open_descriptors()
        for program in ("print(1)", "while True: print('x' * 10000)", "import time; time.sleep(9)"):
            await sandbox.run(program, SandboxLimits(0.5, output_bytes=1000), stdin=b"x")
        return open_descriptors() - before

    assert asyncio.run(scenario()) == set()


def test_waiting_for_a_slot_does_not_count_and_slots_bound_what_runs(sandbox: Sandbox) -> None:
    program = "import time; a = time.monotonic(); time.sleep(0.4); print(a, time.monotonic())"
    one_at_a_time = Sandbox(max_parallel=1)

    async def scenario() -> list[SandboxResult]:
        tasks = [
            asyncio.create_task(one_at_a_time.run(program, SandboxLimits(1.1))) for _ in range(3)
        ]
        return [await task for task in tasks]

    results = asyncio.run(scenario())
    assert not any(result.timed_out for result in results)
    spans = sorted(tuple(map(float, result.stdout.split())) for result in results)
    assert all(one[1] <= two[0] for one, two in pairwise(spans))


def test_one_sandbox_serves_one_loop_after_another_uvloop_too(sandbox: Sandbox) -> None:
    uvloop = pytest.importorskip("uvloop")
    for factory in (None, uvloop.new_event_loop, None):
        with asyncio.Runner(loop_factory=factory) as runner:
            assert runner.run(sandbox.run("print(1)")).stdout == b"1\n"
            assert runner.run(sandbox.run("while True: pass", SandboxLimits(0.3))).timed_out


# Two programs that talk

HEAD = "import os, sys\nout = int(sys.argv[1])\n"
ASKS = HEAD + "os.write(out, b'hello'); print(os.read(0, 99).decode(), sorted(os.listdir('.')))"
ANSWERS = (
    HEAD + "os.write(out, os.read(0, 99)[::-1]); print(os.read(0, 99), sorted(os.listdir('.')))"
)
STAYS = HEAD + HANGS


def pair(
    sandbox: Sandbox, leader: str, helper: str, **settings: Any
) -> tuple[SandboxResult, SandboxResult | None]:
    files: dict[str, Any] = {"leader_files": {"a": "1"}, "helper_files": {"b": "2"}}
    return asyncio.run(sandbox.run_pair(leader, helper, SandboxLimits(**settings), **files))


def test_they_share_two_pipes_and_nothing_else(sandbox: Sandbox) -> None:
    leader, helper = pair(sandbox, ASKS, ANSWERS)
    assert helper is not None
    assert leader.stdout == b"olleh ['a', 'main.py']\n", leader.stderr
    assert helper.stdout == b"b'' ['b', 'main.py']\n", helper.stderr
    look = HEAD + "print([p for p in os.listdir('/proc') if p.isdigit()])"
    leader, helper = pair(sandbox, look, look)
    assert helper is not None
    assert leader.stdout == helper.stdout == b"['1']\n"


def test_a_helper_that_stays_is_killed_soon(sandbox: Sandbox) -> None:
    started = time.monotonic()
    leader, helper = pair(sandbox, "print(1)", STAYS, deadline_s=60)
    assert (leader.stdout, helper) == (b"1\n", None)
    assert 0.2 <= leader.duration_s < 30, "the wait for the helper is time that was used"
    assert time.monotonic() - started < 30


def test_a_leader_sees_the_end_of_its_helper(sandbox: Sandbox) -> None:
    leader, helper = pair(sandbox, "import os; print(os.read(0, 9))", HEAD + "os._exit(3)")
    assert helper is not None
    assert (leader.stdout, helper.exit_code) == (b"b''\n", 3)


def test_the_deadline_ends_both(sandbox: Sandbox) -> None:
    before = children()
    leader, helper = pair(sandbox, STAYS, STAYS, deadline_s=0.5)
    assert leader.timed_out
    assert helper is None or helper.timed_out
    assert children() <= before


def test_what_does_not_start_is_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with fails(ErrorKind.UNSUPPORTED):
        pair(sandbox, ASKS, ANSWERS)


# Refusal


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def refused(program: str = "print(1)") -> GradingFailure:
    with fails(ErrorKind.UNSUPPORTED) as caught:
        asyncio.run(Sandbox().run(program))
    return caught.value


def test_without_bubblewrap_nothing_runs(empty_path: Path) -> None:
    assert "apt install bubblewrap" in (sandbox_available() or "")
    assert "apt install bubblewrap" in str(refused())


def fake_bwrap(folder: Path, script: str) -> None:
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)


def test_bubblewrap_that_cannot_make_namespaces_is_refused_in_its_own_words(
    empty_path: Path,
) -> None:
    fake_bwrap(empty_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    assert "No permissions to create new namespace" in str(refused())


def test_bubblewrap_that_contains_nothing_is_refused(empty_path: Path) -> None:
    # It runs the program outside any sandbox, where the probe's fork succeeds.
    fake_bwrap(empty_path, f'cd "{empty_path}"; exec {sys.executable} -c "print(\'hello\')"')
    assert "cannot sandbox" in str(refused())


def test_sandbox_that_breaks_later_is_no_verdict_on_the_program(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(empty_path, "echo 'bwrap: out of namespaces' >&2; exit 1")
    monkeypatch.setattr("adjudge.graders.code.sandbox.sandbox_available", lambda: None)
    assert "out of namespaces" in str(refused())


def test_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert "x86-64" in (sandbox_available() or "")
