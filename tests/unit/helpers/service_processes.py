"""Services and providers as real processes, and what tests of their failures ask of all of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from adjudge.client import JudgeRewardSystem
from adjudge.engine.processes import settings_arguments
from adjudge.service import ServiceSettings
from adjudge.service.server import RunningService, start_service_process

SPEC = """
version = 1
[[graders]]
name = "length"
type = "llm"
judge = "main"
template = "{{response}}"
score_range = [1, 10]
[reward]
normalise = false
[judges.main]
type = "openai"
model = "mock"
base_url = "{url}"
api_key_env = "NO_SUCH_KEY_IS_NEEDED"
[judges.main.endpoint]
{endpoint}
"""


def spec(folder: Path, url: str, **endpoint: Any) -> str:
    path = folder / f"spec-{len(list(folder.iterdir()))}.toml"
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in endpoint.items())
    path.write_text(SPEC.format(url=url, endpoint=lines))
    return str(path)


@contextmanager
def serving(
    target: str, **settings: Any
) -> Iterator[tuple[RunningService, subprocess.Popen[bytes]]]:
    """``adjudge serve`` with its process at hand."""
    chosen = ServiceSettings(**{"port": 0, **settings})
    command = [sys.executable, "-m", "adjudge", "serve", target, "--json", "--until-eof"]
    with start_service_process([*command, *settings_arguments(chosen)]) as found:
        yield found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def stats(upstream: str) -> Any:
    with urllib.request.urlopen(f"{upstream}/stats") as response:
        return json.load(response)


def post(url: str, value: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the JSON of the answer to ``value`` as JSON; of a GET without one."""
    data = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def wait_until(found: Callable[[], Any], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def outcomes(url: str) -> Counter[str]:
    """Requests that the service has counted, by outcome."""
    found: Counter[str] = Counter()
    with urllib.request.urlopen(f"{url}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
    for sample in (each for family in families for each in family.samples):
        if sample.name == "judge_requests_total":
            found[sample.labels["outcome"]] += int(sample.value)
    return found


def asked(rewards: JudgeRewardSystem, completions: Sequence[str]) -> list[dict[str, Any]]:
    return rewards.reward_batch(["p"] * len(completions), completions)


def of_length(score: float, n: int, base: int) -> bool:
    """Whether this is the provider's score of ``n`` characters after the ``base`` of the prompt."""
    share = (base + n) / (base + n + 1000)
    return abs(score - round(1 + 9 * share, 3)) < 1e-9


def accounted(
    rewards: JudgeRewardSystem, results: Sequence[Mapping[str, Any]], right: Sequence[float]
) -> Counter[str]:
    """How many failed as what; each has its own score or a kind, and the client counts the same."""
    assert len(results) == len(right)
    kinds: Counter[str] = Counter()
    for result, score in zip(results, right, strict=True):
        if result["reward"] is None:
            assert result["source"] == "none"
            assert result["error"]
            kinds[result["error_kind"]] += 1
        else:
            assert (result["reward"], result["source"]) == (pytest.approx(score), "judge")
    counted = rewards.get_metrics()
    assert counted["total_requests"] == counted["scored"] + counted["errors"] == len(results)
    assert counted["failures"] == dict(kinds)
    return kinds


def base_of(url: str) -> int:
    """How long the provider's prompt is without the completion."""
    with JudgeRewardSystem({"judge_url": url}) as rewards:
        said = rewards.reward("p", "")["explanation"]
    return int(said.removeprefix("length: ").split()[0])


@contextmanager
def half_open(answer: bytes | None, port: int = 0) -> Iterator[int]:
    """Accepts, reads, and says ``answer`` before it closes; with ``None`` it keeps silent."""
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    lines: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            lines.append(line)
            if answer is not None:
                line.recv(65536)
                line.sendall(answer)
                line.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for line in lines:
            line.close()
