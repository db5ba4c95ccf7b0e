"""The prompts of ``rl_smollm2.toml``: they are what their maker writes, and can be graded."""

import json
from pathlib import Path

from tests.scripts import load_script

from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile_checks import load_run_file

EXAMPLES = Path(__file__).parents[3] / "examples"
ROWS = [json.loads(line) for line in (EXAMPLES / "instruction_rows.jsonl").read_text().splitlines()]
HELD_OUT = [row for row in ROWS if row["split"] != "train"]


def test_the_rows_are_those_that_their_maker_writes() -> None:
    maker = load_script(EXAMPLES / "make_instruction_rows.py")
    assert json.loads(json.dumps(list(maker.make_rows()))) == ROWS
    assert list(maker.make_rows(1)) != list(maker.make_rows(0))


def test_what_is_held_out_is_never_trained() -> None:
    families: dict[str, set[str]] = {}
    prompts: dict[str, set[str]] = {}
    for row in ROWS:
        families.setdefault(row["split"], set()).update(row["families"])
        prompts.setdefault(row["split"], set()).add(row["prompt"][-1]["content"])
    assert families["new_prompts"] == families["train"]
    assert not families["new_families"] & families["train"]
    opening = {
        split: {text.partition(". ")[0] for text in found} for split, found in prompts.items()
    }
    assert not opening["train"] & (opening["new_prompts"] | opening["new_families"])


def test_the_run_holds_out_all_that_is_to_be_held_out() -> None:
    run = load_run_file(EXAMPLES / "rl_smollm2.toml")
    assert run.evaluation.held_out == list(range(len(HELD_OUT)))
    assert ROWS[: len(HELD_OUT)] == HELD_OUT
    groups = run.training.steps * run.training.rollouts_per_step // run.training.group_size
    assert groups <= len(ROWS) - len(HELD_OUT)  # no prompt is trained on twice
    assert [(one.type, one.weight) for one in build_reward_spec(run).graders] == [
        ("ifeval_repaired", 1.0), ("ifeval_repaired", 1.0)
    ]  # fmt: skip
