"""What is made of what verl left: rows of metrics, a card, a judge."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from lab.tests.unit.helpers.verl_judges import GRPO, SFT, files_of, judge_of

from adjudge.errors import ConfigError
from adjudge.files import iter_rows
from adjudge_lab.judge_training.run import JudgeFolder
from adjudge_lab.judge_training.verl import run

LOG = [
    (0, {"val-core/judge/reward/mean@1": 0.1, "val-aux/judge/accuracy/mean@1": 0.5}),
    (1, {"actor/pg_loss": 0.2, "actor/kl_loss": 0.01, "critic/rewards/mean": 0.3,
         "train/accuracy": 0.6, "timing_s/step": 3.0, "actor/lr": 1e-6}),
    (2, {"train/accuracy": 0.7, "actor/pg_loss": float("nan"),
         "val-core/judge/reward/mean@1": 0.4, "val-aux/judge/unread/no_verdict/mean@1": 0.0}),
]  # fmt: skip


def logged(path: Path, entries: Sequence[tuple[int, Mapping[str, float]]]) -> None:
    path.write_text(
        "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in entries)
    )


def test_steps_that_were_done_again_count_once(tmp_path: Path) -> None:
    logged(tmp_path / "verl-2.jsonl", [(2, {"train/loss": 2.5}), (3, {"train/loss": 2.0})])
    logged(tmp_path / "verl-1.jsonl", [(1, {"train/loss": 4.0}), (2, {"train/loss": 3.0})])
    with (tmp_path / "verl-2.jsonl").open("a") as file:
        file.write('{"step": 4, "da')  # killed
    losses = [row["train/loss"] for row in run.read_verl_metrics(tmp_path)]
    assert losses == [4.0, 2.5, 2.0]


def test_validating_again_where_a_run_goes_on_keeps_what_the_step_trained(tmp_path: Path) -> None:
    first = {"train/accuracy": 0.6, "val-aux/judge/accuracy/mean@1": 0.5}
    logged(tmp_path / "verl-1.jsonl", [(1, first), (2, {"train/accuracy": 0.9})])
    again = {"val-aux/judge/accuracy/mean@1": 0.7}
    logged(tmp_path / "verl-2.jsonl", [(1, again), (2, {"train/accuracy": 0.8})])
    assert run.read_verl_metrics(tmp_path) == [
        {"step": 1, "train/accuracy": 0.6, "val/accuracy": 0.7},
        {"step": 2, "train/accuracy": 0.8},
    ]


def test_the_speed_of_a_run_that_went_on_is_that_of_its_last_start(tmp_path: Path) -> None:
    for number, steps in ((1, (1, 2, 3)), (2, (3, 4))):
        done = [(step, {"train/loss": 1.0, "perf/total_num_tokens": 50.0}) for step in steps]
        logged(tmp_path / f"verl-{number}.jsonl", done)
    rows, latest = run.read_verl_metrics(tmp_path), run._merge_logs(run._log_files(tmp_path)[-1:])
    expected = {"tokens": 200, "tokens_per_s": 20.0}
    assert run._speed(files_of(), rows, latest, 5.0) == expected
    assert run._speed(replace(files_of(), tokens=50.0), rows, latest, 5.0) == expected


def test_an_end_that_was_interrupted_leaves_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_weight_counts", lambda _: {"parameters": 1, "trainable": 1})
    monkeypatch.setattr("adjudge_lab.judge_training.run.write_judge_report", lambda *_: None)
    judge, source, out = judge_of(tmp_path, GRPO), tmp_path / "judge.toml", tmp_path / "out"
    source.write_text("x")
    model = out / "checkpoints" / "global_step_2" / "actor" / "huggingface"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"weights")
    (model.parents[2] / "latest_checkpointed_iteration.txt").write_text("2")
    logged(out / "verl-1.jsonl", LOG)

    def ended() -> None:
        with closing(JudgeFolder(out, judge, source)) as folder:
            run.finish_verl_judge(
                judge, source, folder, files_of(), {"training": 1.0, "total": 1.0}
            )

    with monkeypatch.context() as cut:
        cut.setattr(run, "_copy_model_files", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ended()
    ended()
    assert [row["step"] for row in iter_rows(out / "metrics.jsonl", dict[str, float])] == [0, 1, 2]
    assert (out / "model.safetensors").read_bytes() == b"weights"


def test_verl_that_leaves_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="left no checkpoint"):
        run.find_trained_model(tmp_path, judge_of(tmp_path, SFT))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    with pytest.raises(ConfigError, match="verl.model_merger merge"):
        run.find_trained_model(tmp_path, judge_of(tmp_path, SFT))
