from pathlib import Path
from typing import Any

import pytest

from adjudge import (
    ErrorKind,
    FunctionGrader,
    GraderError,
    GraderScore,
    GradingRunner,
    Journal,
    Sample,
)
from adjudge.errors import RunFolderError
from adjudge.runner.journal import sample_key


def scores(runner: GradingRunner, items: list[Any]) -> list[float | None]:
    return [getattr(result, "score", None) for result in runner.run(items)["g"]]


def runner(path: Path, grader: Any, spec: str = "s") -> GradingRunner:
    graders = {"g": FunctionGrader(grader)}
    return GradingRunner(graders, show_progress=False, journal=Journal(path, spec))


def test_answers_are_found_again_and_failures_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def first(x: int) -> float:
        if x == 1:
            raise RuntimeError("not yet")
        return float(x)

    assert scores(runner(path, first), [{"x": 0}, {"x": 1}, {"x": 2}]) == [0.0, None, 2.0]
    asked: list[int] = []

    def second(x: int) -> float:
        asked.append(x)
        return 9.0

    assert scores(runner(path, second), [{"x": 2}, {"x": 1}, {"x": 0}]) == [2.0, 9.0, 0.0]
    assert asked == [1]


def test_equal_samples_are_separate_questions(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert scores(runner(path, lambda x: 1.0), [{"x": 0}] * 2) == [1.0, 1.0]
    assert scores(runner(path, lambda x: 2.0), [{"x": 0}] * 3) == [1.0, 1.0, 2.0]


def test_items_that_differ_in_any_field_are_different(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    items = [{"index": 0}, {"index": 1}]
    assert scores(runner(path, lambda index: index / 1), items) == [0.0, 1.0]
    assert scores(runner(path, lambda index: 9.0), items[::-1]) == [1.0, 0.0]


def test_a_samples_place_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert scores(runner(path, lambda response: 1.0), [Sample(index=0, response="a")]) == [1.0]
    assert scores(runner(path, lambda response: 2.0), [Sample(index=7, response="a")]) == [1.0]


class Opaque:
    """Two of these may have the same text and still differ."""

    def __str__(self) -> str:
        return "same"


@pytest.mark.parametrize(
    "value",
    [Opaque(), {1: 2, "a": 3}, {(1, 2): 3}, 10**5000],
    ids=["object", "int", "tuple", "huge"],
)
def test_what_is_no_plain_data_is_asked_each_time(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "journal.jsonl"
    items = [{"x": value}]
    assert scores(runner(path, lambda x: 1.0), items) == [1.0]
    assert scores(runner(path, lambda x: 2.0), items) in ([2.0], [1.0])
    if isinstance(value, Opaque):
        assert sample_key(items[0]) is None


def test_results_that_json_cannot_hold_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    own: dict[str, Any] = {"thing": object()}
    assert scores(runner(path, lambda x: GraderScore("g", 1.0, "r", own)), [{"x": 0}]) == [1.0]
    assert scores(runner(path, lambda x: 2.0), [{"x": 0}]) == [2.0]


def test_a_torn_tail_is_cut_and_another_spec_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    scores(runner(path, lambda x: x / 1), [{"x": i} for i in range(4)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert len(Journal(path, "s")) == 3
    assert path.read_bytes().endswith(b"\n")
    assert scores(runner(path, lambda x: 9.0), [{"x": i} for i in range(4)]) == [0, 1, 2, 9]
    with pytest.raises(RunFolderError, match="another spec"):
        Journal(path, "t")
    path.write_bytes(b"something else\n")
    with pytest.raises(RunFolderError, match="not a journal"):
        Journal(path, "s")


def test_failures_and_draws(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl", "s")
    journal.put("k", "g", 0, GraderError("g", ErrorKind.TIMEOUT, "late"))
    journal.put("k", "g", 1, GraderScore("g", 1.0))
    journal.flush()
    again = Journal(tmp_path / "j.jsonl", "s")
    assert again.take("k", "g", 0) is None
    assert again.take("k", "g", 1) == GraderScore("g", 1.0)
    assert again.take("k", "g", 1) is None


def test_a_result_that_cannot_be_read_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert scores(runner(path, lambda x: 1.0), [{"x": 0}]) == [1.0]
    path.write_bytes(path.read_bytes().replace(b'"score":1.0', b'"score":true'))
    assert scores(runner(path, lambda x: 2.0), [{"x": 0}]) == [2.0]
