"""What training a judge comes to on the tiny model: padding, noisy labels, GRPO.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/judge_training.py PART [--seeds 3]
        [--json FILE]

Needs what `adjudge train` needs. Parts:

- ``padding``: Bradley-Terry on the same pairs in the same order, batches padded to their longest
  row and to the maximum length; real tokens per CPU second of the training steps, and the losses.
- ``noise``: a quarter of the training and held-out labels flipped, so that no judge can expect more
  than the Bayes rate.
- ``grpo``: both examples of GRPO from the judges that SFT leaves, by seed: before and after.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.train_overlap import quiet

from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.judge_training.run import run_judge

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MAX_LENGTH = 512
"""Of the padding's comparison; the synthetic rows are about a sixth of it."""

Row = dict[str, Any]


def train(file: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Train a judge; its summary and the rows of its metrics."""
    source = folder.with_suffix(".json")
    source.write_text(json.dumps(file))
    judge = JudgeFile.from_dict(file, environ={})
    summary = run_judge(JudgeJob(judge, source, folder))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return summary, [json.loads(line) for line in lines]


@contextmanager
def padded(multiple: int | None) -> Iterator[list[float]]:
    """Batches padded to a multiple of so many tokens; the CPU seconds of each training step."""
    import trl

    from adjudge_lab.judge_training import supervised, trl_trainers

    seconds: list[float] = []
    settings, step = trl_trainers.trainer_arguments, trl.RewardTrainer.training_step

    def with_padding(*given: Any, **named: Any) -> dict[str, Any]:
        return {**settings(*given, **named), "pad_to_multiple_of": multiple}

    def timed(*given: Any, **named: Any) -> Any:
        started = time.process_time()
        loss = step(*given, **named)
        seconds.append(time.process_time() - started)
        return loss

    with (
        patch.object(supervised, "trainer_arguments", with_padding),
        patch.object(trl.RewardTrainer, "training_step", timed),
    ):
        yield seconds


def padding(folder: Path, rounds: int) -> Row:
    """Rounds of both arms in turns; the median ratio of tokens per CPU second."""
    file = {
        "method": "bradley_terry",
        "model": {"path": "tiny"},
        "data": {
            "train_batch_size": 32, "micro_batch_size": 8, "max_length": MAX_LENGTH,
            "synthetic": {"n": 700},
        },
        "optim": {"lr": 3e-3},
        "trainer": {"total_epochs": 1, "eval_every": 1000},
    }  # fmt: skip
    speeds: dict[str, list[float]] = {"longest": [], "maximum": []}
    losses: dict[str, list[float]] = {}
    tokens = 0.0
    for turn in range(rounds):
        for arm, multiple in (("longest", None), ("maximum", MAX_LENGTH)):
            with padded(multiple) as seconds:
                summary, rows = train(file, folder / f"{arm}-{turn}")
            speeds[arm].append(summary["tokens"] / sum(seconds))
            tokens = summary["tokens"] / (2 * summary["data"]["train_rows"]["rows"])
            losses[arm] = [row["train/loss"] for row in rows if "train/loss" in row]
    pairs = zip(speeds["longest"], speeds["maximum"], strict=True)
    gaps = zip(losses["longest"], losses["maximum"], strict=True)
    return {
        "tokens_per_cpu_s": {arm: round(median(found)) for arm, found in speeds.items()},
        "mean_tokens_of_a_side": round(tokens, 1),
        "ratio": median(ours / theirs for ours, theirs in pairs),
        "steps": len(losses["longest"]),
        "largest_loss_gap": max(abs(ours - theirs) for ours, theirs in gaps),
    }


def noise(folder: Path, seeds: int) -> list[Row]:
    """Held-out accuracy beside the Bayes rate, by seed."""
    found = []
    for seed in range(seeds):
        file = {
            "method": "bradley_terry",
            "model": {"path": "tiny"},
            "data": {
                "train_batch_size": 64, "micro_batch_size": 64, "max_length": 128,
                "synthetic": {"n": 30_000, "noise": 0.25, "seed": seed},
            },
            "optim": {"lr": 3e-3},
            "trainer": {"total_epochs": 2, "seed": seed},
        }  # fmt: skip
        summary, _ = train(file, folder / str(seed))
        last = summary["validation"]
        found.append(
            {
                "seed": seed,
                "before": summary["first"]["accuracy"],
                "after": last["accuracy"],
                "bayes": last["bayes_accuracy"],
                "rows": last["rows"],
                "seconds": summary["seconds"]["total"],
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def grpo(folder: Path, seeds: int) -> list[Row]:
    """Both modes, each from its own SFT judge; measures on held-out rows."""
    found = []
    for seed in range(seeds):
        for mode in ("pointwise", "pairwise"):
            place = folder / f"{mode}-{seed}"
            beginner = {"pointwise": "judge_sft_pointwise_tiny", "pairwise": "judge_sft_tiny"}
            first = example(beginner[mode], seed, {})
            start, _ = train(first, place.with_name(f"sft-{place.name}"))
            file = example(
                f"judge_grpo_{mode}_tiny", seed,
                {"model": {"path": str(place.with_name(f"sft-{place.name}"))}},
            )  # fmt: skip
            summary, _ = train(file, place)
            names = ("accuracy", "consistency", "error", "unread", "reward_mean")
            found.append(
                {
                    "mode": mode,
                    "seed": seed,
                    "before": {k: v for k, v in summary["first"].items() if k in names},
                    "after": {k: v for k, v in summary["validation"].items() if k in names},
                    "sft_s": start["seconds"]["total"],
                    "grpo_s": summary["seconds"]["total"],
                }
            )
            print(json.dumps(found[-1]), flush=True)
    return found


def example(name: str, seed: int, changed: dict[str, Any]) -> dict[str, Any]:
    """An example's content with another seed and the tables of ``changed``."""
    from adjudge.config import load_toml

    file = {**load_toml(EXAMPLES / f"{name}.toml"), **changed}
    return {**file, "trainer": {**file.get("trainer", {}), "seed": seed}}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one part and print what it found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=("padding", "noise", "grpo"))
    parser.add_argument("--seeds", type=int, default=3, help="seeds, or rounds of padding")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(argv)
    quiet()
    parts = {"padding": padding, "noise": noise, "grpo": grpo}
    with TemporaryDirectory() as scratch:
        found = parts[asked.part](Path(scratch), asked.seeds)
    text = json.dumps(found, indent=2)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
