"""``adjudge eval policy``: one or two policies on seeds, and their judges, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adjudge.cli.console import clean, output, print_json, resumable_work
from adjudge.cli.options import (
    ApiKeyEnv,
    DryRun,
    EnvFile,
    JsonForTables,
    PolicyModel,
    PolicyUrl,
    Quiet,
    against_option,
    new_folder,
    output_option,
    print_call_estimates,
)
from adjudge.errors import ConfigError
from adjudge.report.elements import Element
from adjudge.report.table import Column, Table, lost
from adjudge_lab.evaluation.report import missing_text
from adjudge_lab.evaluation.run import EvaluationJob, estimate_evaluation, evaluate_targets
from adjudge_lab.evaluation.summary import OFFICIAL_SCORE, REWARD_SCORE, grader_scores
from adjudge_lab.evaluation.targets import PolicyTarget, find_policy_target
from adjudge_lab.rl.runfile import parse_seeds
from adjudge_lab.rl.runfile_checks import load_run_file

_MOST_ROWS = 40
_DASH = "–"


def eval_policy(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="The run file (.toml), or a model as for --model."),
    ] = None,
    model: PolicyModel = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The run file with task, judges and seeds [default: the run folder's]."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="1-20",
            help="The seeds to play [default: those of [evaluation] in the run file].",
        ),
    ] = None,
    against: Annotated[
        list[str] | None, against_option("Compare with this policy on the same seeds.")
    ] = None,
    base_url: PolicyUrl = None,
    api_key_env: ApiKeyEnv = None,
    no_judges: Annotated[
        bool, typer.Option("--no-judges", help="Ask no judge; report the official score alone.")
    ] = False,
    env_file: EnvFile = None,  # noqa: ARG001  (loaded as the command line is read)
    folder: Annotated[Path | None, output_option("eval")] = None,
    dry_run: DryRun = False,
    as_json: JsonForTables = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a policy on seeds, and its judges against the official score.

    Example: adjudge eval policy run.toml --model runs/first --seeds 1-20

    The official score is the environment's reward. For each judge: the mean, and Pearson's r and
    Spearman's rho against the official score, with 95 % bootstrap intervals over seeds. A failed
    judge call is missing, never 0. Two policies (--against) play the same seeds and are compared
    in pairs.

    Writes episodes.jsonl (every episode with messages and verdicts), summary.json, and report.html.
    The same command with the same -o resumes, and repeats failed judge calls.
    """
    other = _one_baseline(against)
    job = _make_job(
        _PolicyArguments(target, model, config, other, base_url, api_key_env), seeds, folder
    )
    job.judged = not no_judges
    if dry_run:
        print_call_estimates(estimate_evaluation(job), as_json=as_json, of="judging of")
        return
    with resumable_work(job.folder, bars=not quiet) as bars:
        job.on_progress = bars.update
        evaluate_targets(job)
    if as_json:
        print_json(job.summary)
    else:
        print_evaluation(output(), job)


def _one_baseline(against: list[str] | None) -> str | None:
    if against and len(against) > 1:
        raise ConfigError("--against: is given more than once (allowed: one policy). Give it once.")
    return against[0] if against else None


class _PolicyArguments:
    """The policies and the run file that the command line means."""

    def __init__(
        self,
        target: str | None,
        model: str | None,
        config: Path | None,
        against: str | None,
        base_url: str | None,
        api_key_env: str | None,
    ) -> None:
        if target is not None and target.endswith(".toml"):
            if config is not None:
                raise ConfigError(f"{target} and --config: both name a run file. Give one of them.")
            config = Path(target)
        elif target is not None:
            if model is not None:
                raise ConfigError(
                    f"{target} and --model: both name a model. Name the second one with --against."
                )
            model = target
        if model is None:
            raise ConfigError(
                "--model: is required. Give a run folder of adjudge train, RUN@STEP, a "
                "checkpoint's folder, http://HOST/v1#MODEL, or a name on the hub."
            )
        found = [
            find_policy_target(one, base_url=base_url, api_key_env=api_key_env)
            for one in (model, against)
            if one is not None
        ]
        if len({one.identity for one in found}) < len(found):
            raise ConfigError(f"--against {against!r}: is the same model as --model")
        self.targets: list[PolicyTarget] = found
        self.config = config or _find_run_file(found[0])


def _find_run_file(target: PolicyTarget) -> Path:
    """The run file that a run folder keeps; asked for where there is none."""
    if target.run is not None and (kept := Path(target.run) / "config.toml").is_file():
        return kept
    raise ConfigError(
        "--config: is required. Give the run file with the task and the judges (a run folder of "
        "adjudge train has its own)."
    )


def _make_job(arguments: _PolicyArguments, seeds: str | None, folder: Path | None) -> EvaluationJob:
    run = load_run_file(arguments.config)
    try:
        wanted = run.evaluation.held_out if seeds is None else parse_seeds(seeds)
    except ValueError as error:
        raise ConfigError(f"--seeds {seeds!r}: {error}") from None
    return EvaluationJob(
        run, arguments.config, folder or new_folder("eval"), arguments.targets, wanted
    )


def print_evaluation(console: Console, job: EvaluationJob) -> None:
    """Each model's judges against the official score, the comparison, the seeds, the cost."""
    summary = job.summary
    judged = f"judged by {summary['judge']}" if summary["judges"] else "no judge was asked"
    console.print(
        f"[bold]{clean(summary['task'])}[/]: {summary['seeds']:,} seeds, {clean(judged)}"
        f"  ·  {summary['seconds']:.1f} s"
    )
    for model in summary["models"]:
        console.print(_judges(model))
        for line in _cost_lines(model):
            console.print(f"[dim]{clean(line)}[/]", soft_wrap=True)
    if summary["comparison"]:
        console.print(_comparison(summary))
    console.print(_seeds(summary, job.rows))
    if (left := summary["seeds"] - _MOST_ROWS) > 0:
        console.print(f"[dim]… and {left:,} more seeds (episodes.jsonl)[/]")
    console.print(
        "[dim]r (Pearson) and rho (Spearman) against the official score; 95 % bootstrap intervals "
        "over seeds; what failed is missing, never 0.[/]"
    )
    console.print(f"\n[bold]{clean(job.folder)}/[/]  episodes.jsonl  summary.json  report.html")


def _columns(first: str, *headings: str) -> list[Column]:
    return [Column(first), *(Column(one, "i" if one.startswith("95") else "n") for one in headings)]


def _judges(model: Mapping[str, Any]) -> Table:
    """Official score, graders and reward of one model."""
    missing = _missing_cell(model, None)
    rows: list[list[object]] = [
        ["official score", *_estimate(model["official"]), *[""] * 4, missing]
    ]
    for name, found in model["scores"].items():
        kinds = ("mean", "pearson", "spearman")
        cells = [cell for kind in kinds for cell in _estimate(found[kind])]
        rows.append([name, *cells, _missing_cell(model, found)])
    columns = _columns("", "mean", "95 %", "r", "95 %", "rho", "95 %", "missing")
    return Table(columns, rows, caption=model["name"], keep=("mean", "missing"))


def _estimate(found: Mapping[str, Any]) -> tuple[str, str]:
    value, low, high = found["value"], found["low"], found["high"]
    interval = found["why"] if low is None else f"{low:.2f} to {high:.2f}"
    return (_DASH if value is None else f"{value:.3f}"), interval


def _missing_cell(model: Mapping[str, Any], found: Mapping[str, Any] | None) -> Element | str:
    kinds = missing_text(model, found)
    return lost(kinds) if kinds else "0"


def _cost_lines(model: Mapping[str, Any]) -> list[str]:
    """Calls, tokens and cost, where anybody said."""
    lines = []
    policy, judges = model["policy"], model["judges"]
    if policy:
        lines.append(
            f"policy: {policy['calls']:,} replies, {policy['input_tokens']:,} tokens in, "
            f"{policy['output_tokens']:,} out"
        )
    if judges["input_tokens"] or judges["output_tokens"]:
        cost = judges["cost_usd"]
        priced = "cost unknown: no price" if cost is None else f"{cost:.4f} USD"
        lines.append(
            f"judges: {judges['input_tokens']:,} tokens in, {judges['output_tokens']:,} out, "
            f"{priced}"
        )
    return lines


def _comparison(summary: Mapping[str, Any]) -> Table:
    model, baseline = (one["name"] for one in summary["models"])
    rows = [
        [
            "official score" if name == OFFICIAL_SCORE else name,
            *(_DASH if one[key] is None else f"{one[key]:.3f}" for key in ("model", "baseline")),
            *_estimate(one["difference"]),
            _DASH if one["p"] is None else f"{one['p']:.4f}",
            f"{one['wins']}/{one['ties']}/{one['losses']}",
            f"{one['difference']['n']:,}",
        ]
        for name, one in summary["comparison"].items()
    ]
    columns = _columns(
        "", "mean", "its mean", "difference", "95 %", "p", "wins/ties/losses", "seeds of both"
    )
    return Table(
        columns,
        rows,
        caption=f"{model} against {baseline}",
        drop=("wins/ties/losses", "its mean", "mean", "seeds of both"),
        keep=("difference",),
    )


def _seeds(summary: Mapping[str, Any], rows: Sequence[Sequence[Mapping[str, Any]]]) -> Table:
    names = list(summary["models"][0]["scores"])
    marks = [f" {place + 1}" if len(rows) > 1 else "" for place in range(len(rows))]
    headings = [f"{name}{mark}" for mark in marks for name in ("official", *names, "turns")]
    body = [
        [own[0]["seed"], *(cell for row in own for cell in _seed(row, names))]
        for own in list(zip(*rows, strict=True))[:_MOST_ROWS]
    ]
    return Table(_columns("seed", *headings), body)


def _seed(row: Mapping[str, Any], names: Sequence[str]) -> list[object]:
    """Official score, the scores of ``names``, turns; in a missing reward's place, why."""
    if row["error"] is not None:
        return [lost(row["error"]["kind"]), *[""] * (len(names) + 1)]
    scores = [grader_scores([row], name)[row["seed"]] for name in names]
    cells: list[object] = [_DASH if x is None else f"{x:.3f}" for x in (row["env_reward"], *scores)]
    if names and names[-1] == REWARD_SCORE and (gone := row["missing"]):
        cells[-1] = lost(gone["kind"])
    return [*cells, str(row["turns"])]
