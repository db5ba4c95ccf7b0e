import contextlib
import json
import re
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.mock_provider import start_mock_here

from adjudge import RewardSpec
from adjudge.datasets import files
from adjudge.errors import ConfigError, MissingRewardError, RolloutError
from adjudge.judges.base import ChatCall, ChatModel
from adjudge.runs import grading, rows as report_rows
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob


def job(folder: Path, rows: list[dict[str, Any]], **reward: Any) -> GradingJob:
    path = folder / "rollouts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    entry = {"name": "length", "type": "string_match", "match": "exact"}
    spec = RewardSpec.from_dict({"graders": [entry], "reward": reward})
    return GradingJob([path], spec, folder / "out", show_progress=False)


def rows(n: int, groups: int) -> list[dict[str, Any]]:
    return [
        {"response": str(i), "reference": str(i % 3), "group": i % groups, "env_reward": i % 2}
        for i in range(n)
    ]


@pytest.mark.parametrize("window", [1, 7, 4096])
def test_rewards_do_not_depend_on_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(grading, "WINDOW", window)
    options: dict[str, Any] = {"group": "z_score", "sample_rate": 0.5}
    results = grade_rollouts(job(tmp_path, rows(40, 8), **options)).rewards
    drawn = {i % 8 for i, reward in enumerate(results) if reward is not None}
    assert len(drawn) not in (0, 8)
    for i, reward in enumerate(results):
        assert (reward is not None) == (i % 8 in drawn)
    (tmp_path / "reference").mkdir()
    monkeypatch.setattr(grading, "WINDOW", 1000)
    whole = grade_rollouts(job(tmp_path / "reference", rows(40, 8), **options))
    assert whole.rewards == results


def test_a_resumed_run_gives_the_same_rewards(tmp_path: Path) -> None:
    doubled = rows(6, 2) * 3
    first = job(tmp_path, doubled)
    scores = grade_rollouts(first).rewards
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:8]) + lines[8][:20])  # killed while writing
    again = job(tmp_path, doubled)
    resumed = grade_rollouts(again)
    assert resumed.rewards == scores
    assert resumed.summary["resumed_results"] == 7
    more = grade_rollouts(job(tmp_path, [*doubled, *rows(2, 2)]))
    assert more.rewards == [*scores, *scores[:2]]
    assert more.summary["resumed_results"] == 18


@pytest.mark.parametrize(("window", "reads"), [(4096, 1), (16, 1), (15, 2)])
def test_the_input_is_read_once_or_where_it_is_long_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, reads: int
) -> None:
    """Once where a window holds it; else once to count the groups, and once to grade."""
    monkeypatch.setattr(grading, "WINDOW", window)
    given = job(tmp_path, rows(16, 4))
    given.mapping = {"env_reward": "env_reward"}
    read, parse_row = [], files.parse_row

    def note(text: bytes, where: str) -> Any:
        read.append(where)
        return parse_row(text, where)

    monkeypatch.setattr(files, "parse_row", note)
    run = grade_rollouts(given)
    assert len(read) == reads * (16 + 1)  # the first row is also looked at for the mapped column
    assert run.summary["samples"] == 16
    assert run.summary["graders"]["length"]["missing"] == 0


def test_bad_input_makes_no_folder(tmp_path: Path) -> None:
    for row, error in (({"nothing": 1}, ConfigError), ({"response": 7}, RolloutError)):
        with pytest.raises(error, match="in no known format|no usable row"):
            grade_rollouts(job(tmp_path, [row]))
    assert not (tmp_path / "out").exists()


def test_members_of_a_group_may_stand_anywhere(tmp_path: Path) -> None:
    """Together, each group is rewarded at once; apart, at its end; the rows are the same."""
    together = sorted(rows(60, 6), key=lambda row: row["group"])
    written = []
    for name, given in (("together", together), ("apart", rows(60, 6))):
        (tmp_path / name).mkdir()
        grade_rollouts(job(tmp_path / name, given, group="z_score"))
        lines = (tmp_path / name / "out" / "rewards.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert [row["index"] for row in found] == list(range(60))
        written.append(sorted((row["group"], row["reward"]) for row in found))
    assert written[0] == written[1]


def test_a_window_of_whole_groups_ends_with_its_last_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "WINDOW", 4)
    sizes = []

    class Asker:
        needs_whole_groups = True

        async def grade(self, samples: Any, groups: Any, *, step: int | None = None) -> list[Any]:
            sizes.append((len(samples), len(set(groups))))
            return list(samples)

    given = job(tmp_path, sorted(rows(18, 6), key=lambda row: row["group"]))
    windows = grading._grade_windows(given, Asker(), grading.count_samples(given), None)
    assert [len(window) for window in windows] == [6, 6, 6]
    assert sizes == [(6, 2)] * 3


@pytest.mark.parametrize("later", [7, 8, 10, 12])
def test_a_file_that_changes_meanwhile_loses_no_sample_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """A trainer may still write it: rows of a group that is whole, of a new one, or fewer."""
    monkeypatch.setattr(grading, "WINDOW", 4)
    one, count = job(tmp_path, rows(8, 4)), grading.count_samples

    def count_and_change(counted: GradingJob) -> Any:
        found = count(counted)
        job(tmp_path, rows(later, 4 if later < 12 else 6))
        return found

    monkeypatch.setattr(grading, "count_samples", count_and_change)
    if later == 8:
        assert len(grade_rollouts(one)) == 8
        return
    with pytest.raises(RolloutError, match="changed while being read"):
        grade_rollouts(one)
    assert not (tmp_path / "out" / "rewards.jsonl").exists()
    monkeypatch.undo()
    assert len(grade_rollouts(one)) == later


def test_missing_rewards_that_are_refused_leave_no_rewards(tmp_path: Path) -> None:
    """Everything is asked first, so that nothing that was paid for is lost."""
    given = rows(6, 2)
    del given[4]["reference"]
    refused = job(tmp_path, given)
    refused.spec = refused.spec.model_copy(
        update={"missing": refused.spec.missing.model_copy(update={"policy": "raise"})}
    )
    with pytest.raises(MissingRewardError, match="1 of 6 rewards are missing"):
        grade_rollouts(refused)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"run.json", ".lock", "journal.jsonl", "transcripts.sqlite"}
    assert len((tmp_path / "out" / "journal.jsonl").read_bytes().splitlines()) == 6


def test_of_many_samples_the_page_shows_a_choice_that_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_rows, "MAX_BYTES", 500)
    done = grade_rollouts(job(tmp_path, rows(12, 3)))
    page = (tmp_path / "out" / "report.html").read_text()
    [shown] = re.findall(r'"count":(\d+),"total":12,', page)
    assert 2 < int(shown) < 12
    assert f"<p>{shown} of 12 samples are here: the first " in page
    assert "rewards.jsonl has all.</p>" in page
    assert done.summary["samples"] == 12


def test_under_a_group_step_the_mean_of_what_went_in_is_shown(tmp_path: Path) -> None:
    done = grade_rollouts(job(tmp_path, rows(12, 3), group="z_score"))
    (tmp_path / "plain").mkdir()
    plain = grade_rollouts(job(tmp_path / "plain", rows(12, 3)))
    before = done.summary["reward"]["before_step"]
    assert before["step"] == "z_score"
    assert [before[key] for key in ("mean", "std")] == [
        plain.summary["reward"][key] for key in ("mean", "std")
    ]
    assert "before_step" not in plain.summary["reward"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"<dd>{before['mean']:.3f}</dd><dd>std {before['std']:.3f}, before z_score" in page
    assert re.search(r"\de[−-]", page.partition("<script")[0]) is None
    assert "before z_score" in done._repr_html_()


@pytest.mark.slow
def test_memory_hardly_grows_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About 1.3 kB a sample, not several: no text, no result, no group that is whole."""
    monkeypatch.setattr(grading, "WINDOW", 256)
    monkeypatch.setattr(report_rows, "MAX_BYTES", 20_000)
    for name in ("FIRST", "SPREAD"):
        monkeypatch.setattr(report_rows, name, 20)
    peaks: dict[int, list[int]] = {500: [], 2_000: []}
    for again in range(3):  # the least, since whatever else runs in this process counts as well
        for n, seen in peaks.items():
            folder = tmp_path / f"{n}-{again}"
            folder.mkdir()
            given = [r | {"group": i // 8, "prompt": "p" * 500} for i, r in enumerate(rows(n, 1))]
            one = job(folder, given, group="z_score")
            del given
            tracemalloc.start()
            grade_rollouts(one, keep_rows=False)
            seen.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    # Measured 1,290; a sample and its result together would be several thousand.
    assert (min(peaks[2_000]) - min(peaks[500])) / 1_500 < 1_700, peaks


LLM = {"name": "g", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]}


class Half(ChatModel):
    async def answer(self, call: ChatCall) -> str:
        return '{"reason": "", "score": 0.5}'


def test_a_judge_that_is_not_recorded_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    judges = {"main": {"type": f"{__name__}:Half"}, "other": {"type": "scripted", "script": "1"}}
    one = job(tmp_path, rows(2, 1))
    one.spec = RewardSpec.from_dict({"graders": [LLM | {"judge": "main"}], "judges": judges})
    one.use_cassette(record=None, replay=None)
    assert not caplog.messages
    one.use_cassette(record=tmp_path / "replies.sqlite", replay=None)
    assert grade_rollouts(one).rewards == [0.5, 0.5]
    [said] = [message for message in caplog.messages if "neither recorded" in message]
    assert f"judges.main: type '{__name__}:Half' is neither recorded nor replayed" in said


@pytest.mark.parametrize("lost", ["all", "some"])
def test_a_resumed_run_completes_its_cassette(tmp_path: Path, lost: str) -> None:
    """The first part ran without the cassette, or it lost what a kill or a full disk took."""
    cassette = tmp_path / "c.sqlite"

    def grade(folder: str, url: str, **kept: Path | None) -> list[float | None]:
        one = job(tmp_path, rows(20, 4))
        judge = {"type": "vllm", "model": "m", "base_url": url, "temperature": 1.0}
        one.spec = RewardSpec.from_dict({"graders": [LLM], "judges": {"main": judge}})
        one.folder = tmp_path / folder
        one.use_cassette(**{"record": None, "replay": None, **kept})
        return list(grade_rollouts(one).rewards)

    with start_mock_here() as url:
        grade("out", url, record=cassette if lost == "some" else None)
        if lost == "some":
            with contextlib.closing(sqlite3.connect(cassette)) as file, file:
                file.execute("DELETE FROM calls WHERE key > '8'")
        recorded = grade("out", url, record=cassette)
    assert grade("again", url, replay=cassette) == recorded
    assert None not in recorded


def test_an_example_of_what_is_missing_names_its_grader_once(tmp_path: Path) -> None:
    run = grade_rollouts(job(tmp_path, [*rows(2, 1), {"response": "x"}]))
    (message,) = run.summary["missing"]["examples"].values()
    assert message.count("length: ") == 1
