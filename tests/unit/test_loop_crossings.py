"""A reward call goes to the engine's loop once, however much it asks there."""

import asyncio
import signal
import threading

import pytest

from adjudge.engine import loop


class Panic(BaseException):
    """As a Rust library raises it."""


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), Panic("x")], ids=repr)
def test_what_a_task_or_job_raises_is_its_callers_alone(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def fail_on_loop() -> None:
        fail()

    other = loop.Job(asyncio.sleep(0.05, "done"))
    with pytest.raises(type(error)):
        loop.run_blocking(fail_on_loop())
    assert other.done.result(5) == "done"
    with pytest.raises(BaseException) as caught:
        asyncio.run(loop.SerialThread("test").run(fail))
    assert loop.find_raised(caught.value) is error


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
