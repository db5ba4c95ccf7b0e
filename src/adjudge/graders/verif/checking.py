"""Runs a row's checker functions in the sandbox and says what each of them found."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from adjudge.engine.sandbox import Sandbox, SandboxResult
from adjudge.errors import ErrorKind
from adjudge.graders.rules.text import shown
from adjudge.graders.verif.constraints import Rule

__all__ = ["Checked", "Limits", "check", "driver_source"]

_OUTPUT_LIMIT = 1 << 18

# One queue for all graders of this kind: the machine bounds programs at a time, not the spec.
_sandbox = Sandbox()


@dataclass(frozen=True)
class Limits:
    """Wall-clock seconds for all functions of a sample and for each; address space in MB."""

    deadline_s: float
    check_deadline_s: float
    memory_mb: int


@dataclass(frozen=True)
class Checked:
    """What a rule's function found: ``passed``, or ``None`` with the kind and the reason."""

    passed: bool | None
    kind: ErrorKind | None = None
    reason: str = ""


async def check(
    rules: Sequence[Rule], instruction: str, response: str, limits: Limits
) -> list[Checked]:
    """One outcome per rule, in order.

    The functions share a process as long as it answers: what a process that ended early left open
    runs again in a new one, and the function that was first in it has failed. So each gets
    ``check_deadline_s`` of its own before it fails for time. Functions of one row can reach each
    other's results; those of other rows run in other processes. Raises
    ``GradingFailure(unsupported)`` where there is no sandbox.
    """
    found: dict[int, Checked] = {}
    left_s = limits.deadline_s
    while pending := [place for place in range(len(rules)) if place not in found]:
        if left_s <= 0:
            late = f"not run: the sample's {limits.deadline_s:g} s were used up"
            return [found.get(at, Checked(None, ErrorKind.TIMEOUT, late)) for at in _all(rules)]
        deadline_s = min(left_s, limits.check_deadline_s)
        result = await _sandbox.run(
            driver_source(),
            stdin=_payload(rules, pending, instruction, response),
            deadline_s=deadline_s,
            memory_mb=limits.memory_mb,
            output_limit_bytes=_OUTPUT_LIMIT,
        )
        left_s -= result.duration_s
        for place, what, value in _reports(result.stdout):
            if place in pending and place not in found:
                found[place] = _judged(what, value)
        if pending[0] not in found:
            found[pending[0]] = _unfinished(result, deadline_s)
    return [found[place] for place in _all(rules)]


def _all(rules: Sequence[Rule]) -> range:
    return range(len(rules))


@functools.cache
def driver_source() -> str:
    """The program that runs in the sandbox."""
    folder = resources.files("adjudge.graders.verif")
    return folder.joinpath("driver.py").read_text(encoding="utf-8")


def _payload(
    rules: Sequence[Rule], pending: Sequence[int], instruction: str, response: str
) -> bytes:
    functions = [[place, rules[place].source] for place in pending]
    given = {"instruction": instruction, "response": response, "functions": functions}
    return json.dumps(given).encode()


def _reports(stdout: bytes) -> list[tuple[int, str, Any]]:
    """The driver's lines; what is not one is noise from a function that found the channel."""
    found = []
    for line in stdout.splitlines():
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(report, list) and len(report) == 3 and type(report[0]) is int:
            found.append((report[0], str(report[1]), report[2]))
    return found


def _judged(what: str, value: Any) -> Checked:
    if what == "value" and isinstance(value, bool):
        return Checked(value)
    if what == "error":
        return Checked(None, ErrorKind.INVALID_INPUT, f"raised {shown(value)}")
    return Checked(None, ErrorKind.INVALID_INPUT, f"returned {shown(value)}, not true or false")


def _unfinished(result: SandboxResult, deadline_s: float) -> Checked:
    if result.timed_out:
        return Checked(None, ErrorKind.TIMEOUT, f"timed out after {deadline_s:.3g} s")
    if result.truncated:
        return Checked(None, ErrorKind.INVALID_INPUT, "printed more than the output limit")
    last = result.stderr[-1000:].decode("utf-8", "replace").strip().rpartition("\n")[2]
    said = shown(last) if last else "no message"
    return Checked(
        None, ErrorKind.INVALID_INPUT, f"ended with exit code {result.exit_code}: {said}"
    )
