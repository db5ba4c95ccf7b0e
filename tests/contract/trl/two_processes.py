"""One of two training processes, started by torchrun: `two_processes.py FOLDER`.

Each holds half of every group. Writes `RANK.json`: how many rewards each call of a spec that judges
samples by themselves gave, what a spec that compares them said, and what it said before any trainer
was made. What the first gave is recorded.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from adjudge.errors import ConfigError
from adjudge.trainers.trl import make_reward


def main(folder: Path) -> None:
    """Train twice, for one and two steps."""
    # Its neighbour in this folder; not by the name of the tests: an installed package may have one.
    from tiny_policy import GROUP, new_policy, spec_file, train

    rank = os.environ["RANK"]
    own = folder / f"process{rank}"
    own.mkdir()
    score, counts = make_reward(spec_file(own), record=folder / "recorded"), []

    async def counted(**given: Any) -> list[float | None]:
        rewards = await score(**given)
        counts.append(len(rewards))
        return rewards

    train(new_policy(), own, counted, steps=2, batch=GROUP // 2)
    said = ""
    try:
        train(new_policy(), own, make_reward(spec_file(own, "z_score")), batch=GROUP // 2)
    except ConfigError as error:
        said = str(error)
    (folder / f"{rank}.json").write_text(
        json.dumps({"alone": counts, "compared": said, "foreseen": list(foresee(own, spec_file))})
    )


def foresee(folder: Path, spec_file: Any) -> Iterator[str]:
    """What `make_reward` says of configurations that divide groups, and of one that does not."""
    from tiny_policy import GROUP

    settings: dict[str, Any] = {"output_dir": str(folder), "use_cpu": True, "bf16": False}
    divided = {"per_device_train_batch_size": GROUP // 2, "num_generations": GROUP}
    whole = {**divided, "steps_per_generation": 2}
    evaluated = {**whole, "eval_strategy": "steps", "per_device_eval_batch_size": GROUP // 2}
    for given in (divided, whole, evaluated):
        said = ""
        try:
            make_reward(spec_file(folder, "z_score"), args=GRPOConfig(**settings, **given))
        except ConfigError as error:
            said = str(error)
        yield said


if __name__ == "__main__":
    main(Path(sys.argv[1]))
