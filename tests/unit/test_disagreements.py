"""Which samples are listed as the worst disagreements, and by which rule."""

from __future__ import annotations

from adjudge.runs.sample_index import Disagreements, find_disagreements

GROUPS = ["a"] * 4 + ["b"] * 4
ENV = [0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
JUDGE: list[float | None] = [9.0, 1.0, 2.0, 8.0, 1.0, 9.0, 9.0, None]
RULE = [0.5] * 8


def places(found: Disagreements) -> list[int]:
    return [one.place for one in found.worst]


def test_a_judge_is_compared_with_the_environment_by_rank_in_the_group() -> None:
    found = find_disagreements(GROUPS, ENV, {"rule": RULE, "judge": JUDGE}, {"judge"})
    assert "environment" in found.rule
    # In a the judge's ranks are 1, 0, 1/3, 2/3 and the environment's 1/6, 1/6, 5/6, 5/6.
    assert places(found) == [0, 2]
    assert round(found.worst[0].size, 6) == round(5 / 6, 6)
    assert found.worst[0].text == "judge 9 (rank 1 of 4); environment 0 (tied for 3 to 4 of 4)"


def test_a_failed_judge_has_no_rank_and_agrees_with_nobody() -> None:
    scores: list[float | None] = [None, None, 1.0, None]
    found = find_disagreements(["a"] * 4, [1.0, 0.0, 1.0, 0.0], {"judge": scores}, {"judge"})
    assert found == Disagreements()


def test_a_judge_that_orders_as_the_environment_does_disagrees_nowhere() -> None:
    env = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    judge = [5.0, 4.0, 3.0, 1.0, 5.0, 3.0, 2.0, 1.0, 5.0, 4.0, 2.0, 1.0]
    found = find_disagreements([at // 4 for at in range(12)], env, {"judge": judge}, {"judge"})
    assert found == Disagreements()


def test_without_an_environment_judges_are_compared_with_each_other() -> None:
    other = [1.0, 9.0, 8.0, 2.0, *JUDGE[4:]]
    none: list[float | None] = [None] * 8
    found = find_disagreements(
        GROUPS, none, {"one": JUDGE, "two": other, "rule": RULE}, {"one", "two"}
    )
    assert found.rule.startswith("two judges")
    assert sorted(places(found)) == [0, 1]
    # Where nobody asks a judge, all graders are compared.
    found = find_disagreements(GROUPS, none, {"one": JUDGE, "rule": other})
    assert places(found)


def test_groups_of_one_are_compared_over_the_run() -> None:
    found = find_disagreements([0, 1, 2], [0.0, 1.0, 2.0], {"judge": [3.0, 2.0, 1.0]}, {"judge"})
    assert places(found) == [0, 2]


def test_each_sample_is_listed_once_and_twenty_at_most() -> None:
    count = 400
    scores = [float(i * 7 % 101) for i in range(count)]
    env = [float(i * 13 % 97) for i in range(count)]
    other = [-x for x in scores]
    groups = [i // 8 for i in range(count)]
    found = find_disagreements(groups, env, {"a": scores, "b": other}, {"a", "b"})
    assert len(places(found)) == len(set(places(found))) == 20
    sizes = [one.size for one in found.worst]
    assert sizes == sorted(sizes, reverse=True)
