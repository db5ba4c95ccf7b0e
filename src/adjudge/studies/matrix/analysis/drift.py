"""What a judge's biases do to the policy: its drift, feature by feature, on the judges' dials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from adjudge.studies.matrix.analysis.bootstrap import Estimate, over_seeds
from adjudge.studies.matrix.analysis.regression import Observation, Regression, regress
from adjudge.studies.matrix.analysis.scores import ends
from adjudge.studies.matrix.results import ArmResult, StudyResult

__all__ = ["Drift", "FeatureCurve", "FeaturePoint", "drift", "feature_curves", "features_of"]


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A feature's change from step 0 to the end, regressed on the judges' biases.

    ``left_out``: arms without mitigation whose judge's biases or whose feature is unknown.
    """

    feature: str
    regression: Regression
    left_out: int


class FeaturePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A feature at a step: the mean over ``seeds`` with the interval of t over them."""

    step: int
    distance: float
    seeds: int
    mean: Estimate


class FeatureCurve(msgspec.Struct, frozen=True, kw_only=True):
    """How a feature of the answers moved in a cell. ``change``: from step 0 to the end."""

    judge: str
    mitigation: str
    feature: str
    points: list[FeaturePoint]
    change: Estimate


def features_of(result: StudyResult) -> list[str]:
    """Names of all features that a checkpoint has, in the order they are first met."""
    found = (name for arm in result.arms for point in arm.points for name in point.features)
    return list(dict.fromkeys(found))


def drift(result: StudyResult) -> list[Drift]:
    """One regression a feature over the arms without mitigation, one dial a coefficient.

    A judge that declares biases has 0 of those that it does not name; one that declares none is
    unknown, not unbiased (say ``bias = {length = 0}``), and its arms are left out.
    """
    arms = [arm for arm in result.arms if arm.mitigation == "none"]
    described = [arm for arm in arms if arm.bias]
    dials = list(dict.fromkeys(name for arm in described for name in arm.bias))
    found = []
    for feature in features_of(result):
        observations = [
            Observation(arm.judge, {dial: arm.bias.get(dial, 0.0) for dial in dials}, moved)
            for arm in described
            if (moved := _moved(arm, feature)) is not None
        ]
        regression = (
            regress(observations, dials)
            if dials
            else Regression(why="no judge of an arm without mitigation declares its biases")
        )
        left_out = len(arms) - len(observations)
        found.append(Drift(feature=feature, regression=regression, left_out=left_out))
    return found


def feature_curves(result: StudyResult) -> list[FeatureCurve]:
    """Every feature of every cell over the steps; features are means a checkpoint, so t."""
    return [
        FeatureCurve(
            judge=judge,
            mitigation=mitigation,
            feature=feature,
            points=list(_points(arms, feature)),
            change=over_seeds(
                [moved for arm in arms if (moved := _moved(arm, feature)) is not None]
            ),
        )
        for (judge, mitigation), arms in result.cells()
        for feature in features_of(result)
    ]


def _moved(arm: ArmResult, feature: str) -> float | None:
    both = ends(arm)
    if both is None:
        return None
    first, last = (point.features.get(feature) for point in both)
    if first is None or last is None or not math.isfinite(last - first):
        return None
    return last - first


def _points(arms: Sequence[ArmResult], feature: str) -> Iterator[FeaturePoint]:
    steps = sorted({point.step for arm in arms for point in arm.points})
    for step in steps:
        here = [
            point
            for arm in arms
            for point in arm.points
            if point.step == step and math.isfinite(point.features.get(feature, math.nan))
        ]
        if here:
            yield FeaturePoint(
                step=step,
                distance=math.fsum(point.distance for point in here) / len(here),
                seeds=len(here),
                mean=over_seeds([point.features[feature] for point in here]),
            )
