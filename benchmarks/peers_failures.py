"""Twenty answers, one rubric and a judge that fails: what adjudge and four other libraries return.

    python -m benchmarks.peers_failures [--quick] [--seeds 5] [--only NAME …] [--json FILE]

Every library grades the same answers in an environment of its own, in a fresh process, against
``adjudge mock``, in two ways: at its defaults, and with what its documentation has against failures
(six attempts a call, a time-out of 10 s). The judge's verdict on an answer is known, so each answer
is one of four: ``right``; ``missing`` (no score, and the result says so); ``invented`` (a number
that the judge did not give, or one from fewer criteria than the rubric has); ``lost`` (an exception
came instead of a result). A library that has not ended after ``CAP_S`` is stopped.

Exit code 1 where a library reads the healthy judge wrong, since its other numbers mean nothing
then, and where adjudge invents a number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
QUESTION = "Why is the sky blue?"
WORDS = ("sunlight", "air", "short waves")
CRITERIA = [f'The answer names "{word}".' for word in WORDS]
NAMED = [[word for place, word in enumerate(WORDS) if n % 7 + 1 & 1 << place] for n in range(20)]
"""What each answer names: no answer deserves 0, so a failure that became 0 is seen."""
ANSWERS = [f"Answer {n:02}: because of {' and '.join(found)}." for n, found in enumerate(NAMED)]
TRUTH = [len(found) / len(WORDS) for found in NAMED]

ATTEMPTS, TIMEOUT_S, CAP_S = 6, 10.0, 180.0
STILL_WAITING = 75
"""The exit code of a client that has not ended after ``CAP_S``."""
JUDGES = {
    "healthy": [],
    "failing": ["--fail", "500:0.4", "--fail", "empty:0.2"],
    "hanging": ["--fail", "hang=60:0.1"],
    "401": ["--fail", "401:1"],
}
NOBODY = "nobody there"
CASES = (*JUDGES, NOBODY)
KINDS = ("right", "missing", "invented", "lost")
BEST = "best retries"
WAYS = ("defaults", BEST)

Outcome = tuple[str, float | None]
"""A kind, where only the client can tell it, and a score."""


def compose(n: int, form: Callable[[str, str, bool], Any]) -> list[Any]:
    """A part of the judge's reply on answer ``n`` for each criterion."""
    return [form(word, text, word in NAMED[n]) for word, text in zip(WORDS, CRITERIA, strict=True)]


def script_adjudge(n: int) -> Iterable[tuple[str, Any]]:
    marks = compose(n, lambda _, __, met: {"reason": "-", "verdict": "MET" if met else "UNMET"})
    yield ANSWERS[n], {str(place): mark for place, mark in enumerate(marks, 1)}


def script_autorubric(n: int) -> Iterable[tuple[str, Any]]:
    """One call for each criterion: a key goes from the criterion to the answer."""
    between = f"\n</criterion>\n\n<input>{QUESTION}</input>\n\n<submission>\n"
    yield from compose(n, lambda _, text, met: (
        text + between + ANSWERS[n],
        {"criterion_status": "MET" if met else "UNMET", "explanation": "-"},
    ))  # fmt: skip


def script_score(n: int) -> Iterable[tuple[str, Any]]:
    yield ANSWERS[n], {"score": TRUTH[n], "reason": "-"}


def script_verifiers(n: int) -> Iterable[tuple[str, Any]]:
    verdicts = compose(n, lambda word, _, met: {
        "name": word, "reason": "-", "verdict": "yes" if met else "no",
    })  # fmt: skip
    yield ANSWERS[n], {"verdicts": verdicts}


# ── clients: each runs in the environment of its library ─────────────────────────────────────────


async def gather(calls: Iterable[Awaitable[Outcome]]) -> list[Outcome]:
    """What each call gave; a call that raised has lost its answer."""
    found = await asyncio.gather(*calls, return_exceptions=True)  # noqa: TID251  (not ours)
    return [("lost", None) if isinstance(one, BaseException) else one for one in found]


def grade_adjudge(url: str, best: bool) -> Callable[[], list[Outcome]]:
    import adjudge
    from adjudge.errors import AdjudgeError

    judge = {"type": "openai", "model": "mock", "base_url": url}
    endpoint = {"endpoint": {"max_attempts": ATTEMPTS}} if best else {}
    grader = {"name": "rubric", "type": "rubric", "criteria": CRITERIA}
    spec = {"graders": [grader], "judges": {"main": judge | endpoint}}
    rollouts = [{"prompt": QUESTION, "response": answer} for answer in ANSWERS]

    def run() -> list[Outcome]:
        try:
            return [
                ("", reward) for reward in adjudge.grade(rollouts, spec, progress=False).rewards
            ]
        except AdjudgeError as error:
            print(error)
            return [("lost", None)] * len(ANSWERS)

    return run


def grade_autorubric(url: str, best: bool) -> Callable[[], list[Outcome]]:
    from autorubric import LLMConfig, Rubric
    from autorubric.graders import CriterionGrader

    # Its own retries leave 500 to LiteLLM's.
    sdk = {"extra_params": {"max_retries": ATTEMPTS - 1}}
    limits = {"max_retries": ATTEMPTS, "timeout": TIMEOUT_S, **sdk} if best else {}
    grader = CriterionGrader(
        judge_model_config=LLMConfig(model="openai/mock", api_base=url, api_key="none", **limits)
    )
    rubric = Rubric.from_dict([{"weight": 1.0, "requirement": text} for text in CRITERIA])

    async def grade(answer: str) -> Outcome:
        result = await rubric.grade(to_grade=answer, grader=grader, query=QUESTION)
        fewer = result.score is not None and result.cannot_assess_count
        return "invented" if fewer else "", result.score

    return lambda: asyncio.run(gather(map(grade, ANSWERS)))


def grade_openjudge(url: str, best: bool) -> Callable[[], list[Outcome]]:
    from openjudge.graders.llm_grader import LLMGrader
    from openjudge.models.openai_chat_model import OpenAIChatModel
    from openjudge.runner.grading_runner import GraderConfig, GradingRunner

    limits = {"max_retries": ATTEMPTS - 1, "timeout": TIMEOUT_S} if best else {}
    model = OpenAIChatModel("mock", base_url=url, api_key="none", **limits)
    template = "\n".join([*CRITERIA, "{query}", "{response}", "JSON: reason, score"])
    grader = GraderConfig(LLMGrader(model, name="rubric", template=template))
    runner = GradingRunner({"rubric": grader}, show_progress=False)
    rows = [{"query": QUESTION, "response": answer} for answer in ANSWERS]

    def run() -> list[Outcome]:
        results = asyncio.run(runner.arun(rows))["rubric"]
        return [("", getattr(result, "score", None)) for result in results]

    return run


def grade_verifiers(url: str, best: bool) -> Callable[[], list[Outcome]]:
    """Its judge, on rollouts that are there: in a run a retry makes the rollout anew."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.retries import run_episode_with_retry

    path = Path(tempfile.mkdtemp()) / "rubric.json"
    named = [{"name": word, "text": text} for word, text in zip(WORDS, CRITERIA, strict=True)]
    path.write_text(json.dumps(named))
    judge = {"id": "rubric", "path": path, "base_url": url, "model": "mock"}
    judge |= {"api_key_var": "OPENAI_API_KEY"}
    judge |= {"timeout": {"read": TIMEOUT_S}} if best else {}
    config = vf.TaskConfig.model_validate({"judges": [judge]})
    retries = vf.RetryConfig(max_retries=ATTEMPTS - 1 if best else 0)

    async def roll(answer: str) -> Any:
        task = vf.Task(vf.TaskData(prompt=QUESTION), config)
        named = vf.TraceTask(type="Plain", data=task.data)
        trace = vf.Trace(task=named, agent=vf.AgentInfo(config=vf.AgentConfig()))
        trace.nodes.append(vf.MessageNode(message=vf.UserMessage(content=QUESTION)))
        said = vf.AssistantMessage(content=answer)
        trace.nodes.append(vf.MessageNode(parent=0, message=said, sampled=True))
        try:
            await task.score(trace)
            trace.ok = True
        except Exception as error:  # noqa: BLE001  (as its own agent does)
            trace.record_error(error)
        return vf.Episode(task=named, traces=[trace], ok=trace.ok)

    async def grade(answer: str) -> Outcome:
        episode = await run_episode_with_retry(lambda: roll(answer), retries)
        return "", episode.traces[0].reward if episode.ok else None

    return lambda: asyncio.run(gather(map(grade, ANSWERS)))


def grade_openenv(url: str, best: bool) -> Callable[[], list[Outcome]]:
    """Its client has no setting for retries or time-outs."""
    from openenv.core.llm_client import OpenAIClient
    from openenv.core.rubrics.llm_judge import LLMJudge

    template = "\n".join([*CRITERIA, "{observation}", "{action}", "Score (0-1):"])
    judge = LLMJudge(template, OpenAIClient(url, None, "mock"))

    async def grade(answer: str) -> Outcome:
        return "", await judge(answer, QUESTION)

    return lambda: asyncio.run(gather(map(grade, ANSWERS)))


def weigh(package: str) -> dict[str, float]:
    """A package and all that it requires as installed here: packages, and MB without bytecode."""
    from importlib.metadata import PackageNotFoundError, distribution

    from pip._vendor.packaging.requirements import Requirement

    found: dict[str, int] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(package, frozenset())]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform's, which the marker does not say
        files = [Path(str(file.locate())) for file in one.files or ()]
        if package == name == "adjudge":  # installed as a link to this checkout
            files += (ROOT / "src").rglob("*")
        found[one.metadata["Name"]] = sum(
            file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc"
        )
        for text in one.requires or ():
            need = Requirement(text)
            active = any(
                need.marker is None or need.marker.evaluate({"extra": extra})
                for extra in ("", *extras)
            )
            step = (need.name, frozenset(need.extras))
            if active and step not in seen:
                seen.add(step)
                waiting.append(step)
    return {"packages": len(found), "mb": round(sum(found.values()) / 1e6)}


class System:
    """A library: its environment, its client, and the judge's replies in the form it reads."""

    def __init__(
        self,
        package: str,
        environment: str,
        imports: str,
        grade: Callable[[str, bool], Callable[[], list[Outcome]]],
        script: Callable[[int], Iterable[tuple[str, Any]]],
        can_retry: bool = True,
    ) -> None:
        self.package, self.environment, self.imports = package, environment, imports
        self.grade, self.script, self.can_retry = grade, script, can_retry

    def python(self) -> str:
        if self.package == "adjudge":
            return sys.executable
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return str(Path(cache) / "adjudge" / "envs" / self.environment / "bin" / "python")

    def write_script(self, path: Path) -> None:
        rows = [row for n in range(len(ANSWERS)) for row in self.script(n)]
        lines = [json.dumps({"when": when, "reply": reply}) for when, reply in rows]
        path.write_text("\n".join(lines))


SYSTEMS = {
    "adjudge": System("adjudge", "", "from adjudge import grade", grade_adjudge, script_adjudge),
    "autorubric": System(
        "autorubric", "autorubric", "from autorubric.graders import CriterionGrader",
        grade_autorubric, script_autorubric,
    ),
    "py-openjudge": System(
        "py-openjudge", "openjudge", "from openjudge.graders.llm_grader import LLMGrader",
        grade_openjudge, script_score,
    ),
    "verifiers": System(
        "verifiers", "verifiers", "import verifiers.v1",
        grade_verifiers, script_verifiers,
    ),
    "OpenEnv": System(
        "openenv", "openenv", "from openenv.core.rubrics.llm_judge import LLMJudge",
        grade_openenv, script_score, can_retry=False,
    ),
}  # fmt: skip


def run_client(name: str, url: str, best: str, out: str) -> None:
    """One library's part, in its own interpreter."""
    from importlib.metadata import version

    system = SYSTEMS[name]
    if not url:
        found: dict[str, Any] = {"version": version(system.package), **weigh(system.package)}
    else:
        run = system.grade(url, best == "best")
        signal.signal(signal.SIGALRM, lambda *_: os._exit(STILL_WAITING))
        signal.alarm(int(CAP_S))
        start = time.perf_counter()
        outcomes = run()
        found = {"seconds": time.perf_counter() - start, "outcomes": outcomes}
    Path(out).write_text(json.dumps(found))


# ── the comparison ───────────────────────────────────────────────────────────────────────────────


def call_client(name: str, url: str, best: bool) -> dict[str, Any] | None:
    """What the client wrote; ``None`` where it had not ended after ``CAP_S``."""
    system = SYSTEMS[name]
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        command = [system.python(), "-m", "benchmarks.peers_failures", "--client", name]
        command += [url, "best" if best else "defaults", str(out)]
        with log.open("w") as file:
            done = subprocess.run(
                command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        if done.returncode == STILL_WAITING:
            return None
        if done.returncode:
            sys.exit(f"{name}: its client failed:\n{log.read_text(errors='replace')[-3000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def environment() -> dict[str, str]:
    """No proxy, a key that is none, bytecode, and no import that asks the network."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.upper().endswith("_PROXY") and name != "PYTHONDONTWRITEBYTECODE"
    }
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LOGURU_AUTOINIT": "0"}
    return kept | quiet | {"OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT / "src")}


def judge_once(name: str, case: str, best: bool, seed: int) -> dict[str, float]:
    """How many answers came out how, and the seconds, for one library before one judge."""
    if case == NOBODY:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return count(call_client(name, f"http://127.0.0.1:{port}/v1", best))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "judge.jsonl"
        SYSTEMS[name].write_script(script)
        command = [sys.executable, "-m", "adjudge", "mock", "--json", "--until-eof"]
        command += ["--script", str(script), "--latency", "fixed:0.2", "--seed", str(seed)]
        with subprocess.Popen(
            [*command, *JUDGES[case]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as mock:
            assert mock.stdin is not None
            assert mock.stdout is not None
            try:
                return count(
                    call_client(name, json.loads(mock.stdout.readline())["base_url"], best)
                )
            finally:
                mock.stdin.close()
                mock.kill()


def count(found: dict[str, Any] | None) -> dict[str, float]:
    if found is None:
        return {"waiting": len(ANSWERS), "seconds": CAP_S}
    kinds: Counter[str] = Counter()
    for (kind, score), truth in zip(found["outcomes"], TRUTH, strict=True):
        correct = score is not None and abs(score - truth) < 1e-3
        kinds[kind or ("missing" if score is None else "right" if correct else "invented")] += 1
    return {**kinds, "seconds": found["seconds"]}


def time_import(system: System) -> float:
    """Seconds of the best of three fresh interpreters, less those of a bare one."""

    def start(code: str) -> float:
        begin = time.perf_counter()
        subprocess.run(
            [system.python(), "-c", code], env=environment(), check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return time.perf_counter() - begin

    return min(start(system.imports) for _ in range(3)) - min(start("pass") for _ in range(3))


def cell(row: dict[str, float]) -> str:
    if "waiting" in row:
        return f"still waiting after {CAP_S:.0f} s"
    counts = " / ".join(str(int(row.get(kind, 0))) for kind in KINDS)
    return f"{counts} ({row['seconds']:.0f} s)"


def write_table(report: dict[str, Any]) -> str:
    """The Markdown table: a row for each library and way, a column for each judge."""
    cases = report["cases"]
    lines = ["| | " + " | ".join(cases) + " | install | import |", "|---" * (len(cases) + 3) + "|"]
    for name, one in report["systems"].items():
        for way, rows in one["ways"].items():
            cells = [cell(rows[case]) for case in cases]
            weight = f"{one['packages']} packages, {one['mb']} MB"
            cells += [weight, f"{one['import_s']:.1f} s"]
            lines.append(f"| {name} {one['version']}, {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def compare(names: Sequence[str], cases: Sequence[str], seeds: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"Python {platform.python_version()}, {os.cpu_count()} cores",
        "seeds": seeds, "cases": list(cases), "systems": {},
    }  # fmt: skip
    for name in names:
        one = report["systems"][name] = {
            **(call_client(name, "", best=False) or {}),
            "import_s": time_import(SYSTEMS[name]),
            "ways": {},
        }
        for way in WAYS if SYSTEMS[name].can_retry else WAYS[:1]:
            rows = one["ways"][way] = {}
            for case in cases:
                runs = range(seeds) if case == "failing" else range(1)
                found = [judge_once(name, case, way == BEST, seed) for seed in runs]
                total = Counter[str]()
                for row in found:
                    total.update(row)
                rows[case] = dict(total) | {"seconds": total["seconds"] / len(found)}
                print(f"{name}, {way}, {case}: {cell(rows[case])}", file=sys.stderr, flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one seed, and no judge that hangs")
    parser.add_argument(
        "--seeds", type=int, default=5, help="of the failing judge, 20 answers each"
    )
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.client:
        run_client(*options.client)
        return
    cases = [case for case in CASES if not (options.quick and case == "hanging")]
    report = compare(options.only, cases, 1 if options.quick else options.seeds)
    print(write_table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    faults = [
        f"{name}, {way}, {case}: {cell(row)}"
        for name, one in report["systems"].items()
        for way, rows in one["ways"].items()
        for case, row in rows.items()
        if (case == "healthy" and row.get("right") != len(ANSWERS))
        or (name == "adjudge" and row.get("invented"))
    ]
    sys.exit("\n".join(["", "wrong:", *faults]) if faults else 0)


if __name__ == "__main__":
    main()
