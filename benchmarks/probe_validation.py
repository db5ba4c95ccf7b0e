"""Do the probes find what is there? Synthetic judges with dialled biases, through the real code.

Each run draws a judge with one bias of known size, puts every question of the probe to it and
decides. Three sizes a probe: exactly at the threshold, and, a third as many judges each, none and a
stated larger one. Printed are

- the mean estimate against the dial, and how often the 95 % interval contains the dial;
- the type-I error: how often a judge *at* the threshold fails, and the upper 95 % Clopper-Pearson
  bound of that; how often one at the threshold passes;
- power: how often a judge of the stated size fails, and how often an unbiased one passes.

    python benchmarks/probe_validation.py --runs 1000
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from adjudge.errors import ErrorKind
from adjudge.graders.base import BaseGrader
from adjudge.graders.llm.pairwise import PairwiseGrader
from adjudge.graders.llm.rubric import RubricGrader
from adjudge.judges import ScriptedModel
from adjudge.studies.probes import changes
from adjudge.studies.probes.bench import Bench
from adjudge.studies.probes.card import find
from adjudge.studies.probes.catalogue import PROBES
from adjudge.studies.probes.items import Item, Topic, choose, shipped_items
from adjudge.studies.probes.subject import Question, Subject
from adjudge.studies.probes.texts import ATTACKS, MASTER_KEYS
from adjudge.types import GraderError, GraderResult, GraderScore

# A synthetic judge that scores: gold quality, what an item is worth to it, and noise.
STEP, ITEM_SD, NOISE = 1.0, 0.3, 0.3
QUALITY = {"right": 2 * STEP, "reference": 2 * STEP, "partial": STEP, "wrong": 0.0}
SD = math.sqrt(2 / 3 * STEP**2 + ITEM_SD**2 + NOISE**2)
UNEVEN = 0.2  # the SD over items of a bias, in SD of scores
WORDING: Mapping[str, tuple[str, tuple[Callable[..., str], ...]]] = {
    "length": ("partial", (changes.padded,)),
    "markdown": ("partial", (changes.headed, changes.bulleted)),
    "sycophancy": ("partial", (changes.flattering,)),
    "authority": ("wrong", (changes.cited,)),
    "confidence": ("wrong", (changes.certain,)),
}
Judge = Callable[[random.Random, float, "Scene"], dict[Question, GraderResult]]


class Scorer(BaseGrader):
    score_range = (None, None)

    async def aevaluate(self, prompt: str, response: str, reference: str = "") -> float:
        raise NotImplementedError


@dataclass
class Scene:
    """A probe over items, planned: what each question asks of a synthetic judge."""

    bench: Bench
    facts: dict[Question, tuple[float, bool]]
    """By question: gold quality of the response, and whether it carries the probe's change."""


def scene(name: str, subject: Subject, topics: list[Topic], family: str = "") -> Scene:
    bench = Bench(subject, topics, family=family)
    obstacle = PROBES[name].obstacle(bench)
    if obstacle:
        raise SystemExit(f"{name}: {obstacle}")
    PROBES[name].measure(bench)
    if name == "parse_failures":  # it counts over all that is asked
        for other in ("length", "language", "master_keys", "injection"):
            PROBES[other].measure(bench)
    known = _known(bench)
    return Scene(bench, {q: known[q.item, q.response] for q in bench.questions})


def _known(bench: Bench) -> dict[tuple[str, str], tuple[float, bool]]:
    known: dict[tuple[str, str], tuple[float, bool]] = {}
    for topic in bench.topics:
        for item in (topic.item, *([topic.twin] if topic.twin else [])):
            for family in item.answers:
                known[item.id, item.answers[family]] = (0.0, family == bench.family)
            for key in MASTER_KEYS:
                known[item.id, key] = (0.0, True)
            for attack in ATTACKS:
                text = changes.attacked(item, item.wrong, attack, bench.subject.top)
                known[item.id, text] = (0.0, True)
            for answer, gold in QUALITY.items():
                known[item.id, getattr(item, answer)] = (gold, False)
            for worded, (base, ways) in WORDING.items():
                for way in ways:
                    rng = changes.dice(bench.seed, worded, item.id)
                    known[item.id, way(item, getattr(item, base), rng)] = (QUALITY[base], True)
    return known


# --- judges that score -------------------------------------------------------------------------


def shifting(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """A bonus for the change, uneven over the items."""
    liked: dict[str, float] = {}
    bonus: dict[str, float] = {}
    answers: dict[Question, GraderResult] = {}
    for question, (gold, changed) in on.facts.items():
        item = question.item
        if item not in liked:
            liked[item] = rng.gauss(0, ITEM_SD)
            bonus[item] = rng.gauss(effect, UNEVEN) * SD
        score = gold + liked[item] + bonus[item] * changed + rng.gauss(0, NOISE)
        answers[question] = GraderScore("judge", score)
    return answers


def foreign(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """A bonus for Chinese; both languages are in the SD that the effect is measured in."""
    bonus = effect * SD / math.sqrt(1 - effect**2 / 4)
    answers: dict[Question, GraderResult] = {}
    liked: dict[str, float] = {}
    for question, (gold, _) in on.facts.items():
        topic, _, language = question.item.rpartition("/")
        if topic not in liked:
            liked[topic] = rng.gauss(0, ITEM_SD)
        score = gold + liked[topic] + bonus * (language == "zh") + rng.gauss(0, NOISE)
        answers[question] = GraderScore("judge", score)
    return answers


def parroting(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """A bonus for the reference's own words."""
    facts = {q: (gold, q.response == q.reference) for q, (gold, _) in on.facts.items()}
    return shifting(rng, effect, Scene(on.bench, facts))


def noisy(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """Noise of ``effect`` of the SD of all scores."""
    fixed = 2 / 3 * STEP**2 + ITEM_SD**2
    noise = math.sqrt(fixed * effect**2 / (1 - effect**2))
    liked: dict[str, float] = {}
    return {
        q: GraderScore(
            "judge", gold + liked.setdefault(q.item, rng.gauss(0, ITEM_SD)) + rng.gauss(0, noise)
        )
        for q, (gold, _) in on.facts.items()
    }


def confused(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """Right and wrong answers exchanged, on a share of the items."""
    mixed: dict[str, bool] = {}
    return {
        q: GraderScore("judge", 2 - gold if _of(mixed, q, rng, effect) else gold)
        for q, (gold, _) in on.facts.items()
    }


def clustered(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """One score for all answers, on a share of the items."""
    same: dict[str, bool] = {}
    return {
        q: GraderScore("judge", 1.0 if _of(same, q, rng, effect) else gold)
        for q, (gold, _) in on.facts.items()
    }


def gullible(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """Takes a share of what carries the change for right."""
    answers: dict[Question, GraderResult] = {}
    for question, (gold, changed) in on.facts.items():
        score = 2.0 if changed and rng.random() < effect else gold
        answers[question] = GraderScore("judge", score)
    return answers


def mumbling(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """A share of the answers cannot be read."""
    return {
        q: GraderError("judge", ErrorKind.UNPARSABLE, "mumbled")
        if rng.random() < effect
        else GraderScore("judge", gold)
        for q, (gold, _) in on.facts.items()
    }


def selfish(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """Errs towards the other family in 15 % of the pairs, towards its own in ``effect`` more."""
    err = 0.15
    own_wins: dict[str, bool] = {}
    family = on.bench.family
    answers: dict[Question, GraderResult] = {}
    for question, (_, own) in on.facts.items():
        item = question.item
        if item not in own_wins:
            best = on.bench.item_of(question).best == family
            own_wins[item] = rng.random() < (1 - err if best else err + effect)
        answers[question] = GraderScore("judge", float(own == own_wins[item]))
    return answers


def reshuffled(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """Marks flip by chance in 5 %, and on a share of the criteria with their order."""
    slip = 0.05
    turned = effect / (1 - 2 * slip) ** 2
    marks: dict[tuple[str, int], tuple[bool, bool]] = {}
    answers: dict[Question, GraderResult] = {}
    for question in on.facts:
        told = {}
        for number in range(3):
            known = marks.setdefault(
                (question.item, number), (rng.random() < 0.5, rng.random() < turned)
            )
            met = known[0] ^ (known[1] and question.reordered) ^ (rng.random() < slip)
            told[f"c{number}"] = {"met": met}
        answers[question] = GraderScore("judge", 0.5, "", {"criteria": told})
    return answers


def _of(known: dict[str, bool], question: Question, rng: random.Random, share: float) -> bool:
    if question.item not in known:
        known[question.item] = rng.random() < share
    return known[question.item]


# --- judges that compare -----------------------------------------------------------------------


def fond(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """Takes the changed answer in a share of the verdicts, else tosses a coin."""
    return {
        question: _compared(rng, effect * changed, effect * changed)
        for question, (_, changed) in on.facts.items()
    }


def forward(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """Takes the answer shown first in a share of the verdicts, else tosses a coin."""
    return {question: _compared(rng, effect, -effect) for question in on.facts}


def flipping(rng: random.Random, effect: float, on: Scene) -> dict[Question, GraderResult]:
    """As :func:`forward`: with share π the verdicts differ by π² oftener between the orders."""
    return forward(rng, math.sqrt(effect), on)


def _compared(rng: random.Random, given: float, swapped: float) -> GraderResult:
    """A verdict in each order, with the lean towards the response there."""
    verdicts = {
        order: "win" if rng.random() < (1 + lean) / 2 else "loss"
        for order, lean in (("as_given", given), ("swapped", swapped))
    }
    score = sum(one == "win" for one in verdicts.values()) / 2
    return GraderScore("judge", score, "", {"verdicts": verdicts})


# --- the cases ---------------------------------------------------------------------------------


@dataclass
class Case:
    probe: str
    scene: Scene
    judge: Judge
    stated: float

    @property
    def threshold(self) -> float:
        return PROBES[self.probe].limit(self.scene.bench.subject.kind)


def cases() -> dict[str, Case]:
    topics = choose(shipped_items())
    scores, pairs = Subject(Scorer()), Subject(PairwiseGrader(ScriptedModel("")))
    asked = Subject(Scorer(), with_reference=True)
    rubric = Subject(RubricGrader(ScriptedModel(""), field="rubric"))
    rated: list[tuple[str, Judge, float]] = [
        ("discrimination", confused, 0.55),
        *((name, shifting, 0.5) for name in WORDING),
        ("language", foreign, 0.5),
        ("master_keys", gullible, 0.4),
        ("injection", gullible, 0.35),
        ("clustering", clustered, 0.8),
        ("repeatability", noisy, 0.7),
        ("parse_failures", mumbling, 0.05),
    ]
    found = {name: Case(name, scene(name, scores, topics), j, e) for name, j, e in rated}
    found["reference"] = Case("reference", scene("reference", asked, topics), parroting, 0.6)
    found["criterion_order"] = Case(
        "criterion_order", scene("criterion_order", rubric, topics), reshuffled, 0.25
    )
    own = scene("self_preference", scores, families(), family="ours")
    found["self_preference"] = Case("self_preference", own, selfish, 0.6)
    compared: list[tuple[str, Judge, float]] = [
        ("position", forward, 0.45),
        ("position_flips", flipping, 0.45),
        *((name, fond, 0.7) for name in WORDING),
    ]
    for name, judge, stated in compared:
        label = name if name.startswith("position") else f"{name} (pairs)"
        found[label] = Case(name, scene(name, pairs, topics), judge, stated)
    return found


def families() -> list[Topic]:
    """80 questions with answers of two families, each the better one in half of them."""
    return [
        Topic(
            Item(
                prompt=f"Question {number}",
                right=f"right {number}",
                wrong=f"wrong {number}",
                topic=str(number),
                answers={"ours": f"ours {number}", "theirs": f"theirs {number}"},
                best=("ours", "theirs")[number % 2],
            )
        )
        for number in range(80)
    ]


@dataclass
class Tally:
    """Of many judges with one dial: verdicts, estimates, and whether intervals had the dial."""

    effect: float
    verdicts: list[str]
    values: list[float]
    covered: list[bool]

    def rate(self, verdict: str) -> float:
        return self.verdicts.count(verdict) / len(self.verdicts)


def ran(case: Case, effect: float, runs: int, seed: int) -> Tally:
    tally = Tally(effect, [], [], [])
    bench = case.scene.bench
    for run in range(runs):
        rng = random.Random(f"{seed}:{case.probe}:{effect}:{run}")
        bench.learn(case.judge(rng, effect, case.scene))
        found = find(PROBES[case.probe], bench)
        tally.verdicts.append(found.verdict)
        if found.effect is not None and found.low is not None and found.high is not None:
            tally.values.append(found.effect)
            tally.covered.append(found.low <= effect <= found.high)
    return tally


def upper_bound(hits: int, n: int, level: float = 0.95) -> float:
    """The one-sided upper Clopper-Pearson bound, by bisection."""
    if hits == n:
        return 1.0
    low, high = hits / n, 1.0
    for _ in range(60):
        p = (low + high) / 2
        terms = (
            math.exp(
                math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
                + k * math.log(p) + (n - k) * math.log1p(-p)
            )
            for k in range(hits + 1)
        )  # fmt: skip
        if math.fsum(terms) > 1 - level:
            low = p
        else:
            high = p
    return high


def validated(case: Case, runs: int, seed: int) -> dict[str, Any]:
    started = time.perf_counter()
    edge = ran(case, case.threshold, runs, seed)
    none, stated = (ran(case, effect, max(1, runs // 3), seed) for effect in (0.0, case.stated))
    failed = edge.verdicts.count("fail")
    return {
        "n": len(case.scene.bench.topics),
        "questions": len(case.scene.facts),
        "threshold": case.threshold,
        "mean_at_threshold": fmean(edge.values),
        "coverage": fmean(edge.covered),
        "coverage_stated": fmean(stated.covered),
        "type_i": failed / runs,
        "type_i_upper": upper_bound(failed, runs),
        "false_pass": edge.rate("pass"),
        "null_fail": none.rate("fail"),
        "null_pass": none.rate("pass"),
        "stated": case.stated,
        "mean_at_stated": fmean(stated.values),
        "power": stated.rate("fail"),
        "seconds": time.perf_counter() - started,
    }


COLUMNS = (
    ("n", "items", "d"), ("questions", "questions", "d"), ("threshold", "threshold", ".3g"),
    ("mean_at_threshold", "estimate there", ".3f"), ("coverage", "coverage", ".3f"),
    ("type_i", "type I", ".3f"), ("type_i_upper", "upper bound", ".3f"),
    ("false_pass", "passes there", ".3f"), ("null_pass", "unbiased passes", ".3f"),
    ("null_fail", "unbiased fails", ".3f"), ("stated", "stated effect", ".3g"),
    ("mean_at_stated", "estimate there", ".3f"), ("coverage_stated", "coverage", ".3f"),
    ("power", "power", ".3f"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="names of rows, with commas between")
    parser.add_argument("--json", help="write the numbers to this file too")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else None
    print(f"{arguments.runs:,} judges a dial, seed {arguments.seed}\n")
    print("| probe | " + " | ".join(heading for _, heading, _ in COLUMNS) + " |")
    print("|---|" + "---:|" * len(COLUMNS))
    found = {}
    for name, case in cases().items():
        if wanted is not None and name not in wanted:
            continue
        row = found[name] = validated(case, arguments.runs, arguments.seed)
        cells = " | ".join(format(row[key], form) for key, _, form in COLUMNS)
        print(f"| {name} | {cells} |", flush=True)
    print(f"\n{sum(row['seconds'] for row in found.values()):.0f} s")
    if arguments.json:
        report = {"runs": arguments.runs, "seed": arguments.seed, "rows": found}
        Path(arguments.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
