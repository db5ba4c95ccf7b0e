"""Two sandboxed programs that talk: what they share, and that both end with the leader."""

import asyncio
import time
import uuid
from typing import Any

import pytest
from tests.refusals import fails
from tests.unit.test_sandbox import children, open_descriptors, processes_with, until

from adjudge.errors import ErrorKind
from adjudge.graders.code.bubblewrap import SandboxLimits, SandboxResult
from adjudge.graders.code.sandbox import Sandbox

HEAD = "import os, sys\nout = int(sys.argv[1])\n"
ASKS = HEAD + "os.write(out, b'hello'); print(os.read(0, 99).decode(), sorted(os.listdir('.')))"
ANSWERS = (
    HEAD + "os.write(out, os.read(0, 99)[::-1]); print(os.read(0, 99), sorted(os.listdir('.')))"
)
HANGS = HEAD + "import time\ntime.sleep(600)"


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
    leader, helper = pair(sandbox, "print(1)", HANGS, deadline_s=60)
    assert (leader.stdout, helper) == (b"1\n", None)
    assert 0.2 <= leader.duration_s < 30, "the wait for the helper is time that was used"
    assert time.monotonic() - started < 30


def test_a_leader_sees_the_end_of_its_helper(sandbox: Sandbox) -> None:
    leader, helper = pair(sandbox, "import os; print(os.read(0, 9))", HEAD + "os._exit(3)")
    assert helper is not None
    assert (leader.stdout, helper.exit_code) == (b"b''\n", 3)


def test_the_deadline_ends_both(sandbox: Sandbox) -> None:
    before = children()
    leader, helper = pair(sandbox, HANGS, HANGS, deadline_s=0.5)
    assert leader.timed_out
    assert helper is None or helper.timed_out
    assert children() <= before


def test_cancelling_at_any_moment_leaves_nothing(sandbox: Sandbox) -> None:
    marker, before = uuid.uuid4().hex, children()

    async def scenario() -> set[tuple[str, str]]:
        await sandbox.run("pass")
        descriptors = open_descriptors()
        for step in range(20):
            task = asyncio.create_task(
                sandbox.run_pair(HANGS, HANGS, leader_files={marker: ""}, helper_files={marker: ""})
            )
            await asyncio.sleep(step * 0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: processes_with(marker) == [])
        return open_descriptors() - descriptors

    assert asyncio.run(scenario()) == set()
    assert children() <= before


def test_what_does_not_start_is_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with fails(ErrorKind.UNSUPPORTED):
        pair(sandbox, ASKS, ANSWERS)
