"""KL(π ‖ π₀) of what a policy said: against the sum over all that it could say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
pytest.importorskip("transformers", reason="transformers is not installed; run `make test-trl`")

from adjudge_lab.rl import held_out
from adjudge_lab.rl.held_out import compute_divergences
from adjudge_lab.rl.rollouts import RolloutTokens

torch: Any = import_module("torch")
transformers: Any = import_module("transformers")

END, WORDS, LONGEST = 0, 5, 3


def spoken(
    completion: list[int], *, prompt: Sequence[int] = (1, 2), turns: Sequence[int] = ()
) -> RolloutTokens:
    place = list(turns) or [0] * len(completion)
    return RolloutTokens(list(prompt), completion, [0.0] * len(completion), place)


def model_of(seed: int, spread: float = 0.5, words: int = WORDS) -> Any:
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=words, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=256,
        initializer_range=spread, tie_word_embeddings=True, pad_token_id=None, bos_token_id=None,
        eos_token_id=END,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config).eval()


def everything() -> list[list[int]]:
    """All replies: they end with the end token, or when there is no more room."""
    inner = range(1, WORDS)
    ended = [[*said, END] for n in range(LONGEST) for said in itertools.product(inner, repeat=n)]
    return ended + [list(said) for said in itertools.product(inner, repeat=LONGEST)]


def logprob(model: Any, said: RolloutTokens) -> float:
    """Of the reply, token by token, each from the whole text before it."""
    total, text = 0.0, list(said.prompt)
    for token in said.completion:
        with torch.no_grad():
            row = model(torch.tensor([text])).logits[0, -1].double().log_softmax(-1)
        total += float(row[token])
        text.append(token)
    return total


def test_the_mean_is_the_divergence_over_all_that_can_be_said() -> None:
    policy, reference = model_of(1), model_of(2)
    said = [spoken(one) for one in everything()]
    own = [logprob(policy, one) for one in said]
    assert math.fsum(map(math.exp, own)) == pytest.approx(1.0, abs=1e-6)
    ratios = [mine - logprob(reference, one) for mine, one in zip(own, said, strict=True)]
    exact = math.fsum(math.exp(mine) * ratio for mine, ratio in zip(own, ratios, strict=True))
    found = compute_divergences(policy, reference, said)
    assert all(value is not None and value >= 0 for value in found)
    mean = math.fsum(math.exp(p) * float(v or 0) for p, v in zip(own, found, strict=True))
    assert mean == pytest.approx(exact, rel=1e-5)
    assert exact > 0.1

    # The variance is what is gained over the plain estimator.
    def spread(values: list[float]) -> float:
        return math.fsum(math.exp(p) * (v - exact) ** 2 for p, v in zip(own, values, strict=True))

    assert spread([float(v or 0) for v in found]) < 0.5 * spread(ratios)


@pytest.mark.parametrize("most", [100, 1000])
def test_how_texts_are_cut_and_batched_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(held_out, "_MOST_TOKENS", most)
    policy, reference = model_of(1), model_of(2)
    rng = torch.Generator().manual_seed(0)
    said = [
        spoken(
            torch.randint(1, WORDS, (length,), generator=rng).tolist(), prompt=[1] * (1 + length)
        )
        for length in (20, 3, 11, 1, 15) * 2
    ]
    whole = [compute_divergences(policy, reference, [one])[0] for one in said]
    assert compute_divergences(policy, reference, said, most_logits=most) == pytest.approx(
        whole, rel=1e-4
    )


def test_only_what_the_policy_drew_counts() -> None:
    """Of two turns with something told between them, the parts of both; of none, nothing."""
    policy, reference = model_of(1), model_of(2)
    first, told, second = [3, END], [2, 4, 1], [4, 4, END]
    both = spoken([*first, *told, *second], turns=[0, 0, -1, -1, -1, 1, 1, 1])
    parts = [spoken(first), spoken(second, prompt=[1, 2, *first, *told])]
    whole, *each = compute_divergences(policy, reference, [both, *parts])
    assert whole == pytest.approx(sum(float(one or 0) for one in each), rel=1e-5)
    assert compute_divergences(policy, reference, [spoken([]), spoken([3], turns=[-1])]) == [
        None,
        None,
    ]


def test_a_token_that_is_never_said_is_no_nan_and_models_are_left_as_they_were() -> None:
    def silenced(_model: Any, _given: Any, said: Any) -> Any:
        said.logits = said.logits.index_fill(-1, torch.tensor([4]), -math.inf)
        return said

    policy = model_of(1)
    policy.register_forward_hook(silenced)
    policy.train()
    (value,) = compute_divergences(policy, model_of(2), [spoken([3, 1, END])])
    assert value is not None
    assert math.isfinite(value)
    assert policy.training


@pytest.fixture
def half_precision() -> Iterator[Any]:
    """An accelerator in 16 bits; the process may have one of another precision before and after."""
    accelerate: Any = import_module("accelerate")
    state = accelerate.state.AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    state._reset_state(reset_partial_state=True)


def test_what_a_trainer_in_16_bits_does_to_the_policy_is_no_distance(half_precision: Any) -> None:
    policy, same = model_of(1), model_of(1)
    half_precision.prepare(policy)
    (row,) = policy(torch.tensor([[1, 2]])).logits[:, -1]
    assert not torch.equal(row, same(torch.tensor([[1, 2]])).logits[0, -1])
    assert compute_divergences(policy, same, [spoken([3, 1, END])]) == [0.0]
