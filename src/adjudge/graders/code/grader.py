"""Does the code in a response do what its tests ask: cases run in the sandbox, and the grader.

What comes out is compared with what is expected, which never goes in there.
"""

from __future__ import annotations

import functools
import io
import json
import marshal
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field

from adjudge.errors import LACKED, CandidateLimitExceeded, Cause, ErrorKind, InvalidInput
from adjudge.graders.base import ParametricRule
from adjudge.graders.code.blocks import (
    NO_CODE,
    extract_solution,
    find_syntax_fault,
    require_code_text,
)
from adjudge.graders.code.bubblewrap import SandboxLimits, SandboxResult
from adjudge.graders.code.cases import (
    Case,
    UntrustedTests,
    called_names,
    make_beside_case,
    parse_cases,
)
from adjudge.graders.code.sandbox import Sandbox, check_sandbox
from adjudge.graders.code.values import CANDIDATE_FILE, CASES_FILE
from adjudge.text import shorten_text
from adjudge.types import GraderScore

_OUTPUT_LIMIT = 1 << 20
_DISK_MB = 16
_TOLERANCE = 1e-9
"""Of expected floats, relative and absolute."""

# A function of its own keeps this file's names out of the candidate's.
_STDIO_DRIVER = f"""
def run():
    import builtins, sys
    builtins.exit = builtins.quit = sys.exit
    sys.set_int_max_str_digits(0)
    with open({CANDIDATE_FILE!r}, "rb") as file:
        code = compile(file.read(), {CANDIDATE_FILE!r}, "exec")
    del globals()["run"]
    exec(code, globals())
run()
"""

# To compile a program would take the sandbox half as long as to start.
_PROGRAM = "program"
_START = f"import marshal\nexec(marshal.loads(open({_PROGRAM!r}, 'rb').read()))"

_RunReports = dict[int, "CaseOutcome | str"]
"""What a run tells: outcomes, or why a test must stand beside the code."""
_Run = Callable[
    [str, Sequence[Case], list[int], float], Awaitable[tuple[SandboxResult, _RunReports]]
]

# One queue for all graders: programs at a time are bounded by the machine, not by the spec.
_sandbox = Sandbox()


@dataclass(frozen=True)
class CaseOutcome:
    """What came of one test; ``text`` is ``passed`` or why not.

    ``trusted``: false where the test stood beside the code, which could have faked a pass.
    ``failure``: why there is no value: ``invalid_input`` (it raised, or ended) or ``timeout``.
    """

    passed: bool
    text: str
    stderr: str = ""
    trusted: bool = True
    failure: ErrorKind | None = None


async def run_cases(
    source: str,
    cases: Sequence[Case],
    total_s: float,
    test_deadline_s: float = 5.0,
    *,
    stop_early: bool,
    untrusted_tests: UntrustedTests,
) -> list[CaseOutcome]:
    """One outcome per case, within ``total_s``. ``stop_early``: nothing runs after a failure.

    Programs on standard input run once per case. Calls share a process as long as it answers, and
    so do tests a pair of processes: what ended early left the others open, they run again in a new
    one, and the case that was first in it has failed. So each case gets ``test_deadline_s`` of its
    own before it fails for time. Raises ``GradingFailure(unsupported)`` where there is no sandbox,
    and for a test that turns out to need the code's own objects, unless ``untrusted_tests``
    allows to run it beside the code.
    """
    cases = list(cases)
    outcomes: dict[int, CaseOutcome] = {}
    left_s = total_s
    rest = CaseOutcome(False, "")
    while pending := [index for index in range(len(cases)) if index not in outcomes]:
        if left_s <= 0:
            reason = f"not run: the sample's {total_s:g} s were used up"
            rest = CaseOutcome(False, reason, failure=ErrorKind.TIMEOUT)
        elif stop_early and not all(outcome.passed for outcome in outcomes.values()):
            rest = CaseOutcome(False, "not run: an earlier test failed")
        if rest.text:
            break
        run = _run_of(cases[pending[0]])
        batch = [index for index in pending if _run_of(cases[index]) is run]
        deadline_s = min(left_s, test_deadline_s)
        result, news = await run(source, cases, batch, deadline_s)
        left_s -= result.duration_s
        if batch[0] not in news:
            news[batch[0]] = _unfinished(result, deadline_s)
        outcomes |= {index: one for index, one in news.items() if isinstance(one, CaseOutcome)}
        failed = not all(outcome.passed for outcome in outcomes.values())
        for index, one in news.items():
            if isinstance(one, str) and not (stop_early and failed):
                cases[index] = make_beside_case(
                    index + 1, cases[index], one, untrusted_tests, suspect=True
                )
    return [outcomes.get(index, rest) for index in range(len(cases))]


def _run_of(case: Case) -> _Run:
    return {"stdio": _run_stdio, "test": _run_tests}.get(case.kind, _run_calls)


async def _run_stdio(
    source: str, cases: Sequence[Case], batch: list[int], deadline_s: float
) -> tuple[SandboxResult, _RunReports]:
    index, case = batch[0], cases[batch[0]]
    most = _OUTPUT_LIMIT + 2 * len(case.expected)
    limits = SandboxLimits(deadline_s, output_bytes=most)
    result = await _sandbox.run(
        _STDIO_DRIVER, limits, stdin=case.request, files={CANDIDATE_FILE: source}
    )
    if result.timed_out or result.truncated or result.exit_code != 0:
        return result, {}
    good = same_output(result.stdout.decode("utf-8", "replace"), case.expected)
    outcome = CaseOutcome(good, "passed" if good else "wrong answer", _stderr(result))
    return result, {index: outcome}


async def _run_calls(
    source: str, cases: Sequence[Case], batch: list[int], deadline_s: float
) -> tuple[SandboxResult, _RunReports]:
    secret = secrets.token_hex(16)
    result = await _sandbox.run(
        _START,
        SandboxLimits(deadline_s),
        stdin="".join(_request(index, cases[index], secret) for index in batch).encode(),
        files=_candidate(source),
    )
    news: _RunReports = {}
    for index, kind, value in _reports(result.stdout, batch):
        outcome = _judge_value(cases[index], kind, value, secret)
        news[index] = outcome if outcome.passed else replace(outcome, stderr=_stderr(result))
    return result, news


async def _run_tests(
    source: str, cases: Sequence[Case], batch: list[int], deadline_s: float
) -> tuple[SandboxResult, _RunReports]:
    tests = json.dumps([[index, *cases[index].request] for index in batch])
    result, candidate = await _sandbox.run_pair(
        _START,
        _START,
        SandboxLimits(deadline_s, disk_mb=_DISK_MB + (len(tests) >> 20)),
        leader_files={CASES_FILE: tests, _PROGRAM: _program("tester", "run")},
        helper_files=_candidate(source),
    )
    stderr = "\n".join(filter(None, [_stderr(one) for one in (candidate, result) if one]))
    news: _RunReports = {}
    for index, kind, text in _reports(result.stdout, batch):
        if kind == "refused":
            news[index] = str(text)
        elif kind == "passed":
            news[index] = CaseOutcome(True, "passed")
        else:
            news[index] = CaseOutcome(False, shorten_text(text), stderr)
    # The tests' program ends with 1 when the candidate has ended.
    ended = candidate if candidate and result.exit_code == 1 else result
    return replace(ended, duration_s=result.duration_s), news


@functools.cache
def _program(module: str, start: str) -> bytes:
    """A program for the sandbox, compiled: ``values``, then ``module``, then its start."""
    folder = resources.files("adjudge.graders.code")
    names = "values", module
    texts = [folder.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in names]
    # The modules find each other by standing in one text; the interpreter there is this one.
    texts = [re.sub(r"^from [^(\n]*(\([^)]*\))?$", "", text, flags=re.MULTILINE) for text in texts]
    source = "\n".join(["from __future__ import annotations", *texts, f"{start}()"])
    return marshal.dumps(compile(source, module, "exec", optimize=2))


def _candidate(source: str) -> dict[str, str | bytes]:
    return {CANDIDATE_FILE: source, _PROGRAM: _program("candidate", "serve_requests")}


def _request(index: int, case: Case, secret: str) -> str:
    if case.kind == "beside":
        return json.dumps([index, "test", case.request[0], secret]) + "\n"
    return json.dumps([index, "call", case.request, case.kind]) + "\n"


def _reports(stdout: bytes, batch: list[int]) -> Iterator[tuple[int, str, Any]]:
    """The driver's lines, one per case and in order, up to the first that is not the next report.

    What follows that is from a candidate that found the channel: megabytes that nobody reads.
    """
    for expected, line in zip(batch, io.BytesIO(stdout), strict=False):
        try:
            index, kind, value, *_ = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        if type(index) is not int or index != expected:
            return
        yield index, str(kind), value


def _judge_value(case: Case, kind: str, value: Any, secret: str) -> CaseOutcome:
    trusted = case.kind != "beside"
    if kind == "error":
        failure = ErrorKind.INVALID_INPUT
        return CaseOutcome(False, shorten_text(value), trusted=trusted, failure=failure)
    if not trusted:
        good = kind == "value" and value == secret
    elif case.kind == "text":
        good = isinstance(value, str) and same_output(value, case.expected)
    elif case.kind == "json":
        good = any(same_value(value, one, as_json=True) for one in case.expected)
    else:
        good = same_value(value, case.expected, as_json=False)
    return CaseOutcome(good, "passed" if good else "wrong answer", trusted=trusted)


def _unfinished(result: SandboxResult, deadline_s: float) -> CaseOutcome:
    """The outcome where a program ended that had not said all that it was asked."""
    last = _stderr(result).rpartition("\n")[2] or "no message"
    text = shorten_text(f"ended with exit code {result.exit_code}: {last}")
    if result.truncated:
        text = "printed more than the output limit"
    if result.timed_out:
        text = f"timed out after {deadline_s:.3g} s"
    failure = ErrorKind.TIMEOUT if result.timed_out else ErrorKind.INVALID_INPUT
    return CaseOutcome(False, text, _stderr(result), failure=failure)


def _stderr(result: SandboxResult, limit: int = 2000) -> str:
    return result.stderr[-limit:].decode("utf-8", "replace").strip()


def same_value(produced: Any, expected: Any, *, as_json: bool) -> bool:
    """Whether two encoded trees are equal; never raises, whatever was produced.

    As Python's ``==``; ``as_json``: a boolean equals no number, NaN equals NaN, and where a float
    is expected, a number may differ by 1e-9, relative or absolute, whichever allows more.

    >>> same_value(["list", 0.30000000000000004], ["list", 0.3], as_json=True)
    True
    """
    stack = [(produced, expected)]
    while stack:
        one, other = stack.pop()
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            stack.extend(zip(one, other, strict=True))
            continue
        # Lists arrive here only beside something else or at unequal lengths, and then differ.
        same_kind = not as_json or isinstance(one, bool) == isinstance(other, bool)
        if not same_kind or not (one == other or (as_json and _is_close(one, other))):
            return False
    return True


def _is_close(one: Any, other: Any) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, float)):
        return False
    try:
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    except OverflowError:  # an integer beyond the floats
        return False


_DECIMAL_TOLERANCE = Decimal("1e-6")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?P<decimals>\.\d+)?(?:[eE](?P<exponent>[+-]?\d{1,3}))?")


def same_output(produced: str, expected: str) -> bool:
    r"""Whether two outputs agree up to white space at line ends and around the whole.

    Where both hold nothing but numbers, the numbers are compared by value. A whole number must be
    equal. A decimal may differ by 1e-6 (in proportion where it is below 1), and by half a unit of
    its last expected digit where that is less.

    >>> same_output("1 2 \n3\n\n", "1 2\n3")
    True
    >>> same_output("0.30000000000000004 1", "0.3 1"), same_output("0.3 1", "0.3 2")
    (True, False)
    """
    ours, theirs = _lines(produced), _lines(expected)
    if ours == theirs or len(ours) != len(theirs):
        return ours == theirs
    split = [re.split(r"(\s+)", "\n".join(lines)) for lines in (ours, theirs)]
    return len(split[0]) == len(split[1]) and all(map(_same_token, *split))


def _same_token(produced: str, expected: str) -> bool:
    one, other = _NUMBER.fullmatch(produced), _NUMBER.fullmatch(expected)
    if not one or not other:
        return produced == expected and not expected.strip()
    ours, theirs = Decimal(produced), Decimal(expected)
    if not (other["decimals"] or other["exponent"]):
        return ours == theirs
    places = len(other["decimals"] or ".") - 1 - int(other["exponent"] or 0)
    allowed = max(
        _DECIMAL_TOLERANCE * min(Decimal(1), abs(theirs)),
        min(_DECIMAL_TOLERANCE, Decimal(5).scaleb(-places - 1)),
        abs(theirs).scaleb(-10),  # what sums of doubles differ by
    )
    return abs(ours - theirs) <= allowed


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


_MAX_OUTCOMES = 50
_MAX_STDERR = 500


@dataclass(eq=False, repr=False)
class CodeExecutionGrader(ParametricRule):
    """The share of test cases that the code in the response passes, run in a sandbox.

    Fields: ``response``; ``test_cases``, or ``reference`` where the row has no ``test_cases``;
    optional ``function``, the name to call. ``test_cases`` is a list, ``{"tests": [...],
    "function": name}`` or ``{"inputs": [...], "outputs": [...], "fn_name": name}`` (APPS, TACO,
    PRIME), each also as JSON text. The keys of a case say which it is:

    * ``{"input": text, "output": text}``: the code runs as a program; its output must be ``output``
      up to white space at line ends and around the whole, its exit code 0. Of numbers alone, a
      decimal may differ by 1e-6 or by half a unit of its last expected digit.
    * ``{"args": [...], "expected": value}``, perhaps ``kwargs`` and ``function``: the function, or
      the method of a class ``Solution``, must return ``expected``, compared as JSON; floats
      may differ by 1e-9, relative or absolute.
    * ``{"input": lines, "output": text, "testtype": "functional"}`` (LiveCodeBench): an argument in
      each line.
    * ``{"input": value, "output": value}`` inside ``{"tests": [...]}``: the text of
      ``solution(input)`` is compared as a program's output.
    * ``{"test": statements}``, or just the statements: they must not raise. Of a test that only
      defines ``check(candidate)``, ``check`` is called with ``function``.

    Of several fenced blocks the last that defines what the tests call is judged (of programs, the
    last that reads standard input), with what it uses of the other blocks. An example of use does
    not run. A test that fails, crashes, or runs out of time, memory or output is not passed. No
    code, an unclosed ``<think>`` and more than 2**20 characters are 0 with ``cause = "candidate"``.
    Metadata: ``passed``, ``total``, ``outcomes`` (the first 50), the end of ``stderr``.

    Tests run apart from the code, and expected values stay outside its sandbox. Plain values come
    back as new ones; other objects are handles without a value. A test that cannot run apart from
    the code leaves the score missing. The interpreter is the running one with its library, in 512
    MB of address space.

    Raises ``GradingFailure``: ``unsupported`` without a sandbox and for tests that cannot run apart
    from the code (``suspect`` where that was seen only when the test ran), ``invalid_input``
    without test cases or with a broken one.

    Args:
        score: ``fraction``: the share; ``all``: 1 or 0, stopping at the first failure.
        function: The name to call where row and case give none.
        deadline_s: Wall-clock seconds for all tests of a sample; waiting for a processor does not
            count.
        test_deadline_s: Wall-clock seconds for each test.
        untrusted_tests: ``refuse``, or ``allow``: such tests run beside the code, which can fake a
            pass (``trusted = false``).
    """

    type_name = "code_execution"
    score_range = (0.0, 1.0)

    score: Literal["fraction", "all"] = "fraction"
    function: str = ""
    deadline_s: Annotated[float, Field(ge=0.1, le=3600)] = 30.0
    test_deadline_s: Annotated[float, Field(ge=0.1, le=3600)] = 5.0
    untrusted_tests: UntrustedTests = "refuse"

    def check_machine(self) -> None:
        """There is a sandbox."""
        check_sandbox(self.type_name)

    async def aevaluate(
        self, response: str, test_cases: Any = None, reference: Any = None, function: Any = None
    ) -> GraderScore:
        """Judge one response against its row's test cases."""
        given = reference if test_cases is None else test_cases
        if given is None:
            lacked = {LACKED: ["test_cases", "reference"]}
            raise InvalidInput("the sample has no test cases", lacked)
        cases = parse_cases(given, function or self.function, self.untrusted_tests)
        try:
            text = require_code_text(response)
            source = await extract_solution(text, called_names(cases))
            lack, fault = "" if source else NO_CODE, await find_syntax_fault(source)
        except CandidateLimitExceeded as excess:
            lack, fault = str(excess), ""
        if why := lack or fault:
            cause = {"cause": str(Cause.CANDIDATE)} if lack else {}
            return self._judged([CaseOutcome(False, why)] * len(cases), why, **cause)
        outcomes = await run_cases(
            source,
            cases,
            self.deadline_s,
            self.test_deadline_s,
            stop_early=self.score == "all",
            untrusted_tests=self.untrusted_tests,
        )
        return self._judged(outcomes)

    def _judged(
        self, outcomes: list[CaseOutcome], reason: str = "", **metadata: Any
    ) -> GraderScore:
        total, passed = len(outcomes), sum(outcome.passed for outcome in outcomes)
        score = passed / total if self.score == "fraction" else float(passed == total)
        first = next((o for o in outcomes if not o.passed), None)
        reason = reason or f"{passed} of {total} tests passed" + (
            f"; {first.text}" if first else ""
        )
        metadata |= {
            "passed": passed,
            "total": total,
            "outcomes": [shorten_text(outcome.text, 120) for outcome in outcomes[:_MAX_OUTCOMES]],
        }
        if not all(outcome.trusted for outcome in outcomes):
            metadata["trusted"] = False
        stderr = next((outcome.stderr for outcome in outcomes if outcome.stderr), "")
        if stderr:
            metadata["stderr"] = shorten_text(stderr[-_MAX_STDERR:], _MAX_STDERR)
        return self._score(score, reason, **metadata)
