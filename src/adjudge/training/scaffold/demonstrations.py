"""What a tiny policy imitates before it learns from rubrics: half of it with a scaffold.

Without a scaffold the answers are drawn at random from what all rubrics ask for, so the policy
learns how one answers and nothing of which answer is right; with one they follow what is shown, so
that a scaffold is of use to it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adjudge.errors import ConfigError, GradingFailure
from adjudge.rubrics import Criterion
from adjudge.training.runfile.tables import Scaffold
from adjudge.training.scaffold.message import scaffolded, system_message
from adjudge.training.scaffold.rows import rubrics_of

__all__ = ["rubric_demonstrations"]

_SHOWN = 0.5
_PLAIN = Scaffold(include_evaluation_warning=False)  # to be read in few steps it must be short
_QUOTED = re.compile(r'"([^"\n]{1,200})"')


def rubric_demonstrations(
    rows: Sequence[Mapping[str, Any]], rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Endless rows ``{messages}``; ``rows`` are a dataset's, all of them with rubrics.

    An answer has, a line each, as many words as its row's rubric quotes ("…") in criteria of
    positive points (the criteria themselves, where they quote nothing). What a scaffold shows is
    of any row: a policy that imitates learns to follow it, and nothing about the prompt. Raises
    :class:`~adjudge.errors.ConfigError` for rubrics that cannot be read, and where none has points.
    """
    read = [_worth(row, number) for number, row in enumerate(rows)]
    rubrics = [criteria for criteria in read if criteria]
    if not rubrics:
        raise ConfigError("rollout.dataset: no rubric has points: nothing can be demonstrated")
    words = sorted({word for criteria in rubrics for word in _words(criteria)})
    while True:
        prompt, criteria = rng.choice(rows), rng.choice(rubrics)
        shown: list[Criterion] = []
        if rng.random() < _SHOWN:
            shown = _some(criteria, rng.randint(1, len(criteria)), rng)
        said = _words(shown)
        others = [word for word in words if word not in said]
        lacking = max(len(_words(criteria)) - len(said), 0)
        said += rng.sample(others, min(lacking, len(others)))
        told = scaffolded(_turns(prompt), system_message(shown, _PLAIN))
        yield {"messages": [*told, {"role": "assistant", "content": "\n".join(said)}]}


def _worth(row: Mapping[str, Any], number: int) -> list[Criterion]:
    try:
        return [one for one in rubrics_of(row) if one.worth]
    except GradingFailure as failure:
        raise ConfigError(f"rollout.dataset: row {number}: {failure}") from None


def _some(criteria: Sequence[Criterion], count: int, rng: random.Random) -> list[Criterion]:
    return [criteria[at] for at in sorted(rng.sample(range(len(criteria)), count))]


def _words(criteria: Sequence[Criterion]) -> list[str]:
    """What an answer that meets ``criteria`` has."""
    good = [one.text for one in criteria if one.worth > 0]
    return [word for text in good for word in _QUOTED.findall(text) or [text]]


def _turns(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    prompt = row["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
