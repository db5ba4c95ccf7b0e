"""A run file's scaffold and chat template, read by verl 0.6.1 itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.config import HFModelConfig, RolloutConfig

from adjudge_lab.rl.plan import plan_run
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile import RunFile, ScaffoldTable
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.verl.run import build_verl_command, write_verl_files
from adjudge_lab.rl.verl.scaffold_trainer import RolloutScaffold, read_scaffold_config

RUBRICS = [
    {"criterion": "a b", "points": 5, "tags": ["axis:sense"]},
    {"criterion": "c d", "points": -2.5, "tags": []},
]
TEMPLATE = """\
{#- it's "theirs": a\\b, {c}, $d -#}
{% for m in messages %}<|im_start|> {{ m['role'] }} what is {{ m['content'] }} <|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|> assistant {% endif %}
"""


def run_of(folder: Path, **changed: Any) -> RunFile:
    rows = [{"prompt": f"{i} + 3 ?", "rubrics": RUBRICS} for i in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny.save_model(folder / "model")
    data: dict[str, Any] = {
        "backend": "verl",
        "model": {"base": "model"},
        "graders": [{"name": "rubric", "type": "rubric", "clip": True}],
        "judge": {"model": "m", "base_url": "http://127.0.0.1:9/v1", "combine_mode": "replace"},
        "rollout": {"dataset": "rows.jsonl", "max_tokens": 32, "temperature": 0.7, "scaffold": {
            "rule": "step_power", "step_power_n": 2.0, "correction_cap": 5}},
        "training": {"iterations_per_epoch": 3, "batch_size": 8, "group_size": 4, "seed": 7},
        "evaluation": {"seeds": [0, 1]},
    }  # fmt: skip
    for name, table in changed.items():
        data[name] = {**data[name], **table}
    return resolve_run_file(data, folder=folder)


def configured(run: RunFile, folder: Path) -> Any:
    files = write_verl_files(run, folder, build_reward_spec(run))
    command = build_verl_command(run, files, folder)
    defaults = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(defaults), version_base=None):
        config = compose("ppo_trainer", overrides=command[3:])
    OmegaConf.resolve(config)
    return config


def test_verl_and_the_hook_take_the_settings(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    config = configured(run, tmp_path / "out")
    scaffold = ScaffoldTable(rule="step_power", step_power_n=2.0, correction_cap=5.0)
    assert read_scaffold_config(config) == (scaffold, 7)
    validate_config(config, use_reference_policy=False, use_critic=False)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert isinstance(rollout, RolloutConfig)
    assert rollout.calculate_log_probs
    assert rollout.engine_kwargs["vllm"]["logprobs_mode"] == "processed_logprobs"
    assert rollout.max_model_len == rollout.prompt_length + rollout.response_length == 512 + 32


def test_the_rows_that_verl_reads_have_the_rubrics(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    config = configured(run, tmp_path / "out")
    config.data.filter_overlong_prompts = False
    rows = RLHFDataset([str(tmp_path / "out/train.parquet")], tiny.tokenizer(), config.data)
    row = {name: rows[0][name] for name in ("reward_model", "extra_info")}
    schedule = RolloutScaffold(run.rollout.scaffold, seed=7, steps=3, size=4)  # type: ignore[arg-type]  # there is one
    drawn = schedule.draw_prompts([row] * 4, [rows[0]["raw_prompt"]] * 4, 1)
    assert [one.shown for one in drawn] == [2, 1, 1, 0]
    assert "a b (worth 5 points)" in drawn[0].messages[0]["content"]
    assert "c d (penalty 2.5 points)" in drawn[0].messages[0]["content"]


def test_a_dry_run_shows_the_hooks_settings(tmp_path: Path) -> None:
    found = plan_run(run_of(tmp_path))
    assert found.verl is not None
    assert found.verl.command[2] == "adjudge_lab.rl.verl.main_ppo"
    assert "+adjudge.scaffold.rule=step_power" in found.verl.command
    assert "algorithm.rollout_correction.rollout_is_threshold=5.0" in found.verl.command


@pytest.mark.parametrize("own", [False, True])
def test_the_data_is_written_by_the_custom_template(tmp_path: Path, own: bool) -> None:
    """Verl's own ``custom_chat_template`` reaches its workers, and not its data."""
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    run = run_of(tmp_path, model={"custom_chat_template": "chat.jinja"} if own else {})
    config = configured(run, tmp_path / "out")
    config.data.filter_overlong_prompts = False
    rows = RLHFDataset([str(tmp_path / "out/train.parquet")], tiny.tokenizer(), config.data)
    tokens = tiny.tokenizer().convert_ids_to_tokens(rows[0]["raw_prompt_ids"])
    assert tokens[1] == "user"
    assert (tokens[2:4] == ["what", "is"]) == own
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert isinstance(model, HFModelConfig)
    assert model.tokenizer.chat_template == (TEMPLATE if own else tiny.CHAT)
