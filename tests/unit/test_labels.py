"""Labels of people: nothing is lost by two writers or a kill, and the last word counts."""

from __future__ import annotations

import logging
import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest

from adjudge.runs.labels import (
    Label,
    LabelLog,
    build_queue,
    select_current,
    stamp_label,
)
from adjudge.runs.sample_index import RolloutIndex, SampleRow

HOSTILE = ("=cmd()", "</script>\u2028", "a\nb", "lone \ud800", '"' * 9, "\x00", "ü" * 4_000)


def label(author: str = "ada", index: int = 0, **more: Any) -> Label:
    said: dict[str, Any] = (
        {} if {"verdict", "score", "withdrawn"} & more.keys() else {"verdict": "right"}
    )
    return Label(**stamp_label(), author=author, index=index, key=f"k{index}", **said, **more)


def write_many(folder: Path, author: str, count: int) -> None:
    log = LabelLog(folder)
    for index in range(count):
        log.append(label(author, index, note="x" * (index % 97)))


def test_two_people_at_once_lose_nothing(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    writers = [
        spawn.Process(target=write_many, args=(tmp_path, name, 500)) for name in ("ada", "bo")
    ]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    found = LabelLog(tmp_path).read()
    assert len(found) == len({one.id for one in found}) == 1_000
    for name in ("ada", "bo"):
        assert [one.index for one in found if one.author == name] == list(range(500))


def test_a_torn_row_is_named_and_does_not_swallow_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LabelLog(tmp_path)
    log.append(label(index=1))
    with log.path.open("ab") as file:
        file.write(b'{"id":"torn","time":"20')
    log.append(label(index=2))
    with caplog.at_level(logging.WARNING, "adjudge"):
        assert [one.index for one in log.read()] == [1, 2]
    assert f"{log.path}:2: the line is damaged" in caplog.text
    assert "The label is left out." in caplog.text


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "labels.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="cannot be used"):
        LabelLog(tmp_path).append(label())
    assert (tmp_path / "elsewhere").read_text() == ""


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_comes_back(tmp_path: Path, text: str) -> None:
    log = LabelLog(tmp_path)
    log.append(label(note=text), label(index=1))
    assert log.read()[0].note == text.replace("\ud800", "?")
    assert len(log.path.read_bytes().splitlines()) == 2


def test_the_last_one_of_an_author_counts_and_undo_brings_the_former_back() -> None:
    first = label(verdict="right")
    second = label(verdict="wrong")
    score = label(score=0.5)
    other = label("bo", verdict="right")
    assert select_current([first, second, score, other]) == [second, score, other]
    back = label(withdrawn=second.id)
    assert select_current([first, second, score, back]) == [first, score]
    stranger = label("bo", withdrawn=second.id)
    assert select_current([first, second, stranger]) == [second]


# --- the queue ----------------------------------------------------------------------------------


def samples(count: int, missing: int | None = None) -> RolloutIndex:
    rng, found = random.Random(0), RolloutIndex()
    for row in range(count):
        reward = None if row == missing else rng.random()
        found.add_row(SampleRow(index=row, group=row // 8, reward=reward), row, 1)
    return found


def test_the_queue_has_its_shares_and_no_sample_twice() -> None:
    disputed = range(0, 1_000, 3)
    queue = build_queue(samples(1_000), disputed)
    assert len({one.row for one in queue}) == len(queue)
    for reason, share in (("random", 0.5), ("disagreement", 0.3), ("near tie", 0.2)):
        assert sum(one.queue == reason for one in queue[:50]) == round(50 * share)
    assert build_queue(samples(1_000), disputed) == queue


def test_missing_rewards_are_not_proposed_and_a_near_tie_names_the_other() -> None:
    run = samples(64, missing=3)
    queue = build_queue(run)
    assert 3 not in {one.row for one in queue}
    ties = [one for one in queue if one.queue == "near tie"]
    assert ties
    assert all(
        run.group_of[one.row] == run.group_of[one.beside] for one in ties if one.beside is not None
    )
    assert all(one.beside is not None for one in ties)
    assert build_queue(RolloutIndex()) == []
