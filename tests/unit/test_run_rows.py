"""Which samples stand on a page: all that fit, else a stated choice, whatever they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.report_rows import made_row, series_of

from adjudge.errors import ErrorKind
from adjudge.runs import rows as report_rows
from adjudge.runs.report.page import write_grading_report
from adjudge.runs.rows import GradedRow, ReportRows
from adjudge.types import GraderError, GraderResult, GraderScore

GRADERS = 50


def chosen(count: int, text: str = "short", graders: int = 1) -> list[GradedRow]:
    """Every hundredth reward is missing, and one grader failed once in its own way."""
    names = [f"g{g}" for g in range(graders)]
    found = ReportRows(names, total=count)
    for i in range(count):
        said: dict[str, GraderResult] = {
            name: GraderScore(name, 0.5, f"{name} {i} {text}") for name in names
        }
        if i == count // 3:
            said["g0"] = GraderError("g0", ErrorKind.REFUSED, "no")
        texts: dict[str, Any] = {"prompt": f"{i} {text}"[:400], "response": f"{i} {text}"[:1200]}
        reward = None if i % 100 == 50 else i / 7
        found.on_sample(made_row(i, f"{i // 8} {text}", said, reward, **texts))
    return found.chosen()


def test_all_samples_that_fit_are_there() -> None:
    assert [one.index for one in chosen(2_000)] == list(range(2_000))


def test_of_too_many_each_sort_is_there_and_the_choice_is_always_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_rows, "MAX_BYTES", 300_000)
    count = 10_000
    found = [one.index for one in chosen(count)]
    assert found == [one.index for one in chosen(count)] == sorted(set(found))
    assert set(range(report_rows.FIRST)) <= set(found)
    assert {50, 150, 250, 350, 450, count // 3} <= set(found)
    assert 1_000 < len(found) < 1_600
    for tenth in range(10):  # of the whole input
        inside = sum(count * tenth // 10 <= index < count * (tenth + 1) // 10 for index in found)
        assert inside > 90, tenth


@pytest.mark.parametrize("sign", ["<&>", "\u2028", "\ud800", "報", "\x00", "é😀"])
def test_a_page_is_below_five_megabytes_whatever_samples_hold(tmp_path: Path, sign: str) -> None:
    rows = chosen(400, sign * 3_000, GRADERS)
    assert 20 < len(rows) < 400
    summary = {
        "samples": 400,
        "graders": {f"g{g}": {"weight": 1.0} for g in range(GRADERS)},
        "broken_rows": {"count": 99, "first": [{"where": sign, "message": sign * 99_999}] * 20},
    }
    write_grading_report(tmp_path / "report.html", summary, rows, series_of(rows))
    assert (tmp_path / "report.html").stat().st_size < 5_000_000


def test_a_text_that_repeats_takes_its_room_once() -> None:
    found = ReportRows()
    for i in range(2_000):
        found.on_sample(made_row(i, "g", {}, prompt="p" * 400, response="r" * 1_200))
    assert len(found.chosen()) == 2_000
