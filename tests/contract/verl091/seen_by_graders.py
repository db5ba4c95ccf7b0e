"""A tool, a loop of a user's own and a grader that notes what it sees: :mod:`test_tool_loop`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY, function_tool

from adjudge.graders import BaseGrader
from adjudge.types import GraderScore


def look(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return word


if "look" not in FUNCTION_TOOL_REGISTRY:  # verl runs this file beside importing it
    function_tool(look)


class OwnToolLoop(ToolAgentLoop):  # type: ignore[misc]  # verl has no types
    """A loop that a user derived from verl's and that keeps its messages to itself."""


def _note(path: str, seen: dict[str, Any]) -> None:
    with Path(path).open("a") as file:
        file.write(json.dumps(seen) + "\n")


class NotingGrader(BaseGrader):
    """1.0; a line of what it saw goes to the file at ``path``."""

    score_range = (0.0, 1.0)

    def __init__(self, path: str, name: str = "") -> None:
        super().__init__(name)
        self.path = path

    async def aevaluate(
        self, response: str, messages: list[dict[str, Any]], tools: Any = None
    ) -> GraderScore:
        seen = {"response": response, "messages": messages, "tools": tools}
        _note(self.path, seen)
        return GraderScore(self.name, float(messages[-1]["content"] == "good"), "noted")
