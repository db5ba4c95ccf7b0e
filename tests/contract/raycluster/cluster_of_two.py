"""A Ray cluster of two nodes on this machine, and `adjudge` as a process."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SMALL = {"include_dashboard": False, "object_store_memory": 100 << 20}
_QUICK_TO_SEE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 5,
}


class TwoNodes:
    """A head, where drivers run, and a node that can be lost and replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, **_SMALL, "_system_config": _QUICK_TO_SEE}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.node: Any = None
        self.complete()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def complete(self) -> None:
        if self.node is None:
            self.node = self.cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
            self.cluster.wait_for_nodes()

    def lose(self) -> None:
        """Take the second node away with all its workers, as a machine that loses its power."""
        [raylet] = self.node.all_processes["raylet"]
        workers = children_of(raylet.process.pid)
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.node = None
        for worker in workers:  # or they would work on until they miss their raylet
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "adjudge", *map(str, arguments)]


def adjudge(*arguments: str | Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return finished(process, timeout)


def finished(
    process: subprocess.Popen[str], timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        pytest.fail(f"still running after {timeout} s:\n{out[-2000:]}\n{err[-4000:]}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
