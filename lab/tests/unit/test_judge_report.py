"""A judge's report: hostile names and texts are shown, never run."""

from pathlib import Path
from typing import Any

import pytest
from lab.tests.unit.helpers.judge_cards import make_card

from adjudge_lab.judge_training.report import judge_summary_lines, write_judge_report

EVIL = "</td></p><script>alert(1)</script>\"'&{x}%s\x00\ud800"


def summary_of(said: str) -> dict[str, Any]:
    counts = {"rows": 3, "truncated": 0, "unusable": 1, "problems": [said]}
    files = [{"file": said, "path": said, "bytes": 1, "sha256": "0" * 64}]
    return {
        "adjudge": "0", "created": "now", "label": said, "method": "grpo", "mode": "pointwise",
        "base": said, "seed": 0, "overrides": {"MODEL_PATH": said}, "not_done": [said],
        "steps": 2, "batch_size": 2, "best_step": 2, "tokens": 5, "tokens_per_s": 2.5,
        "weights": {"parameters": 9, "trainable": 9}, "learned": "judgements",
        "data": {
            "train": files, "val": files, "train_rows": counts, "val_rows": counts,
            "unreadable": {"rows": 1, "problems": [said]}, "val_seen_in_training": 1,
            "duplicates": {"rows": 1, "contradicting": 0},
            "val_duplicates": {"rows": 2, "contradicting": 1},
        },
        "first": {}, "seconds": {"total": 1.0},
        "validation": {
            "accuracy": 0.5, "unread": 1.0, "rows": 3, "chosen_by": said,
            "subsets": {
                said: {"rows": 3, "unread": 0.25, "accuracy": 0.5}, "none": {"rows": 1, "unread": 1}
            },
        },
        "baselines": {
            "val": {"best": "2", "best_reward": 0.7, "chance": 0.6, "by_answer": {"2": 0.7}}
        },
    }  # fmt: skip


def report(folder: Path, said: str) -> str:
    rows = [
        {"step": 0, "val/unread": 1.0, "val/reward_mean": -0.25},
        {"step": 2, "val/unread": 0.5, "val/reward_mean": 0.2, "lr": 1e-3},
    ]
    card = make_card(kind="generative", method="grpo", mode="pointwise", label=said)
    write_judge_report(folder / "report.html", summary_of(said), rows, card)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_rows_and_names_are_shown_as_they_are(tmp_path: Path) -> None:
    html = report(tmp_path, EVIL)
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert") >= 8
    assert "2 held-out rows repeated another and were left out, 1 of them" in html


@pytest.mark.parametrize("part", ["train", "val"])
def test_unusable_rows_are_counted_in_the_summary(part: str) -> None:
    found = next(line for line in judge_summary_lines(summary_of("mine")) if f"{part}_rows" in line)
    assert found.split(maxsplit=1)[1] == "3, 0 truncated, 1 unusable"
