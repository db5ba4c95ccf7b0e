"""That arms of a study differ in nothing but what the study is about."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.errors import ConfigError
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.studies.cells import Arm, make_arms
from adjudge_lab.studies.manifest import check_arms, diff_settings
from adjudge_lab.studies.study import Study
from adjudge_lab.studies.study_file import merge_tables

HERE = Path("study")
GOLD = {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0}
RULE = {"name": "format", "type": "reasoning_format"}
RUBRICS = [{"criterion": "Names the capital", "points": 2}]
RUN: dict[str, Any] = {
    "model": {"base": "tiny"},
    "judge": {"combine_mode": "replace"},
    "graders": [GOLD],
}
ALONE = {**RUN, "graders": [RULE, GOLD]}


def study(**changed: Any) -> Study:
    data = {
        "kind": "study",
        "gold": "gold",
        "run": RUN,
        "judges": {
            "one": {"run": {"graders": [RULE]}},
            "two": {"run": {"graders": [{**RULE, "name": "again"}], "judge": {"judge_scale": 2.0}}},
        },
        "mitigations": {"warm": {"run": {"rollout": {"temperature": 1.5}}}},
        "plans": [{"name": "p", "judge": ["one", "two"], "mitigation": ["none", "warm"]}],
        **changed,
    }
    return Study.from_dict(data, where="s.toml")


def told(found: Study, arms: list[Arm]) -> str:
    with pytest.raises(ConfigError) as error:
        check_arms(found, arms)
    return str(error.value)


def altered(arms: list[Arm], name: str, **tables: Any) -> list[Arm]:
    """The same arms, one of which has other values."""
    return [
        dataclasses.replace(arm, data=merge_tables(arm.data, tables)) if arm.name == name else arm
        for arm in arms
    ]


def test_arms_of_a_plan_differ_in_what_is_declared_alone() -> None:
    found = study()
    check_arms(found, make_arms(found, HERE))


def test_a_key_that_one_mitigation_declares_binds_the_other_arms() -> None:
    found = study()
    arms = altered(make_arms(found, HERE), "two.none.seed-0", rollout={"temperature": 0.7})
    message = told(found, arms)
    assert "one.none.seed-0 and two.none.seed-0 differ in rollout.temperature (1, 0.7)" in message


def test_two_arms_that_are_one_run_are_refused() -> None:
    found = study(
        judges={name: {"run": {"graders": [RULE]}, "bias": {"x": bias}}
                for name, bias in (("none-of-it", 0.0), ("much", 0.9))},
        plans=[{"name": "p", "judge": ["none-of-it", "much"], "x": "x"}],
        mitigations={},
    )  # fmt: skip
    message = told(found, make_arms(found, HERE))
    assert "arms none-of-it.none.seed-0 and much.none.seed-0 are the same run" in message


@settings(max_examples=8)
@given(st.floats(0.1, 2.0), st.floats(0.1, 2.0), st.integers(1, 5), st.integers(1, 5))
def test_a_difference_has_both_values_and_turns_around(
    one: float, two: float, left: int, right: int
) -> None:
    runs = [
        resolve_run_file({**ALONE, "rollout": {"temperature": t, "max_turns": n}})
        for t, n in ((one, left), (two, right))
    ]
    there, back = diff_settings(*runs), diff_settings(*runs[::-1])
    assert [(d.key, d.left, d.right) for d in there] == [(d.key, d.right, d.left) for d in back]
    wanted: list[Any] = [("rollout.max_turns", left, right)] * (left != right)
    wanted += [("rollout.temperature", one, two)] * (one != two)
    assert [(d.key, d.left, d.right) for d in there] == wanted


def test_passwords_are_no_difference_and_not_shown() -> None:
    asked = {"name": "q", "type": "llm", "template": "{messages}", "score_range": [0.0, 2.0]}
    runs = [
        resolve_run_file(
            {**RUN, "graders": [asked], "judge": {"model": "m", "base_url": url, **RUN["judge"]}}
        )
        for url in (
            "https://me:hunter2@hunter2@one.org/v1",
            "https://one.org/v1",
            "https://two.org/v1",
        )
    ]
    assert diff_settings(*runs[:2]) == []
    assert [str(one) for one in diff_settings(runs[0], runs[2])] == [
        "judge.base_url ('https://one.org/v1', 'https://two.org/v1')"
    ]


def scaffolded(folder: Path, *rows: dict[str, Any]) -> Study:
    """RL and RuscaRL, which shows the rows' rubrics, on the same rows."""
    (folder / "rows.jsonl").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    rollout = {"dataset": "rows.jsonl"}
    data = {
        "kind": "study",
        "gold": "gold",
        "run": {**RUN, "rollout": rollout, "evaluation": {"instances": 2}},
        "judges": {"one": {"run": {"graders": [RULE]}}},
        "mitigations": {"ruscarl": {"run": {"rollout": {"scaffold": {}}}}},
        "plans": [{"name": "p", "judge": ["one"], "mitigation": ["none", "ruscarl"]}],
    }
    return Study.from_dict(data, where="s.toml", folder=folder)


def test_a_scaffold_needs_rubrics_and_is_all_that_differs(tmp_path: Path) -> None:
    rows = [{"prompt": f"Capital of {name}?", "reference": "x"} for name in "ABCD"]
    with pytest.raises(ConfigError, match=r"(?s)one\.ruscarl\.seed-0.*row 2 of.*has no rubrics"):
        scaffolded(tmp_path, *rows)
    found = scaffolded(tmp_path, *({**row, "rubrics": RUBRICS} for row in rows))
    arms = make_arms(found, HERE)
    check_arms(found, arms)
    assert arms[0].run().rollout.dataset == "rows.jsonl"
    (tmp_path / "other.jsonl").write_text((tmp_path / "rows.jsonl").read_text().replace("A", "E"))
    message = told(found, altered(arms, arms[0].name, rollout={"dataset": "other.jsonl"}))
    assert "differ in rollout.dataset.sha256 ('" in message
