"""Scaffolded rollouts: the schedule, the message, the rows, what a run file may say of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError, GradingFailure
from adjudge.rubrics import Criterion
from adjudge_lab.environments.tasks import read_row_rubrics
from adjudge_lab.rl.runfile import RunFile, ScaffoldTable
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.scaffold import (
    add_scaffold_message,
    build_scaffold_message,
    draw_shown_rubrics,
    group_share,
    reveal_ratio,
    step_share,
)


class Column:
    """A column of another library's: what it equals is a column, too, neither true nor false."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


RUBRICS = [{"criterion": 'Says "plum"', "points": 5}, {"criterion": "Is rude", "points": -2}]
CRITERIA = [Criterion(f"criterion {n}", id=str(n), points=float(n)) for n in range(1, 8)]
AS_PUBLISHED = ScaffoldTable(step_sigmoid_start_point=0.20, step_sigmoid_steepness=125.0)


@pytest.mark.parametrize(
    ("step", "share"), [(1, 1.0), (50, 1.0), (70, 0.57), (71, 0.48), (85, 0.006), (350, 0.0)]
)
def test_the_published_run_is_a_switch_at_a_fifth(step: int, share: float) -> None:
    digits = 3 if step == 85 else 2
    assert round(step_share(AS_PUBLISHED, step, 350), digits) == share


@pytest.mark.parametrize(
    ("rule", "shares"),
    [
        ("linear", [1.0, 1.0, 1.0]),
        ("binary", [1.0, 1.0, 1.0]),
        ("step_linear", [1.0, 0.5, 0.0]),
        ("step_power", [1.0, 0.125, 0.0]),
        ("step_sigmoid", [0.953, 0.119, 0.001]),  # 1/(1 + e^−3), 1/(1 + e^2), 1/(1 + e^7)
    ],
)
def test_what_the_rules_make_of_a_training_of_three_steps(rule: Any, shares: list[float]) -> None:
    scaffold = ScaffoldTable(rule=rule, step_power_n=3.0)
    assert [round(step_share(scaffold, step, 3), 3) for step in (1, 2, 3)] == shares


def test_shares_inside_a_group() -> None:
    linear, binary = ScaffoldTable(), ScaffoldTable(rule="binary", full_reveal_count=2)
    assert [group_share(linear, place, 5) for place in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert [group_share(binary, place, 4) for place in range(4)] == [1.0, 1.0, 0.0, 0.0]
    assert group_share(linear, 0, 1) == 1.0
    mixed = ScaffoldTable(rule="step_linear", group_decay_type="binary", full_reveal_count=1)
    at = {"step": 2, "steps": 3, "size": 4}
    assert [reveal_ratio(mixed, index=place, **at) for place in range(3)] == [0.5, 0.0, 0.0]


def shown(index: int, **changed: Any) -> list[str]:
    at: dict[str, Any] = {"step": 1, "steps": 9, "size": 8, "seed": 0, "group": "1/0", **changed}
    _, found = draw_shown_rubrics(ScaffoldTable(rule="linear"), CRITERIA, index=index, **at)
    return [one.id for one in found]


def test_so_many_are_shown_in_their_order_and_the_same_ones_each_time() -> None:
    found = [shown(index) for index in range(8)]
    assert [len(one) for one in found] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert all(one == sorted(one) for one in found)
    assert found == [shown(index) for index in range(8)]
    others = [shown(3, **other) for other in ({"seed": 1}, {"step": 2}, {"group": "1/1"})]
    assert any(one != found[3] for one in others)


def test_the_message_lists_what_counts_for_and_against() -> None:
    criteria = read_row_rubrics({"rubrics": RUBRICS})
    text = build_scaffold_message(criteria, ScaffoldTable()) or ""
    assert '1. Says "plum" (worth 5 points)' in text.splitlines()
    assert "1. Is rude (penalty 2 points)" in text.splitlines()
    assert "Do not mention" in text
    assert "Do not mention" not in (
        build_scaffold_message(criteria, ScaffoldTable(include_evaluation_warning=False)) or ""
    )
    assert "penalty" not in (build_scaffold_message(criteria[:1], ScaffoldTable()) or "")


def test_a_system_message_of_the_prompt_stays() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    found = add_scaffold_message(prompt, "Criteria: …")
    assert [turn["role"] for turn in found] == ["system", "user"]
    assert found[0]["content"] == "Be brief.\n\nCriteria: …"
    assert prompt[0]["content"] == "Be brief."
    assert add_scaffold_message(prompt, None) == prompt
    parts = [{"type": "text", "text": "Be brief."}]
    [system, _] = add_scaffold_message(
        [{"role": "system", "content": parts}, prompt[1]], "Criteria: …"
    )
    assert system["content"] == [*parts, {"type": "text", "text": "Criteria: …"}]
    assert len(parts) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"rubrics": RUBRICS},
        {"rubrics": json.dumps(RUBRICS)},
        {"reward_model": {"rubrics": RUBRICS}},
        {"rubrics": [], "extra_info": {"reward_model": {"rubrics": RUBRICS}}},
    ],
)
def test_where_rows_have_their_rubrics(row: dict[str, Any]) -> None:
    assert [one.worth for one in read_row_rubrics(row)] == [5.0, -2.0]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"rubrics": None},
        {"rubrics": {}},
        {"rubrics": 5},
        {"rubrics": Column()},
        {"reward_model": "x"},
    ],
)
def test_rows_without_rubrics_say_so(row: dict[str, Any]) -> None:
    with pytest.raises(GradingFailure, match="rubrics"):
        read_row_rubrics(row)


def run_of(folder: Path, rows: list[dict[str, Any]], **rollout: Any) -> RunFile:
    lines = (json.dumps({"prompt": "Which fruit?", **row}) for row in rows)
    (folder / "rows.jsonl").write_text("\n".join(lines))
    data = {
        "model": {"base": "tiny"},
        "graders": [{"name": "quality", "type": "rubric", "field": "rubrics", "clip": True}],
        "judge": {
            "model": "mock",
            "base_url": "mock",
            "combine_mode": "replace",
            "mock": {"behaviour": "criteria"},
        },
        "rollout": {"dataset": "rows.jsonl", "scaffold": {}, **rollout},
        "evaluation": {"instances": 1},
    }
    return resolve_run_file(data, where="run.toml", folder=folder)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, r"row 2 of .*rows\.jsonl has no rubrics .*would show nothing"),
        ({"rubrics": [{"criterion": "", "points": 1}]}, r"row 2 of .*rows\.jsonl: rubrics: "),
        ({"rubrics": [{"criterion": "Watched", "points": 0}]}, "no rubric has points"),
    ],
)
def test_a_row_that_would_be_shown_nothing_is_refused(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"rollout.scaffold: .*{said}"):
        run_of(tmp_path, [{"rubrics": RUBRICS}, {"rubrics": RUBRICS}, row])


def test_an_environment_has_no_rubrics_to_show() -> None:
    data = {"model": {"base": "tiny"}, "rollout": {"scaffold": {}}}
    with pytest.raises(
        ConfigError, match=r"rollout.scaffold: can only be used with a dataset of single turns"
    ):
        resolve_run_file(data)


@pytest.mark.parametrize(
    "table",
    [
        {"rule": "cosine"},
        {"step_sigmoid_start_point": 1.5},
        {"step_power_n": 0.0},
        {"full_reveal_count": -1},
        {"correction_cap": 0.0},
        {"correction": "is"},
    ],
)
def test_settings_out_of_range_are_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"rollout.scaffold.{next(iter(table))}"):
        run_of(tmp_path, [{"rubrics": RUBRICS}] * 2, scaffold=table)
