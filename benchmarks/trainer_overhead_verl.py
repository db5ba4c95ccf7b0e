"""What a reward spec costs a training step of verl 0.6.1, beside a trivial reward manager.

    ~/.cache/adjudge/envs/verl061/bin/python benchmarks/trainer_overhead_verl.py [--json FILE]

Three managers through verl's own ``compute_reward``, rounds interleaved, medians shown: verl's
``naive`` with a function that returns 1.0, ``adjudge`` with a rule, and ``adjudge`` with a judge
that replies at once, so that its own latency is left out. All decode the same tokens. The goal is
5 % of a one-second step, that is 50 ms. CPU time is of the whole process and says more than wall
clock where others use the machine. The reward loop's rollouts are all sent at once, beside verl's
naive one; in a run they come one by one, in an actor of their own, while others are generated.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental.reward.reward_loop import get_reward_loop_manager_cls
from verl.trainer.ppo.reward import compute_reward
from verl.workers.reward_manager import get_reward_manager_cls

from adjudge.rewards import RewardSpec
from adjudge.trainers.verl import JudgeRewardLoopManager, JudgeRewardManager

PROMPTS = (64, 256)
GROUP = 8
WORDS = 200
RULE: dict[str, Any] = {"graders": [{"name": "right", "type": "answer"}]}
JUDGE: dict[str, Any] = {
    "graders": [
        {
            "name": "quality",
            "type": "llm",
            "template": "How good is this answer to {prompt}?\n{response}",
            "score_range": [0.0, 1.0],
        }
    ],
    "judges": {"main": {"type": "scripted", "script": '{"reason": "clear", "score": 0.5}'}},
}


def tokenizer() -> Any:
    words = [
        "<pad>",
        "<eos>",
        "<unk>",
        *(f"word{i}" for i in range(500)),
        "What",
        "is",
        "plus",
        "42",
    ]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    whole = Tokenizer(model)
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    whole.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def rollouts(tok: Any, prompts: int) -> DataProto:
    chance = random.Random(0)
    size, width = prompts * GROUP, WORDS + 40
    responses = torch.zeros(size, width, dtype=torch.long)
    responses[:, :WORDS] = torch.tensor(
        [chance.choices(range(3, 503), k=WORDS) for _ in range(size)]
    )
    responses[:, WORDS] = tok.eos_token_id
    questions = torch.randint(3, 503, (prompts, 64)).repeat_interleave(GROUP, 0)
    mask = torch.ones(size, 64 + width, dtype=torch.long)
    mask[:, 64 + WORDS + 1 :] = 0
    columns: dict[str, list[Any]] = {
        "data_source": ["math"] * size,
        "reward_model": [{"style": "rule", "ground_truth": "42"} for _ in range(size)],
        "extra_info": [{"index": i} for i in range(size)],
        "uid": [f"uid-{i // GROUP}" for i in range(size)],
        "raw_prompt": [
            [{"role": "user", "content": f"What is {i // GROUP}?"}] for i in range(size)
        ],
    }
    arrays = {name: np.empty(size, dtype=object) for name in columns}
    for name, values in columns.items():
        arrays[name][:] = values
    tensors = {"prompts": questions, "responses": responses, "attention_mask": mask}
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def trivial(**_: Any) -> float:
    return 1.0


async def atrivial(**_: Any) -> float:
    return 1.0


def steps(tok: Any, data: DataProto) -> dict[str, Callable[[], Any]]:
    naive = get_reward_manager_cls("naive")(tok, 0, trivial)
    rule = JudgeRewardManager(tok, 0, spec=RewardSpec.from_dict(RULE))
    judge = JudgeRewardManager(tok, 0, spec=RewardSpec.from_dict(JUDGE))
    settings = {"reward_model": {"reward_kwargs": {"spec": RewardSpec.from_dict(JUDGE)}}}
    loop = JudgeRewardLoopManager(settings, tok)
    rows = [data[i : i + 1] for i in range(len(data))]

    async def one_by_one(manager: Any) -> None:
        manager = manager or get_reward_loop_manager_cls("naive")(settings, tok, atrivial)
        await asyncio.wait([asyncio.create_task(manager.run_single(row)) for row in rows])

    return {
        "naive, 1.0": lambda: compute_reward(data, naive),
        "adjudge, rule": lambda: compute_reward(data, rule),
        "adjudge, judge": lambda: compute_reward(data, judge),
        "naive loop, 1.0": lambda: asyncio.run(one_by_one(None)),
        "adjudge loop, judge": lambda: asyncio.run(one_by_one(loop)),
    }


def measure(prompts: int, rounds: int) -> dict[str, dict[str, float]]:
    tok = tokenizer()
    arms = steps(tok, rollouts(tok, prompts))
    wall: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, step in arms.items():
            gc.collect()
            clock, process = time.perf_counter(), time.process_time()
            step()
            if number:  # the first is warm-up
                wall[name].append(1000 * (time.perf_counter() - clock))
                cpu[name].append(1000 * (time.process_time() - process))
    return {
        name: {"wall_ms": statistics.median(wall[name]), "cpu_ms": statistics.median(cpu[name])}
        for name in arms
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = {f"{n} x {GROUP}": measure(n, chosen.rounds) for n in PROMPTS}
    for size, arms in found.items():
        for name, times in arms.items():
            wall, cpu = times["wall_ms"], times["cpu_ms"]
            base = arms["naive loop, 1.0" if "loop" in name else "naive, 1.0"]["cpu_ms"]
            print(f"{size:>8}  {name:<20} {wall:8.1f} ms wall {cpu:8.1f} ms CPU {cpu - base:+8.1f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
