"""What the flight recorder costs a trainer's step: the same calls with and without, one run.

``python benchmarks/recorder.py [--samples 512] [--steps 30] [--chars 2000]``. Pairs of a step with
and one without, in turns; a step is followed by a pause, in which a trainer would generate and
learn, and the thread writes. *In the step* is what the trainer waits for; *CPU* is what the process
computes in step and pause together, the thread's part included.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from statistics import median

from adjudge.rewards import RewardSample, RewardSpec
from adjudge.trainers.progress import TrainerProgress
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.scoring import Scorer

GROUP = 8
SPEC = {"graders": [{"name": "right", "type": "string_match"}]}


def make_batch(count: int, chars: int, step: int) -> tuple[list[RewardSample], list[str]]:
    """Conversations of about ``chars`` characters, another batch each step."""
    draw = random.Random(step)
    samples = []
    for at in range(count):
        words = " ".join(str(draw.random()) for _ in range(chars // 19))
        messages = [
            {"role": "user", "content": f"What is {at} + {step}?"},
            {"role": "assistant", "content": words},
        ]
        prompt = str(messages[0]["content"])
        extra = {"reference": str(at + step)}
        samples.append(RewardSample(at, at % GROUP, prompt, words, messages, extra))
    return samples, [str(at // GROUP) for at in range(count)]


def measure_step(scorer: Scorer, count: int, chars: int, step: int, pause_s: float) -> list[float]:
    """Seconds in the call, and of processor time in the call and the pause."""
    samples, groups = make_batch(count, chars, step)
    started, computed = time.perf_counter(), time.process_time()
    scorer.score(samples, groups, progress=TrainerProgress(step))
    waited = time.perf_counter() - started
    time.sleep(pause_s)
    return [waited, time.process_time() - computed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--chars", type=int, default=2000)
    parser.add_argument("--pause", type=float, default=0.5)
    options = parser.parse_args()
    spec = RewardSpec.from_dict(SPEC)
    with tempfile.TemporaryDirectory() as folder:
        recorder = FlightRecorder(folder)
        arms = {"without": Scorer(spec), "with": Scorer(spec, record=recorder)}
        found: dict[str, list[list[float]]] = {name: [] for name in arms}
        for step in range(-2, options.steps):
            for name in sorted(arms, reverse=bool(step % 2)):
                times = measure_step(
                    arms[name], options.samples, options.chars, step + 2, options.pause
                )
                if step >= 0:
                    found[name].append(times)
        recorder.close()
        size = (Path(folder) / "rollouts.jsonl").stat().st_size / (options.steps + 2)
    print(
        f"{options.samples} samples of {options.chars:,} characters, {size / 2**20:.1f} MiB a step"
    )
    for number, what in enumerate(("in the step", "CPU")):
        without, with_ = (
            [1000 * row[number] for row in found[name]] for name in ("without", "with")
        )
        extra = median(b - a for a, b in zip(without, with_, strict=True))
        print(
            f"{what:12} without {median(without):7.1f} ms, with {median(with_):7.1f} ms; paired "
            f"difference {extra:5.2f} ms, {extra / 10:.2f} % of a step of 1 s"
        )


if __name__ == "__main__":
    main()
