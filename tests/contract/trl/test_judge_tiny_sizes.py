"""Judges that are built on the spot, of several sizes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")

from adjudge_lab.judge_training.base_model import load_base_model, tiny_generative_model
from adjudge_lab.judge_training.judge_file import JudgeFile, TinyModelTable

TEXTS = [f"a few words of this and that {number}" for number in range(50)]


def scalar(**size: int) -> Any:
    model = {"path": "tiny", **({"tiny": size} if size else {})}
    data = {"method": "bradley_terry", "model": model, "data": {"synthetic": {"n": 20}}}
    return load_base_model(JudgeFile.from_dict(data, environ={}), TEXTS)[0]


def weights(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_a_size_that_is_not_said_is_the_one_that_there_always_was() -> None:
    plain, said = scalar(), scalar(hidden=64, layers=2)
    assert plain.config.initializer_range == 0.1
    same = zip(plain.state_dict().values(), said.state_dict().values(), strict=True)
    assert all(bool((one == other).all()) for one, other in same)
    writes, _ = tiny_generative_model(TEXTS, 0, TinyModelTable())
    assert writes.config.initializer_range == 0.08


def test_sizes_are_what_is_built() -> None:
    small, deep, wide = scalar(hidden=8, layers=1), scalar(layers=4), scalar(hidden=128)
    assert (small.config.hidden_size, small.config.num_hidden_layers) == (8, 1)
    assert (deep.config.hidden_size, deep.config.num_hidden_layers) == (64, 4)
    assert weights(small) < weights(scalar()) < weights(deep) < weights(wide)
    writes, tokenizer = tiny_generative_model(TEXTS, 0, TinyModelTable(hidden=16, layers=3))
    assert writes.config.num_hidden_layers == 3
    batch = tokenizer(["what is it?"], return_tensors="pt")
    assert writes(**batch).logits.shape[-1] == len(tokenizer)
    assert small(**batch).logits.shape == (1, 1)
