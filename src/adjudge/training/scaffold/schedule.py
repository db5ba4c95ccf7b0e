"""How much of a row's rubrics a rollout is shown, and which of them.

ratio = group share (by the rollout's place in its group) · step share (by the training's progress),
as RuscaRL has it (arXiv 2508.16949, and the code that came with it).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from adjudge.rubrics import Criterion
from adjudge.training.runfile.tables import Scaffold

__all__ = ["group_share", "reveal_ratio", "shown_rubrics", "step_share"]

_FAR = 700.0  # e to more than that is no float


def group_share(scaffold: Scaffold, index: int, size: int) -> float:
    """The share of the rollout at ``index`` (from 0) in a group of ``size``, in [0, 1].

    ``linear``: from 1 for the first to 0 for the last, 1 in a group of one; ``binary``: 1 for the
    first ``full_reveal_count``, 0 for the others.
    """
    kind = scaffold.rule if scaffold.rule in ("linear", "binary") else scaffold.group_decay_type
    if kind == "binary":
        return float(index < scaffold.full_reveal_count)
    return 1.0 if size == 1 else (size - 1 - index) / (size - 1)


def step_share(scaffold: Scaffold, step: int, steps: int) -> float:
    """The share of ``step`` (from 1) of ``steps``, in [0, 1]; it never grows with ``step``.

    1 under a rule without ``step_``, and in a training of one step. With x from 0 at the first step
    to 1 at the last: 1 − x, its power ``step_power_n``, or 1 / (1 + e^((x − start) · steepness)).

    >>> share = Scaffold(step_sigmoid_start_point=0.2, step_sigmoid_steepness=125.0)
    >>> [round(step_share(share, step, 350), 2) for step in (1, 60, 70, 71, 85)]
    [1.0, 0.98, 0.57, 0.48, 0.01]
    """
    if steps <= 1 or not scaffold.rule.startswith("step_"):
        return 1.0
    done = min(1.0, max(0.0, (step - 1) / (steps - 1)))
    if scaffold.rule == "step_linear":
        return 1.0 - done
    if scaffold.rule == "step_power":
        return float((1.0 - done) ** scaffold.step_power_n)
    late = (done - scaffold.step_sigmoid_start_point) * scaffold.step_sigmoid_steepness
    return 0.0 if late > _FAR else 1.0 / (1.0 + math.exp(late))


def reveal_ratio(scaffold: Scaffold, *, step: int, steps: int, index: int, size: int) -> float:
    """The share of its rubrics that a rollout is shown, in [0, 1].

    >>> [reveal_ratio(Scaffold(rule="linear"), step=1, steps=9, index=i, size=3) for i in range(3)]
    [1.0, 0.5, 0.0]
    """
    return group_share(scaffold, index, size) * step_share(scaffold, step, steps)


def shown_rubrics(
    scaffold: Scaffold,
    rubrics: Sequence[Criterion],
    *,
    step: int,
    steps: int,
    index: int,
    size: int,
    seed: int,
    group: str | int,
) -> list[Criterion]:
    """Which of ``rubrics`` the rollout at ``index`` of ``group`` is shown, in their order.

    So many: their number times :func:`reveal_ratio`, rounded, halves to the even number. Criteria
    of 0 points are never among them and do not count. Those drawn are the same ones for the same
    ``seed`` (the run's), ``step``, ``group`` and ``index``.
    """
    worth = [one for one in rubrics if one.worth]
    ratio = reveal_ratio(scaffold, step=step, steps=steps, index=index, size=size)
    rng = random.Random(f"scaffold {seed} {step} {group} {index}")  # noqa: S311  (no secret)
    places = rng.sample(range(len(worth)), round(len(worth) * ratio))
    return [worth[place] for place in sorted(places)]
