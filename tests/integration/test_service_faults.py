"""Client, service and provider as real processes while one of them fails.

Everywhere the same is asked: each request ends, as a right score or as a failure with a kind; what
was sent is what was answered and what failed; and no score belongs to another request. The provider
scores a completion by its length and the test's own judges by its number, so each has its own.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.unit.helpers.service_processes import (
    accounted,
    asked,
    base_of,
    free_port,
    half_open,
    of_length,
    outcomes,
    serving,
    spec,
    stats,
    wait_until,
)

from adjudge.client import JudgeRewardSystem
from adjudge.mock import start_mock
from adjudge.service.server import RunningService, start_service, start_service_process
from adjudge.trainers.scoring import Scorer
from adjudge.types import RewardSample

pytestmark = pytest.mark.slow

WHOLE = (
    b"POST /judge HTTP/1.1\r\nhost: localhost\r\ncontent-length: 31\r\n\r\n"
    b'{"prompt":"p","completion":"1"}'
)
JUDGES = "tests.integration.service_judges"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_SUCH_KEY_IS_NEEDED", "x")


IMPATIENT = """
import sys
from adjudge.cli.main import main
from adjudge.service.server import GuardedProtocol

GuardedProtocol.read_timeout_s = 1.0
sys.argv[0] = "adjudge"
main()
"""


@pytest.fixture(scope="module")
def batches() -> Iterator[RunningService]:
    """A service with a user's judge."""
    words = ["serve", f"{JUDGES}:Batches", "--port=0", "--json", "--until-eof"]
    with start_service_process([sys.executable, "-c", IMPATIENT, *words]) as (running, _):
        yield running


# ── the service dies ─────────────────────────────────────────────────────────────────────────


def test_killed_and_restarted_under_load(tmp_path: Path) -> None:
    lengths = range(1, 301)
    texts = ["x" * n for n in lengths]
    samples = [RewardSample(i, i, "p", text) for i, text in enumerate(texts)]
    port = free_port()
    with start_mock(behaviour="length", latency=("fixed:0.1",)) as upstream, ExitStack() as stack:
        target = spec(tmp_path, upstream)
        address = f"http://127.0.0.1:{port}"
        impatient = JudgeRewardSystem(
            {"judge_url": address, "max_concurrent_requests": 4, "circuit_breaker_timeout": 0.2}
        )
        patient = Scorer(address)
        threads = stack.enter_context(ThreadPoolExecutor(2))
        with serving(target, port=port) as (running, process):
            base = base_of(running.url)
            of_trainer = threads.submit(patient.score, samples, ["g"] * len(samples))
            of_script = threads.submit(asked, impatient, texts)
            wait_until(lambda: stats(upstream)["replied"] > 60)
            os.kill(running.pid, signal.SIGKILL)
            process.wait()
        assert not of_trainer.done()
        with serving(target, port=port) as (running, _):
            scored = of_trainer.result(60)
            results = of_script.result(60)
            right = [round(1 + 9 * (n := base + k) / (n + 1000), 3) for k in lengths]
            # Who trains loses a little time and no reward.
            assert scored.rewards == pytest.approx(right)
            kinds = accounted(impatient, results, right)
            assert set(kinds) <= {"connection", "server_error", "circuit_open"}
            # One request probes the open breaker, those beside it still fail at once.
            wait_until(lambda: asked(impatient, ["a probe"])[0]["reward"] is not None)
            lost = [text for text, one in zip(texts, results, strict=True) if one["reward"] is None]
            again = asked(impatient, lost)
            for text, one in zip(lost, again, strict=True):
                assert one["reward"] == pytest.approx(right[len(text) - 1])
        impatient.close()


def test_a_request_that_kills_the_process_leaves_nobody_hanging() -> None:
    """Nothing isolates a process from itself: who was with it gets ``connection``, as do retries.

    Whoever restarts the service has it killed again by the retries, ``max_retries`` at most.
    """
    texts = [str(n) for n in range(64)]
    texts[20] = "exit"
    with serving(f"{JUDGES}:Batches") as (running, process):
        rewards = JudgeRewardSystem(
            {"judge_url": running.url, "max_concurrent_requests": 2, "max_batch_size": 8}
        )
        results = asked(rewards, texts)
        assert process.wait(10) == 7
    kinds = accounted(rewards, results, [0.0 if one == "exit" else float(one) for one in texts])
    assert results[20]["reward"] is None
    assert 0 < sum(kinds.values()) < 64
    assert set(kinds) <= {"connection", "circuit_open"}
    rewards.close()


# ── half-open connections ────────────────────────────────────────────────────────────────────


HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 200\r\n\r\n"
HALF = HEADERS + b'{"responses": [{"score": 1.0, "request_id"'
ENDS = {"silent": None, "closes at once": b"", "headers only": HEADERS, "half a body": HALF}


@pytest.mark.parametrize("how", ENDS)
def test_a_service_that_accepts_and_does_not_answer(how: str) -> None:
    with half_open(ENDS[how]) as port:
        config = {"judge_url": f"http://127.0.0.1:{port}", "timeout": 1.5, "max_retries": 1}
        with JudgeRewardSystem({**config, "max_batch_size": 4}) as rewards:
            kinds = accounted(rewards, asked(rewards, [str(n) for n in range(16)]), [0.0] * 16)
            assert sum(kinds.values()) == 16
            assert set(kinds) <= ({"timeout"} if how == "silent" else {"connection"})


def test_a_provider_that_is_away_silent_broken_slow_and_back(tmp_path: Path) -> None:
    port = free_port()
    endpoint = {"deadline_s": 1.0, "max_attempts": 2}
    target = spec(tmp_path, f"http://127.0.0.1:{port}/v1", **endpoint)
    texts = ["x" * n for n in range(24)]

    def failed_as(url: str) -> set[str]:
        with JudgeRewardSystem({"judge_url": url, "max_retries": 0, "timeout": 20.0}) as rewards:
            kinds = accounted(rewards, asked(rewards, texts), [0.0] * 24)
        assert sum(kinds.values()) == 24
        return set(kinds)

    # Each silence meets a service that knows of no outage: in one, calls wait for its end instead.
    with start_service(target, deadline_s=1.5) as url, half_open(ENDS["silent"], port):
        assert failed_as(url) == {"timeout"}
    with start_service(target, deadline_s=1.5) as url:
        with start_mock(behaviour="length", latency=("fixed:60",), port=port) as upstream:
            assert failed_as(url) == {"timeout"}
            # Nobody pays for what nobody waits for.
            wait_until(lambda: stats(upstream)["in_flight"]["now"] == 0)
            assert stats(upstream)["requests"] > 0
        assert failed_as(url) <= {"connection", "timeout", "circuit_open"}  # it is away
        with half_open(ENDS["headers only"], port):
            assert failed_as(url) <= {"connection", "timeout", "circuit_open"}
        with start_mock(behaviour="length", port=port), JudgeRewardSystem({"judge_url": url}) as r:
            base = base_of(url)
            for n, one in enumerate(asked(r, texts)):
                assert of_length(one["reward"], n, base)
        assert outcomes(url)["failed"] + outcomes(url)["answered"] > 0
        assert outcomes(url)["refused"] == 0


def test_clients_that_send_half_do_not_keep_others_from_it(batches: RunningService) -> None:
    port = batches.port
    with ExitStack() as stack:
        lines = []
        for n in range(200):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            line.sendall((b"", WHOLE[:20], WHOLE[:-31], WHOLE[:-9])[n % 4])
            lines.append(line)
        with JudgeRewardSystem({"judge_url": batches.url}) as rewards:
            results = asked(rewards, [str(n) for n in range(200)])
            assert accounted(rewards, results, [float(n) for n in range(200)]) == {}
        for n, line in enumerate(lines):
            said = line.recv(65536)  # 408, or closed where nothing had come
            assert said == b"" if n % 4 == 0 else said.startswith(b"HTTP/1.1 408")


QUICK = """
import sys, uvicorn
from adjudge.cli.main import main
from adjudge.service.server import GuardedProtocol

GuardedProtocol.read_timeout_s = 0.5

class Config(uvicorn.Config):
    def __init__(self, *words, **settings):
        super().__init__(*words, **{**settings, "timeout_keep_alive": 0.5})

uvicorn.Config = Config
sys.argv[0] = "adjudge"
main()
"""
HALT = WHOLE.replace(b"31", b"34").replace(b'"1"', b'"halt"')


def test_a_standstill_costs_no_request() -> None:
    """Requests that came while nothing ran are read before anything is found too late."""
    words = ["serve", f"{JUDGES}:Halts", "--port=0", "--json"]
    with start_service_process([sys.executable, "-c", QUICK, *words, "--until-eof"]) as (
        running,
        _,
    ):
        for _ in range(20):
            said = _said_after_a_standstill(running.port)
            if said is not None:
                assert all(one.startswith(b"HTTP/1.1 200") for one in said)
                return
        pytest.fail("this machine is too slow for the question")


def _said_after_a_standstill(port: int) -> list[bytes] | None:
    """What eight connections get; ``None`` when they were too late in earnest."""
    with ExitStack() as stack:
        began = time.monotonic()
        address = "127.0.0.1", port
        lines = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(9)]
        for line in lines[:4]:  # these have been used before, the others have not
            line.sendall(WHOLE)
            line.recv(65536)
        lines[-1].sendall(HALT)
        time.sleep(0.1)
        for line in lines[:-1]:
            line.sendall(WHOLE)
        if time.monotonic() - began > 0.4:
            return None
        try:
            return [line.recv(65536) for line in lines[:-1]]
        except ConnectionResetError:
            return [b""]


# ── too much ─────────────────────────────────────────────────────────────────────────────────


def test_a_full_queue_is_asked_again_later() -> None:
    settings = {"concurrency": 8, "queue_size": 24}
    config = {"max_concurrent_requests": 16, "max_batch_size": 8, "use_cache": False}
    with start_service(f"{JUDGES}:Slow", **settings) as url:
        with JudgeRewardSystem({"judge_url": url, "max_retries": 8, **config}) as rewards:
            results = asked(rewards, [str(n) for n in range(120)])
            assert accounted(rewards, results, [float(n) for n in range(120)]) == {}
            counted = outcomes(url)
            assert counted["queue_full"] > 0
            assert rewards.get_metrics()["retries"] == counted["queue_full"]
        with JudgeRewardSystem({"judge_url": url, "max_retries": 0, **config}) as rewards:
            results = asked(rewards, [str(n) for n in range(120)])
            kinds = accounted(rewards, results, [float(n) for n in range(120)])
            assert set(kinds) == {"rate_limited"}
            refused = next(one for one in results if one["reward"] is None)
            assert "queue_size" in refused["error"]


# ── where a spec is expected ─────────────────────────────────────────────────────────────────
