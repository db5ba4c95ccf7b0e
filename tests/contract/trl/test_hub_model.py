"""A dry run says of a model's name what the hub says, asked over a real connection."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="not installed here; run `make test-trl`")


class Hub(BaseHTTPRequestHandler):
    """Has one model."""

    def do_GET(self) -> None:
        there = self.path.startswith("/api/models/them/there")
        self.send_response(200 if there else 404)
        if not there:
            self.send_header("X-Error-Code", "RepoNotFound")
        body = json.dumps({"id": "them/there", "siblings": []} if there else {}).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


RUN = 'version = 1\n[model]\nbase = "{name}"\n[judge]\nenabled = false\n'
JUDGE = (
    'version = 1\nkind = "judge"\nmethod = "bradley_terry"\n[model]\npath = "{name}"\n'
    '[data]\ntrain = ["pairs.jsonl"]\n'
)


def dry_run(folder: Path, text: str, hub: str) -> str:
    file = folder / "run.toml"
    file.write_text(text)
    pairs = [{"prompt": f"q{n}", "chosen": f"a{n}", "rejected": f"b{n}"} for n in range(20)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    command = [sys.executable, "-m", "adjudge_lab", "train", str(file), "--dry-run"]
    environment = {
        **os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "hf"),
    }  # fmt: skip
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("text", [RUN, JUDGE], ids=["policy", "judge"])
def test_a_name_that_the_hub_does_not_have_is_said(text: str, tmp_path: Path, hub: str) -> None:
    assert "the hub has no model of this name" not in dry_run(
        tmp_path, text.format(name="them/there"), hub
    )
    said = dry_run(tmp_path, text.format(name="them/nowhere"), hub)
    assert "them/nowhere is no folder here, and the hub has no model of this name" in said


def test_a_hub_that_cannot_be_asked_is_no_reason_to_stop(tmp_path: Path) -> None:
    said = dry_run(tmp_path, RUN.format(name="them/there"), "http://127.0.0.1:9")
    assert "the hub cannot be asked" in said
