"""A reply in the block that a prompt asks for where the judge honours no schemas."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_BLOCK = re.compile(r"<(verdict-[0-9a-f]{16})>")


def in_block(messages: Sequence[Mapping[str, Any]], text: str) -> str:
    """``text`` in the block that the last of ``messages`` names, which is its last tag."""
    asked = [found for one in messages for found in _BLOCK.findall(str(one["content"]))]
    return f"<{asked[-1]}>\n{text}\n</{asked[-1]}>"
