"""Real dumps, and defects planted in them: what `benchmarks/audit_validation.py` must find.

A dump is a list of rows in adjudge's own columns. Real are the texts, the trajectories and the
recorded labels; where a defect needs what the dump has not (a continuous judge's score, steps, a
reason), it is added honestly first, from the recorded labels, and then spoiled.

Three dumps, from the folder that ``ADJUDGE_DATA`` names:

- ``ifeval``: 533 responses of Llama-3.1-8B to IFEval (the 8 that are loops by themselves are left
  out) in groups of 8 under one prompt, with recorded labels; ``judged`` gives each a judge's
  score in [0, 1] that follows the share of instructions followed.
- ``tau``: 100 airline trajectories of tau-bench, 25 tasks of 4 trials, with recorded rewards.
- ``health``: 64 HealthBench prompts of 8 answers each (real answers to other prompts), graded by
  their own rubrics: each criterion is met by chance.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.rollouts.samples import SampleReader, compute_rollout_key
from adjudge.types import Sample

Rows = list[dict[str, Any]]


class Plant(NamedTuple):
    """A defect: what it is, how it is put into rows, and which check should say so."""

    name: str
    dump: str
    size: str
    spoil: Callable[[Rows, random.Random], None]
    found_by: tuple[str, ...]
    as_folder: bool = False


@cache
def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


@cache
def _whole_answers(data: Path) -> tuple[dict[str, Any], ...]:
    from adjudge.checks.responses import has_loop
    from adjudge.checks.words import measure_repetition

    return tuple(
        row
        for row in _lines(data / "ifeval" / "recorded_strict_llama31_8b.jsonl")
        if not has_loop(row["response"]) and measure_repetition([row["response"]])[0] <= 0.6
    )


def _ifeval_rows(data: Path, rng: random.Random) -> Rows:
    rows = list(_whole_answers(data))
    rng.shuffle(rows)
    return [
        {
            "prompt": rows[place // 8 * 8]["prompt"],
            "response": row["response"],
            "group": str(place // 8),
            "reward": float(row["follow_all_instructions"]),
            "followed": sum(row["follow_instruction_list"]) / len(row["follow_instruction_list"]),
        }
        for place, row in enumerate(rows[: len(rows) // 8 * 8])
    ]


def _judged(rows: Rows, rng: random.Random) -> Rows:
    """A judge's score between 0.05 and 0.95 from the share of instructions followed, and noise."""
    for row in rows:
        score = 0.3 + 0.4 * row.pop("followed") + rng.gauss(0, 0.12)
        row["reward"] = round(min(0.95, max(0.05, score)), 2)
    return rows


def _tau_rows(data: Path, rng: random.Random) -> Rows:
    rows = [
        {"messages": row["traj"], "group": str(row["task_id"]), "reward": row["reward"]}
        for row in _lines(data / "tau_bench" / "airline_gpt4o_even_tasks.jsonl")
    ]
    rng.shuffle(rows)
    return sorted(rows, key=lambda row: int(row["group"]))


@cache
def _health_prompts(data: Path) -> tuple[Any, ...]:
    from pyarrow import parquet

    return tuple(parquet.read_table(data / "healthbench" / "healthbench_val.parquet").to_pylist())


def _health_rows(data: Path, rng: random.Random) -> Rows:
    prompts = rng.sample(_health_prompts(data), 64)
    answers = [row["response"] for row in _lines(data / "ifeval" / "responses_gpt4.jsonl")]
    texts = iter(rng.sample(answers, 8 * len(prompts)))
    rows: Rows = []
    for place, prompt in enumerate(prompts):
        points = [one["points"] for one in prompt["reward_model"]["rubrics"]]
        positive = sum(one for one in points if one > 0)
        for text in islice(texts, 8):
            skill = rng.betavariate(4, 4)
            met = sum(one for one in points if rng.random() < (skill if one > 0 else 0.15))
            rows.append(
                {
                    "prompt": prompt["prompt"][-1]["content"],
                    "response": text,
                    "group": str(place),
                    "reward": max(0.0, met / positive),
                }
            )
    return rows


def load_dump(name: str, data: Path, rng: random.Random) -> Rows:
    """The rows of a dump, in a fresh order, without any defect."""
    if name == "ifeval":
        rows = _ifeval_rows(data, rng)
        for row in rows:
            del row["followed"]
        return rows
    if name == "judged":
        return _judged(_ifeval_rows(data, rng), rng)
    return _tau_rows(data, rng) if name == "tau" else _health_rows(data, rng)


def permute_rewards(rows: Rows, rng: random.Random) -> Rows:
    """The rewards of each group in another order: nothing explains them any more."""
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    for members in groups.values():
        rewards = [row["reward"] for row in members]
        rng.shuffle(rewards)
        for row, reward in zip(members, rewards, strict=True):
            row["reward"] = reward
    return rows


def write_dump(rows: Rows, path: Path) -> Path:
    """Rows as a file of JSON lines."""
    lines = [json.dumps({**_without(row, "reward"), "env_reward": row["reward"]}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_folder(rows: Rows, path: Path) -> Path:
    """Rows as a run folder of ``adjudge grade``: rewards beside the environment's."""
    path.mkdir(parents=True, exist_ok=True)
    rollouts = path / "rollouts_in.jsonl"
    shown = [_without(row, "reward", "env") for row in rows]
    rollouts.write_text("\n".join(map(json.dumps, shown)) + "\n", encoding="utf-8")
    samples = [one for _, one in SampleReader([rollouts]).read() if isinstance(one, Sample)]
    graded = [
        {
            "index": place,
            "key": compute_rollout_key(samples[place]),
            "group": row["group"],
            "reward": row["reward"],
            "env_reward": row.get("env"),
            "step": row.get("step"),
        }
        for place, row in enumerate(rows)
    ]
    (path / "rewards.jsonl").write_text("\n".join(map(json.dumps, graded)) + "\n")
    (path / "run.json").write_text(json.dumps({"inputs": [str(rollouts)], "map": {}}))
    return path


def _without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def by_group(rows: Rows) -> list[Rows]:
    """The rows of each group."""
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return list(groups.values())


def add_steps(rows: Rows, steps: int = 16) -> None:
    """Groups into steps, in order."""
    groups = by_group(rows)
    for place, members in enumerate(groups):
        for row in members:
            row["step"] = place * steps // len(groups)


def add_reasons(rows: Rows, rng: random.Random) -> None:
    """An honest reason to each reward, in some of the ways in which judges write."""
    for row in rows:
        high = row["reward"] >= 0.5
        said = rng.choice(
            [
                (
                    "The response follows all instructions.",
                    "The response does not follow the task.",
                ),
                ("Correct.", "Incorrect."),
                ("The answer is correct: it does what was asked.", "The answer is wrong."),
                ("The response correctly addresses the request.", "The response fails to answer."),
            ]
        )[not high]
        row["judge_reason"] = said


def fill_outage(rows: Rows, rng: random.Random) -> None:
    first = rng.randrange(len(rows) // 2)
    for row in rows[first : first + len(rows) // 10]:
        row["reward"] = 0.0


def fill_error_texts(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        row["judge_reason"] = rng.choice(["Clear.", "It is short and to the point.", "Good tone."])
        if rng.random() < 0.08:
            row["reward"] = 0.5
            row["judge_reason"] = rng.choice(
                [
                    "openai.RateLimitError: Error code: 429",
                    "Could not parse the judge's reply, defaulting to 0.5",
                    "Judge call failed after 3 retries: ReadTimeout",
                ]
            )


def fill_long(rows: Rows, rng: random.Random) -> None:
    lengths = sorted(len(row["response"]) for row in rows)
    limit = lengths[int(0.9 * len(lengths))]
    for row in rows:
        if len(row["response"]) > limit:
            row["reward"] = 0.0


def kill_groups(rows: Rows, rng: random.Random) -> None:
    for members in by_group(rows):
        if rng.random() < 0.7:
            value = rng.choice([0.0, 1.0])
            for row in members:
                row["reward"] = value


def like_length(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        row["reward"] = round(row["reward"] + 0.08 * (math.log(len(row["response"])) - 7), 2)


def like_format(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        row["reward"] = round(row["reward"] + 0.15 * ("**" in row["response"]), 2)


def like_first(rows: Rows, rng: random.Random) -> None:
    for members in by_group(rows):
        members[0]["reward"] = round(members[0]["reward"] + 0.15, 2)


def copy_answers(rows: Rows, rng: random.Random) -> None:
    for members in by_group(rows):
        if rng.random() < 0.3:
            one, other = rng.sample(members, 2)
            words = one["response"].split()
            if rng.random() < 0.5 and len(words) > 60:
                words[rng.randrange(len(words))] = "indeed"
            other["response"] = " ".join(words)


def give_stock_answer(rows: Rows, rng: random.Random) -> None:
    stock = (
        "Thank you for this great question! I have carefully considered every aspect of it, and my "
        "answer meets all the requirements that you stated, as an expert would confirm."
    )
    for row in rows:
        if rng.random() < 0.05:
            row["response"], row["reward"] = stock, 0.9


def loop_texts(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        if rng.random() < 0.04:
            row["response"] += " " + rng.choice(["and so on, ", "Wait, let me check. "]) * 60


def cut_and_reward(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        row["finish_reason"] = "stop"
        if rng.random() < 0.15:
            row["response"] = row["response"][: int(0.9 * len(row["response"]))]
            row["finish_reason"] = "length"
            row["reward"] = round(row["reward"] + 0.15, 2)


def change_reward(rows: Rows, rng: random.Random) -> None:
    add_steps(rows)
    for row in rows:
        row["reward"] = round(row["reward"] + (0.2 if row["step"] >= 9 else 0.0), 2)


def drift_from_environment(rows: Rows, rng: random.Random) -> None:
    add_steps(rows)
    for row in rows:
        row["env"] = float(row["reward"] + rng.gauss(0, 0.1) > 0.55)
        row["reward"] = round(row["reward"] + 0.012 * row["step"], 3)


def repeat_component(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        row["accuracy"] = row["reward"]
        row["quality"] = round(2 * row["reward"] + rng.gauss(0, 0.01), 3)
        row["tone"] = round(rng.random(), 2)
        row["reward"] = round(row["accuracy"] + row["quality"] + row["tone"], 3)


def fight_component(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        row["detail"] = row["reward"]
        row["brevity"] = round(1 - row["reward"] + rng.gauss(0, 0.12), 2)
        row["reward"] = round(row["detail"] + row["brevity"], 3)


def loop_tools(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        calls = [
            place
            for place, one in enumerate(row["messages"][:-1])
            if one.get("tool_calls") and row["messages"][place + 1].get("role") == "tool"
        ]
        if calls and rng.random() < 0.2:
            at = rng.choice(calls)
            pair = row["messages"][at : at + 2]
            row["messages"] = row["messages"][:at] + pair * 4 + row["messages"][at + 2 :]
            row["reward"] = 1.0


def contradict(rows: Rows, rng: random.Random) -> None:
    add_reasons(rows, rng)
    for row in rows:
        if rng.random() < 0.12:
            row["reward"] = 1.0 - row["reward"]


def swap_scale(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        marks = round(10 * row["reward"])
        row["judge_reason"] = f"It does some of what was asked. Score: {marks}/10"
        row["reward"] = 1 - marks / 10


def put_nan(rows: Rows, rng: random.Random) -> None:
    for row in rng.sample(rows, 2):
        row["reward"] = math.nan


PLANTS = (
    Plant("failed judge filled with 0 (outage)", "judged", "10 % of rows in one stretch",
          fill_outage, ("filled_rewards",)),
    Plant("failed judge filled with 0.5 (error texts)", "judged", "8 % of rows",
          fill_error_texts, ("judge_errors", "filled_rewards")),
    Plant("filled with 0 for long samples only", "judged", "the longest 10 %",
          fill_long, ("filled_rewards",)),
    Plant("dead groups", "ifeval", "70 % of groups", kill_groups, ("dead_groups",)),
    Plant("length bias", "judged", "+0.08 per e-fold of length (SD of a group: 0.17)",
          like_length, ("length",)),
    Plant("format bias", "judged", "+0.15 for bold text", like_format, ("format",)),
    Plant("first-position bias", "judged", "+0.15 for the first", like_first, ("position",)),
    Plant("copies within groups", "judged", "in 30 % of groups, one",
          copy_answers, ("duplicates",)),
    Plant("stock answer to many prompts", "health", "5 % of rows at 0.9",
          give_stock_answer, ("duplicates",)),
    Plant("degenerate loops", "judged", "4 % of rows", loop_texts, ("degenerate",)),
    Plant("truncation rewarded", "judged", "15 % cut, +0.15", cut_and_reward, ("truncation",)),
    Plant("reward jumps at a step", "judged", "+0.2 from step 9 of 16 on",
          change_reward, ("reward_jump",)),
    Plant("judge drifts from the environment", "judged", "+0.012 a step, 16 steps",
          drift_from_environment, ("judge_drift",), as_folder=True),
    Plant("redundant components", "judged", "correlation 0.99",
          repeat_component, ("components",)),
    Plant("fighting components", "judged", "correlation -0.7", fight_component, ("components",)),
    Plant("tool loops rewarded", "tau", "20 % of trajectories", loop_tools, ("tool_loops",)),
    Plant("verdicts against their reasons", "ifeval", "12 % of rows",
          contradict, ("contradictions",)),
    Plant("swapped scale", "health", "all rows", swap_scale, ("contradictions",)),
    Plant("NaN rewards", "tau", "2 rows", put_nan, ("not_finite",)),
)  # fmt: skip
