"""Several local models loaded at once by several threads, as a panel of judges does."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
transformers = pytest.importorskip("transformers", reason="run `make test-trl`")

from adjudge.judges.models.local_loading import LocalModelSpec, load_model  # noqa: E402
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


def test_a_rank_loads_its_judge_on_its_own_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a made-up count of GPUs: what transformers is told to move the model to."""
    tokenizer = build_tiny_tokenizer(["which answer is better"])
    config = build_tiny_model(tokenizer, seed=0, hidden=64, layers=2).config
    config.num_labels = 1
    transformers.Qwen3ForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    moved = []

    def note_device(model: object, place: object) -> object:
        moved.append(str(place))
        return model

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(transformers.PreTrainedModel, "to", note_device)
    for rank in ("0", "5"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        found = load_model(LocalModelSpec(str(tmp_path), "score", dtype="float32"))
        assert str(found.device) == moved[-1]
    assert moved == ["cuda:0", "cuda:5"]
