"""What tests of both versions of verl share: a spec, a tokenizer of words, batches, scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl import DataProto

SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "{response}"
score_range = [0.0, 1.0]

[judges.main]
type = "scripted"
[judges.main.script]
fail = "no verdict"
good = '{"score": 1.0}'
poor = '{"score": 0.0}'
fine = '{"score": 0.75}'
"" = '{"score": 0.25}'
"""

BY_TURN = SPEC.replace("quality", "turn").replace("template", 'scope = "event"\ntemplate')
BY_TURN = (
    BY_TURN.replace('"" = \'{"score": 0.25}\'\n', "")
    + """
[reward]
event_weight = 1.0
outcome_weight = 0.0
"""
)
"""Of each turn, and nothing of the whole."""


def make_tokenizer(words: list[str], chat_template: str) -> Any:
    of_words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    of_words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=of_words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        padding_side="left",
    )
    fast.chat_template = chat_template
    return fast


def make_batch(
    prompt: list[int],
    responses: list[list[int]],
    width: int,
    n: int = 4,
    meta: dict[str, Any] | None = None,
    **columns: list[Any],
) -> DataProto:
    """``responses`` to one prompt per group of ``n``; an empty one has no token at all."""
    rows: dict[str, list[list[int]]] = {"prompts": [], "responses": [], "attention_mask": []}
    for ids in responses:
        fill = [0] * (width - len(ids))
        rows["prompts"].append([0, *prompt])
        rows["responses"].append(ids + fill)
        rows["attention_mask"].append([0] + [1] * len(prompt + ids) + fill)
    size = len(responses)
    given: dict[str, list[Any]] = {
        "data_source": ["judge/x"] * size,
        "reward_model": [{"style": "rule", "ground_truth": "5"} for _ in range(size)],
        "extra_info": [{"index": i} for i in range(size)],
        "uid": [f"u{i // n}" for i in range(size)],
        **columns,
    }
    return DataProto.from_dict(
        tensors={name: torch.tensor(values) for name, values in rows.items()},
        non_tensors={name: objects(values) for name, values in given.items()},
        meta_info=meta or {},
    )


def objects(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def run_script(script: Path, spec: str, folder: Path, *arguments: str, **variables: str) -> str:
    """What a script prints under ``spec``; it runs in ``folder``, its first argument."""
    here = Path(__file__).parent
    paths = (script.parent, here, here.parents[2] / "src", here.parents[2] / "lab/src")
    usual = {"ADJUDGE_SPEC": spec, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder), *arguments],
        env={**os.environ, **usual, "PYTHONPATH": os.pathsep.join(map(str, paths)), **variables},
        cwd=folder, timeout=600, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout
