"""A server of ours as a child process: it announces itself with one line, and ends with its input.

The child serves until the end of its standard input, so it ends when its parent dies, too.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel

_STOP_S = 10.0


@contextmanager
def start_child_server(command: list[str]) -> Iterator[tuple[bytes, subprocess.Popen[bytes]]]:
    """Run a command that serves, until the block ends; gives the line that it prints when ready.

    Raises ``RuntimeError`` when it ends without one.
    """
    with subprocess.Popen(  # noqa: S603  (this very program)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else b""
            if not line:
                said = " ".join(command[1:5])
                raise RuntimeError(f"{said} did not start (exit code {process.wait()})")
            yield line, process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def settings_arguments(settings: BaseModel, names: Mapping[str, str] | None = None) -> list[str]:
    """Settings as options of their command: the port, and what differs from its default.

    ``names``: options that are not called as their fields are.
    """
    arguments: list[str] = []
    for key, field in type(settings).model_fields.items():
        value = getattr(settings, key)
        if value == field.default and key != "port":
            continue
        name = "--" + (names or {}).get(key, key).replace("_", "-")
        if isinstance(value, bool):
            arguments.append(name)
        else:
            several = value if isinstance(value, list | tuple) else [value]
            arguments += [f"{name}={one}" for one in several]
    return arguments


def stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call ``stop`` when standard input ends; what comes before its end is dropped."""
    number = sys.stdin.fileno()

    def read() -> None:
        if not os.read(number, 65536):
            loop.remove_reader(number)
            stop()

    loop.add_reader(number, read)
