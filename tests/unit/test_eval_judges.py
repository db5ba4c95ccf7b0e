"""``adjudge eval judge``: judges of known quality on self-made items, through the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.rows import read_jsonl, write_jsonl
from tests.unit.helpers.benchmark_judges import Knower
from tests.unit.helpers.benchmark_samples import sample_rows, write_sample

from adjudge.errors import ErrorKind
from adjudge.judge_evaluation.benchmarks.items import BENCHMARK_KINDS, BenchmarkKind
from adjudge.runs.records import RunRecords
from adjudge.runs.view.run_reader import RunReader

pytestmark = pytest.mark.slow  # whole commands, one after the other

evaluate = partial(invoke, "eval", "judge")
SPEC = """
[[graders]]
name = "knows"
type = "tests.unit.helpers.benchmark_judges:Knower"
{more}
[reward]
normalise = false
"""
PAIRS = """
[[graders]]
name = "pairs"
type = "pairwise"
judge = "main"
[judges.main]
type = "scripted"
script = '{reply}'
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Knower, "asked", [])
    monkeypatch.setattr(Knower, "down", None)
    for name, more in (("good", ""), ("poor", "turned = 3"), ("part", "failing = 4")):
        Path(f"{name}.toml").write_text(SPEC.format(more=more))
    for name, reply in (("second", '{"better": "B"}'), ("mumble", "who knows")):
        Path(f"{name}.toml").write_text(PAIRS.format(reply=reply))
    for kind in BENCHMARK_KINDS:
        write_sample(Path(f"{kind}.jsonl"), kind)


def done(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The summary of a run into ``out``."""
    found = evaluate(*arguments, "-o", "out", "--json", "-q")
    assert found.exit_code == code, found.output
    summary: dict[str, Any] = json.loads(Path("out/summary.json").read_text())
    return summary


def refused(*arguments: str) -> str:
    found = evaluate(*arguments)
    assert found.exit_code == 2, found.output
    return found.stderr


@pytest.mark.parametrize("kind", BENCHMARK_KINDS)
def test_a_judge_that_knows_all_scores_one(kind: BenchmarkKind) -> None:
    summary = done("good.toml", "--data", f"{kind}.jsonl")
    [judge] = summary["judges"]
    best = (5 + 1.01) / 6 if kind == "rewardbench2" else 1.0
    assert judge["overall"]["score"] == pytest.approx(best)
    assert judge["overall"]["missing"] == 0
    assert sum(one["items"] for one in judge["subsets"].values()) == summary["benchmark"]["items"]
    rows = Path("out/judgements.jsonl").read_text().splitlines()
    assert len(rows) == summary["benchmark"]["items"]
    assert "<script" not in Path("out/report.html").read_text()
    record = next(iter(RunRecords(Path("out"))))  # each item can be looked at, several answers too
    assert record.messages is not None
    labelled = [one["role"] for one in record.messages if "labelled" in one["role"]]
    assert len(labelled) == 1
    assert len((record.details or {})["good"]["metadata"]["scores"]) >= 2


def test_the_score_is_the_share_that_it_gets_right() -> None:
    path = write_sample(Path("p.jsonl"), "preference", 200)
    summary = done("poor.toml", "--data", str(path))
    assert summary["benchmark"]["kind"] == "preference"
    [judge] = summary["judges"]
    rows = read_jsonl(Path("out/judgements.jsonl"))
    by_hand = [(row["scores"][0] > row["scores"][1]) + (row["scores"][0] == row["scores"][1]) / 2
               for row in rows]  # fmt: skip
    assert judge["overall"]["score"] == pytest.approx(sum(by_hand) / len(rows))
    assert 0.5 < judge["overall"]["low"] < judge["overall"]["score"] < judge["overall"]["high"] < 1


@pytest.mark.parametrize(
    ("kind", "turned", "j"), [("rewardbench2", 1, -1.0), ("preference", 0, 1.0)]
)
def test_youdens_j_of_a_judge_that_scores_0_or_1(
    kind: BenchmarkKind, turned: int, j: float
) -> None:
    """Each answer by itself: a judge that is always against the label has J = −1, and says so."""
    Path("turned.toml").write_text(SPEC.format(more=f"turned = {turned}"))
    found = done("turned.toml", "--data", f"{kind}.jsonl")["judges"][0]["youden"]
    assert found["value"] == j
    assert found["low"] <= j <= found["high"]
    shown = evaluate("turned.toml", "--data", f"{kind}.jsonl", "-o", "out").stdout
    assert ("trains the wrong way" in " ".join(shown.split())) == (j < 0)
    assert ("trains the wrong way" in Path("out/report.html").read_text()) == (j < 0)


def test_failures_stand_beside_the_score_and_are_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Knower, "down", ErrorKind.UNPARSABLE)
    summary = done("part.toml", "--data", "llmbar.jsonl")
    overall = summary["judges"][0]["overall"]
    assert overall["score"] == 1.0
    assert overall["missing"] > 10
    assert overall["at_least"] < 0.9
    assert overall["at_most"] == 1.0
    assert overall["own"] == pytest.approx(overall["at_least"])
    assert set(overall["failures"]) == {"unparsable"}
    assert overall["failures"]["unparsable"] >= overall["missing"]
    assert "unparsable" in Path("out/report.html").read_text()
    assert "<b>away" not in Path("out/report.html").read_text()
    shown = evaluate("part.toml", "--data", "llmbar.jsonl", "-o", "out")
    assert f"the first unparsable: {summary['judges'][0]['first_failures']['unparsable']}" in (
        " ".join(shown.stdout.split())
    )


def test_a_resumed_run_asks_only_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Knower, "down", ErrorKind.TIMEOUT)
    asked = ("part.toml", "--data", "judgebench.jsonl")
    first = done(*asked)
    failed = first["judges"][0]["overall"]["failures"]["timeout"]
    assert len(Knower.asked) == first["judges"][0]["questions"]
    Knower.asked.clear()
    monkeypatch.setattr(Knower, "down", None)
    second = done(*asked)
    assert len(Knower.asked) == failed
    assert second["judges"][0]["resumed"] == first["judges"][0]["questions"] - failed
    assert second["judges"][0]["overall"]["missing"] == 0
    Knower.asked.clear()
    assert done(*asked)["judges"] == [
        {**second["judges"][0], "resumed": second["judges"][0]["questions"]}
    ]
    assert Knower.asked == []


def test_a_folder_is_for_one_set_of_judges_and_items(tmp_path: Path) -> None:
    local = ("--data", "llmbar.jsonl", "-o", "out")
    assert evaluate("good.toml", *local).exit_code == 0
    assert "other judges" in refused("poor.toml", *local)
    assert "other items" in refused("good.toml", "--data", "judgebench.jsonl", *local[2:])
    assert "other settings" in refused("good.toml", "--as-pairs", *local)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "metrics.jsonl").write_text("")
    assert "metrics.jsonl of another run" in refused("good.toml", *local[:-1], "else")


def test_a_judge_that_is_away_is_not_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Knower, "down", ErrorKind.CONNECTION)
    found = evaluate("good.toml", "--data", "llmbar.jsonl", "-o", "out")
    assert found.exit_code == 3
    assert "answered nothing" in found.stderr
    assert "-o out" in found.stderr
    monkeypatch.setattr(Knower, "down", ErrorKind.AUTH)
    assert evaluate("good.toml", "--data", "llmbar.jsonl").exit_code == 3


def test_a_preferred_place_is_said_in_words_and_each_pair_can_be_read() -> None:
    asked = ("second.toml", "--data", "llmbar.jsonl")
    found = evaluate(*asked, "--against", "mumble.toml", "-o", "out", "-q")
    summary = json.loads(Path("out/summary.json").read_text())
    items = summary["benchmark"]["items"]
    biased, silent = summary["judges"]
    orders = biased["overall"]["orders"]
    assert (biased["overall"]["score"], biased["lengths"]["prefers_longer"]) == (0.5, 0.5)
    assert (orders["consistency"], orders["recency"]) == (0.0, items)
    assert orders["position_p"] < 0.001
    assert silent["overall"]["failures"] == {"unparsable": 2 * items}
    assert (silent["overall"]["at_least"], silent["overall"]["at_most"]) == (0.0, 1.0)
    assert (silent["overall"]["score"], silent["lengths"]["pairs"]) == (None, 0)
    said = f"second always picks the second answer, whichever that is: in {items} of {items} pairs"
    assert said in found.stdout
    assert said in Path("out/report.html").read_text()
    assert "mumble always" not in found.stdout
    reader = RunReader(Path("out"))
    reader.refresh()
    records = list(RunRecords(Path("out")))
    assert reader.kind == "grade"
    assert len(records) == len(reader.rollouts) == items
    row = reader.row(0)
    assert row is not None
    story = reader.tell(row, [])
    assert (story["reward"], story["env_reward"]) == (0.5, 1.0)
    better = [turn["role"] for turn in story["messages"] if "labelled better" in turn["role"]]
    assert len(better) == 1
    second, mumble = story["graders"]
    assert [(one["first"], one["verdict"]) for one in second["orders"]] == [
        ("response", "loss"),
        ("other", "win"),
    ]
    assert mumble["failure"]["kind"] == "unparsable"
    assert [one["failure"] for one in mumble["orders"]] == ["unparsable"] * 2


def test_several_judges_on_the_same_items() -> None:
    path = write_sample(Path("p.jsonl"), "preference", 60)
    asked = ("--data", str(path), "--against", "poor.toml", "--against", "part.toml")
    summary = done("good.toml", *asked)
    # A third one that answers as the first does is another judge: its spec differs.
    assert [one["overall"]["score"] == 1.0 for one in summary["judges"]] == [True, False, True]
    pairs = {(one["a"], one["b"]): one for one in summary["compared"]}
    good, poor, part = (one["name"] for one in summary["judges"])
    assert set(pairs) == {(good, poor), (good, part), (poor, part)}
    assert pairs[good, poor]["difference"] > 0.1
    assert pairs[good, poor]["p"] < 0.01
    assert pairs[good, part]["difference"] == 0
    assert "same judge" in refused("good.toml", "--data", str(path), "--against", "good.toml")


def test_own_judgements_are_a_judge() -> None:
    path = write_sample(Path("p.jsonl"), "preference", 60)
    first = done("poor.toml", "--data", str(path), "--against", "good.toml")
    name = first["judges"][0]["name"]
    said = refused("out/judgements.jsonl", "--data", str(path))
    assert f"out/judgements.jsonl#{name}" in said
    Path("moved.jsonl").write_bytes(path.read_bytes())
    found = invoke(
        "eval",
        "judge",
        f"out/judgements.jsonl#{name}",
        "--data",
        "moved.jsonl",
        "-o",
        "again",
        "--json",
    )
    assert found.exit_code == 0, found.output
    [again] = json.loads(found.stdout)["judges"]
    assert (again["kind"], again["overall"]) == ("recorded", first["judges"][0]["overall"])
    other = write_sample(Path("other.jsonl"), "preference", 5, seed=9)
    assert "none of its" in refused(f"out/judgements.jsonl#{name}", "--data", str(other))


def test_calibration_where_the_scale_is_stated() -> None:
    asked = ("poor.toml", "--data", "preference.jsonl")
    assert done(*asked)["judges"][0]["calibration"] is None
    summary = done(*asked, "--scale", "logits")
    assert summary["judges"][0]["calibration"]["pairs"] == 12
    assert "Calibration" in Path("out/report.html").read_text()
    # Who is certain and wrong has an infinite log loss, in the file, on the page and in the table.
    found = evaluate(*asked, "--scale", "probabilities", "-o", "sure", "-q")
    [judge] = json.loads(Path("sure/summary.json").read_text())["judges"]
    assert judge["calibration"]["log_loss"] is None
    assert judge["calibration"]["ruled_out"] > 0
    assert "∞" in Path("sure/report.html").read_text(encoding="utf-8")
    assert "∞" in found.output


def test_pairs_of_rewardbench2_only_when_asked_for() -> None:
    asked = ("second.toml", "--data", "rewardbench2.jsonl")
    assert "--as-pairs" in refused(*asked)
    summary = done(*asked, "--against", "good.toml", "--as-pairs")
    assert "not its own protocol" in summary["benchmark"]["title"]
    assert [one["overall"]["score"] for one in summary["judges"]] == [0.5, 1.0]


def test_rows_that_are_no_items_are_named() -> None:
    path = write_sample(Path("p.jsonl"), "preference", 3)
    path.write_text(path.read_text() + '{"chosen": 3, "rejected": 4}\n')
    summary = done("good.toml", "--data", str(path), code=2)
    assert summary["benchmark"]["unusable"]["rows"] == 1
    assert "p.jsonl:4" in summary["benchmark"]["unusable"]["first"][0]
    assert "p.jsonl:4" in Path("out/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("good.toml", "--data", "p.jsonl", "--benchmark", "rewardbench"),
            "did you mean 'rewardbench2'",
        ),
        (("good.toml", "--benchmark", "llmbar"), "--data: is required"),
        (("good.toml", "--data", "p.jsonl", "--benchmark", "llmbar"), "p.jsonl: no row is an item"),
        (("good.toml", "--data", "p.jsonl", "--data", "./p.jsonl"), "same file twice"),
        (("good.toml#no", "--data", "p.jsonl"), "no grader 'no'"),
        (("good.toml", "--data", "p.jsonl", "--scale", "log"), "'log' is not one of"),
        (("nobody", "--data", "p.jsonl"), "nobody: no such file, folder or pattern"),
        ((".", "--data", "p.jsonl"), "holds no judge.json"),
        (
            ("p.jsonl", "--data", "p.jsonl"),
            "p.jsonl:1 and 2 more rows: Object missing required field `subset`",
        ),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], said: str) -> None:
    write_sample(Path("p.jsonl"), "preference", 3)
    assert said in refused(*arguments)
    assert not Path("runs").exists()


def test_judgebenchs_own_output_is_a_recorded_judge() -> None:
    rows = [
        row | {"judge_name": "j", "judgments": [{"decision": row["label"]}, {"decision": "A=B"}]}
        for row in sample_rows("judgebench", 3)
    ]
    rows[0]["judgments"] = [None, {"decision": None}]
    path = Path("dataset=judgebench,judge_name=j,judge_model=m.jsonl")
    write_jsonl(path, rows)
    [judge] = done(str(path))["judges"]
    assert (judge["name"], judge["kind"]) == ("j_m", "recorded")
    assert judge["overall"]["own"] == pytest.approx(11 / 12)
    assert judge["overall"]["failures"] == {"not_sampled": 1, "unparsable": 1}
