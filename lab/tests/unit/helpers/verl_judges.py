"""Judges' files for verl, with rows beside them."""

import json
from pathlib import Path
from typing import Any

from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.verl.inputs import JudgeFiles

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


def files_of(rows: int = 100, val: int = 20) -> JudgeFiles:
    return JudgeFiles(Path("/x/train.parquet"), Path("/x/validation.parquet"), rows, val)
