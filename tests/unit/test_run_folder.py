"""A run's folder: claimed, gone on with by the same run, refused to any other."""

import json
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import RunFolderError
from adjudge.runs.folder import RunFolder

FACTS = {"kind": "eval", "seed": 1, "judges": ["a"]}
IDENTITY = {"seed": "another seed", "judges": "other judges"}


def opened(path: Path, how: dict[str, Any] | None = None, **changes: Any) -> RunFolder:
    with RunFolder(path, {**FACTS, **changes}, IDENTITY, **(how or {})) as folder:
        return folder


def test_a_folder_is_claimed_and_gone_on_with(tmp_path: Path) -> None:
    first = opened(tmp_path / "a" / "b", label="x")
    assert not first.resumed
    found = json.loads((first.path / "run.json").read_text())
    assert found == first.facts
    assert {*found} == {"adjudge", "created", "label", *FACTS}
    again = opened(first.path, label="y")
    assert again.resumed
    assert again.facts == first.facts  # what began the run
    assert again.created == first.created


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "train"}, "a run of another kind (found eval; now train)"),
        ({"seed": 2}, "a run of another seed (found 1; now 2)"),
        ({"judges": ["b"]}, "a run of other judges (found ['a']; now ['b'])"),
        ({"judges": ["b" * 900]}, "a run of other judges. Give another"),
    ],
)
def test_another_run_is_refused_and_leaves_no_lock(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    opened(tmp_path)
    with pytest.raises(RunFolderError) as error:
        opened(tmp_path, **changes)
    assert said in str(error.value)
    assert opened(tmp_path).resumed


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "rewards.jsonl", "own.jsonl"])
def test_results_of_who_knows_what_are_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RunFolderError, match=f"holds {name} of another run"):
        opened(tmp_path, {"outputs": ["own.jsonl"]})
    assert not (tmp_path / "run.json").exists()


def test_a_runs_file_is_part_of_it_and_comes_last(tmp_path: Path) -> None:
    how = {"config": b"a = 1"}
    opened(tmp_path, how)
    assert (tmp_path / "config.toml").read_bytes() == b"a = 1"
    with pytest.raises(RunFolderError, match=r"config\.toml differs"):
        opened(tmp_path, {"config": b"a = 2"})
    (tmp_path / "config.toml").unlink()  # a kill came between the two: nothing was done yet
    assert not opened(tmp_path, {"config": b"a = 2"}).resumed
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunFolderError, match="is not there"):
        opened(tmp_path, {"config": b"a = 2"})


def test_a_complete_run_is_refused_where_it_is_done_once(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "summary.json").touch()
    assert opened(tmp_path).resumed
    with pytest.raises(RunFolderError, match="its run is complete"):
        opened(tmp_path, {"once": True})


def test_a_first_try_in_which_nothing_was_done_burns_no_folder(tmp_path: Path) -> None:
    how = {"journal": "journal.jsonl"}
    journal = tmp_path / "journal.jsonl"
    opened(tmp_path, how)
    journal.write_text('{"journal": 1}\n{"s": "tor')
    again = opened(tmp_path, how, seed=2)
    assert not again.resumed
    assert not journal.exists()
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 2
    journal.write_text('{"journal": 1}\n{"s": "whole"}\n')
    with pytest.raises(RunFolderError, match="another seed"):
        opened(tmp_path, how, seed=3)
    journal.unlink()
    (tmp_path / "rewards.jsonl").touch()
    with pytest.raises(RunFolderError, match="another seed"):
        opened(tmp_path, how, seed=3)


def test_what_a_kind_of_run_does_first_may_refuse_the_folder(tmp_path: Path) -> None:
    class Picky(RunFolder):
        def _prepare(self) -> None:
            if self.resumed:
                raise RunFolderError("not again")
            self.update_facts(pid=7)

    Picky(tmp_path, FACTS, IDENTITY).close()
    assert json.loads((tmp_path / "run.json").read_text())["pid"] == 7
    for _ in range(2):  # the lock is let go of
        with pytest.raises(RunFolderError, match="not again"):
            Picky(tmp_path, FACTS, IDENTITY)


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path, FACTS, IDENTITY),
        pytest.raises(RunFolderError, match="another process is writing"),
    ):
        opened(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be used"):
        opened(tmp_path / "file")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({}, False),
        ({"own.jsonl": "", "state/journal.jsonl": "head\n", "state/plan.json": "{}"}, False),
        ({"checkpoints/checkpoint-0/model": "m", "judge.toml": "made anew"}, False),
        ({"own.jsonl": "{}\n"}, True),
        ({"state/journal.jsonl": "head\nan answer\n"}, True),
        ({"checkpoints/checkpoint-3/model": "m"}, True),
    ],
)
def test_a_failed_start_leaves_no_claim_and_no_result_is_lost(
    tmp_path: Path, written: dict[str, str], kept: bool
) -> None:
    left = ["state/journal.jsonl", "state", "checkpoints/checkpoint-0"]
    how: dict[str, Any] = {"outputs": ["own.jsonl"], "config": b"a", "leftovers": left}
    with RunFolder(tmp_path, FACTS, IDENTITY, **how) as folder:
        for name, text in written.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        with pytest.raises(KeyError), folder.releases_failed_start():
            raise KeyError
    if kept:
        with pytest.raises(RunFolderError, match="config.toml differs"):
            opened(tmp_path, {**how, "config": b"b"})
        assert all((tmp_path / name).read_text() == text for name, text in written.items())
    else:
        assert not opened(tmp_path, {**how, "config": b"b"}, seed=2).resumed
