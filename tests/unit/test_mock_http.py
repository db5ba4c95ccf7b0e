"""Bytes in, requests out: the mock provider's HTTP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.mock.http import (
    MAX_BODY_SIZE,
    MAX_HEAD_SIZE,
    BadRequest,
    HttpRequestMessage,
    RequestParser,
    format_chunk,
)


def post(body: bytes, target: str = "/v1/chat/completions", *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    head = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(map(format_chunk, pieces)) + b"0\r\n" + trailer + b"\r\n"


def requests_in(parts: list[bytes]) -> list[HttpRequestMessage]:
    parser = RequestParser()
    found = []
    for part in parts:
        parser.feed(part)
        while (request := parser.next()) is not None:
            found.append(request)
    assert parser.buffered == 0
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]


@given(
    bodies=st.lists(st.tuples(st.booleans(), st.binary(max_size=40)), min_size=1, max_size=5),
    places=st.lists(st.integers(0, 2000), max_size=12),
)
def test_however_the_bytes_arrive_the_same_requests_come_out(
    bodies: list[tuple[bool, bytes]], places: list[int]
) -> None:
    sent = [
        chunked(*(p for p in (body[:7], body[7:]) if p)) if in_chunks else post(body)
        for in_chunks, body in bodies
    ]
    found = requests_in(cut(b"".join(sent), places))
    assert [request.body for request in found] == [body for _, body in bodies]
    assert [request.head.target for request in found] == [
        b"/c" if in_chunks else b"/v1/chat/completions" for in_chunks, _ in bodies
    ]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413),
        (f"POST / HTTP/1.1\r\nContent-Length: {MAX_BODY_SIZE + 1}\r\n\r\n".encode(), 413),
        (b"G" * (MAX_HEAD_SIZE + 1), 431),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int) -> None:
    parser = RequestParser()
    parser.feed(data)
    with pytest.raises(BadRequest) as caught:
        parser.next()
    assert caught.value.status == status
