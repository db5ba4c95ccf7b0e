"""Server-sent events: the bodies of streamed replies, cut into their messages."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["DONE", "events", "looks_like_events"]

DONE = b"[DONE]"
"""What chat-completions servers send as the last message of a stream."""

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


def looks_like_events(body: bytes, content_type: str) -> bool:
    """Whether ``body`` is a stream of events, by its first field or by its content type."""
    if body.startswith(b"{"):
        return False
    return body.lstrip().startswith(_FIELDS) or content_type.startswith("text/event-stream")


def events(body: bytes, *, cut: bool = False) -> Iterator[bytes]:
    r"""The ``data`` of each event, in order; events without data (comments, pings) are left out.

    Lines may end in CRLF, LF or CR. Several data lines of one event are joined by a line feed. What
    follows the last blank line counts as an event unless the stream was ``cut``: then it may be
    half of one. Source: the event stream format of the HTML standard, section 9.2.

    >>> list(events(b': ping\n\ndata: {"a":1}\n\ndata: [DONE]'))
    [b'{"a":1}', b'[DONE]']
    """
    if b"\r" in body:
        body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    blocks = body.removeprefix(b"\xef\xbb\xbf").split(b"\n\n")
    if cut:
        blocks.pop()
    for block in blocks:
        if b"\n" not in block:
            if block.startswith(b"data:"):
                yield _value(block)
            continue
        data = [_value(line) for line in block.split(b"\n") if line.startswith(b"data:")]
        if data:
            yield b"\n".join(data)


def _value(line: bytes) -> bytes:
    """What follows ``data:`` and one optional space."""
    return line[6:] if line[5:6] == b" " else line[5:]
