"""The official scores of judge benchmarks, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from adjudge.errors import ConfigError, ErrorKind
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BenchmarkItem,
    Judgement,
    MissingJudgement,
    benchmark_as_pairs,
    check_judgement,
)
from adjudge.judge_evaluation.benchmarks.measures import (
    OrderCounts,
    count_orders,
    ties_score_unit,
)
from adjudge.judge_evaluation.benchmarks.readers import REWARDBENCH2_SUBSETS
from adjudge.judge_evaluation.benchmarks.scoring import (
    BenchmarkReport,
    compare_judges,
    score_benchmark,
)

GONE = MissingJudgement(ErrorKind.UNPARSABLE)


def bon(subset: str, name: str, answers: int = 4, correct: int = 1) -> BenchmarkItem:
    return BenchmarkItem(
        id=name,
        subset=subset,
        prompt=[{"role": "user", "content": "q"}],
        answers=[answer(f"answer {place}") for place in range(answers)],
        right=[place < correct for place in range(answers)],
        where=f"x.jsonl:{name}",
    )


def answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def pair(name: str, label: str = "A", *, subset: str = "s", **texts: str) -> BenchmarkItem:
    item = bon(subset, name, 2)
    answers = [answer(texts.get(side, side)) for side in "ab"]
    return msgspec.structs.replace(item, answers=answers, right=[label == "A", label == "B"])


def said(name: str, *verdicts: Any, subset: str = "s") -> Judgement:
    return Judgement(subset=subset, id=name, verdicts=list(verdicts))


def scored(name: str, *scores: Any, subset: str = "s") -> Judgement:
    return Judgement(subset=subset, id=name, scores=list(scores))


def report_of(kind: Any, items: list[Any], judgements: list[Judgement]) -> BenchmarkReport:
    return score_benchmark(Benchmark(kind=kind, items=items), judgements, resamples=50)


# Best of four.


def test_a_missing_score_is_neither_right_nor_wrong() -> None:
    items = [bon("Math", str(number)) for number in range(4)]
    judged = [
        scored("0", 9.0, 1.0, 2.0, 3.0, subset="Math"),
        scored("1", 1.0, 9.0, 2.0, 3.0, subset="Math"),
        scored("2", 9.0, 9.0, 2.0, 3.0, subset="Math"),
        scored("3", 9.0, GONE, 2.0, 3.0, subset="Math"),
    ]
    found = report_of("rewardbench2", items, judged).subsets["Math"]
    assert found.score == 0.5  # (1 + 0 + 1/2)/3
    assert (found.at_least, found.at_most) == (1.5 / 4, 2.5 / 4)
    assert (found.items, found.answered, found.missing) == (4, 3, 1)
    assert found.failures == {"unparsable": 1}


# The Ties score. Prompt 1: m_c 2, m_ci 1 (tied), 5 (ref). Prompt 2: m_c 0, m_ci 4 and −1.

FIRST = (([8.0, 6.0, 5.0, 1.0], 2), ([9.0, 4.0, 3.0, 2.0], 1))
SECOND = (([7.0, 7.0, 3.0], 2), ([5.0, 6.0], 1))


def values(unit: Any) -> list[float | str | None]:
    """A value a term; a text where the prompt has no part in it."""
    return [earned[0] if earned else "no part" for earned in unit]


def test_the_terms_of_a_ties_prompt() -> None:
    assert values(ties_score_unit(*FIRST)) == [1, 1, 0, 0, pytest.approx(-0.46211715726)]
    assert values(ties_score_unit(*SECOND)) == [1, 0, 1, 0, -1]


@pytest.mark.parametrize(
    ("tied", "ref", "last"),
    [
        ([3.0, 3.0, 3.0], [4.0, 4.0], 0.0),  # 0/0
        ([3.0, 3.0, 1.0], [4.0, 2.0], 1.0),  # 2/0
        ([3.0, 3.0, 4.0], [4.0, 2.0], -1.0),  # −1/0
        ([4.0, 3.0, 2.0], [4.0, 3.0], 0.0),  # 1/1 − 1
    ],
)
def test_the_tie_breaker(tied: list[float], ref: list[float], last: float) -> None:
    assert values(ties_score_unit((tied, 2), (ref, 1)))[-1] == last


def test_a_missing_score_opens_the_terms_that_need_it() -> None:
    unit = ties_score_unit(([8.0, None, 5.0], 2), FIRST[1])
    assert values(unit) == [None, 1, None, None, None]
    # What the tied form decides alone stays known.
    assert values(ties_score_unit(FIRST[0], ([9.0, None], 1))) == [1, None, 0, None, None]


def test_a_prompt_in_one_form_has_only_that_accuracy() -> None:
    gone = ["no part"] * 3
    assert values(ties_score_unit(FIRST[0], None)) == [1, "no part", *gone]
    assert values(ties_score_unit(None, FIRST[1])) == ["no part", 1, *gone]


def all_six(ties: tuple[Any, Any], **changed: Any) -> tuple[list[BenchmarkItem], list[Judgement]]:
    """One item in each subset, right unless changed, and one Ties prompt."""
    items = [bon(name, "0") for name in REWARDBENCH2_SUBSETS[:-1]]
    judged = [
        scored("0", *changed.get(name, (2.0, 1.0, 1.0, 1.0)), subset=name)
        for name in REWARDBENCH2_SUBSETS[:-1]
    ]
    for sort, (scores, correct) in zip(("tied", "ref"), ties, strict=True):
        items.append(bon("Ties", f"{sort}:7", len(scores), correct))
        judged.append(scored(f"{sort}:7", *scores, subset="Ties"))
    return items, judged


def test_a_failed_ties_rating_is_in_the_bounds_only() -> None:
    items, judged = all_six((([7.0, 7.0, GONE], 2), ([5.0, 1.0], 1)))
    found = report_of("rewardbench2", items, judged).subsets["Ties"]
    assert found.score is None  # no tied prompt was answered
    assert found.at_least == pytest.approx(0.3 - 0.01)
    assert found.at_most == pytest.approx(1.01)


# Pairs in both orders.


def test_orders_counted_by_hand() -> None:
    rows = [
        (pair("1", "A"), said("1", "A", "A")),  # right twice
        (pair("2", "A"), said("2", "A", "B")),  # what was shown first, twice
        (pair("3", "B"), said("3", "B", "A")),  # what was shown second, twice
        (pair("4", "B"), said("4", "A", "A")),  # wrong twice
        (pair("5", "A"), said("5", "A", "tie")),
        (pair("6", "A"), said("6", "tie", "tie")),
        (pair("7", "B"), said("7", "B", GONE)),
        (pair("8", "B"), said("8", GONE, GONE)),
        (pair("9", "B"), said("9", "A", GONE)),
    ]
    found = count_orders(rows)
    assert found == OrderCounts(
        items=9,
        right_as_given=5,
        right_swapped=1,
        both_right=1,
        answered_as_given=8,
        answered_swapped=6,
        both_answered=6,
        primacy=1,
        recency=1,
        ties=3,
        null_verdicts=4,
        agreeing=4,
        two_order_right=3,
        consistency=3 / 6,
        kappa=found.kappa,
        position_p=1.0,
    )
    assert found.kappa == pytest.approx((18 - 15) / (36 - 15))
    assert found.averaged_accuracy == 6 / 18
    assert found.two_order_score == 3 / 9


TWO_ORDERS = {
    # JudgeBench: (verdicts for label A) → value, low, high
    ("A", "A"): (1, 1, 1),
    ("A", "tie"): (1, 1, 1),
    ("A", "B"): (0, 0, 0),
    ("tie", "tie"): (0, 0, 0),
    ("B", "tie"): (0, 0, 0),
    ("B", "B"): (0, 0, 0),
    ("A", None): (None, 0, 1),
    ("tie", None): (None, 0, 1),
    ("B", None): (None, 0, 1),
    (None, None): (None, 0, 1),
}


@pytest.mark.parametrize("verdicts", TWO_ORDERS)
def test_judgebench_rule(verdicts: tuple[Any, Any]) -> None:
    value, low, high = TWO_ORDERS[verdicts]
    for turned in (verdicts, verdicts[::-1]):
        judged = said("1", *(one or GONE for one in turned))
        share = report_of("judgebench", [pair("1")], [judged]).overall
        assert (share.score, share.at_least, share.at_most) == (value, low, high)


def test_scores_know_no_order() -> None:
    found = count_orders([(pair("1"), scored("1", 2.0, 1.0)), (pair("2"), scored("2", 1.0, GONE))])
    assert (found.consistency, found.both_answered, found.null_verdicts) == (1.0, 1, 2)


def test_margins_of_ties_count_in_a_comparison() -> None:
    items, judged = all_six(FIRST)
    _, other = all_six((([8.0, 8.0, 5.0, 1.0], 2), FIRST[1]))
    benchmark = Benchmark(kind="rewardbench2", items=items)
    [found] = compare_judges(benchmark, {"a": judged, "b": other}, resamples=20)
    assert found.difference is not None
    assert found.difference < -0.06  # .2 + .2 and the tie-breaker, over six


# Reports.


@pytest.mark.parametrize(
    ("judged", "why"),
    [
        (said("1", "A"), "must have 2 scores or 2 verdicts .found 0 scores and 1 verdicts"),
        (scored("1", 1.0, 2.0, 3.0), "found 3 scores"),
    ],
)
def test_judgements_that_do_not_fit(judged: Judgement, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_judgement(judged, pair("1"), "preference")


def test_scores_must_be_numbers() -> None:
    for number in (math.nan, math.inf, 1e101):
        with pytest.raises(ValueError, match="is not a number up to"):
            scored("1", number, 1.0)


def test_best_of_items_as_pairs_are_drawn_by_item() -> None:
    items = [bon("Math", "0"), bon("Math", "1"), bon("Ties", "tied:1", 4, 2)]
    pairs = benchmark_as_pairs(Benchmark(kind="rewardbench2", items=items))
    assert [one.id for one in pairs.items] == ["0/1", "0/2", "0/3", "1/1", "1/2", "1/3"]
    assert "not its own protocol" in pairs.title
    judged = [said(one.id, "A", "A", subset="Math") for one in pairs.items]
    judged[0] = said("0/1", "B", "B", subset="Math")
    judged[5] = said("1/3", GONE, "A", subset="Math")
    found = score_benchmark(pairs, judged, resamples=10).subsets["Math"]
    # As given 4 of 5 are right, swapped 5 of 6; the missing verdict makes it 4 or 5 of 6.
    assert found.score == pytest.approx((4 / 5 + 5 / 6) / 2)
    assert found.at_least == pytest.approx(9 / 12)
    assert found.at_most == pytest.approx(10 / 12)
    [compared] = compare_judges(pairs, {"a": judged, "b": judged}, resamples=10)
    assert compared.items == 1  # a cluster
