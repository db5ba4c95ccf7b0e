"""What a reward spec costs a training step, beside a trivial reward function, in one run.

    python benchmarks/trainer_overhead.py [--quick] [--json FILE]

The reward function is called as the trainer calls it: for TRL on one event loop in a thread, with
the trainer's loggers, and the list of rewards read to its end. The judge replies at once, so its
own latency is left out; what is left is prompts, verdicts, aggregation, groups and metrics. Rounds
interleave; medians are shown. CPU time is of the whole process and says more than wall clock where
others use the machine. ``adapter`` has a grader that costs nothing; the goal for it is 30 µs a
sample, and for all of it 5 % of a one-second step, that is 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge.graders import RuleGrader
from adjudge.rewards import RewardSpec
from adjudge.trainers.trl import make_reward

PROMPTS = (64, 256)
GROUP = 8
WORDS = 200
FREE: dict[str, Any] = {"graders": [{"name": "free", "type": f"{__name__}:FreeGrader"}]}
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

Step = Callable[[], None]


class FreeGrader(RuleGrader):
    """Grades at no cost, so that the adapter's own is left."""

    score_range = (0.0, 1.0)

    def evaluate(self, response: str) -> float:
        """Rewards that differ inside a group."""
        return len(response) % 7 / 7


def rollouts(prompts: int) -> dict[str, Any]:
    """One generation batch in TRL's conversational form."""
    chance = random.Random(0)
    words = [f"word{number}" for number in range(500)]
    questions = [
        f"What is {number} plus {number}?" for number in range(prompts) for _ in range(GROUP)
    ]
    return {
        "prompts": [[{"role": "user", "content": question}] for question in questions],
        "completions": [
            [{"role": "assistant", "content": " ".join(chance.choices(words, k=WORDS)) + " 42"}]
            for _ in questions
        ],
        "completion_ids": [list(range(WORDS))] * len(questions),
        "answer": ["42"] * len(questions),
    }


async def trivial(completions: list[Any], **_: Any) -> list[float | None]:
    """What the overhead is measured against."""
    return [1.0] * len(completions)


class Trainer:
    """The loggers and the settings that GRPOTrainer offers a reward function."""

    def __init__(self) -> None:
        self.num_generations = self.num_generations_eval = GROUP
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(process_index=0)
        self.eos_token_ids = [2]
        self.logged: dict[str, list[Any]] = defaultdict(list)

    def log_metric(self, name: str, value: float) -> None:
        """As GRPOTrainer does, until the step's end."""
        self.logged[name].append(value)

    def log_extra(self, column: str, values: list[Any]) -> None:
        """As GRPOTrainer does, until the step's end."""
        self.logged[column].extend(values)


def trl_steps(prompts: int) -> dict[str, Step]:
    """A step of reward computation by name, as GRPOTrainer does it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    batch, trainer = rollouts(prompts), Trainer()

    def step_of(reward: Any) -> Step:
        async def called() -> list[float]:
            given = {"log_metric": trainer.log_metric, "log_extra": trainer.log_extra}
            rewards = await reward(**batch, trainer_state=SimpleNamespace(), **given)
            return [float("nan") if one is None else one for one in rewards]

        def step() -> None:
            found = asyncio.run_coroutine_threadsafe(called(), loop).result()
            assert len(found) == prompts * GROUP
            assert not any(one != one for one in found)
            trainer.logged.clear()

        return step

    return {
        "trivial": step_of(trivial),
        "adapter": step_of(make_reward(RewardSpec.from_dict(FREE))),
        "rule": step_of(make_reward(RewardSpec.from_dict(RULE))),
        "judge": step_of(make_reward(RewardSpec.from_dict(JUDGE))),
    }


TRAINERS: dict[str, Callable[[int], dict[str, Step]]] = {"trl": trl_steps}


def timed(step: Step) -> tuple[float, float]:
    """Milliseconds of CPU and of wall clock of one step."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3


def measured(steps: dict[str, Step], rounds: int) -> dict[str, dict[str, float]]:
    """Median CPU and wall milliseconds of each step by name."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        step()  # starts the engine, fills what is computed once
    for _ in range(rounds):
        for name, step in steps.items():
            found[name].append(timed(step))
    return {
        name: {"cpu": statistics.median(cpu), "wall": statistics.median(wall)}
        for name, times in found.items()
        for cpu, wall in [zip(*times, strict=True)]
    }


def main() -> None:
    """Measure every trainer at both sizes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="three rounds instead of fifteen")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("adjudge").setLevel(logging.ERROR)
    rounds = 3 if arguments.quick else 15
    table: dict[str, dict[str, dict[str, float]]] = {}
    for trainer, steps_of in TRAINERS.items():
        for prompts in PROMPTS:
            table[f"{trainer} {prompts} x {GROUP}"] = measured(steps_of(prompts), rounds)
    print(
        f"{'ms per step, CPU (wall)':24}{'trivial':>18}{'adapter':>18}{'rule':>18}{'judge':>18}"
        "   µs a sample, CPU"
    )
    for name, row in table.items():
        cells = "".join(f"{one['cpu']:9.1f} ({one['wall']:6.1f})" for one in row.values())
        base = row["trivial"]["cpu"]
        prompts = int(name.split()[1])
        each = [
            (row[one]["cpu"] - base) * 1e3 / (prompts * GROUP) for one in row if one != "trivial"
        ]
        print(f"{name:24}{cells}   {', '.join(f'{one:.0f}' for one in each)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ms_per_step": table}))


if __name__ == "__main__":
    main()
