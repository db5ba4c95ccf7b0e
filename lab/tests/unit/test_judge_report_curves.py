"""The curves of a judge's training report."""

from typing import Any

from adjudge_lab.judge_training.report import metric_charts


def drawn(rows: list[dict[str, float]], baselines: dict[str, Any]) -> str:
    return str(metric_charts(rows, baselines))


def test_what_the_best_step_is_chosen_by_is_drawn() -> None:
    html = drawn([{"step": 0, "val/error": 1.0, "val/error_or_unread": 1.5}], {})
    assert "Mean error, no verdict counted as 4, held out" in html


def test_a_run_without_steps_says_so() -> None:
    assert "No step" in drawn([], {})
