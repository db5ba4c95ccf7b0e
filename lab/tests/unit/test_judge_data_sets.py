"""Sets of rows: repeated ones, lengths, positions, and synthetic ones."""

from collections.abc import Sequence
from typing import Any

import pytest

from adjudge.datasets.rows import (
    ChatMessages,
    Comparison,
    Preference,
    Rating,
    render_transcript,
)
from adjudge.errors import ConfigError
from adjudge_lab.judge_training.dataset import LengthStatistics, find_cut_problem, measure_lengths
from adjudge_lab.judge_training.judge_questions import preferences_as_comparisons
from adjudge_lab.judge_training.row_files import drop_repeated_rows
from adjudge_lab.synthetic import SyntheticSettings, synthetic_preferences, synthetic_ratings


def talk(question: str, answer: str) -> ChatMessages:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def rated(question: str, answer: str, label: int = 3, **fields: Any) -> Rating:
    return Rating(messages=talk(question, answer), label=label, **fields)


def preferred(question: str, better: str, worse: str, **fields: Any) -> Preference:
    return Preference(chosen=talk(question, better), rejected=talk(question, worse), **fields)


def compared(question: str, a: str, b: str, label: Any, **fields: Any) -> Comparison:
    prompt = [{"role": "user", "content": question}]
    return Comparison(prompt=prompt, a=a, b=b, label=label, **fields)


@pytest.mark.parametrize(
    ("first", "second", "contradicts"),
    [
        (rated("q", "a", 3), rated("q", "a", 3), False),
        (rated("q", "a", 3), rated("q", "a", 0), True),
        (preferred("q", "x", "y"), preferred("q", "x", "y"), False),
        (preferred("q", "x", "y"), preferred("q", "y", "x"), True),
        (compared("q", "x", "y", "A"), compared("q", "y", "x", "B"), False),
        (compared("q", "x", "y", "A"), compared("q", "y", "x", "A"), True),
        (compared("q", "x", "y", "A"), compared("q", "x", "y", "tie"), True),
        (compared("q", "x", "y", "tie"), compared("q", "y", "x", "tie"), False),
        (compared("q", "x", "y", "A"), preferred("q", "y", "x"), True),
    ],
)
def test_repeated_rows_may_contradict(first: Any, second: Any, *, contradicts: bool) -> None:
    assert drop_repeated_rows([first, second]) == (
        [first], {"rows": 1, "contradicting": int(contradicts)},
    )  # fmt: skip


def encode(messages: ChatMessages) -> Sequence[str]:
    return render_transcript(messages).split()


def test_lengths_by_side() -> None:
    rows = [
        preferred("q", "a b c", "a"),
        preferred("q", "a", "a b"),
        preferred("q", "c", "d"),
        preferred("q", "a b", "a"),
    ]
    report = measure_lengths(rows, encode)
    assert report.unit == "tokens"
    assert report.chosen == LengthStatistics(4, 2.75, 2, 2, 4, 4, 4)  # with the role
    assert report.rejected == LengthStatistics(4, 2.25, 2, 2, 3, 3, 3)
    assert report.equally_long == 1
    assert report.longer_chosen == pytest.approx(2 / 3)
    assert report.conversations is not None
    assert (report.conversations.count, report.conversations.longest) == (8, 6)
    single = measure_lengths([rated("q", "abc")])
    assert (single.unit, single.chosen, single.longer_chosen) == ("characters", None, None)
    assert single.answers is not None
    assert single.answers.mean == len("assistant: abc")
    assert measure_lengths([]).answers is None


def test_truncated_rows_are_counted_and_equal_sides_unusable() -> None:
    rows = [
        preferred("q", "a b", "a c", where="r:1"),  # 5 tokens a side
        preferred("q", "a b c d", "a x", where="r:2"),
        preferred("q", "a b c d e f", "a b c d x", where="r:3"),
        preferred("q r s t u v", "a", "b", where="r:4"),
    ]
    assert cut_reasons(rows, 5) == {
        "r:1": None,
        "r:2": None,
        "r:3": "cut, both sides are equal",
        "r:4": "cut, both sides are equal",
    }
    assert set(cut_reasons(rows, 5, "left").values()) == {None}
    errors = cut_reasons(rows, 5, "error")
    assert [where for where, reason in errors.items() if reason] == ["r:2", "r:3", "r:4"]


def cut_reasons(rows: Sequence[Any], most: int, truncation: Any = "right") -> dict[str, str | None]:
    found = {}
    for row in rows:
        both = [row.chosen, row.rejected] if isinstance(row, Preference) else [row.messages]
        sides = list(map(encode, both))
        problem = None
        if any(len(side) > most for side in sides):
            problem = find_cut_problem(row, sides, most, encode, truncation)
        found[row.where] = None if problem is None else problem.found.partition(": ")[2]
    return found


def test_a_single_answer_that_is_cut_away_is_unusable() -> None:
    rows = [rated("one two three", "four five", where="r:1")]
    assert cut_reasons(rows, 6) == {"r:1": None}  # "user: one two three assistant: four"
    assert cut_reasons(rows, 5) == {"r:1": "cut, nothing of an answer is left"}


def test_preferences_get_a_position_by_chance_half_and_half() -> None:
    rows = [preferred("q", f"good {n}", f"bad {n}", where=f"f:{n}") for n in range(101)]
    made = preferences_as_comparisons(rows, seed=1).require_usable()
    assert [row.where for row in made] == [row.where for row in rows]
    assert sum(row.label == "A" for row in made) == 51
    assert all((row.a if row.label == "A" else row.b).startswith("good") for row in made)
    assert preferences_as_comparisons(rows, seed=1).rows == made
    assert preferences_as_comparisons(rows, seed=2).rows != made


def test_preferences_that_part_early_are_no_comparisons() -> None:
    calls = {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}
    longer = [
        *talk("q", "b"),
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "c"},
    ]
    rows = [
        Preference(chosen=talk("q", "a"), rejected=longer, where="f:1"),
        Preference(chosen=talk("q", "a"), rejected=[talk("q", "")[0], calls], where="f:2"),
        preferred("q", "a", "b"),
    ]
    found = preferences_as_comparisons(rows, seed=0)
    assert len(found.rows) == 1
    assert [problem.found for problem in found.problems.first] == [
        "3 messages after what both sides share",
        "tool calls after what both sides share",
    ]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"n": 1}, "^n: "),
        ({"n": 2, "noise": 0.6}, "^noise: .*found 0.6"),
        ({"n": 2, "noise": float("nan")}, "^noise: "),
        ({"n": 2, "length_bias": -0.1}, "length_bias"),
        ({"n": 2, "family_offset": 1.0}, "family_offset needs families"),
        ({"n": 2, "families": ["Alder"]}, "two or more names"),
        ({"n": 2, "families": ["Alder", "Big Birch"]}, "names of one word"),
    ],
)
def test_dials_have_ranges(settings: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SyntheticSettings(**settings)


def test_what_is_held_out_is_not_in_training() -> None:
    made = synthetic_preferences(SyntheticSettings(n=600, seed=3))
    train, test = made.split(100)
    assert (len(train.rows), len(test.rows)) == (500, 100)
    assert train.rows + test.rows == made.rows
    assert len(drop_repeated_rows(made.rows)[0]) == 600
    with pytest.raises(ConfigError, match="held_out"):
        made.split(600)


def test_more_rows_than_texts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for free in ("FILLER_PHRASES", "_KINDS", "_TIMES", "_ENDS"):
        monkeypatch.setattr(f"adjudge_lab.synthetic.{free}", ("so",))
    with pytest.raises(ConfigError, match="n = 2,000 is too many: only 15 different ratings"):
        synthetic_ratings(SyntheticSettings(n=2_000))
