"""A made-up study: three judges whose dials say what they do to the gold."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from adjudge_lab.studies.analysis import analyse
from adjudge_lab.studies.results import (
    AnswerScores,
    ArmResult,
    BestOfScores,
    CheckpointResult,
    StudyResult,
)

PROMPTS = [f"prompt {place}" for place in range(6)]
DIALS = {"plain": 0.0, "mild": 0.5, "strong": 1.0}


def bare_arm(
    points: list[CheckpointResult], judge: str = "judge", seed: int = 0, mitigation: str = "none"
) -> ArmResult:
    """An arm of which nothing is known but its checkpoints."""
    return ArmResult(
        name=f"{judge}.{mitigation}.seed-{seed}",
        judge=judge,
        mitigation=mitigation,
        seed=seed,
        levels={},
        bias={},
        points=points,
        curves={},
        missing={},
        rewards=0,
        calls=[],
        seconds=0.0,
    )


def arm(judge: str, seed: int, **changes: Any) -> ArmResult:
    """An arm whose gold falls by the judge's dial after step 4, while the judge goes up."""
    draw = random.Random(f"{judge} {seed}")
    dial = DIALS.get(judge, 0.0)
    points = [
        CheckpointResult(
            step=step,
            kl=0.3 * step,
            scores={
                name: AnswerScores([draw.gauss(mean, 0.05) for _ in PROMPTS])
                for name, mean in {
                    "gold": 0.1 * step - dial * max(0, step - 4),
                    **dict.fromkeys(DIALS, 0.2 * step),
                }.items()
            },
            prompts=PROMPTS,
            features={"words": 5.0 + dial * step, "markdown": 0.1},
        )
        for step in (0, 2, 4, 6)
    ]
    made = ArmResult(
        name=f"{judge}.none.seed-{seed}",
        judge=judge,
        mitigation="none",
        seed=seed,
        levels={"size": 8.0 * 2 ** list(DIALS).index(judge) if judge in DIALS else 1.0},
        bias={"length": dial},
        points=points,
        curves={"reward": [0.1, None]},
        missing={"timeout": 3} if judge == "strong" else {},
        rewards=100,
        calls=[],
        seconds=2.0,
    )
    return msgspec.structs.replace(made, **changes)


def made_result(**changes: Any) -> StudyResult:
    """Three cells of three seeds, and many answers of one first policy."""
    draw = random.Random(1)
    result = StudyResult(
        gold="gold",
        judges={
            **{
                name: {"levels": {"size": 8}, "bias": {"length": dial}, "role": "training"}
                for name, dial in DIALS.items()
            },
            "gold": {"levels": {}, "bias": {}, "role": "gold"},
        },
        arms=[arm(judge, seed) for judge in DIALS for seed in (0, 1, 2)],
        best_of=[
            BestOfScores(
                seed=0,
                prompts=[prompt for prompt in PROMPTS for _ in range(8)],
                scores={
                    name: AnswerScores([draw.gauss(0, 1) for _ in range(48)])
                    for name in [*DIALS, "gold"]
                },
            )
        ],
    )
    return msgspec.structs.replace(result, **changes)


def made_summary(result: StudyResult, **changes: Any) -> dict[str, Any]:
    """What a study's ``summary.json`` has, with a plan of each question over all arms."""
    names = [one.name for one in result.arms]
    plans = [
        {
            "name": question,
            "title": f"Plan of {question}",
            "note": "",
            "question": question,
            "x": x,
            "arms": names,
        }
        for question, x in (
            ("bias", "length"),
            ("size", "size"),
            ("ensemble", None),
            ("failure", None),
        )
    ]
    found = analyse(result, plans, draws=8)
    found["plans"] = [{**table, **own} for table, own in zip(plans, found["plans"], strict=True)]
    facts = {"label": "A study", "pilot": False, "seeds": [0, 1, 2], "tiny": True, "seconds": 90.0}
    whole: dict[str, Any] = json.loads(json.dumps({**facts, "warnings": [], **found, **changes}))
    return whole
