"""Several local models loaded at once by several threads, as a panel of judges does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
transformers = pytest.importorskip("transformers", reason="run `make test-trl`")

from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer  # noqa: E402

# A fresh process: what the library does when a name of it is used for the first time counts, too.
LOAD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from adjudge.judges.models.local_loading import LocalModelSpec, load_model

specs = [LocalModelSpec(folder, "score") for folder in sys.argv[1:]]
with ThreadPoolExecutor(len(specs)) as pool:
    loaded = list(pool.map(load_model, specs))
import torch

assert not any(weight.is_meta for one in loaded for weight in one.model.parameters())
# What one thread switched on must not be left on for those who make models later.
assert not torch.nn.Linear(2, 2).weight.is_meta
assert load_model(specs[0]).model(torch.tensor([[3]])).logits.isfinite().all()
"""


def test_a_panel_is_loaded_by_threads(tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer(["which answer is better"])
    folders = [str(tmp_path / str(number)) for number in range(3)]
    for number, folder in enumerate(folders):
        config = build_tiny_model(tokenizer, seed=number, hidden=64, layers=2).config
        config.num_labels = 1
        transformers.Qwen3ForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *folders], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
