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
    format_response,
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


def test_byte_by_byte_with_trailers_and_extensions() -> None:
    data = chunked(b"abc", trailer=b"X-Sum: 1\r\n").replace(b"3\r\n", b"3;name=value\r\n")
    found = requests_in([data[i : i + 1] for i in range(len(data))])
    assert [request.body for request in found] == [b"abc"]


def test_headers_are_found_whatever_their_capitals() -> None:
    (request,) = requests_in([post(b"", "/x", "X-API-Key:  Secret ")])
    assert request.head.header(b"x-api-key") == b"Secret"
    assert request.head.header(b"authorization") is None
    assert request.head.method == b"POST"


@pytest.mark.parametrize(
    ("version", "header", "kept"),
    [
        ("1.1", "A: b", True),
        ("1.1", "Connection: Close", False),
        ("1.0", "A: b", False),
        ("1.0", "Connection: Keep-Alive", True),
    ],
)
def test_keep_alive(version: str, header: str, kept: bool) -> None:
    (request,) = requests_in([f"GET / HTTP/{version}\r\n{header}\r\n\r\n".encode()])
    assert request.head.keep_alive is kept


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


def test_a_client_that_waits_is_told_to_continue() -> None:
    parser = RequestParser()
    parser.feed(post(b"abc", "/x", "Expect: 100-continue")[:-3])
    assert parser.next() is None
    assert parser.wants_continue
    parser.feed(b"abc")
    found = parser.next()
    assert found is not None
    assert found.body == b"abc"


def test_a_response_says_its_length() -> None:
    whole = format_response(529, b"{}", extra=b"retry-after: 1\r\n")
    assert whole.startswith(b"HTTP/1.1 529 Overloaded\r\n")
    assert whole.endswith(b"retry-after: 1\r\ncontent-length: 2\r\n\r\n{}")
