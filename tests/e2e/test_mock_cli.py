"""``adjudge mock`` as a user runs it: a real process, real HTTP, a real Ctrl-C."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.e2e.helpers.command import run_here

from adjudge.mock import FAULTS, MockSettings, start_mock

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
COMMAND = [sys.executable, "-m", "adjudge", "mock"]


async def _ask(base_url: str, times: int) -> list[int]:
    async with aiohttp.ClientSession() as session:
        statuses = []
        for _ in range(times):
            async with session.post(f"{base_url}/chat/completions", json=HELLO) as response:
                await response.read()
                statuses.append(response.status)
        return statuses


async def _get(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.json()


def ask(base_url: str, times: int = 1) -> list[int]:
    return asyncio.run(_ask(base_url, times))


def rest_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What else it prints until it ends; ``communicate`` would lose what ``readline`` read on."""
    with process:
        assert process.stdout is not None
        out = process.stdout.read()
        return out, process.stderr.read() if process.stderr is not None else ""


def test_it_says_where_it_is_and_what_it_did() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--fail", "500:0.5", "--seed", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert process.stdout is not None
    base_url = process.stdout.readline().strip()
    assert base_url.startswith("http://127.0.0.1:")
    statuses = ask(base_url, 20)
    assert set(statuses) == {200, 500}
    process.send_signal(signal.SIGINT)
    out, complaint = rest_of(process)
    assert process.returncode == 0
    assert complaint == ""
    assert "try: curl" in out
    counts = {line.rsplit(None, 1)[0]: line.rsplit(None, 1)[1] for line in out.splitlines() if line}
    assert counts["requests"] == "20"
    assert counts["faults: 500"] == str(statuses.count(500))
    assert counts["replied"] == str(statuses.count(200))
    assert counts["seed"] == "3"


def test_json_is_one_line_at_the_start_and_one_at_the_end() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert first["pid"] == process.pid
    assert first["base_url"] == f"http://127.0.0.1:{first['port']}/v1"
    assert ask(first["base_url"]) == [200]
    process.send_signal(signal.SIGTERM)
    out, _ = rest_of(process)
    assert process.returncode == 0
    counts = json.loads(out)
    assert (counts["requests"], counts["seed"]) == (1, first["seed"])


def test_the_faults_are_listed(tmp_path: Path) -> None:
    done = run_here("mock", "--faults", "--json", folder=tmp_path)
    assert json.loads(done.stdout) == FAULTS


def test_start_mock_passes_every_setting_on_and_stops_the_process(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('"a reply"\n')
    settings = MockSettings(
        script=str(script), latency=("fixed:0.001", "lognormal:0.001,1"),
        fail=("wrong-id:1",), seed=5,
    )  # fmt: skip
    with start_mock(settings) as base_url:
        assert ask(base_url, 3) == [200] * 3
        stats = asyncio.run(_get(f"{base_url}/stats"))
        assert stats["requests"] == 3
        assert stats["faults"] == {"wrong-id": 3}
        assert stats["seed"] == 5
        models = asyncio.run(_get(f"{base_url}/models"))
        assert models["data"][0]["id"] == "mock"
    with pytest.raises(aiohttp.ClientConnectionError):
        ask(base_url)


def test_it_ends_with_the_process_that_started_it() -> None:
    code = (
        "import os\nfrom adjudge.mock import start_mock\n"
        "with start_mock() as url:\n    print(url, flush=True)\n    os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    async def gone() -> None:
        async with asyncio.timeout(30), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{done.stdout.strip()}/stats"):
                        await asyncio.sleep(0.05)
                except aiohttp.ClientConnectionError:
                    return

    asyncio.run(gone())
