"""``adjudge`` with its arguments: in a process of its own, or in this one, which starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from adjudge.cli.main import command_line

COMMAND = [sys.executable, "-m", "adjudge"]
_WIDTH = "160"


def run_process(
    *arguments: str | Path, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What a user's shell runs."""
    command = [*COMMAND, *map(str, arguments)]
    env = {**os.environ, "COLUMNS": _WIDTH, **environment}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=env, timeout=240, check=False
    )


def invoke(*words: object, **environment: str) -> Result:
    """The same command in this process and folder: its exit code, and all that it prints."""
    env = {"COLUMNS": _WIDTH, **environment}
    return CliRunner().invoke(command_line(), [str(one) for one in words], env=env)


def run_here(
    *arguments: str | Path, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """:func:`invoke` in another folder; a failure of the program is raised."""
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))  # as `python -m` does
        done = invoke(*arguments, **environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
