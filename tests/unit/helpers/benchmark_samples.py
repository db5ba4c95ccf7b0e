"""Made rows of the benchmarks' shapes, whose right answers a rule can check."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.rows import write_jsonl

from adjudge.judge_evaluation.benchmarks.items import BenchmarkKind
from adjudge.judge_evaluation.benchmarks.readers import REWARDBENCH2_SUBSETS, TIES_SUBSET

__all__ = ["is_right_sample_answer", "sample_rows", "write_sample"]

_ANIMALS = ("otter", "heron", "badger", "lynx", "newt", "swift", "hare", "carp")
_SENTENCES = ("It is {}.", "The answer is {}.", "{}", "I would say {}.")
_LLMBAR_SUBSETS = ("Natural", "Neighbor", "GPTInst", "GPTOut", "Manual")
_JUDGEBENCH_SOURCES = ("mmlu-pro-law", "livebench-reasoning", "livebench-math", "livecodebench")


def sample_rows(
    kind: BenchmarkKind, per_subset: int = 12, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Rows of the benchmark's own columns, ``per_subset`` for each of its subsets.

    Ties has that many prompts, each as ``ref:N`` and ``tied:N``. The same seed makes the same rows.
    """
    rng = random.Random(f"{kind} {seed}")
    makers: dict[BenchmarkKind, Callable[[random.Random, int], list[dict[str, Any]]]] = {
        "rewardbench2": _rewardbench2,
        "llmbar": _llmbar,
        "judgebench": _judgebench,
        "preference": _preference,
    }
    return makers[kind](rng, per_subset)


def write_sample(path: Path, kind: BenchmarkKind, per_subset: int = 12, *, seed: int = 0) -> Path:
    """:func:`sample_rows` as a JSONL file; the path of it."""
    return write_jsonl(path, sample_rows(kind, per_subset, seed=seed))


def is_right_sample_answer(prompt: str, answer: str) -> bool:
    """Whether an answer to one of these prompts is right.

    >>> is_right_sample_answer("What is 3 plus 4?", "It is 7.")
    True
    >>> is_right_sample_answer("Name an even number.", "9")
    False
    """
    said = answer.rstrip(".").split()[-1]
    words = prompt.rstrip("?.").split()
    if words[0] == "What":
        return said == str(int(words[2]) + int(words[4]))
    if words[0] == "Name":
        return said.isdecimal() and int(said) % 2 == 0
    return said == words[-1].upper()


def _question(rng: random.Random) -> tuple[str, str, list[str]]:
    """A prompt with its right answer and three wrong ones."""
    if rng.random() < 0.5:
        a, b = rng.randint(2, 40), rng.randint(2, 40)
        others = rng.sample([n for n in range(2, 90) if n != a + b], 3)
        return f"What is {a} plus {b}?", str(a + b), [str(one) for one in others]
    word = rng.choice(_ANIMALS)
    wrong = [word, word.capitalize(), rng.choice([w for w in _ANIMALS if w != word]).upper()]
    return f"Write in capitals: {word}", word.upper(), wrong


def _word_answer(rng: random.Random, answer: str) -> str:
    return rng.choice(_SENTENCES).format(answer)


def _rewardbench2(rng: random.Random, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for subset in REWARDBENCH2_SUBSETS[:-1]:
        for number in range(count):
            prompt, right, wrong = _question(rng)
            rows.append(_bon(f"{subset}-{number}", subset, prompt, [right], wrong, rng))
    for number in range(count):
        evens = rng.sample(range(10, 99, 2), 4)
        odds = rng.sample(range(11, 99, 2), 4)
        a, b = rng.randint(2, 40), rng.randint(2, 40)
        wrong = [str(a + b + step) for step in rng.sample((-3, -1, 1, 2, 5), 3)]
        asked = "Name an even number."
        tied = _bon(
            f"tied:{number}", TIES_SUBSET, asked, [*map(str, evens)], [*map(str, odds)], rng
        )
        rows += [
            _bon(f"ref:{number}", TIES_SUBSET, f"What is {a} plus {b}?", [str(a + b)], wrong, rng),
            tied,
        ]
    return rows


def _bon(
    identity: str, subset: str, prompt: str, right: list[str], wrong: list[str], rng: random.Random
) -> dict[str, Any]:
    return {
        "id": identity,
        "prompt": prompt,
        "chosen": [_word_answer(rng, one) for one in right],
        "rejected": [_word_answer(rng, one) for one in wrong],
        "num_correct": len(right),
        "num_incorrect": len(wrong),
        "total_completions": len(right) + len(wrong),
        "subset": subset,
    }


def _llmbar(rng: random.Random, count: int) -> list[dict[str, Any]]:
    rows = []
    for subset in _LLMBAR_SUBSETS:
        for _ in range(count):
            prompt, first, second, label = _ordered_pair(rng)
            row = {"input": prompt, "output_1": first, "output_2": second, "label": label}
            rows.append({**row, "subset": subset})
    return rows


def _judgebench(rng: random.Random, count: int) -> list[dict[str, Any]]:
    rows = []
    for source in _JUDGEBENCH_SOURCES:
        for number in range(count):
            prompt, first, second, label = _ordered_pair(rng)
            rows.append(
                {
                    "pair_id": f"{source}-{number}",
                    "source": source,
                    "question": prompt,
                    "response_A": first,
                    "response_B": second,
                    "label": "A>B" if label == 1 else "B>A",
                }
            )
    return rows


def _preference(rng: random.Random, count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        prompt, right, wrong = _question(rng)
        asked = {"role": "user", "content": prompt}
        chosen, rejected = (
            [asked, {"role": "assistant", "content": _word_answer(rng, one)}]
            for one in (right, wrong[0])
        )
        margin = float(rng.randint(1, 4))
        rows.append({"id": f"p{number}", "chosen": chosen, "rejected": rejected, "margin": margin})
    return rows


def _ordered_pair(rng: random.Random) -> tuple[str, str, str, int]:
    """A prompt, two answers, and which of them (1 or 2) is right."""
    prompt, right, wrong = _question(rng)
    good, bad = _word_answer(rng, right), _word_answer(rng, rng.choice(wrong))
    return (prompt, good, bad, 1) if rng.random() < 0.5 else (prompt, bad, good, 2)
