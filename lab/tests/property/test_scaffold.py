"""The reveal schedule, whatever its settings."""

from typing import Any

from hypothesis import given, settings, strategies as st

from adjudge.rubrics import Criterion
from adjudge_lab.rl.runfile import ScaffoldTable
from adjudge_lab.rl.scaffold import build_scaffold_message, draw_shown_rubrics, reveal_ratio

RULES = ["linear", "binary", "step_linear", "step_power", "step_sigmoid"]
scaffolds = st.builds(
    ScaffoldTable,
    rule=st.sampled_from(RULES),
    group_decay_type=st.sampled_from(["linear", "binary"]),
    full_reveal_count=st.integers(0, 10),
    step_power_n=st.floats(0.01, 50),
    step_sigmoid_start_point=st.floats(0, 1),
    step_sigmoid_steepness=st.floats(0.01, 1e6),
)


@settings(max_examples=60)
@given(scaffolds, st.integers(1, 40), st.integers(1, 9))
def test_a_ratio_is_a_share_that_never_grows(
    scaffold: ScaffoldTable, steps: int, size: int
) -> None:
    table = [
        [
            reveal_ratio(scaffold, step=step, steps=steps, index=index, size=size)
            for index in range(size)
        ]
        for step in range(1, steps + 1)
    ]
    assert all(0.0 <= ratio <= 1.0 for row in table for ratio in row)
    assert all(row == sorted(row, reverse=True) for row in table)  # within a group
    assert all(list(of) == sorted(of, reverse=True) for of in zip(*table, strict=True))  # in time


@settings(max_examples=60)
@given(scaffolds, st.lists(st.floats(-9, 9).filter(lambda x: x == 0 or abs(x) > 1e-3), max_size=9))
def test_what_is_shown_is_of_the_rubrics_and_all_in_the_message(
    scaffold: ScaffoldTable, points: list[float]
) -> None:
    rubrics = [Criterion(f"number {n} here", points=p) for n, p in enumerate(points)]
    at: dict[str, Any] = {"step": 2, "steps": 9, "index": 1, "size": 4, "seed": 3, "group": "g"}
    _, shown = draw_shown_rubrics(scaffold, rubrics, **at)
    places = [rubrics.index(one) for one in shown]
    assert places == sorted(set(places))
    assert all(one.worth for one in shown)
    text = build_scaffold_message(shown, scaffold)
    assert (text is None) == (not shown)
    assert all(one.text in (text or "") for one in shown)
