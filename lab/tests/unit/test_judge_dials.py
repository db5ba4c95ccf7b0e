"""Synthetic dials that are about places and about other countries, and who may turn which."""

import math
from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge_lab.judge_training.dataset import load_demonstrations
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.synthetic import (
    SyntheticSettings,
    gold_explanation,
    gold_score,
    synthetic_comparisons,
    synthetic_demonstrations,
    synthetic_preferences,
    synthetic_ratings,
)


def named_in(row: Any) -> str:
    """What an answer names after "of"."""
    text: str = row.messages[-1]["content"]
    return text.partition(" of ")[2].split()[0]


def sft(mode: str | None = None, **dials: Any) -> JudgeFile:
    data = {"synthetic": {"n": 40, **dials}, "train_batch_size": 4, "micro_batch_size": 1}
    return JudgeFile.from_dict({"method": "sft", "mode": mode, "data": data}, environ={})


@pytest.mark.parametrize(("ties", "noise"), [(0.0, 0.0), (0.2, 0.1)])
def test_the_bayes_rate_of_both_orders_is_what_the_best_rule_gets(
    ties: float, noise: float
) -> None:
    dials: dict[str, Any] = {"ties": ties, "noise": noise, "length_bias": 0.6}
    made = synthetic_comparisons(SyntheticSettings(n=6000, seed=4, position_bias=0.5, **dials))
    plain = synthetic_comparisons(SyntheticSettings(n=6000, seed=4, **dials))
    assert plain.bayes_accuracy_both_orders == plain.bayes_accuracy
    assert made.bayes_accuracy_both_orders < made.bayes_accuracy - 0.05
    # Without the place: what is likeliest where half of the labels are given in the other order.
    expected = []
    for row, gold, chances in zip(made.rows, made.gold, made.chances, strict=True):
        words = len(row.a.split()) - len(row.b.split())
        clean = {"A": 0.0, "B": 0.0, "tie": 0.0, gold: 1.0}
        if words:
            longer = "A" if words > 0 else "B"
            clean = {label: 0.4 * p + 0.6 * (label == longer) for label, p in clean.items()}
        even = {label: 0.5 * p + 0.25 * (label != "tie") for label, p in clean.items()}
        coin = noise * even["tie"] / 2
        told = {
            "A": (1 - noise) * even["A"] + noise * even["B"] + coin,
            "B": (1 - noise) * even["B"] + noise * even["A"] + coin,
            "tie": (1 - noise) * even["tie"],
        }
        assert math.fsum(chances.values()) == pytest.approx(1.0)
        expected.append(max(told.values()))
    assert made.bayes_accuracy_both_orders == pytest.approx(math.fsum(expected) / len(expected))
    train, val = made.split(600)
    both = (train.bayes_accuracy_both_orders * 5400 + val.bayes_accuracy_both_orders * 600) / 6000
    assert both == pytest.approx(made.bayes_accuracy_both_orders)


@pytest.mark.parametrize("dial", ["ties", "position_bias"])
def test_rows_without_two_places_have_neither_ties_nor_a_place_that_wins(dial: str) -> None:
    settings: dict[str, Any] = {"n": 2, dial: 0.5}
    for make in (synthetic_preferences, synthetic_ratings):
        with pytest.raises(ConfigError, match="neither ties nor positions"):
            make(SyntheticSettings(**settings))
    for mode in ("pointwise", None):
        with pytest.raises(ConfigError, match=rf"data\.synthetic\.{dial}: .*pairwise"):
            sft(mode, **{dial: 0.5})


@pytest.mark.parametrize(
    "dials",
    [
        {"length_bias": 0.2},
        {"elsewhere": 0.2},
        {"family_offset": 1.0, "families": ["Alder", "Birch"]},
    ],
)
def test_dials_of_labels_do_nothing_where_answers_are_shown(dials: Any) -> None:
    with pytest.raises(ConfigError, match=rf"data\.synthetic\.{next(iter(dials))}: .*no labels"):
        sft(**dials)
    assert sft("pairwise", **dials).data.synthetic is not None


def test_another_country_changes_neither_gold_nor_length() -> None:
    made = synthetic_ratings(SyntheticSettings(n=2000, seed=10, elsewhere=1.0))
    assert "it" not in {named_in(row) for row in made.rows}
    for row, gold in zip(made.rows, made.gold, strict=True):
        text = row.messages[-1]["content"]
        assert gold_score(str(row.subset), text) == int(gold) == row.label
        about = int(named_in(row) == row.subset)
        assert f", {named_in(row)} {about}, " in gold_explanation(str(row.subset), text)
        assert (len(text.split()) - 10) % 4 == 0
    assert all(made.gold.count(str(gold)) > 300 for gold in range(5))


def test_no_answer_that_is_held_out_was_shown_in_training() -> None:
    judge = JudgeFile.from_dict(
        {"method": "sft", "data": {"synthetic": {"n": 3000}, "micro_batch_size": 1}}, environ={}
    )
    found = load_demonstrations(judge)
    trained = {str(row.messages) for row in found.train}
    assert not any(str(row.messages) in trained for row in found.val)
    made = synthetic_demonstrations(SyntheticSettings(n=3000))
    assert found.train == made[:2700]
    seen = sum(str(row.messages) in trained for row in made[2700:])
    assert seen == 300 - len(found.val) > 0
    assert found.facts["val_duplicates"] == {"rows": seen, "contradicting": 0}


def test_too_few_shown_answers_to_hold_one_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = synthetic_demonstrations(SyntheticSettings(n=2))[:1] * 20
    monkeypatch.setattr("adjudge_lab.synthetic.synthetic_demonstrations", lambda _: one)
    with pytest.raises(ConfigError, match=r"data\.synthetic\.n: every held-out row is also"):
        load_demonstrations(sft())
