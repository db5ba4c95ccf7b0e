"""How a run of verl is started: the module, its files, its variables."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge_lab.rl.launch import run_module
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.verl.run import VerlFiles, build_verl_command, run_verl


def single(tmp_path: Path, **changed: Any) -> RunFile:
    data: dict[str, Any] = {
        "backend": "verl",
        "model": {"base": "Qwen/Qwen3-0.6B", "label": "a run"},
        "graders": [
            {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 2.0]},
            {"name": "short", "type": "length_penalty", "weight": 0.0},
        ],
        "judge": {"model": "m", "base_url": "http://127.0.0.1:9/v1"},
        "rollout": {"max_tokens": 16},
        "training": {"iterations_per_epoch": 3, "batch_size": 8, "group_size": 4},
        "evaluation": {"seeds": [1, 2]},
    }
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return resolve_run_file(data, folder=tmp_path)


def test_the_run_is_verls_module_with_files_and_variables(tmp_path: Path) -> None:
    """A stand-in for verl records how it is started: a trainer needs a GPU."""
    # Not beside the run file, where this process would find it, too.
    stand_in = tmp_path / "stand-in"
    (stand_in / "verl" / "trainer").mkdir(parents=True)
    (stand_in / "verl" / "__init__.py").touch()
    (stand_in / "verl" / "trainer" / "__init__.py").touch()
    (stand_in / "verl" / "trainer" / "main_ppo.py").write_text(
        "import json, os, sys, pathlib\n"
        "given = dict(one.split('=', 1) for one in sys.argv[1:])\n"
        "spec = pathlib.Path(given['+reward.reward_kwargs.spec']).read_text()\n"
        "log = os.environ['VERL_FILE_LOGGER_PATH']\n"
        "print(json.dumps({'given': given, 'spec': spec, 'log': log,\n"
        "    'there': pathlib.Path(given['data.train_files']).exists()}))\n"
        "sys.exit(7)\n"
    )
    run = single(tmp_path, judge={"base_url": "mock", "mock": {"behaviour": "length"}})
    lines: list[str] = []

    def launch(argv: Sequence[str], env: Mapping[str, str]) -> int:
        path = os.pathsep.join([str(stand_in), env.get("PYTHONPATH", "")])
        return run_module(argv, env={**env, "PYTHONPATH": path}, on_line=lines.append)

    assert run_verl(run, tmp_path / "out", launch=launch) == 7
    seen = json.loads(lines[-1])
    assert seen["there"]
    assert seen["log"] == str(tmp_path / "out" / "verl.jsonl")
    assert "http://127.0.0.1:" in seen["spec"]  # the mock that listens meanwhile
    files = VerlFiles.within(tmp_path / "out")
    command = build_verl_command(run, files, tmp_path / "out")
    assert [f"{key}={value}" for key, value in seen["given"].items()] == command[3:]
