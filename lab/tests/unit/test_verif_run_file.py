"""The example run that is rewarded by VerIF."""

from pathlib import Path

from adjudge_lab.rl.runfile_checks import load_run_file


def test_the_examples_run_file_is_valid() -> None:
    folder = Path(__file__).parents[3] / "examples"
    run = load_run_file(folder / "rl_verif_tiny.toml")
    assert run.rollout.dataset == "verif_rows.jsonl"
