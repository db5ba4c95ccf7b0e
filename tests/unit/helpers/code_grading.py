"""Code in a reply, and how it fares against its tests."""

import asyncio
from typing import Any

import pytest

from adjudge.graders.code.grader import CodeExecutionGrader
from adjudge.types import GraderScore

needs_sandbox = pytest.mark.usefixtures("sandboxed")


def block(code: str, language: str = "python") -> str:
    return f"Here it is:\n```{language}\n{code}\n```\nDone."


def execute(code: str, test_cases: Any, function: Any = None, **parameters: Any) -> GraderScore:
    grader = CodeExecutionGrader(**parameters)
    return asyncio.run(grader.aevaluate(block(code), test_cases, function=function))


def outcomes(score: GraderScore) -> list[str]:
    return list(score.metadata["outcomes"])
