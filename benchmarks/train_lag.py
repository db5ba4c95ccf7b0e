"""The tiny run one step behind its judge (`pipeline_async_enabled`), beside the same run in step.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/train_lag.py [--quick] [--seeds 3]
        [--starts FOLDER] [--json FILE]

Needs what `adjudge train` needs. Each seed of `examples/rl_tiny.toml` is trained twice from the
same warm start. The ratio is of the policy that learns to the one that spoke, per token before the
update, by a forward pass of this file: in step it says how far generating and training compute
apart, one step behind what one update changes. A token is clipped where the loss stops at it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.train_overlap import EXAMPLE, quiet

from adjudge.runner.journal import Journal
from adjudge.trainers.scoring import Scorer
from adjudge_lab.rl.collector import RolloutCollector
from adjudge_lab.rl.episodes import build_task
from adjudge_lab.rl.local_player import LocalPlayer
from adjudge_lab.rl.policy import build_first_policy, load_policy, save_policy
from adjudge_lab.rl.rewards import start_run_judge
from adjudge_lab.rl.rollouts import RolloutStore
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import load_run_file
from adjudge_lab.rl.trl_backend import TrainerHooks, train_policy

CLIP = 0.2
"""The trainer's epsilon."""
GOOD, OVER = 0.8, 5
"""A run has learned when the mean reward of so many steps reaches this."""

HEAD = (
    "| seed | lag | reward | gold | steps to 0.8 | mean of abs(ratio - 1) | ratio from, to "
    "| tokens clipped | waited | wall |"
)

Row = dict[str, float]


class Compared(TrainerHooks):
    """A run's side of the trainer that notes each step's ratios."""

    def __init__(self, run: RunFile, collector: RolloutCollector, model: Any, **named: Any) -> None:
        super().__init__(run, collector, **named)
        self._model, self._temperature = model, run.rollout.temperature
        self.ratios: list[Row] = []

    def shape_batch(self, output: dict[str, Any]) -> dict[str, Any]:
        output = super().shape_batch(output)
        self.ratios.append(self._compare(output))
        return output

    def _compare(self, output: dict[str, Any]) -> Row:
        import torch

        said = output["completion_ids"]
        ids, seen = (
            torch.cat([output[f"prompt_{name}"], output[f"completion_{name}"]], dim=1)
            for name in ("ids", "mask")
        )
        with torch.no_grad():
            logits = self._model(input_ids=ids, attention_mask=seen).logits
        logits = logits[:, -said.size(1) - 1 : -1].float() / self._temperature
        now = torch.log_softmax(logits, dim=-1).gather(-1, said.unsqueeze(-1)).squeeze(-1)
        own = output["completion_mask"].bool() & (output.get("tool_mask", said == said) > 0)
        ratio = (now - output["sampling_per_token_logps"])[own].exp()
        wanted = output["advantages"].expand(own.shape)[own]
        clipped = ((ratio > 1 + CLIP) & (wanted > 0)) | ((ratio < 1 - CLIP) & (wanted < 0))
        return {
            "off": float((ratio - 1).abs().mean()),
            "least": float(ratio.min()),
            "most": float(ratio.max()),
            "clipped": float(clipped.float().mean()),
        }


def run_of(seed: int, lag: int, quick: bool) -> RunFile:
    """The example's run of ``seed``, in step or one step behind."""
    run = load_run_file(EXAMPLE).with_seed(seed)
    changed = {"pipeline_async_enabled": bool(lag), "save_every_n_iters": 1000}
    if quick:
        changed |= {"iterations_per_epoch": 10, "warm_start_iterations": 40}
    return run.model_copy(update={"training": run.training.model_copy(update=changed)})


def trained(run: RunFile, start: Path) -> Row:
    """Train from the policy in ``start``: what the run came to."""
    with TemporaryDirectory() as folder, start_run_judge(run, Path(folder)) as (spec, _):
        scratch = Path(folder)
        model, tokenizer = load_policy(start)
        journal = Journal(scratch / "journal.jsonl", "lag")
        player = LocalPlayer(
            model, tokenizer,
            max_tokens=run.rollout.max_tokens, temperature=run.rollout.temperature,
            seed=run.training.seed,
        )  # fmt: skip
        collector = RolloutCollector(
            run, build_task(run, spec), Scorer(spec, journal=journal), player,
            journal=journal, store=RolloutStore(scratch / "state"),
        )  # fmt: skip
        side = Compared(run, collector, model, on_settled=lambda _: None)
        rows: list[Row] = []
        train_policy(
            model, tokenizer, run, side, folder=scratch / "checkpoints", resume=None,
            on_step=stepping(rows), on_saved=lambda _: None,
        )  # fmt: skip
    return summary(rows, side.ratios)


def stepping(rows: list[Row]) -> Callable[[int, Row], bool]:
    """Hears of steps, and keeps their rows with the time at which each was done."""

    def stepped(_: int, row: Row) -> bool:
        rows.append({**row, "at": time.perf_counter()})
        return False

    return stepped


def summary(rows: Sequence[Row], ratios: Sequence[Row]) -> Row:
    """First and last tenth, steps to the goal, ratios, seconds from the first step's end on."""
    tenth = max(1, len(rows) // 10)
    rewards = [row["reward"] for row in rows]
    good = (n for n in range(OVER, len(rewards) + 1) if fmean(rewards[n - OVER : n]) >= GOOD)
    return {
        "reward_first": fmean(rewards[:tenth]),
        "reward_last": fmean(rewards[-tenth:]),
        "gold_first": fmean(row["judge/gold_score_mean"] for row in rows[:tenth]),
        "gold_last": fmean(row["judge/gold_score_mean"] for row in rows[-tenth:]),
        "steps_to_good": next(good, math.nan),
        "off": fmean(one["off"] for one in ratios),
        "least": min(one["least"] for one in ratios),
        "most": max(one["most"] for one in ratios),
        "clipped": fmean(one["clipped"] for one in ratios),
        "lag": fmean(row["lag"] for row in rows),
        "generate_s": sum(row["generate_s"] for row in rows),
        "wait_s": sum(row["judge_wait_s"] for row in rows),
        "wall_s": rows[-1]["at"] - rows[0]["at"],
    }


def table(found: Sequence[tuple[int, int, Row]]) -> str:
    """Markdown."""
    lines = [HEAD, "|---" * HEAD[1:].count("|") + "|"]
    for seed, lag, one in found:
        steps = "not reached" if math.isnan(one["steps_to_good"]) else f"{one['steps_to_good']:.0f}"
        lines.append(
            f"| {seed} | {lag} | {one['reward_first']:.3f} → {one['reward_last']:.3f} "
            f"| {one['gold_first']:.3f} → {one['gold_last']:.3f} | {steps} | {one['off']:.1e} "
            f"| {one['least']:.3g} to {one['most']:.3g} | {one['clipped']:.1%} "
            f"| {one['wait_s']:.0f} s | {one['wall_s']:.0f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train each seed in step and behind, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one seed, 10 steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", type=Path, help="keep warm starts here, and use those there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    quiet()
    found: list[tuple[int, int, Row]] = []
    with TemporaryDirectory() as scratch:
        for seed in range(1 if given.quick else given.seeds):
            start = warmed(run_of(seed, 0, given.quick), given.starts or Path(scratch), scratch)
            for lag in ((0, 1), (1, 0))[seed % 2]:  # what the machine does meets both alike
                found.append((seed, lag, trained(run_of(seed, lag, given.quick), start)))
                said = table(found[-1:]).splitlines()[-1]
                print(f"{said} load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    found.sort()
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps([{"seed": s, **one} for s, _, one in found], indent=1))


def warmed(run: RunFile, folder: Path, scratch: str) -> Path:
    """The policy after the warm start of ``run``."""
    training = run.training
    place = folder / f"start-{training.seed}-{training.warm_start_iterations}"
    if not (place / "tokenizer.json").is_file():
        model, tokenizer, _ = build_first_policy(run, f"{scratch}/sft", lambda _: None)
        save_policy(model, tokenizer, place)
    return place


if __name__ == "__main__":
    main()
