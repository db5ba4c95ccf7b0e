"""Event streams, as the standard says and as servers write them."""

from __future__ import annotations

import pytest

from adjudge.judges.wire.openai import is_event_stream, parse_events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_endings(end: bytes) -> None:
    body = b"data: a" + end + end + b"data: b" + end + end
    assert list(parse_events(body)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", []),
        (b"\n\n\n\n", []),
        (b": ping\n\n", []),
        (b"event: message\nid: 7\nretry: 10\ndata: x\n\n", [b"x"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data:no space\n\n", [b"no space"]),
        (b"data:  two spaces\n\n", [b" two spaces"]),
        (b"data\n\n", []),
        (b"database: x\n\n", []),
        (b"\xef\xbb\xbfdata: bom\n\n", [b"bom"]),
        (b"event: ping\n\ndata: x\n\n", [b"x"]),
        (b"data: \n\n", [b""]),
    ],
)
def test_fields(body: bytes, found: list[bytes]) -> None:
    assert list(parse_events(body)) == found


def test_an_unfinished_event_counts_only_at_a_proper_end() -> None:
    assert list(parse_events(b"data: a\n\ndata: [DONE]")) == [b"a", b"[DONE]"]
    assert list(parse_events(b'data: a\n\ndata: {"x"', cut=True)) == [b"a"]
    assert list(parse_events(b"data: a\n\n", cut=True)) == [b"a"]


def test_streams_are_told_from_other_bodies() -> None:
    assert is_event_stream(b"data: {}", "")
    assert is_event_stream(b"\n: hello\n\n", "application/json")
    assert is_event_stream(b"", "text/event-stream; charset=utf-8")
    assert not is_event_stream(b'{"data:": 1}', "text/event-stream")
    assert not is_event_stream(b"<html>data: x", "text/html")
