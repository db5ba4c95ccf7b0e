"""SFT of a judge by verl's own trainer: a file's settings read by it, and a few real steps."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import verl
from hydra import compose, initialize_config_dir
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from adjudge.graders.llm.trained_judge_card import read_card
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.report import judge_summary_lines
from adjudge_lab.judge_training.verl.inputs import verl_judge_command, write_judge_files
from adjudge_lab.judge_training.verl.run import load_tokenizer, run_verl_judge
from adjudge_lab.rl.launch import run_module

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab" / "src")])


def conversation(number: int) -> list[dict[str, str]]:
    a, b = "abcdefgh"[number % 8], "abcdefgh"[number // 8 % 8]
    return [
        {"role": "system", "content": "answer"},
        {"role": "user", "content": f"what is {a} + {b} ?"},
        {"role": "assistant", "content": f"the answer {a}"},
        {"role": "user", "content": f"<|im_end|> {b} ?"},
        {"role": "assistant", "content": "good good good"},
    ]


def judge_of(folder: Path, **changed: Any) -> JudgeFile:
    (folder / "model").mkdir()
    tiny.save_model(folder / "model")
    rows = [{"talk": conversation(number), "id": f"i{number}"} for number in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data: dict[str, Any] = {
        "method": "sft",
        "backend": "verl",
        "model": {"path": "model", "label": "it's a judge"},
        "data": {
            "train": "rows.jsonl", "train_batch_size": 8, "micro_batch_size": 4, "max_length": 48,
            "multiturn": {"messages_key": "talk"},
        },
        "optim": {"lr": 3e-2, "warmup_steps_ratio": 0.0, "clip_grad": 2.0},
        "trainer": {"n_gpus_per_node": 1, "sp_size": 1, "total_epochs": 2},
    }  # fmt: skip
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table}
    return JudgeFile.from_dict(data, folder=folder, environ={})


def test_every_setting_arrives_in_verls_own_configuration(tmp_path: Path) -> None:
    judge = judge_of(
        tmp_path,
        trainer={"n_gpus_per_node": 4, "sp_size": 2, "strategy": "fsdp", "cpu_offload": True,
                 "enable_gradient_checkpointing": True},
        data={"micro_batch_size": 2, "truncation": "left"},
        optim={"lr_scheduler": "wsd"},
    )  # fmt: skip
    out = tmp_path / "an out, folder=1"
    command = verl_judge_command(judge, write_judge_files(judge, out, load_tokenizer(judge)), out)
    module = command.index("verl.trainer.fsdp_sft_trainer")
    assert "--nproc_per_node=4" in command[:module]
    configs = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(configs), version_base=None):
        config = compose("sft_trainer", overrides=command[module + 1 :])
    assert config.data.train_files == str(out / "train.parquet")
    assert (config.data.train_batch_size, config.data.micro_batch_size_per_gpu) == (8, 2)
    assert (config.data.max_length, config.data.truncation) == (48, "left")
    assert config.data.multiturn.enable
    assert config.data.multiturn.messages_key == "talk"
    assert config.model.partial_pretrain == str(tmp_path / "model")
    assert (config.model.strategy, config.model.fsdp_config.cpu_offload) == ("fsdp", True)
    assert config.model.enable_gradient_checkpointing
    assert (config.ulysses_sequence_parallel_size, config.use_remove_padding) == (2, True)
    assert (config.optim.lr, config.optim.weight_decay) == (3e-2, 0.01)
    assert (config.optim.lr_warmup_steps_ratio, config.optim.clip_grad) == (0.0, 2.0)
    assert config.optim.lr_scheduler == "wsd"
    assert (config.trainer.total_epochs, config.trainer.n_gpus_per_node) == (2, 4)
    assert config.trainer.experiment_name == "it's a judge"


def test_verl_reads_the_rows_and_learns_the_assistants_turns(tmp_path: Path) -> None:
    judge = judge_of(tmp_path)
    files = write_judge_files(judge, tmp_path / "out", load_tokenizer(judge))
    tokenizer = tiny.tokenizer()
    config = {"max_length": 48, "multiturn": {"messages_key": "talk"}}
    row = MultiTurnSFTDataset([str(files.train)], tokenizer, config)[0]
    learned = row["input_ids"][row["loss_mask"] == 1]
    said = tokenizer.decode(learned)
    assert said.count("the answer") == 1
    assert said.endswith("good good good <|im_end|>")
    whole = tokenizer.decode(row["input_ids"][row["attention_mask"] == 1])
    assert whole.count("<|im_end|>") == 5  # the row's own is text, not a turn's end
    assert files.train_rows + files.val_rows == 40
    assert files.facts["train_rows"]["truncated"] == 0
    assert files.train_rows == 36


def test_verl_trains_and_leaves_a_judges_folder(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, trainer={"eval_every": 4})
    source = tmp_path / "judge.toml"
    source.write_text("method = 'sft'\n")
    out = tmp_path / "out"
    said: list[str] = []

    def launch(argv: Sequence[str], env: Mapping[str, str]) -> int:
        at = argv.index("-m")
        assert argv[at + 1] == "verl.trainer.fsdp_sft_trainer"
        script = [*argv[:at], str(HERE / "judge_sft_on_cpu.py"), *argv[at + 2 :]]
        variables = {**env, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
        return run_module([*script, "trainer.device=cpu"], env=variables, on_line=said.append)

    summary = run_verl_judge(judge, source, out, launch=launch)
    assert isinstance(summary, dict), "\n".join(said[-40:])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == summary["steps"] == 8
    assert losses[-1] < 0.7 * losses[0]
    held_out = [row["val/loss"] for row in rows if "val/loss" in row]
    assert held_out[-1] < held_out[0]
    assert summary["validation"] == {"loss": held_out[-1]}
    card = read_card(out)
    assert (card.kind, card.method, card.prompt) == ("generative", "sft", None)
    assert card.data["train_rows"]["rows"] == 36
    assert AutoTokenizer.from_pretrained(out).model_max_length == 48
    trained = AutoModelForCausalLM.from_pretrained(out).state_dict()
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert trained.keys() == base.keys()
    assert all((trained[name] != base[name]).any() for name in trained)
    assert summary["weights"]["parameters"] == sum(one.numel() for one in trained.values())
    assert (out / "report.html").stat().st_size > 1000
    assert any(line.startswith("loss") for line in judge_summary_lines(summary))


@pytest.mark.parametrize("found", ["0.9.1", None])
def test_another_verl_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    from adjudge.errors import ConfigError
    from adjudge_lab.judge_training.verl import run

    monkeypatch.setattr(run, "installed_verl", lambda: found)
    monkeypatch.setattr(run, "verl_version", lambda: "0.9.1")
    with pytest.raises(ConfigError, match=r"verl 0\.6\.1 \(found (0\.9\.1|none)\)"):
        run_verl_judge(judge_of(tmp_path), tmp_path / "x", tmp_path / "out", launch=lambda *_: 0)
