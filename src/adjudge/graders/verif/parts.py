"""The two halves of a VerIF score, and what they come to where one of them is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.llm.judged import Told
from adjudge.graders.llm.several import joined_failure, noted, spent
from adjudge.graders.verif.checking import Checked
from adjudge.graders.verif.constraints import Constraints
from adjudge.types import GraderScore, ScoreRange

__all__ = ["Parts"]

_MOST_SHOWN = 50


@dataclass(frozen=True)
class Parts:
    """What came of the two halves, a failure in place of one that has none."""

    constraints: Constraints
    checked: list[Checked] | GradingFailure
    told: Told | GradingFailure | None

    def result(self, name: str, score_range: ScoreRange) -> GraderScore:
        """Their product; raises ``GradingFailure`` where one of them is not known."""
        failures = self._failures()
        if failures:
            raise self._failure(failures)
        rule, _ = self._rules()
        llm, _ = self._llm()
        told = self.told if isinstance(self.told, Told) else None
        metadata = {**self._metadata(), **(told.notes if told else {})}
        provenance = told.provenance if told else None
        reason = told.verdict.reason if told else ""
        words = f"{self._words()}{': ' if reason else ''}{reason}"
        return GraderScore(name, rule * llm, words, metadata, score_range, provenance=provenance)

    def _failures(self) -> list[GradingFailure]:
        found = [one for one in (self.checked, self.told) if isinstance(one, GradingFailure)]
        if isinstance(self.checked, list):
            for rule, one in zip(self.constraints.rules, self.checked, strict=True):
                if one.kind is not None:
                    message = f"rule {rule.name!r}: its function {one.reason}"
                    # It read the candidate's text. Its own time is no outage of a judge.
                    marks = {"suspect": True, "local": one.kind is ErrorKind.TIMEOUT}
                    found.append(GradingFailure(one.kind, message, marks))
        return found

    def _failure(self, failures: Sequence[GradingFailure]) -> GradingFailure:
        low = self._rules()[0] * self._llm()[0]
        high = self._rules()[1] * self._llm()[1]
        metadata = {
            **self._metadata(),
            "low": low,
            "high": high,
            "failures": [noted(one) for one in failures[:_MOST_SHOWN]],
        }
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        message = f"{failures[0]}{more}: the score lies in [{low:.4g}, {high:.4g}]"
        answered = [self.told.provenance] if isinstance(self.told, Told) else []
        kinds = {one.kind for one in failures}
        if isinstance(self.checked, GradingFailure) or (len(kinds) == 1 and self._judge_said):
            own = {**metadata, **failures[0].metadata}
            paid = spent(answered, failures)
            return GradingFailure(failures[0].kind, message, own, provenance=paid)
        return joined_failure(failures, message, metadata, answered=answered)

    @property
    def _judge_said(self) -> bool:
        return not isinstance(self.told, GradingFailure)

    def _rules(self) -> tuple[float, float]:
        """The lowest and highest that the rules' share can be."""
        if not self.constraints.rules:
            return 1.0, 1.0
        if isinstance(self.checked, GradingFailure):
            return 0.0, 1.0
        n = len(self.checked)
        passed = sum(one.passed is True for one in self.checked)
        return passed / n, (passed + sum(one.passed is None for one in self.checked)) / n

    def _llm(self) -> tuple[float, float]:
        """The lowest and highest that the judge's verdict can be."""
        if self.told is None:
            return 1.0, 1.0
        if isinstance(self.told, GradingFailure):
            return 0.0, 1.0
        value = float(self.told.verdict.value)
        return value, value

    def _metadata(self) -> dict[str, Any]:
        rules, llm = self._rules(), self._llm()
        found: dict[str, Any] = {"constraints": len(self.constraints.soft)}
        if isinstance(self.checked, list):
            pairs = zip(self.constraints.rules, self.checked, strict=True)
            found["rules"] = [{"name": rule.name, "passed": one.passed} for rule, one in pairs]
        if rules[0] == rules[1]:
            found["rule_part"] = rules[0]
        if llm[0] == llm[1]:
            found["llm_part"] = llm[0]
        return found

    def _words(self) -> str:
        said = []
        if isinstance(self.checked, list) and self.checked:
            passed = sum(one.passed is True for one in self.checked)
            said.append(f"{passed} of {len(self.checked)} rules hold")
        if self.told is not None:
            said.append(f"judge {self._llm()[0]:g}")
        return ", ".join(said)
