"""A judge's training by verl as it is planned, without verl: commands, files, refusals."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adjudge.errors import ConfigError
from adjudge.judge_training.card import read_card
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.verl import finish, run
from adjudge.judge_training.verl.files import JudgeFiles, write_judge_files
from adjudge.judge_training.verl.run import COMMAND, plan_verl_judge
from adjudge.judge_training.verl.settings import verl_judge_command

SFT = {
    "method": "sft",
    "model": {"path": "org/base"},
    "data": {"train_batch_size": 4, "micro_batch_size": 2},
    "trainer": {"n_gpus_per_node": 1, "sp_size": 1},
}
GRPO = {
    "method": "grpo",
    "model": {"path": "org/base"},
    "data": {"train_batch_size": 4, "micro_batch_size": 2},
    "trainer": {"n_gpus_per_node": 1},
}


def judge_of(folder: Path, base: dict[str, Any], **changed: Any) -> JudgeFile:
    rows: list[dict[str, Any]]
    if base["method"] == "sft":
        rows = [{"messages": talk(n)} for n in range(20)]
    elif changed.get("mode") == "pairwise":
        rows = [
            {"prompt": f"q{n}", "a": f"a{n}", "b": "b", "label": "AB"[n % 2]} for n in range(20)
        ]
    else:
        rows = [{"prompt": f"q{n}", "response": f"a{n}", "label": n % 5} for n in range(20)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data: dict[str, Any] = {**base, "backend": "verl"}
    data["data"] = {"train": "rows.jsonl", "val_fraction": 0.2, **base["data"]}
    for name, given in changed.items():
        data[name] = {**data.get(name, {}), **given} if isinstance(given, dict) else given
    return JudgeFile.from_dict(data, folder=folder, environ={})


def talk(number: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def given(command: Sequence[str]) -> dict[str, str]:
    return dict(one.split("=", 1) for one in command if not one.startswith("-") and "=" in one)


def files_of(rows: int = 100, val: int = 20) -> JudgeFiles:
    return JudgeFiles(Path("/x/train.parquet"), Path("/x/validation.parquet"), rows, val)


def test_sft_is_started_by_torch_for_each_gpu(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, SFT, trainer={"n_gpus_per_node": 8, "sp_size": 8})
    command = verl_judge_command(judge, files_of(), Path("/x/an out's, folder"))
    assert command[:7] == [
        "python", "-m", "torch.distributed.run", "--standalone", "--nnodes=1",
        "--nproc_per_node=8", "-m",
    ]  # fmt: skip
    assert command[7] == "verl.trainer.fsdp_sft_trainer"
    found = given(command[8:])
    assert found["data.train_batch_size"] == "4"
    assert found["data.micro_batch_size_per_gpu"] == "2"
    assert found["data.max_length"] == "4096"
    assert found["data.truncation"] == "right"
    assert found["data.multiturn.enable"] == "True"
    assert found["data.multiturn.messages_key"] == "messages"
    assert found["model.partial_pretrain"] == "org/base"
    assert found["ulysses_sequence_parallel_size"] == "8"
    assert found["use_remove_padding"] == "True"
    assert found["trainer.default_local_dir"] == "'/x/an out\\'s, folder/checkpoints'"


def test_the_defaults_are_those_of_the_methods() -> None:
    data = {"method": "sft", "backend": "verl", "data": {"train": "x"}}
    judge = JudgeFile.from_dict(data, environ={})
    found = given(verl_judge_command(judge, files_of(rows=1000), Path("/x"))[8:])
    assert found["data.train_batch_size"] == "96"
    assert found["data.micro_batch_size_per_gpu"] == "12"
    assert found["ulysses_sequence_parallel_size"] == found["trainer.n_gpus_per_node"] == "8"
    assert found["trainer.total_epochs"] == "1"
    assert found["model.strategy"] == "fsdp2"


def test_grpo_is_our_entry_point_with_our_rewards(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, GRPO, mode="pairwise", trainer={"param_offload": True})
    plan = plan_verl_judge(judge, tmp_path / "out", write=False)
    assert list(plan.command[:3]) == ["python", "-m", "adjudge.trainers.verl.main_ppo"]
    found = given(plan.command[3:])
    at = "actor_rollout_ref"
    assert found["algorithm.adv_estimator"] == "grpo"
    assert found[f"{at}.rollout.n"] == "4"
    assert found[f"{at}.rollout.mode"] == "sync"
    assert found[f"{at}.actor.use_kl_loss"] == "True"
    assert found[f"{at}.actor.kl_loss_coef"] == "0.001"
    assert found[f"{at}.actor.kl_loss_type"] == "low_var_kl"
    assert found[f"{at}.actor.fsdp_config.param_offload"] == "True"
    assert found["data.shuffle"] == "False"
    assert found["reward_model.reward_manager"] == "adjudge_judgements"
    assert found["+reward_model.reward_kwargs.mode"] == "pairwise"
    assert Path(found["custom_reward_function.path"]).is_file()
    assert not (tmp_path / "out").exists()


def test_without_a_weight_there_is_no_kl_term_and_no_reference(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, GRPO, grpo={"kl_loss_coef": 0.0})
    found = given(plan_verl_judge(judge, tmp_path / "out", write=False).command[3:])
    assert found["actor_rollout_ref.actor.use_kl_loss"] == "False"


@pytest.mark.parametrize(
    ("base", "changed", "key"),
    [
        (SFT, {"lora": {"rank": 4}}, "lora"),
        (SFT, {"model": {"path": "tiny"}}, "model.path"),
        (SFT, {"optim": {"lr_scheduler": "linear"}}, "optim.lr_scheduler"),
        (GRPO, {"optim": {"lr_scheduler": "wsd"}}, "optim.lr_scheduler"),
        (SFT, {"trainer": {"param_offload": True}}, "trainer.param_offload"),
        (GRPO, {"trainer": {"cpu_offload": True}}, "trainer.cpu_offload"),
        (SFT, {"trainer": {"cpu_offload": True, "strategy": "fsdp2"}}, "trainer.cpu_offload"),
        (SFT, {"trainer": {"n_gpus_per_node": 3, "sp_size": 2}}, "trainer.sp_size"),
        (SFT, {"trainer": {"n_gpus_per_node": 4}}, "data.train_batch_size"),
        (SFT, {"data": {"train_batch_size": 64}}, "data.train_batch_size"),
        (SFT, {"data": {"val_fraction": 0.01}}, "data.val"),
    ],
)
def test_what_verl_would_not_do_is_refused_by_its_key(
    tmp_path: Path, base: dict[str, Any], changed: dict[str, Any], key: str
) -> None:
    judge = judge_of(tmp_path, base, **changed)
    with pytest.raises(ConfigError, match=rf"training file: {key}: "):
        plan_verl_judge(judge, tmp_path / "out", write=False)


def test_a_scalar_judge_is_told_where_it_can_be_trained(tmp_path: Path) -> None:
    data = {"method": "bradley_terry", "backend": "verl", "data": {"train": "x"}}
    judge = JudgeFile.from_dict(data, folder=tmp_path, environ={})
    with pytest.raises(ConfigError, match="--ray ADDRESS"):
        plan_verl_judge(judge, tmp_path / "out", write=False)


def test_a_written_plan_has_the_command_and_what_it_reads(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, GRPO, mode="pairwise")
    out = tmp_path / "out"
    plan = plan_verl_judge(judge, out, write=True)
    words = [
        word for word in shlex.split((out / COMMAND).read_text(), comments=True) if word.strip()
    ]
    assert words[-len(plan.command) :] == list(plan.command)
    rows = pq.read_table(out / "train.parquet").to_pylist()
    assert len(rows) == plan.files.train_rows == 32
    assert rows[0] == plan.files.first
    assert pq.read_table(out / "validation.parquet").num_rows == plan.files.val_rows == 8
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        assert one["extra_info"]["row"] == other["extra_info"]["row"]
        assert {one["reward_model"]["ground_truth"], other["reward_model"]["ground_truth"]} == {
            "A",
            "B",
        }
        assert one["prompt"][0] == other["prompt"][0]  # the same words,
        assert one["prompt"][1] != other["prompt"][1]  # and answers exchanged
    again = plan_verl_judge(judge, out, write=True)
    assert again.files.first == plan.files.first  # the key is kept
    assert (out / ".fence_key").stat().st_mode & 0o077 == 0


def test_the_order_is_the_seeds(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, GRPO)

    def order(seed: int) -> list[Any]:
        write_judge_files(judge.with_seed(seed), tmp_path / "out", None)
        rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
        return [row["prompt"][1]["content"] for row in rows]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_judgements_are_imitated_where_the_file_has_a_mode(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    judge_of(tmp_path, GRPO, mode="pairwise")
    data = {**SFT, "backend": "verl", "mode": "pairwise",
            "data": {**SFT["data"], "train": "rows.jsonl"}}  # type: ignore[dict-item]  # fmt: skip
    judge = JudgeFile.from_dict(data, folder=tmp_path, environ={})
    files = write_judge_files(judge, tmp_path / "out", None)
    assert files.form is not None
    last = files.first["messages"][-1]
    assert last["role"] == "assistant"
    assert last["content"].startswith("<think>")


def test_rows_that_verl_cannot_read_are_counted(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, SFT, data={"allow_unusable": 0.5, "val_fraction": 0.4})
    odd = {"messages": [{"role": "user", "content": "a"}, *talk(7)]}
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("\n" + "\n".join(json.dumps({**odd, "id": str(n)}) for n in range(1)))
    files = write_judge_files(judge, tmp_path / "out", None)
    counts = [files.facts[f"{part}_rows"] for part in ("train", "val")]
    assert sum(one["unusable"] for one in counts) == 1
    assert "turns of user, user, assistant" in str([one["problems"] for one in counts])
    assert sum(one["rows"] for one in counts) == 20
    strict = judge_of(tmp_path, SFT)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("\n" + json.dumps(odd))
    with pytest.raises(ConfigError, match="allow_unusable"):
        write_judge_files(strict, tmp_path / "other", None)


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


def test_what_verl_logs_has_our_names(tmp_path: Path) -> None:
    logged(tmp_path / "verl-1.jsonl", LOG)
    assert finish.rows_of(tmp_path) == [
        {"step": 0, "val/reward_mean": 0.1, "val/accuracy": 0.5},
        {"step": 1, "train/policy_loss": 0.2, "train/kl_divergence": 0.01,
         "train/reward_mean": 0.3, "train/accuracy": 0.6, "lr": 1e-6},
        {"step": 2, "train/accuracy": 0.7, "val/reward_mean": 0.4, "val/unread/no_verdict": 0.0},
    ]  # fmt: skip


def test_steps_that_were_done_again_count_once(tmp_path: Path) -> None:
    logged(tmp_path / "verl-2.jsonl", [(2, {"train/loss": 2.5}), (3, {"train/loss": 2.0})])
    logged(tmp_path / "verl-1.jsonl", [(1, {"train/loss": 4.0}), (2, {"train/loss": 3.0})])
    with (tmp_path / "verl-2.jsonl").open("a") as file:
        file.write('{"step": 4, "da')  # killed
    losses = [row["train/loss"] for row in finish.rows_of(tmp_path)]
    assert losses == [4.0, 2.5, 2.0]


def test_verl_that_leaves_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="left no checkpoint"):
        finish.trained_model(tmp_path, judge_of(tmp_path, SFT))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    with pytest.raises(ConfigError, match="verl.model_merger merge"):
        finish.trained_model(tmp_path, judge_of(tmp_path, SFT))


class Reading:
    """A tokenizer as far as files need one."""

    added_tokens_decoder: Mapping[int, Any] = {}
    all_special_tokens: Sequence[str] = ("<|end|>",)
    bos_token_id = None
    chat_template = "x"

    def apply_chat_template(self, turns: Any, **_: Any) -> str:
        return " ".join(turn["content"] for turn in turns)

    def __call__(self, text: str, **_: Any) -> Any:
        return type("Ids", (), {"input_ids": list(range(len(text.split())))})


def test_a_failed_run_gives_its_code_and_goes_on_with_another_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "installed_verl", lambda: "0.6.1")
    monkeypatch.setattr(run, "verl_version", lambda: "0.6.1")
    monkeypatch.setattr(run, "tokenizer_of", lambda _: Reading())
    judge, source, out = judge_of(tmp_path, SFT), tmp_path / "judge.toml", tmp_path / "out"
    source.write_text("x")
    logs = []

    def launch(argv: Sequence[str], env: Mapping[str, str]) -> int:
        assert argv[0] == "torch.distributed.run"
        logs.append(Path(env["VERL_FILE_LOGGER_PATH"]))
        logs[-1].touch()
        return 3

    for _ in range(2):
        assert run.run_verl_judge(judge, source, out, launch=launch) == 3
    assert [log.name for log in logs] == ["verl-1.jsonl", "verl-2.jsonl"]
    with pytest.raises(ConfigError):
        read_card(out)
