"""The page about the judge service: its curl calls and its class, against a real process."""

import json
import re
import shlex
import sys
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjudge.engine.child_server import settings_arguments
from adjudge.service.server import start_service, start_service_process
from adjudge.service.settings import ServiceSettings

PAGE = (Path(__file__).parents[2] / "docs" / "judge-service.md").read_text()
SPEC = '[[graders]]\nname = "answer"\ntype = "answer"\n'


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def asked(command: str, url: str) -> Any:
    """What a curl call of the page gets from the service at ``url``."""
    _, address, flag, body = shlex.split(command)
    assert flag == "-d"
    request = urllib.request.Request(
        address.replace("http://127.0.0.1:8888", url), body.encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())


def test_the_calls_on_the_page(tmp_path: Path) -> None:
    spec = tmp_path / "reward.toml"
    spec.write_text(SPEC)
    single, batch = [block for block in blocks("sh") if block.startswith("curl")]
    with start_service(str(spec)) as url:
        found = asked(single, url)
        shown = json.loads(blocks("json")[0])
        assert found.keys() == shown.keys()
        for name in ("score", "request_id", "detailed_scores"):
            assert found[name] == shown[name]
        responses = asked(batch, url)["responses"]
        assert [(one["score"], one["request_id"]) for one in responses] == [(1.0, "1"), (0.0, "2")]
        with urllib.request.urlopen(f"{url}/health", timeout=30) as response:
            assert json.loads(response.read())["status"] == "healthy"


def test_the_class_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges_of_the_page.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    command = ["adjudge", "serve", "judges_of_the_page:MyJudge", "--arg", "model_path=models/judge",
               "--damping", "0.9:0.5", "--json", "--until-eof"]  # fmt: skip
    settings = settings_arguments(ServiceSettings(port=0))
    with start_service_process([sys.executable, "-m", *command, *settings]) as (running, _):
        call = next(block for block in blocks("sh") if block.startswith("curl"))
        found = asked(call, running.url)
    assert found["score"] == 0.45
    assert found["metadata"]["damped"]
    assert found["confidence"] == 0.8


def test_every_setting_is_on_the_page() -> None:
    table = PAGE[PAGE.index("## Settings") :]
    names = ["--" + name.replace("_", "-") for name in ServiceSettings.__struct_fields__]
    assert [name for name in names if f"`{name}`" not in table and f"{name}`" not in table] == []
    defaults = msgspec.structs.asdict(ServiceSettings())
    assert f"`--concurrency` | {defaults['concurrency']} |" in table
    for name in ("queue_size", "deadline_s", "group_timeout_s", "drain_s"):
        assert f"`--{name.replace('_', '-')}` | {defaults[name]:g} |" in table
