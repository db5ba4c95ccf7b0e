"""Data of judge training: readers on any input, laws of swapping and repeating, made-up rows."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.datasets.rows import ChatMessages, Comparison, Preference, Rating, render_transcript
from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge_lab.judge_training.dataset import find_cut_problem, measure_lengths
from adjudge_lab.judge_training.row_files import (
    drop_repeated_rows,
    read_comparisons,
    read_demonstrations,
    read_preferences,
    read_ratings,
    rows_seen_in,
)
from adjudge_lab.synthetic import (
    SyntheticSet,
    SyntheticSettings,
    gold_score,
    synthetic_comparisons,
    synthetic_preferences,
    synthetic_ratings,
)

pytestmark = pytest.mark.slow  # many examples

READERS: list[Any] = [read_demonstrations, read_preferences, read_ratings, read_comparisons]

json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def gold_accuracy(made: SyntheticSet[Any]) -> float:
    """The expected accuracy of the gold function on the labels."""
    pairs = zip(made.gold, made.chances, strict=True)
    return math.fsum(chance[gold] for gold, chance in pairs) / len(made.chances)


messages: Any = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool", "robot"]),
            "content": st.text(max_size=8) | json_values,
        }
    ),
    max_size=4,
)
columns: Any = json_values | messages | messages.map(json.dumps)
COLUMNS = ["messages", "chosen", "rejected", "margin", "prompt", "response", "a", "b", "label"]
rows_of_any: Any = st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, columns)), max_size=3)

words = st.sampled_from(["oak", "elm", "ash", "fir", "yew", "今", "!"])
texts = st.lists(words, min_size=1, max_size=30).map(" ".join)


def talk(question: str, answer: str) -> ChatMessages:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


pairs: Any = st.builds(
    lambda q, x, y: Preference(chosen=talk(q, x), rejected=talk(q, y)), texts, texts, texts
).filter(lambda row: row.chosen != row.rejected)
compared: Any = st.builds(
    lambda q, a, b, label: Comparison(
        prompt=talk(q, "")[:1], a=a, b=b, label="tie" if a == b else label
    ),
    texts,
    texts,
    texts,
    st.sampled_from(["A", "B", "tie"]),
)


@given(rows_of_any, st.sampled_from(READERS))
@settings(max_examples=50)
def test_every_row_is_read_or_named(rows: list[Any], read: Callable[[Sequence[Path]], Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = read([path])
    places = [row.where for row in found.rows] + [one.where for one in found.problems.first]
    assert sorted(places) == [f"{path}:{n + 1}" for n in range(len(rows))]
    for row in found.rows:
        if not isinstance(row, Comparison):
            ends = [row.chosen, row.rejected] if isinstance(row, Preference) else [row.messages]
            assert all(end[-1]["role"] == "assistant" for end in ends)
        if isinstance(row, Rating):
            assert row.label in range(5)


FORMATS = (
    ("prompt", "response", "helpfulness"),
    ("id", "prompt", "chosen", "rejected", "num_correct", "subset"),
    ("input", "output_1", "output_2", "label"),
    ("question", "response_A", "response_B", "label"),
    ("chosen", "rejected"),
)


@given(
    st.sampled_from(FORMATS).flatmap(
        lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, columns)), max_size=4)
    )
)
@settings(max_examples=60)
def test_published_formats_take_any_columns(rows: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for read in (*READERS, read_benchmark):
            try:
                found = read([path])
            except ConfigError:
                continue
            if read is read_preferences:
                assert all(row.chosen != row.rejected for row in found.rows)


@given(st.lists(pairs | compared, max_size=8))
def test_rows_that_were_trained_on_are_always_found(rows: list[Any]) -> None:
    assert rows_seen_in(rows, rows) == set(range(len(rows)))
    kept, found = drop_repeated_rows([*rows, *rows])
    assert drop_repeated_rows(kept) == (kept, {"rows": 0, "contradicting": 0})
    assert len(kept) + found["rows"] == 2 * len(rows)


@given(st.lists(pairs, max_size=6), st.integers(1, 30), st.sampled_from(["left", "right", "error"]))
def test_fitting_loses_no_row_and_leaves_sides_apart(
    rows: list[Preference], most: int, truncation: Any
) -> None:
    def encode(turns: ChatMessages) -> list[str]:
        return render_transcript(turns).split()

    cut = slice(-most, None) if truncation == "left" else slice(most)
    for row in rows:
        sides = [encode(row.chosen), encode(row.rejected)]
        problem = find_cut_problem(row, sides, most, encode, truncation)
        if problem is None:
            assert sides[0][cut] != sides[1][cut]
        else:
            assert "tokens: " in problem.found
    report = measure_lengths(rows, encode)
    longest = report.conversations.longest if report.conversations else 0
    assert longest == max((len(encode(s)) for r in rows for s in (r.chosen, r.rejected)), default=0)


dials: Any = st.fixed_dictionaries(
    {
        "n": st.just(40),
        "seed": st.integers(0, 99),
        "noise": st.sampled_from([0.0, 0.1, 0.25, 0.5]),
        "length_bias": st.sampled_from([0.0, 0.3, 1.0]),
        "family_offset": st.sampled_from([0.0, 1.0, -2.5]),
        "families": st.just(["Alder", "Birch"]),
    }
)


@given(dials, st.sampled_from([0.0, 0.4, 1.0]))
@settings(max_examples=60)
def test_chances_are_chances_and_texts_have_their_gold(dial: Any, ties: float) -> None:
    made: Any
    for made in (
        synthetic_preferences(SyntheticSettings(**dial)),
        synthetic_comparisons(SyntheticSettings(**dial, ties=ties)),
        synthetic_ratings(SyntheticSettings(**dial)),
    ):
        assert len(made.rows) == len(made.labels) == len(made.gold) == len(made.chances) == 40
        for label, chance in zip(made.labels, made.chances, strict=True):
            assert math.fsum(chance.values()) == pytest.approx(1.0)
            assert chance[label] > 0
        assert gold_accuracy(made) <= made.bayes_accuracy + 1e-12
        assert 0.0 < made.bayes_accuracy <= 1.0 + 1e-12
        for row, gold in zip(made.rows, made.gold, strict=True):
            assert gold == read_gold(row, made.labels[made.rows.index(row)])


def read_gold(row: Any, label: str) -> str:
    """The gold label, from nothing but the row's texts."""
    country = row.subset
    if isinstance(row, Rating):
        return str(gold_score(country, row.messages[-1]["content"]))
    if isinstance(row, Comparison):
        a, b = gold_score(country, row.a), gold_score(country, row.b)
    else:
        a, b = (gold_score(country, side[-1]["content"]) for side in (row.chosen, row.rejected))
        assert a != b
        a, b = (a, b) if label == "A" else (b, a)
    return "tie" if a == b else "A" if a > b else "B"


def within(count: int, n: int, share: float) -> bool:
    """Whether ``count`` of ``n`` is within 4.5 standard deviations of what ``share`` says."""
    return abs(count - n * share) <= 4.5 * math.sqrt(n * share * (1 - share)) + 1e-9


@pytest.mark.parametrize("noise", [0.1, 0.25, 0.5])
def test_noise_is_the_share_of_flipped_labels_and_bounds_every_judge(noise: float) -> None:
    made = synthetic_preferences(SyntheticSettings(n=4000, seed=2, noise=noise))
    assert made.bayes_accuracy == pytest.approx(1 - noise)
    assert gold_accuracy(made) == pytest.approx(1 - noise)
    flipped = sum(label != gold for label, gold in zip(made.labels, made.gold, strict=True))
    assert within(flipped, 4000, noise)
    rated = synthetic_ratings(SyntheticSettings(n=4000, seed=2, noise=noise))
    assert rated.bayes_accuracy == pytest.approx(1 - noise)
    wrong = sum(label != gold for label, gold in zip(rated.labels, rated.gold, strict=True))
    assert within(wrong, 4000, noise)


def words_of(row: Preference) -> tuple[int, int]:
    chosen, rejected = (len(side[-1]["content"].split()) for side in (row.chosen, row.rejected))
    return chosen, rejected


@pytest.mark.parametrize("bias", [0.0, 0.4, 1.0])
def test_length_bias_is_the_share_that_the_longer_wins_regardless(bias: float) -> None:
    made = synthetic_preferences(SyntheticSettings(n=4000, seed=3, length_bias=bias))
    unequal = [row for row in made.rows if len(set(words_of(row))) == 2]
    longer = sum(chosen > rejected for chosen, rejected in map(words_of, unequal))
    # Length tells nothing about the gold, so the rest of the longer ones win half of the time.
    assert within(longer, len(unequal), bias + (1 - bias) / 2)
    worse_is_longer = [
        row
        for row, label, gold in zip(made.rows, made.labels, made.gold, strict=True)
        if (words_of(row)[0] > words_of(row)[1]) == (label != gold) and len(set(words_of(row))) == 2
    ]
    won = sum(chosen > rejected for chosen, rejected in map(words_of, worse_is_longer))
    assert within(won, len(worse_is_longer), bias)


@pytest.mark.parametrize("offset", [0.0, 1.5, 8.0, -8.0])
def test_the_family_offset_moves_exactly_the_pairs_it_outweighs(offset: float) -> None:
    dial = SyntheticSettings(n=2000, seed=5, family_offset=offset, families=["Alder", "Birch"])
    made = synthetic_preferences(dial)
    for row, label, gold in zip(made.rows, made.labels, made.gold, strict=True):
        chosen, rejected = (side[-1]["content"] for side in (row.chosen, row.rejected))
        lead = gold_score(str(row.subset), chosen) - gold_score(str(row.subset), rejected)
        lead += offset * (chosen.startswith("Alder:") - rejected.startswith("Alder:"))
        assert lead > 0
        assert (label == gold) == (row.margin is not None)
    moved = sum(label != gold for label, gold in zip(made.labels, made.gold, strict=True))
    assert (moved > 0) == (offset != 0)
    # At ±8 the family alone decides: a pair of both (half of all) goes against the gold by a coin.
    if abs(offset) == 8:
        assert within(moved, 2000, 0.25)
