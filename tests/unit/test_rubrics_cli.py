"""``adjudge rubric lint``: tables, JSON and exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke

lint = partial(invoke, "rubric", "lint")


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("criteria", "plain", "strict"),
    [
        (["Names the cause"], 0, 0),
        (["Contains a table"], 0, 0),
        (["Mentions side effects"], 0, 1),
        ([{"criterion": "a", "points": "x"}], 2, 2),
    ],
    ids=["clean", "note", "warning", "bad input"],
)
def test_exit_codes(tmp_path: Path, criteria: Any, plain: int, strict: int) -> None:
    file = write(tmp_path / "rubric.json", criteria)
    assert lint(file).exit_code == plain
    assert lint(file, "--strict").exit_code == strict


def test_the_table_shows_what_why_and_the_remedy(tmp_path: Path) -> None:
    result = invoke(
        "rubric",
        "lint",
        write(tmp_path / "rubric.json", ["Names it", "Mentions \x1b[Hside effects[/]"]),
    )
    for part in ("warning", "presence_only", "2 Mentions", "say what must be said", "1 warnings"):
        assert part in result.output
    assert "\x1b[H" not in result.output


def test_json(tmp_path: Path) -> None:
    file = write(tmp_path / "rubric.json", ["Names it", "Mentions side effects"])
    report = json.loads(lint(file, "--json").output)
    assert (report["rubrics"], report["criteria"], report["warnings"]) == (1, 2, 1)
    (finding,) = report["findings"]
    assert (finding["rule"], finding["criterion"], finding["severity"]) == (
        "presence_only",
        "2",
        "warning",
    )


def test_rows_with_a_rubric_each(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p", "reward_model": {"rubrics": [{"criterion": "Mentions x", "points": 1.0}]}},
        {"prompt": "q", "reward_model": {"rubrics": [{"criterion": "Avoids x", "points": -1.0}]}},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    report = lint(file, "--json")
    found = [(f["where"][-1], f["rule"]) for f in json.loads(report.output)["findings"]]
    assert found == [("1", "presence_only"), ("2", "polarity")]
    assert "2 criteria in 2 rubrics" in lint(file).output
    refused = lint(file, "--column", "rubric")
    assert refused.exit_code == 2
    assert "found prompt, reward_model" in refused.output


def test_a_bundle_file(tmp_path: Path) -> None:
    guide = {"criteria": ["Explores"], "scoring_guide": {"0.0-0.5": "poor", "0.5-1.0": "good"}}
    result = invoke(
        "rubric",
        "lint",
        write(tmp_path / "b.json", {"global_rubric": guide, "events": ["Mentions x"]}),
    )
    assert "events 1 Mentions x" in result.output


def test_broken_rows_and_files_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{\n", encoding="utf-8")
    (tmp_path / "none.txt").write_text("x", encoding="utf-8")
    for name in ("rows.jsonl", "none.txt", "absent.toml", "absent.jsonl"):
        result = lint(tmp_path / name)
        assert result.exit_code == 2
        assert "adjudge:" in result.output
