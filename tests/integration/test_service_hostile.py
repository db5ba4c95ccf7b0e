"""Hostile requests, byte by byte, against a real process: each has its answer, or is closed.

And then the service still judges: that is asked after every one of them.
"""

import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from adjudge.service.server import RunningService, start_service_process

pytestmark = pytest.mark.slow

BACKEND = str(Path(__file__).with_name("service_backend.py"))
KEY = "correct-horse-battery"
AUTH = f"authorization: Bearer {KEY}\r\n"
GOOD = json.dumps({"prompt": "p", "completion": "4", "answer": "4"}).encode()
SETTINGS = {"port": 0, "max_body_mb": 0.2}

Send = Callable[[socket.socket], None]


@contextmanager
def started(
    settings: dict[str, Any], *words: str, shell: Sequence[str] = ()
) -> Iterator[RunningService]:
    chosen = msgspec.json.encode(settings).decode()
    command = [*shell, sys.executable, BACKEND, chosen, *words]
    with (
        mock.patch.dict(os.environ, {"JUDGE_MODEL_API_KEY": KEY}),
        start_service_process(command) as (running, _),
    ):
        yield running


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with started(SETTINGS, "impatient") as running:
        yield running


def request(body: bytes, *, path: str = "/judge", method: str = "POST", head: str = AUTH) -> bytes:
    line = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {len(body)}\r\n\r\n"
    )
    return line.encode() + body


def with_head(head: str) -> bytes:
    return f"POST /judge HTTP/1.1\r\nhost: localhost\r\n{AUTH}{head}\r\n".encode()


def judged(**fields: object) -> bytes:
    return request(json.dumps({"prompt": "p", "completion": "c", **fields}).encode())


def nested(depth: int, key: str = "metadata") -> bytes:
    inside = b'{"a":' * depth + b"1" + b"}" * depth
    return request(b'{"prompt":"p","completion":"c","%b":%b}' % (key.encode(), inside))


def answer(port: int, *pieces: bytes, pause: float = 0.0) -> tuple[int | None, bytes]:
    """The status and body of the first answer; ``None`` when the connection just closes."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        try:
            for piece in pieces:
                line.sendall(piece)
                time.sleep(pause)
        except OSError:  # it closed while we were sending, as it may
            pass
        try:
            while not whole(received) and (data := line.recv(65536)):
                received += data
        except ConnectionResetError:
            pass
    if not received:
        return None, b""
    return int(received.split(b" ", 2)[1]), received.partition(b"\r\n\r\n")[2]


def whole(received: bytes) -> bool:
    head, blank, body = received.partition(b"\r\n\r\n")
    if not blank:
        return False
    lines = dict(one.split(b": ", 1) for one in head.lower().split(b"\r\n")[1:])
    return len(body) >= int(lines.get(b"content-length", b"0"))


CHUNK = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
CHUNKED = with_head("transfer-encoding: chunked\r\n")
BATCH = "/batch_judge"

KINDS = {
    **dict.fromkeys((400, 413, 422, 431), "invalid_input"),
    401: "auth",
    404: "unsupported",
    405: "unsupported",
    408: "timeout",
}
HOSTILE: dict[str, tuple[int | None, tuple[bytes, ...]]] = {
    # Bodies
    "no JSON": (400, (request(b"hello"),)),
    "an empty body": (400, (request(b""),)),
    "cut JSON": (400, (request(GOOD[:-3]),)),
    "JSON and more": (400, (request(GOOD + b"{}"),)),
    "a byte order mark": (400, (request(b"\xef\xbb\xbf" + GOOD),)),
    "bad UTF-8": (400, (request(GOOD.replace(b"4", b"\xff")),)),
    "a lone surrogate": (400, (request(GOOD.replace(b"4", b"\\ud800")),)),
    "NaN": (400, (request(b'{"prompt":"p","completion":"c","answer":NaN}'),)),
    "Infinity": (400, (request(GOOD.replace(b'"4"', b"-Infinity")),)),
    "a number too large": (422, (request(GOOD.replace(b'"4"', b"1e999")),)),
    "deep metadata": (400, (nested(65),)),
    "very deep metadata": (400, (nested(600),)),
    "a deep unknown field": (413, (nested(20_000, "other"),)),
    "deep enough": (200, (nested(60),)),
    "two hosts": (400, (with_head("host: a.example\r\ncontent-length: 2\r\n"),)),
    "garbage behind a request": (400, (request(GOOD) + b"\0garbage\r\n\r\n",)),
    "garbage behind two": (400, (request(GOOD) * 2 + b"GET / HTTP/9.9\r\n\r\n",)),
    "a list": (422, (request(b"[]"),)),
    "no completion": (422, (request(b'{"prompt": "p"}'),)),
    "a wrong type": (422, (judged(answer_type=7),)),
    "an image by address": (422, (judged(images=["http://10.0.0.1/x.png"]),)),
    "an image from a file": (422, (judged(images=["file:///etc/passwd"]),)),
    "an image with a quote": (422, (judged(images=["QUJD'"]),)),
    "an image too large": (413, (judged(images=["QUJD" * 40_000]),)),
    "a small image": (200, (judged(images=["iVBORw0KGgo="]),)),
    "a body too large": (413, (request(b"x" * 300_000),)),
    "a body said too large": (413, (with_head("content-length: 99999999999\r\n"),)),
    "chunks too large": (413, (CHUNKED, *[CHUNK] * 8)),
    "an empty batch": (422, (request(b'{"requests": []}', path=BATCH),)),
    "a long batch": (422, (request(b'{"requests": [%b]}' % b",".join([GOOD] * 129), path=BATCH),)),
    "a broken item": (422, (request(b'{"requests": [%b, {"prompt": 1}]}' % GOOD, path=BATCH),)),
    "a group nobody knows": (
        422,
        (
            request(
                b'{"prompt":"p","completion":"c","group_id":"g","group_size":2}',
                path="/group_judge",
            ),
        ),
    ),
    # Keys
    "no key": (401, (request(GOOD, head=""),)),
    "a wrong key": (401, (request(GOOD, head="authorization: Bearer wrong\r\n"),)),
    "an empty key": (401, (request(GOOD, head="authorization: Bearer \r\n"),)),
    "a key of bytes": (401, (request(GOOD, head="authorization: Bearer \xff\r\n"),)),
    "another scheme": (401, (request(GOOD, head=f"authorization: Basic {KEY}\r\n"),)),
    "a key in the path": (401, (request(GOOD, head="", path=f"/judge?key={KEY}"),)),
    "numbers without a key": (401, (request(b"", method="GET", path="/metrics", head=""),)),
    # Methods and paths
    "a wrong method": (405, (request(b"", method="GET"),)),
    "a wrong method elsewhere": (405, (request(b"", path="/health"),)),
    "no such path": (404, (request(GOOD, path="/judge/../etc/passwd"),)),
    "a path in bytes": (400, (request(GOOD).replace(b"/judge", b"/\xff\xfe"),)),
    "an unknown method": (400, (request(GOOD, method="JUDGE"),)),
    "an upgrade": (  # what follows is no longer HTTP/1.1, so there is no body
        400,
        (request(GOOD, head=AUTH + "connection: upgrade\r\nupgrade: nothing\r\n"),),
    ),
    # HTTP itself
    "no HTTP": (400, (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,)),
    "two lengths": (
        400,
        (with_head(f"content-length: {len(GOOD)}\r\ncontent-length: 5\r\n") + GOOD,),
    ),
    "a length and chunks": (
        400,
        (with_head("content-length: 5\r\ntransfer-encoding: chunked\r\n") + b"0\r\n\r\n",),
    ),
    "a negative length": (400, (with_head("content-length: -1\r\n"),)),
    "a length in words": (400, (with_head("content-length: five\r\n"),)),
    "a broken chunk": (400, (CHUNKED + b"zz\r\nhello\r\n",)),
    "a folded header": (400, (with_head("x-a: 1\r\n 2\r\n"),)),
    "a header flood": (431, (with_head("x-a: 1\r\n" * 20_000),)),
    "many small headers": (431, (with_head("a: 1\r\n" * 200),)),
    "a long header": (431, (with_head(f"x-a: {'1' * 100_000}\r\n"),)),
    "a header without an end": (431, (b"POST /judge HTTP/1.1\r\nx-a: ", *[b"1" * 8192] * 8)),
    "a long path": (431, (request(GOOD, path="/" + "a" * 100_000),)),
    # Taking one's time
    "nothing at all": (None, ()),
    "empty lines": (None, (b"\r\n",)),
    "half a head": (408, (b"POST /judge HT",)),
    "half a body": (408, (with_head("content-length: 100\r\n") + GOOD,)),
    "half a chunk": (408, (CHUNKED + b"20\r\n{",)),
    "no body for a wrong key": (
        401,
        (b"POST /judge HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n",),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_gets_its_answer(service: RunningService, name: str) -> None:
    status, pieces = HOSTILE[name]
    found, body = answer(service.port, *pieces)
    assert found == status, body
    if status in KINDS:
        error = json.loads(body)["error"]
        unknown = name == "a group nobody knows"
        assert error["kind"] == ("unsupported" if unknown else KINDS[status])
        assert error["message"]
        assert KEY.encode() not in body
    assert answer(service.port, request(GOOD))[0] == 200


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"POST /judge HTTP/1.1\r\n", b"x-a: 1\r\n"),
        (with_head("content-length: 1000\r\n"), b" "),
        (CHUNKED, b"1\r\n \r\n"),
        (CHUNKED + b"1\r\n \r\n0\r\n", b"x-trailer: 1\r\n"),
        (b"", b"\r\n"),
    ],
)
def test_a_slow_sender_is_not_waited_for(
    service: RunningService, first: bytes, rest: bytes
) -> None:
    found, _ = answer(service.port, first, *[rest] * 60, pause=0.1)
    assert found in {408, None}
    assert answer(service.port, request(GOOD))[0] == 200


def test_a_bad_item_is_named(service: RunningService) -> None:
    _, body = answer(service.port, HOSTILE["a broken item"][1][0])
    assert "$.requests[1].prompt" in json.loads(body)["error"]["message"]


def test_what_is_refused_leaves_no_trace_in_the_log(tmp_path: Path) -> None:
    shell = ["sh", "-c", f'exec "$@" 2> {tmp_path / "log"}', "sh"]
    with started(SETTINGS, shell=shell) as running:
        for name in ("two hosts", "garbage behind a request", "garbage behind two"):
            answer(running.port, *HOSTILE[name][1])
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_pipelined_requests_are_answered_in_order(service: RunningService) -> None:
    def numbered(number: int) -> bytes:
        return request(json.dumps({**json.loads(GOOD), "request_id": str(number)}).encode())

    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as line:
        line.sendall(b"".join(map(numbered, range(20))))
        received = b""
        while received.count(b"HTTP/1.1 200") < 20 or not received.endswith(b"}}"):
            data = line.recv(65536)
            assert data, received
            received += data
    ids = [part.split(b'"')[0] for part in received.split(b'"request_id":"')[1:]]
    assert ids == [str(number).encode() for number in range(20)]


def test_a_client_that_expects_to_be_asked_for_its_body_is_asked(service: RunningService) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as line:
        line.sendall(with_head(f"expect: 100-continue\r\ncontent-length: {len(GOOD)}\r\n"))
        assert line.recv(100).startswith(b"HTTP/1.1 100 Continue")
        line.sendall(GOOD)
        assert line.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_sends_all_before_it_reads_gets_the_refusal(service: RunningService) -> None:
    """Clients with batches too large must see 413, or they cannot send smaller ones."""
    head = {"authorization": f"Bearer {KEY}"}
    big = urllib.request.Request(f"{service.url}/judge", b"x" * 20_000_000, head)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(big, timeout=20)
    with refused.value as response:
        assert response.code == 413


def test_blank_lines_behind_a_request_do_not_cut_its_answer_off(service: RunningService) -> None:
    """Some clients end a body with a line break; the judge may take longer than a request may."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as line:
        line.sendall(judged(completion="slow for long"))
        time.sleep(0.1)
        line.sendall(b"\r\n")
        assert line.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_hundred_silent_connections_keep_nobody_out(service: RunningService) -> None:
    silent = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(100)]
    try:
        assert answer(service.port, request(GOOD))[0] == 200
        for one in silent:
            one.settimeout(20)
            assert one.recv(1) == b""  # closed by the service
    finally:
        for one in silent:
            one.close()


def filled(before: bytes, unit: bytes, after: bytes, *, most: int = 16_000_000) -> bytes:
    """A body of so many bytes at most, as many units in it as there is room for."""
    room = most - len(before) - len(after)
    return before + b",".join([unit] * (room // (len(unit) + 1))) + after


SAMPLE = b'{"prompt":"p","completion":"c",'
ROW = b'{"responses_create_params":{"input":[]},"response":{"output":['
MANY = {
    "lists": ("/judge", SAMPLE + b'"metadata":{"a":[', b"[]", b"]}}"),
    "objects": ("/judge", SAMPLE + b'"metadata":{"a":[', b"{}", b"]}}"),
    "numbers": ("/judge", SAMPLE + b'"metadata":{"a":[', b"1", b"]}}"),
    "messages": ("/judge", SAMPLE + b'"messages":[', b"{}", b"]}"),
    "images": ("/judge", SAMPLE + b'"images":[', b'"AAAA"', b"]}"),
    "lists in a batch": (
        "/batch_judge",
        b'{"requests":[' + SAMPLE + b'"metadata":{"a":[',
        b"[[]]",
        b"]}}]}",
    ),
    "fields of a trainer's row": ("/verify", ROW + b']},"x":[', b"[]", b"]}"),
    "items of a trainer's row": ("/verify", ROW, b"{}", b"]}}"),
}


@pytest.fixture(scope="module")
def roomy() -> Iterator[RunningService]:
    """With the sizes that a service has by default."""
    with started({"port": 0}) as running:
        yield running


@pytest.mark.parametrize("name", MANY)
def test_nobody_waits_while_a_body_of_millions_of_values_is_refused(
    roomy: RunningService, name: str
) -> None:
    path, *parts = MANY[name]
    body = filled(*parts)
    healthy, done = 0, threading.Event()

    def ask_health() -> None:
        nonlocal healthy
        while not done.is_set():
            found, _ = answer(roomy.port, request(b"", method="GET", path="/health"))
            healthy += found == 200

    asking = threading.Thread(target=ask_health)
    asking.start()
    try:
        found, reply = answer(roomy.port, request(body, path=path))
    finally:
        done.set()
        meanwhile = healthy
        asking.join()
    assert meanwhile >= 2  # measured: 21 to 26
    assert found == 413
    error = json.loads(reply)["error"]
    assert error["kind"] == "invalid_input"
    assert "more values" in error["message"]  # so it was never decoded
    assert answer(roomy.port, request(GOOD))[0] == 200
