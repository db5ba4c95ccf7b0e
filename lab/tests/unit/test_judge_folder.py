"""A judge's folder: what is gone on with after an interruption."""

from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError, RunFolderError
from adjudge_lab.judge_training.judge_file import JudgeFile, best_step_metrics
from adjudge_lab.judge_training.run import JudgeFolder

TEXT = 'kind = "judge"\nmethod = "bradley_terry"\ndata.synthetic.n = 20\n'


def opened(path: Path) -> JudgeFolder:
    source = path / "judge.toml"
    source.write_text(TEXT)
    return JudgeFolder(path / "run", JudgeFile.load(source, environ={}), source)


def test_a_run_that_saved_nothing_begins_anew_with_no_rows(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for step in range(3):
        folder.append({"step": step, "val/loss": 1.0})
    folder.close()
    folder = opened(tmp_path)
    assert folder.resumed
    assert (folder.step, folder.checkpoint) == (0, None)
    assert folder.rows() == []  # it will be validated before its first step again
    folder.close()


def test_a_run_goes_on_with_the_rows_that_it_began_with(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.record_data_digests({"train_sha256": "a", "val_sha256": "b"})
    folder.close()
    folder = opened(tmp_path)
    folder.record_data_digests({"train_sha256": "c", "val_sha256": "b"})  # nothing was learned yet
    folder.close()
    saved = tmp_path / "run" / "checkpoints" / "checkpoint-2"
    saved.mkdir(parents=True)
    (saved / "trainer_state.json").write_text('{"global_step": 2}')
    folder = opened(tmp_path)
    folder.record_data_digests({"train_sha256": "c", "val_sha256": "b"})
    with pytest.raises(RunFolderError, match="data has changed"):
        folder.record_data_digests({"train_sha256": "a", "val_sha256": "b"})
    folder.close()


ROWS: list[dict[str, float]] = [
    {"step": 0, "val/loss": 0.5, "val/token_accuracy": 0.9},
    {"step": 1, "train/loss": 2.0},
    {"step": 2, "train/loss": 1.5, "val/loss": 1.0, "val/token_accuracy": 0.4},
    {"step": 3, "train/loss": 1.5, "val/loss": 1.2, "val/token_accuracy": 0.5},
]


def judge_of(**more: Any) -> JudgeFile:
    data = {"synthetic": {"n": 20}, "micro_batch_size": 1}
    return JudgeFile.from_dict({"method": "sft", "data": data, **more}, environ={})


def test_what_is_said_of_a_judge_is_of_the_step_that_is_kept() -> None:
    # The model before any step was better, but it is not the one that is left.
    assert best_step_metrics(ROWS, 2, judge_of()) == {"loss": 1.0, "token_accuracy": 0.4}


@pytest.mark.parametrize("step", [1, 4])
def test_a_judge_of_whose_step_nothing_is_known_is_refused(step: int) -> None:
    with pytest.raises(ConfigError, match=r"optim\.lr: .*became NaN"):
        best_step_metrics(ROWS, step, judge_of())
