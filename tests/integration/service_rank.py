"""One rank of a trainer: `service_rank.py SPEC RANK COUNT`, which rewards COUNT completions.

Says that it is ready, begins at a line on its standard input, so that all ranks begin at once, and
prints its rewards as JSON.
"""

import asyncio
import json
import sys

from adjudge.trainers.trl import make_reward


def main(spec: str, rank: int, count: int) -> None:
    """Reward as TRL's trainer does, in one call."""
    reward = make_reward(spec)
    print("ready", flush=True)
    sys.stdin.readline()
    prompts = [f"question {rank}-{number}" for number in range(count)]
    completions = [f"answer {rank}-{number}" for number in range(count)]
    rewards = asyncio.run(reward(prompts=prompts, completions=completions))
    print(json.dumps(rewards), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
