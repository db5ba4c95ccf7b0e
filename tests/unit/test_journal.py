import os
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adjudge import FunctionGrader, GraderScore, GradingRunner, Journal, Sample
from adjudge.errors import RunFolderError
from adjudge.runner import journal as journal_module
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


@given(st.lists(st.integers(0, 5), max_size=40), st.randoms(), st.integers(1, 3))
def test_results_are_found_in_any_order(keys: list[int], random: Any, hashes: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "hash", lambda key: int(key[0]) % hashes, raising=False)
        patch.setattr(journal_module, "_READ_BYTES", 300)
        written = Journal(Path(folder) / "journal.jsonl", "s")
        for i, key in enumerate(keys):
            written.put(str(key), "g", 0, GraderScore(name="g", score=float(i), reason="r" * i))
        written.flush()
        found = Journal(Path(folder) / "journal.jsonl", "s")
        left = {key: [i for i, other in enumerate(keys) if other == key] for key in range(7)}
        asked = [*keys, *range(7)]
        random.shuffle(asked)
        for key in asked:
            result = found.take(str(key), "g", 0)
            expected = left[key].pop(0) if left[key] else None
            assert getattr(result, "score", None) == expected
        assert len(found) == 0


@pytest.mark.parametrize("change", ["replaced", "appended", "cut", "overwritten"])
def test_a_journal_that_changes_after_opening_gives_nothing_wrong(
    tmp_path: Path, change: str
) -> None:
    path = tmp_path / "journal.jsonl"
    written = Journal(path, "s")
    for i in range(200):
        written.put(f"k{i}", "g", 0, GraderScore(name="g", score=float(i), reason="r" * 200))
    written.flush()
    found, whole = Journal(path, "s"), path.read_bytes()
    if change == "replaced":
        (tmp_path / "other").write_bytes(b"x" * len(whole))
        (tmp_path / "other").replace(path)
    elif change == "appended":
        with path.open("ab") as file:
            file.write(b"rubbish\n")
    elif change == "cut":
        os.truncate(path, len(whole) // 2)
    else:
        with path.open("r+b") as file:
            file.write(b"\xff" * (len(whole) // 2))
    results = [found.take(f"k{i}", "g", 0) for i in range(200)]
    wrong = [i for i, result in enumerate(results) if getattr(result, "score", i) != i]
    assert wrong == []
    assert sum(result is None for result in results) in {
        "replaced": [0], "appended": [0], "cut": [100, 101], "overwritten": [100, 101]
    }[change]  # fmt: skip


def test_a_stored_result_takes_some_bytes_of_memory(tmp_path: Path) -> None:
    peaks = []
    for n in (2_000, 6_000):
        written = Journal(tmp_path / f"{n}.jsonl", "s")
        for i in range(n):
            written.put(f"{i:032x}", "g", 0, GraderScore(name="g", score=1.0, reason="r" * 500))
        written.flush()
        tracemalloc.start()
        found = Journal(tmp_path / f"{n}.jsonl", "s")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(found) == n
    assert (peaks[1] - peaks[0]) / 4_000 < 150, peaks


def test_a_forked_child_writes_its_own_results_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    parent = Journal(path, "s")
    for key in ("first", "pending"):  # the first is flushed at once
        parent.put(key, "g", 0, GraderScore(name="g", score=0.0))
    if (child := os.fork()) == 0:
        try:
            parent.put("child", "g", 0, GraderScore(name="g", score=1.0))
            parent.flush()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (b"child" in path.read_bytes(), b"pending" in path.read_bytes()) == (True, False)
    parent.flush()
    assert len(Journal(path, "s")) == 3


def test_a_samples_place_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for place, score in ((0, 1.0), (7, 2.0)):
        item = Sample(original_index=place, response="a")
        assert scores(runner(path, lambda response, score=score: score), [item]) == [1.0]


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


def test_no_flipped_bit_changes_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    first, second = GraderScore("g", 0.125, "because"), GraderScore("g", 0.5, "J*")
    journal = Journal(path, "s")
    journal.put("a", "g", 0, first)
    journal.put("b", "g", 0, second)
    journal.flush()
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for place in range(head, len(whole) - 1):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            read = Journal(path, "s")
            assert read.take("a", "g", 0) in (first, None), flipped
            assert read.take("b", "g", 0) in (second, None), flipped
    assert f"{path}:2: the line is damaged" in caplog.text
    assert f"{path}:3: the line is damaged" in caplog.text
