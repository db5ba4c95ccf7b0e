"""The training file of a judge: defaults, environment, refusals."""

from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.service.user_backend import load_backend
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.trl_trainers import (
    training_steps,
    unsupported_settings,
    validation_interval,
)

MADE = {"synthetic": {"n": 20}}
EXAMPLE = Path(__file__).parents[3] / "examples" / "judge_bt_tiny.toml"


def read(
    method: str = "bradley_terry", environ: dict[str, str] | None = None, **tables: Any
) -> Any:
    tables = {"data": MADE, **tables}
    return JudgeFile.from_dict({"method": method, **tables}, environ=environ or {})


@pytest.mark.parametrize(
    ("method", "tables", "said"),
    [
        ("bt", {}, "method: input should be"),
        ("sft", {"optim": {"learning_rate": 1.0}}, r"optim.learning_rate: unknown key"),
        ("sft", {"optim": {"clip_gard": 1.0}}, "did you mean 'clip_grad'"),
        ("sft", {"optim": 3}, "optim: "),
        ("sft", {"data": {}}, r"data.train: is required. Give files"),
        ("sft", {"data": {**MADE, "train": "a.jsonl"}}, "cannot be combined with files"),
        ("sft", {"data": {**MADE, "micro_batch_size": 7}}, "multiple of micro_batch_size"),
        ("sft", {"data": {**MADE, "use_margin": True}}, "data.use_margin"),
        ("sft", {"data": {**MADE, "truncation": "middle"}}, "data.truncation"),
        ("sft", {"data": {"synthetic": {"n": 20, "families": ["A"]}}}, "families"),
        ("bradley_terry", {"mode": "pairwise"}, "mode: is only for generative judges"),
        ("bradley_terry", {"grpo": {}}, "grpo: is only for method = 'grpo'"),
        ("bradley_terry", {"lora": {"rank": 0}}, "lora.rank"),
        ("bradley_terry", {"trainer": {"seed": 1.5}}, "trainer.seed"),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_remedy(
    method: str, tables: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(method, **tables)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"LR: must be a number .found 'fast'.*optim\.lr"):
        read(environ={"LR": "fast"})
    with pytest.raises(ConfigError, match="(?s)trainer.strategy.*overrides the file: STRATEGY"):
        read(environ={"STRATEGY": "ddp", "LR": "1"})
    with pytest.raises(ConfigError, match=r"(?s)data.train_batch_size: .*: TRAIN_BATCH_SIZE\)"):
        read("sft", environ={"TRAIN_BATCH_SIZE": "7"})  # 12 at a time
    tiny = {"path": "tiny", "tiny": {"layers": 1}}
    with pytest.raises(ConfigError, match="(?s)Leave tiny out.*overrides the file: MODEL_PATH"):
        read(environ={"MODEL_PATH": "mine"}, model=tiny)
    with pytest.raises(ConfigError, match="clip_grad") as refused:
        read(environ={"LR": "1"}, trainer={"total_epochs": 0}, optim={"clip_grad": 0.0})
    assert "total_epochs" in str(refused.value)


def test_an_address_with_a_password_would_be_in_all_files_of_the_run() -> None:
    for tables, environ in (
        ({"grpo": {"ray_address": "http://me:secret@head:8265"}}, {}),
        ({}, {"RAY_ADDRESS": "http://me:secret@head:8265"}),
    ):
        with pytest.raises(ConfigError, match=r"grpo\.ray_address: .*RAY_ADDRESS") as refused:
            read("grpo", environ, **tables)
        assert "secret" not in str(refused.value)


def test_the_model_beside_the_file_is_meant_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    data = {"method": "sft", "data": MADE, "model": {"path": "models/mine"}}
    judge = JudgeFile.from_dict(data, folder=tmp_path, environ={})
    assert judge.base == str(tmp_path / "models" / "mine")
    data["model"] = {"path": "org/name"}
    assert JudgeFile.from_dict(data, folder=tmp_path, environ={}).base == "org/name"


def test_steps_and_validations() -> None:
    judge = read(data={**MADE, "train_batch_size": 32})
    assert training_steps(judge, 65) == 9  # three epochs of three, the last of which is one row
    assert [validation_interval(judge, steps) for steps in (1, 9, 340)] == [1, 1, 34]
    assert validation_interval(read(trainer={"eval_every": 50}), 340) == 50


def test_what_one_device_does_not_do_is_said() -> None:
    assert unsupported_settings(read()) == []
    judge = read(trainer={"sp_size": 4, "cpu_offload": True})
    assert [note.split(":")[0] for note in unsupported_settings(judge)] == [
        "trainer.sp_size = 4",
        "trainer.cpu_offload",
    ]


def test_the_example_is_read() -> None:
    judge = JudgeFile.load(EXAMPLE, environ={})
    assert (judge.method, judge.model.path) == ("bradley_terry", "tiny")
    assert judge.with_seed(3).trainer.seed == 3


def test_a_trained_judges_folder_stands_for_its_spec(tmp_path: Path) -> None:
    (tmp_path / "judge.json").write_text("{}")
    with pytest.raises(ConfigError, match="trained to answer, not to judge"):
        load_backend(str(tmp_path))
    (tmp_path / "reward.toml").write_text('[[graders]]\nname = "words"\ntype = "length_penalty"\n')
    spec = RewardSpec.load(tmp_path)
    assert [entry.name for entry in spec.graders] == ["words"]
    assert load_backend(str(tmp_path)).name == str(tmp_path / "reward.toml")
