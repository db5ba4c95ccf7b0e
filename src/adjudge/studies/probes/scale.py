"""Probes of the scale itself: does it tell answers apart, and say the same thing twice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from adjudge.errors import ErrorKind
from adjudge.studies.probes.bench import Bench
from adjudge.studies.probes.intervals import Row
from adjudge.studies.probes.items import Item
from adjudge.studies.probes.probe import OF_SCORES, Measured, Probe, needs_repeats
from adjudge.types import GraderError

__all__ = ["JUDGE_FAULTS", "SCALE"]

JUDGE_FAULTS = frozenset(
    {
        ErrorKind.UNPARSABLE,
        ErrorKind.OUT_OF_RANGE,
        ErrorKind.TRUNCATED,
        ErrorKind.REFUSED,
        ErrorKind.INCOMPLETE,
    }
)


def _discrimination(bench: Bench) -> Measured:
    rows: list[Row] = []
    for item in bench.items:
        ahead = _ahead(bench, item, item.right, item.wrong)
        if ahead is not None:
            rows.append(((1 - ahead) / 2, 1.0))
    missing = len(bench.items) - len(rows)
    return Measured("share of pairs", shares={"right, wrong": rows}, missing=missing)


def _ahead(bench: Bench, item: Item, one: str, other: str) -> float | None:
    """Whether one answer is put before another: 1, 0 for a tie, −1; or a share of these."""
    if bench.subject.kind != "scores":
        return bench.prefers(item, one, other)
    first, second = bench.score(item, one), bench.score(item, other)
    return None if first is None or second is None else float((first > second) - (first < second))


def _clustering(bench: Bench) -> Measured:
    rows: list[Row] = []
    scores: list[float] = []
    for item in bench.items:
        answers = list(dict.fromkeys((item.right, item.middling, item.wrong)))
        ahead = [_ahead(bench, item, *pair) for pair in combinations(answers, 2)]
        if bench.subject.kind == "scores":
            found = [bench.score(item, one) for one in answers]
            scores += [one for one in found if one is not None]
        known = [one for one in ahead if one is not None]
        if len(known) == len(ahead):
            rows.append((float(sum(one == 0 for one in known)), float(len(known))))
    parts = _histogram(scores)
    missing = len(bench.items) - len(rows)
    return Measured("share of pairs", shares={"pairs": rows}, missing=missing, parts=parts)


def _histogram(scores: Sequence[float]) -> dict[str, float | int]:
    """Distinct scores, the share of the most frequent one, and the entropy in bits."""
    counts = Counter(scores)
    if not counts:
        return {}
    shares = [count / len(scores) for count in counts.values()]
    entropy = -math.fsum(p * math.log2(p) for p in shares)
    return {"distinct": len(counts), "modal_share": max(shares), "entropy_bits": abs(entropy)}


def _repeatability(bench: Bench) -> Measured:
    if bench.subject.kind != "scores":
        return _unstable(bench)
    rows: list[Row] = []
    for item in bench.items:
        found = [bench.draws(item, answer) for answer in (item.middling, item.wrong)]
        spread = bench.spread(item)
        known = [draws for draws in found if draws is not None]
        if len(known) == len(found):
            rows.append((sum(map(_variance, known)), float(len(known)), *spread))
    missing = len(bench.items) - len(rows)
    noise = noise_share([math.fsum(column) for column in zip(*rows, strict=True)]) if rows else None
    parts = {} if noise is None else {"icc": 1 - noise**2}
    return Measured(
        OF_SCORES, rows, noise_share, missing=missing, parts=parts, bounds=(0.0, math.inf)
    )


def _variance(draws: Sequence[float]) -> float:
    if min(draws) == max(draws):  # their mean may be off by rounding
        return 0.0
    mean = fmean(draws)
    return math.fsum((one - mean) ** 2 for one in draws) / (len(draws) - 1)


def noise_share(sums: Sequence[float]) -> float | None:
    """Of columns ``(Σ variance, count, Σs, Σs², number)``: SD over repeats in SDs of the scores.

    The SD of the scores is that of single draws over the items' answers, noise included, so the
    number lies between 0 and about 1, and 1 less its square is an intraclass correlation.
    """
    variances, count, total, squares, number = sums
    if not count or not number:
        return None
    mean = total / number
    spread = squares / number - mean * mean
    if spread <= 1e-12 * max(1.0, mean * mean):
        return None
    return math.sqrt(variances / count / spread)


def _unstable(bench: Bench) -> Measured:
    """The share of pairs of repeats that differ, for graders that compare."""
    rows: list[Row] = []
    for item in bench.items:
        found = [
            bench.prefers(item, item.right, item.middling, draw) for draw in range(bench.repeats)
        ]
        known = [one for one in found if one is not None]
        if len(known) == len(found):
            pairs = list(combinations(known, 2))
            rows.append((float(sum(a != b for a, b in pairs)), float(len(pairs))))
    missing = len(bench.items) - len(rows)
    return Measured("share of repeats", shares={"repeats": rows}, missing=missing)


def _parse_failures(bench: Bench) -> Measured:
    for item in bench.items:  # so that there is something to count when it is probed alone
        _ahead(bench, item, item.right, item.wrong)
    counts: dict[str, list[float]] = {item.id: [0.0, 0.0] for item in bench.items}
    kinds: Counter[str] = Counter()
    for question, answer in (bench.answers or {}).items():
        row = counts.setdefault(question.item, [0.0, 0.0])
        if not isinstance(answer, GraderError):
            row[1] += 1
        elif answer.kind in JUDGE_FAULTS:
            kinds[str(answer.kind)] += 1
            row[0] += 1
            row[1] += 1
    rows = [(failed, asked) for failed, asked in counts.values() if asked]
    return Measured("share of answers", shares={"answers": rows}, parts=dict(kinds))


SCALE = (
    Probe(
        "discrimination",
        "a right answer is set against a wrong one",
        "the share of pairs in the wrong order, a tie counting half",
        _discrimination,
        threshold=0.25,
        remedy=(
            "take a larger judge or one with a reference; nothing else here matters before this"
        ),
    ),
    Probe(
        "clustering",
        "a right, a partly right and a wrong answer to one question",
        "the share of their pairs that the judge cannot tell apart",
        _clustering,
        threshold=0.5,
        remedy=(
            "ask for an expected score (type = 'expected_score') or for more criteria, or "
            "compare in pairs"
        ),
    ),
    Probe(
        "repeatability",
        "the same question is asked again",
        "the standard deviation over repeats (where answers are compared: the share that differs)",
        _repeatability,
        threshold=0.5,
        of_pairs=0.3,
        hindrance=needs_repeats,
        remedy=("average several votes (panel.votes), or lower the temperature"),
    ),
    Probe(
        "parse_failures",
        "every answer to every question of the other probes",
        "the share that could not be used, for the judge's own fault",
        _parse_failures,
        threshold=0.02,
        remedy=(
            "allow more tokens, or a judge that honours a JSON schema; look at answers.jsonl "
            "for the replies"
        ),
    ),
)
