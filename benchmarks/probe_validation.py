"""Do the probes find what is there? Synthetic judges with dialled biases, through the real code.

Each run draws a judge with one bias of known size, puts every question of the probe to it and
decides. Three sizes a probe: exactly at the threshold, and, a third as many judges each, none and a
stated larger one. Printed are

- the mean estimate against the dial, and how often the 95 % interval contains the dial;
- the type-I error: how often a judge *at* the threshold fails, and the upper 95 % Clopper-Pearson
  bound of that; how often one at the threshold passes;
- power: how often a judge of the stated size fails, and how often an unbiased one passes.

    python benchmarks/probe_validation.py --runs 1000

``--wording`` asks judges about all wording probes at once instead: without a bias, with a slope on
length alone, with dials and with both; and prints how many fail and pass, and in how many runs any
probe failed (the family-wise error, where none should have).

    python benchmarks/probe_validation.py --wording --runs 60
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.probe_judges import (
    WORDING,
    Counting,
    Judge,
    Scene,
    Scorer,
    WordingJudge,
    clustered,
    confused,
    count_split,
    count_words,
    flipping,
    fond,
    foreign,
    forward,
    gullible,
    mumbling,
    noisy,
    parroting,
    reshuffled,
    scene,
    selfish,
    shifting,
    wording_scene,
)

from adjudge.graders.llm.comparison import PairwiseGrader
from adjudge.graders.llm.rubric import RubricGrader
from adjudge.judge_evaluation.probes.bench import ProbedGrader
from adjudge.judge_evaluation.probes.items import (
    ProbeItem,
    ProbeTopic,
    choose_topics,
    shipped_items,
)
from adjudge.judge_evaluation.probes.probe import ProbeFinding, evaluate_probe
from adjudge.judge_evaluation.probes.run import PROBES
from adjudge.judges import ScriptedModel


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
    topics = choose_topics(shipped_items())
    scores, pairs = ProbedGrader(Scorer()), ProbedGrader(PairwiseGrader(ScriptedModel("")))
    asked = ProbedGrader(Scorer(), with_reference=True)
    rubric = ProbedGrader(RubricGrader(ScriptedModel(""), field="rubric"))
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


def families() -> list[ProbeTopic]:
    """80 questions with answers of two families, each the better one in half of them."""
    return [
        ProbeTopic(
            ProbeItem(
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

    def add(self, found: ProbeFinding) -> None:
        self.verdicts.append(found.verdict)
        if found.effect is not None and found.low is not None and found.high is not None:
            self.values.append(found.effect)
            self.covered.append(found.low <= self.effect <= found.high)

    def rate(self, verdict: str) -> float:
        return self.verdicts.count(verdict) / len(self.verdicts)


def ran(case: Case, effect: float, runs: int, seed: int) -> Tally:
    tally = Tally(effect, [], [], [])
    bench = case.scene.bench
    for run in range(runs):
        rng = random.Random(f"{seed}:{case.probe}:{effect}:{run}")
        bench.set_answers(case.judge(rng, effect, case.scene))
        tally.add(evaluate_probe(PROBES[case.probe], bench))
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


def wording_judges(kind: str) -> dict[str, WordingJudge]:
    """By label; a slope is 0.1 points a word, or a lean of 0.02 where answers are compared."""
    slope, stated = (0.1, 0.5) if kind == "scores" else (0.02, 0.7)
    limits = {name: PROBES[name].limit("scores" if kind == "scores" else "compares")
              for name in WORDING}  # fmt: skip
    dials = {name: stated for name in WORDING if name != "length"}
    counts: dict[str, Counting] = {"word": count_words, "split word": count_split}
    judges = {"no bias": WordingJudge({})}
    judges |= {
        f"{slope:g} a {one}": WordingJudge({}, slope, count) for one, count in counts.items()
    }
    judges[f"dials {stated:g}"] = WordingJudge(dials)
    judges |= {f"dials {stated:g}, {slope:g} a {one}": WordingJudge(dials, slope, count)
               for one, count in counts.items()}  # fmt: skip
    return judges | {"all at the threshold": WordingJudge(limits)}


def print_wording(runs: int, seed: int, wanted: list[str] | None) -> None:
    topics = choose_topics(shipped_items())
    print(f"{runs} runs a judge, seed {seed}: fail/pass of them; mean estimate; covered\n")
    print(
        "| judge | " + " | ".join(WORDING) + " | any failed |\n|---|" + "---|" * (len(WORDING) + 1)
    )
    for subject in (ProbedGrader(Scorer()), ProbedGrader(PairwiseGrader(ScriptedModel("")))):
        bench, facts = wording_scene(subject, topics)
        for label, judge in wording_judges(subject.kind).items():
            if wanted is not None and label not in wanted:
                continue
            tallies = {name: Tally(judge.dials.get(name, 0.0), [], [], []) for name in WORDING}
            for run in range(runs):
                rng = random.Random(f"{seed}:{label}:{run}")
                bench.set_answers(judge.answers(rng, bench, facts))
                for name, tally in tallies.items():
                    tally.add(evaluate_probe(PROBES[name], bench))
            cells = [
                f"{one.verdicts.count('fail')}/{one.verdicts.count('pass')}; "
                f"{fmean(one.values):+.2f}; {fmean(one.covered):.3f}"
                for one in tallies.values()
            ]
            alarms = sum(
                "fail" in found
                for found in zip(*(one.verdicts for one in tallies.values()), strict=True)
            )
            print(f"| {label} ({subject.kind}) | {' | '.join(cells)} | {alarms} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="labels of rows, with commas between")
    parser.add_argument("--json", help="write the numbers to this file too")
    parser.add_argument("--wording", action="store_true", help="judges by wording probes")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else None
    if arguments.wording:
        print_wording(arguments.runs, arguments.seed, wanted)
        return
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
