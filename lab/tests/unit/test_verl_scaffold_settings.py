"""A scaffold, a chat template and a Ray of one's own as what verl is told."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError
from adjudge_lab.rl.backend_checks import find_unsupported_settings
from adjudge_lab.rl.policy import read_chat_template
from adjudge_lab.rl.runfile import RunFile, ScaffoldTable
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.verl.inputs import VerlRows
from adjudge_lab.rl.verl.run import (
    VerlFiles,
    build_verl_command,
    check_ray_port_free,
    own_ray_variables,
)
from adjudge_lab.rl.verl.scaffold_trainer import RolloutScaffold

RUBRICS = [{"criterion": "Names a dose. " * 200, "points": 5}, {"criterion": "Rude", "points": -2}]
TEMPLATE = "{% for m in messages %}it's {{ m['content'] }}\n{% endfor %}\\ \"end\""


def run_of(folder: Path, rows: list[dict[str, Any]] | None = None, **changed: Any) -> RunFile:
    rows = rows or [{"prompt": f"question {i}", "rubrics": RUBRICS} for i in range(8)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines)
    data: dict[str, Any] = {
        "backend": "verl",
        "model": {"base": "Qwen/Qwen2.5-7B-Instruct"},
        "graders": [{"name": "rubric", "type": "rubric", "clip": True}],
        "judge": {"model": "m", "base_url": "http://127.0.0.1:9/v1", "combine_mode": "replace"},
        "rollout": {"dataset": "rows.jsonl", "max_tokens": 32, "scaffold": {}},
        "training": {"iterations_per_epoch": 3, "batch_size": 8, "group_size": 4, "seed": 7},
        "evaluation": {"seeds": [0, 1]},
    }
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table}
    return resolve_run_file(data, folder=folder)


def told(run: RunFile, folder: Path) -> tuple[str, dict[str, str]]:
    files = VerlFiles.within(folder, VerlRows(run))
    _, _, module, *settings = build_verl_command(run, files, folder, "0.6.1")
    return module, dict(one.split("=", 1) for one in settings)


def test_the_hook_and_the_correction_are_among_the_settings(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    module, settings = told(run, tmp_path)
    assert module == "adjudge_lab.rl.verl.main_ppo"
    assert settings["+adjudge.scaffold.rule"] == "step_sigmoid"
    assert settings["+adjudge.scaffold.correction"] == "truncated_is"
    assert settings["+adjudge.seed"] == "7"
    assert settings["actor_rollout_ref.rollout.calculate_log_probs"] == "True"
    assert settings["algorithm.rollout_correction.rollout_is"] == "token"
    assert settings["algorithm.rollout_correction.rollout_is_threshold"] == "2.0"
    assert not any("logprobs_mode" in key for key in settings)
    rows = VerlRows(run)
    assert rows.prompt_tokens == int(settings["data.max_prompt_length"]) == 512
    assert rows.shown_tokens > 1400  # 2,800 characters, a token for every two
    room = int(settings["actor_rollout_ref.rollout.max_model_len"])
    assert room == rows.shown_tokens + 32


def test_none_is_ruscarl_as_published(tmp_path: Path) -> None:
    _, settings = told(run_of(tmp_path, rollout=scaffold(correction="none")), tmp_path)
    assert settings["+adjudge.scaffold.correction"] == "none"
    assert not any("rollout_correction" in key for key in settings)
    assert not any("calculate_log_probs" in key for key in settings)


def test_what_takes_part_in_training_needs_room_and_no_correction(tmp_path: Path) -> None:
    run = run_of(tmp_path, rollout=scaffold(participate_training=True))
    _, settings = told(run, tmp_path)
    assert int(settings["data.max_prompt_length"]) == VerlRows(run).shown_tokens
    assert not any("rollout_correction" in key for key in settings)


def test_log_probs_are_those_after_the_temperature(tmp_path: Path) -> None:
    changed = {**scaffold(), "temperature": 0.7}
    _, settings = told(run_of(tmp_path, rollout=changed), tmp_path)
    mode = "+actor_rollout_ref.rollout.engine_kwargs.vllm.logprobs_mode"
    assert settings[mode] == "processed_logprobs"


def test_the_other_verl_has_no_hook(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    [found] = [
        one for one in find_unsupported_settings(run, "0.9.1") if one.key == "rollout.scaffold"
    ]
    assert not found.runs
    assert not [
        one for one in find_unsupported_settings(run, "0.6.1") if one.key == "rollout.scaffold"
    ]


def test_a_template_goes_to_models_and_data(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    plain = run_of(tmp_path)
    run = run_of(tmp_path, model={"custom_chat_template": "chat.jinja"})
    assert read_chat_template(run) == TEMPLATE
    assert read_chat_template(plain) is None
    _, settings = told(run, tmp_path)
    in_data = settings["+data.apply_chat_template_kwargs.chat_template"]
    assert in_data == settings["actor_rollout_ref.model.custom_chat_template"]
    assert not any("template" in key for key in told(plain, tmp_path)[1])
    assert VerlRows(run).shown_tokens >= VerlRows(plain).shown_tokens


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "relative to the run file"),
        (b" \n", "empty"),
        (b"\xff", "utf-8"),
    ],
)
def test_what_is_no_template_is_refused(tmp_path: Path, content: bytes | None, what: str) -> None:
    if content is not None:
        (tmp_path / "chat.jinja").write_bytes(content)
    run = run_of(tmp_path, model={"custom_chat_template": "chat.jinja"})
    with pytest.raises(ConfigError, match=what):
        read_chat_template(run)


@pytest.mark.parametrize("content", ["{# ${x} #}", "{{ a }}" * 18_000])
def test_a_template_that_verl_cannot_be_told_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "chat.jinja").write_text(content)
    run = run_of(tmp_path, model={"custom_chat_template": "chat.jinja"})
    with pytest.raises(ConfigError, match=r"model.custom_chat_template: chat\.jinja") as refused:
        told(run, tmp_path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "columns",
    [
        {"rubrics": RUBRICS},
        {"reward_model": {"rubrics": RUBRICS}},
        {"extra_info": {"reward_model": {"rubrics": RUBRICS}}},
    ],
)
def test_rubrics_that_a_run_file_accepts_are_found_in_its_rows(
    tmp_path: Path, columns: dict[str, Any]
) -> None:
    run = run_of(tmp_path, [{"prompt": f"q {i}", **columns} for i in range(8)])
    row = next(VerlRows(run).train)
    drawn = RolloutScaffold(ScaffoldTable(rule="linear"), 7, 3, 1).draw_prompts(
        [row], [row["prompt"]], 1
    )
    assert [one.shown for one in drawn] == [2]


def test_a_rows_ground_truth_reaches_verls_graders(tmp_path: Path) -> None:
    for columns, expected in (
        ({"ground_truth": "a"}, "a"),
        ({"reference": "b"}, "b"),
        ({"ground_truth": "a", "reference": "b"}, "b"),
        ({}, None),
    ):
        rows = [{"prompt": f"q {i}", "rubrics": RUBRICS, **columns} for i in range(8)]
        row = next(VerlRows(run_of(tmp_path, rows)).train)
        assert row["reward_model"]["ground_truth"] == expected


@pytest.mark.parametrize("port", ["80", "0", "70000", "6380x", "-1", "²", "6379;ls", "1" * 5000])
def test_what_is_no_port_is_refused(port: str) -> None:
    with refuses("RAY_PORT"):
        own_ray_variables({"RAY_PORT": port})


def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    with socket.create_server(("", 0)) as other:
        port = str(other.getsockname()[1])
        with pytest.raises(ConfigError, match=f"{port} is not free"):
            check_ray_port_free(own_ray_variables({"RAY_PORT": port}))
    check_ray_port_free({})


def scaffold(**changed: Any) -> dict[str, Any]:
    return {"scaffold": changed}
