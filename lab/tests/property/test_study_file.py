"""Plans over whole grids of judges, and tables laid over each other."""

import math
from typing import Any

from hypothesis import given, settings, strategies as st

from adjudge.config import flatten
from adjudge_lab.studies.cells import make_cells
from adjudge_lab.studies.study import Study
from adjudge_lab.studies.study_file import merge_tables

GOLD = {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0}
LEVELS = st.lists(
    st.one_of(st.booleans(), st.integers(2, 99), st.sampled_from(["small", "large"])),
    min_size=1, max_size=3, unique=True,
)  # fmt: skip
GRIDS = st.dictionaries(st.sampled_from(["family", "size", "thinking"]), LEVELS, min_size=1)
TABLES = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc."), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


def rows(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    for factor, values in grid.items():
        found = [{**row, factor: value} for row in found for value in values]
    return found


@settings(max_examples=8)
@given(GRIDS, st.data())
def test_a_plan_over_a_whole_grid_trains_on_each_judge_once(
    grid: dict[str, list[Any]], data: st.DataObject
) -> None:
    combinations = rows(grid)
    skipped = data.draw(st.sampled_from([None, *combinations[1:]]))
    judges = {
        f"j{number}": {
            "levels": row,
            "run": {"graders": [{"name": f"g{number}", "type": "reasoning_format"}]},
        }
        for number, row in enumerate(combinations)
        if row is not skipped
    }
    plan = {"name": "grid", **grid, "skip": [] if skipped is None else [skipped]}
    study = Study.from_dict(
        {
            "kind": "study",
            "gold": "gold",
            "run": {"model": {"base": "tiny"}, "graders": [GOLD]},
            "judges": judges,
            "plans": [plan],
        }
    )
    assert [cell.judge for cell in make_cells(study)] == list(judges)
    assert len(make_cells(study)) == math.prod(map(len, grid.values())) - (skipped is not None)


@settings(max_examples=30)
@given(TABLES, TABLES)
def test_what_is_laid_over_wins_and_the_rest_stays(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    below, above, found = (dict(flatten(one)) for one in (base, over, merge_tables(base, over)))
    assert {key: found.get(key) for key in above} == above
    assert all(found[key] in (below.get(key), above.get(key)) for key in found)
    assert merge_tables(base, base) == base
    assert merge_tables(merge_tables(base, over), over) == merge_tables(base, over)
