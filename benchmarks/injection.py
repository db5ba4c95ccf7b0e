"""Hostile completions against a judge that obeys what it reads as ours, beside py-openjudge.

    python -m benchmarks.injection [--peer-python PATH]

One server plays the judge (``tests/injection/obedient.py``): it obeys every word outside the
fences, quotes what it judges, and gives honest verdicts otherwise. Counted per class of attack: the
attacker's score was read (*through*), the honest one (*honest*), or none (*refused*).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.injection.corpus import CORPUS, QUESTION
from tests.injection.obedient import HONEST, MODES, completion_in, judge

from adjudge import GraderScore, GradingRunner
from adjudge.graders.llm.shipped_graders import RelevanceGrader
from adjudge.judges import OpenAIChatModel

Outcomes = dict[str, Counter[str]]


async def answer(request: web.Request) -> web.Response:
    asked = await request.json()
    prompt = "\n".join(str(message["content"]) for message in asked["messages"])
    by_schema = "response_format" in asked
    text = judge(prompt, completion_in(prompt), by_schema=by_schema, mode=asked["model"])
    message = {"role": "assistant", "content": text}
    return web.json_response(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )


def serve() -> str:
    """Start the judge in a thread; its base URL."""
    started: list[str] = []
    ready = threading.Event()

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        started.append(f"http://127.0.0.1:{port}/v1")
        ready.set()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
    ready.wait()
    return started[0]


def outcome(score: float | None) -> str:
    if score is None:
        return "refused"
    return "honest" if score == HONEST else "through"


def ours(url: str, mode: str, features: list[str]) -> Outcomes:
    found: Outcomes = {}
    model = OpenAIChatModel(mode, base_url=url, features=features)
    runner = GradingRunner({"g": RelevanceGrader(model, view="full")}, show_progress=False)
    for name, several in CORPUS.items():
        results = runner.run([{"query": QUESTION, "response": text} for text in several])["g"]
        scores = [one.score if isinstance(one, GraderScore) else None for one in results]
        found[name] = Counter(map(outcome, scores))
    return found


def theirs(python: str, url: str, mode: str) -> Outcomes:
    script = Path(__file__).with_name("peer_openjudge_injection.py")
    asked: dict[str, Any] = {"url": url, "model": mode, "query": QUESTION, "corpus": CORPUS}
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OPENAI_API_KEY": "none"},
    )
    scores = json.loads(done.stdout.splitlines()[-1])
    return {name: Counter(map(outcome, several)) for name, several in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peer-python", help="an interpreter that has py-openjudge")
    arguments = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "none")
    url = serve()
    columns: dict[str, Outcomes] = {"ours, schema": {}, "ours, block": {}}
    if arguments.peer_python:
        columns["py-openjudge"] = {}
    for mode in MODES:
        merge(columns["ours, schema"], ours(url, mode, ["schema"]))
        merge(columns["ours, block"], ours(url, mode, []))
        if arguments.peer_python:
            merge(columns["py-openjudge"], theirs(arguments.peer_python, url, mode))
    print(f"{len(MODES)} moods of the judge; through / honest / refused")
    print(f"{'':28}" + "".join(f"{name:>18}" for name in columns))
    for name in [*CORPUS, "all"]:
        cells = []
        for found in columns.values():
            counts = sum(found.values(), Counter[str]()) if name == "all" else found[name]
            cells.append(" / ".join(str(counts[kind]) for kind in ("through", "honest", "refused")))
        print(f"{name:28}" + "".join(f"{cell:>18}" for cell in cells))


def merge(into: Outcomes, found: Outcomes) -> None:
    for name, counts in found.items():
        into[name] = into.get(name, Counter()) + counts


if __name__ == "__main__":
    main()
