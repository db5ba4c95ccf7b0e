"""The page about extensions: each example runs, by ``module:Class`` and from an installed package.

The examples that need adjudge-lab are in its own tests.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.e2e.helpers.example_package import ExamplePackage, install_example

pytestmark = pytest.mark.slow  # whole programs, and servers

ROWS = [
    {"prompt": "Say hello.", "response": "Thank you, please come in."},
    {"prompt": "Say hello.", "response": "What do you want?"},
]


@pytest.fixture(scope="module", params=["beside", "installed"])
def example(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ExamplePackage:
    target = None
    if request.param == "installed":
        target = tmp_path_factory.mktemp("site")
        install_example(tmp_path_factory.mktemp("source"), target)
    found = ExamplePackage(tmp_path_factory.mktemp("work"), target)
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (found.folder / "rollouts.jsonl").write_text(lines)
    return found


class CompletionServer(BaseHTTPRequestHandler):
    """The server of the page's wire format."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        good = self.path == "/complete" and asked["model"] == "house-7b" and asked["schema"]
        answer = {"text": json.dumps({"score": 0.5, "reason": "fair"})} if good else {}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def rewards(example: ExamplePackage, spec: str, **environment: str) -> list[float | None]:
    words = ("grade", "rollouts.jsonl", "--spec", spec, "-o", f"runs/{spec}")
    example.adjudge(*words, **environment)
    file = example.folder / "runs" / spec / "rewards.jsonl"
    return [json.loads(line)["reward"] for line in file.read_text().splitlines()]


def test_a_grader(example: ExamplePackage) -> None:
    assert rewards(example, "polite.toml") == [1.0, 0.0]


def test_a_grader_that_asks_a_judge(example: ExamplePackage) -> None:
    assert rewards(example, "clear.toml") == [0.8, 0.8]


def test_a_judge(example: ExamplePackage) -> None:
    assert rewards(example, "house.toml") == [0.75, None]


def test_a_wire_format(example: ExamplePackage) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), CompletionServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert rewards(example, "completion.toml", ACME_URL=url) == [0.5, 0.5]
        server.shutdown()


def test_a_check(example: ExamplePackage) -> None:
    rows = [{**row, "response": f"Sorry. {row['response']}", "reward": 1} for row in ROWS]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (example.folder / "dump.jsonl").write_text(lines)
    name = example.names["acme.checks:APOLOGIES"]
    found = json.loads(example.adjudge("audit", "dump.jsonl", "--check", name, "--json").stdout)
    states = {one["name"]: (one["state"], one.get("affected")) for one in found["checks"]}
    assert states["apologies"] == ("found", 2)


def test_a_trainer_adapter(example: ExamplePackage) -> None:
    assert example.python("train.py") == "[1.0, 0.0, None]\n"


ASK_SERVICE = """
import json, subprocess, sys
from urllib.request import urlopen

words = "serve polite.toml --port 0 --json --until-eof --format".split()
command = [sys.executable, "-m", "adjudge", *words, sys.argv[1]]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
    url = json.loads(service.stdout.readline())["url"]
    answers = ["Thank you, please come in.", "What do you want?"]
    body = json.dumps({"question": "Say hello.", "answers": answers}).encode()
    print(urlopen(f"{url}/acme", body).read().decode())
    service.stdin.close()
"""


def test_a_wire_format_of_the_service(example: ExamplePackage) -> None:
    printed = example.python("-c", ASK_SERVICE, example.names["acme.formats:AcmeFormat"])
    assert printed == '{"rewards":[1.0,0.0]}\n'


def test_what_is_said_about_a_grader(example: ExamplePackage) -> None:
    name = example.names["acme.graders:PoliteGrader"]
    (found,) = json.loads(example.adjudge("graders", name, "--json").stdout).values()
    assert found["class"] == "acme.graders:PoliteGrader"
    assert found["parameters"] == [{"name": "words", "type": "list[str]", "required": True}]


def test_a_list_has_installed_graders(example: ExamplePackage) -> None:
    found = json.loads(example.adjudge("graders", "--json").stdout)
    if not example.installed:
        assert "polite" not in found
        return
    assert found["polite"]["summary"] == "From acme-adjudge 1.0."
    assert found["polite"]["class"] == "acme.graders:PoliteGrader"
    assert "acme-adjudge 1.0" in example.adjudge("graders").stdout


def test_a_command(example: ExamplePackage) -> None:
    if example.installed:  # it has a name only
        assert example.adjudge("lengths", "rollouts.jsonl").stdout == "21.5\n"
