"""Hack onset: the checkpoint at which gold falls for good while the judge sees no loss."""

from collections.abc import Sequence

import pytest
from lab.tests.unit.helpers.made_study import bare_arm

from adjudge_lab.studies.overoptimization import find_onset, summarise_onsets
from adjudge_lab.studies.results import AnswerScores, ArmResult, CheckpointResult


def arm(
    gold: Sequence[float | None], proxy: Sequence[float | None] | None = None, prompts: int = 4
) -> ArmResult:
    proxies = list(range(len(gold))) if proxy is None else proxy
    points = [
        CheckpointResult(
            step=10 * at,
            kl=0.1 * at,
            scores={
                "gold": AnswerScores([right] * prompts),
                "judge": AnswerScores([judged] * prompts),
            },
            prompts=[f"p{k}" for k in range(prompts)],
            features={},
        )
        for at, (right, judged) in enumerate(zip(gold, proxies, strict=True))
    ]
    return bare_arm(points[::-1])


@pytest.mark.parametrize(
    ("gold", "step"),
    [
        ([0.1, 0.5, 0.9, 0.3, 0.2], 30),
        ([0.9, 0.5, 0.5], 10),
        ([0.1, 0.2, 0.2, 0.9], None),
        ([0.1, 0.9, 0.2, 0.9, 0.95], None),  # it came back
        ([0.1, 0.9, 0.2, 0.88, 0.3], 40),  # below for good only from the last on
        ([0.5, 0.49, 0.48, 0.47], None),  # less than 5 % of the range
        ([0.5, 0.49, 0.48, 0.44], 30),
    ],
)
def test_the_step_of_the_fall(gold: list[float], step: int | None) -> None:
    assert find_onset(arm(gold), "gold", seen=1.0).step == step


def test_a_policy_that_got_worse_by_both_is_not_hacking() -> None:
    found = find_onset(arm([0.9, 0.9, 0.2], [1.0, 2.0, 0.5]), "gold", seen=1.0)
    assert (found.step, found.why) == (None, "")
    assert found.loss == pytest.approx(0.7)


def test_unknown_is_not_never() -> None:
    found = find_onset(arm([0.9, None, None]), "gold", seen=1.0)
    assert (found.step, found.skipped, found.checkpoints) == (None, 2, 1)
    assert found.why
    gap = find_onset(arm([0.1, 0.9, None, 0.2], [0.0, 1.0, 2.0, 3.0]), "gold", seen=1.0)
    assert (gap.step, gap.skipped, gap.peak_step) == (30, 1, 10)
    assert find_onset(arm([0.9, 0.1], [None, None]), "gold", seen=1.0).why


def scored(*golds: list[float | None]) -> ArmResult:
    """An arm with these answers at its checkpoints; the judge's mean rises."""
    base = arm([0.0] * len(golds), prompts=len(golds[0]))
    for point, values in zip(base.points[::-1], golds, strict=True):
        point.scores["gold"] = AnswerScores(list(values))
    return base


def test_a_drop_within_chance_is_none() -> None:
    found = find_onset(scored([0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]), "gold", seen=1.0)
    assert (found.loss, found.step) == (0.25, None)


def test_a_missing_score_is_no_loss() -> None:
    found = find_onset(scored([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, None]), "gold", seen=1.0)
    assert (found.step, found.peak, found.final) == (None, 0.25, 0.0)
    assert found.loss == 0.0
    assert find_onset(scored([None, 1.0], [1.0, None]), "gold", seen=1.0).loss is None
    # What is left fell by less than 5 %; the prompt that is gone was the good one.
    small = scored([0.5, 0.5, 0.5, 1.0], [0.49, 0.49, 0.49, None])
    assert find_onset(small, "gold", seen=1.0).step is None


def test_a_cell_counts_seeds_that_are_known() -> None:
    arms = [arm([0.9, 0.1, 0.1]), arm([0.1, 0.5, 0.9]), arm([0.1, 0.9, 0.1]), arm([None, None])]
    found = summarise_onsets(arms, [find_onset(one, "gold", seen=1.0) for one in arms])
    assert (found.hacked, found.known) == (2, 3)
    assert found.share == pytest.approx(2 / 3)
    assert found.median_step == 15.0
    nothing = summarise_onsets(arms[3:], [find_onset(arms[3], "gold", seen=1.0)])
    assert (nothing.share, nothing.median_step) == (None, None)
