"""A calibration in a report: probabilities against shares, before and after."""

from __future__ import annotations

import math

from adjudge.judge_training.scalar.calibration import Calibration
from adjudge.judge_training.scalar.reliability import Reliability
from adjudge.runs.report.charts import esc, integer, number

__all__ = ["calibration_html", "reliability_chart"]

_PLOT, _PAD, _FOOT = 180, 8, 18


def calibration_html(calibration: Calibration) -> str:
    """What a report's validation section says of a scalar judge's calibration."""
    rows = "".join(
        f"<tr><td>{name}</td><td>{number(one.error)}</td><td>{number(one.brier)}</td>"
        f"<td>{number(one.log_loss)}</td></tr>"
        for name, one in _measured(calibration)
    )
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("Probabilities", "Calibration error", "Brier score", "Log loss")
    )
    fitted = ""
    if calibration.temperature is not None:
        fitted = (
            f"<p>Temperature {number(calibration.temperature)}: &sigma;(difference / temperature) "
            "is the probability that the higher output is right.</p>"
        )
    missing = [
        f"<p>No {esc(name.replace('with_', 'measure of '))}: {esc(why)}.</p>"
        for name, why in calibration.missing.items()
    ]
    charts = "".join(reliability_chart(one, name) for name, one in _measured(calibration))
    return (
        f"<h3>Calibration</h3><p>{integer(calibration.pairs)} held-out pairs about "
        f"{integer(calibration.prompts)} prompts. What was fitted is measured by five folds, each "
        "by a fit to the other four. Charts: the share that was right, by the probability said; on "
        "the broken line both are equal, and a dot is larger for more pairs.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f'</div>{fitted}{"".join(missing)}<div class="columns">{charts}</div>'
    )


def reliability_chart(measured: Reliability, name: str) -> str:
    """The share that was right (0 to 1) over the probability said (0.5 to 1).

    On the broken line both are equal; a dot is a bin of pairs, larger for more of them.
    """
    most = max(one.pairs for one in measured.bins)
    dots = "".join(
        f'<circle class="dot within" cx="{_x(one.said)}" cy="{_y(one.right):.1f}" '
        f'r="{1.5 + 4.5 * math.sqrt(one.pairs / most):.1f}">'
        f"<title>said {number(one.said)}, right {number(one.right)}: {integer(one.pairs)} pairs"
        "</title></circle>"
        for one in measured.bins
    )
    grid = "".join(
        f'<line class="grid" x1="0" x2="100%" y1="{_y(t):.1f}" y2="{_y(t):.1f}"/>'
        f'<text x="0" y="{_y(t) - 3:.1f}">{t:g}</text>'
        for t in (0.0, 0.5, 1.0)
    )
    grid += "".join(
        f'<text x="{_x(t)}" y="{_PLOT + 2 * _PAD + 12}" text-anchor="middle">{t:g}</text>'
        for t in (0.5, 0.75, 1.0)
    )
    label = (
        f"{name}: share that is right by probability, calibration error {number(measured.error)}"
    )
    return (
        f"<figure><figcaption><b>{esc(name)}</b></figcaption>"
        f'<svg role="img" aria-label="{esc(label)}" width="100%" '
        f'height="{_PLOT + 2 * _PAD + _FOOT}">{grid}<line class="chance" x1="{_x(0.5)}" '
        f'y1="{_y(0.5):.1f}" x2="{_x(1.0)}" y2="{_y(1.0):.1f}"/>{dots}</svg></figure>'
    )


def _measured(calibration: Calibration) -> list[tuple[str, Reliability]]:
    found = (
        ("As they are", calibration.as_is),
        ("By temperature", calibration.with_temperature),
        ("Isotonic", calibration.with_isotonic),
    )
    return [(name, one) for name, one in found if one is not None]


def _x(probability: float) -> str:
    return f"{10 + 84 * (probability - 0.5) * 2:.2f}%"


def _y(share: float) -> float:
    return _PAD + _PLOT * (1 - share)
