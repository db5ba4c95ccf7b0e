"""Two runs compared, for people: one sentence first, tables for page and terminal, the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.config import format_setting
from adjudge.judge_evaluation.diff.numbers import sample_numbers, worst_changes
from adjudge.judge_evaluation.diff.pairing import PairedRuns
from adjudge.report.page import (
    Element,
    Section,
    Tile,
    bold,
    format_integer,
    format_number,
    format_percent,
    notes_section,
    paragraph,
    quote,
    render_page,
    small,
)
from adjudge.report.table import Column, Table, estimate_cells, lost, numeric
from adjudge.runs.records import RunRecord
from adjudge.runs.report.tables import noise_section, noise_table

PAGE_SAMPLES = 50
"""Samples that changed most, on a page."""
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
    parts = [_advantage_part(summary)]
    parts += [_truth_part(_TRUTHS[source], one) for source, one in summary["truth"].items()]
    missing = summary["missing"]
    if missing["only_a"] or missing["only_b"]:
        a, b = (_percent(missing[one]) for one in ("a", "b"))
        parts.append(f"{b} of its rewards are missing, {a} of A's")
    said = "; ".join(filter(None, parts)) + "."
    if summary["same_spec"]:
        said += " A and B have the same spec: the difference is the judge's own noise."
    return said


def _advantage_part(summary: Mapping[str, Any]) -> str:
    flips, reward = summary["advantages"]["sign_flips"], summary["reward"]
    if flips["value"] is None:
        if (change := reward["change"])["value"] is None:
            return "No sample has a reward in both runs"
        return f"B's rewards are {_signed(change['value'])} on average{_bracket(change)}"
    if not flips["value"]:
        changed = f"{reward['changed']:,} of {reward['common']:,}"
        return f"B turns no advantage, and changes {changed} rewards"
    return f"B turns {_percent(flips['value'])} of advantages{_bracket(flips, share=True)}"


def _truth_part(name: str, whole: Mapping[str, Any]) -> str:
    """Whether B agrees more or less with what is right; empty where that cannot be said."""
    inside = whole["within"]["pairs"] > 0
    one = whole["within" if inside else "pooled"]
    change = one["change"]
    value, low, high = (change[key] for key in ("value", "low", "high"))
    if value is None:
        return ""
    if not value:
        said = f"it agrees with {name} as A does"
    elif low is not None and (low > 0 or high < 0):
        said = f"it agrees with {name} {'more' if value > 0 else 'less'}"
    else:
        said = f"whether it agrees with {name} more or less is not shown"
    b, a = (format_number(one[side]["value"], 2) for side in ("b", "a"))
    ends = "" if low is None else f", {_signed(low)} to {_signed(high)}"
    place = (
        "" if inside else "; over all pairs: inside groups no two samples have different outcomes"
    )
    return f"{said} ({b} against {a}, difference {_signed(value)}{ends}{place})"


def _percent(share: float | None) -> str:
    """In the terminal, too, where a narrow space is none."""
    return "–" if share is None else format_percent(share).replace("\u202f", " ")


def _signed(value: float) -> str:
    digits = 2 if abs(value) >= 0.01 else 4
    return f"{value:+.{digits}f}".replace("-", "−") if value else "0"


def _bracket(found: Mapping[str, Any], *, share: bool = False) -> str:
    if found["low"] is None:
        return ""
    low, high = map(_percent if share else _signed, (found["low"], found["high"]))
    return f" ({low} to {high})"


# --- tables -------------------------------------------------------------------------------------


def diff_tables(summary: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of page and terminal by the key of their section; those without rows are false."""
    return {
        "settings": Table(
            ["what differs in the specs", Column("A", "w"), Column("B", "w")],
            [
                [one["key"], format_setting(one["a"]), format_setting(one["b"])]
                for one in summary["settings"] or []
            ],
            keep=("A", "B"),
        ),
        "rewards": _score_change_table(summary),
        "advantages": advantage_table(summary),
        "truth": _truth_table(summary),
        "noise": noise_table(summary["noise"]) if summary["noise"] else Table([], []),
        "missing": missing_table(summary),
        "costs": _cost_table(summary),
    }


def _score_change_table(summary: Mapping[str, Any]) -> Table:
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
    value, ends = estimate_cells(change)
    plus = "+" if change["value"] and change["value"] > 0 else ""
    return [format_number(a), format_number(b), plus + value, ends]


def _change_table(heading: str, rows: list[list[object]], last: Column) -> Table:
    """Rows of a name, of :func:`_compared`, and of a ``last`` column that may be left out."""
    columns = [heading, *numeric("A", "B", "B − A"), Column("95 %", "i"), last]
    return Table(columns, rows, keep=("B − A", "A", "B"), drop=(str(last.heading),))


def advantage_table(summary: Mapping[str, Any]) -> Table:
    """What the change is to a group-relative trainer."""
    found = summary["advantages"]
    rows = []
    for key, (name, about) in _ADVANTAGES.items():
        value, ends = estimate_cells(one := found[key])
        if key in _SHARES:
            value = _percent(one["value"])
            ends = _bracket(one, share=True).strip(" ()") or one["why"]
        rows.append([[name, " ", small(about)], value, ends])
    return Table(["within groups", *numeric("value"), Column("95 %", "i")], rows)


def _truth_table(summary: Mapping[str, Any]) -> Table:
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


def _cost_table(summary: Mapping[str, Any]) -> Table:
    """What both runs cost; what neither knows is left out."""
    rows = []
    for key, name in _COSTS.items():
        a, b = summary["a"][key], summary["b"][key]
        if a or b:
            digits = 4 if key == "cost_usd" else 1 if (a or 0) % 1 or (b or 0) % 1 else 0
            amounts = (format_number(one, digits) for one in (a, b))
            rows.append([name, *amounts, f"{b / a:.2f} ×" if a and b is not None else "–"])
    return Table(["spent", *numeric("A", "B", "B : A")], rows)


def changes_table(summary: Mapping[str, Any], most: int) -> Table:
    """The samples that changed most, in numbers."""
    rows: list[list[object]] = []
    for number, one in enumerate(summary["worst"][:most], 1):
        place = one["where"].rpartition("/")[2] or f"#{one['index_b']}"
        rewards = [
            format_number(one[f"reward_{side}"])
            if one[f"reward_{side}"] is not None
            else lost(one[f"missing_{side}"] or "missing")
            for side in ("a", "b")
        ]
        advantages = (format_number(one[f"advantage_{side}"], 2) for side in ("a", "b"))
        rows.append([[small(f"{number}. "), place], *rewards, *advantages])
    columns = ["changed most", *numeric("A", "B", "advantage A", "advantage B")]
    return Table(columns, rows, keep=("A", "B"))


# --- samples ------------------------------------------------------------------------------------


def describe_worst(runs: PairedRuns, most: int) -> list[dict[str, Any]]:
    """The samples that changed most, with their texts and the reasons of both judges.

    Texts are read from the rollouts of either run, and are ``None`` where both are gone.
    """
    chosen = worst_changes(runs, most)
    sides = [
        run.read_places({runs.rows[at][side] for at in chosen})
        for side, run in enumerate((runs.a, runs.b))
    ]
    advantages = runs.advantages()
    found = []
    for at in chosen:
        pair = runs.pairs[at]
        (a, own), (b, other) = (read[row] for read, row in zip(sides, runs.rows[at], strict=True))
        sample = own if own is not None else other
        found.append(
            {
                **sample_numbers(runs, at, *advantages.get(at, (None, None))),
                "missing_a": pair.a.kind,
                "missing_b": pair.b.kind,
                "prompt": sample and _clip(sample.prompt or "", _TEXT_CHARS),
                "response": sample and _clip(sample.response or "", _TEXT_CHARS),
                "messages": sample and len(sample.messages or ()),
                "graders": _reasons(a, b),
            }
        )
    return found


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
    rewards = " → ".join(
        f"missing ({one[f'missing_{side}']})"
        if one[f"reward_{side}"] is None
        else format_number(one[f"reward_{side}"])
        for side in ("a", "b")
    )
    said = f"{number}. reward {rewards}"
    if one["advantage_a"] is not None:
        a, b = (format_number(one[f"advantage_{side}"], 2) for side in ("a", "b"))
        said += f", advantage {a} → {b}"
    place = one["where"] or f"sample {one['index_b']}"
    reasons = [
        [line["grader"], *([bold(format_number(line[f"score_{side}"])), " ",
                            quote(line[f"reason_{side}"])] for side in ("a", "b"))]
        for line in one["graders"]
    ]  # fmt: skip
    texts: object = paragraph(small("The rollouts are gone: no text."))
    if one["response"] is not None:
        more = f", the last of {one['messages']} messages" if one["messages"] > 2 else ""
        named = (("prompt", one["prompt"]), (f"response{more}", one["response"]))
        rows = [[[small(name), quote(text)]] for name, text in named]
        texts = Table([""], rows, kind="said", row_heads=False)
    return Element(
        "details",
        Element("summary", bold(said), " ", small(f"{place} · group {one['group']}")),
        texts,
        Table(["grader", Column("A", "w"), Column("B", "w")], reasons, kind="said"),
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
    settings: object = tables["settings"] or "Nothing differs in the specs."
    if summary["settings"] is None:
        settings = "Not known: one of the two is no folder of `adjudge grade`."
    samples = summary["samples"]
    counts = (
        f"{samples['both']:,} in both, {samples['only_a']:,} only in A, {samples['only_b']:,} only "
        "in B"
    )
    judged = (
        (
            side.upper(),
            [part for part in (one["path"], one["spec"], ", ".join(one["models"])) if part],
        )
        for side in ("a", "b")
        for one in [summary[side]]
    )
    changes = [tables["rewards"], tables["advantages"]]
    not_shown = f"{left} more did not fit on the page." if left else ""
    return render_page(
        "A and B: the same rollouts, judged twice",
        [
            *judged,
            ("Samples", counts),
            ("Intervals", f"95 %, bootstrap by group (from 8 groups on), seed {summary['seed']}"),
        ],
        [
            Section("changes", "What changes", changes, "Changes"),
            Section("truth", "Who is right", [tables["truth"]], "Who is right"),
            noise_section(summary),
            Section("missing", "Missing rewards", [tables["missing"]], "Missing"),
            Section("costs", "What it cost", [tables["costs"]], "Cost"),
            Section("specs", "What differs in the specs", [settings], "Specs"),
            Section("samples", "Samples that changed most", [*blocks, not_shown], "Samples"),
            notes_section(__package__ or "", link="How to read it"),
        ],
        tiles=_tiles(summary),
        styles=[(__package__ or "", "diff.css")],
        above=[
            Element("h2", summary["verdict"], class_="verdict"),
            *(
                Element("p", bold(one["condition"]), f": {one['sentence']}", class_="banner")
                for one in summary["conditions"]
                if one["failed"]
            ),
        ],
    )  # fmt: skip


def _tiles(summary: Mapping[str, Any]) -> list[Tile]:
    found, missing = summary["advantages"], summary["missing"]
    turned, best = (_percent(found[name]["value"]) for name in _SHARES)
    *_, change, _ = _compared(None, None, summary["reward"]["change"])
    extra, count = missing["only_b"], format_integer(summary["samples"]["both"])
    return [
        Tile("Samples in both", count, f"{summary['groups']['count']:,} groups"),
        Tile("Advantages turned", turned, ""),
        Tile("Another best sample", best, "of groups"),
        Tile("Reward, B − A", change, ""),
        Tile("Missing only in B", format_integer(extra), f"only in A: {missing['only_a']:,}",
             extra > 0),
    ]  # fmt: skip
