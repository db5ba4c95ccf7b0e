"""Does `adjudge audit` find what is there, and nothing where nothing is?

False alarms: clean runs of several families (binary and continuous rewards, few and many groups,
runs that honestly learn, heavy-tailed lengths, marks of 1 to 10, components, a judge beside an
environment, tool calls, reasons) and real dumps whose rewards are permuted within groups. Counted
is how often any check finds anything, with the exact 95 % interval. What a real dump has whatever
order its rewards have (most groups of tau-bench have no spread) is named and not counted.

Power: the defects of ``benchmarks/audit_plants.py`` in real dumps, through files: how often the
right check finds each, and how often it is first or second among what was found.

    ADJUDGE_DATA=... python benchmarks/audit_validation.py --runs 400
    ADJUDGE_DATA=... python benchmarks/audit_validation.py --power --runs 20
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.audit_plants import (
    PLANTS,
    Plant,
    Rows,
    load_dump,
    permute_rewards,
    write_dump,
    write_folder,
)

from adjudge.audit import CHECKS, audit_run, read_run
from adjudge.checks.check import CheckOutcome
from adjudge.checks.run import AuditedRollout, AuditedRun

Rollouts = Iterator[AuditedRollout]


@cache
def _sentences() -> tuple[str, ...]:
    rng = random.Random("sentences")
    syllables = ["ka", "lo", "mi", "ren", "tas", "vor", "el", "qui", "dan", "sho", "pe", "ur"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(1500)]
    return tuple(
        " ".join(rng.choices(words, k=rng.randint(5, 18))).capitalize() + "." for _ in range(5000)
    )


def _text(rng: random.Random, sentences: int) -> str:
    """Sentences, some of them with bold words, headings, lists or code."""
    parts = rng.choices(_sentences(), k=max(1, sentences))
    if rng.random() < 0.3:
        parts[0] = f"**{parts[0]}**"
    if rng.random() < 0.2:
        parts.insert(0, "# A title\n")
    if rng.random() < 0.25:
        parts += [f"\n- {one}" for one in rng.choices(_sentences(), k=3)]
    if rng.random() < 0.1:
        parts.append("\n```python\nprint(1)\n```")
    if rng.random() < 0.05:
        parts[-1] = parts[-1].rstrip(".")
    return " ".join(parts)


def make_rollouts(
    rng: random.Random,
    groups: int,
    size: int,
    reward: Callable[[float, int], float | None],
    *,
    steps: int = 0,
    sentences: Callable[[int], int] = lambda step: 8,
    fill: Callable[[AuditedRollout], None] = lambda rollout: None,
) -> Rollouts:
    """Rollouts of groups of different difficulty; ``reward`` has difficulty and step."""
    index = 0
    for group in range(groups):
        difficulty = rng.betavariate(2, 2)
        step = group * steps // groups if steps else None
        for _ in range(size):
            rollout = AuditedRollout(
                index=index,
                where=f"clean.jsonl:{index + 1}",
                group=str(group),
                step=step,
                prompt=f"prompt {group}",
                opening=f"prompt {group}",
                response=_text(rng, sentences(step or 0)),
                reward=reward(difficulty, step or 0),
            )
            fill(rollout)
            index += 1
            yield rollout


def binary_few(rng: random.Random) -> Rollouts:
    return make_rollouts(rng, 16, 8, lambda p, _: float(rng.random() < p))


def binary_many(rng: random.Random) -> Rollouts:
    return make_rollouts(rng, 120, 4, lambda p, _: float(rng.random() < 0.25 + p / 2))


def learning(rng: random.Random) -> Rollouts:
    """Success rises from 20 to 80 %, and answers grow."""

    def reward(p: float, step: int) -> float:
        return float(rng.random() < min(0.95, max(0.05, 0.1 + 0.6 * step / 15 + 0.2 * p)))

    return make_rollouts(
        rng, 64, 8, reward, steps=16, sentences=lambda step: 4 + step + rng.randint(0, 5)
    )


def judge_scores(rng: random.Random) -> Rollouts:
    return make_rollouts(
        rng, 48, 8, lambda p, _: round(min(1, max(0, rng.gauss(0.3 + 0.4 * p, 0.15))), 2)
    )


def heavy_tails(rng: random.Random) -> Rollouts:
    return make_rollouts(
        rng, 40, 8, lambda p, _: rng.gauss(p, 1),
        sentences=lambda _: min(300, int(rng.lognormvariate(2, 1.2))),
    )  # fmt: skip


def marks(rng: random.Random) -> Rollouts:
    def reward(p: float, step: int) -> float:
        return float(min(10, max(1, round(rng.gauss(3 + 5 * p + step / 8, 1.8)))))

    return make_rollouts(rng, 60, 6, reward, steps=12)


def components(rng: random.Random) -> Rollouts:
    def fill(rollout: AuditedRollout) -> None:
        parts = {
            "correct": rollout.reward or 0.0,
            "format": float(rng.random() < 0.8),
            "style": round(rng.betavariate(3, 3), 2),
        }
        rollout.components = dict(parts)
        rollout.reward = parts["correct"] + 0.2 * parts["format"] + 0.3 * parts["style"]

    return make_rollouts(rng, 48, 8, lambda p, _: float(rng.random() < p), fill=fill)


def judge_and_environment(rng: random.Random) -> Rollouts:
    """Both rise as the policy learns; the judge follows the environment with noise."""

    def fill(rollout: AuditedRollout) -> None:
        rollout.env_reward = rollout.reward
        rollout.reward = round(0.2 + 0.5 * (rollout.reward or 0.0) + rng.gauss(0, 0.12), 2)
        if rng.random() < 0.01:
            rollout.reward, rollout.missing = None, "timeout"

    def reward(p: float, step: int) -> float:
        return float(rng.random() < 0.15 + 0.5 * step / 15 + 0.3 * p)

    return make_rollouts(rng, 64, 6, reward, steps=16, fill=fill)


def tool_calls(rng: random.Random) -> Rollouts:
    def fill(rollout: AuditedRollout) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": rollout.prompt}]
        for number in range(rng.randint(1, 8)):
            arguments = json.dumps({"q": rng.choice(_sentences())})
            function = {"name": rng.choice(["search", "open"]), "arguments": arguments}
            call = {"id": str(number), "function": function}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": str(number), "content": rng.choice(_sentences())},
            ]
        rollout.messages = [*messages, {"role": "assistant", "content": rollout.response}]
        rollout.truncated = rng.random() < 0.1

    return make_rollouts(rng, 40, 6, lambda p, _: float(rng.random() < p), fill=fill)


def reasons(rng: random.Random) -> Rollouts:
    """A judge that says what it thinks, in a number, in words or vaguely, once in 100 wrongly."""

    def fill(rollout: AuditedRollout) -> None:
        score = rollout.reward or 0.0
        said = rng.choice(
            [
                f"{rng.choice(_sentences())} Score: {score:g}/10",
                f"Clear. Rating: {score:g} out of 10.",
                "The answer is correct." if score >= 5 else "The answer is incorrect.",
                "It could be clearer, but the timeout of the server is explained.",
                rng.choice(_sentences()),
            ]
        )
        rollout.reasons = {"judge_reason": said}
        if rng.random() < 0.01:
            rollout.reward = 10.0 - score

    return make_rollouts(
        rng, 50, 8, lambda p, _: float(min(10, max(0, round(rng.gauss(10 * p, 2))))), fill=fill
    )


SIMULATED: dict[str, Callable[[random.Random], Rollouts]] = {
    "binary, 16 groups of 8": binary_few,
    "binary, 120 groups of 4": binary_many,
    "binary, learning over 16 steps": learning,
    "judge's scores in [0, 1], 48 x 8": judge_scores,
    "normal rewards, heavy-tailed lengths": heavy_tails,
    "marks of 1 to 10, learning": marks,
    "three components": components,
    "judge beside environment, learning": judge_and_environment,
    "tool calls, 10 % cut off": tool_calls,
    "judge's reasons, 1 % wrong": reasons,
}
PERMUTED = ("ifeval", "judged", "tau", "health")


def audit_rollouts(rollouts: Rollouts) -> list[CheckOutcome]:
    """The outcomes of all checks, without a file."""
    run = AuditedRun({name: fn for check in CHECKS for name, fn in check.features.items()})
    for rollout in rollouts:
        run.add(rollout)
    return audit_run(run)


def audit_rows(rows: Rows, folder: Path, *, as_folder: bool = False) -> list[CheckOutcome]:
    """The outcomes of all checks of rows that went through a file."""
    path = write_folder(rows, folder) if as_folder else write_dump(rows, folder / "dump.jsonl")
    return audit_run(read_run([path]))


def found_names(outcomes: list[CheckOutcome]) -> list[str]:
    """The checks that found something, worst first."""
    return [one.name for one in outcomes if one.state == "found"]


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """The exact (Clopper-Pearson) 95 % interval."""
    from adjudge.stats.estimates import special

    low = float(special.betaincinv(hits, n - hits + 1, 0.025)) if hits else 0.0
    high = float(special.betaincinv(hits + 1, n - hits, 0.975)) if hits < n else 1.0
    return low, high


def clean_alarms(name: str, runs: int, seed: int, data: Path | None) -> tuple[Counter[str], int]:
    """Which checks found something in clean runs of a family, and in how many runs any did."""
    found: Counter[str] = Counter()
    alarmed = 0
    facts: frozenset[str] | None = None
    for number in range(runs):
        rng = random.Random(f"{seed}:{name}:{number}")
        if name in SIMULATED:
            names = found_names(audit_rollouts(SIMULATED[name](rng)))
        else:
            if data is None:
                raise SystemExit("ADJUDGE_DATA: names no folder of real dumps")
            with tempfile.TemporaryDirectory() as folder:
                rows = permute_rewards(load_dump(name, data, rng), rng)
                names = found_names(audit_rows(rows, Path(folder)))
            facts = FACTS.get(name, frozenset())
            found.update(f"({one})" for one in names if one in facts)
            names = [one for one in names if one not in facts]
        found.update(names)
        alarmed += bool(names)
    return found, alarmed


FACTS = {"tau": frozenset({"dead_groups"})}
"""What is true of a dump whatever order its rewards have."""


def print_alarms(runs: int, seed: int, data: Path | None, only: list[str] | None) -> None:
    names = [*SIMULATED, *(PERMUTED if data else ())]
    names = [one for one in names if only is None or any(part in one for part in only)]
    each = math.ceil(runs / len(names))
    print(
        "| clean runs | runs | with a finding | 95 % interval | found (not counted: in brackets) |"
    )
    print("|---|---:|---:|---:|---|")
    total = 0
    for name in names:
        found, alarmed = clean_alarms(name, each, seed, data)
        total += alarmed
        low, high = share_interval(alarmed, each)
        what = ", ".join(f"{one} {times}" for one, times in found.most_common())
        label = name if name in SIMULATED else f"{name} (real, rewards permuted within groups)"
        print(f"| {label} | {each} | {alarmed} | {low:.1%} to {high:.1%} | {what} |", flush=True)
    n = each * len(names)
    low, high = share_interval(total, n)
    print(f"| **all** | {n} | {total} ({total / n:.1%}) | {low:.1%} to {high:.1%} | |")


def detect(plant: Plant, runs: int, seed: int, data: Path) -> tuple[int, int, int, Counter[str]]:
    """How often a defect is found, is first or second; rows of a run; what else is found."""
    hits = near = size = 0
    others: Counter[str] = Counter()
    for number in range(runs):
        rng = random.Random(f"{seed}:{plant.name}:{number}")
        rows = load_dump(plant.dump, data, rng)
        plant.spoil(rows, rng)
        with tempfile.TemporaryDirectory() as folder:
            names = found_names(audit_rows(rows, Path(folder), as_folder=plant.as_folder))
        size = len(rows)
        hits += any(one in names for one in plant.found_by)
        near += any(one in names[:2] for one in plant.found_by)
        others.update(one for one in names if one not in plant.found_by)
    return hits, near, size, others


def print_power(runs: int, seed: int, data: Path, only: list[str] | None) -> None:
    print("| planted | dump | rows | size | found | first or second | also found |")
    print("|---|---|---:|---|---:|---:|---|")
    for plant in PLANTS:
        if only is not None and not any(part in plant.name for part in only):
            continue
        hits, near, size, others = detect(plant, runs, seed, data)
        also = ", ".join(f"{one} {times}" for one, times in others.most_common())
        print(
            f"| {plant.name} | {plant.dump} | {size} | {plant.size} | {hits}/{runs} "
            f"| {near}/{runs} | {also} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, help="clean runs in all (400); runs a defect (20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--power", action="store_true", help="planted defects, not clean runs")
    parser.add_argument("--only", help="parts of names of families or defects, commas between")
    arguments = parser.parse_args()
    data = Path(os.environ["ADJUDGE_DATA"]) if os.environ.get("ADJUDGE_DATA") else None
    only = arguments.only.split(",") if arguments.only else None
    started = time.perf_counter()
    if not arguments.power:
        print_alarms(arguments.runs or 400, arguments.seed, data, only)
    elif data is None:
        raise SystemExit("ADJUDGE_DATA: must name the folder of real dumps")
    else:
        print_power(arguments.runs or 20, arguments.seed, data, only)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
