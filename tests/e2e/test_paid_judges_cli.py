"""Judges that cost money: record, replay, budget and dry run, through the command line."""

import json
import random
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.rows import read_jsonl
from tests.unit.helpers.mock_provider import start_mock_here

from adjudge.mock import MockSettings

pytestmark = pytest.mark.slow  # whole commands, and a server each

SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "Rate this from 0 to 1, as JSON with score and reason. {{prompt}} {{response}}"
score_range = [0.0, 1.0]

[judges.main]
type = "vllm"
model = "mock"
base_url = "{url}"
max_tokens = 100
{more}
"""
PRICE = "price = { input = 1.0, output = 2.0 }"
ONE_COPY = f"{PRICE}\nendpoint = {{ hedge = false }}"
"""Where costs are compared: the second copy of a slow call costs, too, and is no grader's."""


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with start_mock_here(latency=("fixed:0.002",)) as base_url:
        yield base_url


class Folder:
    """A spec and rollouts, and ``grade`` on them."""

    def __init__(self, path: Path, url: str, more: str = ONE_COPY, samples: int = 40) -> None:
        self.path = path
        self.spec(url, more)
        rows = [{"prompt": f"p{i // 4}", "response": f"r{i}"} for i in range(samples)]
        (path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def spec(self, url: str, more: str = ONE_COPY) -> None:
        (self.path / "spec.toml").write_text(SPEC.format(url=url, more=more))

    def grade(self, out: str, *options: str | Path) -> Any:
        spec, rollouts = self.path / "spec.toml", self.path / "rollouts.jsonl"
        return invoke("grade", rollouts, "-s", spec, "-o", self.path / out, "-q", *options)

    def rewards(self, out: str) -> list[Any]:
        lines = (self.path / out / "rewards.jsonl").read_text().splitlines()
        return [json.loads(line)["reward"] for line in lines]

    def summary(self, out: str) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.path / out / "summary.json").read_text())
        return summary


def test_a_recorded_run_replays_without_a_server_and_bit_for_bit(tmp_path: Path) -> None:
    tape = tmp_path / "tape.sqlite"
    with start_mock_here(behaviour="rubric", keywords=("r1",)) as url:
        here = Folder(tmp_path, url)
        first = here.grade("first", "--record", tape)
        assert first.exit_code == 0, first.output
        assert here.summary("first")["cassette"]["stored"] == 40
        again = here.grade("again", "--record", tape)
        assert again.exit_code == 0
        assert here.summary("again")["cassette"]["hits"] == 40
    replayed = here.grade("replayed", "--replay", tape)
    assert replayed.exit_code == 0, replayed.output
    assert here.rewards("replayed") == here.rewards("first")
    assert None not in here.rewards("replayed")
    judged = here.summary("replayed")["graders"]["quality"]["judge"]
    assert judged["sources"] == {"cassette": 40}


FAULTS = (
    "refusal:0.08", "content-filter:0.04", "max-tokens:0.06", "empty:0.05", "drop-schema:0.1",
    "truncated:0.06", "cut-stream:0.05", "duplicate:0.04", "html-200:0.05", "error200:0.04",
    "503:0.1", "429-retry=0:0.05", "422:0.05", "reset:0.05", "close:0.05",
)  # fmt: skip
PANELS = """
max_concurrency = {workers}

[[graders]]
name = "one"
type = "helpfulness"
judge = "main"

[[graders]]
name = "votes"
type = "relevance"
judge = "main"
panel = {{ votes = 3, quorum = 2 }}

[[graders]]
name = "criteria"
type = "rubric"
ask = "each"
judge = "marks"

[reward]
normalise = false

[missing]
max_missing = 1.0
patience_s = 0

[judges.main]
type = "vllm"
model = "mock"
base_url = "{url}"
stream = {stream}
endpoint = {{ {endpoint} }}

[judges.marks]
type = "vllm"
model = "mock"
base_url = "{marks}"
endpoint = {{ {endpoint} }}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "workers", "attempts", "stream"),
    [(0, 4, 1, "true"), (1, 64, 1, "false"), (2, 16, 2, "true"), (3, 8, 1, "false"),
     (4, 32, 2, "false"), (5, 64, 1, "true")],
)  # fmt: skip
def test_a_run_full_of_faults_replays_bit_for_bit(
    tmp_path: Path, seed: int, workers: int, attempts: int, stream: str
) -> None:
    """Replies that chance has a say in, equal samples, votes, a quorum, criteria, redraws."""
    draw, words = random.Random(seed), ["alpha", "beta", "gamma", "alpha beta", "none"]
    rubric = [{"criterion": f'Says "{word}"', "points": 1} for word in words[:3]]
    rows = [
        {"prompt": f"p{number // 8 % 6}", "response": draw.choice(words), "rubric": rubric}
        for number in range(96)
    ]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    script = [{"reply": {"reason": f"r{n}", "score": n % 5 + 1}} for n in range(35)]
    (tmp_path / "script.jsonl").write_text("\n".join(map(json.dumps, script)))
    slow = ("fixed:0.002", "lognormal:0.003,1.8")
    scores = MockSettings(script=str(tmp_path / "script.jsonl"), latency=slow, fail=FAULTS)
    criteria = MockSettings(behaviour="criteria", latency=slow, fail=FAULTS)

    def grade(out: str, option: str) -> Any:
        paths = tmp_path / "rollouts.jsonl", "-s", tmp_path / "spec.toml", "-o", tmp_path / out
        return invoke("grade", *paths, "-q", option, tmp_path / "tape.sqlite")

    with (
        start_mock_here(scores, seed=seed) as url,
        start_mock_here(criteria, seed=seed + 1) as marks,
    ):
        endpoint = f"max_attempts = {attempts}"
        settings = {"workers": workers, "endpoint": endpoint, "stream": stream}
        (tmp_path / "spec.toml").write_text(PANELS.format(url=url, marks=marks, **settings))
        first = grade("first", "--record")
    assert first.exit_code == 0, first.output
    replayed = grade("replayed", "--replay")
    assert replayed.exit_code == 0, replayed.output
    one, two = (read_jsonl(tmp_path / out / "rewards.jsonl") for out in ("first", "replayed"))
    assert two == one
    summaries = [
        json.loads((tmp_path / out / "summary.json").read_text()) for out in ("first", "replayed")
    ]
    assert summaries[0]["missing"] == summaries[1]["missing"]
    assert summaries[0]["cassette"]["failures"] > 0
    assert summaries[1]["cassette"]["misses"] == 0


def test_a_recorded_outage_is_replayed_without_waiting(tmp_path: Path) -> None:
    tape = tmp_path / "tape.sqlite"
    fast = "endpoint = { max_attempts = 1, deadline_s = 5.0 }\n[missing]\npatience_s = "
    with start_mock_here(fail=("500:1",)) as url:
        here = Folder(tmp_path, url, more=f"{fast}0")
        assert here.grade("first", "--record", tape).exit_code == 3
    here.spec(url, f"{fast}600")
    replayed = here.grade("replayed", "--replay", tape)
    assert replayed.exit_code == 3, replayed.output
    assert "the server answered 500" in replayed.output


def test_no_key_is_on_a_tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-very-secret-key-0123456789"
    monkeypatch.setenv("JUDGE_KEY", key)

    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            said = f"Incorrect key provided: {self.headers['authorization']}"
            body = json.dumps({"error": {"message": said, "type": "invalid"}}).encode()
            self.send_response(422)
            self.send_header("content-length", str(len(body)))
            self.send_header("retry-after", "7")
            self.send_header("set-cookie", f"session={key}")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        here = Folder(tmp_path, url, more='api_key_env = "JUDGE_KEY"', samples=4)
        done = here.grade("out", "--record", tmp_path / "tape.sqlite")
        server.shutdown()
    assert done.exit_code == 1, done.output
    for file in [tmp_path / "tape.sqlite", *(tmp_path / "out").iterdir()]:
        assert key.encode() not in file.read_bytes(), file
    replayed = here.grade("replayed", "--replay", tmp_path / "tape.sqlite")
    assert replayed.exit_code == 1
    assert "too many rewards are missing: 4 of 4" in replayed.output
    assert here.summary("replayed")["missing"] == here.summary("out")["missing"]


def test_a_replay_that_misses_fails_and_names_the_change(tmp_path: Path, provider: str) -> None:
    tape = tmp_path / "tape.sqlite"
    here = Folder(tmp_path, provider)
    assert here.grade("first", "--record", tape).exit_code == 0
    here.spec(provider, f"{PRICE}\ntemperature = 0.5")
    changed = here.grade("changed", "--replay", tape)
    assert changed.exit_code == 1
    assert "40 calls are not in" in changed.output
    row = json.loads((tmp_path / "changed" / "rewards.jsonl").read_text().splitlines()[0])
    assert row["reward"] is None
    assert "temperature" in row["missing"]["message"]


def test_a_ranked_group_is_paid_for_once(tmp_path: Path) -> None:
    places = {f"response_{place}": place for place in range(1, 5)}
    with start_mock_here(behaviour="fixed", reply=json.dumps({"places": places})) as url:
        here = Folder(tmp_path, url)
        spec = (tmp_path / "spec.toml").read_text()
        ranking = '[[graders]]\nname = "quality"\ntype = "listwise"\n'
        (tmp_path / "spec.toml").write_text(ranking + spec[spec.index("[judges.main]") :])
        done = here.grade("out")
    assert done.exit_code == 0, done.output
    [spent] = here.summary("out")["endpoints"]
    said = here.summary("out")["graders"]["quality"]["judge"]
    assert (said["sources"], spent["calls"]) == ({"live": 40}, 10)
    assert said["cost_usd"] == pytest.approx(spent["cost_usd"])
    assert said["input_tokens"] == spent["input_tokens"]


def test_a_budget_pays_for_first_draws_first(tmp_path: Path, provider: str) -> None:
    here = Folder(tmp_path, provider)
    assert here.grade("all", "--draws", "2").exit_code == 0
    whole = here.summary("all")
    cost = whole["endpoints"][0]["cost_usd"]
    assert whole["endpoints"][0]["calls"] == 80
    assert whole["graders"]["quality"]["judge"]["cost_usd"] == pytest.approx(cost)
    done = here.grade("some", "--draws", "2", "--budget-usd", str(cost * 0.8))
    assert done.exit_code == 4, done.output
    assert f"-o {tmp_path}/some" in done.output[done.output.index("the budget is spent") :]
    summary = here.summary("some")
    assert summary["endpoints"][0]["cost_usd"] <= cost * 0.8
    assert summary["missing"]["by_kind"] == {}
    assert 0 < summary["noise"]["graders"]["quality"]["missing"] < 40


@pytest.mark.parametrize(
    ("refused", "rate", "code"), [("0.9", 1.0, 1), ("0", 0.25, 0)], ids=["too many", "not drawn"]
)
def test_too_many_missing_of_those_that_were_asked_for_is_no_success(
    tmp_path: Path, refused: str, rate: float, code: int
) -> None:
    with start_mock_here(fail=(f"refusal:{refused}",), seed=1) as url:
        here = Folder(tmp_path, url, more=f"[reward]\nsample_rate = {rate}")
        done = here.grade("out")
    assert done.exit_code == code, done.output
    assert ("too many rewards are missing" in done.output) == bool(code)


def test_a_budget_needs_prices(tmp_path: Path, provider: str) -> None:
    done = Folder(tmp_path, provider, more="").grade("out", "--budget-usd", "1")
    assert done.exit_code == 2
    assert "judges.main.price: is required" in done.output


def test_a_dry_run_asks_nobody_and_estimates(tmp_path: Path) -> None:
    here = Folder(tmp_path, "http://127.0.0.1:9/v1", samples=300)
    done = here.grade("out", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "out").exists()
    report = json.loads(done.output)
    assert (report["rows"], report["looked_at"]) == (300, 200)
    whole = report["graders"]["quality"]
    assert (whole["calls"], whole["output_tokens"]) == (300, 30_000)
    assert whole["cost_usd"] == pytest.approx((whole["input_tokens"] + 30_000 * 2.0) / 1e6)
    assert report["in_all"]["cost_usd"] == whole["cost_usd"]
    shown = here.grade("out", "--dry-run")
    assert "30,000" in shown.output
    unpriced = Folder(tmp_path, "http://127.0.0.1:9/v1", more="")
    assert "no price" in unpriced.grade("out", "--dry-run").output


def test_an_estimate_is_no_less_than_what_a_run_costs(tmp_path: Path, provider: str) -> None:
    here = Folder(tmp_path, provider)
    report = json.loads(here.grade("out", "--dry-run", "--json").output)
    assert here.grade("out").exit_code == 0
    real = here.summary("out")["endpoints"][0]
    estimated = report["in_all"]
    assert estimated["calls"] == real["calls"]
    assert estimated["cost_usd"] >= real["cost_usd"]
    assert estimated["input_tokens"] <= 2 * real["input_tokens"]
