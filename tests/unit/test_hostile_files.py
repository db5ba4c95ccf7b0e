"""Files that are broken, or made to fill memory or time: one broken row, or one refusal."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke

from adjudge.datasets import files, sources
from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts import samples
from adjudge.rollouts.samples import SampleReader

ROWS = [{"prompt": f"p{i}", "response": f"r{i}"} for i in range(3)]
A, B, C = (json.dumps(row).encode() + b"\n" for row in ROWS)
LONG = b'{"response": "' + b"x" * 600 + b'"}\n'
PACKINGS = [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.gz", gzip.compress)]


def limit_rows(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in (files, sources):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", most)


def read(path: Path) -> dict[str, Any]:
    """Each row by its place in the file; a broken one as ``None``."""
    return {
        where.rpartition(":")[2]: None if isinstance(row, RolloutError) else row
        for where, row in read_rows([path])
    }


@pytest.mark.parametrize(("name", "pack"), [*PACKINGS, ("a.json", bytes), ("rows", bytes)])
def test_a_line_longer_than_a_row_is_one_broken_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, pack: Any
) -> None:
    limit_rows(monkeypatch, 200)
    path = tmp_path / name
    a, b, c = ROWS
    for content, expected in (
        (A + LONG + B + C, {"1": a, "2": None, "3": b, "4": c}),
        (LONG + A + B, {"1": None, "2": a, "3": b}),
        (A + B + LONG, {"1": a, "2": b, "3": None}),
        (A + LONG[:-1], {"1": a, "2": None}),
        (A + b"\n" + LONG + LONG + b"\n" + B, {"1": a, "3": None, "4": None, "6": b}),
        (A + b" " * 500 + b"\n" + B, {"1": a, "2": None, "3": b}),
        (A + LONG[:200] + b"\n" + B, {"1": a, "2": None, "3": b}),
    ):
        path.write_bytes(pack(content))
        assert read(path) == expected


def test_a_packed_line_of_any_length_takes_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_rows(monkeypatch, 1 << 16)
    asked: list[int] = []
    real = gzip.GzipFile.readline

    def readline(self: Any, size: int = -1) -> bytes:
        asked.append(size)
        return real(self, size)

    monkeypatch.setattr(gzip.GzipFile, "readline", readline)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(A + b'{"response": "' + b"x" * (1 << 22) + b'"}\n' + B))
    assert read(path) == {"1": ROWS[0], "2": None, "3": ROWS[1]}
    assert 0 < min(asked) <= max(asked) <= (1 << 16) + 1


TEXT = b"".join([A, B, C]).decode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", A + '{"response": "caf\u00e9"}\n'.encode("latin-1") + B),
        (
            "a.json",
            b"[" + A + b"," + '{"response": "caf\u00e9"}'.encode("latin-1") + b"," + B + b"]",
        ),
    ],
)
def test_a_row_that_is_not_utf8_is_broken_and_says_so(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    rows = [row for _, row in read_rows([path])]
    assert [rows[0], rows[2]] == ROWS[:2]
    assert "is not UTF-8" in str(rows[1])
    assert "iconv" in str(rows[1])


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "itself").symlink_to(".")
    (tmp_path / "rows.jsonl").write_bytes(A + B)
    assert [one.response for one in SampleReader([tmp_path], {})] == ["r0", "r1"]
    for name, reason in (
        ("pipe", "no regular file"),
        ("zero", "no regular file"),
        ("loop", "no such"),
    ):
        with pytest.raises(ConfigError, match=reason):
            list(read_rows([tmp_path / f"{name}.jsonl"]))


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "middle",
    [
        DEEP,
        json.dumps({"messages": DEEP.decode()}).encode(),
        b"\0" * 5_000 + b"{",
        b'{"response": "a\0b"}',
        b'{"response": "r", "reward": 1e400}',
        b'{"response": "r", "reward": ' + b"9" * 5_000 + b"}",
    ],
)
def test_a_hostile_line_costs_its_own_row(tmp_path: Path, middle: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(A + middle + b"\n" + B)
    reader = SampleReader([path], {})
    assert [one.response for one in reader] == ["r0", "r1"]
    assert [one.where for one in reader.broken] == [f"{path}:2"]


@pytest.mark.parametrize("command", [["init"], ["audit"], ["grade", "--spec", "spec.toml"]])
def test_commands_end_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text('[[graders]]\nname = "a"\ntype = "json_valid"\n')
    for name, content in (
        ("empty.jsonl", b""),
        ("nul.jsonl", b"\0" * 9_000),
        ("torn.jsonl.gz", gzip.compress(TEXT.encode())[:20]),
        ("magic.gz", b"\x1f\x8b"),
        ("torn.parquet", b"PAR1torn"),
        ("wide.csv", ",".join(map(str, range(9_999))).encode() + b"\n1\n"),
    ):
        Path(name).write_bytes(content)
        found = invoke(*command, name, "-o", f"{name}.out")
        assert found.exit_code == 2, found.output
        assert name in found.stderr


def test_a_file_of_nothing_but_broken_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "_MOST_BROKEN", 50)
    path = tmp_path / "a.jsonl"
    path.write_bytes(A + b"{}\n" * 300)
    with pytest.raises(ConfigError, match="no samples"):
        list(SampleReader([path], {}))
    path.write_bytes((A + b"{}\n" * 9) * 30)
    reader = SampleReader([path], {})
    assert (sum(1 for _ in reader), len(reader.broken)) == (30, 270)
