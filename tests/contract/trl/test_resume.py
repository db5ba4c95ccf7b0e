"""Runs that are killed and resumed, against one that nobody disturbed: run by `make test-trl`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from benchmarks.train_resume import (
    CountingJudge,
    Kill,
    Killed,
    counting_judge,
    differences,
    rows,
    train,
    write_run,
)

STEPS = 7


@pytest.fixture(scope="module")
def judge() -> Iterator[CountingJudge]:
    with counting_judge(CountingJudge()) as judge:
        yield judge


@pytest.fixture(scope="module", params=[False, True], ids=["lag 0", "lag 1"])
def pair(
    request: pytest.FixtureRequest, judge: CountingJudge, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Killed, Killed]:
    """An undisturbed run, and one that was killed before and after it saved its policy."""
    place = tmp_path_factory.mktemp("runs")
    source = write_run(place, judge.url, steps=STEPS, lag=request.param)
    plain = train(source, place / "plain", judge, [])
    # 2 of the warm start, 4 of the evaluation, then steps; a resumed run tells of what is left.
    kills = [Kill(8, 0.05), Kill(4, 0.1)]
    return plain, train(source, place / "killed", judge, kills)


def test_a_killed_run_ends_as_an_undisturbed_one(pair: tuple[Killed, Killed]) -> None:
    plain, killed = pair
    first, second = killed.kills
    assert 0 < first.steps < STEPS
    assert 0 < second.steps < STEPS
    assert any(name in second.saved for name in ("checkpoint-3", "checkpoint-6"))
    assert differences(plain.folder, killed.folder) == []
    assert len(rows(plain.folder / "rollouts.jsonl")) == 16 * STEPS
    missing = [row["missing"] for row in rows(plain.folder / "rollouts.jsonl") if row["missing"]]
    assert missing  # the judge's failures among them


def test_no_answer_is_paid_for_twice(pair: tuple[Killed, Killed]) -> None:
    plain, killed = pair
    assert killed.questions == plain.questions
    again, wrong = killed.paid_again()
    assert wrong == []
    assert again <= sum(map(len, killed.flying[:-1]))


def test_the_first_policy_stays_and_few_others(pair: tuple[Killed, Killed]) -> None:
    for run in pair:
        saved = {path.name for path in (run.folder / "checkpoints").glob("check*")}
        assert saved == {"checkpoint-0", "checkpoint-6", f"checkpoint-{STEPS}"}
        assert not list((run.folder / "state").glob("step-*"))


def test_killed_after_the_last_step_it_is_the_trained_policy_that_is_left(
    pair: tuple[Killed, Killed], judge: CountingJudge, tmp_path: Path
) -> None:
    """All that the end of a run writes is gone, and what it saved last was cut in the middle."""
    plain, _ = pair
    folder = tmp_path / "run"
    shutil.copytree(plain.folder, folder)
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "model")
    (folder / ".model.part").mkdir()
    rest = (folder / "evaluation.jsonl").read_bytes()
    (folder / "evaluation.jsonl").write_bytes(rest[:-40])
    torn = folder / "checkpoints" / f"checkpoint-{STEPS + 3}"
    torn.mkdir()
    (torn / "trainer_state.json").write_text('{"global_step": 1')
    source = plain.folder.parent / "run.toml"
    resumed = train(source, folder, judge, [])
    assert differences(plain.folder, folder) == []
    assert resumed.questions == set()
    assert len(resumed.attempts) == 1
