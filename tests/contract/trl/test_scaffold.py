"""Scaffolded rollouts in TRL's own trainer: run by ``make test-trl``."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import torch

from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import Scorer
from adjudge_lab.rl.collector import RolloutCollector
from adjudge_lab.rl.episodes import build_task
from adjudge_lab.rl.held_out import evaluate_policy
from adjudge_lab.rl.local_player import LocalPlayer
from adjudge_lab.rl.rollouts import RolloutStore, ScoredRollouts
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer
from adjudge_lab.rl.trl_backend import TrainerHooks, train_policy

LENGTH = {"name": "length", "type": "length_penalty", "max_length": 40}
SPEC = RewardSpec.from_dict({"graders": [LENGTH]})
PROMPTS = ["Which fruit?", "Which tree?", "Which stone?"]
WORDS = ["plum", "oak", "opal"]


def run_of(folder: Path, **changed: Any) -> RunFile:
    rows = [
        {"prompt": prompt, "rubrics": [{"criterion": f'Says "{word}"', "points": 5}, "Is short"]}
        for prompt, word in zip(PROMPTS, WORDS, strict=True)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [LENGTH],
        "rollout": {
            "dataset": "rows.jsonl", "env_grader": "length", "max_tokens": 6, "temperature": 0.8,
            "scaffold": changed.pop("scaffold", {"rule": "linear"}),
        },
        "training": {
            "iterations_per_epoch": 2, "warm_start_iterations": 0, "batch_size": 8,
            "group_size": 4, "learning_rate": 1e-3, **changed.pop("training", {}),
        },
        "evaluation": {"instances": 1},
        **changed,
    }  # fmt: skip
    return resolve_run_file(data, folder=folder)


def policy() -> tuple[Any, Any]:
    tokenizer = build_tiny_tokenizer(
        [*PROMPTS, *WORDS, "You are a helpful assistant."], vocabulary=300
    )
    model = build_tiny_model(tokenizer, seed=4, hidden=32)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2.0)
    return model.eval(), tokenizer


class Watched(TrainerHooks):
    """Keeps what was settled, and the trainer's batches before and after."""

    def __init__(self, run: RunFile, collector: RolloutCollector) -> None:
        self.settled: list[ScoredRollouts] = []
        self.outputs: list[dict[str, Any]] = []
        self.metrics: list[dict[str, float]] = []
        self.model: list[dict[str, Any]] = []
        super().__init__(run, collector, on_settled=self.settled.append)

    def shape_batch(self, output: dict[str, Any]) -> dict[str, Any]:
        weights = self._trainer.model.state_dict()
        self.model.append({name: value.clone() for name, value in weights.items()})
        found = super().shape_batch(output)
        self.outputs.append(dict(found))
        self.metrics.append(dict(self.step_metrics))
        return found


def collector(
    run: RunFile, store: RolloutStore | None = None
) -> tuple[RolloutCollector, LocalPlayer]:
    player = LocalPlayer(*policy(), max_tokens=6, temperature=0.8, seed=3)
    return RolloutCollector(run, build_task(run, SPEC), Scorer(SPEC), player, store=store), player


def trained(folder: Path, **changed: Any) -> Watched:
    run = run_of(folder, **changed)
    one, player = collector(run)
    side = Watched(run, one)
    train_policy(
        player._model, player._tokenizer, run, side, folder=folder / "checkpoints", resume=None,
        on_step=lambda *_: False, on_saved=lambda _: None,
    )  # fmt: skip
    return side


def logps_of(weights: dict[str, Any], prompt: Sequence[int], said: Sequence[int]) -> list[float]:
    """By hand: what a policy of these weights gives each token of ``said``, at 0.8."""
    model, _ = policy()
    model.load_state_dict(weights)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *said]])).logits[0].float() / 0.8
    found = torch.log_softmax(logits, dim=-1)
    return [float(found[len(prompt) - 1 + at, token]) for at, token in enumerate(said)]


def prompts_of(output: dict[str, Any]) -> list[list[int]]:
    pairs = zip(output["prompt_ids"], output["prompt_mask"], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in pairs]


@pytest.mark.parametrize("estimator", ["adjudge_grpo", "grpo"])
def test_drawn_with_a_scaffold_and_trained_without(tmp_path: Path, estimator: str) -> None:
    side = trained(tmp_path, algorithm={"adv_estimator": estimator})
    _, tokenizer = policy()
    for output, settled in zip(side.outputs, side.settled, strict=True):
        rollouts = settled.batch.rollouts
        originals = [
            tokenizer.encode(
                tokenizer.apply_chat_template(
                    one.episode.messages[:-1], tokenize=False, add_generation_prompt=True
                )
            )
            for one in rollouts
        ]
        assert prompts_of(output) == originals
        assert [one.scaffold and one.scaffold.shown for one in rollouts] == [2, 1, 1, 0] * 2
        assert [one.tokens.read is None for one in rollouts] == [False, False, False, True] * 2
        for one in rollouts:
            assert all(turn["role"] != "system" for turn in one.episode.messages)
            if one.tokens.read is not None:
                assert "worth" in tokenizer.decode(one.tokens.read)


@pytest.mark.parametrize("lag", [False, True])
def test_each_token_has_the_weight_that_is_computed_by_hand(tmp_path: Path, lag: bool) -> None:
    scaffold = {"rule": "linear", "correction_cap": 1.05}
    side = trained(tmp_path, scaffold=scaffold, training={"pipeline_async_enabled": lag})
    clipped = 0
    for output, settled, weights in zip(side.outputs, side.settled, side.model, strict=True):
        for row, rollout in enumerate(settled.batch.rollouts):
            tokens, advantages = rollout.tokens, settled.advantages[row] or [0.0]
            now = logps_of(weights, tokens.prompt, tokens.completion)
            for at, own in enumerate(now):
                ratio = math.exp(own - tokens.logprobs[at]) if tokens.read else 1.0
                clipped += ratio > 1.05
                expected = advantages[0] * min(ratio, 1.05)
                assert float(output["advantages"][row, at]) == pytest.approx(expected, abs=2e-3)
                if lag:  # the trainer's own ratio is one of policies, not of prompts
                    old = float(output["old_per_token_logps"][row, at])
                    drawn = own if tokens.read else tokens.logprobs[at]
                    assert old == pytest.approx(drawn, abs=1e-3)
        assert lag == ("old_per_token_logps" in output)
    assert clipped
    assert 0 < side.metrics[0]["scaffold/weight_clipped_frac"] < 1
    assert side.metrics[0]["scaffold/weight_mean"] <= 1.05
    assert 0 < side.metrics[0]["scaffold/ess"] <= 1
    assert side.metrics[0]["scaffold/ratio_mean"] == pytest.approx(0.5)
    assert side.metrics[0]["scaffold/shown_mean"] == 1.0


def test_without_correction_the_advantages_are_left_alone(tmp_path: Path) -> None:
    side = trained(tmp_path, scaffold={"rule": "linear", "correction": "none"})
    for output, settled in zip(side.outputs, side.settled, strict=True):
        for row, rollout in enumerate(settled.batch.rollouts):
            advantages = settled.advantages[row] or [0.0]
            found = output["advantages"][row, : len(rollout.tokens.turns)]
            assert torch.allclose(found, torch.full_like(found, advantages[0]))
    assert not any(name.startswith("scaffold/weight") for name in side.metrics[0])


def test_the_scaffold_may_be_trained_on(tmp_path: Path) -> None:
    side = trained(tmp_path, scaffold={"rule": "linear", "participate_training": True})
    _, tokenizer = policy()
    prompts = [tokenizer.decode(ids) for ids in prompts_of(side.outputs[0])]
    assert ["worth" in prompt for prompt in prompts] == [True, True, True, False] * 2
    assert "scaffold/weight_mean" not in side.metrics[0]


def test_evaluation_shows_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    _, player = collector(run)
    evaluate_policy(build_task(run, SPEC), [0], player, Scorer(SPEC), most=4, step=0)
    _, tokenizer = policy()
    (said,) = player.conversations.values()
    assert "worth" not in tokenizer.decode(said.prompt)


def test_a_resumed_run_shows_the_same_and_a_store_keeps_it(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    store = RolloutStore(tmp_path / "state")
    first, _ = collector(run, store)
    played = first.generate(1, 0)
    first.score_batch(played)
    kept, _ = collector(run, store)
    again, _ = collector(run)
    for other in (kept.generate(1, 0), again.generate(1, 0)):
        assert [one.scaffold for one in other.rollouts] == [one.scaffold for one in played.rollouts]
        assert [one.tokens for one in other.rollouts] == [one.tokens for one in played.rollouts]
    row = first.score_batch(first.generate(2, 1)).rows()[1]
    assert row["scaffold"]["ratio"] == pytest.approx(2 / 3)
    assert row["scaffold"]["shown"] == len(row["scaffold"]["ids"]) == 1
