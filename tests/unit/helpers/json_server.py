"""A server over real HTTP that answers JSON requests by a function, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.judges.endpoint.connections import aclose_all

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""Status and JSON, or the text of an event stream, for a path and a body."""


class JsonServer(ThreadingHTTPServer):
    """Answers by ``behaviour``; ``clients`` are the connections that it had."""

    daemon_threads = True

    def __init__(self, behaviour: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.behaviour = behaviour
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.clients: set[Any] = set()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Of all requests."""
        return [body for _, body in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JsonServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body))
        self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        self.server.clients.add(self.client_address)
        status, reply = self.server.behaviour(self.path, body)
        data = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        self.send_response(status)
        if isinstance(reply, str):
            self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def serving(behaviour: Answer) -> Iterator[JsonServer]:
    """A server that runs meanwhile; connections to it are closed before it ends."""
    server = JsonServer(behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        run_blocking(aclose_all())
        server.shutdown()
        thread.join()
        server.server_close()
