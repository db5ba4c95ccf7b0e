"""The table of rollouts through the real GRPOTrainer, whose policy says what the rollouts say."""

from itertools import chain, groupby
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import torch
from datasets import Dataset
from tests import doors
from tests.doors import LIMIT, SPEC, Door, Rollout
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from adjudge.trainers.trl import make_reward
from adjudge.types import Sample


def train(rollouts: list[Rollout], *, texts: bool, messages: bool) -> list[Sample]:
    """One step, in which the policy gives each rollout twice; the first of each."""
    tokenizer = doors.make_tokenizer(rollouts[0].special, rollouts[0].opens)
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 8)
    heads = dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_hidden_layers"), 1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads))
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(doors.SPECIAL[1:])
    twice = [one for one in rollouts for _ in range(2)]

    def generate(input_ids: Any, **_: Any) -> Any:
        answers = [torch.tensor(tokenizer.encode(one.text)) for one in twice]
        return torch.cat([input_ids, torch.nn.utils.rnn.pad_sequence(answers, True)], 1)

    def roll_out(_prompts: Any, _trainer: Any) -> dict[str, Any]:
        blank = dict.fromkeys(("prompt_ids", "completion_ids"), [[1]] * len(twice))
        return {**blank, "logprobs": [[0.0]] * len(twice), "messages": [one.said for one in twice]}

    model.generate = generate
    prompts = [one.rendered if texts else one.shown for one in rollouts]
    with TemporaryDirectory() as folder, doors.looking() as found:
        config = GRPOConfig(
            folder, report_to=[], save_strategy="no", use_cpu=True, bf16=False, max_steps=1,
            per_device_train_batch_size=len(twice), num_generations=2, max_completion_length=LIMIT,
            disable_tqdm=True, gradient_checkpointing=False, shuffle_dataset=False,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": prompts, **doors.columns_of(rollouts)})
        rollout_func = roll_out if messages else None
        GRPOTrainer(
            model, make_reward(SPEC), config, data,
            processing_class=tokenizer, rollout_func=rollout_func,
        ).train()  # fmt: skip
    return found[::2]


def through(*, texts: bool = False, messages: bool = False) -> doors.Give:
    """Runs of a tokenizer with its template, and columns of one type each."""

    def kind(one: Rollout) -> Any:
        return one.opens, one.special, [type(value) for value in one.columns.values()]

    def give(rollouts: list[Rollout]) -> list[Sample]:
        runs = [list(run) for _, run in groupby(rollouts, kind)]
        return list(chain(*(train(run, texts=texts, messages=messages) for run in runs)))

    return give


DOORS = [
    Door("GRPOTrainer, chats", through(), "is_text shows_end", finish=True),
    Door("GRPOTrainer, texts", through(texts=True), "is_text shows_end", finish=True),
    Door("GRPOTrainer, rollout_func", through(messages=True), "is_plain"),
]


@pytest.mark.parametrize(("door", "stratum"), doors.list_cells(DOORS))
def test_a_sample_is_the_same_through_the_trainer(door: Door, stratum: str) -> None:
    doors.check_cell(door, stratum)


def test_every_cell_is_tested_or_cannot_be() -> None:
    doors.check_cells(DOORS)
