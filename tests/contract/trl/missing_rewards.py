"""What one version of TRL makes of missing rewards, as JSON: run by the test of older versions.

    python missing_rewards.py FOLDER

By trainer and settings: the rewards that the judge gave, the advantages that the trainer made of
them, or the refusal.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import AdjudgeError
from adjudge.trainers import adapter
from adjudge.trainers import trl as trl_adapter
from adjudge.trainers.scoring import Scorer, ScorerResult

# Its neighbour in this folder; not by the name of the tests: an installed package may have one.
pytest.importorskip("tiny_policy", reason="run by test_older_trl.py")
from tiny_policy import GROUP, new_policy, spec_file, train

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("mask", "GRPO", 'policy = "mask"', {}),
    ("mask, batch", "GRPO", 'policy = "mask"', {"scale_rewards": "batch"}),
    ("mask, none", "GRPO", 'policy = "mask"', {"scale_rewards": "none"}),
    ("drop_group", "GRPO", 'policy = "drop_group"', {}),
    ("raise", "GRPO", 'policy = "raise"', {}),
    ("mask, RLOO", "RLOO", 'policy = "mask"', {}),
]


def outcome(folder: Path, algorithm: str, missing: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Two steps of a trainer; ``judged`` and ``made`` are lists of groups."""
    trl = import_module("trl")
    judged: list[float | None] = []
    made: list[float] = []
    spec = spec_file(folder)
    spec.write_text(spec.read_text().replace("[missing]", f"[missing]\n{missing}"))

    class Seen(Scorer):
        def compute_rewards(self, *given: Any, **more: Any) -> ScorerResult:
            scored = super().compute_rewards(*given, **more)
            judged.extend(scored.rewards)
            return scored

    adapter.Scorer = Seen  # type: ignore[misc,attr-defined]
    reward = trl_adapter.make_reward(spec)

    class Recorded(getattr(trl, f"{algorithm}Trainer")):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            made.extend(output["advantages"].tolist())
            return output

    trainer = {"steps": 2, "trainer_class": Recorded, "algorithm": algorithm}
    try:
        train(new_policy(), folder, reward, **trainer, **settings)
    except AdjudgeError as error:
        return {"refused": str(error), "judged": blocks(judged)}
    return {"judged": blocks(judged), "made": blocks(made)}


def blocks(values: list[Any]) -> list[list[Any]]:
    """Groups of values in order."""
    return [values[start : start + GROUP] for start in range(0, len(values), GROUP)]


def main() -> None:
    """Every case in turn."""
    folder = Path(sys.argv[1])
    version = import_module("trl").__version__
    found = {
        name: outcome(folder, algorithm, missing, settings)
        for name, algorithm, missing, settings in CASES
    }
    (folder / "found.json").write_text(json.dumps({"version": version, **found}))


if __name__ == "__main__":
    main()
