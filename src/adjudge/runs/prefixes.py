"""How much of what judges read begins like something that they have read before.

A server with a prefix cache reads an equal beginning once. So the least that it must read of some
prompts is the size of the tree of their beginnings.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.text import encode_json


class PromptTree:
    """The prompts that a judge has read, and how much of each is new.

    >>> tree = PromptTree()
    >>> [tree.add([{"role": "user", "content": 400 * "a" + end}]) > 0.5 for end in ("b", "c")]
    [True, False]
    """

    def __init__(self) -> None:
        self._prompts: list[bytes] = []

    def add(self, messages: Sequence[Mapping[str, Any]]) -> float:
        """Add a prompt; the share of its bytes that is the beginning of no earlier one."""
        prompt = b"\n".join(encode_json(message, repr) for message in messages)
        place = bisect(self._prompts, prompt)
        known = max(
            (_count_equal(prompt, one) for one in self._prompts[max(place - 1, 0) : place + 1]),
            default=0,
        )
        self._prompts.insert(place, prompt)
        return 1.0 - known / len(prompt)

    def clear(self) -> None:
        """Forget all prompts."""
        self._prompts.clear()


def _count_equal(one: bytes, other: bytes) -> int:
    """How many first bytes are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
