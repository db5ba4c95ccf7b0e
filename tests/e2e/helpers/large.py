"""A run folder of many samples, graded by a scripted judge and a rule."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from tests.e2e.helpers.command import run_here

_JUDGE = """
import json

def reply(messages):
    number = sum(str(messages[-1]["content"]).split("Answer")[-1].encode())
    return json.dumps({"reason": f"It has {number} in all.", "score": 1 + number % 5})
"""
_SPEC = """
version = 1

[[graders]]
name = "quality"
type = "helpfulness"

[[graders]]
name = "repeats"
type = "ngram_repetition"
weight = 0.1

[judges.main]
type = "scripted"
function = "large_run_judge:reply"
"""


def write_large_inputs(folder: Path, samples: int) -> tuple[Path, Path]:
    """Rollouts in groups of eight over ten steps, and a spec."""
    rng = random.Random(0)
    words = [f"word{number}" for number in range(2_000)]
    rollouts, spec = folder / "rollouts.jsonl", folder / "reward.toml"
    with rollouts.open("w") as file:
        for index in range(samples):
            question = f"Question {index // 8}: {' '.join(rng.choices(words, k=30))}"
            answer = f"Answer {index}. {' '.join(rng.choices(words, k=60))}"
            row = {
                "group": f"task-{index // 8:05}",
                "step": index * 10 // samples,
                "messages": [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ],
                "env_reward": float(rng.random() < 0.5),
            }
            file.write(json.dumps(row) + "\n")
    (folder / "large_run_judge.py").write_text(_JUDGE)
    spec.write_text(_SPEC)
    return rollouts, spec


def large_run(folder: Path, samples: int) -> Path:
    """The folder of ``adjudge grade``."""
    rollouts, spec = write_large_inputs(folder, samples)
    done = run_here("grade", rollouts, "--spec", spec, "-o", "run", "--quiet", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def judged_otherwise(run: Path, other: Path) -> Path:
    """A copy of a run folder in which every third reward is another one."""
    other.mkdir()
    for name in ("run.json", "summary.json"):
        shutil.copy(run / name, other)
    with (run / "rewards.jsonl").open() as read, (other / "rewards.jsonl").open("w") as written:
        for number, line in enumerate(read):
            row = json.loads(line)
            if number % 3 == 0:
                row["reward"] = row["reward_info"]["quality_score"] = 1 - row["reward"]
            written.write(json.dumps(row) + "\n")
    return other
