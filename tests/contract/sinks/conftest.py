"""How a run is written in these tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Write = Callable[..., str]


@pytest.fixture
def clean_environment() -> dict[str, str]:
    """This process's variables without those that send metrics elsewhere."""
    theirs = ("TRACKIO_", "WANDB_", "HF_")
    return {name: held for name, held in os.environ.items() if not name.startswith(theirs)}


@pytest.fixture
def write(tmp_path: Path, clean_environment: dict[str, str]) -> Write:
    """Log steps `first` to `last` into `tmp_path`; gives what the process printed."""

    def written(to: str, first: int, last: int, *, kill: bool = False) -> str:
        program, folder = str(HERE / "written.py"), str(tmp_path)
        command = [sys.executable, program, to, folder, str(first), str(last)]
        done = subprocess.run(
            [*command, *(["kill"] if kill else [])],
            env=clean_environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
        return done.stdout

    return written
