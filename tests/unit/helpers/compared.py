"""What a judge sees of responses that are compared, and the failure of a comparison."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from adjudge.errors import GradingFailure

Messages = Sequence[Mapping[str, Any]]
_SHOWN = re.compile(r"<response_(\w+)-([0-9a-f]{16})>\n(.*?)\n</response_\1-\2>", re.DOTALL)


def shown(messages: Messages) -> dict[str, str]:
    """The responses by the names that a judge sees (a and b, or 1, 2, …), in the order shown."""
    return {name: text for name, _, text in _SHOWN.findall(messages[-1]["content"])}


def grade(grader: Any, **fields: Any) -> Any:
    """One answer about responses to one question."""
    return asyncio.run(grader.aevaluate(**{"query": "Say something.", **fields}))


def failed(grader: Any, **fields: Any) -> GradingFailure:
    """Why there is no answer."""
    with pytest.raises(GradingFailure) as caught:
        grade(grader, **fields)
    return caught.value
