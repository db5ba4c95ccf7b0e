"""A study as one HTML file: no script, no network.

Everything that is not ours (labels, names of judges and plans, reasons of failures) is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adjudge.runs.report.charts import esc, integer, number
from adjudge.runs.report.frame import Section, Tile, framed, tiles
from adjudge.studies.matrix import sections
from adjudge.studies.matrix.answers import answer, question_text
from adjudge.studies.matrix.cells import CellView, cells_of, title_of
from adjudge.studies.matrix.curves import best_of_drawings, drift_drawings, kl_drawings
from adjudge.studies.matrix.drawing import Drawing, in_page, svg_file
from adjudge.studies.matrix.figures import plan_drawings, study_svg
from adjudge.studies.matrix.limits import limits, pilot_note
from adjudge.studies.matrix.results import StudyResult

__all__ = ["study_page", "write_figures", "write_study_report"]

Found = Mapping[str, Any]
Cells = Mapping[tuple[str, str], CellView]

_MOST_DRAWN = 48

_OF_CURVES = (
    "Gold solid, proxy dashed: what the policy was trained on. Both are gains from the first "
    "policy, in SDs of its answers; the mean over seeds at each checkpoint, and a ring a seed. "
    "Thin: the form of Gao et al. (2022) that fits better. A dotted line: its peak, where that was "
    "seen."
)
_OF_BEST = (
    "The best of n answers of the first policy by each judge, with the exact expectation over all "
    "subsets; no training."
)
_OF_TRANSFER = (
    "Gains in SDs of the first policy's answers, with 95 % intervals. Bold: by the judge that was "
    "trained on. Own less others, and less gold: the gain that only the own judge sees."
)
_OF_DRIFT = (
    "Change of a feature of the answers from the first policy to the end, regressed on the judges' "
    "dials, judges without mitigation; a coefficient is the change a unit of the dial."
)
_OF_FITS = "bon: d(α − β·d). rl: d(α − β·log d). d is √KL."
_OF_ACCOUNTS = (
    "A reward that is missing is no number and is left out of the update; nothing is renormalised."
)


def write_figures(folder: Path, summary: Found, result: StudyResult) -> None:
    """Write the page's figures as SVG files: one a plan, ``over-kl.svg`` and ``best-of-n.svg``."""
    over = kl_drawings(result, cells_of(summary), summary["units"])[:_MOST_DRAWN]
    best = best_of_drawings(summary["best_of"])[:_MOST_DRAWN]
    files = study_svg(summary)
    if over:
        files[_free("over-kl", files)] = svg_file("Proxy and gold over √KL", over)
    if best:
        files[_free("best-of-n", files)] = svg_file("Best of n", best)
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")


def _free(name: str, taken: Iterable[str]) -> str:
    """``name``, or one like it where a plan is called so."""
    lower = {one.lower() for one in taken}
    while name in lower:
        name = f"all-{name}"
    return name


def write_study_report(path: Path, summary: Found, result: StudyResult) -> None:
    """Write ``report.html`` to ``path``, UTF-8.

    ``summary``: what :func:`~adjudge.studies.matrix.analysis.analyse` found, each of its ``plans``
    with its ``title`` and ``note``; and ``label``, ``pilot``, ``seeds``, ``tiny`` (whether the
    policy is a toy), ``manifest``, ``warnings`` and ``seconds``, as far as they are known.
    """
    path.write_bytes(study_page(summary, result).encode("utf-8", "replace"))


def study_page(summary: Found, result: StudyResult) -> str:
    """The whole page."""
    cells = cells_of(summary)
    stamp = pilot_note(summary)
    return framed(
        summary.get("label") or "Study",
        _facts(summary),
        [_tiles(summary), *_sections(summary, result, cells)],
        styles=[(__package__ or "", "page.css"), (__package__ or "", "charts.css")],
        above=f'<p class="pilot" role="note">{esc(stamp)}</p>\n' if stamp else "",
    )


def _sections(summary: Found, result: StudyResult, cells: Cells) -> Iterable[Section]:
    follows = "".join(f"<li>{esc(text)}</li>" for text in limits(summary))
    curves = _drawn(_OF_CURVES, kl_drawings(result, cells, summary["units"]))
    best = _drawn(_OF_BEST, best_of_drawings(summary["best_of"]))
    transfer = _note(_OF_TRANSFER) + sections.transfer_table(summary["transfer"])
    drift = (
        _note(_OF_DRIFT)
        + sections.regression_tables(summary)
        + _drawn("", drift_drawings(summary["features"]))
    )
    accounting = _note(_OF_ACCOUNTS) + sections.accounting_table(summary["accounting"])
    arms = sections.arms_table(summary) + sections.failed_table(summary["failed"])
    plans = "".join(_plan(plan, cells, summary) for plan in summary["plans"])
    yield Section("answers", "What was asked, and what came out", _answers(summary), "Answers")
    yield Section(
        "limits", "What does not follow", f'<div class="limits"><ul>{follows}</ul></div>', "Limits"
    )
    yield Section("plans", "Plans", plans, "Plans")
    yield Section("curves", "Proxy and gold against √KL", curves, "Curves")
    yield Section("best", "Best of n", best)
    yield Section("fits", "Fits of the curves", _note(_OF_FITS) + sections.fit_table(summary))
    yield Section("transfer", "Transfer: trained on one judge, scored by all", transfer, "Transfer")
    yield Section("drift", "Drift", drift, "Drift")
    yield Section("accounting", "Failures and cost", accounting, "Failures and cost")
    yield Section("arms", "Arms", arms, "Arms")
    yield Section("manifest", "Manifest", sections.manifest_block(summary.get("manifest")))


def _facts(summary: Found) -> list[tuple[str, str]]:
    settings = summary["settings"]
    resampled = "prompts" if len(settings["seeds"]) == 1 else "seeds and prompts"
    held_out = [name for name, one in summary["judges"].items() if one.get("role") == "held_out"]
    return [
        ("Gold", summary["gold"]),
        ("Held-out judges", ", ".join(held_out) or "–"),
        ("Seeds", ", ".join(map(str, settings["seeds"])) or "–"),
        ("Intervals", f"95 %, {resampled} resampled {settings['draws']:,} times"),
        ("When", " · ".join(_when(summary)) or "–"),
    ]


def _when(summary: Found) -> Iterable[str]:
    if summary.get("created"):
        yield str(summary["created"])
    if summary.get("adjudge"):
        yield f"adjudge {summary['adjudge']}"


def _tiles(summary: Found) -> str:
    total, failed = summary["accounting"]["total"], len(summary["failed"])
    missing = total["rewards"]["missing"]
    judges = [name for name in summary["judges"] if name != summary["gold"]]
    seconds = summary.get("seconds")
    whole = seconds.get("total") if isinstance(seconds, Mapping) else seconds
    cost = "–" if total["cost_usd"] is None else f"{total['cost_usd']:.4f}"
    found = (
        Tile("Arms", integer(len(summary["arms"])), f"of {len(summary['cells'])} cells"),
        Tile("Failed", integer(failed), "arms, left out" if failed else "none", failed > 0),
        Tile("Judges", integer(len(judges)), "score every checkpoint"),
        Tile("No reward", integer(missing), f"of {total['rewards']['asked']:,}", missing > 0),
        Tile("USD", cost, "" if total["calls"] else "no call was made"),
        Tile("Minutes", "–" if whole is None else number(whole / 60, 1), ""),
    )
    return tiles(found)


def _answers(summary: Found) -> str:
    lines = "".join(
        f"<dt>{esc(title_of(plan))}</dt><dd>{esc(question_text(plan))} "
        f"<b>{esc(answer(plan, summary))}</b></dd>"
        for plan in summary["plans"]
    )
    warnings = "".join(f"<li>{esc(text)}</li>" for text in summary.get("warnings") or [])
    listed = f'<ul class="warnings">{warnings}</ul>' if warnings else ""
    return f'<dl class="answers">{lines}</dl>{listed}'


def _plan(plan: Found, cells: Cells, summary: Found) -> str:
    return (
        f"<h3>{esc(title_of(plan))}</h3>{_note(plan.get('note') or '')}"
        f"{_drawn('', plan_drawings(plan, summary))}"
        f"{sections.plan_table(plan, cells, summary)}{sections.comparison_table(plan)}"
    )


def _note(text: str) -> str:
    return f'<p class="note">{esc(text)}</p>' if text else ""


def _drawn(note: str, drawings: list[Drawing]) -> str:
    if not drawings:
        return _note(note) + "<p>– Nothing to draw: no checkpoint has the scores for it.</p>"
    left = len(drawings) - _MOST_DRAWN
    more = f"<p>{integer(left)} more are not drawn.</p>" if left > 0 else ""
    figures = "".join(map(in_page, drawings[:_MOST_DRAWN]))
    return f'{_note(note)}<div class="drawings">{figures}</div>{more}'
