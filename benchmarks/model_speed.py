"""Tokens a second of a small model and a scalar judge's calls, against the matmul ceiling.

    python benchmarks/model_speed.py FOLDER [--device D] [--dtype T] [--rounds 3] [--json FILE]

FOLDER has the weights of a language model as transformers saves them; `adjudge train` with
`base = "smollm2"` writes them into the user's cache. Device and dtype are found as the judges find
them: the first GPU and bfloat16, else the CPU and float32. The same commands run on both; `--small`
takes lengths and batches for two cores.

Four figures, medians of rounds that interleave. The ceiling: multiply-adds of large square matrices
in the same dtype, two operations each. Generating: `draw_replies`, which plays evaluation episodes.
Learning: forward, backward and AdamW, six operations a weight and token. Judging: the judge type
`local` with `task = "score"`, asked by many callers at once about conversations of so many tokens,
two operations a weight and token (attention is left out of all three).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from adjudge.judges.models.local import LocalScalarModel
from adjudge_lab.rl.local_player import draw_replies


class Sizes(NamedTuple):
    """What is done in one round; ``judged_tokens`` is the length of a judged conversation."""

    matrix: int
    replies: int
    reply_tokens: int
    learnt: int
    learnt_tokens: int
    judged: int
    judged_tokens: int


LARGE = Sizes(8192, 256, 128, 64, 512, 512, 1024)
SMALL = Sizes(1024, 16, 32, 8, 128, 8, 1024)


class Bench:
    """One model on one device, and what a round does with it."""

    def __init__(self, folder: Path, device: str, dtype: str, sizes: Sizes, scratch: Path) -> None:
        import torch
        import transformers

        self.sizes, self.device = sizes, torch.device(device)
        self.dtype = getattr(torch, dtype)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(folder, dtype=self.dtype).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        self.weights = sum(one.numel() for one in self.model.parameters())
        judge = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=1, dtype=self.dtype, pad_token_id=self.tokenizer.pad_token_id
        )
        judge.save_pretrained(scratch)
        self.tokenizer.save_pretrained(scratch)
        self.judge = LocalScalarModel(
            scratch, device=device, dtype=dtype, batch_size=16, max_length=2 * sizes.judged_tokens
        )
        self._text = self._make_text(sizes.judged_tokens)

    def _make_text(self, tokens: int) -> str:
        words = random.Random(0).choices(
            ["a", "river", "town", "light", "over", "stone", "seven", "paper"], k=tokens
        )
        ids = self.tokenizer(" ".join(words))["input_ids"][:tokens]
        return str(self.tokenizer.decode(ids))

    def _wait(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def multiply(self) -> float:
        """Operations of one product of square matrices."""
        import torch

        side = self.sizes.matrix
        one = torch.randn(side, side, device=self.device, dtype=self.dtype)
        for _ in range(8):
            torch.mm(one, one)
        return 8 * 2.0 * side**3

    def generate(self) -> float:
        """Tokens drawn; replies that end early count what they have."""
        drawn = 0

        def count(_: int, tokens: list[int], __: list[float]) -> None:
            nonlocal drawn
            drawn += len(tokens)

        turns = [{"role": "user", "content": "Tell me a long story about a river."}]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        prompt = self.tokenizer(text)["input_ids"]
        draw_replies(
            self.model, self.tokenizer, [prompt] * self.sizes.replies,
            max_tokens=self.sizes.reply_tokens, temperature=1.0, seed=1, on_end=count,
        )  # fmt: skip
        return float(drawn)

    def learn(self) -> float:
        """Tokens of one update."""
        import torch

        shape = (self.sizes.learnt, self.sizes.learnt_tokens)
        ids = torch.randint(100, 1000, shape, device=self.device)
        self.model.train()
        self.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(ids.numel())

    def ask(self) -> float:
        """Conversations judged."""

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(self.sizes.judged):
                    group.create_task(self.judge.ascore(f"Question {number}", self._text))

        asyncio.run(all_of_them())
        return float(self.sizes.judged)

    def time(self, work: Callable[[], float]) -> float:
        """Units of ``work`` a second."""
        self._wait()
        began = time.perf_counter()
        done = work()
        self._wait()
        return done / (time.perf_counter() - began)


def find_device(device: str | None, dtype: str | None) -> tuple[str, str]:
    """Those asked for, or what judges of type local take on this machine."""
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return device, dtype or ("float32" if device == "cpu" else "bfloat16")


def measure(bench: Bench, rounds: int) -> dict[str, float]:
    """Medians a second, and shares of the ceiling in this run."""
    works = {
        "matmul_flops": bench.multiply,
        "generated_tokens": bench.generate,
        "learnt_tokens": bench.learn,
        "judged_calls": bench.ask,
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()  # warm
    for _ in range(rounds):
        for name, work in works.items():
            rates[name].append(bench.time(work))
    found = {name: median(values) for name, values in rates.items()}
    ceiling, weights = found["matmul_flops"], bench.weights
    return found | {
        "learning_share": 6 * weights * found["learnt_tokens"] / ceiling,
        "judging_share": 2 * weights * bench.sizes.judged_tokens * found["judged_calls"] / ceiling,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="lengths and batches for two cores")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, dtype = find_device(arguments.device, arguments.dtype)
    with tempfile.TemporaryDirectory() as scratch:
        sizes = SMALL if arguments.small else LARGE
        found: dict[str, Any] = measure(
            Bench(arguments.folder, device, dtype, sizes, Path(scratch)), arguments.rounds
        )
    found |= {"device": device, "dtype": dtype}
    print(f"{device}, {dtype}; medians of {arguments.rounds}")
    print(f"matmul          {found['matmul_flops'] / 1e9:12,.0f} GFLOP/s")
    print(f"generating      {found['generated_tokens']:12,.0f} tokens/s")
    learning, judging = found["learning_share"], found["judging_share"]
    print(f"learning        {found['learnt_tokens']:12,.0f} tokens/s  {learning:6.0%} of matmul")
    print(f"judging         {found['judged_calls']:12,.2f} calls/s   {judging:6.0%} of matmul")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
