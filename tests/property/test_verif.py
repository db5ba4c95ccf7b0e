"""VerIF's parts for any constraints and any text: the formula, the interval, no other exception."""

from typing import Any

from hypothesis import given, settings, strategies as st

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.code.grader import CaseOutcome
from adjudge.graders.llm.judge_grader import JudgeOutcome
from adjudge.graders.verif import (
    Constraints,
    RuleConstraint,
    VerIFGrader,
    parse_constraints,
)
from adjudge.judges import Reply, ScriptedModel
from adjudge.types import Provenance
from adjudge.verdicts import Verdict

outcomes = st.sampled_from(
    [
        *(CaseOutcome(True, "passed"), CaseOutcome(False, "wrong answer")),
        CaseOutcome(False, "was late", failure=ErrorKind.TIMEOUT),
    ]
)
verdicts = st.sampled_from([None, 0, 1, GradingFailure(ErrorKind.UNPARSABLE, "no verdict")])
texts = st.text(max_size=30)
GRADER = VerIFGrader(ScriptedModel(""))


def told(value: Any) -> Any:
    if isinstance(value, int):
        return JudgeOutcome(Verdict(value=value), Provenance(), Reply(text=""))
    return value


def score(checked: list[CaseOutcome], said: Any) -> float | GradingFailure:
    rules = tuple(RuleConstraint(f"r{at}", "x") for at in range(len(checked)))
    soft = () if said is None else ("soft",)
    try:
        constraints = Constraints(soft, rules)
        return GRADER.combine_parts(constraints, checked, told(said)).score
    except GradingFailure as failure:
        return failure


@given(st.lists(outcomes, max_size=6), verdicts)
@settings(max_examples=40)
def test_a_score_is_the_formula_and_a_missing_one_lies_in_its_interval(
    checked: list[CaseOutcome], said: Any
) -> None:
    found = score(checked, said)
    least, unknown = sum(one.passed for one in checked), sum(bool(one.failure) for one in checked)
    shares = [n / len(checked) for n in (least, least + unknown)] if checked else [1.0]
    sides = [0, 1] if isinstance(said, GradingFailure) else [1 if said is None else said]
    possible = [share * side for share in shares for side in sides]
    assert isinstance(found, float) is (not unknown and len(sides) == 1)
    if isinstance(found, GradingFailure):
        assert found.metadata["low"] == min(possible)
        assert found.metadata["high"] == max(possible)
    else:
        assert [found] == list(set(possible))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(
    anything | st.fixed_dictionaries({"checkers": anything, "functions": anything}), st.booleans()
)
@settings(max_examples=40)
def test_rows_are_read_or_refused(value: Any, runs: bool) -> None:
    kind = None
    try:
        found = parse_constraints(value, where="row", runs=runs)
    except GradingFailure as failure:
        kind = failure.kind
    assert kind is ErrorKind.INVALID_INPUT or found.soft or found.rules
