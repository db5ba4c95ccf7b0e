import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adjudge.datasets.files import read_rows
from adjudge.datasets.shards import Shard, cut_files, read_shard
from adjudge.errors import ConfigError, RolloutError

LINES = st.lists(
    st.sampled_from(
        [b"", b"  ", b'{"response": "a"}', b"\x00\x00" + b'{"response": "b"}', b"{broken", b"[1]"]
    ),
    max_size=30,
)


def told(row: object) -> object:
    return "broken" if isinstance(row, RolloutError) else row


@given(
    files=st.lists(st.tuples(LINES, st.booleans()), min_size=1, max_size=3), rows=st.integers(1, 7)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_shards_are_the_files_rows(
    tmp_path: Path, files: list[tuple[list[bytes], bool]], rows: int
) -> None:
    paths = []
    for number, (lines, ends) in enumerate(files):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"\n".join(lines) + (b"\n" if ends else b""))
        paths.append(path)
    shards = list(cut_files(paths, rows))
    assert [shard.number for shard in shards] == list(range(len(shards)))
    assert all(1 <= shard.rows <= rows for shard in shards)
    read = [(index, told(row)) for shard in shards for index, row in read_shard(shard)]
    assert read == [(index, told(row)) for index, (_, row) in enumerate(read_rows(paths))]


@pytest.mark.parametrize("parts", [1, 3, 100])
def test_row_groups_are_cut_in_parts(tmp_path: Path, parts: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "some.parquet"
    table = pyarrow.Table.from_pylist([{"response": str(i)} for i in range(2500)])
    parquet.write_table(table, path, row_group_size=1100)
    shards = list(cut_files([path, path], 200, parts=parts))
    assert max(shard.rows for shard in shards) <= max(200, -(-1100 // parts))
    assert len(shards) <= 2 * 3 * parts
    read = [(index, row) for shard in shards for index, row in read_shard(shard)]
    assert read == [(i, {"response": str(i % 2500)}) for i in range(5000)]


def test_a_worker_without_the_file_says_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"response": "a"}))
    [shard] = cut_files([path], 10)
    path.unlink()
    with pytest.raises(ConfigError, match="same path"):
        list(read_shard(shard))
    assert isinstance(shard, Shard)
