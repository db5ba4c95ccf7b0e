"""What a local policy draws, and what becomes of it in the trainer: run by ``make test-trl``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import torch
import transformers

from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import Scorer
from adjudge_lab.rl.collector import RolloutCollector
from adjudge_lab.rl.episodes import build_task
from adjudge_lab.rl.local_player import LocalPlayer, draw_replies
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.rollouts import RolloutBatch, ScoredRollouts
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer
from adjudge_lab.rl.trl_backend import TrainerHooks, train_policy

TEXTS = ["What is the capital of Peru?", "Lima is the capital.", "one two three", "left right do"]
TURNS = 3

ENVIRONMENT = '''
from adjudge_lab.environments import Step


class Counting:
    """Pays and ends by how long replies are."""

    name, instructions = "counting", ""

    def reset(self, seed):
        self.turn, self.last = 0, 3
        return "one two"

    def step(self, reply):
        self.turn += 1
        if self.turn == 1:
            self.last = 2 + len(reply) % 2
        reward = float(len(reply) * self.turn % 5)
        return Step("left right " * self.turn, reward, self.turn >= self.last)
'''


def policy(hidden: int = 32, sharper: float = 8.0) -> tuple[Any, Any]:
    """A fresh model that prefers some tokens, as a trained one does."""
    tokenizer = build_tiny_tokenizer(TEXTS, vocabulary=300)
    model = build_tiny_model(tokenizer, seed=4, hidden=hidden)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(sharper)
    return model.eval(), tokenizer


def drawn(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], seed: int = 1, **given: Any
) -> list[tuple[int, list[int], list[float]]]:
    """Place, tokens and log-probabilities of each reply, in the order in which they were ready."""
    found: list[tuple[int, list[int], list[float]]] = []
    settings: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, **given}
    draw_replies(
        model, tokenizer, prompts, seed=seed, **settings,
        on_end=lambda row, ids, logprobs: found.append((row, list(ids), list(logprobs))),
    )  # fmt: skip
    return found


def logits_after(model: Any, ids: Sequence[int]) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)])).logits[0].float()


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_draws_follow_the_models_distribution(temperature: float) -> None:
    """Pearson's statistic over the first token; tokens that are rarely expected count as one."""
    model, tokenizer = policy()
    prompt, count = tokenizer.encode(TEXTS[0]), 6000
    found = drawn(model, tokenizer, [prompt] * count, max_tokens=1, temperature=temperature)
    seen = torch.zeros(len(tokenizer))
    for _, ids, _ in found:
        seen[ids[0]] += 1
    expected = count * (logits_after(model, prompt)[-1] / temperature).softmax(-1)
    often = expected >= 5
    seen, expected = (
        torch.cat([one[often], one[~often].sum().reshape(1)]) for one in (seen, expected)
    )
    bins = len(expected)
    assert bins >= 20
    statistic = float(((seen - expected) ** 2 / expected.clamp(min=1e-9)).sum())
    assert statistic < bins + 5 * (2 * bins) ** 0.5
    other = expected.roll(1)  # the test can fail
    assert float(((seen - other) ** 2 / other.clamp(min=1e-9)).sum()) > bins + 50 * bins**0.5


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_log_probabilities_are_those_of_a_forward_pass(temperature: float) -> None:
    """Also beside longer prompts, and whatever the model says of its own generation."""
    model, tokenizer = policy()
    model.generation_config = transformers.GenerationConfig(
        repetition_penalty=1.8, no_repeat_ngram_size=2, min_new_tokens=4, temperature=0.1
    )
    prompts = [tokenizer.encode(text) for text in TEXTS]
    assert len(set(map(len, prompts))) > 1
    found = drawn(model, tokenizer, prompts, max_tokens=12, temperature=temperature)
    assert model.generation_config.repetition_penalty == 1.8
    assert sorted(row for row, _, _ in found) == list(range(len(prompts)))
    for row, ids, logprobs in found:
        after = logits_after(model, [*prompts[row], *ids])[len(prompts[row]) - 1 : -1]
        own = (after / temperature).log_softmax(-1)
        expected = own.gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)
        assert torch.allclose(torch.tensor(logprobs), expected, atol=1e-4)


def test_a_seed_decides_the_draws() -> None:
    model, tokenizer = policy()
    prompts = [tokenizer.encode(text) for text in TEXTS]
    torch.manual_seed(0)
    first = drawn(model, tokenizer, prompts, seed=7)
    torch.manual_seed(1)  # not the process's
    state = torch.get_rng_state()
    assert drawn(model, tokenizer, prompts, seed=7) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert drawn(model, tokenizer, prompts, seed=8) != first


def test_a_reply_is_handed_over_when_it_is_complete() -> None:
    model, tokenizer = policy()
    with torch.no_grad():  # the end is a likely token
        model.get_input_embeddings().weight[tokenizer.eos_token_id] *= 3
    model.train()
    prompts = [tokenizer.encode(TEXTS[0])] * 200
    found = drawn(model, tokenizer, prompts, max_tokens=6)
    assert model.training
    lengths = [len(ids) for _, ids, _ in found]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1] == 6
    for _, ids, logprobs in found:
        assert len(ids) == len(logprobs)
        assert tokenizer.eos_token_id not in ids[:-1]
        assert len(ids) == 6 or ids[-1] == tokenizer.eos_token_id


class Watched(TrainerHooks):
    """Keeps what the trainer is given, and what it makes of it itself."""

    def __init__(self, run: RunFile, collector: RolloutCollector) -> None:
        self.settled: list[ScoredRollouts] = []
        self.outputs: list[dict[str, Any]] = []
        self.theirs: list[Any] = []
        self.now: list[Any] = []
        super().__init__(run, collector, on_settled=self.settled.append)

    def rollouts(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        self.trainer = trainer
        return super().rollouts(prompts, trainer)

    def shape_batch(self, output: dict[str, Any]) -> dict[str, Any]:
        self.theirs.append(output["advantages"].clone())
        found = super().shape_batch(output)
        self.outputs.append(dict(found))
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        width = output["completion_ids"].size(1)
        with torch.no_grad():
            own, *_ = self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model, ids, mask, width
            )
        self.now.append(own)
        return found


def trained(folder: Path, *, steps: int = 1, estimator: str = "adjudge_grpo", lag: bool) -> Watched:
    """A few steps of episodes of several turns, each of which the environment pays."""
    (folder / "counting_environment.py").write_text(ENVIRONMENT)
    run = resolve_run_file(
        {
            "model": {"base": "tiny"},
            "algorithm": {"adv_estimator": estimator},
            "rollout": {
                "env_name": "counting_environment:Counting",
                "max_turns": TURNS,
                "max_tokens": 6,
                "temperature": 0.8,
            },
            "training": {
                "iterations_per_epoch": steps,
                "warm_start_iterations": 0,
                "batch_size": 8,
                "group_size": 4,
                "learning_rate": 1e-3,
                "step_rewards_enabled": True,
                "pipeline_async_enabled": lag,
            },
        },
        folder=folder,
    )
    spec: RewardSpec = build_reward_spec(run)
    model, tokenizer = policy(sharper=2.0)  # says much, and not always the same
    player = LocalPlayer(model, tokenizer, max_tokens=6, temperature=0.8, seed=3)
    side = Watched(run, RolloutCollector(run, build_task(run, spec), Scorer(spec), player))
    train_policy(
        model, tokenizer, run, side, folder=folder / "checkpoints", resume=None,
        on_step=lambda *_: False, on_saved=lambda _: None,
    )  # fmt: skip
    return side


def own_tokens(settled: ScoredRollouts, width: int) -> Any:
    """Which tokens of the batch the policy wrote."""
    mask = torch.zeros(len(settled.batch.rollouts), width, dtype=torch.bool)
    for row, rollout in enumerate(settled.batch.rollouts):
        for place, turn in enumerate(rollout.tokens.turns):
            mask[row, place] = turn >= 0
    return mask


def behaviour(batch: RolloutBatch, width: int) -> Any:
    """With what log-probability each token was drawn."""
    found = torch.zeros(len(batch.rollouts), width)
    for row, rollout in enumerate(batch.rollouts):
        found[row, : len(rollout.tokens.logprobs)] = torch.tensor(rollout.tokens.logprobs)
    return found


def test_the_trainer_computes_the_log_probabilities_of_the_draws(tmp_path: Path) -> None:
    """Over several turns, with what the environment said in between."""
    side = trained(tmp_path, lag=False)
    (output,), (settled,), (now,) = side.outputs, side.settled, side.now
    own = own_tokens(settled, now.size(1))
    assert {max(one.tokens.turns) + 1 for one in settled.batch.rollouts} == {2, 3}
    assert torch.equal(output["tool_mask"].bool() & output["completion_mask"].bool(), own)
    drawn_with = behaviour(settled.batch, now.size(1))
    assert torch.allclose(drawn_with[own], now[own], atol=1e-4)
    assert not torch.allclose(drawn_with[~own], now[~own], atol=1e-4)
    assert "old_per_token_logps" not in output  # no lag: the ratio is 1


def test_each_turn_has_its_own_advantage_on_its_own_tokens(tmp_path: Path) -> None:
    side = trained(tmp_path, lag=False)
    (output,), (settled,) = side.outputs, side.settled
    found = output["advantages"]
    several = 0
    for row, rollout in enumerate(settled.batch.rollouts):
        advantages, turns = settled.advantages[row], rollout.tokens.turns
        assert advantages is not None
        assert len(advantages) == max(turns) + 1
        several += len(set(advantages)) > 1
        for place, turn in enumerate(turns):
            expected = advantages[turn] if turn >= 0 else 0.0
            assert float(found[row, place]) == pytest.approx(expected, abs=1e-6)
        assert not found[row, len(turns) :].any()
    assert several >= 4


def test_under_grpo_the_advantages_are_the_trainers(tmp_path: Path) -> None:
    side = trained(tmp_path, estimator="grpo", lag=False)
    (output,), (settled,), (theirs,) = side.outputs, side.settled, side.theirs
    assert output["advantages"].shape == (8,)
    assert torch.equal(output["advantages"], theirs)
    ours = [one[0] for one in settled.advantages if one is not None]
    assert theirs.tolist() == pytest.approx(ours, abs=1e-5)
    assert len(set(ours)) > 2


def test_with_a_lag_the_ratio_is_to_the_policy_that_played(tmp_path: Path) -> None:
    side = trained(tmp_path, steps=3, lag=True)
    assert [one.batch.version for one in side.settled] == [0, 0, 1]
    for settled, output, now in zip(side.settled, side.outputs, side.now, strict=True):
        own = own_tokens(settled, now.size(1))
        old = output["old_per_token_logps"]
        assert torch.equal(old[own], behaviour(settled.batch, old.size(1))[own])
        same = torch.allclose(old[own], now[own], atol=1e-4)
        assert same == (settled.batch.step <= 2)  # the first update's rate is 0: it warms up
