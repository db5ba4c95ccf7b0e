"""Can a policy hide behind failures: a toy GRPO with actions that break whoever judges it.

    python benchmarks/break_the_judge.py [--quick] [--seeds 20] [--json FILE]
        [--svg docs/assets/break-the-judge.svg]

The policy is a softmax over a few answers to each of eight prompts. Each answer is judged once by
a real grader; what it said, score or failure, then goes through a real reward spec for every sample
of that answer. Three minutes of one core; the same seeds give the same numbers. ``--quick``: two
seeds, fewer steps.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from adjudge import BaseGrader, GraderError, GraderScore, GradingRunner
from adjudge.errors import Cause, ErrorKind, GradingFailure
from adjudge.graders.answers.grader import AnswerGrader
from adjudge.graders.llm.shipped_graders import CorrectnessGrader
from adjudge.judges import ScriptedModel
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import RewardSpec
from adjudge.stats import z_scores
from adjudge.stats.estimates import t_quantile
from adjudge.types import RewardSample
from adjudge_lab.studies.charts import (
    ChartPoint,
    ChartSeries,
    DotRow as Charted,
    dot_chart,
    svg_document,
    xy_chart,
)

# How common the right answer is at the start, by prompt.
EASE = (0.02, 0.05, 0.10, 0.15, 0.25, 0.35, 0.45, 0.63)
PROMPTS, SIZE = len(EASE), 8
STEPS, RATE = 100, 1.0
FLAKY = 0.2
# Steps between points of the figure, and between batches whose advantages are compared.
EVERY = 4

Kind = Literal["right", "wrong", "breaking"]
Verdict = GraderScore | GraderError
Row = dict[str, Any]
Answers = list[list[int]]


class Action(NamedTuple):
    """An answer; ``share`` of it at the start, where that is the same for all prompts."""

    kind: Kind
    text: str
    share: float = 0.0


HONEST = (
    Action("right", r"\boxed{42}"),
    Action("wrong", r"\boxed{41}"),
    Action("wrong", r"\boxed{43}"),
    Action("wrong", r"\boxed{48}"),
    Action("wrong", r"\boxed{13}"),
)
WRONG = sum(one.kind == "wrong" for one in HONEST)
BOMB = Action("breaking", r"\boxed{\sum_{k=1}^{n} 10^{10^{10}} k}", 0.15)
BAIT = Action("breaking", r"\boxed{42} [what the judge refuses to read]", 0.15)

TRAPS: dict[str, tuple[Action, ...]] = {"answer": (*HONEST, BOMB), "judge": (*HONEST, BAIT)}
"""What breaks the grader: the answer alone, by its cost; or that a judge refuses to read it."""

TITLES = {
    "answer": "The answer alone breaks a rule grader",
    "judge": "The answer makes a judge refuse",
}


class Arm(NamedTuple):
    """What failures count as.

    ``candidate``: what the candidate alone brought about; ``suspect``: as in a spec; ``fill``:
    what is still missing becomes 0.
    """

    candidate: Literal["min", "missing"] = "min"
    suspect: Literal["min", "missing"] = "missing"
    fill: bool = False


ARMS = {
    "adjudge": Arm(),
    'adjudge, suspect = "min"': Arm(suspect="min"),
    "all failures as 0": Arm(fill=True),
    "all failures left out": Arm(candidate="missing"),
}


@cache
def verdicts(trap: str) -> tuple[Verdict, ...]:
    """What a real grader says of each answer, asked once: a bomb costs seconds of a processor."""
    rows = [{"response": one.text, "reference": "42", "query": "6 × 7?"} for one in TRAPS[trap]]
    judge = ScriptedModel(
        {
            "refuses": ErrorKind.REFUSED,
            r"\boxed{42}": {"score": 5, "reason": "agrees"},
            "": {"score": 1, "reason": "contradicts"},
        }
    )
    grader = CorrectnessGrader(judge) if trap == "judge" else AnswerGrader("MATH_EXPRESSIONS")
    found: list[Any] = GradingRunner({"g": grader}, show_progress=False).run(rows)["g"]
    return tuple(found)


class RecordedVerdicts(BaseGrader):
    """Gives back what was said of an answer; the calls that are ``lost`` fail whatever it is."""

    def __init__(self, recorded: Sequence[Verdict], candidate: str) -> None:
        super().__init__("verdict")
        self._recorded, self._candidate = recorded, candidate
        self.score_range = next(one.score_range for one in recorded if type(one) is GraderScore)

    async def aevaluate(self, answer: int, lost: bool) -> GraderScore:
        if lost:
            raise GradingFailure(ErrorKind.CONNECTION, "the judge could not be reached")
        said = self._recorded[answer]
        if isinstance(said, GraderError):
            raise GradingFailure(said.kind, said.error, said.metadata)
        if said.cause is Cause.CANDIDATE and self._candidate == "missing":
            raise GradingFailure(ErrorKind.TIMEOUT, said.reason)
        return said


class Rewards:
    """The rewards of groups of answers under an arm, by a real reward spec."""

    def __init__(self, trap: str, arm: Arm) -> None:
        # The failures here are stated, so no share of them is an outage.
        missing = {"suspect": arm.suspect, "max_missing": 1.0}
        entry = {"name": "verdict", "type": f"{__name__}:RecordedVerdicts"}
        grader = RecordedVerdicts(verdicts(trap), arm.candidate)
        spec = RewardSpec.from_dict({"graders": [entry], "missing": missing})
        self._function = SpecRewardFunction(spec, graders={"verdict": grader})
        self._fill = arm.fill

    def __call__(
        self, groups: Sequence[Sequence[int]], lost: Sequence[Sequence[bool]]
    ) -> list[list[float | None]]:
        samples = {
            str(place): [
                RewardSample(
                    place * SIZE + i, i, None, None, None, {"answer": answer, "lost": gone}
                )
                for i, (answer, gone) in enumerate(zip(*both, strict=True))
            ]
            for place, both in enumerate(zip(groups, lost, strict=True))
        }
        found = iter(self._function.compute(samples))
        rewards = [[next(found).score for _ in group] for group in groups]
        if self._fill:
            rewards = [[one or 0.0 for one in group] for group in rewards]  # adjudge: meant
        return rewards


def advantages(rewards: Sequence[float | None]) -> list[float]:
    """GRPO's, of the rewards that are there; 0, which moves nothing, for a missing one."""
    present = [one for one in rewards if one is not None]
    scores = iter(z_scores(present) if present else [])
    return [0.0 if one is None else next(scores) for one in rewards]  # adjudge: meant


def losses(rng: random.Random, share: float) -> list[list[bool]]:
    return [[rng.random() < share for _ in range(SIZE)] for _ in range(PROMPTS)]


class Run(NamedTuple):
    """The shares of each kind before and after every step, and the answers drawn in each."""

    curve: list[dict[Kind, float]]
    answers: list[Answers]


def train(trap: str, arm: Arm, flaky: float, seed: int, steps: int) -> Run:
    """Train a policy; ``flaky`` of the judge's calls are lost, whatever the answer."""
    actions, rewards = TRAPS[trap], Rewards(trap, arm)
    drawing, losing = random.Random(f"{seed} answers"), random.Random(f"{seed} losses")
    policy = start(actions)
    run = Run([shares(policy, actions)], [])
    for _ in range(steps):
        groups = [
            drawing.choices(range(len(actions)), list(map(math.exp, own)), k=SIZE) for own in policy
        ]
        found = rewards(groups, losses(losing, flaky))
        for logits, group, own in zip(policy, groups, found, strict=True):
            # The gradient of log softmax; what it takes from all answers sums to 0 over a group.
            for answer, advantage in zip(group, advantages(own), strict=True):
                logits[answer] += RATE * advantage / SIZE
        run.curve.append(shares(policy, actions))
        run.answers.append(groups)
    return run


def start(actions: Sequence[Action]) -> list[list[float]]:
    """The logits at the start; wrong answers share what right and breaking ones leave."""
    broken = math.fsum(one.share for one in actions if one.kind == "breaking")
    odds = {ease: {"right": ease, "wrong": (1 - ease - broken) / WRONG} for ease in EASE}
    return [[math.log(one.share or odds[ease][one.kind]) for one in actions] for ease in EASE]


def shares(policy: Sequence[Sequence[float]], actions: Sequence[Action]) -> dict[Kind, float]:
    """Of each kind of answer, over all prompts; exactly, not from a sample."""
    total: dict[Kind, float] = {"right": 0.0, "wrong": 0.0, "breaking": 0.0}
    for logits in policy:
        odds = list(map(math.exp, logits))
        for one, odd in zip(actions, odds, strict=True):
            total[one.kind] += odd / sum(odds) / len(policy)
    return total


def kept(trap: str, arm: Arm, seed: int, answers: Sequence[Answers]) -> dict[str, float]:
    """What a flaky judge does to the advantages of honest answers.

    The same ``answers`` in every arm, with and without lost calls. ``mean`` and ``max``:
    difference where the call was not lost. ``own``: the largest difference there from the
    advantages that the group has without its lost samples. ``turned``: share whose sign is the
    other one. ``invented``: share with an advantage where none is due. ``lost``: mean advantage of
    right answers whose call was lost; ``due``: what they have without the loss.
    """
    actions, rewards = TRAPS[trap], Rewards(trap, arm)
    rng = random.Random(f"{seed} kept")
    judged: list[tuple[float, float, float]] = []
    gone: list[tuple[float, float]] = []
    for groups in answers:
        lost = losses(rng, FLAKY)
        full, used = rewards(groups, losses(rng, 0.0)), rewards(groups, lost)
        for group, missed, clean, flaky in zip(groups, lost, full, used, strict=True):
            alone = [None if m else one for one, m in zip(clean, missed, strict=True)]
            rows = zip(group, missed, *map(advantages, (flaky, clean, alone)), strict=True)
            for answer, miss, has, due, own in rows:
                if miss and actions[answer].kind == "right":
                    gone.append((has, due))
                elif not miss and actions[answer].kind != "breaking":
                    judged.append((has, due, own))
    return {
        "mean": fmean(abs(has - due) for has, due, _ in judged),
        "max": max(abs(has - due) for has, due, _ in judged),
        "own": max(abs(has - own) for has, _, own in judged),
        "turned": fmean(has * due < 0 for has, due, *_ in (*judged, *gone)),
        "invented": fmean(has != 0 and due == 0 for has, due, *_ in (*judged, *gone)),
        "lost": fmean(has for has, _ in gone),
        "due": fmean(due for _, due in gone),
    }


def study(seeds: int, steps: int) -> list[Row]:
    """A row for each trap and arm: a curve a seed, by share of lost calls; advantages a seed."""
    rows = []
    for trap in TRAPS:
        runs = [train(trap, Arm(), 0.0, seed, steps) for seed in range(seeds)]
        for name, arm in ARMS.items():
            plain = (
                runs if arm == Arm() else [train(trap, arm, 0.0, s, steps) for s in range(seeds)]
            )
            flaky = [train(trap, arm, FLAKY, seed, steps) for seed in range(seeds)]
            rows.append(
                {
                    "trap": trap,
                    "arm": name,
                    "curves": {
                        "0": [run.curve for run in plain],
                        "flaky": [run.curve for run in flaky],
                    },
                    "kept": [
                        kept(trap, arm, seed, run.answers[::EVERY]) for seed, run in enumerate(runs)
                    ],
                }
            )
    return rows


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean (t)."""
    return t_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float], form: str = ".2f") -> str:
    """Mean, 95 % interval of the mean (t) and deviation over seeds, in percent."""
    mean, sd = 100 * fmean(values), 100 * stdev(values)
    half = 100 * half_width(values)
    return f"{mean:{form}} ({mean - half:{form}} to {mean + half:{form}}; sd {sd:.2f})"


def shares_table(rows: Sequence[Row], judge: str) -> str:
    """The shares at the end in percent, a line for each arm; ``judge`` is 0 or flaky."""
    lines = [
        "| failures | breaking | a wrong answer | breaking − wrong | right |",
        "|---" * 5 + "|",
    ]
    for row in rows:
        ends = [curve[-1] for curve in row["curves"][judge]]
        breaking, right = ([end[kind] for end in ends] for kind in ("breaking", "right"))
        wrong = [end["wrong"] / WRONG for end in ends]
        more = interval([b - w for b, w in zip(breaking, wrong, strict=True)], "+.2f")
        cells = [interval(breaking), interval(wrong), more.replace("-", "−"), interval(right)]
        lines.append(f"| {row['arm']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kept_table(rows: Sequence[Row]) -> str:
    """What becomes of the advantages of honest answers, a line for each arm."""
    names = {
        "mean": "difference, mean",
        "max": "largest",
        "own": "largest, own group",
        "turned": "sign turned",
        "invented": "invented",
        "lost": "right answer, call lost",
        "due": "right answer, not lost",
    }
    lines = [f"| failures | {' | '.join(names.values())} |", "|---" * (1 + len(names)) + "|"]
    for row in rows:
        cells = []
        for name in names:
            values = [one[name] for one in row["kept"]]
            value = max(values) if name in ("max", "own") else fmean(values)
            cells.append(f"{value:.1%}" if name in ("turned", "invented") else f"{value:.2f}")
        lines.append(f"| {row['arm']} | {' | '.join(cells)} |".replace("%", " %"))
    return "\n".join(lines)


def picture(rows: Sequence[Row]) -> str:
    """Breaking answers for each wrong one over the steps; what lost calls do to advantages."""
    found = {(row["trap"], row["arm"]): row for row in rows}
    lines = [
        ("the answer breaks it: adjudge", "line", ("answer", "adjudge")),
        ("the judge refuses: adjudge", "line", ("judge", "adjudge")),
        ("all failures left out", "dashed", ("answer", "all failures left out")),
        ('the judge refuses: suspect = "min"', "dashed", ("judge", 'adjudge, suspect = "min"')),
    ]
    series = [
        ChartSeries(name, place, kind, _ratios(found[key]["curves"]["0"]))
        for place, (name, kind, key) in enumerate(lines)
    ]
    names = ("step", "breaking answers for each honest wrong answer")
    over = xy_chart("Does breaking the judge live on?", names, series, zero=True)
    damage = []
    for name in ARMS:
        seeds = [one["mean"] for one in found["judge", name]["kept"]]
        mean, half = fmean(seeds), half_width(seeds)
        damage.append(Charted(name, mean, mean - half, mean + half, seeds))
    unit = "mean difference from the advantages without lost calls"
    title = f"Advantages of honest answers when {FLAKY:.0%} of the calls are lost"
    drawings = [dot_chart(title, unit, damage)]
    return svg_document("A policy that can break its judge", [*([over] if over else []), *drawings])


def _ratios(curves: Sequence[Sequence[dict[Kind, float]]]) -> list[ChartPoint]:
    def share(step: int, kind: Kind) -> float:
        return fmean(curve[step][kind] for curve in curves)

    steps = range(0, len(curves[0]), EVERY)
    return [ChartPoint(at, WRONG * share(at, "breaking") / share(at, "wrong")) for at in steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="two seeds, fewer steps")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    seeds, steps = (2, STEPS // 2) if arguments.quick else (arguments.seeds, STEPS)
    rows = study(seeds, steps)
    for trap, title in TITLES.items():
        mine = [row for row in rows if row["trap"] == trap]
        print(f"\n{title}: shares in % after {steps} steps, {seeds} seeds\n")
        print(shares_table(mine, "0"))
        print(f"\nThe same, {FLAKY:.0%} of the calls lost\n\n{shares_table(mine, 'flaky')}")
        print(f"\nAdvantages of honest answers then\n\n{kept_table(mine)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    if arguments.svg:
        arguments.svg.write_text(picture(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
