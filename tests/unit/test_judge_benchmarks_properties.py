"""What holds of benchmark scores whatever a judge says."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from tests.unit.test_judge_benchmarks import GONE, bon, pair, said, scored

from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BenchmarkItem,
    BenchmarkKind,
    Judgement,
)
from adjudge.judge_evaluation.benchmarks.readers import REWARDBENCH2_SUBSETS
from adjudge.judge_evaluation.benchmarks.scoring import (
    BenchmarkScore,
    score_benchmark,
)

pytestmark = pytest.mark.slow  # many examples

SCORES = st.integers(-4, 4).map(float)


def pairs() -> st.SearchStrategy[tuple[list[BenchmarkItem], list[Judgement]]]:
    verdict = st.sampled_from(["A", "B", "tie", GONE])
    row = st.tuples(st.sampled_from("st"), st.sampled_from("AB"), verdict, verdict)

    def built(rows: list[Any]) -> tuple[list[BenchmarkItem], list[Judgement]]:
        items: list[BenchmarkItem] = []
        judged = []
        for number, (subset, label, given_, swapped) in enumerate(rows):
            items.append(pair(str(number), label, subset=subset))
            judged.append(said(str(number), given_, swapped, subset=subset))
        return items, judged

    return st.lists(row, min_size=1, max_size=12).map(built)


def best_of_items() -> st.SearchStrategy[tuple[list[BenchmarkItem], list[Judgement]]]:
    score = st.one_of(SCORES, SCORES, SCORES, st.just(GONE))
    four = st.lists(score, min_size=4, max_size=4)
    sort = st.sampled_from(["tied", "ref"])
    plain = st.tuples(st.sampled_from(REWARDBENCH2_SUBSETS[:-1]), st.just(""), four)
    ties = st.tuples(st.just("Ties"), sort, four)

    def built(rows: list[Any]) -> tuple[list[BenchmarkItem], list[Judgement]]:
        items: list[BenchmarkItem] = []
        judged = []
        full = [(subset, "", [1.0] * 4) for subset in REWARDBENCH2_SUBSETS[:-1]]
        for number, (subset, sort_, scores) in enumerate([*rows, *full]):
            name = f"{sort_}:{number // 2}" if sort_ else str(number)
            if any(one.id == name for one in items):
                continue
            items.append(bon(subset, name, correct=2 if sort_ == "tied" else 1))
            judged.append(scored(name, *scores, subset=subset))
        return items, judged

    return st.lists(st.one_of(plain, ties), min_size=1, max_size=16).map(built)


CASES = st.one_of(
    st.tuples(st.sampled_from(["llmbar", "judgebench", "preference"]), pairs()),
    st.tuples(st.just("rewardbench2"), best_of_items()),
)


def shares_of(
    kind: BenchmarkKind, items: list[BenchmarkItem], judged: list[Judgement]
) -> dict[str, BenchmarkScore]:
    found = score_benchmark(Benchmark(kind=kind, items=items), judged, resamples=1)
    return {"overall": found.overall} | found.subsets


@given(CASES)
def test_the_bounds_contain_the_score(case: Any) -> None:
    kind, (items, judged) = case
    for share in shares_of(kind, items, judged).values():
        assert share.items == share.answered + share.missing
        if share.score is None:
            continue
        assert share.at_least is not None
        assert share.at_most is not None
        assert share.at_least - 1e-12 <= share.score <= share.at_most + 1e-12
        if not share.missing:
            assert share.at_least == share.at_most == share.score


@given(CASES, st.data())
def test_a_failure_never_raises_the_score(case: Any, data: st.DataObject) -> None:
    """Of all that may be compared, the lower bound: and the upper one never falls."""
    kind, (items, judged) = case
    place = data.draw(st.integers(0, len(judged) - 1))
    one = judged[place]
    which = data.draw(st.integers(0, max(len(one.scores), len(one.verdicts)) - 1))
    lost = msgspec.structs.replace(
        one,
        scores=[GONE if n == which else x for n, x in enumerate(one.scores)],
        verdicts=[GONE if n == which else x for n, x in enumerate(one.verdicts)],
    )
    before = shares_of(kind, items, judged)
    after = shares_of(kind, items, [*judged[:place], lost, *judged[place + 1 :]])
    for name, share in before.items():
        if share.at_least is None or share.at_most is None:
            continue
        low, high = after[name].at_least, after[name].at_most
        assert low is not None
        assert high is not None
        assert low <= share.at_least + 1e-12
        assert high >= share.at_most - 1e-12


@given(CASES, st.integers(0, 99))
def test_the_order_of_items_is_nothing(case: Any, seed: int) -> None:
    kind, (items, judged) = case
    rows = list(zip(items, judged, strict=True))
    random.Random(seed).shuffle(rows)
    mixed_items, mixed = map(list, zip(*rows, strict=True))
    one = score_benchmark(Benchmark(kind=kind, items=items), judged, resamples=3)
    other = score_benchmark(Benchmark(kind=kind, items=mixed_items), mixed, resamples=3)
    assert one == other
    assert msgspec.json.encode(one) == msgspec.json.encode(other)
