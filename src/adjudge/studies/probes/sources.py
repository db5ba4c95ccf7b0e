"""Probes about where an answer comes from: its language, the reference, the model that wrote it."""

from __future__ import annotations

import math
from statistics import fmean

from adjudge.studies.probes.bench import Bench
from adjudge.studies.probes.intervals import Row
from adjudge.studies.probes.items import Item
from adjudge.studies.probes.orders import difference_of_shares
from adjudge.studies.probes.probe import (
    OF_SCORES,
    SIGNED_SHARE,
    Measured,
    Probe,
    mean_shift,
    standard_shift,
)
from adjudge.studies.probes.wording import shift_unit

__all__ = ["SOURCES"]


def _language(bench: Bench) -> Measured:
    rows: list[Row] = []
    scores = bench.subject.kind == "scores"
    twins = [topic for topic in bench.topics if topic.twin is not None]
    for topic in twins:
        if topic.twin is None:
            continue
        sign = 1.0 if topic.twin.language == "zh" else -1.0
        if scores:
            here, there = bench.spread(topic.item), bench.spread(topic.twin)
            shift = _translated(bench, topic.item, topic.twin)
            if shift is not None:
                rows.append((sign * shift, 1.0, *(a + b for a, b in zip(here, there, strict=True))))
        else:
            sides = [_pull(bench, *pair) for pair in _pulls(topic.item, topic.twin)]
            if (first := sides[0]) is not None and (second := sides[1]) is not None:
                rows.append((sign * (second - first) / 2, 1.0))
    return Measured(
        shift_unit(bench),
        rows,
        standard_shift if scores else mean_shift,
        missing=len(twins) - len(rows),
        bounds=(-math.inf, math.inf) if scores else SIGNED_SHARE,
    )


def _translated(bench: Bench, here: Item, there: Item) -> float | None:
    """The mean change of score by translation, over the answers that both languages have."""
    pairs = [(here.right, there.right), (here.wrong, there.wrong)]
    if here.partial and there.partial:
        pairs.append((here.partial, there.partial))
    found = [(bench.score(here, one), bench.score(there, other)) for one, other in pairs]
    known = [other - one for one, other in found if one is not None and other is not None]
    return fmean(known) if len(known) == len(found) else None


def _pulls(here: Item, there: Item) -> list[tuple[Item, str]]:
    """Each language's item and the answer that its right one is set against: of the same worth."""
    both = bool(here.partial and there.partial)
    return [(item, item.partial if both else item.wrong) for item in (here, there)]


def _pull(bench: Bench, item: Item, other: str) -> float | None:
    """How firmly the right answer is preferred to another, in the item's language."""
    return bench.prefers(item, item.right, other)


def _untranslated(bench: Bench) -> str:
    twins = sum(topic.twin is not None for topic in bench.topics)
    return "" if twins > 1 else "needs topics in both languages (en and zh)"


def _reference(bench: Bench) -> Measured:
    rows: list[Row] = []
    pulled: list[float] = []
    for item in bench.items:
        own, other = bench.score(item, item.reference), bench.score(item, item.right)
        misled = bench.score(item, item.right, reference=item.wrong)
        spread = bench.spread(item)
        if own is not None and other is not None:
            rows.append((own - other, 1.0, *spread))
            if misled is not None:
                pulled.append(other - misled)
    parts = {"raw_drop_under_a_wrong_reference": fmean(pulled)} if pulled else {}
    missing = len(bench.items) - len(rows)
    return Measured(OF_SCORES, rows, standard_shift, missing=missing, parts=parts)


def _no_reference(bench: Bench) -> str:
    if not bench.subject.gives_reference:
        return "the grader takes no reference"
    if not all(item.reference.strip() not in ("", item.right.strip()) for item in bench.items):
        return "needs items with a reference in other words than the right answer"
    return ""


def _self_preference(bench: Bench) -> Measured:
    rows: list[Row] = []
    usable = [item for item in bench.items if item.best and _both(bench, item)]
    for item in usable:
        ours = item.best == bench.family
        # Of two answers that are both not the best, nobody said which is better.
        others = [
            text
            for family, text in item.answers.items()
            if family != bench.family and (ours or family == item.best)
        ]
        picks = [_prefers(bench, item, item.answers[bench.family], text) for text in others]
        known = [one for one in picks if one is not None]
        if known and len(known) == len(picks):
            wins = fmean((one + 1) / 2 for one in known)
            # Own answer taken though another is best, against the reverse.
            rows.append((0.0, 0.0, 1 - wins, 1.0) if ours else (wins, 1.0, 0.0, 0.0))
    return Measured(
        "share of pairs",
        rows,
        difference_of_shares,
        missing=len(usable) - len(rows),
        bounds=SIGNED_SHARE,
    )


def _prefers(bench: Bench, item: Item, own: str, other: str) -> float | None:
    if bench.subject.kind != "scores":
        return bench.prefers(item, own, other)
    first, second = bench.score(item, own), bench.score(item, other)
    return None if first is None or second is None else float((first > second) - (first < second))


def _no_family(bench: Bench) -> str:
    if not bench.family:
        return "needs --family: the judge's own, as the items' answers name it"
    if not any(len(item.answers) > 1 for item in bench.items):
        return "needs items with answers of several families"
    families = sorted({family for item in bench.items for family in item.answers})
    if bench.family not in families:
        known = ", ".join(families)[:200]
        return f"--family {bench.family}: no item has an answer of it (families: {known})"
    bests = [item.best == bench.family for item in bench.items if item.best and _both(bench, item)]
    if all(bests) or not any(bests):
        return "needs items whose best answer is the judge's family's, and others where it is not"
    return ""


def _both(bench: Bench, item: Item) -> bool:
    return bench.family in item.answers and len(item.answers) > 1


SOURCES = (
    Probe(
        "self_preference",
        "an answer of the judge's own family is set against another family's",
        "how much oftener it takes its own against a person's preference than the other's",
        _self_preference,
        threshold=0.2,
        hindrance=_no_family,
        remedy=("take a judge of another family than the policy's, or a panel of several"),
    ),
    Probe(
        "language",
        "question and answers are translated between English and Chinese",
        "the mean difference, Chinese less English",
        _language,
        threshold=0.3,
        of_pairs=0.2,
        sided="both",
        hindrance=_untranslated,
        remedy=(
            "word the question in the language of the answers (language = 'zh'), or compare "
            "within one language only"
        ),
    ),
    Probe(
        "reference",
        "the response repeats the reference word for word, or says the same in other words",
        "the mean difference of the two",
        _reference,
        threshold=0.25,
        kinds=("scores",),
        hindrance=_no_reference,
        remedy=(
            "ask for the substance, give several references, or compare numbers and names by a "
            "rule grader"
        ),
    ),
)
