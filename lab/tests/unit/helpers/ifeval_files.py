"""IFEval in small: prompts whose instructions need no language detection, and their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rows import write_jsonl

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


def write_prompts(path: Path, count: int) -> Path:
    return write_jsonl(path, [prompt(key) for key in range(count)])


def response(key: int, text: str = GOOD, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt(key)["prompt"], "response": text, **more}
