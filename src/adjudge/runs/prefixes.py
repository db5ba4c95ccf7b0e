"""How much of what judges read begins like something that they have read before.

A server with a prefix cache reads an equal beginning once. So the least that it must read of some
prompts is the size of the tree of their beginnings.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.text import encode_json

_MOST_BYTES = 1 << 26
"""Of prompts that are held; then all are forgotten, and a beginning that comes again is new."""


class PromptTree:
    """The prompts that a judge has read, and how much of each is new.

    >>> tree = PromptTree()
    >>> [tree.add([{"role": "user", "content": 400 * "a" + end}]) > 0.5 for end in ("b", "c")]
    [True, False]
    """

    def __init__(self) -> None:
        self._prompts, self._bytes = list[bytes](), 0

    def add(self, messages: Sequence[Mapping[str, Any]]) -> float:
        """Add a prompt; the share of its bytes that is the beginning of no earlier one."""
        prompt = b"\n".join(encode_json(message, repr) for message in messages)
        place = bisect(self._prompts, prompt)
        known = max(
            (_count_equal(prompt, one) for one in self._prompts[max(place - 1, 0) : place + 1]),
            default=0,
        )
        self._prompts.insert(place, prompt)
        self._bytes += len(prompt)
        if self._bytes > _MOST_BYTES:
            self.clear()
        return 1.0 - known / max(len(prompt), 1)

    def clear(self) -> None:
        """Forget all prompts."""
        self._prompts.clear()
        self._bytes = 0


def _count_equal(one: bytes, other: bytes) -> int:
    """How many first bytes are equal."""
    both = range(min(len(one), len(other)))
    return bisect_left(both, True, key=lambda at: one[: at + 1] != other[: at + 1])
