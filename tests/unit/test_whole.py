"""A file is there whole or as it was, whatever happens while it is written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adjudge.runs.folder import atomic_write, write_json


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


def test_json_is_for_people_too(tmp_path: Path) -> None:
    found = write_json(tmp_path / "a.json", {"mean": 0.5, "of": ["é"]}).read_text("utf-8")
    assert found == '{\n  "mean": 0.5,\n  "of": [\n    "é"\n  ]\n}\n'
