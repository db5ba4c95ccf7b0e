"""What `adjudge export` writes, prepared and learned from by the real DPOTrainer and SFTTrainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import datasets
import trl

import adjudge
from adjudge.runs.export import ExportSettings, export_run
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {argument: {"type": "string"}}}}}
    for name, argument in (("look", "at"), ("say", "what"))
]  # fmt: skip
TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def rollout(group: int, said: str, *, with_tools: bool) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Where is {group}?"}]
    if with_tools:
        call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "map"}'}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": "in Peru"})
    messages.append({"role": "assistant", "content": said})
    more = {"tools": TOOLS} if with_tools else {}
    return {"messages": messages, "group": str(group), "reference": "In Peru.", **more}


@pytest.fixture(params=[False, True], ids=["plain", "tools"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    rows = [
        rollout(group, said, with_tools=request.param)
        for group in range(4)
        for said in ("In Peru.", "Nowhere.", "Ask me later.")
    ]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"graders": [{"name": "right", "type": "string_match"}]}
    adjudge.grade(file, spec, output=tmp_path / "run")
    return tmp_path / "run"


def tiny() -> tuple[Any, Any]:
    tokenizer = build_tiny_tokenizer(["Where is 1? In Peru. Nowhere. Ask me later."])
    tokenizer.chat_template = TEMPLATE
    return build_tiny_model(tokenizer, seed=0), tokenizer


def settings_of(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": 2,
        "use_cpu": True, "report_to": "none", "save_strategy": "no", "max_length": 2048,
        "bf16": False, "disable_tqdm": True,
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_dpo_learns_from_the_pairs(run: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"pairs.{suffix}"
    report = export_run(run, path, ExportSettings(kind="dpo", pairs=0))
    assert report.written == 8
    kind = "json" if suffix == "jsonl" else "parquet"
    rows = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path))
    model, tokenizer = tiny()
    trainer = trl.DPOTrainer(
        model,
        ref_model=tiny()[0],
        args=trl.DPOConfig(**settings_of(tmp_path / "dpo")),
        processing_class=tokenizer,
        train_dataset=rows,
    )
    row = trainer.train_dataset[0]
    chosen, rejected = (tokenizer.decode(row[name]) for name in ("chosen_ids", "rejected_ids"))
    assert "In Peru." in chosen
    assert "In Peru." not in rejected
    prompt = tokenizer.decode(row["prompt_ids"])
    assert "Where is" in prompt
    if "tools" in rows.column_names:
        tools = json.dumps(TOOLS)
        assert tools in prompt.replace("\n", "") or '"at"' in prompt
        assert "null" not in prompt  # a table of tools would have the parameters of all in each
    assert trainer.train().training_loss > 0


@pytest.mark.parametrize("kind", ["best-of-n", "sft"])
def test_sft_learns_from_the_answers(run: Path, tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "answers.jsonl"
    report = export_run(run, path, ExportSettings(kind=kind, min_reward=1.0))
    assert report.written == 4
    rows = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(tmp_path)
    )
    model, tokenizer = tiny()
    trainer = trl.SFTTrainer(
        model,
        args=trl.SFTConfig(**settings_of(tmp_path / "sft")),
        processing_class=tokenizer,
        train_dataset=rows,
    )
    text = tokenizer.decode(trainer.train_dataset[0]["input_ids"])
    assert "Where is" in text
    assert "In Peru." in text
    assert trainer.train().training_loss > 0
