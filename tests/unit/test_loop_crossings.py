"""A reward call goes to the engine's loop once, however much it asks there."""

import asyncio
import signal
import threading

import pytest

from adjudge.engine import loop


def test_what_a_task_raises_does_not_end_the_work_of_others() -> None:
    async def fail() -> None:
        raise SystemExit

    other = loop.Job(asyncio.sleep(0.05, "done"))
    with pytest.raises(SystemExit):
        loop.run_blocking(fail())
    assert other.done.result(5) == "done"


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    or threading.current_thread() is not threading.main_thread(),
    reason="Ctrl-C is for somebody else here",
)
def test_ctrl_c_ends_a_call_that_blocks_a_running_loop() -> None:
    async def cell() -> None:
        before = signal.getsignal(signal.SIGINT)
        try:
            loop.run_blocking(asyncio.sleep(30))
        finally:
            assert signal.getsignal(signal.SIGINT) is before

    main = threading.main_thread().ident
    assert main is not None
    ctrl_c = threading.Timer(0.2, signal.pthread_kill, [main, signal.SIGINT])
    ctrl_c.start()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
