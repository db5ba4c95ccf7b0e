"""Each rule finds what it is for, and keeps quiet where the wording is sound."""

from __future__ import annotations

import pytest

from adjudge.checks.rubric_lint import lint
from adjudge.rubrics import Category, Criterion, Rubric


def rules(*criteria: Criterion | str) -> set[str]:
    made = tuple(Criterion(c) if isinstance(c, str) else c for c in criteria)
    return {finding.rule for finding in lint(Rubric(made))}


FOUND = [
    ("compound", "Explains the cause and recommends a dose"),
    ("compound", "The response should name the cause; it should state a dose"),
    ("compound", "Should be written in French. It must have two paragraphs."),
    ("compound", "Step 1: Is it right? If not, fail. Step 2: Is it brief? If not, fail."),
    ("compound", "Lists fever, cough, fatigue, and headache"),
    ("presence_only", "Mentions side effects"),
    ("presence_only", "The response should discuss the treaty"),
    ("presence_only", "Contains a table of contents"),
    ("unverifiable", "Uses an appropriate tone"),
    ("unverifiable", "The answer is helpful"),
    ("unverifiable", "The summary is well-written"),
    ("unverifiable", "Is factually accurate"),
    ("unverifiable", "Agrees with the reference answer"),
    ("long", "Names the cause of the outage. " * 40),
]
SOUND = [
    "Names the cause",
    "Explains that the valve was left open",
    "Lists benefits and drawbacks of the plan",
    "Mentions that the dose is 5 mg",
    'Contains the phrase "thank you"',
    "Mentions at least one of: fever, cough, fatigue, and headache",
    "Names a side effect (e.g., nausea, vomiting, headache, and rash)",
    "Is at most 100 words long",
    "Answers in French",
    "Does not name a competitor",
    "Describes the use of the drug and use in children",
]


@pytest.mark.parametrize(("rule", "text"), FOUND, ids=[text[:30] for _, text in FOUND])
def test_wording_that_can_be_exploited(rule: str, text: str) -> None:
    assert rule in rules(text)


@pytest.mark.parametrize("text", SOUND)
def test_sound_wording_is_left_alone(text: str) -> None:
    assert rules(text) == set()


@pytest.mark.parametrize(
    "criterion",
    [
        Criterion("Avoids jargon", points=-3),
        Criterion("Does not suggest harmful remedies", points=-3),
        Criterion("Fails to name the cause", points=3),
    ],
    ids=lambda criterion: criterion.text,
)
def test_signs_that_punish_the_good(criterion: Criterion) -> None:
    assert "polarity" in rules(criterion, "Names the cause")


@pytest.mark.parametrize(
    "criterion",
    [
        Criterion("Fails to name the cause", points=-3),
        Criterion("Avoids jargon", category=Category.PITFALL),
        Criterion("Recommends aspirin", points=-3, category=Category.PITFALL),
    ],
    ids=lambda criterion: criterion.text,
)
def test_signs_that_are_right(criterion: Criterion) -> None:
    assert "polarity" not in rules(criterion, "Is in English")


def test_pairs_that_ask_the_same() -> None:
    base = Criterion("Names the dose of the drug for adults", points=5)
    twice = Criterion("Names the dose of the drug for all adults", points=3)
    turned = Criterion("Fails to name the dose of the drug for adults", points=-5)
    banned = Criterion("Names the dose of the drug for adults", points=-5)
    opposite = Criterion("Does not name the dose of the drug for adults", points=5)
    assert found(base, twice) == [("overlap", "warning")]
    assert found(base, turned) == [("overlap", "note")]
    assert found(base, banned) == found(base, opposite) == []


def found(*criteria: Criterion) -> list[tuple[str, str]]:
    return [(f.rule, f.severity) for f in lint(Rubric(criteria)) if f.criterion == "2"]


def test_pairs_that_only_look_alike() -> None:
    assert rules("Names the dose of 5 mg for adults", "Names the dose of 10 mg for adults") == set()
    assert rules("Names the benefits of swimming", "Names the risks of swimming") == set()
    preamble = (
        "The user is a nurse who is talking to an assistant about a patient on her ward. " * 3
    )
    assert rules(preamble + "It names the ward.", preamble + "It greets her kindly.") == set()


def test_more_criteria_than_one_call_can_hold() -> None:
    many = tuple(Criterion(f"Names item {n}", points=n) for n in range(1, 22))
    assert [f.rule for f in lint(Rubric(many))] == ["too_many"]
