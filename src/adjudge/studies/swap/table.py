"""The tidy table of a study: a row per sample and judge."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.rewards.groups import group_step
from adjudge.studies.swap.sheet import Sheet

__all__ = ["tidy_rows", "write_rows"]

_BATCH = 50_000
_COLUMNS = {
    "index": "int64",
    "group": "string",
    "step": "int64",
    "judge": "string",
    "reward": "double",
    "missing": "string",
    "advantage": "double",
    "best": "bool",
    "length": "int64",
    "markdown": "int64",
    "lists": "int64",
    "code": "int64",
    "env_reward": "double",
}


def tidy_rows(sheet: Sheet) -> Iterator[dict[str, Any]]:
    """The rows, judge by judge in the order of the samples.

    ``reward`` is null where it is missing, and ``missing`` then the kind of failure. ``advantage``
    is (r − mean)/std over what this judge judged of the group; ``best``: none of the group has a
    higher reward; both null where the reward is.
    """
    members = sheet.members
    for judge in sheet.judges:
        advantages: list[float | None] = [None] * len(sheet.lines)
        best: list[bool | None] = [None] * len(sheet.lines)
        for group in members:
            rewards = [judge.rewards[at] for at in group]
            highest = max((one for one in rewards if one is not None), default=None)
            for at, own, reward in zip(group, group_step(rewards, "z_score"), rewards, strict=True):
                advantages[at] = own
                best[at] = None if reward is None else reward == highest
        for at, line in enumerate(sheet.lines):
            yield {
                "index": line.index,
                "group": line.group,
                "step": line.step,
                "judge": judge.name,
                "reward": judge.rewards[at],
                "missing": judge.kinds[at],
                "advantage": advantages[at],
                "best": best[at],
                **line.features._asdict(),
                "env_reward": line.env_reward,
            }


def write_rows(folder: Path, sheet: Sheet) -> Path:
    """Write ``rows.parquet`` where pyarrow is installed, else ``rows.jsonl``; the path written."""
    kept = "parquet" if importlib.util.find_spec("pyarrow") else "jsonl"
    path = folder / f"rows.{kept}"
    fresh = folder / f".rows.{kept}.tmp"
    if kept == "parquet":
        _parquet(fresh, sheet)
    else:
        with fresh.open("wb") as file:
            for row in tidy_rows(sheet):
                file.write(msgspec.json.encode(row) + b"\n")
    fresh.replace(path)
    return path


def _parquet(path: Path, sheet: Sheet) -> None:
    import pyarrow as pa  # noqa: PLC0415  (an extra, heavy)
    import pyarrow.parquet as pq  # noqa: PLC0415

    kinds = {"double": pa.float64(), "string": pa.string(), "bool": pa.bool_(), "int64": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in _COLUMNS.items()])
    with pq.ParquetWriter(path, schema) as writer:
        for batch in _batches(tidy_rows(sheet)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
