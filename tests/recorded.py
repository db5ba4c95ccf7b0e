"""Recorded data for parity tests. It stays outside the project, in the folder `ADJUDGE_DATA`.

A test that reads it is marked `needs`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def find_recorded(name: str) -> Path:
    """The file or folder `name`; the test is skipped where it is absent, or fails in CI."""
    folder = os.environ.get("ADJUDGE_DATA")
    path = Path(folder or "", name)
    if folder and path.exists():
        return path
    reason = f"ADJUDGE_DATA has no {name}" if folder else f"ADJUDGE_DATA is not set: no {name}"
    if folder and os.environ.get("ADJUDGE_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def read_parquet(name: str) -> list[dict[str, Any]]:
    """The rows of a recorded Parquet file."""
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(find_recorded(name)).to_pylist()
    return rows
