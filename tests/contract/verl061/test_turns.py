"""Rewards on the turns that earned them, and an advantage for each turn, through verl's code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.reward import compute_reward
from verl_words import BY_TURN  # type: ignore[import-not-found]  # above

from adjudge.engine.clock import LogLimiter
from adjudge.trainers.verl import JudgeRewardManager, adjudge_grpo, register, rewards  # noqa: F401  (makes the name known)
from adjudge.trainers.verl.rewards import MissingRewardUid
from adjudge_lab.rl.rollouts import turn_advantages

SPEC = BY_TURN + 'combine_mode = "weighted_sum"\njudge_scale = 0.5\n'
CHAT = [{"role": "user", "content": "what ?"}]
SHOT = [*CHAT, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "what ?"}]
# A turn is a word; `user x` in between is the environment's and masked.
TURNS = ["good user a poor", "poor user a good", "good", "fail user a good"]
MASK = [
    [1, 0, 0, 1, 1, 0, 0, 0],
    [1, 0, 0, 1, 1, 0, 0, 0],
    [1, 1] + [0] * 6,
    [1, 0, 0, 1, 1] + [0] * 3,
]
ENV = [1.0, 1.0, 0.0, 1.0]


@pytest.fixture(scope="module")
def by_turn(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("turns") / "reward.toml"
    path.write_text(SPEC)
    return str(path)


def turn(word: str) -> dict[str, str]:
    return {"role": "assistant", "content": word}


def data_of(opening: list[dict[str, str]] = CHAT, **columns: Any) -> Any:
    """Four rollouts of one group, with the conversations that they had."""
    said = [[word for word in text.split() if word not in "user a"] for text in TURNS]
    messages = [
        [*opening, turn(words[0]), *([*CHAT, turn(words[1])] if words[1:] else [])]
        for words in said
    ]
    extra = [{"env_reward": reward} for reward in ENV]
    loop = {"extras": [{"messages": talk} for talk in messages], "__num_turns__": [4] * 4}
    given = loop | {"raw_prompt": [opening] * 4, "extra_info": extra, **columns}
    data = tiny.batch(TURNS, **{name: column for name, column in given.items() if column})
    data.batch["response_mask"] = torch.tensor(MASK)
    return data


def rewarded(spec: str, data: Any, estimator: str = "adjudge_grpo") -> Any:
    manager = JudgeRewardManager(tiny.tokenizer(), 0, spec=spec, adv_estimator=estimator)
    return compute_reward(data, manager)


def test_an_events_reward_stands_on_its_turn_and_the_rest_on_the_last_token(by_turn: str) -> None:
    tensor, extra = rewarded(by_turn, data_of())
    assert tensor[0].tolist() == [0.5, 0, 0, 0, 1.0, 0, 0, 0]
    assert tensor[1].tolist() == [0, 0, 0, 0, 1.5, 0, 0, 0]
    assert tensor[2].tolist() == [0, 0.5, 0, 0, 0, 0, 0, 0]  # one turn
    assert extra["reward_missing"] == [0, 0, 0, 1]
    assert tensor[3].tolist() == [0, 0, 0, 0, pytest.approx(3.5 / 3), 0, 0, 0]  # the mean
    scalars, _ = rewarded(by_turn, data_of(), "grpo")
    assert (scalars != 0).sum(-1).tolist() == [1, 1, 1, 1]
    assert torch.equal(scalars.sum(-1), tensor.sum(-1))


def test_the_prompts_own_events_are_none_of_the_responses(by_turn: str) -> None:
    tensor, _ = rewarded(by_turn, data_of(SHOT))
    assert tensor[0].tolist() == [0.5, 0, 0, 0, 1.0, 0, 0, 0]
    # Nobody says where the prompt ends: "fine" is the first event, and no turn of the response.
    unknown, _ = rewarded(by_turn, data_of(SHOT, raw_prompt=None))
    assert unknown[0].tolist() == [0, 0, 0, 0, 1.875, 0, 0, 0]


def test_events_that_do_not_fit_leave_the_reward_whole_and_it_is_said_once(
    by_turn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewards, "_limiter", LogLimiter())
    data = data_of()
    data.batch["response_mask"] = torch.tensor([[1, 0, 1, 0, 1, 0, 0, 0]] * 4)
    tensor, _ = rewarded(by_turn, data)
    assert tensor[0].tolist() == [0, 0, 0, 0, 1.5, 0, 0, 0]
    assert caplog.text.count("do not fit a response of 3 turns") == 1
    shots = data_of(SHOT, raw_prompt=[CHAT] * 4)  # a turn too many
    assert rewarded(by_turn, shots)[0][0].tolist() == [0, 0, 0, 0, 1.875, 0, 0, 0]


def test_validation_has_whole_rewards(by_turn: str) -> None:
    tensor, _ = rewarded(by_turn, data_of(meta={"validate": True}))
    assert (tensor != 0).sum(-1).max() == 1


def test_advantages_of_turns_through_verl(by_turn: str) -> None:
    data = data_of()
    tensor, extra = rewarded(by_turn, data)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = tensor
    data.non_tensor_batch.update({key: np.array(column) for key, column in extra.items()})
    compute_advantage(data, "adjudge_grpo", config={})
    expected = turn_advantages([1.5, 1.5, 0.5, None], [[0.5, 1.0], [0.0, 1.5], [0.5], None])
    for row, mask, values in zip(data.batch["advantages"], MASK, expected, strict=True):
        first, last = (values or [0.0])[0], (values or [0.0])[-1]
        wanted = [one * (first if place == 0 else last) for place, one in enumerate(mask)]
        assert row.tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_estimator_agrees_with_the_formula(seed: int, divide: bool) -> None:
    torch.manual_seed(seed)
    mask = (torch.rand(24, 20) > 0.4).long()
    mask[3] = 0  # a response without a token
    rewards = torch.randn(24, 20) * (torch.rand(24, 20) > 0.7)
    rewards[5] = float("nan")
    uids = [MissingRewardUid(f"u{i % 4}") if i == 9 else f"u{i % 4}" for i in range(24)]
    config = {"norm_adv_by_std_in_grpo": divide}
    found, returns = adjudge_grpo(rewards, mask, np.array(uids, dtype=object), config)
    assert found is returns
    places = [[turn_of(row.tolist(), place) for place in range(20)] for row in mask]
    for group in range(4):
        rows = list(range(group, 24, 4))
        gone = [row in (5, 9) for row in rows]
        turns = [[0.0] * (max(places[row]) + 1) for row in rows]
        for added, row in zip(turns, rows, strict=True):
            for place, at in enumerate(places[row]):
                added[at] += float(rewards[row, place])
        totals = [None if out else sum(t) for out, t in zip(gone, turns, strict=True)]
        expected = turn_advantages(totals, turns, divide=divide)
        for row, values in zip(rows, expected, strict=True):
            wanted = [
                one * (values[at] if values else 0.0)
                for one, at in zip(mask[row].tolist(), places[row], strict=True)
            ]
            assert found[row].tolist() == pytest.approx(wanted, abs=1e-5)


def turn_of(mask: list[int], place: int) -> int:
    """The turn of a token: how many turns began up to there, less one."""
    starts = [m == 1 and (i == 0 or mask[i - 1] == 0) for i, m in enumerate(mask)]
    return max(sum(starts[: place + 1]) - 1, 0)
