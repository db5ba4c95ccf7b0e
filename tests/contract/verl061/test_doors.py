"""The table of rollouts through verl 0.6.1's batch manager, with padding on both sides."""

from functools import partial

import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
from tests import doors
from tests.doors import LIMIT, SPEC, Door, Rollout
from verl import DataProto
from verl.trainer.ppo.reward import compute_reward

from adjudge.trainers import make_trainer_reward
from adjudge.types import Sample


def give(rollouts: list[Rollout], *, chat: bool) -> list[Sample]:
    tokenizer = doors.make_tokenizer(rollouts[0].special, rollouts[0].opens)
    manager = make_trainer_reward(SPEC, "verl", tokenizer=tokenizer, adv_estimator="adjudge_grpo")
    made = [doors.encode_verl(one, tokenizer) for one in rollouts]
    room = max(len(prompt) for prompt, _, _ in made)
    width = max(LIMIT, *(len(ids) for _, ids, _ in made))
    names = ("prompts", "responses", "attention_mask", "response_mask")
    rows: dict[str, list[list[int]]] = {name: [] for name in names}
    for prompt, ids, mask in made:
        before, after = [0] * (room - len(prompt)), [0] * (width - len(ids))
        rows["prompts"].append(before + prompt)
        rows["responses"].append(ids + after)
        rows["attention_mask"].append(before + [1] * len(prompt + ids) + after)
        rows["response_mask"].append(mask + after)
    columns = [doors.list_verl_columns(one, chat) for one in rollouts]
    data = DataProto.from_dict(
        tensors={name: torch.tensor(values) for name, values in rows.items()},
        non_tensors={name: tiny.objects([one[name] for one in columns]) for name in columns[0]},
    )
    with doors.looking() as found:
        compute_reward(data, manager)
    return found


DOORS = [
    Door("verl, chats", doors.by_template(partial(give, chat=True)), finish=True),
    Door("verl, tokens", doors.by_template(partial(give, chat=False)), "is_text", finish=True),
]


@pytest.mark.parametrize(("door", "stratum"), doors.list_cells(DOORS))
def test_a_sample_is_the_same_through_the_manager(door: Door, stratum: str) -> None:
    doors.check_cell(door, stratum)


def test_every_cell_is_tested_or_cannot_be() -> None:
    doors.check_cells(DOORS)
