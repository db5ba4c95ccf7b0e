"""The table of rollouts through verl 0.9.1's reward loop, one rollout at a time."""

import asyncio
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tiny  # beside this file
import torch
from tests import doors
from tests.doors import LIMIT, Door, Rollout
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager

from adjudge.trainers.verl.batches import MASK_COLUMN
from adjudge.types import Sample


def give(rollouts: list[Rollout], *, chat: bool) -> list[Sample]:
    """Each as ``AgentLoopWorker._compute_score`` hands it over: without padding."""
    with TemporaryDirectory() as folder, doors.looking() as found:
        (spec := Path(folder) / "reward.toml").write_text(doors.SPEC_TEXT)
        lines = [f"+reward.reward_kwargs.spec={spec}", "trainer.use_v1=False"]
        lines.append(f"actor_rollout_ref.rollout.response_length={LIMIT}")
        config = tiny.config(Path(folder), *tiny.MANAGER, *lines)
        for one in rollouts:
            tokenizer = doors.make_tokenizer(one.special, one.opens)
            none = {"reward_router_address": None, "reward_model_tokenizer": None}
            manager = load_reward_manager(config, tokenizer, **none)
            prompt, ids, mask = doors.encode_verl(one, tokenizer)
            rows = {"prompts": prompt, "responses": ids, "attention_mask": [1] * len(prompt + ids)}
            columns = doors.list_verl_columns(one, chat) | {MASK_COLUMN: mask}
            data = DataProto.from_dict(
                tensors={name: torch.tensor([row]) for name, row in rows.items()},
                non_tensors={name: tiny.objects([value]) for name, value in columns.items()},
            )
            asyncio.run(manager.run_single(data))
    return found


DOORS = [
    Door("verl, chats", partial(give, chat=True), finish=True),
    Door("verl, tokens", partial(give, chat=False), "is_text", finish=True),
]


@pytest.mark.parametrize(("door", "stratum"), doors.list_cells(DOORS))
def test_a_sample_is_the_same_through_the_manager(door: Door, stratum: str) -> None:
    doors.check_cell(door, stratum)


def test_every_cell_is_tested_or_cannot_be() -> None:
    doors.check_cells(DOORS)
