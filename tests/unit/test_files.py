"""Files written in one piece, and logs that grow by whole lines, whatever kill or disk does."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from adjudge.files import (
    JsonlLog,
    atomic_write,
    encode_checked_line,
    iter_lines,
    iter_rows,
)


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def full() -> Iterator[bytes]:
        yield b"1"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        JsonlLog(Path("/dev/full")).append_lines(b"x" * 100_000)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.jsonl'"):
        atomic_write(tmp_path / "a.jsonl", full())
    assert not list(tmp_path.iterdir())


def test_bytes_and_pieces_and_new_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "a.jsonl"
    assert atomic_write(path, b"one\n") == path
    assert path.read_bytes() == b"one\n"
    atomic_write(path, (line for line in (b"1\n", b"2\n")))
    assert path.read_bytes() == b"1\n2\n"
    assert [one.name for one in path.parent.iterdir()] == ["a.jsonl"]


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = atomic_write(tmp_path / "a", b"old")

    def torn() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        atomic_write(path, torn())
    assert path.read_bytes() == b"old"
    atomic_write(path, b"newer")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


class Row(msgspec.Struct):
    n: int


def rows(path: Path, **how: Any) -> list[int]:
    return [row.n for row in iter_rows(path, Row, **how)]


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 200))
def test_a_log_that_was_torn_anywhere_goes_on_after_its_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], torn_at: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.jsonl"
    JsonlLog(path).append(*map(Row, numbers))
    whole = path.read_bytes()
    path.write_bytes(whole[:torn_at])
    left = rows(path)
    assert left == numbers[: whole[:torn_at].count(b"\n")]
    JsonlLog(path).append({"n": 77})
    assert rows(path) == [*left, 77]
    assert len(list(iter_lines(path))) == len(left) + 1


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":1}\n' + b"x" * 200_000)
    JsonlLog(path)
    assert path.read_bytes() == b'{"n":1}\n'
    path.write_bytes(b"x" * 200_000)
    JsonlLog(path)
    assert path.read_bytes() == b""


def test_damaged_lines_end_the_reading_or_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":1}\nbad\n{"n":"2"}\n\xff\n' + b"[" * 5000 + b'\n{"n":3}\n{"n":4')
    damaged: list[int] = []
    assert rows(path) == [1]
    assert rows(path, damaged=damaged) == [1, 3]
    assert damaged == [2, 3, 4, 5]
    assert rows(path, first=6) == [3]
    assert rows(tmp_path / "none", damaged=damaged) == []


def test_a_line_without_its_checksum_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    log = JsonlLog(path)
    log.append_lines(encode_checked_line(Row(1)) + encode_checked_line(Row(2)))
    log.append(Row(3))
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":9'))
    damaged: list[int] = []
    assert rows(path, checked=True, damaged=damaged) == [2]
    assert damaged == [1, 3]
    assert rows(path, damaged=[]) == [9, 2, 3]


def test_a_log_is_cut_back_and_written_anew(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "new" / "a.jsonl")
    log.truncate(Row, lambda _: True)
    assert not log.path.exists()
    log.append()
    assert log.path.read_bytes() == b""
    log.append({"n": 1, "what": object}, Row(2), Row(3))
    log.truncate(Row, lambda row: row.n < 3)
    assert rows(log.path) == [1, 2]
    log.rewrite([{"n": 5, "text": "half \ud800"}])
    assert list(iter_rows(log.path, dict[str, Any])) == [{"n": 5, "text": "half ?"}]
