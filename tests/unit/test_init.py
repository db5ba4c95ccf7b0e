"""``adjudge init``: the spec fits the rollouts, and the command that it prints works."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.rows import write_jsonl
from typer.testing import CliRunner

from adjudge import RewardSpec
from adjudge.cli.init import RolloutFacts, draft_spec
from adjudge.cli.main import app
from adjudge.engine.loop import run_blocking
from adjudge.judges import discovery
from adjudge.judges.discovery import FoundJudge, find_judge
from adjudge.judges.table import OpenAITable
from adjudge.mock import start_mock

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LONG = "one two three four five six seven eight nine ten"
AGENT = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "y"},
    {"role": "assistant", "content": "done"},
]


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", *(f"{one.upper()}_API_KEY" for one in discovery._MODEL_OF_KEY)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery, "LOCAL_SERVERS", {})
    monkeypatch.setattr(find_judge, "__defaults__", ((),))


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def write(name: str, *rows: dict[str, Any]) -> Path:
    return write_jsonl(Path(name), rows)


@pytest.mark.parametrize(
    ("row", "types"),
    [
        ({"traj": AGENT, "task_id": 1, "reward": 1}, ["action_loop", "information_gain"]),
        ({"question": "2 + 2?", "completion": "4", "answer": "4"}, ["answer:NUMBER"]),
        (
            {
                "prompt": "p",
                "response": "So 18.",
                "answer": "She sells 9 for 2 each. " * 5 + "\n#### 18",
            },
            ["answer:NUMBER"],
        ),
        ({"prompt": "p", "response": "B", "answer": "B"}, ["answer:MULTIPLE_CHOICE"]),
        ({"prompt": "p", "response": "r", "answer": "yes"}, ["answer:BOOLEAN"]),
        ({"prompt": "p", "response": "r", "reference": {"a": 1}}, ["json_match"]),
        ({"prompt": "p", "response": "r", "reference": "word " * 40}, ["similarity"]),
        ({"prompt": "p", "response": LONG}, ["ngram_repetition", "soft_overlong"]),
        ({"prompt": "p", "responses": [LONG, LONG]}, ["ngram_repetition", "soft_overlong"]),
    ],
)
def test_the_printed_command_works(row: dict[str, Any], types: list[str]) -> None:
    write("rollouts.jsonl", row, row)
    said = run("init", "rollouts.jsonl", "--json")
    made = json.loads(said)
    spec = RewardSpec.load(Path(made["spec"]))
    found = [
        f"{one.type}:{(one.model_extra or {})['answer_type']}" if one.type == "answer" else one.type
        for one in spec.graders
    ]
    assert found == types
    assert not spec.judges
    summary = json.loads(run(*shlex.split(made["command"])[1:], "--json", "-q", "-o", "out"))
    assert summary["reward"]["missing"] == 0
    assert summary["samples"] >= 2


def test_graders_are_for_most_of_the_rows() -> None:
    """The others of a mixed file would have no reward."""
    rows = [{"prompt": "p", "response": LONG} for _ in range(3)]
    write("rollouts.jsonl", *rows, {"prompt": "p", "response": LONG, "messages": AGENT})
    made = json.loads(run("init", "rollouts.jsonl", "--json"))
    assert [one.type for one in RewardSpec.load(Path(made["spec"])).graders] == [
        "ngram_repetition", "soft_overlong",
    ]  # fmt: skip
    assert "of the first 4 rows, 1 call tools" in Path(made["spec"]).read_text()


def test_without_rollouts_it_is_a_spec_to_start_from() -> None:
    out = run("init", "-o", "mine.toml")
    assert "adjudge grade rollouts.jsonl --spec mine.toml" in out
    assert RewardSpec.load(Path("mine.toml")).graders
    # Without a judge it names one that needs no key.
    text = Path("mine.toml").read_text(encoding="utf-8")
    assert 'type = "embedded" and model = "smollm2"' in text
    assert "adjudge models fetch smollm2" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["odd.jsonl"], "columns: x"),
        (["-"], "-: no such file"),
        (["\udcff\udcfe.jsonl"], "name is not UTF-8"),
        (["-o", "odd.jsonl"], "exists already"),
    ],
)
def test_a_refusal_is_one_line(words: list[str], said: str) -> None:
    for name in ("odd.jsonl", "\udcff\udcfe.jsonl"):
        write(name, {"x": 1})
    done = CliRunner().invoke(app, ["init", *words], input="{}")
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not Path("reward.toml").exists()


def test_a_key_in_the_environment_is_a_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_blocking(find_judge()) is None
    monkeypatch.setenv("GROQ_API_KEY", "gsk-secret")
    found = run_blocking(find_judge())
    assert found is not None
    assert found.table["type"] == "groq"
    assert "secret" not in str(found)


def test_a_server_is_asked_for_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_mock() as url:
        port = int(url.split(":")[2].split("/")[0])
        local = run_blocking(find_judge((port,)))
        assert local is not None
        assert local.table["base_url"] == f"http://localhost:{port}/v1"
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        named = run_blocking(find_judge())
        assert named is not None
        assert named.table["model"] == local.table["model"]
    assert run_blocking(find_judge()) is None  # the server is gone
    assert "did not list its models" in discovery.describe_search()


def test_a_judge_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write("rollouts.jsonl", {"prompt": "p", "response": LONG})
    with start_mock() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        made = json.loads(run("init", "rollouts.jsonl", "--json"))
        assert made["judge"]["base_url"] == url
        summary = json.loads(run(*shlex.split(made["command"])[1:], "--json", "-q", "-o", "out"))
    assert list(summary["graders"]) == ["repetition", "overlong", "quality"]
    assert summary["endpoints"][0]["calls"] >= 1


@pytest.mark.parametrize("name", ['m"\n[x]', "Qwen/Qwen3-8B"])
def test_a_servers_words_are_one_toml_string(name: str) -> None:
    judge = FoundJudge({"type": "vllm", "model": name}, "a server answers")
    Path("reward.toml").write_text(draft_spec(RolloutFacts(), judge, Path("reward.toml"))[0])
    table = RewardSpec.load(Path("reward.toml")).judges["main"]
    assert isinstance(table, OpenAITable)
    assert table.model == name


ODD_NAMES = [
    "with space.jsonl",
    'it\'s "q".jsonl',
    "-dash.jsonl",
    "br[ack]et.jsonl",
    "new\nline \\ 'q'.jsonl",
    'a\n[judges.x]\ntype = "openai"\n.jsonl',
    "\x1b[31mred\x7f.jsonl",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_is_quoted_wherever_it_stands(name: str) -> None:
    write(name, {"prompt": "p", "response": LONG, "answer": "4"})
    said = run("init", f"./{name}")
    assert "\x1b" not in said
    assert not RewardSpec.load(Path("reward.toml")).judges
    command = said.splitlines()[-1].strip()
    if not name.isprintable():  # shown by its numbers, and typed by hand
        return
    # A shell takes the command apart; what it makes of it runs here.
    script = f"adjudge() {{ printf '%s\\0' \"$@\"; }}; {command} -q --json -o out"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True)
    assert json.loads(run(*done.stdout.split("\0")[:-1]))["samples"] == 1


@pytest.mark.parametrize("response", ["hi", "a b", LONG])
def test_what_is_commented_out_is_a_spec_too(response: str) -> None:
    write("rollouts.jsonl", {"prompt": "p", "response": response})
    command = shlex.split(json.loads(run("init", "rollouts.jsonl", "--json"))["command"])
    assert json.loads(run(*command[1:], "--json", "-q", "-o", "out"))["reward"]["missing"] == 0
    text = Path("reward.toml").read_text()
    before, mark, rest = text.partition("# [[graders]]")
    blocks, reward, after = rest.partition("[reward]")
    whole = (mark + blocks).replace("\n# ", "\n").removeprefix("# ")
    Path("whole.toml").write_text(before + whole + reward + after)
    spec = RewardSpec.load(Path("whole.toml"))
    assert [one.name for one in spec.graders][-1] == "quality"
    assert list(spec.judges) == ["main"]


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@127.0.0.1:1/v1",
        "http://127.0.0.1:1/v1?key=secret",
        "http://a\x1bsecret/v1",
    ],
)
def test_an_address_with_a_password_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    done = CliRunner().invoke(app, ["init"])
    assert done.exit_code == 2
    assert "OPENAI_BASE_URL: " in done.output
    assert "secret" not in done.output
    assert not Path("reward.toml").exists()


class Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "text-embedding-3"}, ')
        self.wfile.flush()
        time.sleep(0.1)
        self.wfile.write(b'{"id": "\\u001b[31mx"}, {"id": "talks"}]}')

    def log_message(self, *_: object) -> None:
        pass


def test_a_list_of_models_may_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.handle_request).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1/")
        found = run_blocking(find_judge())
    assert found is not None
    assert found.table["model"] == "talks"
