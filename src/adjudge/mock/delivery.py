"""How a response reaches the client: in which parts, when, and how it ends."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from adjudge.mock.faults import Fault
from adjudge.mock.http import LAST_CHUNK, chunk, response, stream_head

__all__ = ["End", "Script", "deliver_body", "deliver_events", "middle_of"]

_PIECES = 20
_RESET_AFTER_S = 0.005  # so that the client sees the first half before the reset


class End(IntEnum):
    """What becomes of the connection after the last part."""

    KEEP = 0
    CLOSE = 1
    RESET = 2
    HANG = 3


class Script(msgspec.Struct, gc=False):
    """Parts, each with the seconds to wait before it, and the end.

    ``sound`` when nothing was done to the reply.
    """

    steps: list[tuple[float, bytes]]
    end: End = End.KEEP
    sound: bool = False


def deliver_body(
    status: int, content_type: bytes, body: bytes, extra: bytes, fault: Fault | None, wait: float
) -> Script:
    """A whole body after ``wait`` seconds, or what ``fault`` leaves of it."""
    whole = response(status, body, content_type, extra)
    if fault is None:
        return Script([(wait, whole)], sound=True)
    if fault.name == "duplicate-response":
        return Script([(wait, whole + whole)])
    head_size = len(whole) - len(body)
    size = max(1, -(-len(body) // _PIECES))
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    middle = len(pieces) // 2
    if (broken := _broken(whole[:head_size], pieces, middle, fault, wait)) is not None:
        return broken
    return Script([(wait, whole)])


def deliver_events(
    events: list[bytes], extra: bytes, fault: Fault | None, wait: float, gap: float
) -> Script:
    """A stream: the first event after ``wait`` seconds, each further one ``gap`` later."""
    head = stream_head(extra)
    pieces = [chunk(event) for event in events]
    pieces.append(LAST_CHUNK)
    if fault is not None:
        if fault.name == "duplicate-response":
            return Script([(wait, (head + b"".join(pieces)) * 2)])
        if (broken := _broken(head, pieces, middle_of(events), fault, wait)) is not None:
            return broken
    if not gap:
        return Script([(wait, head + b"".join(pieces))], sound=fault is None)
    end = pieces.pop()
    pieces[-1] += end
    steps = [(wait, head + pieces[0])] + [(gap, piece) for piece in pieces[1:]]
    return Script(steps, sound=fault is None)


def middle_of(events: list[bytes]) -> int:
    """How many events make the first half of a stream; never those that tell of its end."""
    return max(1, (len(events) - 3) // 2)


def _broken(
    head: bytes, pieces: list[bytes], middle: int, fault: Fault, wait: float
) -> Script | None:
    """The script of a fault of the connection, or ``None`` for another fault."""
    name, value = fault.name, fault.value
    if name == "reset-before":
        return Script([(wait, b"")], End.RESET)
    if name == "hang":
        if value is None:
            return Script([], End.HANG)
        return Script([(wait + value, head + b"".join(pieces))])
    if name == "drip":
        gap = (value or 0.0) / max(1, len(pieces))
        return Script([(wait, head)] + [(gap, piece) for piece in pieces])
    ends = {"reset": End.RESET, "close": End.CLOSE, "stall": End.HANG}
    if name not in ends:
        return None
    half = (wait, head + b"".join(pieces[:middle]))
    rest = [(_RESET_AFTER_S, b"")] if name == "reset" else []
    return Script([half, *rest], ends[name])
