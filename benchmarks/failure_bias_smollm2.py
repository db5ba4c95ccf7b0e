"""What failed judge calls do to a real small model: left out (adjudge), or counted as 0.

    adjudge models fetch smollm2
    python benchmarks/failure_bias_smollm2.py RUNS [--seeds 3] [--steps 30] [--jobs 2] [--json FILE]

Each arm is a run of `adjudge train` on the prompts of examples/rl_smollm2.toml, in a folder of RUNS
and a process of its own, `--jobs` of them at a time, which share the processor's cores. The same
command goes on where it stopped; the policies of an arm that has ended are removed. The judge is
the rule that checks the instructions, so what a failed call would have said is known: a share of
its calls ends in a reply that cannot be read, at random or in proportion to the answer's length
(a time-out would be taken for an outage, where half of them fail). As 0, it gives what many reward
functions give then. Held-out answers are scored by the rule without failures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.failure_bias_runs import Seen, measures

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.files import iter_rows
from adjudge.graders.base import BaseGrader
from adjudge.graders.instructions.grader import IFEvalGrader
from adjudge.stats.estimates import Estimate
from adjudge_lab.rl.comparison import paired_difference

Row = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent

SHARE = 0.2
CHARACTERS = 150.0
"""About the length of an answer at the start: there a call fails with the stated share."""

KINDS = ("random", "length")
POLICIES = {"mask": "left out", "zero": "as 0"}


class Arm(NamedTuple):
    """``kind`` of failure (``none``, ``random``, ``length``) and what it counts as."""

    kind: str
    policy: str
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """The folder of its run."""
        return f"{self.kind}-{self.policy}-{self.steps}-{self.seed}"


class FlakyInstructions(BaseGrader):
    """The mean of the share of instructions followed and of 1 where all are; fails on purpose.

    Range [0, 1]. A call fails by what it is about, so it fails again when it is asked again.
    ``as_zero``: gives 0 in place of a failure.
    """

    score_range = (0.0, 1.0)

    def __init__(self, kind: str = "none", seed: int = 0, as_zero: bool = False) -> None:
        super().__init__()
        self._kind, self._seed, self._as_zero = kind, seed, as_zero

    async def aevaluate(self, response: str, instruction_id_list: Any, kwargs: Any) -> float:
        if not fails(self._kind, self._seed, response, instruction_id_list):
            return score(response, instruction_id_list, kwargs)
        if self._as_zero:
            return 0.0
        raise GradingFailure(ErrorKind.UNPARSABLE, "made to fail")


def fails(kind: str, seed: int, response: str, instructions: Sequence[str]) -> bool:
    """Whether the call about a response fails; the same call fails every time."""
    if kind == "none":
        return False
    odds = SHARE * (len(response) / CHARACTERS if kind == "length" else 1.0)
    return random.Random(f"{seed} {instructions} {response}").random() < odds


def score(response: str, instruction_id_list: Any, kwargs: Any) -> float:
    """What the judge says where it answers."""
    followed = IFEvalGrader().evaluate(response, instruction_id_list, kwargs).score
    return (followed + float(followed == 1.0)) / 2


RUN_FILE = """\
version = 1
[model]
base = "smollm2"
[[graders]]
name = "followed"
type = "benchmarks.failure_bias_smollm2:FlakyInstructions"
kind = "{kind}"
seed = {seed}
as_zero = {as_zero}
[judge]
combine_mode = "replace"
[rollout]
dataset = {dataset}
max_tokens = 40
[training]
iterations_per_epoch = {steps}
batch_size = 32
group_size = 8
learning_rate = {learning_rate}
trained_layers = 8
save_every_n_iters = 15
seed = {seed}
[evaluation]
seeds = "0-143"
split = "split"
[logging]
to = "none"
"""


def list_arms(seeds: int, steps: int) -> list[Arm]:
    """Seed by seed: without failures, then each kind of failure, left out and as 0."""
    return [
        Arm(kind, policy, seed, steps)
        for seed in range(seeds)
        for kind, policy in [("none", "mask"), *((k, p) for k in KINDS for p in POLICIES)]
    ]


def train(arm: Arm, folder: Path, learning_rate: float, threads: int) -> None:
    """Run the arm, or go on with it; a run that has ended is left alone."""
    if (folder / "summary.json").exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.parent / f"{arm.name}.toml"
    text = RUN_FILE.format(
        kind=arm.kind, seed=arm.seed, as_zero=str(arm.policy == "zero").lower(), steps=arm.steps,
        dataset=json.dumps(str(ROOT / "examples" / "instruction_rows.jsonl")),
        learning_rate=learning_rate,
    )  # fmt: skip
    file.write_text(text, encoding="utf-8")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    subprocess.run(
        [sys.executable, "-m", "adjudge_lab", "train", str(file), "-o", str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(threads),
        },
        check=True,
    )
    shutil.rmtree(folder / "checkpoints")  # gigabytes, and nothing here reads them


def read_arm(arm: Arm, folder: Path) -> Row:
    """What the arm's advantages were, and its policy after training."""
    steps: dict[int, list[Row]] = {}
    for row in iter_rows(folder / "rollouts.jsonl", Row):
        steps.setdefault(int(row["step"]), []).append(row)
    columns = {row["seed"]: row for row in _dataset_rows()}
    seen = [_read_step(arm, rows, columns) for _, rows in sorted(steps.items())]
    lengths = [len(_answer(row)) for rows in steps.values() for row in rows]
    tenth = max(1, len(lengths) // 10)
    evaluated = list(iter_rows(folder / "evaluation_rollouts.jsonl", Row))
    last = max(int(row["step"]) for row in evaluated)
    before, after = (
        {int(row["seed"]): row for row in evaluated if int(row["step"]) == step}
        for step in (0, last)
    )
    return {
        **arm._asdict(),
        **measures(seen, 8),
        "missing_first": _share_failed(seen[: max(1, len(seen) // 10)]),
        "missing_last": _share_failed(seen[-max(1, len(seen) // 10) :]),
        "characters_first": fmean(lengths[:tenth]),
        "characters_last": fmean(lengths[-tenth:]),
        "characters_after": fmean(len(_answer(row)) for row in after.values()),
        "gold_before": {seed: _gold(row, row["columns"]) for seed, row in before.items()},
        "gold_after": {seed: _gold(row, row["columns"]) for seed, row in after.items()},
    }


def _dataset_rows() -> Iterator[Row]:
    rows = iter_rows(ROOT / "examples" / "instruction_rows.jsonl", Row)
    return ({**row, "seed": number} for number, row in enumerate(rows))


def _answer(row: Row) -> str:
    return str(row["messages"][-1]["content"])


def _gold(row: Row, columns: Mapping[str, Any]) -> float:
    return score(_answer(row), columns["instruction_id_list"], columns["kwargs"])


def _read_step(arm: Arm, rows: Sequence[Row], columns: Mapping[int, Row]) -> Seen:
    """A step in the order of its groups; a failed call has no reward, whatever it counted as."""
    rows = sorted(rows, key=lambda row: int(row["index"]))
    asked = [columns[int(row["seed"])] for row in rows]
    gold = [_gold(row, one) for row, one in zip(rows, asked, strict=True)]
    failed = [
        fails(arm.kind, arm.seed, _answer(row), one["instruction_id_list"])
        for row, one in zip(rows, asked, strict=True)
    ]
    present = [None if lost else value for lost, value in zip(failed, gold, strict=True)]
    return Seen(present, gold, gold, [_advantage(row) for row in rows])


def _advantage(row: Row) -> float:
    """What the sample taught; one without a reward is not learned from."""
    return 0.0 if row["advantage"] is None else float(row["advantage"])  # adjudge: meant


def _share_failed(steps: Sequence[Seen]) -> float:
    return fmean(one is None for step in steps for one in step.present)


def compare(rows: Sequence[Row], kind: str) -> dict[str, Estimate]:
    """Gold on held-out prompts: each policy against no failures, and left out against as 0.

    Pairs are a prompt and a seed; intervals are over prompts.
    """

    def after(kind: str, policy: str) -> dict[tuple[int, int], float]:
        return {
            (row["seed"], prompt): value
            for row in rows
            if (row["kind"], row["policy"]) == (kind, policy)
            for prompt, value in row["gold_after"].items()
        }

    def difference(one: tuple[str, str], other: tuple[str, str]) -> Estimate:
        first, second = after(*one), after(*other)
        return paired_difference(
            (prompt, value, second.get((seed, prompt))) for (seed, prompt), value in first.items()
        )

    return {
        "left out − none": difference((kind, "mask"), ("none", "mask")),
        "as 0 − none": difference((kind, "zero"), ("none", "mask")),
        "left out − as 0": difference((kind, "mask"), (kind, "zero")),
    }


class Column(NamedTuple):
    """A number of an arm, and how it is written."""

    title: str
    key: str
    form: str


COLUMNS = (
    Column("missing, first tenth", "missing_first", ".0%"),
    Column("missing, last tenth", "missing_last", ".0%"),
    Column("error, judged", "error_answered", ".2f"),
    Column("error, own group", "error_group", ".2f"),
    Column("invented", "invented", ".0%"),
    Column("characters, last tenth", "characters_last", ".0f"),
    Column("characters, after", "characters_after", ".0f"),
    Column("gold, before", "gold_before", ".3f"),
    Column("gold, after", "gold_after", ".3f"),
)


def tabulate(rows: Sequence[Row]) -> str:
    """Markdown: a line for each kind and policy, mean and range over the seeds."""
    lines = ["| failures | count as | " + " | ".join(one.title for one in COLUMNS) + " |"]
    lines.append("|---|---|" + "---|" * len(COLUMNS))
    for kind, policy in dict.fromkeys((row["kind"], row["policy"]) for row in rows):
        seeds = [row for row in rows if (row["kind"], row["policy"]) == (kind, policy)]
        cells = [_cell([_number(row[one.key]) for row in seeds], one.form) for one in COLUMNS]
        counted = "–" if kind == "none" else POLICIES[policy]
        lines.append(f"| {kind} | {counted} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: Any) -> float:
    return fmean(value.values()) if isinstance(value, dict) else float(value)


def _cell(values: Sequence[float], form: str) -> str:
    mean, low, high = (format(of(values), form) for of in (fmean, min, max))
    return mean if low == high else f"{mean} ({low}–{high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("runs", type=Path, help="the folder of the arms' runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--jobs", type=int, default=1, help="arms at a time")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folders = {
        arm: arguments.runs / arm.name for arm in list_arms(arguments.seeds, arguments.steps)
    }
    threads = max(1, (os.cpu_count() or 1) // arguments.jobs)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [
            pool.submit(train, arm, folder, arguments.learning_rate, threads)
            for arm, folder in folders.items()
        ]
        for one in waiting:
            one.result()
    rows = [read_arm(arm, folder) for arm, folder in folders.items()]
    print(tabulate(rows))
    for kind in KINDS:
        for name, found in compare(rows, kind).items():
            print(f"{kind}: {name}: {found}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
