"""Two runs on one machine, each with a Ray and a key of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adjudge_lab.rl.rewards import find_judge_key_env
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.verl.run import build_verl_environment

SRC = Path(__file__).parents[3] / "src"
# What verl does at its start, and then a line more once both are there.
START = """
import json, os, sys
import ray
ray.init(num_cpus=1, object_store_memory=100 * 2**20, include_dashboard=False)
ask = ray.remote(lambda: [os.environ.get(name) for name in ("KEY_A", "KEY_B")])
address = ray.get_runtime_context().gcs_address
print("UP", flush=True)
sys.stdin.readline()
nodes = [node["Alive"] for node in ray.nodes()]
print(json.dumps([address, nodes, ray.get(ask.remote())]), flush=True)
sys.stdin.readline()
ray.shutdown()
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def started(
    folder: Path, key: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> subprocess.Popen[str]:
    """A run's process, as its shell and ``adjudge train`` make its environment."""
    judge = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": key}
    run = resolve_run_file(
        {"backend": "verl", "model": {"base": "x/y"}, "judge": judge, "graders": [
            {"name": "q", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]}]},
        folder=folder,
    )  # fmt: skip
    assert find_judge_key_env(run) == key
    monkeypatch.setenv("RAY_PORT", str(port))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env: dict[str, Any] = {**kept, key: f"secret of {key}", **build_verl_environment(run, folder)}
    return subprocess.Popen(
        [sys.executable, "-c", START], env=env, cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return next((line for line in process.stdout if line.startswith(("UP", "["))), "").strip()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_runs_have_two_rays_and_each_its_own_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ports = free_ports(2)
    keys = ["KEY_A", "KEY_B"]
    for key in keys:
        monkeypatch.delenv(key, raising=False)
    runs = [started(tmp_path, *given, monkeypatch) for given in zip(keys, ports, strict=True)]
    try:
        assert [line_of(one) for one in runs] == ["UP", "UP"]
        for one in runs:
            say(one)
        found = [json.loads(line_of(one)) for one in runs]
        assert [int(address.rpartition(":")[2]) for address, _, _ in found] == ports
        assert [nodes for _, nodes, _ in found] == [[True], [True]]
        assert [seen for _, _, seen in found] == [
            ["secret of KEY_A", None],
            [None, "secret of KEY_B"],
        ]
        for one in runs:
            say(one)
            assert one.wait(60) == 0
    finally:
        for one in runs:
            one.kill()
            one.wait()
