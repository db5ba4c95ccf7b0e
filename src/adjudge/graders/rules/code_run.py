"""Runs a candidate against test cases in the sandbox and says what came of each."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from adjudge.engine.sandbox import Sandbox, SandboxResult
from adjudge.graders.rules.code_cases import Case, same_text, same_value
from adjudge.graders.rules.code_driver import CANDIDATE
from adjudge.graders.rules.text import shown

__all__ = ["Budget", "Outcome", "run_cases"]

_OUTPUT_LIMIT = 1 << 20

# A function of its own keeps this file's names out of the candidate's.
_STDIO_DRIVER = f"""
def run():
    import builtins, sys
    builtins.exit = builtins.quit = sys.exit
    with open({CANDIDATE!r}, "rb") as file:
        code = compile(file.read(), {CANDIDATE!r}, "exec")
    del globals()["run"]
    exec(code, globals())
run()
"""

# One queue for all graders: programs at a time are bounded by the machine, not by the spec.
_sandbox = Sandbox()


@dataclass(frozen=True)
class Budget:
    """Wall-clock seconds for all tests of a sample and for each; address space in MB."""

    deadline_s: float
    test_deadline_s: float
    memory_mb: int
    tolerance: float


@dataclass(frozen=True)
class Outcome:
    """What came of one test; ``text`` is ``passed`` or why not."""

    passed: bool
    text: str
    stderr: str = ""


async def run_cases(
    source: str, cases: Sequence[Case], budget: Budget, *, stop_early: bool
) -> list[Outcome]:
    """One outcome per case. With ``stop_early`` nothing runs after the first failure.

    Programs on standard input run once per case. Calls share a process as long as it answers:
    what a process that ended early left open runs again in a new one, and the case that was first
    in it has failed. So each case gets ``test_deadline_s`` of its own before it fails for time.
    Raises ``GradingFailure(unsupported)`` where there is no sandbox.
    """
    outcomes: dict[int, Outcome] = {}
    left_s = budget.deadline_s
    reason = ""
    while pending := [index for index in range(len(cases)) if index not in outcomes]:
        if left_s <= 0:
            reason = f"not run: the sample's {budget.deadline_s:g} s were used up"
        elif stop_early and not all(outcome.passed for outcome in outcomes.values()):
            reason = "not run: an earlier test failed"
        if reason:
            break
        batch = pending[:1] if cases[pending[0]].kind == "stdio" else _calls(cases, pending)
        deadline_s = min(left_s, budget.test_deadline_s)
        used_s, news = await _run_batch(source, cases, batch, deadline_s, budget)
        outcomes |= news
        left_s -= used_s
    return [outcomes.get(index, Outcome(False, reason)) for index in range(len(cases))]


def _calls(cases: Sequence[Case], pending: list[int]) -> list[int]:
    return [index for index in pending if cases[index].kind != "stdio"]


async def _run_batch(
    source: str, cases: Sequence[Case], batch: list[int], deadline_s: float, budget: Budget
) -> tuple[float, dict[int, Outcome]]:
    """Seconds used, and the outcome of at least the first case of ``batch``."""
    first = cases[batch[0]]
    stdio = first.kind == "stdio"
    tokens = {index: secrets.token_hex(16) for index in batch if cases[index].kind == "opaque"}
    result = await _sandbox.run(
        _STDIO_DRIVER if stdio else _driver(),
        stdin=first.request if stdio else _payload(cases, batch, tokens),
        deadline_s=deadline_s,
        memory_mb=budget.memory_mb,
        output_limit_bytes=_OUTPUT_LIMIT + (2 * len(first.expected) if stdio else 0),
        files={CANDIDATE: source},
    )
    if stdio:
        return result.duration_s, {batch[0]: _judge_output(first, result, deadline_s)}
    outcomes, stderr = {}, _stderr(result)
    for index, kind, value in _reports(result.stdout):
        if index in batch and index not in outcomes:
            token = tokens.get(index, "")
            outcome = _judge_report(cases[index], kind, value, token, budget.tolerance)
            outcomes[index] = outcome if outcome.passed else replace(outcome, stderr=stderr)
    if batch[0] not in outcomes:
        outcomes[batch[0]] = _unfinished(result, deadline_s)
    return result.duration_s, outcomes


@functools.cache
def _driver() -> str:
    folder = resources.files("adjudge.graders.rules")
    return folder.joinpath("code_driver.py").read_text(encoding="utf-8")


def _payload(cases: Sequence[Case], batch: list[int], tokens: dict[int, str]) -> bytes:
    requests = [
        {**cases[index].request, "index": index, "secret": tokens.get(index, "")} for index in batch
    ]
    return json.dumps({"cases": requests}).encode()


def _reports(stdout: bytes) -> list[tuple[int, str, Any]]:
    """The driver's lines; what is not one is noise from a candidate that found the channel."""
    found = []
    for line in stdout.splitlines():
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(report, list) and len(report) == 3 and type(report[0]) is int:
            found.append((report[0], str(report[1]), report[2]))
    return found


def _judge_report(case: Case, kind: str, value: Any, token: str, tolerance: float) -> Outcome:
    if kind == "error":
        return Outcome(False, shown(value))
    if case.kind == "opaque":
        good = kind == "passed" and value == token
        return Outcome(good, "passed" if good else "the test's report was forged")
    if kind != "value":
        return Outcome(False, "the test's report was forged")
    if case.kind == "text":
        good = isinstance(value, str) and value.strip() == case.expected.strip()
    else:
        as_json = case.kind == "json"
        allowed = tolerance if as_json else 0.0
        good = same_value(value, case.expected, as_json=as_json, tolerance=allowed)
    return Outcome(good, "passed" if good else "wrong answer")


def _judge_output(case: Case, result: SandboxResult, deadline_s: float) -> Outcome:
    if result.timed_out or result.truncated or result.exit_code != 0:
        return _unfinished(result, deadline_s)
    good = same_text(result.stdout.decode("utf-8", "replace"), case.expected)
    return Outcome(good, "passed" if good else "wrong answer", _stderr(result))


def _unfinished(result: SandboxResult, deadline_s: float) -> Outcome:
    stderr = _stderr(result)
    if result.timed_out:
        return Outcome(False, f"timed out after {deadline_s:.3g} s", stderr)
    if result.truncated:
        return Outcome(False, "printed more than the output limit", stderr)
    last = stderr.rpartition("\n")[2] or "no message"
    return Outcome(False, shown(f"ended with exit code {result.exit_code}: {last}"), stderr)


def _stderr(result: SandboxResult, limit: int = 2000) -> str:
    return result.stderr[-limit:].decode("utf-8", "replace").strip()
