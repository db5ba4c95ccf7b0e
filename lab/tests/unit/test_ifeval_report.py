"""IFEval over a file of prompts and a file of responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge_lab.evaluation.ifeval.report import IfevalShare, score_ifeval

NO_COMMA, TITLE = "punctuation:no_comma", "detectable_format:title"
BULLETS = "detectable_format:number_bullet_lists"
INPUTS: list[dict[str, Any]] = [
    {
        "key": 1,
        "prompt": "P1",
        "instruction_id_list": [NO_COMMA, BULLETS],
        "kwargs": [{}, {"num_bullets": 1}],
    },
    {"key": 2, "prompt": "P2", "instruction_id_list": [TITLE], "kwargs": [{"letter": None}]},
    {"key": 3, "prompt": "P3", "instruction_id_list": [NO_COMMA], "kwargs": [{}]},
    {"key": 4, "prompt": "P4", "instruction_id_list": [BULLETS], "kwargs": [{}]},
    {"key": 5, "prompt": "P5", "instruction_id_list": [NO_COMMA], "kwargs": [{}]},
]
RESPONSES: list[dict[str, Any]] = [
    {"prompt": "P2", "response": "<<T>>", "key": 2},
    {"prompt": "P1", "response": "Sure, sir:\n* a", "key": 1},
    {"prompt": "p3", "response": "unjoined", "key": 3},
    {"prompt": "P4", "response": "* a", "key": 4},
    {"prompt": "P5", "response": None, "key": 5},
]


def test_report_joins_by_prompt_and_counts_what_is_missing() -> None:
    report = score_ifeval(INPUTS, RESPONSES)
    assert [row.key for row in report.rows] == [1, 2]
    assert (report.without_response, report.without_prompt) == ([3], [3])
    assert [(f.key, f.kind) for f in report.failures] == [
        (4, "invalid_input"),
        (5, "invalid_input"),
    ]
    strict, loose = report.scores("strict"), report.scores("loose")
    assert (strict.prompt, strict.instruction) == (IfevalShare(1, 2), IfevalShare(2, 3))
    assert (loose.prompt, loose.instruction) == (IfevalShare(2, 2), IfevalShare(3, 3))
    assert strict.by_category == {
        "detectable_format": IfevalShare(2, 2),
        "punctuation": IfevalShare(0, 1),
    }
    assert list(strict.by_type) == [BULLETS, TITLE, NO_COMMA]
    table = report.table()
    assert "| prompt level | 50.00 | 100.00 | 2 |" in table
    assert "Not counted: 1 prompts (3) without a response." in table
    assert "Not counted: 2 prompts (4, 5) could not be judged." in table


def test_report_joins_by_key() -> None:
    report = score_ifeval(INPUTS, RESPONSES, by="key")
    assert [row.key for row in report.rows] == [1, 2, 3]
    assert report.without_prompt == []


def test_report_refusals() -> None:
    twice = [*RESPONSES, {"prompt": "P2", "response": "other"}]
    with pytest.raises(ConfigError, match="response 6: an earlier response has the same prompt"):
        score_ifeval(INPUTS, twice)
    assert score_ifeval(INPUTS, [*RESPONSES, RESPONSES[0]]).without_prompt == [3]
    with pytest.raises(
        ConfigError,
        match=r"response 1: 'key' must be text or an integer to join by \(found NoneType",
    ):
        score_ifeval(INPUTS, [{"prompt": "P1", "response": "x"}], by="key")


def test_files_are_written_as_the_reference_writes_them(tmp_path: Path) -> None:
    score_ifeval(INPUTS, RESPONSES).write(tmp_path / "out")
    lines = (tmp_path / "out" / "eval_results_strict.jsonl").read_text().splitlines()
    assert list(json.loads(lines[0]).items()) == [
        ("follow_all_instructions", False),
        ("follow_instruction_list", [False, True]),
        ("instruction_id_list", [NO_COMMA, BULLETS]),
        ("prompt", "P1"),
        ("response", "Sure, sir:\n* a"),
    ]
    loose = (tmp_path / "out" / "eval_results_loose.jsonl").read_text().splitlines()
    assert [json.loads(line)["follow_all_instructions"] for line in loose] == [True, True]
