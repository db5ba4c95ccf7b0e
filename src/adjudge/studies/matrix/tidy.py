"""The tidy table of a study: a row per checkpoint, scorer and measure."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from adjudge.studies.matrix.results import ArmResult, Point, StudyResult

__all__ = ["tidy_rows", "write_tidy"]

_COLUMNS = {
    "arm": "string",
    "judge": "string",
    "mitigation": "string",
    "levels": "string",
    "seed": "int64",
    "step": "int64",
    "kl": "double",
    "measure": "string",
    "scorer": "string",
    "role": "string",
    "value": "double",
    "answers": "int64",
    "missing": "int64",
}


def tidy_rows(result: StudyResult) -> Iterator[dict[str, Any]]:
    """Arm by arm and step by step: ``score`` of every scorer, then each feature.

    ``levels`` is JSON. ``role``: ``proxy`` (what the arm was trained on), ``member`` (part of it,
    where that is a panel), ``gold``, or ``held_out``: any judge that this arm was not trained on.
    ``value`` is null where no answer has a score; ``missing`` counts the answers without one.
    """
    for arm in result.arms:
        levels = msgspec.json.encode(arm.levels, order="sorted").decode()
        same = {
            "arm": arm.name,
            "judge": arm.judge,
            "mitigation": arm.mitigation,
            "levels": levels,
            "seed": arm.seed,
        }
        for point in arm.points:
            for row in _of_point(point, _roles(arm, result)):
                yield {**same, "step": point.step, "kl": point.kl, **row}


def _roles(arm: ArmResult, result: StudyResult) -> dict[str, str]:
    """Of the scorers that are not held out from ``arm``."""
    members = msgspec.convert(result.judges.get(arm.proxy, {}).get("members", []), list[str])
    return {**dict.fromkeys(members, "member"), arm.proxy: "proxy", result.gold: "gold"}


def _of_point(point: Point, roles: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    answers = len(point.prompts)
    for scorer, scored in point.scores.items():
        yield {
            "measure": "score",
            "scorer": scorer,
            "role": roles.get(scorer, "held_out"),
            "value": scored.mean,
            "answers": answers,
            "missing": sum(value is None for value in scored.values),
        }
    for feature, value in point.features.items():
        yield {
            "measure": feature,
            "scorer": None,
            "role": None,
            "value": value,
            "answers": answers,
            "missing": point.unanswered,
        }


def write_tidy(folder: Path, result: StudyResult) -> Path:
    """Write ``tidy.parquet`` where pyarrow is installed, else ``tidy.jsonl``; the path written."""
    if importlib.util.find_spec("pyarrow") is None:
        path = folder / "tidy.jsonl"
        lines = (msgspec.json.encode(row) + b"\n" for row in tidy_rows(result))
        path.write_bytes(b"".join(lines))
        return path
    import pyarrow as pa  # noqa: PLC0415  (an extra, heavy)
    import pyarrow.parquet as pq  # noqa: PLC0415

    kinds = {"double": pa.float64(), "string": pa.string(), "int64": pa.int64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in _COLUMNS.items()])
    path = folder / "tidy.parquet"
    pq.write_table(pa.Table.from_pylist(list(tidy_rows(result)), schema=schema), path)
    return path
