"""Freeze what the program does, so that a change of its insides can be compared by a script.

    python benchmarks/golden.py record before --path src:lab/src [--python PY] [--only grade,help]
    python benchmarks/golden.py compare before after [--rename OLD=NEW] [--modules]

``record`` runs the command line and the servers as a user does, imports nothing of them, and writes
a text for each case: output, exit code, the files of run folders, replies over HTTP. What differs
from run to run (times, ports, folders, random keys) is left out. ``compare`` prints what differs;
numbers may by ``--tolerance``. ``--rename`` writes BEFORE with other names, of modules say;
``--modules`` takes all dotted names of the package for one. Files, commands and requests are in
golden_cases.toml. Mocks have set ports, since addresses are part of a spec's hash; a second
recording at the same time waits for them.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import html
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PORT = 18_630
"""The first port of mocks: addresses are part of specs, and specs have hashes."""
KEY = "a-key-of-this-recording"
CLEARED = re.compile(
    r"ADJUDGE_|OPENAI|ANTHROPIC|GROQ|RAY_|MODEL_|ENVIRONMENT_|.*_proxy$|XDG_", re.IGNORECASE
)
VOLATILE = re.compile(
    r"elapsed\w*|created\w*|started\w*|finished\w*|\w+_per_s|pid|port|duration\w*|wall\w*|"
    r"latency\w*|\w*wait\w*_s|uptime\w*|at|fence\w*|p\d\d(_s)?|time|seconds|busy\w*|"
    r"changed_at|cpu_s|peak|limit|peak_in_flight|loop_lag\w*"
)
"""Keys of JSON whose numbers and texts are times, or random; null, true and lists stay."""
TEXTS = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?( UTC)?", "<time>"),
    (r"\b\d{8}-\d{6}\b", "<stamp>"),
    (r"(127\.0\.0\.1|localhost|0\.0\.0\.0):\d{4,5}", r"\1:<port>"),
    (r"[\d.,]+ (samples|requests|episodes)/s", r"<n> \1/s"),
    (r"[\d.e−]+( / [\d.e−]+)+ m?s\b", "<times>"),
    (r"(?<![\w.])[\d.,]+(e−\d+)? m?s\b", "<n> s"),
    (r"(peak, limit now(\s|</?t[hd][^>]*>)+)\d+, \d+", r"\1<n>"),
    (r"-[0-9a-f]{8,32}(?=[>\\ ])", "-<fence>"),
    (r"(pid|process)[ =]\d+", r"\1 <n>"),
    (r'"created":\d+', '"created":<n>'),
    (r'"<volatile>"(.*)"c": "\w+"', r'"<volatile>"\1"c": "<checksum>"'),
    (r'tests="(.*) time="[\d.]+"', r'tests="\1 time="<n>"'),
    (r"done-\(.*\)", "done-(<file>)"),
    (r"Linux-[\w.-]+", "<platform>"),
    (r"(?<![\d.])\d+\.\d+\.\d+(?![\d.])", "<version>"),
]
ROWS_IN_ANY_ORDER = re.compile(r"journal|judgement|episode|answers|calls|cassette|scores")

DATA: dict[str, Any] = tomllib.loads((HERE / "benchmarks/golden_cases.toml").read_text())
GROUP = {"prompt": "2+2?", "answer": "4", "group_id": "g", "group_size": 2}


def walk(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: walk(one, key) for key, one in value.items() if key != "connections"}
    if isinstance(value, list):
        return [walk(one, name) for one in value]
    if (
        VOLATILE.fullmatch(name)
        and isinstance(value, int | float | str)
        and not isinstance(value, bool)
    ):
        return "<volatile>"
    return value


def free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


class Work:
    """A case's folder, its commands, and what they came to."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="golden-"))
        self.options, self.python, self.said = options, options.python, [""]
        self.env = {k: v for k, v in os.environ.items() if not CLEARED.match(k)}
        self.env |= {
            "HOME": str(self.folder / "home"),
            "COLUMNS": "240",
            "TZ": "UTC",
            "TERM": "dumb",
        }
        self.names = {str(self.folder): "<work>", options.python: "<python>"}
        if options.path:
            self.env["PYTHONPATH"] = options.path
            self.names |= dict.fromkeys(options.path.split(os.pathsep), "<path>")
        self.files("http://127.0.0.1:9")

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    def files(self, url: str) -> None:
        for name, text in DATA["files"].items():
            self.write(name, text.replace("URL", f"{url}/v1"))

    def examples(self) -> list[Path]:
        shutil.copytree(self.options.examples, self.folder / "examples", dirs_exist_ok=True)
        return sorted((self.folder / "examples").glob("*.toml"))

    def plain(self, text: str) -> str:
        for found, name in self.names.items():
            text = text.replace(found, name)
        for pattern, name in TEXTS:
            text = re.sub(pattern, name, text)
        return "\n".join(line.rstrip() for line in text.splitlines())

    def any(self, text: str) -> str:
        """JSON with its volatile values left out, else plain text."""
        try:
            return self.plain(json.dumps(walk(json.loads(text)), indent=1, ensure_ascii=False))
        except ValueError:
            return self.plain(text)

    def say(self, title: str, text: str) -> None:
        self.said.append(f"### {title}\n{text}\n" if text.strip() else f"### {title}: nothing\n")

    def run(self, *words: str, **env: str) -> str:
        """One command, and the files that are new or other after it."""
        before = {
            path: path.stat().st_mtime_ns for path in self.folder.rglob("*") if path.is_file()
        }
        done = subprocess.run(
            [self.python, "-m", "adjudge", *words], cwd=self.folder, env=self.env | env,
            capture_output=True, text=True, timeout=150, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.said.append(self.plain(f"\n$ adjudge {' '.join(words)}\nexit {done.returncode}\n"))
        self.say("stdout", self.any(done.stdout))
        self.say("stderr", self.any(done.stderr))
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and before.get(path) != path.stat().st_mtime_ns:
                self.file(path)
        return done.stdout

    def file(self, path: Path) -> None:
        name, data = self.plain(str(path.relative_to(self.folder))), path.read_bytes()
        if "home/" in name or "__pycache__" in name:
            return
        text = data.decode(errors="replace")
        if path.suffix == ".parquet":
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path)
            rows = [json.dumps(walk(row), default=str) for row in table.to_pylist()]
            body = self.plain("\n".join([str(table.schema.remove_metadata()), *rows]))
        elif data.startswith(b"SQLite") or path.name.startswith(".") or not data:
            body = ""
        elif path.suffix == ".jsonl":
            rows = [self.row(line) for line in text.splitlines()]
            body = "\n".join(sorted(rows) if ROWS_IN_ANY_ORDER.search(name) else rows)
        else:
            body = self.page(text) if path.suffix == ".html" else self.any(text)
        if len(body) > 150_000:  # what is cut off is compared by its hash
            rest = body[100_000:]
            digest = hashlib.sha256(rest.encode()).hexdigest()
            body = f"{body[:100_000]}\nand {rest.count(chr(10))} lines more, SHA-256 {digest}"
        self.say(f"file {name}", body)

    def row(self, line: str) -> str:
        try:
            return self.plain(json.dumps(walk(json.loads(line)), ensure_ascii=False))
        except ValueError:
            return self.plain(line)

    def page(self, text: str) -> str:
        """A tag or a text a line; styles and scripts by their hash, data as JSON."""

        def known(found: re.Match[str]) -> str:
            opening, name, inside = found[1], found[2], found[3]
            if "json" in opening:
                return f"{opening}\n{self.any(html.unescape(inside))}\n</{name}>"
            return f"<{name} {len(inside)} {hashlib.sha256(inside.encode()).hexdigest()[:16]}>"

        text = re.sub(r"(<(style|script)[^>]*>)(.*?)</\2>", known, text, flags=re.DOTALL)
        return self.plain(re.sub(r"\n\s*\n", "\n", re.sub(r"(?<=>)|(?=<)", "\n", text)))

    @contextmanager
    def server(self, *words: str, port: int = 0, **env: str) -> Iterator[str]:
        """``adjudge`` as a server that prints JSON with its address; ends by SIGINT."""
        while port and not free(port):
            time.sleep(0.5)
        with subprocess.Popen(
            [self.python, "-m", "adjudge", *words, "--port", str(port), "--json"], cwd=self.folder,
            env=self.env | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            first = process.stdout.readline()
            try:
                yield json.loads(first)["url"].rstrip("/")
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    rest, errors = process.communicate(timeout=40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    rest, errors = process.communicate()
                self.said.append(
                    f"\n$ adjudge {' '.join(words)}   (a server)\nexit {process.returncode}\n"
                )
                for title, text in (("first line", first), ("rest", rest), ("stderr", errors)):
                    self.say(title, self.any(text))

    def ask(
        self, url: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> str:
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        head = {"content-type": "application/json"} | (headers or {})
        request = urllib.request.Request(url + path, data=sent, headers=head)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                status, said, data = reply.status, reply.headers, reply.read()
        except urllib.error.HTTPError as error:
            status, said, data = error.code, error.headers, error.read()
        except OSError as error:
            status, said, data = 0, {}, type(error).__name__.encode()
        text = str(data, errors="replace")
        if "/metrics" in path:  # names and labels, without numbers, sorted
            text = "\n".join(
                sorted({re.sub(r" [\d.e+-]+$", "", line) for line in text.splitlines()})
            )
        kept = [
            f"{k}: {said[k]}"
            for k in ("content-type", "retry-after", "allow", "www-authenticate")
            if said.get(k)
        ]
        shown = (sent or b"").decode()[:300]
        out = self.page(text) if "html" in str(said.get("content-type")) else self.any(text)
        self.said.append(self.plain(f"\n> {path} {shown} {headers or ''}\n{status} {kept}"))
        self.said.append(out + "\n")
        return text

    def ask_all(self, url: str, name: str, headers: dict[str, str]) -> None:
        for line in DATA["http"][name].splitlines():
            path, _, body = line.partition(" ")
            self.ask(url, path, body.encode() if body else None, headers)


Case = Callable[[Work], None]


def commands(words: list[str]) -> Case:
    """A case of commands; the last may be the options of a mock that is URL in files."""

    def case(work: Work) -> None:
        def all_of(url: str) -> None:
            work.files(url)
            if any("examples/" in one for one in words):
                work.examples()
            for one in words:
                if not one.startswith("|"):
                    work.run(*one.replace("URL", f"{url}/v1").split())

        if words[-1].startswith("|"):
            port = PORT + list(DATA["commands"].values()).index(words)
            with work.server("mock", "--seed", "1", *words[-1][1:].split(), port=port) as url:
                all_of(url)
        else:
            all_of("http://127.0.0.1:9")

    return case


def helps(work: Work) -> None:
    """Every command's and subcommand's help, found by walking."""
    work.env["COLUMNS"] = "100"
    left: list[list[str]] = [[]]
    while left:
        words = left.pop(0)
        said = work.run(*words, "--help")
        left += [[*words, name] for name in re.findall(r"^│ (\w[\w-]*)", said, re.MULTILINE)]


def dry_runs(work: Work) -> None:
    """Every example, by the backend it names and by verl."""
    for path in work.examples():
        name, text = f"examples/{path.name}", path.read_text()
        if 'kind = "study"' in text:
            work.run("study", "run", name, "--dry-run", "-o", "study")
            work.run("study", "run", name, "--dry-run", "--json", "-o", "study")
            continue
        work.run("train", name, "--dry-run", "-o", f"plans/{path.stem}")
        work.run("train", name, "--dry-run", "--json", "-o", "run")
        if ("\nkind" in text and "bradley" in text) or "version" not in text:
            continue
        other = re.sub(r'"tiny"|"\.\./runs/[\w-]+"', '"base-model"', text)
        other = re.sub("(?m)^version = 1$", 'version = 1\nbackend = "verl"', other, count=1)
        verl = work.write(f"examples/verl-{path.name}", other)
        (work.folder / "examples/base-model").mkdir(exist_ok=True)
        work.run("train", verl, "--dry-run", "-o", f"plans/verl-{path.stem}")


def errors(work: Work) -> None:
    """What is said of files that are wrong."""
    for number, (words, text) in enumerate(DATA["errors"]["asked"]):
        spec = work.write(f"bad{number}.toml", text.replace("\\n", "\n"))
        work.run(*words.replace("BAD", spec).split())


def served(target: str, *options: str) -> Case:
    """A service, asked in every format; two at once where a group meets."""

    def case(work: Work) -> None:
        with work.server("serve", target, *options, GOLDEN_KEY=KEY) as url:
            key = {"authorization": f"Bearer {KEY}"} if options else {}
            work.ask_all(url, "service", key)
            for other in ({"origin": "http://web.page"}, {"authorization": "Bearer wrong"}):
                work.ask(url, "/judge", b'{"prompt": "p", "completion": "c"}', other)
            ones = [
                GROUP | {"request_id": f"r{n}", "completion": s} for n, s in enumerate(("4", "5"))
            ]
            start = len(work.said)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda one: work.ask(url, "/group_judge", one, key), ones))
            work.said[start:] = ["\n".join(sorted("".join(work.said[start:]).split("\n")))]
            work.ask(url, "/group_judge", ones[0] | {"request_id": "late"}, key)

    return case


def mocks(work: Work) -> None:
    """The mock's formats and behaviours."""
    for words in DATA["http"]["mocks"]:
        with work.server("mock", "--seed", "1", *words.split()) as url:
            work.ask_all(url, "mock", {})


def page(work: Work) -> None:
    """The live page of a grading run: its files, and what it asks for."""
    work.run("grade", "rollouts.jsonl", "-s", "ruled.toml", "-o", "out", "-q")
    with work.server("view", "out") as url:
        for path in ("/", "/page.css", "/page.js", "/story.js", "/nowhere"):
            work.say(path, hashlib.sha256(work.ask(url, path).encode()).hexdigest())
        now = json.loads(work.ask(url, "/api/overview"))["generation"]
        for path in (
            "histograms?from=0&to=9",
            "groups?from=0&to=9&show=all&page=0",
            "group?id=a",
            "sample?row=1",
        ):
            work.ask(url, f"/api/{path}&generation={now}")


CASES = {
    "dry-runs": dry_runs,
    "help": helps,
    "errors": errors,
    "mock": mocks,
    "view": page,
    "serve-rule": served("rule.toml"),
    "serve-key": served("rule.toml", "--client", "GOLDEN_KEY"),
    "serve-judge": served("judged.toml"),
    "serve-group": served("rules.toml", "--group-timeout-s", "2"),
    "serve-class": served("own_class:Judge"),
} | {name: commands(words) for name, words in DATA["commands"].items()}


def record(options: argparse.Namespace) -> int:
    paths = [str(Path(one).resolve()) for one in options.path.split(os.pathsep) if one]
    options.path = os.pathsep.join(paths)
    options.examples = options.examples or (Path(paths[0]).parent if paths else HERE) / "examples"
    options.folder.mkdir(parents=True, exist_ok=True)
    command = [options.python, "-c", "import adjudge; print(adjudge.__file__)"]
    env = os.environ | ({"PYTHONPATH": options.path} if options.path else {})
    found = subprocess.run(
        command, env=env, capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"recording {found}")
    if paths and not found.startswith(tuple(paths)):
        raise SystemExit(f"that is not below {options.path}")

    def one(name: str) -> bool:
        begun, work = time.monotonic(), Work(options)
        try:
            CASES[name](work)
            failed = ""
        except Exception as error:  # noqa: BLE001  # a case that breaks is a difference
            failed = work.plain(f"BROKE OFF: {type(error).__name__}: {error}")
        (options.folder / f"{name}.txt").write_text("\n".join(work.said) + f"\n{failed}\n")
        shutil.rmtree(work.folder, ignore_errors=True)
        print(f"{name:22} {time.monotonic() - begun:5.1f} s  {failed}", flush=True)
        return not failed

    with ThreadPoolExecutor(2) as pool:
        return int(not all(list(pool.map(one, options.only.split(",") if options.only else CASES))))


def compare(options: argparse.Namespace) -> int:
    number = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")

    def read(path: Path, renamed: bool) -> list[str]:
        text = path.read_text() if path.is_file() else "NOT THERE"
        for rename in options.rename if renamed else ():
            text = text.replace(*rename.split("=", 1))
        if options.modules:
            text = re.sub(r"\badjudge\w*(\.\w+)+", "<module>", text)
        return text.split("\n")

    def close(one: str, other: str) -> bool:
        return all(
            a.isdigit() == b.isdigit()  # 1 is not 1.0
            and math.isclose(float(a), float(b), rel_tol=options.tolerance, abs_tol=1e-12)
            for a, b in zip(number.findall(one), number.findall(other), strict=True)
        )

    differ = 0
    for name in sorted(
        {path.name for folder in (options.before, options.after) for path in folder.glob("*.txt")}
    ):
        before, after = read(options.before / name, True), read(options.after / name, False)
        masks = [[number.sub("#", line) for line in lines] for lines in (before, after)]
        matcher = difflib.SequenceMatcher(a=masks[0], b=masks[1], autojunk=False)
        for block in matcher.get_matching_blocks():
            for at in range(block.size):
                if close(before[block.a + at], after[block.b + at]):
                    after[block.b + at] = before[block.a + at]
        found = list(difflib.unified_diff(before, after, "before", "after", lineterm="", n=2))
        print(f"{name[:-4]:22} {f'differs ({len(found)} lines)' if found else 'equal'}")
        print("\n".join(line[:400] for line in found[: options.lines]), end="\n" if found else "")
        differ += bool(found)
    print(f"{differ} cases differ" if differ else "all equal")
    return int(differ > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    actions = parser.add_subparsers(required=True)
    one = actions.add_parser("record")
    one.set_defaults(do=record)
    one.add_argument("folder", type=Path)
    one.add_argument("--path", default="", help="PYTHONPATH [default: as it is]")
    one.add_argument("--python", default=sys.executable)
    one.add_argument("--only", default="", metavar="NAME,…", help=", ".join(CASES))
    one.add_argument("--examples", type=Path, help="[default: beside --path]")
    two = actions.add_parser("compare")
    two.set_defaults(do=compare)
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--tolerance", type=float, default=1e-9)
    two.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    two.add_argument("--modules", action="store_true", help="dotted names of the package are one")
    two.add_argument("--lines", type=int, default=200, help="of a case's diff, at most [200]")
    options = parser.parse_args()
    return int(options.do(options))


if __name__ == "__main__":
    sys.exit(main())
