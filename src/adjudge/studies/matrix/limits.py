"""What does not follow from a study, said on its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["limits", "pilot_note"]

_ANY = (
    (
        "One task and one recipe of training were tried. Another task, reward scale, KL penalty "
        "or sampling temperature can turn the order of judges around."
    ),
    "The gold is a grader, too: what it does not see is not counted as lost.",
    (
        "Intervals say how much seeds and prompts vary, no more. They do not allow for how many "
        "comparisons this page makes."
    ),
)
_TOY = (
    (
        "The policy is a toy of few weights that learned one made-up task. How large an effect is "
        "here says nothing of how large it is for a language model of real size."
    ),
    (
        "Judges with dials are formulas: their biases are cleaner and more constant than those of "
        "models, and nothing here shows that a real judge has them."
    ),
    (
        "Sizes and families of judges trained here are those of toys. That a larger one does "
        "better or worse does not carry over to others."
    ),
)


def limits(summary: Mapping[str, Any]) -> list[str]:
    """A sentence or two a point; with ``tiny`` in the summary those about toys come first."""
    found = [*(_TOY if summary.get("tiny") else ()), *_ANY]
    seeds = len(summary["settings"]["seeds"])
    if seeds == 1:
        found.append("Only one seed: no interval here knows how much seeds differ.")
    elif seeds and summary["settings"]["rough"]:
        found.append(
            f"A bootstrap over {_seeds(seeds)} has few different samples: its ends are rough."
        )
    return found


def pilot_note(summary: Mapping[str, Any]) -> str:
    """What a pilot's stamp says; empty where it is none."""
    if not summary.get("pilot"):
        return ""
    seeds = _seeds(len(summary["seeds"]))
    return f"PILOT: {seeds}. It shows that the study runs; it is no ground for a conclusion."


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
