"""An alignment as text: the rows of its tables, ``align.json``, and the page ``align.html``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.files import atomic_write, write_json
from adjudge.judge_evaluation.alignment.measures import Alignment, Disputed, TargetAlignment
from adjudge.judge_evaluation.labels import JoinedLabels
from adjudge.report.charts import signed_strip
from adjudge.report.page import (
    Section,
    Tile,
    bold,
    code,
    format_integer,
    format_number,
    format_range,
    notes_section,
    paragraph,
    render_page,
    small,
)
from adjudge.report.table import Column, Table, numeric
from adjudge.stats import Estimate
from adjudge.stats.agreement import describe_youden
from adjudge.text import shorten_text
from adjudge.version import describe_writer

_SHOWN_DISPUTES = 50
_MANY_SELECTED = (
    "{selected:,} of {labels:,} labels are of samples that were not drawn at random (proposed as a "
    "disagreement or a near tie, or chosen). They say where the judge errs, not how often: for the "
    "run, read the numbers of the {random:,} random ones."
)


def _list_measures(one: Alignment) -> Iterator[tuple[str, str, Estimate, Estimate | None]]:
    """The numbers of an alignment in the order in which they are read.

    Each with its name, what it is, and the same of people where that can be.
    """
    ceiling, kappas, alphas = one.ceiling, one.kappas, one.alphas
    yield "judge is right", "of the labels that say right or wrong", one.right, None
    yield "same score", "judge and person, of all opinions", one.accuracy, ceiling["accuracy"]
    both = len(one.levels) == 2
    for key in ("plain",) if both else ("plain", "quadratic"):
        name = "Cohen's κ" if both else f"Cohen's κ, {key}"
        yield name, "judge and person", kappas[key], ceiling[key]
    people = alphas["people"]
    yield "Krippendorff's α", "interval, people and judge", alphas["people and judge"], people
    passes = "right minus wrong passes; at 0 or below, training goes wrong"
    yield "Youden's J", passes, one.youden, None
    yield "τ-b in groups", "Kendall's, with the people's mean", one.tau_b, None
    yield "AUC", "the judge orders two samples as people do", one.auc, None
    yield "AUC in groups", "of two samples of one group", one.auc_within, None
    yield "preferred", "the judge scores the preferred one higher", one.preferences, None


def _cells(one: Estimate | None) -> tuple[str, str]:
    """A number and its interval, or why there is none; nothing for no estimate."""
    if one is None:
        return "", ""
    return format_number(one.value), format_range(one.low, one.high, one.why)


def describe_selection(found: Sequence[TargetAlignment], joined: JoinedLabels) -> str:
    """What the choice of samples means for the numbers; empty where all were drawn at random."""
    labels = [one.label for one in joined.joined if one.label.kind != "note"]
    random = sum(one.queue == "random" for one in labels)
    if not found or random == len(labels):
        return ""
    if not random:
        return (
            "No label says that its sample was drawn at random. Unless all were, the numbers hold "
            "for the labelled samples and not for the run."
        )
    return _MANY_SELECTED.format(selected=len(labels) - random, labels=len(labels), random=random)


def summarise_alignment(
    run: Path,
    files: Sequence[Path],
    joined: JoinedLabels,
    found: Sequence[TargetAlignment],
    failed: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything as plain data, for ``align.json`` and ``--json``."""
    return {
        **describe_writer(),
        "run": str(run),
        "labels": {
            "files": [str(one) for one in files],
            "rows": joined.rows,
            "current": len(joined.joined),
            "replaced": joined.replaced,
            "unknown_samples": joined.unknown,
            "authors": sorted({one.label.author for one in joined.joined}),
        },
        "selection": describe_selection(found, joined),
        "targets": [msgspec.to_builtins(one) for one in found],
        "failed": list(failed),
    }


def write_alignment(
    folder: Path, summary: Mapping[str, Any], found: Sequence[TargetAlignment]
) -> None:
    """Write ``align.json`` and ``align.html`` into ``folder``."""
    write_json(folder / "align.json", summary)
    labels, warning = summary["labels"], summary["selection"]
    page = render_page(
        "The judge against people",
        [
            ("Run", summary["run"]),
            ("Labels", [str(one) for one in labels["files"]]),
            ("People", ", ".join(labels["authors"])),
            ("Intervals", "95 %, by group"),
            ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
        ],
        [
            *(
                Section(f"target-{at}", one.target, _target(one), one.target)
                for at, one in enumerate(found)
            ),
            notes_section(__package__ or "", link="How to read it"),
        ],
        tiles=[*_tiles(summary, found)],
        above=[paragraph(warning, class_="banner")] if warning else [],
    )
    atomic_write(folder / "align.html", page.encode())


# --- the page -----------------------------------------------------------------------------------


def _tiles(summary: Mapping[str, Any], found: Sequence[TargetAlignment]) -> Iterator[Tile]:
    labels = summary["labels"]
    unknown = len(labels["unknown_samples"])
    yield Tile("Labels", format_integer(labels["current"]), f"{labels['rows']:,} rows")
    yield Tile("People", format_integer(len(labels["authors"])), "")
    yield Tile("Not in this run", format_integer(unknown), "labels of other samples", unknown > 0)
    for one in found[:3]:
        number, interval = _cells((one.random or one.whole).kappa)
        of = "random samples" if one.random else "all labels"
        yield Tile(f"κ of {one.target}", number, f"{interval}; {of}")


def _target(one: TargetAlignment) -> Iterator[object]:
    whole = one.whole
    yield describe_counts(whole)
    if warning := describe_youden(one.target, (one.random or whole).youden):
        yield paragraph(bold(warning), ".")
    if one.random is not None:
        yield measure_table(one.random, "Samples drawn at random: what holds for the run")
    caption = "All labels" if one.random is not None else None
    yield measure_table(whole, caption)
    if whole.confusion:
        names = [f"{level:g}" for level in whole.levels]
        rows = [[name, *counts] for name, counts in zip(names, whole.confusion, strict=True)]
        yield Table(["people ↓ judge →", *numeric(*names)], rows, caption="How often each pair")
    yield dispute_table(one.worst, _SHOWN_DISPUTES)


def describe_counts(one: Alignment) -> str:
    """What the numbers are of, and what could not be used."""
    people = "person" if one.people == 1 else "people"
    of = f"{one.samples:,} samples in {one.groups:,} groups by {one.people:,} {people}"
    parts = [f"{one.labels:,} labels of {of}"]
    if one.judge_missing:
        parts.append(f"{one.judge_missing:,} of them where the judge gave nothing")
    if one.outdated:
        parts.append(f"{one.outdated:,} say right or wrong of a score that the judge gives no more")
    return "; ".join(parts) + "."


def measure_table(one: Alignment, caption: str | None) -> Table:
    """The numbers that there are labels for, of the judge or of people."""
    rows = []
    for name, about, found, ceiling in _list_measures(one):
        if not (found.n or (ceiling is not None and ceiling.n)):
            continue
        number, interval = _cells(found)
        people, people_interval = _cells(ceiling)
        strip = signed_strip(found, f"{name}: {number}, {interval}")
        n = f"{found.n if isinstance(found.n, int) else 0:,}"
        rows.append(
            [name, number, small(interval), strip or "", n, people, small(people_interval), about]
        )
    columns = [
        Column("number", wrap=False),
        *numeric("judge"),
        Column("95 %", "w"),
        Column("from −1 to 1", "plot"),
        *numeric("n", "people"),
        Column("95 % ", "w"),
        Column("what it is", "w"),
    ]
    return Table(columns, rows, caption=caption, keep=("judge", "people"), drop=("what it is",))


def dispute_table(worst: Sequence[Disputed], most: int) -> Table:
    """The samples on which judge and people differ most."""
    rows = []
    for one in worst[:most]:
        step = "" if one.step is None else f"step {one.step}, "
        place = small(" ", one.where, " ", code(one.link))
        rows.append(
            [
                [f"{step}sample {one.index}", place],
                format_number(one.judge),
                ", ".join(f"{name}: {said}" for name, said in one.people.items()),
                shorten_text(one.group, 60),
                "; ".join(shorten_text(note, 200) for note in one.notes),
            ]
        )
    columns = ["sample", *numeric("judge"), Column("people", "w"), Column("group", "w"),
               Column("notes", "w")]  # fmt: skip
    shown = f"{len(rows):,} of {len(worst):,}"
    about = small(" add the end of the address to that of ", code("adjudge view"))
    return Table(
        columns,
        rows,
        caption=[f"worst disagreements ({shown})", about],
        keep=("judge", "people"),
        drop=("notes", "group"),
    )
