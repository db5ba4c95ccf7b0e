"""``EmbeddedChatModel``: a judge that brings its own model and server.

llama.cpp's server runs in a child process on a loopback port, one for each model and process; it
is asked like any other OpenAI-compatible server.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.judges.models.http import LoopBinding, OpenAIChatModel
from adjudge.judges.models.model_files import find_model_file


@dataclass(frozen=True)
class ServerSettings:
    """What one server is started with; judges that agree on it share one."""

    path: Path
    slots: int
    context: int
    threads: int


class _Server:
    """A running child process."""

    def __init__(self, settings: ServerSettings) -> None:
        self.key = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "adjudge.judges.models.llama_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        wanted = {**settings.__dict__, "path": str(settings.path), "key": self.key}
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("unreachable: both are pipes")
        stdin.write(json.dumps(wanted) + "\n")
        stdin.flush()
        for line in stdout:
            if line.startswith('{"address"'):
                address = json.loads(line)["address"]
                self.base_url = f"{address if '://' in address else 'http://' + address}/v1"
                return
        raise JudgeUnavailable(f"{settings.path}: llama.cpp's server did not start")

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


_servers: dict[ServerSettings, _Server] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _servers, _lock
    _servers, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _start_server(settings: ServerSettings) -> _Server:
    with _lock:
        if settings not in _servers:
            _servers[settings] = _Server(settings)
        return _servers[settings]


@atexit.register
def stop_servers() -> None:
    """Stop the servers of this process; the next call starts them again."""
    with _lock:
        while _servers:
            _servers.popitem()[1].stop()


class EmbeddedChatModel(OpenAIChatModel):
    """A model of llama.cpp as a judge, without a server of the user's.

    ``model``: a name that ``adjudge models fetch`` knows, or the path of a GGUF file. ``slots``:
    how many calls are answered side by side; ``max_length``: the tokens of one call, prompt and
    reply (4,096); ``threads`` (the cores of the machine). Sampling as ever.
    """

    kind = "embedded"
    presets = ("embedded",)

    def __init__(
        self,
        model: str,
        *,
        slots: int = 8,
        max_length: int = 4096,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("preset", "embedded")
        super().__init__(model, **options)
        self._path = find_model_file(model)
        self._settings = ServerSettings(
            self._path, slots, max_length, threads or len(os.sched_getaffinity(0))
        )
        self._server: _Server | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_server": None}

    @property
    def fingerprint(self) -> str:
        """A digest of the model's file."""
        return sha256(self._path.read_bytes()).hexdigest()

    def check_machine(self) -> None:
        """The library is installed."""
        if find_spec("xllamacpp") is None:
            raise ConfigError(
                'the package xllamacpp is not installed. Run: pip install "adjudge[embedded]"'
            )

    def _key(self) -> str | None:
        return None if self._server is None else self._server.key

    async def wait_until_reachable(
        self,
        seconds: float,  # noqa: ARG002  (a file of this machine is there or is not)
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the server."""
        on_wait(f"starting llama.cpp's server for {self.model}")
        await self._start()

    async def _start(self) -> _Server:
        self.check_machine()
        self._server = await asyncio.to_thread(_start_server, self._settings)
        return self._server

    async def _connect(self, key: str | None) -> LoopBinding:  # noqa: ARG002  (the server's own)
        server = await self._start()
        self._endpoint_key = replace(self._endpoint_key, base_urls=(server.base_url,))
        return await super()._connect(server.key)
