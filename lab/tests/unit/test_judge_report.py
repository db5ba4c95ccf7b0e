"""A judge's report: hostile names and texts are shown, never run."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from adjudge.graders.llm.trained_judge_card import JudgeCard
from adjudge_lab.judge_training.report import judge_summary_lines, write_judge_report

EVIL = "</td></p><script>alert(1)</script>\"'&{x}%s\x00\ud800"


class Elements(HTMLParser):
    """Which elements there are, and what their attributes say."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.said += [name for name, _ in attrs]


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


def card_of(label: str) -> JudgeCard:
    return JudgeCard(
        adjudge="0", kind="generative", method="grpo", mode="pointwise", label=label, created="",
        base={}, data={}, config={}, validation={}, max_length=64,
    )  # fmt: skip


def report(folder: Path, said: str) -> tuple[str, Elements]:
    rows = [
        {"step": 0, "val/unread": 1.0, "val/reward_mean": -0.25},
        {"step": 2, "val/unread": 0.5, "val/reward_mean": 0.2, "lr": 1e-3},
    ]
    write_judge_report(folder / "report.html", summary_of(said), rows, card_of(said))
    html = (folder / "report.html").read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(html)
    return html, elements


def test_nothing_that_rows_or_names_say_becomes_part_of_the_page(tmp_path: Path) -> None:
    html, hostile = report(tmp_path, EVIL)
    _, plain = report(tmp_path, "harmless")
    assert "script" not in hostile.found
    assert hostile.found == plain.found
    assert hostile.said == plain.said
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert") >= 8
    assert "2 held-out rows repeated another and were left out, 1 of them" in html


def test_subsets_have_no_accuracy_where_no_reply_had_a_verdict(tmp_path: Path) -> None:
    html, _ = report(tmp_path, "mine")
    percents = [
        text.replace("\u202f", " ") for text in re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", html)
    ]
    percents = percents[percents.index("mine") :]
    assert percents == ["mine", "3", "25.0 %", "50.0 %", "none", "1", "100 %", "–"]


def test_a_measure_that_was_not_there_before_is_no_number(tmp_path: Path) -> None:
    lines = judge_summary_lines(summary_of("mine"))
    accuracy = next(line for line in lines if line.startswith("accuracy"))
    assert accuracy.split() == ["accuracy", "–", "→", "0.500"]


@pytest.mark.parametrize("part", ["train", "val"])
def test_unusable_rows_are_counted_in_the_summary(part: str) -> None:
    found = next(line for line in judge_summary_lines(summary_of("mine")) if f"{part}_rows" in line)
    assert found.split(maxsplit=1)[1] == "3, 0 truncated, 1 unusable"
