"""The report's file: structure, escaping, size. How it behaves is tests/e2e's business."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tests.unit.helpers.report_rows import made_row, series_of

from adjudge.errors import ErrorKind
from adjudge.runs.report.page import write_grading_report
from adjudge.runs.rows import GradedRow
from adjudge.types import GraderError, GraderScore

HOSTILE = "</script><script>alert(1)</script>&<img src=x onerror=alert(2)>\u2028\u2029\x00\ud800"


def graded(index: int, *, score: float | None = None, **changed: Any) -> GradedRow:
    """A row of one grader; ``score`` is the reward, too."""
    score = index % 4 / 3 if score is None else score
    fields: dict[str, Any] = {
        "group": f"g{index // 4}",
        "said": {"loop": GraderScore("loop", score, "a reason")},
        "reward": score,
        "env_reward": float(index % 2),
        "length": 100 + index,
        "tool_calls": index % 3,
        "prompt": f"question {index // 4}",
        "response": f"answer {index}",
    }
    return made_row(index, **(fields | changed))


def made_summary(n: int = 8, **changed: Any) -> dict[str, Any]:
    figure = {"value": 0.7, "low": 0.6, "high": 0.8, "pairs": 10}
    grader = {"type": "action_loop", "role": "score", "weight": 1.0, "score_range": [0.0, 1.0]}
    counts = {"scored": n, "missing": 0, "not_evaluable": 0, "missing_by_kind": {}}
    return {
        "samples": n,
        "groups": {"count": 2, "source": "equal prompts", "size_min": 4, "size_max": 4},
        "reward": {"present": n, "missing": 0, "mean": 0.5, "std": 0.4, "zero_spread_frac": 0.25},
        "graders": {"loop": {**grader, **counts, "auc": figure, "concordance": figure}},
        "env_reward": {"present": n, "binary": True},
        **changed,
    }


def written(tmp_path: Path, summary: dict[str, Any], rows: list[GradedRow]) -> str:
    path = tmp_path / "report.html"
    write_grading_report(path, summary, rows, series_of(rows))
    return path.read_bytes().decode("utf-8")


def block(page: str, opening: str) -> str:
    """What stands between ``opening`` and the next end of a script or style."""
    return re.split("</(?:script|style)>", page.partition(opening)[2], maxsplit=1)[0]


def rows_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(block(page, '<script type="application/json" id="rows">'))
    return found


def test_the_policy_admits_exactly_the_style_and_the_script_of_the_page(tmp_path: Path) -> None:
    page = written(tmp_path, made_summary(), [graded(0)])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for directive, opening in (("style-src", "<style>"), ("script-src", "<script>")):
        digest = hashlib.sha256(block(page, opening).encode()).digest()
        assert f"{directive} 'sha256-{base64.b64encode(digest).decode()}'" in policy[1]


def test_sample_text_is_data_only_and_comes_back_unchanged(tmp_path: Path) -> None:
    texts: dict[str, Any] = dict.fromkeys(("group", "prompt", "response"), HOSTILE)
    said = {"loop": GraderScore("loop", 0.5, HOSTILE)}
    row = graded(0, said=said, reward=None, why=(ErrorKind.TIMEOUT, HOSTILE), **texts)
    broken = {"count": 1, "first": [{"where": HOSTILE, "message": HOSTILE}]}
    page = written(tmp_path, made_summary(broken_rows=broken), [row])
    data = block(page, '<script type="application/json" id="rows">')
    assert not set("<>&\u2028\u2029\x00") & set(data)
    assert "alert(1)" not in page.replace(data, "")
    assert page.count("<script") == 2
    found = json.loads(data)
    for column in ("group", "prompt", "response", "missing_message"):
        assert found[column]["texts"] == [HOSTILE]
    assert found["notes"][0]["texts"] == [HOSTILE]
    assert found["broken"] == [{"where": HOSTILE, "message": HOSTILE}]


def test_names_from_the_users_files_are_escaped(tmp_path: Path) -> None:
    grader = {"type": "<blink>", "missing_by_kind": {"<em>": 1}, "role": "<var>"}
    summary = made_summary(
        graders={"<img src=x>": grader},
        inputs=["a<script>.jsonl", "odd\udcff.jsonl"],
        map={"<u>": "&"},
        missing={"by_kind": {"<q>": 1}},
    )
    page = written(tmp_path, summary, [graded(0)])
    tags = set(re.findall(r"<(\w+)", page))
    assert not {"img", "blink", "em", "var", "u", "q"} & tags
    assert "&lt;img src=x&gt;" in page
    assert "odd?.jsonl" in page


def test_the_summary_needs_no_script(tmp_path: Path) -> None:
    missing = {
        "by_kind": {"timeout": 3},
        "by_length_decile": [{"low": 10, "high": 25, "n": 4, "missing": 3}],
        "by_env_reward": [{"value": 0.5, "n": 4, "missing": 1}],
    }
    rows = [graded(i) for i in range(8)]
    page = written(tmp_path, made_summary(missing=missing), rows).partition("<script")[0]
    for text in ("0.700", "[0.600, 0.800]", "timeout", "10 to 25", "75.0\u202f%", "<noscript>"):
        assert text in page
    assert page.count('<svg class="hist"') == 6


def test_columns_hold_every_row_in_order(tmp_path: Path) -> None:
    rows = [graded(i) for i in range(8)]
    refused = GraderError("loop", ErrorKind.REFUSED, "no")
    rows[5] = graded(5, reward=None, said={"loop": refused})
    rows[6] = graded(6, said={"loop": GraderScore("loop", 2 / 3, "", {"evaluable": False})})
    data = rows_of(written(tmp_path, made_summary(), rows))
    assert data["count"] == 8
    assert data["index"] is None
    assert data["reward"][4:6] == [0.0, None]
    assert data["scores"] == [[0.0, 0.333333, 0.666667, 1.0, 0.0, None, 0.666667, 1.0]]
    assert data["not_evaluable"] == [[6]]
    assert data["prompt"] == {"texts": ["question 0", "question 1"], "ids": [0] * 4 + [1] * 4}
    assert data["response"]["texts"][7] == "answer 7"
    odd = [graded(0, env_reward=float("nan")), graded(7)]
    data = rows_of(written(tmp_path, made_summary(2), odd))
    assert data["index"] == [0, 7]
    assert data["env_reward"] == [None, 1.0]


def test_findings_say_what_a_group_sees(tmp_path: Path) -> None:
    def figure(value: float, low: float, high: float) -> dict[str, float]:
        return {"value": value, "low": low, "high": high, "pairs": 9}

    pooled_only = {"auc": figure(0.8, 0.7, 0.9), "concordance": figure(0.5, 0.4, 0.6)}
    useful = {"auc": figure(0.8, 0.7, 0.9), "concordance": figure(0.7, 0.6, 0.8)}
    wrong = {"auc": figure(0.2, 0.1, 0.3), "concordance": figure(0.3, 0.2, 0.4)}
    names = ("pooled", "useful", "wrong")
    row = graded(0, said={name: GraderScore(name, 1.0) for name in names})
    page = written(
        tmp_path,
        made_summary(graders={"pooled": pooled_only, "useful": useful, "wrong": wrong}),
        [row],
    )
    found = dict(re.findall(r"<li>(.*?): <code>(\w+)</code>", page))
    assert found["Follow the environment inside groups"] == "useful"
    assert found["Point the wrong way inside groups"] == "wrong"
    assert found["Not told apart from chance inside groups"] == "pooled"
    assert "pooled follows the environment over all samples, but inside" in page
    assert "25.0% of groups have the same reward" in page


def test_the_axis_shows_the_range_and_not_the_bins(tmp_path: Path) -> None:
    rows = [graded(i, score=0.75, env_reward=None) for i in range(4)]
    page = written(tmp_path, made_summary(4, env_reward=None), rows)
    charts = re.findall(r'<svg class="hist".*?</svg>', page)
    assert len(charts) == 2
    for chart in charts:
        ticks = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
        assert ticks == ["peak 4", "0.000", "0.500", "1.000"]
        assert "<title>0.750: 4</title>" in chart
