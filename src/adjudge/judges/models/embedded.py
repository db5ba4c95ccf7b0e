"""``EmbeddedChatModel``: a judge that brings its own model and server.

llama.cpp's server runs in a child process on a loopback port, one for each model and process. It is
asked like any other OpenAI-compatible server; only the transport knows where it listens, and starts
it again where it has ended.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from adjudge.engine.loop import ProcessLocal
from adjudge.engine.processes import usable_cpus
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeUnavailable
from adjudge.installation import install_command
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.judges.endpoint.settings import CallPolicy, EndpointSettings, Price
from adjudge.judges.models import llama_server
from adjudge.judges.models.http import Line, OpenAIChatModel
from adjudge.judges.models.local_loading import hash_model_file
from adjudge.judges.models.model_files import MODEL_FILES, fetched_path, find_model_file
from adjudge.judges.wire.transport import AiohttpTransport
from adjudge.text import printable

_READ_BYTES, _QUOTED_LINES, _QUOTED = 20_000, 3, 400
_END_S = 1.0
"""The connections of a server that ends break a moment before its process can be reaped."""


@dataclass(frozen=True)
class ServerSettings:
    """What one server is started with; judges that agree on it share one."""

    path: str
    name: str
    slots: int
    context: int
    threads: int

    def __call__(self) -> EmbeddedTransport:
        """Open what an endpoint sends its calls by; equal settings share the endpoint."""
        return EmbeddedTransport(self)


class _Server:
    """A child process, and the thread that reads its address and waits for its end."""

    def __init__(self, settings: ServerSettings) -> None:
        self.key = secrets.token_hex(16)
        self.url: Future[str] = Future()
        """The address; fails with ``ConfigError`` where the server does not start."""
        self._settings = settings
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (as long as somebody may quote it)
        weakref.finalize(self, self._log.close)
        try:
            # A session of its own: a terminal's Ctrl-C goes to the parent alone. The file is run by
            # its path, and nothing of the current folder is imported.
            self._process = subprocess.Popen(  # noqa: S603  (our own file)
                [sys.executable, "-P", llama_server.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"model: llama.cpp's server cannot be started: {error}") from error
        threading.Thread(target=self._run, name="adjudge-llama-server", daemon=True).start()

    def _run(self) -> None:
        with suppress(BrokenPipeError), self._process as process:
            if process.stdin is None or process.stdout is None:
                raise RuntimeError("unreachable: both are pipes")
            about = {**self._settings.__dict__, "key": self.key}
            process.stdin.write(json.dumps(about).encode() + b"\n")
            process.stdin.flush()
            if address := process.stdout.readline().decode().strip():
                self.url.set_result(f"{address}/v1")
            process.wait()  # and then close the pipes, whose end would end the child
        status = self._process.wait()
        if not self.url.done():
            path = printable(self._settings.path)
            self.url.set_exception(
                ConfigError(
                    f"model: llama.cpp cannot load {path} ({_describe_status(status)})"
                    f"{self._quote_log()}. Use a GGUF file of a language model; where memory is "
                    "short, lower batch_size or max_length."
                )
            )

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Whether it answers no more, after so long at most; the next call needs another."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def describe_end(self) -> str:
        """Why it is not there any more, for people."""
        why = _describe_status(self._process.returncode)
        return f"llama.cpp's server for {self._settings.name} ended ({why}){self._quote_log()}"

    def _quote_log(self) -> str:
        """What the child said of errors, or last; escaped and short."""
        size = os.fstat(self._log.fileno()).st_size
        end = os.pread(self._log.fileno(), _READ_BYTES, max(0, size - _READ_BYTES))
        lines = [line for line in end.decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line.partition(" E ")[2].strip() for line in lines if " E " in line]
        chosen = list(dict.fromkeys(errors))[:_QUOTED_LINES] or lines[-_QUOTED_LINES:]
        words = printable("; ".join(" ".join(line.split()) for line in chosen))
        if not words:
            return ""
        return f": {words[:_QUOTED]}…" if len(words) > _QUOTED else f": {words}"

    def stop(self) -> None:
        """End the process."""
        self._process.kill()  # nothing, where it has ended
        self._process.wait()

    def forget(self) -> None:
        """In a forked child: the process is the parent's, whose end this copy must not hide."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stdin.fileno(), inheritable=False)
            os.close(null)


def _describe_status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _leave_to_parent(servers: dict[ServerSettings, _Server]) -> None:
    """In a forked child: its copies of the pipes would keep the parent's servers alive."""
    for server in servers.values():
        server.forget()


_servers: ProcessLocal[dict[ServerSettings, _Server]] = ProcessLocal(dict, _leave_to_parent)


def _find_server(settings: ServerSettings) -> _Server:
    """The process's one server for ``settings``, started if there is none or it has ended."""
    with _servers.lock:
        server = _servers.value.get(settings)
        if server is None or server.has_ended():
            server = _servers.value[settings] = _Server(settings)
        return server


@atexit.register
def stop_servers() -> None:
    """Stop the servers of this process; the next call starts them again."""
    with _servers.lock:
        servers = list(_servers.value.values())
        _servers.value.clear()
    for server in servers:
        server.stop()


class EmbeddedTransport:
    """Sends to the server of ``settings``, wherever it listens, and starts it if need be.

    Raises ``ConfigError`` where it cannot be started.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._http = AiohttpTransport()

    async def post(
        self,
        base_url: str,  # noqa: ARG002  (a name; the address changes with each start)
        request: HttpRequest,
    ) -> HttpResponse:
        """The response; ``connection`` where the server ends meanwhile, and the next starts it."""
        server = _find_server(self._settings)
        url = await _wait_for_url(server)
        headers = {**request.headers, "authorization": f"Bearer {server.key}"}
        request = msgspec.structs.replace(request, headers=headers)
        try:
            return await self._http.post(url, request)
        except GradingFailure as failure:
            if failure.kind is ErrorKind.CONNECTION and await asyncio.to_thread(
                server.has_ended, _END_S
            ):
                raise GradingFailure(
                    failure.kind, server.describe_end(), failure.metadata
                ) from None
            raise

    async def aclose(self) -> None:
        """Close the connections; the server goes on, since others may ask it."""
        await self._http.aclose()


async def _wait_for_url(server: _Server) -> str:
    if server.url.done():
        return server.url.result()
    return await asyncio.shield(asyncio.wrap_future(server.url))


class EmbeddedChatModel(OpenAIChatModel):
    """A model of llama.cpp as a judge, without a server of the user's.

    ``model``: a name that ``adjudge models fetch`` knows, or the path of a GGUF file.
    ``batch_size`` (8): how many calls are answered side by side. ``max_length`` (4,096): the tokens
    of one call, prompt and reply; a prompt that does not fit is ``too_long``, never cut.
    Sampling, ``features``, ``settings`` and ``cache`` as :class:`OpenAIChatModel`; schemas and
    choice lists bind (by grammar), and log-probabilities are given. It costs nothing.

    The server is started with the first call, in a child process that ends with this one. Judges
    with the same model, batch size and length share it. Replies are cached under the digest of
    the model and ``max_length``, so a cassette replays on any machine; a replay starts nothing.

    Raises :class:`~adjudge.errors.ConfigError` for what cannot be meant.
    """

    kind = "embedded"
    batch_size = 8
    """How many calls are answered side by side, by default."""

    def __init__(
        self,
        model: str | Path,
        *,
        batch_size: int = batch_size,
        max_length: int = 4096,
        settings: EndpointSettings | None = None,
        **options: Any,
    ) -> None:
        for name in ("base_url", "api_key_env", "wire"):
            if options.get(name) is not None:
                raise ConfigError(f"{name}: an embedded judge has none. Leave it out.")
        model = str(model)
        known = MODEL_FILES.get(model)
        path = fetched_path(known) if known is not None else find_model_file(model)
        self._path = path.absolute()
        options.setdefault("preset", "embedded")
        if options.get("price") is None:
            options["price"] = Price(input=0.0, output=0.0)
        # As many calls are out as are answered side by side, and the others wait here. This machine
        # may be slow, and a call that waits for its turn has not failed.
        here = {"max_concurrency": batch_size, "deadline_s": 86_400.0, "hedge": False}
        given = {} if settings is None else settings.model_dump(exclude_unset=True)
        settings = EndpointSettings(**here | given)
        super().__init__(
            model if known is not None else self._path.name, settings=settings, **options
        )
        self._known = known
        self.server_settings = ServerSettings(
            str(self._path), self.model, batch_size, max_length, usable_cpus()
        )
        self._endpoint_key = replace(
            self._endpoint_key,
            base_urls=("embedded://llama.cpp",),
            policy=CallPolicy(start_concurrency=batch_size, resends_silent=False),
            transport=self.server_settings,
            # ``max_length`` cuts replies, and prompts that do not fit fail.
            cache_name=None
            if self._endpoint_key.cache is None
            else f"embedded {self.fingerprint} {max_length}",
        )

    @property
    def fingerprint(self) -> str:
        """A digest of the model: of its file, or of what a known name stands for."""
        if self._known is not None:
            return self._known.fingerprint
        said = hashlib.sha256()
        hash_model_file(said, self._path)
        return said.hexdigest()

    def check_machine(self) -> None:
        """The library is installed, and the model's file is there."""
        if self._replays():
            return
        if find_spec("xllamacpp") is None:
            raise ConfigError(
                "the package xllamacpp is not installed. Run: " + install_command("embedded")
            )
        find_model_file(self.model if self._known is not None else str(self._path))

    async def wait_until_reachable(
        self, seconds: float, on_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start the server, and wait until it has read the model."""
        if self._replays():
            return
        self.check_machine()
        server = _find_server(self.server_settings)
        if not server.url.done():
            on_wait(f"starting llama.cpp's server for {self.model}")
        try:
            await asyncio.wait_for(_wait_for_url(server), seconds)
        except TimeoutError:
            raise JudgeUnavailable(
                f"llama.cpp's server for {self.model} did not start within {seconds:.0f} s"
            ) from None

    def _key(self) -> None:
        return None  # the server's own, which the transport knows

    async def _connect(self, key: str | None) -> Line:
        if not self._replays():
            self.check_machine()
        return await super()._connect(key)
