"""The report of a study: what it says, what it leaves open, and that no text gets out of hand."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab.tests.unit.helpers.made_study import arm, made_result, made_summary

from adjudge_lab.studies.charts import (
    ChartPoint,
    ChartSeries,
    xy_chart,
)
from adjudge_lab.studies.report import (
    render_plan_figures,
    render_study_page,
    write_figures,
    write_study_report,
)
from adjudge_lab.studies.results import AnswerScores, StudyResult
from adjudge_lab.studies.summary_view import plan_answer

HOSTILE = "</style><script>alert(1)</script>\"'&{x}\u202e\x07"


@cache
def usual() -> tuple[dict[str, Any], StudyResult]:
    result = made_result()
    return made_summary(result), result


@cache
def usual_page() -> str:
    return render_study_page(*usual())


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL))


# --- what it says ---------------------------------------------------------------------------------


def test_every_plan_is_answered_in_a_line_with_intervals() -> None:
    summary, _ = usual()
    lines = {plan["name"]: plan_answer(plan, summary) for plan in summary["plans"]}
    assert "at length 0 (plain)" in lines["bias"]
    assert "at length 1 (strong)" in lines["bias"]
    assert "A unit of length changes it by −" in lines["bias"]
    assert "gap in SDs" in lines["size"]
    assert "less that of plain" in lines["ensemble"]
    assert "strong −" in lines["ensemble"]
    for line in lines.values():
        assert re.search(r"\[−?[\d.]+, −?[\d.]+\]", line), line


def test_an_end_of_the_axis_is_all_cells_there() -> None:
    names = {"qwen-4": 4.0, "llama-4": 4.0, "qwen-9": 9.0, "qwen-70": 70.0, "llama-70": 70.0}
    arms = [
        arm(name, seed, levels={"size": size}) for name, size in names.items() for seed in (0, 1)
    ]
    summary = made_summary(made_result(arms=arms))
    line = plan_answer(next(one for one in summary["plans"] if one["name"] == "size"), summary)
    shown = re.findall(r"at size (\d+) \((\S+)\)", line)
    assert shown == [("4", "qwen-4"), ("70", "qwen-70"), ("4", "llama-4"), ("70", "llama-70")]


def test_no_figure_takes_the_file_of_another(tmp_path: Path) -> None:
    summary, result = usual()
    plans = [{**one, "name": "over-kl"} for one in summary["plans"][:1]]
    write_figures(tmp_path / "figures", {**summary, "plans": plans}, result)
    texts = {path.name: path.read_text() for path in (tmp_path / "figures").iterdir()}
    assert "Plan of bias" in texts["over-kl.svg"]
    assert any("Proxy and gold over √KL" in text for text in texts.values())


def test_one_seed_is_not_resampled_and_that_is_said() -> None:
    assert "seeds and prompts resampled" in usual_page()
    assert "bootstrap over 3 seeds" in text_of(usual_page())
    result = made_result(arms=[arm(judge, 0) for judge in ("plain", "strong")])
    page = text_of(render_study_page(made_summary(result, seeds=[0], pilot=True), result))
    assert "95 %, prompts resampled" in page
    assert "no interval here knows how much seeds differ" in page
    assert "bootstrap over" not in page


def test_what_is_missing_is_a_dash_with_its_reason() -> None:
    silent = made_result()
    arms = [
        msgspec.structs.replace(
            one,
            points=[
                msgspec.structs.replace(
                    point, scores={**point.scores, "gold": AnswerScores([None] * 6, {"timeout": 6})}
                )
                for point in one.points
            ],
        )
        for one in silent.arms
    ]
    result = made_result(arms=arms, best_of=[])
    summary = made_summary(result)
    page = text_of(render_study_page(summary, result))
    assert "– (unknown for every seed)" in page
    assert "–" in plan_answer(summary["plans"][0], summary)
    assert "0.000" not in plan_answer(summary["plans"][0], summary)


def test_a_study_in_which_every_arm_failed_has_a_page() -> None:
    result = made_result(arms=[], best_of=[], failed={"plain.none.seed-0": "JudgeUnavailable: x"})
    summary = made_summary(result)
    page = text_of(render_study_page(summary, result))
    assert "Nothing: no arm of it ended." in page
    assert "JudgeUnavailable: x" in page
    assert render_plan_figures(summary) == {}


def test_failures_and_costs_are_counted() -> None:
    page = text_of(usual_page())
    assert re.search(r"3.0.% of 300: timeout 9", page)
    assert "– (no call)" in page


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[0.0], [1e308, -1e308], [1e-300, 2e-300], [5.0, 5.0]])
def test_no_numbers_break_an_axis(values: list[float]) -> None:
    spots = [ChartPoint(float(place), value) for place, value in enumerate(values)]
    drawn = xy_chart("t", ("x", "y"), [ChartSeries("s", 0, "mean", spots)], zero=True)
    assert drawn is not None
    assert "nan" not in str(drawn.body)
    assert "inf" not in str(drawn.body).replace("infinite", "")
    assert xy_chart("t", ("x", "y"), [ChartSeries("s", 0, "mean", [])]) is None


def test_levels_are_placed_by_name_and_sizes_by_their_logarithm() -> None:
    named = xy_chart(
        "t", ("x", "y"), [ChartSeries("", 0, "seed", [ChartPoint("a", 1.0), ChartPoint("b", 2.0)])]
    )
    assert named is not None
    assert ">a<" in str(named.body)
    spots = [ChartPoint(8.0, 1.0), ChartPoint(64.0, 1.0), ChartPoint(512.0, 1.0)]
    sizes = xy_chart("t", ("x", "y"), [ChartSeries("", 0, "seed", spots)])
    assert sizes is not None
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', str(sizes.body))]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)


# --- hostile text ---------------------------------------------------------------------------------


def test_text_of_files_never_becomes_markup(tmp_path: Path) -> None:
    result = made_result(failed={HOSTILE: HOSTILE})
    renamed = [
        msgspec.structs.replace(one, judge=HOSTILE, levels={HOSTILE: HOSTILE}, mitigation=HOSTILE)
        if one.judge == "strong"
        else one
        for one in result.arms
    ]
    judges = {**result.judges, HOSTILE: {"levels": {HOSTILE: HOSTILE}, "bias": {}, "role": HOSTILE}}
    result = msgspec.structs.replace(result, arms=renamed, judges=judges)
    summary = made_summary(result, label=HOSTILE, warnings=[HOSTILE], manifest={HOSTILE: HOSTILE})
    for plan in summary["plans"]:
        plan["title"] = plan["note"] = HOSTILE
    path = tmp_path / "report.html"
    write_study_report(path, summary, result)
    html = path.read_text(encoding="utf-8")
    assert html.count("<script") == 0
    assert html.count("</style>") == 1
    assert "&lt;script&gt;alert(1)" in html
    for svg in [
        *re.findall(r"<svg role.*?</svg>", html, re.DOTALL),
        *render_plan_figures(summary).values(),
    ]:
        ET.fromstring(svg)
