"""Judges trained by two processes on the CPU, and what starts them: run by `make test-trl`."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import torch

from adjudge.errors import ConfigError, RunFolderError
from adjudge_lab.judge_training import distributed, process
from adjudge_lab.judge_training.base_model import (
    add_lora,
    load_base_model,
    restore_weights,
    unwrap_model,
)
from adjudge_lab.judge_training.distributed import (
    EVENT_MARK_VARIABLE,
    _ProcessOutput,
    distributed_command,
    process_count,
    run_distributed,
)
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob, LoraTable
from adjudge_lab.judge_training.run import run_judge
from adjudge_lab.judge_training.supervised import _score_in_float32
from adjudge_lab.judge_training.trl_trainers import LengthGroupedSampler, unsupported_settings

accelerate = pytest.importorskip("accelerate", reason="accelerate comes with trl")
launching = pytest.importorskip("accelerate.commands.launch")
loading = pytest.importorskip("accelerate.data_loader")
safetensors = pytest.importorskip("safetensors.torch")
checkpointing = pytest.importorskip("torch.distributed.checkpoint.state_dict")

FILE = """
kind = "judge"
method = "{method}"
[model]
path = "tiny"
[data]
train_batch_size = 32
micro_batch_size = {micro}
max_length = 128
synthetic = {{ n = 160 }}
[optim]
lr = 3e-3
[trainer]
total_epochs = {epochs}
eval_every = 3
sp_size = 1
n_gpus_per_node = {count}
{more}
"""
MICRO = {1: 16, 2: 8, 3: 4}
NOISE = 2e-4
"""Sums in another order, after ten steps of Adam, which divides by what may be next to nothing."""

needs_no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="these are for processes on the CPU"
)


class Stopped(Exception):
    """A run that is interrupted."""


def job(
    place: Path, method: str, count: int, *, epochs: int = 2, more: str = "", **given: Any
) -> JudgeJob:
    place.mkdir(exist_ok=True)
    source = place / "judge.toml"
    text = FILE.format(method=method, micro=MICRO[count], count=count, epochs=epochs, more=more)
    source.write_text(text)
    return JudgeJob(JudgeFile.load(source, environ={}), source, place / "run", **given)


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@needs_no_gpu
@pytest.mark.parametrize("method", ["bradley_terry", "sft"])
def test_two_processes_train_what_one_does(tmp_path: Path, method: str) -> None:
    """Nine lots of 16 rows an epoch, two to a step, the last step of one lot."""
    run_judge(job(tmp_path / "one", method, 1))
    alone = json.loads((tmp_path / "one" / "run" / "summary.json").read_text())
    heard: list[int] = []
    stages: list[tuple[str, int, int]] = []
    both = job(
        tmp_path / "two",
        method,
        2,
        on_row=lambda step, _: heard.append(step),
        on_progress=lambda *given: stages.append(given),
    )
    summary = run_judge(both)
    assert both.summary == summary == json.loads((both.folder / "summary.json").read_text())
    assert heard == [row["step"] for row in rows(both.folder)] == list(range(11))
    assert stages[-1] == ("training", 10, 10)
    same = ("steps", "best_step", "tokens", "data", "weights")
    assert [summary[name] for name in same] == [alone[name] for name in same]
    for one, other in zip(rows(tmp_path / "one" / "run"), rows(both.folder), strict=True):
        assert one.keys() == other.keys()
        for name in ("train/loss", "val/loss", "val/accuracy", "val/token_accuracy", "lr"):
            assert other.get(name) == pytest.approx(one.get(name), abs=NOISE), (one["step"], name)
        assert other.get("tokens") == one.get("tokens")
    first, second = (
        safetensors.load_file(tmp_path / name / "run" / "model.safetensors")
        for name in ("one", "two")
    )
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(second[name], first[name], atol=NOISE, rtol=0)
    assert any("no GPU" in note for note in summary["not_done"])


@needs_no_gpu
def test_two_processes_are_stopped_and_go_on(tmp_path: Path) -> None:
    def stop(step: int, _: dict[str, float]) -> None:
        if step == 4:
            raise Stopped

    plain = run_judge(job(tmp_path / "plain", "bradley_terry", 1, epochs=8))
    with pytest.raises(Stopped):
        run_judge(job(tmp_path / "cut", "bradley_terry", 2, epochs=8, on_row=stop))
    known = json.loads((tmp_path / "cut" / "run" / "run.json").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(known["pid"], 0)
    resumed = run_judge(job(tmp_path / "cut", "bradley_terry", 2, epochs=8))
    assert resumed["resumed_from"] >= 3
    found = rows(tmp_path / "cut" / "run")
    assert [row["step"] for row in found] == list(range(plain["steps"] + 1))
    for one, other in zip(rows(tmp_path / "plain" / "run"), found, strict=True):
        if one["step"] < 20:  # far on, noise has grown
            assert other.get("train/loss") == pytest.approx(one.get("train/loss"), abs=1e-2)


def dealt(lengths: list[int], size: int, count: int, epoch: int) -> list[list[list[int]]]:
    """Batches of rows as accelerate deals them out, by process."""
    found = []
    for rank in range(count):
        order = LengthGroupedSampler(lengths, size * count, seed=1)
        loader = loading.prepare_data_loader(
            torch.utils.data.DataLoader(range(len(lengths)), batch_size=size, sampler=order),
            num_processes=count,
            process_index=rank,
            put_on_device=False,
        )
        loader.set_epoch(epoch)
        order.set_epoch(epoch)  # as the trainer does, too
        found.append([batch.tolist() for batch in loader])
    return found


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("number", [1, 5, 24, 25, 47, 301])
def test_every_row_is_dealt_to_one_process(number: int, count: int) -> None:
    accelerate.PartialState()
    lengths = [1 + (37 * place) % 101 for place in range(number)]
    found = dealt(lengths, 4, count, epoch=0)
    steps = math.ceil(number / (4 * count))
    assert [len(batches) for batches in found] == [steps] * count
    seen = [row for batches in found for batch in batches for row in batch]
    assert set(seen) == set(range(number))
    assert len(seen) == steps * 4 * count  # the last batches are filled up
    whole = [batches[: number // (4 * count)] for batches in found]
    once = [row for batches in whole for batch in batches for row in batch]
    assert len(once) == len(set(once))
    assert number < 40 or dealt(lengths, 4, count, epoch=1) != found


@pytest.mark.parametrize(("strategy", "version"), [("fsdp", "1"), ("fsdp2", "2")])
def test_the_command_is_one_that_accelerate_understands(
    tmp_path: Path, strategy: str, version: str
) -> None:
    more = f'strategy = "{strategy}"\ncpu_offload = true'
    judge = job(tmp_path, "bradley_terry", 2, more=more).judge
    program, *flags = distributed_command(judge, tmp_path / "job.json", cuda=True)
    assert program == "accelerate.commands.launch"
    given = launching.launch_command_parser().parse_args(flags)
    assert given.module
    assert given.training_script == "adjudge_lab.judge_training.process"
    assert given.training_script_args == [str(tmp_path / "job.json")]
    env = launching.prepare_multi_gpu_env(given)
    assert given.nproc_per_node == "2"
    expected = {
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "FSDP_VERSION": version,
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
        "FSDP_ACTIVATION_CHECKPOINTING": "false",
    }
    assert {name: env[name] for name in expected} == expected


def test_what_does_not_divide_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"batch_size: must be a multiple of .*4 × 3"):
        run_distributed(job(tmp_path, "bradley_terry", 3))
    monkeypatch.setattr(distributed, "gpu_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"n_gpus_per_node: is 2, but this machine has 1 GPU"):
        run_distributed(job(tmp_path, "bradley_terry", 2))


def test_what_is_left_undone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = 'strategy = "fsdp"\ncpu_offload = true'
    judge = job(tmp_path, "sft", 2, more=more).judge
    assert process_count(judge) == 2
    monkeypatch.setattr("adjudge_lab.judge_training.trl_trainers.gpu_count", lambda: 2)
    assert unsupported_settings(judge) == []
    monkeypatch.setattr("adjudge_lab.judge_training.trl_trainers.gpu_count", lambda: 0)
    assert [note.partition(":")[0] for note in unsupported_settings(judge)] == [
        "trainer.strategy = fsdp",
        "trainer.cpu_offload",
    ]


@pytest.mark.parametrize("kind", [ConfigError, RunFolderError, ValueError])
def test_what_a_process_refuses_is_refused_by_its_starter(
    kind: type[Exception],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(EVENT_MARK_VARIABLE, "0123")
    for text in ("of the first\nin two lines", "another's"):
        process._report_failure(kind, kind(text), None)
    heard: list[int] = []
    listener = _ProcessOutput(
        job(tmp_path, "sft", 2, on_row=lambda step, _: heard.append(step)), "0123"
    )
    lines = ["Traceback", 'a 0123["row",3,{"step":3.0}]', *capfd.readouterr().out.splitlines()]
    for line in lines:
        listener.read_line(line)
    found = listener.make_error(2, 1)
    assert heard == [3]
    assert isinstance(found, kind if kind is not ValueError else RuntimeError)
    assert "of the first\nin two lines" in str(found)
    silent = _ProcessOutput(job(tmp_path, "sft", 2), "0123")
    for line in ("Killed", "=====", "exitcode: -9"):
        silent.read_line(line)
    assert "Killed\nexitcode: -9" in str(silent.make_error(2, 137))


@pytest.mark.parametrize("name", ["bradley_terry", "sft", "lora"])
def test_a_model_is_put_together_again(tmp_path: Path, name: str) -> None:
    judge = job(tmp_path, "sft" if name == "sft" else "bradley_terry", 1).judge
    model, _ = load_base_model(judge, ["a few words"])
    if name == "lora":
        pytest.importorskip("peft", reason="peft is not installed here")
        model = add_lora(model, LoraTable(rank=2), scalar=True)
    plain = unwrap_model(model)
    assert all(weight.is_meta for weight in plain.parameters())
    ids = torch.tensor([[3, 4, 5]])
    wanted = model.eval()(input_ids=ids).logits
    state = {key: value.clone() for key, value in model.state_dict().items()}
    again = restore_weights(plain, state, torch.device("cpu"))
    torch.testing.assert_close(again.eval()(input_ids=ids).logits, wanted)
    assert [weight.requires_grad for weight in again.parameters()] == [
        weight.requires_grad for weight in model.parameters()
    ]


def test_a_model_in_parts_scores_in_full_and_is_put_together(tmp_path: Path) -> None:
    """FSDP2 as accelerate sets it up on GPUs, here of one process on the CPU."""
    judge = job(tmp_path, "bradley_terry", 1).judge
    model, _ = load_base_model(judge, ["a few words"])
    plain, ids = unwrap_model(model), torch.tensor([[3, 4, 5]])
    wanted = model.eval()(input_ids=ids).logits
    _score_in_float32(model)
    torch.testing.assert_close(model(input_ids=ids).logits, wanted)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        policy = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for part in [*model.model.layers, model]:
            torch.distributed.fsdp.fully_shard(part, mesh=mesh, mp_policy=policy)
        scores = model(input_ids=ids).logits
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores, wanted, atol=0.05, rtol=0.1)
        options = checkpointing.StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = checkpointing.get_model_state_dict(model, options=options)
    finally:
        torch.distributed.destroy_process_group()
    again = restore_weights(plain, state, torch.device("cpu"))
    assert type(again).__name__ == "Qwen3ForSequenceClassification"
    torch.testing.assert_close(again.eval()(input_ids=ids).logits, wanted)
