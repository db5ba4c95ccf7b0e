"""A judge's training by verl as it is planned, without verl: commands, files, refusals."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lab.tests.unit.helpers.verl_judges import GRPO, SFT, judge_of, talk

from adjudge.errors import ConfigError, RunFolderError
from adjudge.graders.llm.trained_judge_card import read_card
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.verl import run
from adjudge_lab.judge_training.verl.inputs import write_judge_files
from adjudge_lab.judge_training.verl.run import plan_verl_judge


def given(command: Sequence[str]) -> dict[str, str]:
    return dict(one.split("=", 1) for one in command if not one.startswith("-") and "=" in one)


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


def test_of_made_up_rows_the_best_that_can_be_expected_is_known(tmp_path: Path) -> None:
    made = {"synthetic": {"n": 40, "noise": 0.25}, "train_batch_size": 4, "micro_batch_size": 2}
    for mode, best in (("pairwise", 0.75), ("pointwise", 0.75)):
        given = {**GRPO, "backend": "verl", "mode": mode, "data": made}
        judge = JudgeFile.from_dict(given, folder=tmp_path, environ={})
        files = write_judge_files(judge, tmp_path / mode, None)
        assert files.bayes_accuracy == pytest.approx(best)


def test_all_that_is_unusable_counts_against_what_is_allowed(tmp_path: Path) -> None:
    """Odd turns and what is too long, one of each: neither alone is too much."""
    whole = judge_of(tmp_path, SFT).data.train
    rows = [{"messages": talk(n)} for n in range(18)]
    odd = {"messages": [{"role": "user", "content": "a"}, *talk(7)]}
    long = {"messages": [{"role": "user", "content": "a " * 60}, *talk(7)[1:]]}
    (tmp_path / "val.jsonl").write_text("\n".join(map(json.dumps, rows[:4])))
    (tmp_path / whole[0]).write_text("\n".join(map(json.dumps, [*rows[4:], odd, long])))
    for share, fine in ((0.2, True), (0.1, False)):
        limits = {
            "val": "val.jsonl",
            "allow_unusable": share,
            "truncation": "error",
            "max_length": 9,
        }
        given = {**SFT, "backend": "verl", "data": {**SFT["data"], "train": whole, **limits}}  # type: ignore[dict-item]
        judge = JudgeFile.from_dict(given, folder=tmp_path, environ={})
        if fine:
            files = write_judge_files(judge, tmp_path / "out", Reading())
            assert files.facts["train_rows"]["unusable"] == 2
        else:
            with pytest.raises(ConfigError, match="14 of 16 rows"):
                write_judge_files(judge, tmp_path / "other", Reading())


def test_a_plan_is_not_written_over_a_run(tmp_path: Path) -> None:
    judge, out = judge_of(tmp_path, SFT), tmp_path / "out"
    out.mkdir()
    (out / "config.toml").touch()
    with pytest.raises(RunFolderError, match="holds a run"):
        run.plan_verl_judge(judge, out, write=True)
    assert [one.name for one in out.iterdir() if not one.name.startswith(".")] == ["config.toml"]


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
    monkeypatch.setattr(run, "load_tokenizer", lambda _: Reading())
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
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")
    assert run.run_verl_judge(judge, source, out, launch=launch) == 3
    rows = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(rows.replace("answer 3", "another"))
    with pytest.raises(RunFolderError, match="the data has changed"):
        run.run_verl_judge(judge, source, out, launch=launch)
    assert len(logs) == 3
    with pytest.raises(ConfigError):
        read_card(out)
