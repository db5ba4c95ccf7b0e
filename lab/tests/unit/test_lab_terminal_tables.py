"""The lab's tables in a narrow terminal: first column whole, nothing cut."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.unit.helpers.narrow_terminal import check_narrow, check_words, figures, shown

from adjudge.report.table import Table
from adjudge_lab.cli import eval_benchmarks, eval_policy, study, study_replay

MODEL = "Qwen/Qwen2.5-7B-Instruct"
RUN = "runs/train-20260101-120000@step_1200"
FOUND = {"value": 0.8765, "low": 0.7654, "high": 0.9876, "why": None, "n": 123}


def test_tables_of_ifeval() -> None:
    part = {**FOUND, "least": 0.5, "most": 0.9, "n": 12_345}
    split: Any = {"prompt": part, "instruction": part, "by_category": {"detectable_format": part},
                  "by_type": {"detectable_format:number_highlighted_sections": part}}  # fmt: skip
    model = figures(name=RUN, strict=split, loose=split)
    check_narrow(eval_benchmarks._overall_table([model, {**model, "name": MODEL}]))
    one = {**FOUND, "difference": -0.0123, "p": 0.1234, "only_a": 12, "only_b": 345,
           "mcnemar_p": 0.1234, "prompts": 541}  # fmt: skip
    names = ["Pr(S)", "Ins(S)", "Pr(L)", "Ins(L)"]
    check_narrow(eval_benchmarks._comparison_table(f"{RUN} less {MODEL}", names, [one] * 4))
    check_narrow(eval_benchmarks._category_table({**model, "samples": (1, 8), "prompts": 541}))


def test_tables_of_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict.fromkeys(("mean", "pearson", "spearman"), FOUND)
    sentence = {"value": None, "low": None, "high": None, "why": "fewer than three seeds have both"}
    scores = {"helpfulness_of_answer": found, "reward": dict.fromkeys(found, sentence)}
    model = {"name": RUN, "official": FOUND, "scores": scores}
    monkeypatch.setattr(eval_policy, "missing_text", lambda *_: "server_error 12, timeout 3")
    check_narrow(eval_policy._judges(model))
    one = {"model": 0.5, "baseline": 0.4, "difference": FOUND, "p": 0.0123, "wins": 123,
           "ties": 12, "losses": 134}  # fmt: skip
    summary = {"models": [{"name": RUN}, {"name": MODEL}], "comparison": {"official": one}}
    check_narrow(eval_policy._comparison(summary))


def test_tables_of_studies() -> None:
    scorers = ["gold", "rubric-strict", "rubric-lenient", "pairwise", "helpfulness", "own"]
    row = {"judge": "rubric-lenient-8b", "gains": dict.fromkeys(scorers, FOUND)}
    check_narrow(study._transfer_table({"scorers": scorers, "rows": [row]}))
    cells = [("rubric-lenient-8b", "length penalty"), ("rubric-strict-8b", "none")]
    one = {"name": "sensitivity", "question": "does a weaker judge lead to more hacking",
           "x": "noise", "cells": cells, "arms": 12}  # fmt: skip
    check_narrow(study._plan_table([one], 5))
    judge = {"name": "rubric-lenient-8b", "levels": {"noise": 0.25, "bias": 0.5},
             "bias": {"length": 0.25}, "how": "trained on 12,345 pairs", "trained": True,
             "held_out": True}  # fmt: skip
    check_narrow(study._judge_table([judge]))
    files = (Path("examples/training/rl_tiny_first.toml"), Path("examples/rl_tiny_second.toml"))
    rows = [
        ["training.rollout.temperature", "0.7", "1.0"],
        ["graders.quality.template", "Name it from 1 to 10?\n{reply_form}\n\n{messages}\n", "–"],
    ]
    table = Table(["key", *files], rows, keep=[str(file) for file in files])
    check_narrow(table)
    assert "left out" not in shown(table, 60)


def test_tables_of_replays() -> None:
    common = {"recorded": 0.5123, "score": 0.4987, "changed": 1234, "rows": 12_345}
    arm = {
        "judge": MODEL,
        "source": "rollouts-of-step-1200",
        "parsed": 12_345,
        "verdicts": 12_346,
        "common": common,
        "unparsable": {"unparsable": 1234, "timeout": 12, "no_verdict": 34},
    }
    item = {"source": "rollouts-of-step-1200", "item": "crafter/seed-12345/turn-12", "items": 1234,
            "repeated": 1234, "mean": 0.1234, "largest": 0.9876}  # fmt: skip
    found = {"rows": 12_345, "asked": None, "arms": [arm], "ranges": [item], "parse": "strict"}

    def printed(width: int) -> str:
        file = io.StringIO()
        study_replay._print_summary(Console(file=file, width=width, highlight=False), found)
        return re.sub(
            r"columns left out for\s+width:[^;]*;\s+--json\s+has\s+all", "", file.getvalue()
        )

    for width in (60, 80):
        check_words(printed(width), printed(500), width)
