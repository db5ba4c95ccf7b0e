"""Swapping LLMBar's five recorded judges, next to a small computation of its own.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has ``llmbar`` (Zeng et
al. 2024). A pair is a group of two answers; a judge's reward of an answer is its mean over both
orders.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import find_recorded

from adjudge.judge_evaluation.swap.study import SwapStudy, run_swap

pytestmark = [
    pytest.mark.needs,
    pytest.mark.slow,
]  # twelve seconds of processor time for one summary.
pytestmark = [pytest.mark.needs, pytest.mark.slow]

SUBSETS = {"natural": 100, "neighbor": 134}
FAMILIES = ("gpt-4", "chatgpt", "palm2", "llama2", "falcon")


@pytest.fixture(scope="module")
def data() -> Path:
    return find_recorded("llmbar")


@pytest.fixture(scope="module")
def summary(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    study = SwapStudy(
        rollouts=[data / subset for subset in SUBSETS],
        judges=[
            str(data / subset / "judges" / f"{family}_vanilla.json")
            for family in FAMILIES
            for subset in SUBSETS
        ],
        folder=tmp_path_factory.mktemp("swap"),
        stored={"gold": "env_reward"},
    )
    return run_swap(study)


def worth(data: Path, family: str) -> list[float | None]:
    """The first output's reward for each pair, from the recorded file as it is."""
    found: list[float | None] = []
    for subset in SUBSETS:
        rows = json.loads((data / subset / "judges" / f"{family}_vanilla.json").read_text())
        for row in rows:
            orders = row["results"][-1]
            winners = [orders[f"swap = {one}"]["winner"] for one in (False, True)]
            known = None not in winners
            found.append(winners.count("1") / 2 if known else None)
    return found


def test_every_pair_of_families_equals_the_small_computation(
    data: Path, summary: dict[str, Any]
) -> None:
    found = {tuple(pair["judges"]): pair for pair in summary["pairs"]}
    for one, other in combinations(FAMILIES, 2):
        pair = found[f"{one}_vanilla", f"{other}_vanilla"]
        a, b = worth(data, one), worth(data, other)
        both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        assert pair["common"] == 2 * len(both)
        assert pair["all_groups"] == sum(SUBSETS.values())
        # The two rewards of a pair sum to 1: the better one is above ½.
        turned = sum((x - 0.5) * (y - 0.5) < 0 for x, y in both)
        assert pair["best_changes"]["value"] == pytest.approx(turned / len(both))
        assert pair["sign_flips"]["value"] == pytest.approx(turned / len(both))
        signs = [((x > 0.5) - (x < 0.5), (y > 0.5) - (y < 0.5)) for x, y in both]
        agreeing = sum(x * y for x, y in signs)
        told = [sum(sign[at] != 0 for sign in signs) for at in (0, 1)]
        assert pair["within_kendall"]["value"] == pytest.approx(
            agreeing / (told[0] * told[1]) ** 0.5
        )
        assert pair["flat"] == sum(0 in sign for sign in signs)
        # Mirrored rewards have mean ½: kappa is 2 Σ xy / (Σ x² + Σ y²) of what is left.
        centred = [(x - 0.5, y - 0.5) for x, y in both]
        product = sum(x * y for x, y in centred)
        squares = sum(x * x + y * y for x, y in centred)
        assert pair["kappa"]["value"] == pytest.approx(2 * product / squares)


def test_agreement_with_the_labels_is_the_published_accuracy(summary: dict[str, Any]) -> None:
    """Right in both orders: 93 + 101 pairs for gpt-4, 67 + 7 for chatgpt (the benchmark's own)."""
    found = {tuple(pair["judges"]): pair for pair in summary["pairs"]}
    for family, right in (("gpt-4", 93 + 101), ("chatgpt", 67 + 7)):
        pair = found[f"{family}_vanilla", "gold"]
        told = pair["groups"] - pair["flat"]
        assert pair["best_changes"]["value"] == pytest.approx((told - right) / pair["groups"])


def test_what_could_not_be_read_is_missing(summary: dict[str, Any]) -> None:
    missing = {one["name"]: one["missing_by_kind"] for one in summary["judges"]}
    # Four verdicts of palm2 on two pairs, both answers of which have no reward.
    assert missing == {
        **{f"{family}_vanilla": {} for family in FAMILIES},
        "palm2_vanilla": {"unparsable": 4},
        "gold": {},
    }


def test_intervals_hold_their_values(summary: dict[str, Any]) -> None:
    for pair in summary["pairs"]:
        for name in ("best_changes", "within_kendall", "kendall", "spearman", "pearson", "kappa"):
            found = pair[name]
            assert found["low"] < found["value"] < found["high"], (pair["judges"], name)
    length = {one["name"]: one["explained"]["length"] for one in summary["judges"]}
    assert length["llama2_vanilla"]["low"] > 0.2  # of these, the one that length moves most
    assert length["gpt-4_vanilla"]["high"] < 0.1
