"""``adjudge diff``: joining, numbers by hand, the sentence, conditions, the page."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.helpers.command import invoke
from tests.refusals import refuses
from tests.rows import write_jsonl

import adjudge
from adjudge.errors import RunFolderError
from adjudge.graders.base import BaseGrader
from adjudge.judge_evaluation.diff.conditions import list_metrics, parse_condition
from adjudge.judge_evaluation.diff.numbers import summarise_diff
from adjudge.judge_evaluation.diff.pairing import DiffRun, PairedRuns, read_labels
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.labels import Label, LabelLog, stamp_label
from adjudge.runs.story import describe_spec

diff = partial(invoke, "diff")
ROWS = [
    {"prompt": f"question {group}", "response": f"answer {at} " * (at + 1), "reference": "7",
     "env_reward": float(at % 2), "group": f"g{group}"}
    for group in range(9)
    for at in range(4)
]  # fmt: skip
LONG = {"graders": [{"name": "length", "type": "length_penalty", "min_length": 0, "max_length": 9}]}
SHORT = {
    "graders": [
        {"name": "length", "type": "length_penalty", "min_length": 30, "max_length": 99},
        {"name": "right", "type": "string_match", "weight": 0.5},
    ]
}


def grade(tmp_path: Path, name: str, spec: Any, rows: list[dict[str, Any]] = ROWS) -> Path:
    file = write_jsonl(tmp_path / f"{name}.jsonl", rows)
    adjudge.grade(file, spec, output=tmp_path / name)
    return tmp_path / name


def write_run(folder: Path, rewards: dict[str, list[float | None]], **row: Any) -> Path:
    """A run folder with a group for each entry; keys are group and place."""
    folder.mkdir(parents=True)
    rows = [
        {"index": 0, "key": f"{group}/{at}", "group": group, "reward": one,
         "missing": None if one is not None else {"kind": "timeout", "message": "late"},
         "reward_info": {"judge_score": one},
         "details": {"judge": {"score": one, "reason": f"said {one}"}}, **row}
        for group, values in rewards.items()
        for at, one in enumerate(values)
    ]  # fmt: skip
    for index, one in enumerate(rows):
        one["index"] = index
    write_jsonl(folder / "rewards.jsonl", rows)
    return folder


def compare(a: Path, b: Path) -> dict[str, Any]:
    return summarise_diff(PairedRuns(DiffRun(a), DiffRun(b)))


def test_a_run_against_itself_is_no_difference(tmp_path: Path) -> None:
    folder = grade(tmp_path, "a", LONG)
    done = diff(folder, folder, "--json", "--fail-if", "reward_change != 0", "--fail-if", "tau < 1")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["identical"]
    assert found["verdict"].startswith("No difference")
    assert found["reward"]["change"] == {
        "value": 0.0, "low": None, "high": None, "why": "nothing varied"
    }  # fmt: skip
    assert found["advantages"]["sign_flips"]["value"] == 0.0
    assert found["truth"]["environment"]["within"]["change"]["value"] == 0.0
    assert found["missing"]["change"]["value"] == 0.0
    assert found["worst"] == found["turned"] == found["settings"] == []


def test_two_specs_and_what_differs_in_them(tmp_path: Path) -> None:
    a, b = grade(tmp_path, "a", LONG), grade(tmp_path, "b", SHORT)
    page = tmp_path / "diff.html"
    done = diff(a, b, "-o", page)
    assert done.exit_code == 0, done.output
    assert "advantages" in done.output.splitlines()[0]
    found = json.loads(diff(a, b, "--json").stdout)
    changed = {one["key"]: (one["a"], one["b"]) for one in found["settings"]}
    assert changed["graders.length.max_length"] == (9, 99)
    assert changed["graders.length.min_length"] == (0, 30)
    assert changed["graders.right.weight"] == (None, 0.5)
    assert found["graders"]["right"] == {"only": "b"}
    assert found["samples"] == {"both": 36, "only_a": 0, "only_b": 0}
    assert found["advantages"]["sign_flips"]["value"] == pytest.approx(1.0)
    assert found["verdict"].startswith("B turns 100 % of advantages")
    worst = found["worst"][0]
    assert worst["response"].startswith("answer")
    assert worst["graders"][0]["grader"] == "length"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "Samples that changed most" in text
    assert len(text.encode()) < 5_000_000


def test_numbers_by_hand(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0, 3.0], "y": [0.0, 1.0, None]}, env_reward=1.0)
    b = write_run(tmp_path / "b", {"x": [3.0, 2.0, 1.0], "y": [0.0, None, None]}, env_reward=1.0)
    found = compare(a, b)
    # Both rewarded: x whole, y's first. Differences: 2, 0, −2, 0.
    assert found["reward"]["common"] == 4
    assert found["reward"]["change"]["value"] == 0.0
    assert found["reward"]["changed"] == 2
    # Advantages of x: (−1, 0, 1) and (1, 0, −1): two of three turn; y has one such sample.
    assert found["advantages"]["sign_flips"]["value"] == pytest.approx(2 / 3)
    assert [one["advantage_b"] for one in found["turned"]] == [1.0, -1.0]
    missing = found["missing"]
    assert (missing["a"], missing["b"]) == (pytest.approx(1 / 6), pytest.approx(2 / 6))
    assert (missing["only_a"], missing["only_b"], missing["both"]) == (0, 1, 1)
    assert missing["kinds_b"] == {"timeout": 2}
    assert missing["change"]["value"] == pytest.approx(1 / 6)
    assert found["truth"]["environment"]["within"]["pairs"] == 0  # it says the same of all


def test_who_is_right(tmp_path: Path) -> None:
    rewards: dict[str, list[float | None]] = {
        f"g{group}": [0.0, 1.0, 0.5, 0.5] for group in range(10)
    }
    better: dict[str, list[float | None]] = {
        f"g{group}": [0.0, 1.0, 0.2, 0.6] for group in range(10)
    }
    a, b = write_run(tmp_path / "a", rewards), write_run(tmp_path / "b", better)
    for folder in (a, b):
        lines = (folder / "rewards.jsonl").read_text().splitlines()
        rows = [{**json.loads(line), "env_reward": at % 2} for at, line in enumerate(lines)]
        write_jsonl(folder / "rewards.jsonl", rows)
    within = compare(a, b)["truth"]["environment"]["within"]
    # Of (0, 1), (0, 3), (2, 1), (2, 3): A is right in three and ties the last; B in all.
    assert (within["a"]["value"], within["b"]["value"]) == (3.5 / 4, 1.0)
    assert within["change"]["value"] == 0.5 / 4
    assert within["pairs"] == 40
    pooled = compare(a, b)["truth"]["environment"]["pooled"]
    assert (pooled["a"]["value"], pooled["b"]["value"]) == (3.5 / 4, 1.0)


def test_people_say_who_is_right(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0, 3.0], "y": [0.0, 1.0]})
    b = write_run(tmp_path / "b", {"x": [3.0, 2.0, 1.0], "y": [0.0, 1.0]})
    said: list[dict[str, Any]] = [
        {"index": 0, "key": "x/0", "score": 5.0},
        {"index": 2, "key": "x/2", "score": 1.0},
        {"index": 1, "key": "x/1", "score": 9.0, "grader": "judge"},  # of one grader alone
        {"index": 4, "key": "y/1", "preferred_over": "y/0", "over_index": 3},
        {"index": 3, "key": "another run's", "score": 2.0},
    ]
    LabelLog(b).append(*(Label(**stamp_label(), author="ada", **one) for one in said))
    with LabelLog(b).path.open("a") as file:
        file.write('{"id": "a writer that was killed')
    found = json.loads(diff(a, b, "--json").stdout)["truth"]["labels"]["within"]
    # Of the scored pair of x and the preferred pair of y: A has one right, B both.
    assert (found["pairs"], found["a"]["value"], found["b"]["value"]) == (2, 0.5, 1.0)
    assert diff(a, b, "--fail-if", "label_agreement_change < 0.4").exit_code == 0


def test_labels_are_found_whatever_the_step_and_right_or_wrong_is_a_score(tmp_path: Path) -> None:
    """Rows of a graded dump have steps, their labels none; of one person the later label counts."""
    a = write_run(tmp_path / "a", {"x": [1.0, 0.0, 1.0]}, step=3)
    b = write_run(tmp_path / "b", {"x": [0.0, 1.0, 1.0]}, step=3)
    said: list[dict[str, Any]] = [
        {"index": 0, "key": "x/0", "verdict": "right", "judge_score": 1.0},
        {"index": 1, "key": "x/1", "verdict": "right"},
        {"index": 2, "key": "x/2", "score": 0.0},
        {"index": 2, "key": "x/2", "verdict": "right"},  # a score goes before it
        {"index": 2, "key": "x/2", "preferred_over": "x/9", "over_index": 1},  # of another run
    ]
    LabelLog(a).append(*(Label(**stamp_label(), author="ada", **one) for one in said))
    later = {**stamp_label(), "time": "2999-01-01T00:00:00+00:00"}
    LabelLog(b).append(Label(**later, author="ada", index=1, key="x/1", score=0.5))
    assert read_labels(PairedRuns(DiffRun(a), DiffRun(b))) == ({0: 1.0, 1: 0.5, 2: 0.0}, [])
    three = write_run(tmp_path / "c", {"x": [1.0, 0.0, 0.5]})
    LabelLog(three).append(Label(**stamp_label(), author="ada", index=0, verdict="wrong"))
    assert read_labels(PairedRuns(DiffRun(three), DiffRun(a))).scores.keys() == {0, 1, 2}
    assert read_labels(PairedRuns(DiffRun(three), DiffRun(three))) == ({}, [])


def test_duplicates_are_joined_in_their_groups_and_order(tmp_path: Path) -> None:
    twice = [{**ROWS[0], "group": group} for group in ("x", "y", "x")]
    a = grade(tmp_path, "a", LONG, twice)
    b = grade(tmp_path, "b", LONG, [twice[1], twice[0]])
    runs = PairedRuns(DiffRun(a), DiffRun(b))
    found = [(one.group, other.group, one.index, other.index) for one, other in runs.pairs]
    assert sorted(found) == [("x", "x", 0, 1), ("y", "y", 1, 0)]
    assert (runs.only_a, runs.only_b) == (1, 0)


def test_runs_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "a", {"x": [1.0]}, key="")
    with pytest.raises(RunFolderError, match="has no samples"):
        compare(bare, bare)
    apart = write_run(tmp_path / "d", {"z": [2.0]})
    with pytest.raises(RunFolderError, match="no sample in common"):
        compare(apart, write_run(tmp_path / "e", {"w": [2.0]}))


def test_dumps_with_rewards_are_compared(tmp_path: Path) -> None:
    files = []
    for name, sign in (("a", 1), ("b", -1)):
        rows = [{"input": f"q{g}", "output": f"o{at}", "score": sign * at, "step": 1, "gts": ""}
                for g in range(2) for at in range(3)]  # fmt: skip
        files.append(write_jsonl(tmp_path / f"{name}.jsonl", rows))
    found = compare(*files)
    assert found["advantages"]["within_kendall"]["value"] == -1.0
    assert found["settings"] is None
    (tmp_path / "c.jsonl").write_text('{"prompt": "q", "response": "r"}\n')
    with pytest.raises(RunFolderError, match="no rewards"):
        DiffRun(tmp_path / "c.jsonl")


def test_a_dumps_own_reward_is_compared_and_the_environments_is_the_truth(tmp_path: Path) -> None:
    for name, sign in (("a", 1), ("b", -1)):
        rows = [{"prompt": "q", "response": f"o{at}", "reward": sign * at, "env_reward": at % 3}
                for at in range(3)]  # fmt: skip
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found["advantages"]["within_kendall"]["value"] == -1.0
    assert found["truth"]["environment"]["within"]["a"]["value"] == 1.0


def test_one_spec_twice_is_noise(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0]})
    b = write_run(tmp_path / "b", {"x": [2.0, 1.0]})
    for folder in (a, b):
        (folder / "run.json").write_text('{"spec_hash": "s", "settings": {}}')
    assert "judge's own noise" in json.loads(diff(a, b, "--json").stdout)["verdict"]
    found = compare(a, b)["noise"]
    assert found["reward"]["value"] == found["graders"]["judge"]["value"] == 1.0
    page = tmp_path / "page.html"
    assert "asked again" in diff(a, b, "-o", page).stdout
    assert "Signal and noise" in page.read_text()
    (b / "run.json").write_text('{"spec_hash": "another", "settings": {}}')
    assert compare(a, b)["noise"] is None


@pytest.mark.slow
def test_texts_of_rollouts_that_are_gone(tmp_path: Path) -> None:
    a, b = grade(tmp_path, "a", LONG), grade(tmp_path, "b", SHORT)

    def response() -> Any:
        return json.loads(diff(a, b, "--json").stdout)["worst"][0]["response"]

    said = response()
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "a.jsonl").unlink()
    assert response() == said  # each folder keeps its rollouts
    for folder in (a, b):
        (folder / "transcripts.sqlite").unlink()
    assert response() is None
    assert diff(a, b, "-o", tmp_path / "d.html").exit_code == 0


def test_conditions(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0]})
    b = write_run(tmp_path / "b", {"x": [2.0, None]})
    done = diff(a, b, "--fail-if", "missing > 0.4", "--fail-if", "missing > 0.6")
    assert done.exit_code == 1
    said = done.output.replace("\n", " ")
    assert "missing > 0.4: missing is 0.5" in said
    assert "missing > 0.6" not in said
    for undefined in ("agreement_change.low < 0", "cost_ratio > 2"):
        done = diff(a, b, "--fail-if", undefined)
        assert done.exit_code == 1, undefined
        assert "has no value here" in done.output


@pytest.mark.parametrize(
    "text",
    [
        "missing > nan",
        "missing > 0 or tau < 1",
        "__import__('os') > 0 and 1",
        "missing = 0",
        "missing > 1e999",
        "missing > \u0665",
    ],
)
def test_conditions_that_are_none(text: str) -> None:
    with refuses("--fail-if"):
        parse_condition(text)


@pytest.mark.parametrize(
    "name",
    ["mising", "missing.low", "tau.middle", "graders.judge", "graders.x.missing",
     "graders.judge.missing.low"],
)  # fmt: skip
def test_a_condition_on_no_metric_is_refused(tmp_path: Path, name: str) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0]})
    with refuses("--fail-if"):
        parse_condition(f"{name} > 0").check(list_metrics(compare(a, a)))


def test_conditions_of_one_grader(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0]})
    found = compare(a, write_run(tmp_path / "b", {"x": [2.0, None]}))
    for text, value in (("missing", 0.5), ("missing_a", 0.0), ("change", 1.0)):
        result = parse_condition(f"graders.judge.{text} == {value}").check(list_metrics(found))
        assert (result.failed, result.undefined) == (True, False)
    result = parse_condition("graders.judge.change.low > 0").check(list_metrics(found))
    assert result.undefined
    assert "fewer than 8" in result.sentence
    found["missing"]["b"] = float("nan")
    assert parse_condition("missing > 1").check(list_metrics(found)).undefined


def test_ends_of_no_difference(tmp_path: Path) -> None:
    """A change of nothing fails no condition; where others differ, 0 has an interval, too."""
    rewards: dict[str, list[float | None]] = {f"g{at}": [0.0, 1.0] for at in range(9)}
    a = write_run(tmp_path / "a", rewards)
    same = compare(a, a)
    other = compare(a, write_run(tmp_path / "b", {**rewards, "g0": [1.0, 0.0]}))
    for name in ("reward_change", "missing_increase", "graders.judge.change"):
        result = parse_condition(f"{name}.low > 0").check(list_metrics(same))
        assert (result.failed, result.undefined) == (False, False), result
    assert not parse_condition("missing_increase.low > 0").check(list_metrics(other)).failed
    assert other["missing"]["change"]["low"] < 0 < other["missing"]["change"]["high"]


def test_runs_alike_say_what_else_differs(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0]})
    b = write_run(tmp_path / "b", {"x": [1.0, 2.0]})
    for folder, model, cost in ((a, "small", 1.0), (b, "large", 2.0)):
        facts = {"settings": {"model": model}, "spec_hash": model}
        (folder / "run.json").write_text(json.dumps(facts))
        (folder / "summary.json").write_text(json.dumps({"spending": {"cost_usd": cost}}))
    said = diff(a, b).output
    assert "though the specs differ" in said.replace("\n", " ")
    assert "small" in said
    assert "2.00 ×" in said


def test_agreement_over_all_pairs_says_so(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0], "y": [2.0]})
    b = write_run(tmp_path / "b", {"x": [2.0], "y": [1.0]})
    LabelLog(a).append(*(Label(**stamp_label(), author="ada", index=at, score=at) for at in (0, 1)))
    assert "over all pairs" in json.loads(diff(a, b, "--json").stdout)["verdict"]


class Asker(BaseGrader):
    """Asks a server of its own."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers

    async def aevaluate(self, response: str) -> float:
        return float(len(response) + len(self.headers))


def test_a_page_does_not_take_the_place_of_a_folder(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", {"x": [1.0, 2.0]})
    (tmp_path / "page.html").mkdir()
    (tmp_path / "page.html" / "mine").touch()
    done = diff(a, a, "-o", tmp_path / "page.html")
    assert done.exit_code == 2
    assert "is a folder" in done.output
    assert (tmp_path / "page.html" / "mine").exists()


def test_secrets_are_not_written_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDRESS", "http://127.0.0.1:1/hush")
    monkeypatch.setenv("NAME", "j")
    spec = tmp_path / "reward.toml"
    spec.write_text(
        '[[graders]]\nname = "q"\ntype = "string_match"\n'
        '[[graders]]\nname = "${NAME}"\ntype = "helpfulness"\nweight = 0.0\n'
        '[[graders]]\nname = "own"\ntype = "tests.unit.test_diff:Asker"\nweight = 0.0\n'
        'headers = {Authorization = "Bearer ${ADDRESS}"}\n'
        '[judges.main]\ntype = "openai"\nmodel = "m"\nbase_url = "${ADDRESS}"\n'
        '[judges.main.extra_body]\ntoken = "a ${ADDRESS}"\n'
    )
    found = RewardSpec.load(spec)
    graders = found.build_graders()
    said = msgspec.json.encode(describe_spec(found, graders)).decode()
    assert "hush" not in said
    assert "Bearer ${ADDRESS}" in said
    assert '"j"' in said


@pytest.mark.parametrize("last", [{}, {"reward": None}, {"reward": float("nan")}])
def test_a_reward_that_a_dump_does_not_have_is_missing_by_name(
    tmp_path: Path, last: dict[str, Any]
) -> None:
    rows = [{"prompt": "q", "response": f"a{at}", "reward": at / 4} for at in range(4)]
    for name, more in (("a", {"reward": 1.0}), ("b", last)):
        own = [*rows, {"prompt": "q", "response": "last", **more}]
        write_jsonl(tmp_path / name, own)
    runs = [DiffRun(tmp_path / name) for name in "ab"]
    missing = summarise_diff(PairedRuns(*runs))["missing"]
    assert (missing["only_b"], missing["kinds_b"]) == (1, {"not_stored": 1})
