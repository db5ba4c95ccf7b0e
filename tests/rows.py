"""Rows of formats as tests compare them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adjudge.datasets.files import read_rows
from adjudge.errors import RolloutError
from adjudge.rollouts.recognition import list_formats
from adjudge.rollouts.samples import sample_from_row

DATA = Path(__file__).parent / "data" / "rollouts"
NAMED = {one.name: one for one in list_formats()}


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """``rows`` as JSON lines in a new file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_jsonl(path: Path) -> list[Any]:
    """The lines of a file, which is all JSON."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def records(name: str) -> list[dict[str, Any]]:
    """The records of a file of rollouts, which are all whole."""
    rows = [row for _, row in read_rows([DATA / name])]
    return [row for row in rows if isinstance(row, dict)]


def converted(name: str) -> list[Any]:
    """The rows of a file in the folder of its format; what is no row as its message."""
    rows: list[Any] = []
    for record in records(name):
        try:
            rows += NAMED[name.partition("/")[0]].rows(record)
        except RolloutError as error:
            rows.append(error)
    return [str(row) if isinstance(row, RolloutError) else checked_row(row) for row in rows]


def only_row(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """The one row of a record of the format ``name``."""
    [row] = NAMED[name].rows(record)
    assert isinstance(row, dict)
    return checked_row(row)


def checked_row(row: dict[str, Any]) -> dict[str, Any]:
    """The sample of a row as columns; after ``opening_turns`` the policy speaks."""
    sample = sample_from_row(row, 0)
    after = (sample.messages or [])[sample.opening_turns or 0 :]
    if sample.opening_turns is not None and after:
        assert after[0]["role"] == "assistant", (sample.opening_turns, sample.messages)
    texts = {name: getattr(sample, name) for name in ("prompt", "response", "messages", "group")}
    return {name: one for name, one in texts.items() if one is not None} | dict(sample.extra)


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: Any, **others: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **others}
    return {**message, "tool_calls": list(calls)} if calls else message


def tool(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


ROWS = DATA.parent / "rollout_rows.json"
"""The rows of each file, as they were read over; ``python -m tests.rows`` writes them anew."""


def write_rows() -> None:
    """A line for each row."""
    files = []
    for name in json.loads(ROWS.read_text(encoding="utf-8")):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in converted(name))
        files.append(f"{json.dumps(name)}: [\n{rows}\n]")
    ROWS.write_text("{\n" + ",\n".join(files) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_rows()
