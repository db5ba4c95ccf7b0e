"""What batches gain with a scalar judge on this machine, behind the real service.

    python benchmarks/service_local.py [--items N] [--rounds N] [--json FILE]

It needs torch and transformers. Two random models of one architecture are made on the spot: a small
one, whose forward pass costs as much as its overhead, and a larger one that is bound by its
arithmetic. Each is served twice, ``batch_size`` 1 and 16, and asked about the same completions of
mixed length by 32 connections that each have one request under way. Rounds interleave; medians.
Scores must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from adjudge.service.server import start_service

CONNECTIONS = 32
SIZES = {"2 layers × 64": (2, 64), "4 layers × 192": (4, 192)}
BATCHES = (1, 16)
SPEC = """
[[graders]]
name = "rm"
type = "scalar"
activation = "sigmoid"
[judges.main]
type = "local"
task = "score"
model = {model}
dtype = "float32"
batch_size = {batch}
"""


def make_model(folder: Path, layers: int, width: int) -> None:
    """A random sequence classifier and a tokenizer of whole words."""
    import torch
    import transformers

    from adjudge_lab.rl.tiny import build_tiny_tokenizer

    tokenizer = build_tiny_tokenizer(iter([" ".join(WORDS)]))
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.1,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.Qwen2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


WORDS = [f"word{number}" for number in range(500)]


def completions(items: int) -> list[dict[str, str]]:
    chance = random.Random(0)
    return [
        {
            "prompt": " ".join(chance.choices(WORDS, k=12)),
            "completion": " ".join(chance.choices(WORDS, k=chance.randint(4, 60))),
        }
        for _ in range(items)
    ]


def ask_all(url: str, items: list[dict[str, str]]) -> tuple[float, list[float]]:
    """Seconds for all, and their scores."""
    scores: list[float] = [0.0] * len(items)
    places = iter(range(len(items)))
    lock = threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            body = json.dumps(items[place]).encode()
            with urllib.request.urlopen(f"{url}/judge", body, timeout=300) as response:
                scores[place] = json.loads(response.read())["score"]  # a refusal raises

    threads = [threading.Thread(target=worker) for _ in range(CONNECTIONS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started, scores


def measure(label: str, items: int, rounds: int) -> dict[str, Any]:
    layers, width = SIZES[label]
    asked = completions(items)
    times: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    found: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as running:
        folder = Path(scratch)
        make_model(folder / "model", layers, width)
        urls = {}
        for batch in BATCHES:
            spec = folder / f"{batch}.toml"
            spec.write_text(SPEC.format(model=json.dumps(str(folder / "model")), batch=batch))
            urls[batch] = running.enter_context(start_service(str(spec), deadline_s=300.0))
            ask_all(urls[batch], asked[:8])
        for _ in range(rounds):
            for batch, url in urls.items():
                seconds, found[batch] = ask_all(url, asked)
                times[batch].append(seconds)
    rates = {batch: items / statistics.median(seconds) for batch, seconds in times.items()}
    apart = max(abs(a - b) for a, b in zip(*found.values(), strict=True))
    return {
        "model": label,
        "one by one, items/s": rates[1],
        "in batches of 16, items/s": rates[16],
        "gain": rates[16] / rates[1],
        "largest difference": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for label in SIZES:
        rows.append(measure(label, arguments.items, arguments.rounds))
        shown = (f"{key} {value:.4g}" for key, value in rows[-1].items() if key != "model")
        print(f"{label}: {', '.join(shown)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    if any(row["largest difference"] > 1e-5 for row in rows):
        sys.exit("scores differ by more than 1e-5")


if __name__ == "__main__":
    main()
