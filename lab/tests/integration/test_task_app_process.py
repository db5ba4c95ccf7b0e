"""The example of a task app as a process of its own, and the page about task apps."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from adjudge.engine.loop import run_blocking
from adjudge.errors import JudgeAuthError
from adjudge_lab.environments import Episode, TaskAppTask, build_app, fetch_rubrics

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "task_app_crafter.py"
PAGE = ROOT / "docs" / "training.md"
SMALL = """\
from adjudge_lab.environments import Step


class Echo:
    name = "echo"
    instructions = "Say something."

    def reset(self, seed: int) -> str:
        self._seed, self._turns = seed, 0
        return f"This is {seed}."

    def step(self, reply: str) -> Step:
        self._turns += 1
        done = self._turns == 3
        return Step(f"{self._seed} heard {reply!r}", float(self._turns), done)
"""


@contextmanager
def example(folder: Path, **env: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The example's address, with a small environment in Crafter's place."""
    text = EXAMPLE.read_text()
    assert text.count("CrafterEnvironment") == 2
    (folder / "echoing.py").write_text(SMALL)
    script = folder / "app.py"
    script.write_text(
        text.replace("CrafterEnvironment, ", "", 1)
        .replace("make=CrafterEnvironment", "make=Echo")
        .replace("rubric = ", "from echoing import Echo\n\nrubric = ", 1)
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PORT": "0", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"task app at (http://\S+) \((.*)\)\n", line)
        if found is None:
            _, errors = process.communicate(timeout=120)
            pytest.fail(f"{line!r}\n{errors}")
        yield found[1], process
    finally:
        process.kill()
        process.communicate()


def task(url: str) -> TaskAppTask:
    return TaskAppTask(url, env_name="echo", max_turns=9)


def test_the_example_plays_rollouts_and_stops_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)

    async def work(url: str) -> list[Episode]:
        async def policy(messages: Any) -> str:
            await asyncio.sleep(0)
            return f"{messages[1]['content']} {len(messages)}"

        jobs = [asyncio.create_task(task(url).play(seed, policy)) for seed in range(32)]
        await asyncio.wait(jobs)
        return [job.result() for job in jobs]

    with example(tmp_path) as (url, process):
        for seed, episode in enumerate(run_blocking(work(url))):
            said = [one["content"] for one in episode.messages[1:]]
            assert said[0] == f"This is {seed}."
            assert said[1::2] == [f"This is {seed}. {length}" for length in (2, 4, 6)]
            assert said[2::2] == [f"{seed} heard {one!r}" for one in said[1::2]]
            assert (episode.rewards, episode.done) == ([1.0, 2.0, 3.0], True)
        rubrics = run_blocking(fetch_rubrics(url)).global_rubric
        assert rubrics is not None
        assert rubrics.id == "crafter/bundle@v1"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output, errors) == (0, "", "")


def test_the_example_asks_for_the_key_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "k-51aa7e"
    with example(tmp_path, ENVIRONMENT_API_KEY=key, HOST="0.0.0.0") as (url, process):
        local = url.replace("0.0.0.0", "127.0.0.1")
        monkeypatch.setenv("ENVIRONMENT_API_KEY", key)
        assert run_blocking(task(local).play(1, lambda _: "hello")).done
        monkeypatch.setenv("ENVIRONMENT_API_KEY", "another")
        with pytest.raises(JudgeAuthError):
            run_blocking(task(local).play(1, lambda _: "hello"))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0
        assert key[:3] not in output + errors


def test_the_example_is_not_public_without_a_key(tmp_path: Path) -> None:
    env = {"HOST": "0.0.0.0", "ENVIRONMENT_API_KEY": ""}
    with (
        pytest.raises(pytest.fail.Exception, match="ENVIRONMENT_API_KEY"),
        example(tmp_path, **env),
    ):
        pass


@contextmanager
def served(app: web.Application) -> Iterator[str]:
    """The app's address, on a loop of its own in another thread."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), ""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)

    async def start() -> None:
        nonlocal address
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(20)
        yield address
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)


def test_the_task_app_of_the_page_plays_its_game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)
    files = dict(re.findall(r'```python title="(\w+)\.py"\n(.*?)```', PAGE.read_text(), re.DOTALL))
    for name, code in files.items():
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(code, module.__dict__)
    with served(build_app(sys.modules["app"].config)) as url:
        game = TaskAppTask(url, env_name="guess", env_config={"highest": 1}, max_turns=2)
        episode = run_blocking(game.play(4, lambda _: "1"))
        rubrics = run_blocking(fetch_rubrics(url))
    assert (episode.done, episode.env_return) == (True, 1.0)
    assert rubrics.outcome is not None
    assert str(rubrics.outcome.criteria[0]).count("Halves") == 1
