"""Metrics as each library's own reader gives them back; run by `make test-sinks`."""

import importlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., str]
Points = list[tuple[int, float]]

METRIC = "judge/score_mean"
# Nine steps, of which the first attempt did 1-6 and was killed, the second went on from 4.
RESUMED: Points = [(step, step + (0 if step < 4 else 1 / 8)) for step in range(1, 10)]


def killed_and_resumed(write: Write, to: str) -> str:
    write(to, 1, 6, kill=True)
    return write(to, 4, 9)


def trackio_says(folder: Path, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("trackio")), *arguments, "--json"]
    env = {**environment, "TRACKIO_DIR": str(folder / "trackio")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_trackio(write: Write, tmp_path: Path, clean_environment: dict[str, str]) -> None:
    pytest.importorskip("trackio", reason="not installed here; run `make test-sinks`")
    killed_and_resumed(write, "auto")  # which is Trackio, as that is installed
    project = ("--project", "adjudge")
    (run,) = trackio_says(tmp_path, clean_environment, "list", "runs", *project)["runs"]
    assert run.startswith("tiny run-")
    about = trackio_says(tmp_path, clean_environment, "get", "run", *project, "--run", run)
    assert about["config"]["model"] == {"base": "tiny"}
    assert set(about["metrics"]) == {METRIC, "reward"}
    which = ("--run", run, "--metric", METRIC)
    found = trackio_says(tmp_path, clean_environment, "get", "metric", *project, *which)["values"]
    assert [(one["step"], one["value"]) for one in found] == RESUMED


def test_tensorboard(write: Write, tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="not installed here; run `make test-sinks`",
    )
    killed_and_resumed(write, "tensorboard")
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["tensors"]) == {METRIC, "reward"}
    found = events.Tensors(METRIC)
    assert [(one.step, one.tensor_proto.float_val[0]) for one in found] == RESUMED


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format, of which wandb ships no reader."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # a whole record, or the last part of one
            record = messages.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def test_wandb(write: Write, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="not installed here; run `make test-sinks`")
    killed_and_resumed(write, "wandb")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    records = list(wandb_records(file))
    (run,) = [one.run for one in records if one.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.display_name) == ((tmp_path / ".sink").read_text(), "tiny run")
    assert {one.key: json.loads(one.value_json) for one in run.config.update}["steps"] == 9
    assert not [one for one in records if one.WhichOneof("record_type") == "output_raw"]
    points: Points = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {one.key or one.nested_key[0]: one.value_json for one in record.history.item}
            points.append((int(row["_step"]), float(row[METRIC])))
    assert points == RESUMED


def test_two_runs_in_one_process(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    """Trackio writes to the first one's folder; they stay two runs."""
    pytest.importorskip("trackio", reason="not installed here; run `make test-sinks`")
    program = (
        "import sys; from pathlib import Path; from adjudge_lab.rl.sinks import open_sink\n"
        "for name in sys.argv[1:]:\n"
        "    sink = open_sink('trackio', Path(name), label='tiny', config={})\n"
        "    sink.log(1, {'reward': 1.0}); sink.close()\n"
    )
    folders = [tmp_path / "one", tmp_path / "two"]
    subprocess.run([sys.executable, "-c", program, *folders], env=clean_environment, check=True)
    found = trackio_says(tmp_path / "one", clean_environment, "list", "runs", "--project=adjudge")
    assert len(found["runs"]) == 2
