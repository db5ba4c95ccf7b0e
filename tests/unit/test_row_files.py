"""Files of rows in every packing: what is read, where it stands, and what is refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.datasets import files
from adjudge.datasets.files import find_container, find_files, read_rows, read_stdin
from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts.samples import SampleReader

ROWS = [{"prompt": "p", "response": f"r{i}", "n": i} for i in range(3)]


def as_lines(rows: Any = ROWS) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_table(delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ROWS[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def as_zstandard(data: bytes) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


def as_log(rows: Any = ROWS) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("header.json", "{}")
        for number, row in enumerate(rows):
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(row))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "container"),
    [
        ("a.jsonl", as_lines(), "lines"),
        ("a.json", as_lines(), "lines"),
        ("a.jsonl", json.dumps(ROWS, indent=1).encode(), "array"),
        ("a.json", b"\xef\xbb\xbf" + json.dumps(ROWS, indent=1).encode(), "array"),
        ("rollouts", as_lines(), "lines"),
        ("a.csv", as_table(","), "table"),
        ("a.tsv", as_table("\t"), "table"),
        ("a", as_table("\t"), "table"),
        ("a.eval", as_log(), "zip"),
    ],
)
@pytest.mark.parametrize("compress", [None, gzip.compress, as_zstandard])
def test_every_packing_gives_the_same_rows(
    tmp_path: Path, name: str, content: bytes, container: str, compress: Any
) -> None:
    if compress is not None and container == "zip":
        return
    path = tmp_path / (name if compress is None else f"{name}.{compress.__name__[:2]}")
    path.write_bytes(content if compress is None else compress(content))
    assert find_container(path) == container
    found = list(read_rows([path]))
    rows = [row for _, row in found if isinstance(row, dict)]
    expected = [row | {"n": str(row["n"])} for row in ROWS] if container == "table" else ROWS
    assert rows == expected
    assert all(where.startswith(f"{path}:") for where, _ in found)


def test_a_broken_first_line_costs_one_row(tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl"):
        (tmp_path / name).write_bytes(b'{"response": "to\n' + as_lines())
        found = [row for _, row in read_rows([tmp_path / name])]
        assert isinstance(found[0], RolloutError)
        assert found[1:] == ROWS


def test_cells_keep_their_lines_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt,response\n"two\nlines","say ""hi"", twice"\n\nx\na,b,c\n')
    (first, one), (second, two), (third, three) = read_rows([path])
    assert (first, one) == (f"{path}:2", {"prompt": "two\nlines", "response": 'say "hi", twice'})
    assert (second, two) == (f"{path}:5", {"prompt": "x", "response": None})
    assert third == f"{path}:6"
    assert "has 3 cells; the header has 2" in str(three)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.pt", b"PK\x03\x04", "is a pickle"),
        ("a.txt", b"hello\nworld\n", "is no file of rows"),
        ("a.jsonl.gz", gzip.compress(as_lines() * 400)[:-20], "cannot be read: Compressed file"),
        ("a.jsonl.zst", as_lines() * 4000, "cannot be read"),
        ("a.eval", b"PK\x03\x04 torn", "cannot be read: File is not a zip"),
        ("a.zip", as_log([])[:], "a.zip: cannot be read: is a zip file, and no .eval log"),
        ("a.json", b"[1, ", "cannot be read"),
        ("a.json", b"[" * 200_000, "cannot be read"),
        ("a.csv", "prompt,response\np,r\n".encode("utf-16"), "header is not UTF-8"),
        ("a.csv", b"prompt,response,prompt\np,r,q\n", "a.csv: prompt: two columns"),
        ("a.csv", b'prompt,response\np,"say "hi" there"\nq,r\n', "a.csv: cannot be read: line 2"),
    ],
)
def test_what_is_no_file_of_rows_is_one_message(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    if name.endswith(".zst"):
        path.write_bytes(as_zstandard(content)[:-30])
    with pytest.raises(ConfigError, match=complaint) as raised:
        list(read_rows([path]))
    assert str(path) in str(raised.value)


def test_an_array_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_DOCUMENT_BYTES", 20)
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    with pytest.raises(ConfigError, match="at most 20 bytes"):
        list(read_rows([tmp_path / "a.json"]))


def test_folders_and_patterns_are_their_files_in_order(tmp_path: Path) -> None:
    names = ("10.jsonl", "2.jsonl", "sub/1.jsonl.gz", "notes.md", ".hidden/1.jsonl")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [str(path.relative_to(tmp_path)) for path in find_files([tmp_path])]
    assert found == ["2.jsonl", "10.jsonl", "sub/1.jsonl.gz"]
    pattern = tmp_path / "*.jsonl"
    assert [path.name for path in find_files([pattern])] == ["2.jsonl", "10.jsonl"]
    for missing, complaint in (("none.jsonl", "no such file"), ("*.csv", "no such file")):
        with pytest.raises(ConfigError, match=complaint):
            find_files([tmp_path / missing])
    (tmp_path / "rollouts.jsonl").touch()
    assert [path.name for path in find_files([tmp_path])] == ["rollouts.jsonl"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match="has no file of rollouts"):
        find_files([empty])


def test_our_own_results_are_no_rollouts(tmp_path: Path) -> None:
    """The folder that was graded often has the results in it."""
    for name in ("a.jsonl", "runs/one/run.json", "runs/one/rewards.jsonl", "runs/two/run.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(as_lines())
    assert find_files([tmp_path]) == [tmp_path / "a.jsonl"]
    (tmp_path / "runs/two/rollouts.jsonl").write_bytes(as_lines())
    names = [str(path.relative_to(tmp_path)) for path in find_files([tmp_path])]
    assert names == ["a.jsonl", "runs/two/rollouts.jsonl"]


def test_what_a_folder_has_besides_rollouts_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes(as_lines())
    (tmp_path / "metadata.json").write_text('{"model": "m"}')
    (tmp_path / "figures.csv").write_text("step,loss\n1,2\n")
    reader = SampleReader([tmp_path], {})
    assert [one.response for one in reader] == ["r0", "r1", "r2"]
    assert [Path(name).name for name in reader.skipped] == ["figures.csv", "metadata.json"]
    assert list(reader.readings) == [str(tmp_path / "results.jsonl")]
    (tmp_path / "results.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"figures.csv: is in no known format"):
        list(reader)


def test_standard_input_is_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (as_lines(), json.dumps(ROWS).encode(), gzip.compress(as_lines())):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        found = read_stdin()
        assert [row for _, row in found] == ROWS
        assert [where for where, _ in found] == ["stdin:1", "stdin:2", "stdin:3"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\nworld")))
    with refuses("stdin"):
        read_stdin()


def test_what_is_wrong_in_a_table_costs_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'prompt,"the\nnote",response\r\np,,caf\xe9\r\nq,n,r\r\ns,,"never closed\nt,,u\n'
    )
    (_, latin), whole, (torn_at, torn) = read_rows([path])
    assert "is not UTF-8" in str(latin)
    assert whole == (f"{path}:4", {"prompt": "q", "the\nnote": "n", "response": "r"})
    assert torn_at == f"{path}:5"
    assert "not closed" in str(torn)
    path.write_bytes(b",prompt,response\n0,p,r\n")  # as pandas writes its index
    assert [row for _, row in read_rows([path])] == [{"prompt": "p", "response": "r"}]


def test_a_file_of_a_folder_that_breaks_off_is_a_broken_row(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(as_lines())
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(as_lines() * 4000)[:-20])
    (tmp_path / "3.parquet").write_bytes(b"torn")
    reader = SampleReader([tmp_path], {})
    assert sum(1 for _ in reader) > 3
    assert not reader.skipped
    assert [Path(row.where).name for row in reader.broken] == ["2.jsonl.gz", "3.parquet"]
    assert "cannot be read" in reader.broken[0].message
    with pytest.raises(RolloutError, match="cannot be read: Compressed file"):
        list(SampleReader([tmp_path], {}, strict=True))
