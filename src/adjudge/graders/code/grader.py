"""Is the code in a response Python, and does it do what its tests ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from adjudge.errors import LACKED, CandidateLimitExceeded, Cause, ErrorKind, GradingFailure
from adjudge.graders.base import NO_FINAL_TEXT, Between, ParametricRule, final_response
from adjudge.graders.code.blocks import PRELUDE, extract_python, extract_solution, find_syntax_fault
from adjudge.graders.code.cases import Case, UntrustedTests, called_names, parse_cases
from adjudge.graders.code.running import CaseBudget, CaseOutcome, run_cases
from adjudge.graders.code.sandbox import check_sandbox
from adjudge.text import shorten_text
from adjudge.types import GraderScore

_MAX_CODE = 1 << 20
_TOO_LONG = f"the response is longer than {_MAX_CODE} characters"
_NO_CODE = "no Python code in the response"
_MAX_OUTCOMES = 50
_MAX_STDERR = 500


@dataclass(eq=False, repr=False)
class SyntaxCheckGrader(ParametricRule):
    r"""1 when all Python code in the response parses, else 0.

    Field: ``response``. Code is what fenced blocks marked as Python hold; without such blocks,
    those without a language; without any block, the whole text where it parses and does more than
    name things. Nothing runs. The grammar is that of the running interpreter. No code (comments
    alone are no code), an unclosed ``<think>`` and more than 2**20 characters are 0 with ``cause =
    "candidate"``.

    >>> import asyncio
    >>> response = "```python\nprint('a'\n```"
    >>> asyncio.run(SyntaxCheckGrader().aevaluate(response)).score
    0.0
    """

    type_name = "code_syntax"
    score_range = (0.0, 1.0)

    async def aevaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        text = final_response(response)
        if text is None:
            return self._candidate_fault(NO_FINAL_TEXT, blocks=0)
        if len(text) > _MAX_CODE:
            return self._candidate_fault(_TOO_LONG, blocks=0)
        try:
            found = await extract_python(text)
            sources = [source for source in found if _has_statements(source)]
            faults = [fault for source in sources if (fault := await find_syntax_fault(source))]
        except CandidateLimitExceeded as excess:
            return self._candidate_fault(str(excess), blocks=0)
        if not sources:
            return self._candidate_fault(_NO_CODE, blocks=0)
        reason = faults[0] if faults else "all code parses"
        return self._score(float(not faults), reason, blocks=len(sources), faulty=len(faults))


def _has_statements(source: str) -> bool:
    """Whether there is more than comments."""
    lines = (line.strip() for line in source.splitlines())
    return any(line and not line.startswith("#") for line in lines)


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
    deadline_s: Annotated[float, Between(0.1, 3600)] = 30.0
    test_deadline_s: Annotated[float, Between(0.1, 3600)] = 5.0
    untrusted_tests: UntrustedTests = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.budget = CaseBudget(self.deadline_s, self.test_deadline_s)

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
            raise GradingFailure(ErrorKind.INVALID_INPUT, "the sample has no test cases", lacked)
        cases = parse_cases(given, function or self.function, self.untrusted_tests)
        text = final_response(response)
        if text is None:
            return self._none_passed(cases, NO_FINAL_TEXT)
        if len(text) > _MAX_CODE:
            return self._none_passed(cases, _TOO_LONG)
        try:
            source = await extract_solution(text, PRELUDE, called_names(cases))
            fault = await find_syntax_fault(source)
        except CandidateLimitExceeded as excess:
            return self._none_passed(cases, str(excess))
        if not source:
            return self._none_passed(cases, _NO_CODE)
        if fault:
            return self._judged([CaseOutcome(False, fault)] * len(cases), fault)
        stop_early = self.score == "all"
        outcomes = await run_cases(
            source,
            cases,
            self.budget,
            stop_early=stop_early,
            untrusted_tests=self.untrusted_tests,
        )
        return self._judged(outcomes)

    def _none_passed(self, cases: Sequence[Case], reason: str) -> GraderScore:
        """Where there was no code to run, by the candidate's doing."""
        outcomes = [CaseOutcome(False, reason)] * len(cases)
        return self._judged(outcomes, reason, cause=str(Cause.CANDIDATE))

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
