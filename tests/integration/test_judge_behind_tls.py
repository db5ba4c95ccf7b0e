"""A judge behind an internal authority's certificate, at a gateway that wants a header."""

import asyncio
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge import make_reward
from adjudge.errors import GradingFailure
from adjudge.judges.base import ChatModel
from adjudge.rewards.function import compute_fingerprint
from adjudge.rewards.spec import RewardSpec

SECRET = "team-7-gateway-value"
TABLE = {"type": "vllm", "model": "m", "ca_file": "ca.pem", "headers": {"X-Team": "GATEWAY_TEAM"},
         "endpoint": {"max_attempts": 1}}  # fmt: skip


GATEWAY = """
import json, ssl, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Gateway(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        team = self.headers["X-Team"]
        message = {"content": f"seen {team}"}
        body = {"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
        if team != sys.argv[2]:
            body = {"error": {"message": f"who is {team}?"}}
        data = json.dumps(body).encode()
        self.send_response(200 if team == sys.argv[2] else 403)
        self.send_header("X-Echo", str(team))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("localhost", 0), Gateway)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(sys.argv[1] + "/ca.pem", sys.argv[1] + "/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
"""Repeats the header in its answers, as gateways that are debugged do."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "ca.pem"


@contextmanager
def gateway(certificate: Path) -> Iterator[str]:
    command = [sys.executable, "-c", GATEWAY, str(certificate.parent), SECRET]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"https://localhost:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


def judge(folder: Path, **table: Any) -> ChatModel:
    data = {"graders": [{"name": "g", "type": "answer"}], "judges": {"main": {**TABLE, **table}}}
    return RewardSpec.from_dict(data, where="spec.toml", folder=folder).build_judges()["main"]


def ask(model: ChatModel) -> str:
    async def run() -> str:
        return (await model.achat([{"role": "user", "content": "q"}])).text

    return asyncio.run(run())


def test_the_authority_and_the_header_open_the_door(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("GATEWAY_TEAM", SECRET)
    cache = tmp_path / "judge.sqlite"
    with gateway(certificate) as url:
        model = judge(certificate.parent, base_url=url, cache=str(cache), temperature=0.0)
        assert ask(model) == "seen [redacted]"
        asyncio.run(model.wait_until_reachable(5.0))
        with pytest.raises(GradingFailure, match="TLS failed"):
            ask(judge(certificate.parent, base_url=url, ca_file=None))
        monkeypatch.setenv("GATEWAY_TEAM", SECRET[::-1])
        with pytest.raises(GradingFailure) as refused:
            ask(judge(certificate.parent, base_url=url))
    said = f"{refused.value} {refused.value.metadata} {model!r} {model.fingerprint} {caplog.text}"
    kept = cache.read_bytes()
    assert all(one not in said and one.encode() not in kept for one in (SECRET, SECRET[::-1]))


def test_what_is_wrong_is_refused_before_the_first_call(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = certificate.parent
    monkeypatch.delenv("GATEWAY_TEAM", raising=False)
    (tmp_path / "empty.pem").write_text("no certificate")
    for path in ("missing.pem", str(tmp_path / "empty.pem"), str(tmp_path)):
        with refuses("judges.main.ca_file", "spec.toml"):
            judge(folder, ca_file=path)
    for name in ("Authorization", "content-type", "HOST", "X Team", "X-Team\r\nHost"):
        with refuses("judges.main.headers"):
            judge(folder, headers={name: "GATEWAY_TEAM"})
    for value in ("sk-123", "Bearer x", "a1b2c3d4", ""):
        with refuses("judges.main.headers.X-Team") as shown:
            judge(folder, headers={"X-Team": value})
        assert not value or value not in str(shown.value)
    entry = {"name": "style", "type": "relevance"}
    judges = {"main": TABLE}
    data = {"graders": [entry], "judges": judges}
    spec = RewardSpec.from_dict(data, where="spec.toml", folder=folder)
    with refuses("graders.style.headers.X-Team"):
        make_reward(spec)


def test_how_a_judge_is_reached_is_no_part_of_a_spec_s_fingerprint(certificate: Path) -> None:
    def fingerprint(**table: Any) -> str:
        data = {"graders": [{"name": "g", "type": "answer"}], "judges": {"main": TABLE | table}}
        return compute_fingerprint(RewardSpec.from_dict(data, folder=certificate.parent), {})

    assert fingerprint() == fingerprint(ca_file=None, headers={"X-Other": "OTHER"})
