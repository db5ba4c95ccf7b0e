"""Commands of the lab, which appear in the ``adjudge`` program by entry point."""

__all__ = ["COMMANDS"]

COMMANDS = {
    "train": "adjudge_lab.cli.train:train",
    "eval.policy": "adjudge_lab.cli.eval_policy:eval_policy",
    "eval.ifeval": "adjudge_lab.cli.eval_benchmarks:eval_ifeval",
    "eval.healthbench": "adjudge_lab.cli.eval_benchmarks:eval_healthbench",
    "conformance": "adjudge_lab.cli.conformance:conformance",
    "study.run": "adjudge_lab.cli.study:run_study_file",
    "study.diff": "adjudge_lab.cli.study:diff_run_files",
    "study.replay": "adjudge_lab.cli.study_replay:replay",
}
"""The lab's entry points of the group ``adjudge.commands``, as its pyproject.toml has them."""
