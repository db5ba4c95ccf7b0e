"""Every shape in which the field writes rubrics is read; everything else is refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.rubrics import (
    Category,
    GlobalRubric,
    Rubric,
    RubricBundle,
    parse_rubric,
    rubric_digest,
    rubric_from,
)


def rubric(data: Any) -> Rubric:
    found = parse_rubric(data)
    assert isinstance(found, Rubric)
    return found


def test_signed_points_with_tags_in_both_forms() -> None:
    found = rubric(
        [
            {"criterion": "Names", "points": 7, "tags": {"axis": "accuracy", "cluster": None}},
            {"criterion": "Alarms", "points": -3, "tags": ["axis:tone", "theme:a", "theme:b"]},
        ]
    )
    assert found.scheme == "points"
    assert [(c.id, c.worth, c.is_fault) for c in found.criteria] == [
        ("1", 7.0, False),
        ("2", -3.0, True),
    ]
    assert [c.tags for c in found.criteria] == [
        {"axis": "accuracy"},
        {"axis": "tone", "theme": "a, b"},
    ]


def test_categories_as_rubrics_as_rewards_writes_them() -> None:
    found = rubric(
        [
            {"title": "Cause", "description": "Essential Criteria: Names the cause", "weight": 5},
            {"title": "Harm", "description": "Pitfall Criteria: Does not alarm", "weight": -1},
            {"text": "Is brief", "category": "optional"},
        ]
    )
    assert [c.category for c in found.criteria] == ["Essential", "Pitfall", "Optional"]
    assert [c.text for c in found.criteria] == ["Names the cause", "Does not alarm", "Is brief"]
    assert [c.worth for c in found.criteria] == [5, -1, 0.3]
    assert found.criteria[0].tags == {"title": "Cause"}


def test_the_strict_rubric_of_a_task_service() -> None:
    found = rubric(
        {
            "version": 1.5,
            "goal_text": "Play well",
            "aggregation": "weighted_sum",
            "criteria": [
                {"id": "wood", "description": "Collects wood", "weight": 0.6, "required": True},
                {"id": 2, "description": "Eats", "weight": 0.4, "scale": "bounded"},
            ],
        }
    )
    assert (found.version, found.description, found.scheme) == ("1.5", "Play well", "weights")
    assert [c.id for c in found.criteria] == ["wood", "2"]
    assert [c.category for c in found.criteria] == [Category.ESSENTIAL, None]
    assert found.criteria[1].scale == "bounded"


def test_one_score_with_a_guide_and_bundles() -> None:
    guide = {"0.5-1.0": "good", "0.0-0.5": "poor"}
    part = {"id": "game@v1", "criteria": ["Explores", "Survives"], "scoring_guide": guide}
    alone = parse_rubric(part)
    assert isinstance(alone, GlobalRubric)
    assert [band.text for band in alone.bands] == ["poor", "good"]
    assert alone.score_range == (0.0, 1.0)

    bundle = parse_rubric({"global_rubric": part, "event": ["Moves"], "outcome": None})
    assert isinstance(bundle, RubricBundle)
    assert bundle.for_outcome == alone
    assert isinstance(bundle.events, Rubric)


@pytest.mark.parametrize(
    ("key", "bounds"),
    [
        ("0.9-1.0", (0.9, 1)),
        ("-1 to 0", (-1, 0)),
        ("5", (5, 5)),
        ("1–2", (1, 2)),
        ("3 至 4", (3, 4)),
    ],
)
def test_ranges_of_a_scoring_guide(key: str, bounds: tuple[float, float]) -> None:
    guide = GlobalRubric(criteria=("a",), scoring_guide={key: "x", "7-9": "y"})
    assert (guide.bands[0].low, guide.bands[0].high) == bounds


def test_built_in_python_as_the_seed_writes_it() -> None:
    bundle = RubricBundle(
        global_rubric=GlobalRubric(
            id="game/bundle@v1",
            description="Judge an episode",
            criteria=["Explores", "Survives"],  # type: ignore[arg-type]  # lists are taken too
            scoring_guide={"0.5-1.0": "good", "0.0-0.5": "poor"},
        )
    )
    assert pickle.loads(pickle.dumps(bundle)) == bundle
    assert bundle.for_outcome is bundle.global_rubric


def test_the_digest_changes_with_the_content_only() -> None:
    first, same = rubric(["Names a dose"]), rubric([{"criterion": "Names a dose"}])
    assert rubric_digest(first) == rubric_digest(same)
    assert rubric_digest(first) != rubric_digest(rubric(["Names a dose."]))


BROKEN: list[tuple[Any, str]] = [
    (7, ""),
    ({}, "criteria"),
    ([], "criteria"),
    ([["a"]], "criteria.1"),
    ([""], "criteria.1.text"),
    ([{"points": 1}], "criteria.1.text"),
    ([{"criterion": "a", "text": "b"}], "criteria.1.text"),
    ([{"criterion": "a", "wieght": 1}], "criteria.1.wieght"),
    ([{"criterion": "a", "points": 1, "weight": 1}], "criteria.1.weight"),
    ([{"criterion": "a", "points": "5"}], "criteria.1.points"),
    ([{"criterion": "a", "points": 5e-324}], "criteria.1.points"),
    ([{"criterion": "a", "category": "Esential"}], "criteria.1.category"),
    ([{"criterion": "a", "veto": True, "points": 0}], "criteria.1.veto"),
    ([{"criterion": "a", "veto": True, "scale": "bounded"}], "criteria.1.veto"),
    ([{"criterion": "a", "id": "two words"}], "criteria.1.id"),
    ([{"criterion": "a", "id": "x"}, {"criterion": "b", "id": "x"}], "criteria"),
    ([{"criterion": "a" * 4001}], "criteria.1.text"),
    ([{"criterion": "half \ud83d"}], "criteria.1.text"),
    (["a"] * 201, "criteria"),
    ({"criteria": ["a"], "rubric": ["b"]}, "rubric"),
    ({"criteria": ["a"], "scheme": "point"}, "scheme"),
    ({"criteria": [{"text": "a", "points": -1}], "scheme": "weights"}, "criteria.1.points"),
    ({"criteria": ["a"], "scheme": "categories"}, "criteria.1.category"),
    ({"criteria": [{"text": "a"}], "scoring_guide": {"0-1": "x"}}, "criteria.1"),
    ({"criteria": ["a"], "scoring_guide": {"high": "x"}}, "scoring_guide.high"),
    ({"criteria": ["a"], "scoring_guide": {"1": "x"}}, "scoring_guide"),
    ({"events": None}, "criteria"),
    ([{"criterion": "a", "required": "yes"}], "criteria.1.required"),
]


@pytest.mark.parametrize(("data", "key"), BROKEN, ids=[repr(one)[:60] for one, _ in BROKEN])
def test_what_is_no_rubric_is_refused_by_name(data: Any, key: str) -> None:
    with refuses(key, "file.toml"):
        parse_rubric(data, where="file.toml")


def test_a_samples_own_rubric_may_be_json_and_have_columns_of_its_own() -> None:
    found = rubric_from('[{"criterion": "Names a dose", "points": 5, "author": "x"}]')
    assert found.criteria[0].worth == 5
    assert rubric_from({"rubric": ["a"], "topic": "x"}).criteria[0].text == "a"


@pytest.mark.parametrize(
    ("examples", "key"),
    [
        ("one", "rubric.examples"),
        ([5], "rubric.examples.1"),
        (["a", {"score": 0.5}], "rubric.examples.2.text"),
        ([{"text": "a", "scores": 0.5}], "rubric.examples.1.scores"),
        ([{"text": "a", "score": 2}], "rubric.examples.1.score"),
        ([{"text": "a", "score": "high"}], "rubric.examples.1.score"),
    ],
)
def test_examples_are_read_or_refused_and_change_the_rubric(examples: Any, key: str) -> None:
    guide = {"criteria": ["Names a dose"], "scoring_guide": {"0-1": "as said"}}
    plain, shown = parse_rubric(guide), parse_rubric({**guide, "examples": ["a", {"text": "b"}]})
    assert rubric_digest(shown) != rubric_digest(plain)
    with refuses(key):
        parse_rubric({**guide, "examples": examples})
