"""Tables in a narrow terminal: columns are left out in a stated order, and nothing is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.unit.helpers.narrow_terminal import check_narrow, figures, shown

from adjudge.cli import doctor, eval, grade, probe, study
from adjudge.cli import rubric as rubric_command
from adjudge.judge_evaluation.probes.probe import ProbeFinding
from adjudge.judge_evaluation.swap.report import EXPLAINED_SHARES
from adjudge.mock import FAULTS
from adjudge.report.table import Column, Table, numeric
from adjudge.rubrics.linting import lint
from adjudge.rubrics.parsing import rubric_from
from adjudge.runs.graded_run import agreement_table, score_table
from adjudge.runs.judge_calls import calls_table, endpoint_tables

JUDGE = "openai/gpt-4.1-mini-2025-04-14"
GRADER = "helpfulness_of_the_answer"
FAILED = {"server_error": 1234, "timeout": 56, "unparsable": 7, "rate_limited": 8}


def test_columns_go_in_the_stated_order() -> None:
    columns = ["grader", *numeric("mean"), Column("95 %", "i"), *numeric("std", "missing")]
    rows = [["helpfulness", "0.512", "0.498 to 0.526", "0.101", "6 (9.4%)"]]
    table = Table(columns, rows, drop=("std",), keep=("mean", "missing"))
    heads, left = [], []
    for width in (80, 47, 40, 30):
        first, *_, last = shown(table, width).splitlines()
        heads.append(first.split())
        left.append(last.strip())
    assert heads == [
        ["grader", "mean", "95", "%", "std", "missing"],
        ["grader", "mean", "95", "%", "missing"],
        ["grader", "mean", "missing"],
        ["grader", "mean", "missing"],
    ]
    assert left[1] == "columns left out for width: std; --json has all"
    assert "0.512" in shown(table, 30)


def test_a_name_is_broken_only_after_everything_else_went() -> None:
    name = "http://judges.example.org:8000/v1#Qwen2.5-7B-Instruct"
    text = shown(Table(["judge", *numeric("calls/s", "calls")], [[name, "1,234.5", "98,765"]]), 30)
    assert "1,234.5" in text
    assert "98,765" not in text
    assert "http://judges" in text
    assert "".join(line[:21].strip() for line in text.splitlines()[1:-2]) == name


CELLS = st.one_of(
    st.text("ab 一é/_.…", max_size=60),
    st.floats(allow_nan=False, width=16).map(lambda x: f"{x:.3f}"),
)


@settings(max_examples=25)
@given(
    rows=st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4),
    kinds=st.lists(st.sampled_from(["", "n", "i", "c"]), min_size=4, max_size=4),
    width=st.integers(12, 90),
)
def test_no_line_is_too_long_and_nothing_of_a_shown_cell_is_lost(
    rows: list[list[str]], kinds: list[str], width: int
) -> None:
    columns = [Column(f"h{place}", kind) for place, kind in enumerate(kinds)]
    table = Table(columns, rows)
    text = shown(table, width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    heading = text.splitlines()[0]
    for place, one in enumerate(columns):
        if str(one.heading) in heading:
            alone = shown(Table([one], [[row[place]] for row in rows]), 2000)
            for character in set("".join(alone.split())):
                assert text.count(character) >= alone.count(character)
    assert "h0" in heading


SPREAD = dict.fromkeys(("mean", "std", "within_group_std"), 0.512) | {"zero_spread_frac": 0.125}
ESTIMATE = {"value": 0.8765, "low": 0.7654, "high": 0.9876, "pairs": 123_456}
COUNTS = {"missing": 1234, "not_evaluable": 1234}
ENDPOINT = figures(
    models=[JUDGE],
    base_urls=["https://judges.eu-central-1.example.org:8443/v1", "http://b/v1"],
    failures=FAILED,
    send_failures=FAILED,
)
SUMMARY = {
    "samples": 12_345,
    "graders": {
        name: {"weight": 0.125, **SPREAD, **COUNTS, "auc": ESTIMATE, "concordance": ESTIMATE}
        for name in ("action_loop", GRADER)
    },
    "reward": {**SPREAD, **COUNTS, "auc": ESTIMATE, "concordance": ESTIMATE},
    "env_reward": {"binary": False},
    "baselines": {"response_length": {"auc": ESTIMATE, "concordance": ESTIMATE}},
}


def test_tables_of_grade() -> None:
    check_narrow(score_table(SUMMARY))
    check_narrow(agreement_table(SUMMARY))
    [calls] = endpoint_tables({"endpoints": [ENDPOINT]})
    check_narrow(calls_table(calls))
    label = "as the spec says (outcome + event, sample_rate 0.125)"
    row = figures(scenario=label, cost_usd=0.0123456)
    check_narrow(grade._scenario_table([row], 1_000_000))
    assert "mean" in shown(score_table(SUMMARY), 40)
    assert "missing" in shown(score_table(SUMMARY), 40)


def test_tables_of_eval() -> None:
    orders = figures(consistency=0.8765, kappa=0.7654, position_p=1.2e-7)
    part = figures(**ESTIMATE, score=0.8765, at_least=0.7, at_most=0.9, own=0.8765, items=12_345,
                   missing=1305, failures=FAILED, orders=orders)  # fmt: skip
    judge = figures(name=JUDGE, mode="pairwise", overall=part, why="", lengths=figures(r=0.1),
                    subsets={"Factuality": part, "Safety": part})  # fmt: skip
    check_narrow(eval._scores(judge))
    check_narrow(eval._orders([judge]))
    check_narrow(eval._lengths([judge]))
    compared = figures(a=JUDGE, b="runs/judge-20260101-120000", interval=ESTIMATE)
    check_narrow(eval._compared({"compared": [compared]}))
    assert "server_error" in shown(eval._scores(judge), 60)
    rows = [[JUDGE, "logits", "12,345", "0.123", "0.123", "0.123"]]
    columns = eval._columns("read as", "pairs", "error", "Brier", "log loss")
    check_narrow(Table(columns, rows, caption="calibration"))


def test_the_card_of_probe() -> None:
    cases: Any = (
        ("self_preference", "uncertain", "net verdicts"),
        ("position", "fail", "SD of scores"),
    )
    findings = [
        ProbeFinding(
            probe=name, verdict=verdict, what="", measures="", unit=unit, effect=-0.1234,
            low=-0.2345, high=-0.0123, threshold=0.25, sided="both", n=1234, detectable=0.31,
        )
        for name, verdict, unit in cases
    ]  # fmt: skip
    check_narrow(probe._card_table(findings, 95.0))
    assert "FAIL" in shown(probe._card_table(findings, 95.0), 40)


def test_tables_of_swap() -> None:
    found = {"value": -0.1234, "low": -0.2345, "high": 0.3456}
    pair = {"judges": [JUDGE, "judges/strict-rubric-v2"], "common": 123_456}
    check_narrow(study._pair_table([pair | dict.fromkeys(study._COLUMNS, found)]))
    judge = {"name": JUDGE, "mean": 0.512, "flat_groups": 1234, "compared_groups": 12_345,
             "explained": dict.fromkeys(EXPLAINED_SHARES, found)}  # fmt: skip
    check_narrow(study._judge_table([judge]))


def test_tables_of_rubric_lint() -> None:
    rubric = rubric_from(
        [
            {"criterion": "Mentions the most common side effects and does not fail to warn",
             "points": 3},
            {"criterion": "Alarms", "points": -1},
        ],
        where="x",
    )  # fmt: skip
    places: Any = [("rubrics/crafter/bundle.jsonl:12345", rubric, lint(rubric))] * 2
    check_narrow(rubric_command._finding_table(places))
    check_narrow(rubric_command._rate_table(rubric_command._lint_report(Path(), places)))


def test_tables_of_mock_and_doctor() -> None:
    check_narrow(Table([Column("fault", wrap=False), "what the client sees"], list(FAULTS.items())))
    rows = [["multiple system messages", doctor._MARKS["not offered"], "yes", "x " * 90]]
    check_narrow(Table(["feature", "supported", "sent", "observed"], rows, drop=("sent",)))
