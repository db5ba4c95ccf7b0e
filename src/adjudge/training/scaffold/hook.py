"""A step's rollouts with their scaffolds: what is shown to each, and what is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from adjudge.environments import DatasetTask, Policy
from adjudge.training.playing import Lane, Lanes
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import Scaffold
from adjudge.training.scaffold.message import scaffolded, system_message
from adjudge.training.scaffold.rows import rubrics_of
from adjudge.training.scaffold.schedule import reveal_ratio, shown_rubrics

__all__ = ["Revealed", "StepScaffold", "scaffold_metrics"]


class Revealed(msgspec.Struct):
    """What a rollout was shown: a share of its rubrics, so many of them, and which by their ids."""

    ratio: float
    shown: int
    ids: list[str]


class StepScaffold:
    """The scaffolds of step ``step``, whose rollouts begin with the rows ``seeds``.

    The same for the same run file, step and place; a resumed run shows what it would have shown.
    Raises ``GradingFailure`` for a row whose rubrics cannot be read.
    """

    def __init__(
        self,
        run: RunFile,
        scaffold: Scaffold,
        task: DatasetTask,
        *,
        step: int,
        seeds: Sequence[int],
        groups: Sequence[str],
    ) -> None:
        self._texts: list[str | None] = []
        self.revealed: list[Revealed] = []
        size = run.training.group_size
        for place, (seed, group) in enumerate(zip(seeds, groups, strict=True)):
            at = {"step": step, "steps": run.training.steps, "index": place % size, "size": size}
            shown = shown_rubrics(
                scaffold,
                rubrics_of(task.begin(seed).columns),
                seed=run.training.seed,
                group=group,
                **at,
            )
            ratio = reveal_ratio(scaffold, **at)
            self.revealed.append(Revealed(ratio, len(shown), [one.id for one in shown]))
            self._texts.append(system_message(shown, scaffold))

    def is_scaffolded(self, place: int) -> bool:
        """Whether the policy reads anything at ``place`` that its prompt does not have."""
        return self._texts[place] is not None

    def lanes(self, lanes: Lanes) -> Lanes:
        """``lanes`` in which the policy reads the scaffold of its place before the prompt.

        The episode itself never has it: graders see the prompt as the dataset has it.
        """
        return lambda count: [_ScaffoldedLane(lane, self._texts) for lane in lanes(count)]


class _ScaffoldedLane:
    def __init__(self, lane: Lane, texts: Sequence[str | None]) -> None:
        self._lane, self._texts = lane, texts

    def policy(self, place: int) -> Policy:
        """Who speaks in the episode at ``place``, with its scaffold before its eyes."""
        speak, text = self._lane.policy(place), self._texts[place]

        def shown(messages: Sequence[Any]) -> Any:
            return speak(scaffolded(messages, text))

        return shown

    def close(self) -> None:
        """No more episodes."""
        self._lane.close()


def scaffold_metrics(revealed: Sequence[Revealed | None]) -> dict[str, float]:
    """What a step's rollouts were shown on average; nothing where no scaffold is on.

    >>> scaffold_metrics([Revealed(1.0, 4, []), Revealed(0.5, 2, [])])
    {'scaffold/ratio_mean': 0.75, 'scaffold/shown_mean': 3.0}
    """
    known = [one for one in revealed if one is not None]
    if not known:
        return {}
    return {
        "scaffold/ratio_mean": sum(one.ratio for one in known) / len(known),
        "scaffold/shown_mean": sum(one.shown for one in known) / len(known),
    }
