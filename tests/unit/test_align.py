"""``adjudge align``: labels of a file are joined, wrong ones refused, and the numbers right."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.refusals import refuses
from tests.rows import read_jsonl, write_jsonl

from adjudge.errors import ConfigError
from adjudge.judge_evaluation.alignment.measures import TargetAlignment, measure_alignment
from adjudge.judge_evaluation.labels import join_labels, read_label_files
from adjudge.runs.labels import Label, LabelLog, stamp_label
from adjudge.runs.records import RunRecords

GROUPS, SIZE = 20, 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Twenty groups of four; ``correct`` gives 0 or 1, and every ninth reward is missing."""
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [
        {"index": i, "key": f"key{i}", "where": f"rollouts.jsonl:{i + 1}", "group": f"g{i // SIZE}",
         "reward": None if i % 9 == 8 else (i * 7 % 10) / 10,
         "reward_info": {"correct_score": float(i % 3 == 0)}}
        for i in range(GROUPS * SIZE)
    ]  # fmt: skip
    write_jsonl(folder / "rewards.jsonl", rows)
    return folder


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        table.writeheader()
        table.writerows(rows)
    return path


def measured(run: Path, *files: Path, **more: Any) -> dict[str, TargetAlignment]:
    records = RunRecords(run)
    joined = join_labels(read_label_files(files or (run / "labels.jsonl",)), records)
    return {one.target: one for one in measure_alignment(joined.joined, records, **more)}


def label(index: int, author: str = "ada", **more: Any) -> Label:
    return Label(**stamp_label(), author=author, index=index, key=f"key{index}", **more)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"key": "key3", "verdict": "wrong"}, ("verdict", "wrong")),
        ({"index": "3", "verdict": "right"}, ("verdict", "right")),
        ({"where": "rollouts.jsonl:4", "score": "0.5", "grader": "reward"}, ("score", 0.5)),
        ({"index": 3, "score": 2}, ("score", 2.0)),
        ({"index": 3, "preferred_over": "key1"}, ("preferred_over", "key1")),
        ({"index": 3, "over_index": "1", "preferred_over": "key1"}, ("over_index", 1)),
    ],
)
def test_columns_of_a_file(
    run: Path, tmp_path: Path, row: dict[str, Any], said: tuple[str, object]
) -> None:
    table = write_table(tmp_path / "theirs.csv", [row])
    lines = tmp_path / "theirs.jsonl"
    lines.write_text(json.dumps(row))
    for file in (table, lines):
        joined = join_labels(read_label_files([file]), RunRecords(run)).joined
        assert [one.record.index for one in joined] == [3]
        assert getattr(joined[0].label, said[0]) == said[1]
        assert joined[0].label.author == file.name
        assert joined[0].label.grader is None


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"verdict": "right"}, "verdict: names no sample"),
        ({"index": 3}, "must have one of verdict"),
        ({"index": 3, "verdict": "perhaps"}, "verdict"),
        ({"index": 3, "label": "good"}, "label: not a column"),
        ({"index": 3, "score": "high"}, "score"),
        ({"index": 3, "score": "nan"}, "score"),
        ({"index": "three", "score": 1}, "index"),
        ({"index": 3, "score": 1, "queue": "mine"}, "queue"),
        ({"index": 3, "score": 1, "author": "a\nb"}, "author"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, row: dict[str, Any], key: str) -> None:
    file = write_table(tmp_path / "labels.csv", [{"index": 1, "score": 1}, row])
    with pytest.raises(ConfigError) as caught:
        read_label_files([file])
    assert str(caught.value).startswith(f"{file}:3: {key}")
    several = write_table(tmp_path / "several.csv", [row] * 30)
    with pytest.raises(ConfigError) as caught:  # once, however many rows have it
        read_label_files([several])
    assert str(caught.value).startswith(f"{several}:2 and 29 more rows: {key}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"index": 3, "preferred_over": "key4"}, "preferred_over"),
        ({"index": 1, "preferred_over": "key1"}, "preferred_over"),  # itself
        ({"index": 1, "score": 1, "grader": "corect"}, "grader"),
    ],
)
def test_a_label_that_fits_no_sample_is_refused(
    run: Path, tmp_path: Path, row: dict[str, Any], key: str
) -> None:
    with refuses(key):
        measured(run, write_table(tmp_path / "labels.csv", [row]))


def test_numbers_of_a_small_table_by_hand(run: Path) -> None:
    """Verdicts on a grader of two levels are scores: 60 right, 20 wrong, and the matrix of both."""
    log = LabelLog(run)
    rows = [label(i, grader="correct", judge_score=float(i % 3 == 0),
                  verdict="wrong" if i % 4 == 0 else "right") for i in range(80)]  # fmt: skip
    log.append(*rows)
    target = measured(run)["correct"]
    found, worst = target.whole, target.worst
    assert (found.labels, found.samples, found.people, found.groups) == (80, 80, 1, 20)
    assert found.right.value == found.accuracy.value == 0.75
    assert found.levels == [0.0, 1.0]
    truth = [(float(i % 3 == 0) if i % 4 else float(i % 3 != 0), float(i % 3 == 0))
             for i in range(80)]  # fmt: skip
    assert found.confusion == [
        [sum(pair == (a, b) for pair in truth) for b in (0.0, 1.0)] for a in (0.0, 1.0)
    ]
    positive = [judge for person, judge in truth if person]
    negative = [judge for person, judge in truth if not person]
    wins = sum((a > b) + (a == b) / 2 for a in positive for b in negative)
    assert found.auc.value == pytest.approx(wins / len(positive) / len(negative))
    assert found.ceiling["plain"].why == "no sample has the scores of two people"
    assert found.right.low is not None
    assert [one.index for one in worst] == list(range(0, 80, 4))
    assert worst[0].people == {"ada": "wrong"}


def test_a_verdict_on_another_score_says_nothing_of_this_one(run: Path) -> None:
    LabelLog(run).append(label(0, grader="correct", verdict="right", judge_score=0.0),
                         label(1, grader="correct", verdict="right", judge_score=0.0))  # fmt: skip
    found = measured(run)["correct"].whole
    assert found.outdated == 1
    assert found.right.n == 1
    # But it says what the person thinks: that the score of that time was right.
    assert found.confusion == [[1, 1], [0, 0]]


def test_random_samples_are_reported_alone(run: Path) -> None:
    LabelLog(run).append(*(
        label(i, grader="correct", verdict="right" if i % 2 else "wrong",
              judge_score=float(i % 3 == 0), queue="random" if i % 2 else "disagreement")
        for i in range(60)
    ))  # fmt: skip
    found = measured(run)["correct"]
    assert found.whole.right.value == 0.5
    assert found.random is not None
    assert found.random.right.value == 1.0


def test_people_are_compared_with_each_other_and_the_judge(run: Path) -> None:
    rng = random.Random(1)
    for index in range(80):
        judge = float(index % 3 == 0)
        for author in ("ada", "bo", "cy"):
            score = judge if rng.random() < 0.9 else 1 - judge
            LabelLog(run).append(label(index, author, grader="correct", score=score))
    found = measured(run)["correct"].whole
    assert found.kappas["plain"].value == pytest.approx(0.75, abs=0.15)
    assert found.ceiling["plain"].value is not None
    assert found.ceiling["plain"].value < (found.kappas["plain"].value or 0)
    assert (found.alphas["people and judge"].value or 0) > (found.alphas["people"].value or 0)


def test_a_judge_that_failed_everywhere_does_not_pass(run: Path, tmp_path: Path) -> None:
    file = run / "rewards.jsonl"
    rows = read_jsonl(file)
    for row in rows:
        row["reward_info"] |= {"down_score": None, "compared_score": 0.5}
    write_jsonl(file, rows)
    log = LabelLog(run)
    log.append(*(label(i, grader="correct", score=float(i % 3 == 0)) for i in range(20)),
               *(label(i, grader="down", score=1.0) for i in range(20)),
               label(1, grader="compared", preferred_over="key0", over_index=0))  # fmt: skip
    done = invoke("align", run, "--min-kappa", "0.5", "-o", tmp_path / "page")
    assert done.exit_code == 1
    assert "down: κ cannot be measured" in done.output
    assert "compared: κ" not in done.output
    table = write_table(
        tmp_path / "names.csv",
        [{"index": 1, "author": one, "score": 1} for one in ("bo", " bo", "bo ")],
    )
    assert {one.author for _, one, _ in read_label_files([table])} == {"bo"}


@pytest.mark.parametrize("turned", [False, True])
def test_youdens_j_of_a_judge_of_two_levels(run: Path, tmp_path: Path, *, turned: bool) -> None:
    """J = TPR − FPR; a judge that is more often against people than with them trains wrongly."""
    judge = [float(i % 3 == 0) for i in range(80)]
    people = [float((score > 0) == (i % 4 > 0) != turned) for i, score in enumerate(judge)]
    LabelLog(run).append(*(label(i, grader="correct", score=one) for i, one in enumerate(people)))
    found = measured(run)["correct"].whole.youden
    rates = [
        sum(j for j, p in zip(judge, people, strict=True) if p == of) / people.count(of)
        for of in (1.0, 0.0)
    ]
    assert found.value == pytest.approx(rates[0] - rates[1])
    assert found.n == 80
    assert found.low is not None
    assert found.high is not None
    assert (found.high < 0) == turned
    done = invoke("align", run, "-o", tmp_path / "page")
    page = (tmp_path / "page" / "align.html").read_text()
    for text in (" ".join(done.output.split()), page):
        assert ("trains the wrong way" in text) == turned
    assert "J" in done.output


def test_youdens_j_needs_two_levels_and_both_classes(run: Path) -> None:
    LabelLog(run).append(*(label(i, score=i / 80) for i in range(80)),
                         *(label(i, grader="correct", score=1.0) for i in range(80)))  # fmt: skip
    found = measured(run)
    assert found["reward"].whole.youden.value is None
    assert found["correct"].whole.youden.value is None
    limited = measured(run, thresholds={"reward": 0.5})["reward"].whole.youden
    assert limited.value is not None


def test_preferences_and_thresholds(run: Path) -> None:
    records = {one.index: one for one in RunRecords(run)}
    pairs = [(a, a + 1) for a in range(0, 80, 4)]
    LabelLog(run).append(*(
        label(a, preferred_over=f"key{b}", over_index=b) for a, b in pairs
    ), *(label(i, score=float(i % 2)) for i in range(80)))  # fmt: skip
    found = measured(run, thresholds={"reward": 0.5})["reward"].whole
    known = [(records[a].reward, records[b].reward) for a, b in pairs]
    both = [(a, b) for a, b in known if a is not None and b is not None]
    assert found.preferences.value == pytest.approx(sum(a > b for a, b in both) / len(both))
    assert found.levels == [0.0, 1.0]


@pytest.mark.slow
def test_the_command(run: Path, tmp_path: Path) -> None:
    LabelLog(run).append(*(
        label(i, grader="correct", score=float(i % 3 == 0), note="<script>=1" if i == 3 else "")
        for i in range(79)
    ), label(79, grader="correct", score=1.0, note="<img src=x>"))  # fmt: skip
    out = tmp_path / "out"
    good = invoke("align", run, "-o", out, "--min-kappa", "0.9")
    assert good.exit_code == 0, good.output
    assert "No label says that its sample was drawn at random." in good.output
    page = (out / "align.html").read_text()
    assert "Cohen’s κ" in page or "Cohen&#39;s κ" in page or "Cohen&#x27;s κ" in page
    assert "<img src=x>" not in page
    assert "&lt;img src=x&gt;" in page
    summary = json.loads((out / "align.json").read_text())
    assert summary["targets"][0]["worst"][0]["index"] == 79
    bad = invoke("align", run, "-o", out, "--min-kappa", "0.999", "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["failed"] == ["correct: κ is 0.972, below 0.999"]
    again = invoke("align", run, "--labels", run / "labels.jsonl", "--json", "-o", out)
    assert json.loads(again.stdout)["targets"] == summary["targets"]
    for name, key in (
        ("corect", "no grader of this run"),
        ("reward", "no label is about this grader (found 'reward'; allowed: correct)"),
    ):
        refused = invoke("align", run, "--threshold", f"{name}=0.5", "-o", out)
        assert refused.exit_code == 2
        assert key in " ".join(refused.output.split())
    strange = write_table(tmp_path / "strange.csv", [{"key": "elsewhere", "score": 1}])
    refused = invoke("align", run, "--labels", strange, "-o", out)
    assert refused.exit_code != 0
    assert isinstance(refused.exception, ConfigError | SystemExit)


def test_the_example_of_the_page_is_read(run: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "align.md").read_text()
    file = tmp_path / "labels.csv"
    example = page.partition('```csv title="labels.csv"\n')[2].partition("```")[0]
    file.write_text(example.replace(",right,", ",correct,"))
    rows = join_labels(read_label_files([file]), RunRecords(run)).joined
    assert [(one.label.author, one.label.score) for one in rows] == [
        ("ada", 1.0),
        ("ada", 1.0),
        ("ada", 0.0),
        ("ada", 1.0),
    ]


def write_rewards(folder: Path, rewards: list[float], **more: Any) -> Path:
    folder.mkdir()
    rows = [
        {"index": i, "key": f"key{i}", "group": f"g{i // 2}", "reward": one,
         "reward_info": {"a_score": one}, **more}
        for i, one in enumerate(rewards)
    ]  # fmt: skip
    write_jsonl(folder / "rewards.jsonl", rows)
    return folder


@pytest.mark.parametrize("said", ["score", "verdict"])
def test_scores_that_differ_by_rounding_are_equal(tmp_path: Path, said: str) -> None:
    folder = write_rewards(tmp_path / "a", [(0.1 + 0.2, 0.3, 1.0)[i % 3] for i in range(30)])
    rows = [
        {"index": i, said: (0.3, 0.3, 1.0)[i % 3] if said == "score" else "right"}
        for i in range(30)
    ]
    found = measured(folder, write_table(tmp_path / "l.csv", rows))["reward"].whole
    assert (found.accuracy.value, found.kappa.value, found.youden.value) == (1.0, 1.0, 1.0)
    passed = measured(folder, tmp_path / "l.csv", thresholds={"reward": 0.1 + 0.2})
    assert passed["reward"].whole.accuracy.value == 1.0


def test_a_label_of_one_of_several_equal_samples_is_refused(tmp_path: Path) -> None:
    folder = write_rewards(tmp_path / "a", [0.1, 0.9], key="same")
    file = write_table(tmp_path / "l.csv", [{"key": "same", "score": 0.9}])
    with refuses("key"):
        measured(folder, file)
    write_table(file, [{"key": "same", "index": 1, "score": 0.9}])
    assert measured(folder, file)["reward"].whole.accuracy.value == 1.0
    alike = write_rewards(tmp_path / "b", [0.9, 0.9], key="same")
    write_table(file, [{"key": "same", "score": 0.9}])
    assert measured(alike, file)["reward"].whole.accuracy.value == 1.0


def test_labels_that_another_one_replaces_are_counted(run: Path, tmp_path: Path) -> None:
    rows = [{"index": i, "score": score} for score in (0, 1) for i in range(5)]
    file = write_table(tmp_path / "l.csv", rows)
    assert join_labels(read_label_files([file]), RunRecords(run)).replaced == 5
    done = invoke("align", run, "-l", file, "-o", tmp_path / "o")
    assert "5 labels were replaced" in done.output


def test_youdens_j_of_few_right_answers_is_not_sure(tmp_path: Path) -> None:
    good = [i < 5 for i in range(100)]
    passed = [ok or i % 9 == 0 for i, ok in enumerate(good)]
    folder = write_rewards(tmp_path / "a", [float(one) for one in passed])
    rows = [{"index": i, "score": float(ok)} for i, ok in enumerate(good)]
    file = write_table(tmp_path / "l.csv", rows)
    found = measured(folder, file)["reward"].whole.youden
    # All five good ones pass: that is 48 % or more of such answers, not 100 %.
    assert found.value == pytest.approx(1 - 11 / 95)
    assert found.low is not None
    assert found.low < 0.6
