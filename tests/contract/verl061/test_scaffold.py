"""Rubrics shown to rollouts in verl's real RayPPOTrainer, and its correction for them."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import keeping  # type: ignore[import-not-found]  # beside this file
import numpy as np
import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
from omegaconf import OmegaConf
from scaffold_on_cpu import RUBRICS  # type: ignore[import-not-found]  # beside this file
from tensordict import TensorDict
from transformers import Qwen2ForCausalLM
from verl import DataProto
from verl_words import run_script  # type: ignore[import-not-found]  # above

from adjudge.errors import ConfigError
from adjudge.rubrics import rubric_from
from adjudge_lab.rl.runfile import ScaffoldTable
from adjudge_lab.rl.scaffold import add_scaffold_message, build_scaffold_message, draw_shown_rubrics
from adjudge_lab.rl.verl.scaffold_trainer import (
    RolloutScaffold,
    ScaffoldedPrompt,
    ScaffoldTrainerMixin,
    generate_with_scaffold,
    read_scaffold_config,
)

HERE = Path(__file__).parent
QUESTION = [{"role": "user", "content": "what is 2 + 3 ?"}]
SCAFFOLD = ScaffoldTable(rule="step_linear")
CAP, SEED, SIZE = 1.5, 3, 4


def tokens(messages: Any) -> list[int]:
    tok = tiny.tokenizer()
    text = tok.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tok(text, add_special_tokens=False)["input_ids"])


def prompt_shown(step: int, place: int) -> tuple[int, list[int]]:
    """How many criteria, and the prompt's tokens, of a rollout of the two steps below."""
    _, shown = draw_shown_rubrics(
        SCAFFOLD, rubric_from(RUBRICS).criteria, step=step, steps=2, index=place % SIZE, size=SIZE,
        seed=SEED, group=place // SIZE,
    )  # fmt: skip
    return len(shown), tokens(
        add_scaffold_message(QUESTION, build_scaffold_message(shown, SCAFFOLD))
    )


def unpadded(ids: Any, mask: Any) -> list[list[int]]:
    return [row[on.bool()].tolist() for row, on in zip(ids, mask, strict=True)]


def kept(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    for number in count():
        path = folder / "kept" / f"{kind}-{number}.pt"
        if not path.exists():
            return
        yield torch.load(path, weights_only=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, spec: str) -> Path:
    """Two steps with validation before and after, with verl's correction."""
    folder = tmp_path_factory.mktemp("scaffolded")
    settings = [
        f"+adjudge.scaffold.rule={SCAFFOLD.rule}", f"+adjudge.seed={SEED}",
        f"+adjudge.scaffold.correction_cap={CAP}",
        "actor_rollout_ref.rollout.max_model_len=200",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "algorithm.rollout_correction.rollout_is=token",
        f"algorithm.rollout_correction.rollout_is_threshold={CAP}",
    ]  # fmt: skip
    log = {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    run_script(HERE / "scaffold_on_cpu.py", spec, folder, *settings, **log)
    return folder


def test_rollouts_see_the_scaffold_of_their_place_and_step(folder: Path) -> None:
    _, *calls, _ = kept(folder, "rollout")  # the first and the last validate
    assert [one["global_steps"] for one in calls] == [1, 2]
    counts = []
    for step, one in enumerate(calls, start=1):
        expected = [prompt_shown(step, place) for place in range(16)]
        assert unpadded(one["input_ids"], one["attention_mask"]) == [ids for _, ids in expected]
        assert one["raw_prompt_ids"] == [ids for _, ids in expected]
        assert "adjudge_rows" not in one["columns"]
        counts.append([number for number, _ in expected])
    assert counts == [[4, 3, 1, 0] * 4, [0] * 16]  # the last step of a linear schedule shows none


def test_validation_is_not_scaffolded(folder: Path) -> None:
    first, *_, last = kept(folder, "rollout")
    for one in (first, last):
        assert one["validate"] is True
        assert unpadded(one["input_ids"], one["attention_mask"]) == [tokens(QUESTION)] * 16
        assert "adjudge_rows" not in one["columns"]


def test_the_actor_is_trained_on_original_prompts(folder: Path) -> None:
    _, *calls, _ = kept(folder, "rollout")
    for call, batch in zip(calls, kept(folder, "update"), strict=True):
        said, whole = batch["responses"], batch["attention_mask"]
        width = whole.shape[1] - said.shape[1]
        assert width == 32  # data.max_prompt_length
        assert unpadded(batch["prompts"], whole[:, :width]) == [tokens(QUESTION)] * 16
        assert torch.equal(batch["input_ids"], torch.cat([batch["prompts"], said], 1))
        positions = (whole.cumsum(-1) - 1).clamp(min=0)
        assert torch.equal(batch["position_ids"][whole.bool()], positions[whole.bool()])
        assert batch["raw_prompt"] == [QUESTION] * 16  # what graders see
        rows = sorted(zip(batch["scaffold_shown"], said.tolist(), strict=True))
        numbers = [prompt_shown(call["global_steps"], place)[0] for place in range(16)]
        assert rows == sorted(zip(numbers, call["responses"].tolist(), strict=True))


def test_the_correction_is_the_ratio_of_both_prompts_truncated(folder: Path) -> None:
    first, _ = kept(folder, "update")
    old = first["old_log_probs"].float()
    # The actor computes in bfloat16; in float32 an unlikely token is off by more than .1.
    model = Qwen2ForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16)
    mask = first["response_mask"].bool()
    with torch.no_grad():
        without = keeping.log_probs(model, first).float()
    assert torch.allclose(old[mask], without[mask], atol=0.05)
    ratio = torch.exp(old - first["rollout_log_probs"])
    expected = ratio.clamp(max=CAP)
    assert torch.allclose(first["rollout_is_weights"][mask], expected[mask], rtol=1e-4)
    shown = torch.tensor(first["scaffold_shown"])[:, None].expand_as(mask) > 0
    assert (ratio[mask & shown].log().abs() > 0.5).any()
    assert torch.allclose(ratio[mask & ~shown], torch.ones(()), atol=0.15)


def test_what_was_shown_is_in_the_dump_and_the_log(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "rollouts/1.jsonl").read_text().splitlines()]
    assert sorted(row["scaffold_shown"] for row in rows) == [0] * 4 + [1] * 4 + [3] * 4 + [4] * 4
    assert {row["scaffold_ratio"] for row in rows} == {1.0, 2 / 3, 1 / 3, 0.0}
    assert all(row["messages"][0]["role"] == "user" for row in rows)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    _, first, last = (json.loads(line)["data"] for line in lines)
    assert first["scaffold/shown_mean"] == 2.0
    assert first["scaffold/ratio_mean"] == pytest.approx(0.5)
    assert last["scaffold/shown_mean"] == last["scaffold/ratio_mean"] == 0.0
    assert "scaffold/weight_mean" not in last  # no token was drawn with a scaffold
    batch = next(kept(folder, "update"))
    shown = torch.tensor(batch["scaffold_shown"])[:, None] > 0
    weights = batch["rollout_is_weights"][batch["response_mask"].bool() & shown]
    assert first["scaffold/weight_mean"] == pytest.approx(float(weights.mean()), rel=1e-4)
    clipped = float((weights >= CAP).float().mean())
    assert first["scaffold/weight_clipped_frac"] == pytest.approx(clipped)
    assert 0 < first["scaffold/ess"] < 1


CORRECTION = {"rollout_is": "token", "rollout_is_threshold": 2.0, "bypass_mode": False}


def config(**changed: Any) -> Any:
    settings: dict[str, Any] = {
        "actor_rollout_ref": {"rollout": {"mode": "sync", "calculate_log_probs": True}},
        "algorithm": {"rollout_correction": CORRECTION},
        "data": {"return_raw_chat": True},
    }
    return OmegaConf.merge(settings, changed)


def test_settings_arrive_and_what_cannot_be_is_refused() -> None:
    told = {"scaffold": {"rule": "binary", "full_reveal_count": 2}, "seed": 7}
    assert read_scaffold_config(config(adjudge=told)) == (
        ScaffoldTable(rule="binary", full_reveal_count=2),
        7,
    )
    with pytest.raises(ConfigError, match="adjudge.scaffold"):
        read_scaffold_config(config(adjudge={"scaffold": {"rules": "binary"}}))
    for odd in ({"seeds": 7}, {"seed": "x"}, {"seed": None}):
        with pytest.raises(ConfigError, match=f"adjudge.{next(iter(odd))}"):
            read_scaffold_config(config(adjudge=odd))
    with pytest.raises(ConfigError, match="mode"):
        read_scaffold_config(config(actor_rollout_ref={"rollout": {"mode": "async"}}))
    with pytest.raises(ConfigError, match="return_raw_chat"):
        read_scaffold_config(config(data={"return_raw_chat": False}))


@pytest.mark.parametrize(
    "changed",
    [
        {"actor_rollout_ref": {"rollout": {"calculate_log_probs": False}}},
        {"algorithm": {"rollout_correction": {"rollout_is": None}}},
        {"algorithm": {"rollout_correction": {"rollout_is_threshold": 5.0}}},
        {"algorithm": {"rollout_correction": {"bypass_mode": True}}},
        {"adjudge": {"scaffold": {"correction": "none"}}},
    ],
)
def test_a_correction_that_verl_is_not_told_to_do_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="adjudge.scaffold.correction"):
        read_scaffold_config(config(**changed))
    takes_part = {"adjudge": {"scaffold": {"participate_training": True}}}
    read_scaffold_config(OmegaConf.merge(config(**changed), takes_part))  # nothing is off-policy


def test_a_prompt_that_does_not_fit_is_not_cut() -> None:
    trainer = ScaffoldTrainerMixin.__new__(ScaffoldTrainerMixin)
    room = {"max_model_len": 26, "response_length": 16, "prompt_length": 32}
    trainer.config = config(actor_rollout_ref={"rollout": room})
    trainer.tokenizer, trainer._scaffold = tiny.tokenizer(), ScaffoldTable()
    assert len(tokens(QUESTION)) == 11
    with pytest.raises(ConfigError, match=r"found 11 tokens; allowed: 10\). Raise"):
        trainer._tokens(ScaffoldedPrompt(QUESTION, 0, 0.0))
    trainer._scaffold = ScaffoldTable(participate_training=True)
    assert trainer._tokens(ScaffoldedPrompt(QUESTION, 0, 0.0)) == tokens(QUESTION)


@pytest.mark.parametrize(
    "row",
    [
        {"rubrics": RUBRICS},
        {"extra_info": {"rubrics": RUBRICS}},
        {"reward_model": {"ground_truth": "5", "rubrics": RUBRICS}},
        {"reward_model": {}, "extra_info": {"reward_model": {"rubrics": RUBRICS}}},
    ],
)
def test_rubrics_are_found_where_files_of_verl_have_them(row: dict[str, Any]) -> None:
    schedule = RolloutScaffold(ScaffoldTable(rule="linear"), seed=0, steps=5, size=2)
    drawn = schedule.draw_prompts([row, row], [QUESTION, QUESTION], 1)
    assert [(one.shown, one.ratio) for one in drawn] == [(4, 1.0), (0, 0.0)]
    assert drawn[1].messages == QUESTION


def test_a_row_without_rubrics_is_no_plain_rl() -> None:
    schedule = RolloutScaffold(ScaffoldTable(), seed=0, steps=5, size=1)
    with pytest.raises(ConfigError, match="step 2, prompt 1 has no rubrics"):
        schedule.draw_prompts(
            [{"rubrics": RUBRICS}, {"extra_info": {"index": 1}}], [QUESTION] * 2, 2
        )


def objects(*values: Any) -> Any:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


@pytest.mark.parametrize("trained", [False, True])
def test_what_takes_part_in_training(trained: bool) -> None:
    mask = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1]])
    ids = torch.tensor([[0, 5, 6, 7], [0, 0, 8, 9]])
    tensors = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1)}
    columns = {"raw_prompt": objects([], []), "raw_prompt_ids": objects([5, 6, 7], [8, 9])}
    batch = DataProto(batch=TensorDict({**tensors}, batch_size=2), non_tensor_batch=dict(columns))
    said, on = torch.tensor([[3, 1], [3, 4]]), torch.tensor([[1, 0], [1, 1]])

    def rollouts(given: Any) -> Any:
        b = given.batch
        assert [list(one) for one in given.non_tensor_batch["raw_prompt_ids"]] == shown
        found = {
            "prompts": b["input_ids"],
            "responses": said,
            "input_ids": torch.cat([b["input_ids"], said], 1),
            "attention_mask": torch.cat([b["attention_mask"], on], 1),
            "position_ids": torch.cat([b["position_ids"], b["position_ids"][:, -1:] + 1,
                                       b["position_ids"][:, -1:] + 2], 1),
        }  # fmt: skip
        return DataProto(
            batch=TensorDict(found, batch_size=2), non_tensor_batch=given.non_tensor_batch
        )

    shown = [[2, 5, 6, 7], [8, 9]]
    out = generate_with_scaffold(
        batch, [ScaffoldedPrompt([], 1, 1.0), ScaffoldedPrompt([], 0, 0.0)], shown, pad=0,
        trained=trained,
        generate=rollouts,
    )  # fmt: skip
    prompts = shown if trained else [[5, 6, 7], [8, 9]]
    assert unpadded(out.batch["prompts"], out.batch["attention_mask"][:, :4]) == prompts
    assert [list(one) for one in out.non_tensor_batch["raw_prompt_ids"]] == prompts
    whole = [[*prompts[0], 3], [*prompts[1], 3, 4]]
    assert unpadded(out.batch["input_ids"], out.batch["attention_mask"]) == whole
    assert out.batch["position_ids"][0, -2:].tolist() == [len(prompts[0]), len(prompts[0]) + 1]
    assert out.non_tensor_batch["scaffold_shown"].tolist() == [1, 0]
