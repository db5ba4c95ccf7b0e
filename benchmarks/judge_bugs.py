"""Run folders in each of which a judge is wrong in one way, for trying whether its page shows that.

    python benchmarks/judge_bugs.py OUT --key KEY.json [--seed 0] [--bugs 12] [--groups 8]

Small word problems (made here), four answers each, are graded by ``adjudge grade`` with a judge
behind HTTP: a server process that knows which answers are right. In each run either the spec, the
rollouts or the judge has one planted fault; two runs are healthy. The folders have neutral names
(``OUT/run-01`` …) in an order drawn from the seed, and only KEY.json says what is planted where.
A reader who has the pages of the folders (``adjudge view OUT/run-01``) should name the faults.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.judge_faults import BUGS, GERMAN, HEALTHY, PROBLEMS, Question, Run, Task, make_task


def chosen_runs(seed: int, bugs: int) -> list[Run]:
    """The runs in the order of their folders."""
    runs = [*BUGS[:bugs], *HEALTHY]
    random.Random(f"order {seed}").shuffle(runs)
    return runs


def make_tasks(run: Run, place: int, seed: int, groups: int) -> list[Task]:
    """The tasks of the run in folder ``place``, each run with numbers of its own."""
    rng = random.Random(f"tasks {seed} {place}")
    chosen = [(one, False) for one in rng.sample(PROBLEMS, min(groups, len(PROBLEMS)))]
    if run.german:
        chosen = [*chosen[: groups // 2], *((one, True) for one in GERMAN[: groups - groups // 2])]
        rng.shuffle(chosen)
    made, number = [], 0
    for problem, german in chosen:
        task = make_task(rng, problem, german=german)
        answers = []
        for answer in task.answers:
            answers.append(run.change(number, answer))
            number += 1
        made.append(replace(task, answers=answers))
    return made


def make_rows(run: Run, tasks: list[Task]) -> list[dict[str, Any]]:
    """The rollouts, with the environment's reward, as a trainer dumps them."""
    rows = [
        {
            "group": f"task-{number:02}",
            "messages": [
                {"role": "user", "content": task.question},
                {"role": "assistant", "content": answer.text},
            ],
            "reference": task.truth,
            "env_reward": float(answer.right),
        }
        for number, task in enumerate(tasks)
        for answer in task.answers
    ]
    return run.rows(rows)


# --- the judge -----------------------------------------------------------------------------------

_FENCE = re.compile(r"<([a-z_]+)-([0-9a-f]{6,})>\n?(.*?)\n?</\1-\2>", re.DOTALL)
_TURN = re.compile(r"^\[\S+\] user: ")


class Judge:
    """The judge of one run: finds what it is asked about among the run's tasks."""

    def __init__(self, run: Run, tasks: list[Task]) -> None:
        self.run = run
        self.is_first = bool(run.first_model)
        self._answers = {
            (self._bare(task.question), self._bare(answer.text)): (task, answer)
            for task in tasks
            for answer in task.answers
        }

    @staticmethod
    def _bare(text: str) -> str:
        return re.sub(
            r"\s+", " ", re.sub(r"<\s?/?think>.*?<\s?/think>", "", text, flags=re.DOTALL)
        ).strip()

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """The response's body to a request's."""
        text = "\n".join(str(message["content"]) for message in body["messages"])
        shown: dict[str, str] = {}
        for name, _, inside in _FENCE.findall(text):
            shown.setdefault("query" if name in {"conversation", "prompt"} else name, inside)
        query = _TURN.sub("", self._bare(shown.get("query", "")))
        found = self._answers.get((query, self._bare(shown.get("response", ""))), (None, None))
        repair = "Your last reply" in text
        asked = Question(text, shown, repair, *found)
        said = (self.run.first_reply if self.is_first else self.run.reply)(asked)
        content = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        sizes = len(text) // 4, len(content) // 4
        return {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": self.run.first_model if self.is_first else self.run.model,
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": content},
                }
            ],
            "usage": {
                "prompt_tokens": sizes[0],
                "completion_tokens": sizes[1],
                "total_tokens": sum(sizes),
            },
        }


def serve(seed: int, bugs: int, groups: int) -> None:
    """Answer under ``/run-01/v1`` and so on; ``GET /run-01`` puts a run's first model out."""
    runs = chosen_runs(seed, bugs)
    judges = {
        f"run-{place:02}": Judge(run, make_tasks(run, place, seed, groups))
        for place, run in enumerate(runs, 1)
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            judges[self.path.split("/")[1]].is_first = False
            self.send_json({})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_json(judges[self.path.split("/")[1]].reply(body))

        def send_json(self, body: dict[str, Any]) -> None:
            answer = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # whoever asked has gone
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        print(server.server_address[1], flush=True)
        server.serve_forever()


@contextmanager
def judge_server(arguments: list[str]) -> Iterator[str]:
    """The judge in a process of its own; its address."""
    command = [sys.executable, __file__, *arguments, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


# --- the folders ---------------------------------------------------------------------------------


def write_spec(path: Path, run: Run, url: str) -> None:
    judge = f'[judges.main]\ntype = "vllm"\nmodel = "grader-large"\nbase_url = "{url}/v1"\n'
    judge += f"temperature = 0.0\n{run.judge_keys}"
    calm = "[judges.main.endpoint]\nhedge = false\n"  # a hedge more or less is no finding
    path.write_text(f"version = 1\n{run.spec}\n{judge}{calm}")


def grade(rollouts: Path, spec: Path, out: Path) -> None:
    """``adjudge grade``; a run with a few missing rewards is a run."""
    words = ["grade", str(rollouts), "--spec", str(spec), "-o", str(out), "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "adjudge", *words], capture_output=True, text=True, check=False
    )
    if done.returncode not in {0, 1}:
        raise SystemExit(f"{out}: adjudge grade ended with {done.returncode}:\n{done.stderr}")


def make_run(out: Path, place: int, run: Run, url: str, seed: int, groups: int) -> None:
    """Grade one run into ``OUT/run-NN``, its inputs beside it under ``OUT/inputs``."""
    name = f"run-{place:02}"
    inputs = out / "inputs" / name
    inputs.mkdir(parents=True, exist_ok=True)
    rows = make_rows(run, make_tasks(run, place, seed, groups))
    rollouts, spec = inputs / "rollouts.jsonl", inputs / "reward.toml"
    rollouts.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_spec(spec, run, f"{url}/{name}")
    if run.first_model:  # what the cache has of earlier
        earlier, old = inputs / "earlier.jsonl", inputs / "earlier"
        half = [row for number, row in enumerate(rows) if number % 2]
        earlier.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in half))
        grade(earlier, spec, old)
        urllib.request.urlopen(f"{url}/{name}", timeout=30).close()
    grade(rollouts, spec, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--key", type=Path, help="where it is written what is planted where")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bugs", type=int, default=12, help=f"the first so many of {len(BUGS)}")
    parser.add_argument("--groups", type=int, default=8, help="tasks of four answers a run")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.serve:
        serve(found.seed, found.bugs, found.groups)
        return
    if found.key is None or (found.out.exists() and any(found.out.iterdir())):
        parser.error("needs --key FILE and a folder that is new or empty")
    sizes = ["--seed", str(found.seed), "--bugs", str(found.bugs), "--groups", str(found.groups)]
    key = {}
    with judge_server([str(found.out), *sizes]) as url:
        for place, run in enumerate(chosen_runs(found.seed, found.bugs), 1):
            make_run(found.out, place, run, url, found.seed, found.groups)
            key[f"run-{place:02}"] = {"bug": run.name, "what": run.planted, "shows": run.shows}
            print(f"{found.out}/run-{place:02}")
    found.key.write_text(json.dumps(key, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
