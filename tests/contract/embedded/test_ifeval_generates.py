"""``adjudge eval ifeval`` with a real small language model, killed and gone on with."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed here; run `make test-embedded`")


_TOPICS = ("rivers", "bread", "the sea", "trains", "chess", "snow")
_PROMPTS = [
    {
        "key": key,
        "prompt": f"Write one sentence about {topic}. Do not use any commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    }
    for key, topic in enumerate(_TOPICS)
]


def _command(folder: Path, *arguments: str) -> list[str]:
    program = [sys.executable, "-m", "adjudge_lab", "eval", "ifeval", "--model", "smollm2"]
    data = ["--data", str(folder / "data.jsonl"), "-o", str(folder / "out"), "--max-tokens", "24"]
    return [*program, *data, *arguments]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_three_prompts_from_the_command_line(tmp_path: Path) -> None:
    lines = (json.dumps(row) + "\n" for row in _PROMPTS[:3])
    (tmp_path / "data.jsonl").write_text("".join(lines))
    done = subprocess.run(_command(tmp_path, "-q"), capture_output=True, text=True, check=True)
    assert "Mean(S)" in done.stdout
    rows = _rows(tmp_path / "out" / "responses.jsonl")
    assert [row["key"] for row in rows] == [0, 1, 2]
    assert all(row["response"] and row["finish_reason"] in ("stop", "length") for row in rows)
    [model] = json.loads((tmp_path / "out" / "summary.json").read_text())["models"]
    assert (model["kind"], model["prompts"]) == ("embedded", 3)
    assert model["cut_by_length"] == sum(row["finish_reason"] == "length" for row in rows)
    followed = sum("," not in row["response"] for row in rows) / 3
    assert model["strict"]["prompt"]["value"] == followed


def test_who_is_killed_goes_on(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _PROMPTS))
    log = tmp_path / "out" / "responses.jsonl"
    with subprocess.Popen(_command(tmp_path, "-q")) as first:
        deadline = time.monotonic() + 300
        while not _rows(log):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first.kill()
    before = {row["key"]: row for row in _rows(log)}
    assert 0 < len(before) < len(_PROMPTS)
    done = subprocess.run(_command(tmp_path, "--json"), capture_output=True, text=True, check=True)
    [model] = json.loads(done.stdout)["models"]
    assert (model["generated"]["made"], model["generated"]["kept"]) == (
        len(_PROMPTS) - len(before), len(before),
    )  # fmt: skip
    after = {row["key"]: row for row in _rows(log)}
    assert {key: after[key] for key in before} == before
    assert len(after) == model["prompts"] == len(_PROMPTS)
