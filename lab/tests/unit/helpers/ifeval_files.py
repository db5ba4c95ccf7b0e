"""IFEval in small: prompts whose instructions need no language detection, and their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMA, WORDS, QUOTED = "punctuation:no_comma", "keywords:existence", "startend:quotation"

GOOD = '"a fine word"'
"""Follows everything."""


def prompt(key: int) -> dict[str, Any]:
    """Of three instructions; a third of the prompts has one only."""
    row: dict[str, Any] = {"key": key, "prompt": f"Write a word, number {key}."}
    if key % 3 == 0:
        return row | {"instruction_id_list": [COMMA], "kwargs": [{}]}
    kwargs: list[dict[str, Any]] = [{}, {"keywords": ["word"]}, {}]
    return row | {"instruction_id_list": [COMMA, WORDS, QUOTED], "kwargs": kwargs}


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_prompts(path: Path, count: int) -> Path:
    return write_rows(path, [prompt(key) for key in range(count)])


def response(key: int, text: str = GOOD, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt(key)["prompt"], "response": text, **more}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
