"""The curves of a judge's training report."""

from typing import Any

from adjudge_lab.judge_training.report import metric_charts


def drawn(rows: list[dict[str, float]], baselines: dict[str, Any]) -> str:
    return str(metric_charts(rows, baselines))


BASELINES = {"val": {"best": "2", "best_reward": 0.7}}


def test_a_reward_is_drawn_beside_the_best_constant_answer() -> None:
    rows = [
        {"step": 0, "val/reward_mean": 0.4, "val/unread": 0.1},
        {"step": 1, "train/reward_mean": 0.5, "lr": 1e-3},
        {"step": 2, "train/reward_mean": 0.6, "val/reward_mean": 0.8, "val/unread": 0.0},
    ]
    html = drawn(rows, BASELINES)
    assert html.count("best constant answer: always 2") >= 1
    assert "Reward, held out" in html
    assert "Replies without a verdict, held out" in html
    assert "Margin" not in html
    assert "best constant" not in drawn(rows, {})


def test_what_the_best_step_is_chosen_by_is_drawn() -> None:
    html = drawn([{"step": 0, "val/error": 1.0, "val/error_or_unread": 1.5}], {})
    assert "Mean error, no verdict counted as 4, held out" in html


def test_a_run_without_steps_says_so() -> None:
    assert "No step" in drawn([], {})
