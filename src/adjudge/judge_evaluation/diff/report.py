"""Two runs compared, for people: one sentence first, tables for page and terminal, the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.config import format_setting
from adjudge.judge_evaluation.diff.numbers import sample_numbers, worst_changes
from adjudge.judge_evaluation.diff.pairing import PairedRuns
from adjudge.report.elements import (
    Element,
    bold,
    format_integer,
    format_number,
    format_percent,
    format_range,
    paragraph,
    quote,
    small,
)
from adjudge.report.page import Section, Tile, notes_section, render_page
from adjudge.report.table import Column, Table, lost, numeric
from adjudge.runs.records import RunRecord
from adjudge.runs.report.tables import NOISE_NOTE, noise_table
from adjudge.types import Sample

_TEXT_CHARS, _REASON_CHARS = 3_000, 1_500
_MAX_GRADERS = 12
"""Graders of a sample whose reasons are shown; the first differ most."""
_MAX_PAGE_BYTES = 4_500_000
"""Of samples; the rest of a page is small."""

_ADVANTAGES: Mapping[str, tuple[str, str]] = {
    "sign_flips": ("advantages that turn their sign", "share of samples"),
    "best_changes": ("another best sample", "share of groups: no sample is best in both"),
    "within_kendall": ("τ-b within groups", "Kendall's, pooled"),
    "advantage_pearson": ("r of the advantages", "Pearson's"),
}
_SHARES = ("sign_flips", "best_changes")
_TRUTHS = {"environment": "the environment's reward", "labels": "people's labels"}
_COSTS = {"cost_usd": "cost, USD", "calls": "judge calls", "tokens": "tokens", "seconds": "seconds"}


# --- the sentence ------------------------------------------------------------------------------


def write_verdict(summary: Mapping[str, Any]) -> str:
    """What came out, in one sentence or two."""
    count = summary["samples"]["both"]
    if summary["identical"]:
        same = "the same reward, or the same failure, and the same scores"
        differ = ", though the specs differ" if summary["settings"] else ""
        return f"No difference: A and B give {same} to all {count:,} samples{differ}."
    parts = [_advantage_part(summary), *_truth_parts(summary), _missing_part(summary)]
    said = "; ".join(part for part in parts if part) + "."
    if summary["same_spec"]:
        said += " A and B have the same spec: the difference is the judge's own noise."
    return said


def _advantage_part(summary: Mapping[str, Any]) -> str:
    found = summary["advantages"]
    flips = found["sign_flips"]
    if flips["value"] is None:
        change = summary["reward"]["change"]
        if change["value"] is None:
            return "No sample has a reward in both runs"
        return f"B's rewards are {_signed(change['value'])} on average{_bracket(change)}"
    if not flips["value"]:
        moved = summary["reward"]["changed"]
        return (
            f"B turns no advantage, and changes {moved:,} of {summary['reward']['common']:,} "
            "rewards"
        )
    return f"B turns {_percent(flips['value'])} of advantages{_bracket(flips, share=True)}"


def _truth_parts(summary: Mapping[str, Any]) -> list[str]:
    found = []
    for source, whole in summary["truth"].items():
        inside = whole["within"]["pairs"] > 0
        one = whole["within" if inside else "pooled"]
        change = one["change"]
        if change["value"] is None:
            continue
        numbers = (
            f"{format_number(one['b']['value'], 2)} against {format_number(one['a']['value'], 2)}, "
            f"difference {_signed(change['value'])}"
        )
        if change["low"] is not None:
            numbers += f", {_signed(change['low'])} to {_signed(change['high'])}"
        if not change["value"]:
            said = f"it agrees with {_TRUTHS[source]} as A does"
        elif change["low"] is not None and (change["low"] > 0 or change["high"] < 0):
            more = "more" if change["value"] > 0 else "less"
            said = f"it agrees with {_TRUTHS[source]} {more}"
        else:
            said = f"whether it agrees with {_TRUTHS[source]} more or less is not shown"
        if not inside:
            numbers += "; over all pairs: inside groups no two samples have different outcomes"
        found.append(f"{said} ({numbers})")
    return found


def _missing_part(summary: Mapping[str, Any]) -> str:
    missing = summary["missing"]
    if not (missing["only_a"] or missing["only_b"]):
        return ""
    a, b = (_percent(missing[one]) for one in ("a", "b"))
    return f"{b} of its rewards are missing, {a} of A's"


def _percent(share: float) -> str:
    """In the terminal, too, where a narrow space is none."""
    return format_percent(share).replace("\u202f", " ")


def _signed(value: float) -> str:
    digits = 2 if abs(value) >= 0.01 else 4
    return f"{value:+.{digits}f}".replace("-", "−") if value else "0"


def _bracket(found: Mapping[str, Any], *, share: bool = False) -> str:
    if found["low"] is None:
        return ""
    ends = [found["low"], found["high"]]
    low, high = map(_percent, ends) if share else map(_signed, ends)
    return f" ({low} to {high})"


# --- tables -------------------------------------------------------------------------------------


def diff_tables(summary: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of page and terminal by the key of their section; those without rows are false."""
    return {
        "settings": settings_table(summary),
        "rewards": score_change_table(summary),
        "advantages": advantage_table(summary),
        "truth": truth_table(summary),
        "noise": noise_table(summary["noise"]) if summary["noise"] else Table([], []),
        "missing": missing_table(summary),
        "costs": cost_table(summary),
    }


def settings_table(summary: Mapping[str, Any]) -> Table:
    """The settings of the specs that differ."""
    rows = [
        [one["key"], format_setting(one["a"]), format_setting(one["b"])]
        for one in summary["settings"] or []
    ]
    return Table(
        ["what differs in the specs", Column("A", "w"), Column("B", "w")], rows, keep=("A", "B")
    )


def score_change_table(summary: Mapping[str, Any]) -> Table:
    """Means of the reward and of each grader, paired."""
    rows: list[list[object]] = []
    for name, one in [(bold("reward"), summary["reward"]), *summary["graders"].items()]:
        if "only" in one:
            rows.append([name, small(f"only in {one['only'].upper()}"), *[""] * 4])
        else:
            sides, changed = (one["mean_a"], one["mean_b"]), f"{one['changed']:,} of"
            rows.append([name, *_compared(*sides, one["change"]), f"{changed} {one['common']:,}"])
    return _change_table("mean over what both scored", rows, *numeric("changed"))


def _compared(a: float | None, b: float | None, change: Mapping[str, Any]) -> list[str]:
    """What both runs have, and the difference with its interval."""
    return [format_number(a), format_number(b), _change_number(change), _ends(change)]


def _change_table(heading: str, rows: list[list[object]], last: Column) -> Table:
    """Rows of a name, of :func:`_compared`, and of a ``last`` column that may be left out."""
    columns = [heading, *numeric("A", "B", "B − A"), Column("95 %", "i"), last]
    return Table(columns, rows, keep=("B − A", "A", "B"), drop=(str(last.heading),))


def _change_number(change: Mapping[str, Any]) -> str:
    value = change["value"]
    return f"{'+' if value and value > 0 else ''}{format_number(value)}"


def _ends(found: Mapping[str, Any]) -> str:
    return format_range(found["low"], found["high"], found["why"])


def advantage_table(summary: Mapping[str, Any]) -> Table:
    """What the change is to a group-relative trainer."""
    found = summary["advantages"]
    rows = []
    for key, (name, about) in _ADVANTAGES.items():
        one = found[key]
        if key in _SHARES:
            value = "–" if one["value"] is None else _percent(one["value"])
            none = one["low"] is None
            ends = one["why"] if none else _bracket(one, share=True).strip(" ()")
        else:
            value, ends = format_number(one["value"]), _ends(one)
        rows.append([[name, " ", small(about)], value, ends])
    return Table(["within groups", *numeric("value"), Column("95 %", "i")], rows)


def truth_table(summary: Mapping[str, Any]) -> Table:
    """Who orders two samples as the environment, or people, do."""
    rows: list[list[object]] = []
    for source, whole in summary["truth"].items():
        for key, pairs in (("within", "within groups"), ("pooled", "all pairs")):
            one = whole[key]
            if one["pairs"]:
                cells = _compared(one["a"]["value"], one["b"]["value"], one["change"])
                rows.append([[_TRUTHS[source], " ", small(pairs)], *cells, f"{one['pairs']:,}"])
    return _change_table("agreement with", rows, Column("pairs", "i"))


def missing_table(summary: Mapping[str, Any]) -> Table:
    """Missing rewards by kind, and of how many samples in one run alone."""
    missing = summary["missing"]
    kinds = dict.fromkeys([*missing["kinds_a"], *missing["kinds_b"]])
    if not kinds and not summary["missing"]["both"]:
        return Table([], [])
    rows: list[list[object]] = [
        [kind, *(_count(missing[side].get(kind, 0)) for side in ("kinds_a", "kinds_b"))]
        for kind in kinds
    ]
    rows.append(["in this run alone", _count(missing["only_a"]), _count(missing["only_b"])])
    rows.append(["in both", *2 * [_count(missing["both"])]])
    return Table(["missing rewards", *numeric("A", "B")], rows)


def _count(count: int) -> object:
    return lost(f"{count:,}") if count else "0"


def cost_table(summary: Mapping[str, Any]) -> Table:
    """What both runs cost; what neither knows is left out."""
    rows = []
    for key, name in _COSTS.items():
        a, b = summary["a"][key], summary["b"][key]
        if a or b:
            times = f"{b / a:.2f} ×" if a and b is not None else "–"
            rows.append([name, _amount(key, a), _amount(key, b), times])
    return Table(["spent", *numeric("A", "B", "B : A")], rows)


def _amount(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    if key == "cost_usd":
        return f"{value:.4f}"
    return format_number(value, 1) if value % 1 else format_integer(value)


def changes_table(summary: Mapping[str, Any], most: int) -> Table:
    """The samples that changed most, in numbers."""
    rows = [
        [
            [small(f"{number}. "), one["where"].rpartition("/")[2] or f"#{one['index_b']}"],
            *(_reward_cell(one, side) for side in ("a", "b")),
            *(format_number(one[f"advantage_{side}"], 2) for side in ("a", "b")),
        ]
        for number, one in enumerate(summary["worst"][:most], 1)
    ]
    columns = ["changed most", *numeric("A", "B", "advantage A", "advantage B")]
    return Table(columns, rows, keep=("A", "B"))


def _reward_cell(one: Mapping[str, Any], side: str) -> object:
    reward = one[f"reward_{side}"]
    return lost(one[f"missing_{side}"] or "missing") if reward is None else format_number(reward)


# --- samples ------------------------------------------------------------------------------------


def describe_worst(runs: PairedRuns, most: int) -> list[dict[str, Any]]:
    """The samples that changed most, with their texts and the reasons of both judges.

    Texts are read from the rollouts of either run, and are ``None`` where both are gone.
    """
    chosen = worst_changes(runs, most)
    sides = [
        run.read_places({runs.pairs[at][side].place for at in chosen})
        for side, run in enumerate((runs.a, runs.b))
    ]
    advantages = runs.advantages()
    found = []
    for at in chosen:
        (a, sample), (b, other) = (
            read[row.place] for read, row in zip(sides, runs.pairs[at], strict=True)
        )
        found.append(
            {
                **sample_numbers(runs, at, *advantages.get(at, (None, None))),
                "missing_a": runs.pairs[at].a.kind,
                "missing_b": runs.pairs[at].b.kind,
                **_texts(sample if sample is not None else other),
                "graders": _reasons(a, b),
            }
        )
    return found


def _texts(sample: Sample | None) -> dict[str, Any]:
    if sample is None:
        return {"prompt": None, "response": None, "messages": None}
    return {
        "prompt": _clip(sample.prompt or "", _TEXT_CHARS),
        "response": _clip(sample.response or "", _TEXT_CHARS),
        "messages": len(sample.messages or ()),
    }


def _reasons(a: RunRecord, b: RunRecord) -> list[dict[str, Any]]:
    """What each grader of either run said, those that differ first."""
    found = []
    for name in dict.fromkeys([*b.scores, *a.scores]):
        one: dict[str, Any] = {"grader": name}
        for side, record in (("a", a), ("b", b)):
            detail = (record.details or {}).get(name)
            detail = detail if isinstance(detail, Mapping) else {}
            kind = detail.get("kind")
            said = detail.get("reason") or detail.get("error") or ""
            one[f"score_{side}"] = record.scores.get(name)
            one[f"reason_{side}"] = _clip(f"{kind}: {said}" if kind else str(said), _REASON_CHARS)
        found.append(one)
    found.sort(key=lambda one: one["score_a"] == one["score_b"])
    return found[:_MAX_GRADERS]


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def _sample_block(number: int, one: Mapping[str, Any]) -> Element:
    rewards = [
        f"missing ({one[f'missing_{side}']})"
        if one[f"reward_{side}"] is None
        else format_number(one[f"reward_{side}"])
        for side in ("a", "b")
    ]
    said = f"reward {rewards[0]} → {rewards[1]}"
    if one["advantage_a"] is not None:
        a, b = (format_number(one[f"advantage_{side}"], 2) for side in ("a", "b"))
        said += f", advantage {a} → {b}"
    place = one["where"] or f"sample {one['index_b']}"
    rows = [
        [
            line["grader"],
            *(
                [bold(format_number(line[f"score_{side}"])), " ", quote(line[f"reason_{side}"])]
                for side in ("a", "b")
            ),
        ]
        for line in one["graders"]
    ]
    if one["response"] is None:
        texts: list[object] = [paragraph(small("The rollouts are gone: no text."))]
    else:
        more = f", the last of {one['messages']} messages" if one["messages"] > 2 else ""
        said_by = (("prompt", one["prompt"]), (f"response{more}", one["response"]))
        rows_of_texts = [[[small(name), quote(text)]] for name, text in said_by]
        texts = [Table([""], rows_of_texts, kind="said", row_heads=False)]
    return Element(
        "details",
        Element(
            "summary", bold(f"{number}. {said}"), " ", small(f"{place} · group {one['group']}")
        ),
        *texts,
        Table(["grader", Column("A", "w"), Column("B", "w")], rows, kind="said"),
        open="open" if number <= 3 else "",
        id=f"sample-{number}",
    )


# --- the page -----------------------------------------------------------------------------------


def render_diff_page(summary: Mapping[str, Any]) -> str:
    """The whole page of a comparison, at most 5 MB."""
    tables = diff_tables(summary)
    blocks, size = [], 0
    for number, one in enumerate(summary["worst"], 1):
        block = _sample_block(number, one)
        size += len(str(block).encode())
        if size > _MAX_PAGE_BYTES:
            break
        blocks.append(block)
    left = len(summary["worst"]) - len(blocks)
    settings: list[object] = [tables["settings"]]
    if summary["settings"] is None:
        settings = [
            (
                "One of the two is no folder of `adjudge grade`: what differs in the specs is not "
                "known."
            )
        ]
    elif not summary["settings"]:
        settings = ["Nothing differs in the specs."]
    return render_page(
        "A and B: the same rollouts, judged twice",
        _facts(summary),
        [
            Section(
                "changes",
                "What changes",
                [tables[one] for one in ("rewards", "advantages")],
                "Changes",
            ),
            Section("truth", "Who is right", [tables["truth"]], "Who is right"),
            Section("noise", "Signal and noise", _noise_part(tables["noise"]), "Noise"),
            Section("missing", "Missing rewards", [tables["missing"]], "Missing"),
            Section("costs", "What it cost", [tables["costs"]], "Cost"),
            Section("specs", "What differs in the specs", settings, "Specs"),
            Section(
                "samples",
                "Samples that changed most",
                [*blocks, f"{left} more did not fit on the page." if left else ""],
                "Samples",
            ),
            notes_section(__package__ or "", link="How to read it"),
        ],
        tiles=_tiles(summary),
        styles=[(__package__ or "", "diff.css")],
        above=[Element("h2", summary["verdict"], class_="verdict"), *_condition_lines(summary)],
    )


def _noise_part(table: Table) -> list[object]:
    return [table, paragraph(small(NOISE_NOTE))] if table else []


def _condition_lines(summary: Mapping[str, Any]) -> list[Element]:
    return [
        Element("p", bold(one["condition"]), f": {one['sentence']}", class_="banner")
        for one in summary["conditions"]
        if one["failed"]
    ]


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str | Sequence[str]]]:
    samples = summary["samples"]
    return [
        *((side.upper(), _describe(summary[side])) for side in ("a", "b")),
        (
            "Samples",
            (
                f"{samples['both']:,} in both, {samples['only_a']:,} only in A, "
                f"{samples['only_b']:,} only in B"
            ),
        ),
        ("Intervals", f"95 %, bootstrap by group (from 8 groups on), seed {summary['seed']}"),
    ]


def _describe(side: Mapping[str, Any]) -> list[str]:
    return [one for one in (side["path"], side["spec"] or "", ", ".join(side["models"])) if one]


def _tiles(summary: Mapping[str, Any]) -> list[Tile]:
    found, missing = summary["advantages"], summary["missing"]
    turned, best = (found[name]["value"] for name in _SHARES)
    extra = missing["only_b"]
    return [
        Tile(
            "Samples in both",
            format_integer(summary["samples"]["both"]),
            f"{summary['groups']['count']:,} groups",
        ),
        Tile("Advantages turned", "–" if turned is None else _percent(turned), ""),
        Tile("Another best sample", "–" if best is None else _percent(best), "of groups"),
        Tile("Reward, B − A", _change_number(summary["reward"]["change"]), ""),
        Tile(
            "Missing only in B",
            format_integer(extra),
            f"only in A: {missing['only_a']:,}",
            extra > 0,
        ),
    ]
