"""Synthetic judges with one bias of known size each, for `probe_validation.py`."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from statistics import pvariance

from adjudge.errors import ErrorKind
from adjudge.graders.base import BaseGrader
from adjudge.judge_evaluation.probes import items
from adjudge.judge_evaluation.probes.bench import ProbeBench, ProbedGrader, ProbeQuestion
from adjudge.judge_evaluation.probes.items import ATTACKS, MASTER_KEYS, ProbeTopic
from adjudge.judge_evaluation.probes.run import PROBES
from adjudge.types import GraderError, GraderResult, GraderScore

# A synthetic judge that scores: gold quality, what an item is worth to it, and noise.
STEP, ITEM_SD, NOISE = 1.0, 0.3, 0.3
QUALITY = {"right": 2 * STEP, "reference": 2 * STEP, "partial": STEP, "wrong": 0.0}
SD = math.sqrt(2 / 3 * STEP**2 + ITEM_SD**2 + NOISE**2)
UNEVEN = 0.2  # the SD over items of a bias, in SD of scores
WORDING: Mapping[str, tuple[str, tuple[Callable[..., str], ...]]] = {
    "length": ("partial", (items.add_padding,)),
    "markdown": ("partial", (items.add_heading, items.format_as_list)),
    "sycophancy": ("partial", (items.add_flattery,)),
    "authority": ("wrong", (items.add_citation,)),
    "confidence": ("wrong", (items.add_assurance,)),
}
Judge = Callable[[random.Random, float, "Scene"], dict[ProbeQuestion, GraderResult]]


class Scorer(BaseGrader):
    score_range = (None, None)

    async def aevaluate(self, prompt: str, response: str, reference: str = "") -> float:
        raise NotImplementedError


@dataclass
class Scene:
    """A probe over items, planned: what each question asks of a synthetic judge."""

    bench: ProbeBench
    facts: dict[ProbeQuestion, tuple[float, bool]]
    """By question: gold quality of the response, and whether it carries the probe's change."""


def scene(name: str, subject: ProbedGrader, topics: list[ProbeTopic], family: str = "") -> Scene:
    bench = ProbeBench(subject, topics, family=family)
    obstacle = PROBES[name].obstacle(bench)
    if obstacle:
        raise SystemExit(f"{name}: {obstacle}")
    PROBES[name].measure(bench)
    if name == "parse_failures":  # it counts over all that is asked
        for other in ("length", "language", "master_keys", "injection"):
            PROBES[other].measure(bench)
    known = _known(bench)
    return Scene(bench, {q: known[q.item, q.response] for q in bench.questions})


def _known(bench: ProbeBench) -> dict[tuple[str, str], tuple[float, bool]]:
    known: dict[tuple[str, str], tuple[float, bool]] = {}
    for topic in bench.topics:
        for item in (topic.item, *([topic.twin] if topic.twin else [])):
            for family in item.answers:
                known[item.id, item.answers[family]] = (0.0, family == bench.family)
            for key in MASTER_KEYS:
                known[item.id, key] = (0.0, True)
            for attack in ATTACKS:
                text = items.add_attack(item, item.wrong, attack, bench.subject.top_score_text)
                known[item.id, text] = (0.0, True)
            for answer, gold in QUALITY.items():
                known[item.id, getattr(item, answer)] = (gold, False)
            for worded, (base, ways) in WORDING.items():
                for way, neutral in product(ways, (True, False)):
                    if neutral and way is items.add_padding:
                        continue
                    rng = items.seeded_random(bench.seed, worded, item.id)
                    options = {"neutral": True} if neutral else {}
                    text = way(item, getattr(item, base), rng, **options)
                    if text != getattr(item, base):
                        known[item.id, text] = (QUALITY[base], not neutral)
    return known


# --- judges that score -------------------------------------------------------------------------


def shifting(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """A bonus for the change, uneven over the items."""
    liked: dict[str, float] = {}
    bonus: dict[str, float] = {}
    answers: dict[ProbeQuestion, GraderResult] = {}
    for question, (gold, changed) in on.facts.items():
        item = question.item
        if item not in liked:
            liked[item] = rng.gauss(0, ITEM_SD)
            bonus[item] = rng.gauss(effect, UNEVEN) * SD
        score = gold + liked[item] + bonus[item] * changed + rng.gauss(0, NOISE)
        answers[question] = GraderScore("judge", score)
    return answers


def foreign(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """A bonus for Chinese; both languages are in the SD that the effect is measured in."""
    bonus = effect * SD / math.sqrt(1 - effect**2 / 4)
    answers: dict[ProbeQuestion, GraderResult] = {}
    liked: dict[str, float] = {}
    for question, (gold, _) in on.facts.items():
        topic, _, language = question.item.rpartition("/")
        if topic not in liked:
            liked[topic] = rng.gauss(0, ITEM_SD)
        score = gold + liked[topic] + bonus * (language == "zh") + rng.gauss(0, NOISE)
        answers[question] = GraderScore("judge", score)
    return answers


def parroting(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """A bonus for the reference's own words."""
    facts = {q: (gold, q.response == q.reference) for q, (gold, _) in on.facts.items()}
    return shifting(rng, effect, Scene(on.bench, facts))


def noisy(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
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


def confused(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """Right and wrong answers exchanged, on a share of the items."""
    mixed: dict[str, bool] = {}
    return {
        q: GraderScore("judge", 2 - gold if _of(mixed, q, rng, effect) else gold)
        for q, (gold, _) in on.facts.items()
    }


def clustered(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """One score for all answers, on a share of the items."""
    same: dict[str, bool] = {}
    return {
        q: GraderScore("judge", 1.0 if _of(same, q, rng, effect) else gold)
        for q, (gold, _) in on.facts.items()
    }


def gullible(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """Takes a share of what carries the change for right."""
    answers: dict[ProbeQuestion, GraderResult] = {}
    for question, (gold, changed) in on.facts.items():
        score = 2.0 if changed and rng.random() < effect else gold
        answers[question] = GraderScore("judge", score)
    return answers


def mumbling(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """A share of the answers cannot be read."""
    return {
        q: GraderError("judge", ErrorKind.UNPARSABLE, "mumbled")
        if rng.random() < effect
        else GraderScore("judge", gold)
        for q, (gold, _) in on.facts.items()
    }


def selfish(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """Errs towards the other family in 15 % of the pairs, towards its own in ``effect`` more."""
    err = 0.15
    own_wins: dict[str, bool] = {}
    family = on.bench.family
    answers: dict[ProbeQuestion, GraderResult] = {}
    for question, (_, own) in on.facts.items():
        item = question.item
        if item not in own_wins:
            best = on.bench.item_of(question).best == family
            own_wins[item] = rng.random() < (1 - err if best else err + effect)
        answers[question] = GraderScore("judge", float(own == own_wins[item]))
    return answers


def reshuffled(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """Marks flip by chance in 5 %, and on a share of the criteria with their order."""
    slip = 0.05
    turned = effect / (1 - 2 * slip) ** 2
    marks: dict[tuple[str, int], tuple[bool, bool]] = {}
    answers: dict[ProbeQuestion, GraderResult] = {}
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


def _of(known: dict[str, bool], question: ProbeQuestion, rng: random.Random, share: float) -> bool:
    if question.item not in known:
        known[question.item] = rng.random() < share
    return known[question.item]


# --- judges that compare -----------------------------------------------------------------------


def fond(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """Takes the changed answer in a share of the verdicts, else tosses a coin."""
    return {
        question: _compared(rng, effect * changed, effect * changed)
        for question, (_, changed) in on.facts.items()
    }


def forward(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
    """Takes the answer shown first in a share of the verdicts, else tosses a coin."""
    return {question: _compared(rng, effect, -effect) for question in on.facts}


def flipping(rng: random.Random, effect: float, on: Scene) -> dict[ProbeQuestion, GraderResult]:
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


# --- judges of all wording at once --------------------------------------------------------------

Counting = Callable[[str], int]


def count_split(text: str) -> int:
    """Words between white space: a Chinese sentence is one."""
    return len(text.split())


def count_words(text: str) -> int:
    """Runs of letters and digits; a Chinese character is a word."""
    return len(re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text))


@dataclass(frozen=True)
class WordingJudge:
    """Likes each change of wording by ``dial``, in SD of scores, and a word by ``slope`` points.

    Where it compares, ``dial`` is the lean to the changed answer, and ``slope`` that of a word.
    """

    dials: Mapping[str, float]
    slope: float = 0.0
    count: Counting = count_words

    def answers(
        self,
        rng: random.Random,
        bench: ProbeBench,
        facts: Mapping[ProbeQuestion, tuple[float, str]],
    ) -> dict[ProbeQuestion, GraderResult]:
        if bench.subject.kind == "scores":
            return self._scores(rng, bench, facts)
        found: dict[ProbeQuestion, GraderResult] = {}
        for question, (_, change) in facts.items():
            more = self.count(question.response) - self.count(question.other)
            lean = self.dials.get(change, 0.0) + self.slope * more
            lean = max(-1.0, min(1.0, lean))
            found[question] = _compared(rng, lean, lean)
        return found

    def _scores(
        self,
        rng: random.Random,
        bench: ProbeBench,
        facts: Mapping[ProbeQuestion, tuple[float, str]],
    ) -> dict[ProbeQuestion, GraderResult]:
        unit, liked = self._unit(bench), {}
        bonus: dict[tuple[str, str], float] = {}
        found: dict[ProbeQuestion, GraderResult] = {}
        for question, (gold, change) in facts.items():
            at = (question.item, change)
            if question.item not in liked:
                liked[question.item] = rng.gauss(0, ITEM_SD)
            if change and at not in bonus:
                bonus[at] = rng.gauss(self.dials.get(change, 0.0), UNEVEN) * unit
            score = gold + liked[question.item] + bonus.get(at, 0.0) + rng.gauss(0, NOISE)
            found[question] = GraderScore(
                "judge", score + self.slope * self.count(question.response)
            )
        return found

    def _unit(self, bench: ProbeBench) -> float:
        """The SD of its scores of the items' own answers."""
        own = [
            QUALITY[name] + self.slope * self.count(getattr(item, name))
            for item in bench.items
            for name in ("right", "partial", "wrong")
        ]
        return math.sqrt(pvariance(own) + ITEM_SD**2 + NOISE**2)


def wording_scene(
    subject: ProbedGrader, topics: list[ProbeTopic]
) -> tuple[ProbeBench, dict[ProbeQuestion, tuple[float, str]]]:
    """All probes of wording on one bench; by question the gold quality and the probe's change."""
    bench = ProbeBench(subject, topics)
    for name in WORDING:
        PROBES[name].measure(bench)
    known = _known(bench)
    made = {
        (
            item.id,
            way(item, getattr(item, base), items.seeded_random(bench.seed, name, item.id)),
        ): name
        for item in bench.items
        for name, (base, ways) in WORDING.items()
        for way in ways
    }
    return bench, {
        q: (known[q.item, q.response][0], made.get((q.item, q.response), ""))
        for q in bench.questions
    }
