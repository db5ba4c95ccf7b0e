"""``adjudge eval ifeval`` and ``adjudge eval healthbench``: responses on benchmarks, as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from adjudge.cli.console import (
    StageProgress,
    clean,
    errors,
    output,
    print_json,
    resumable_work,
)
from adjudge.cli.options import (
    ApiKeyEnv,
    DryRun,
    JsonSummary,
    PolicyModel,
    Quiet,
    WaitForJudge,
    against_option,
    budget_option,
    data_option,
    new_folder,
    output_option,
    print_call_estimates,
    settings_options,
)
from adjudge.errors import ConfigError
from adjudge_lab.evaluation.healthbench_run import (
    USUAL_TAGS,
    HealthbenchJob,
    estimate_healthbench,
    evaluate_healthbench,
    group_tags,
    health_scores_table,
    healthbench_missing_lines,
)
from adjudge_lab.evaluation.ifeval.generation import (
    GenerationSettings,
    VllmSettings,
    check_generation,
)
from adjudge_lab.evaluation.ifeval.run import (
    IfevalJob,
    accuracy_table,
    difference_table,
    evaluate_ifeval,
    ifeval_missing_lines,
    parts_table,
)
from adjudge_lab.evaluation.responses import JoinBy
from adjudge_lab.evaluation.targets import PolicyTarget, find_policy_target, merge_checkpoint

_MODELS_IN_DETAIL = 4
"""Of more models the page has the rest: 17 would have 1,500 lines."""
_Entry = Mapping[str, Any]
_SAMPLING_TEXTS = {
    "n_samples": "Samples per prompt.",
    "max_tokens": "The most tokens of a response.",
    "batch_size": "The batch size of a model loaded here [default: 16].",
    "temperature": "The temperature.",
    "dtype": "The type of the weights: float32, bfloat16 or float16 [default: automatic].",
}
_vllm_option = partial(typer.Option, rich_help_panel="vLLM")
_merging_option = partial(typer.Option, rich_help_panel="verl checkpoints")
_RESPONSE_FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".pq")
_JoinBy = Annotated[JoinBy, typer.Option("--by", help="Match by the prompt's text, or by key.")]


@settings_options(
    GenerationSettings(), _SAMPLING_TEXTS, groups=dict.fromkeys(_SAMPLING_TEXTS, "Sampling")
)
def eval_ifeval(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="A model, as for --model, or a file of responses (.jsonl).",
        ),
    ] = None,
    model: PolicyModel = None,
    against: Annotated[
        list[str] | None,
        against_option(help="Compare with this model. Can be repeated."),
    ] = None,
    api_key_env: ApiKeyEnv = None,
    *,
    data: Annotated[Path, data_option("The file with IFEval's prompts (input_data.jsonl).")],
    responses: Annotated[
        list[str] | None,
        data_option(
            "Responses to score; with a model, where they are written.",
            "--responses",
        ),
    ] = None,
    by: _JoinBy = "prompt",
    settings: GenerationSettings,
    tp_size: Annotated[
        int | None, _vllm_option(min=1, help="Generate with vLLM, over so many GPUs.")
    ] = None,
    gpu_mem_util: Annotated[
        float | None, _vllm_option(min=0.01, max=1, help="The share of GPU memory to use.")
    ] = None,
    max_model_len: Annotated[
        int | None, _vllm_option(min=1, help="The most tokens of prompt and response.")
    ] = None,
    ckpt_dir: Annotated[
        Path | None, _merging_option(help="A checkpoint (or a run's folder) to merge.")
    ] = None,
    merge_target: Annotated[
        Path | None, _merging_option(help="Where the merged model is written.")
    ] = None,
    verl_python: Annotated[
        str | None, _merging_option(help="The Python with verl that merges [default: this].")
    ] = None,
    folder: Annotated[Path | None, output_option("eval")] = None,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Score a model or stored responses on IFEval.

    Example: adjudge eval ifeval --model smollm2 --data input_data.jsonl

    Example: adjudge eval ifeval --data input_data.jsonl --responses responses.jsonl

    Reports Pr(S), Ins(S), Pr(L), Ins(L) and their means with 95 % bootstrap intervals. The same
    command with the same -o generates only what is missing.
    """
    given = {"tp_size": tp_size, "gpu_mem_util": gpu_mem_util, "max_model_len": max_model_len}
    loading: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    candidates = [
        _read_candidate(one, api_key_env)
        for one in (target, model, *(against or ()))
        if one is not None
    ]
    stored = [Path(one) for one in responses or ()]
    merged = _merge_target(ckpt_dir, merge_target, verl_python, candidates)
    candidates[:0] = merged
    models = [one for one in candidates if isinstance(one, PolicyTarget)]
    responses_to = _responses_file(models, stored)
    if responses_to is None:
        candidates += stored
    if not candidates:
        raise ConfigError(
            "TARGET or --responses: is required. Give a model that generates (a folder, a GGUF "
            "file, a name on the hub, http://HOST/v1#MODEL), or a file of prompts and responses."
        )
    job = IfevalJob(
        data=data,
        folder=folder or new_folder("eval"),
        candidates=candidates,
        by=by,
        how=_read_generation(settings, loading, generates=bool(models)),
        responses_to=responses_to,
    )
    if ckpt_dir is not None and merge_target is not None:
        check_generation(merged[0], job.how)  # before what takes minutes
        say = (lambda _: None) if quiet else _print_dim
        merge_checkpoint(ckpt_dir, merge_target, python=verl_python, say=say)
    with resumable_work(job.folder), StageProgress(show=not quiet) as shown:
        job.on_progress = shown.update
        evaluate_ifeval(job)
    if as_json:
        print_missing(errors(), job.summary)
        print_json(job.summary)
    else:
        print_ifeval(output(), errors(), job)


def _read_candidate(name: str, api_key_env: str | None) -> PolicyTarget | Path:
    if name.lower().endswith(_RESPONSE_FILES):
        return Path(name)
    if name.endswith(".toml"):
        raise ConfigError(
            f"{name}: is not a model or a file of responses (allowed: a model's folder, a run "
            "folder of adjudge train, a GGUF file, a name on the hub, http://HOST/v1#MODEL, a "
            ".jsonl of responses)"
        )
    return find_policy_target(name, api_key_env=api_key_env)


def _merge_target(
    ckpt_dir: Path | None,
    merge_target: Path | None,
    verl_python: str | None,
    others: Sequence[PolicyTarget | Path],
) -> list[PolicyTarget]:
    """The model that ``--ckpt-dir`` will be, where it is given."""
    if ckpt_dir is None:
        option = "--merge-target" if merge_target else "--verl-python" if verl_python else ""
        if option:
            raise ConfigError(f"{option}: needs --ckpt-dir. Add --ckpt-dir, or remove {option}.")
        return []
    if merge_target is None:
        raise ConfigError(
            "--ckpt-dir: needs --merge-target. Give the folder that the merged model is written to."
        )
    place = str(merge_target.resolve())
    if place in {one.place for one in others if isinstance(one, PolicyTarget)}:
        raise ConfigError(f"{place}: is given twice. Give it once.")
    return [PolicyTarget(name=str(merge_target), kind="folder", place=place)]


def _print_dim(line: str) -> None:
    errors().print(f"[dim]{clean(line)}[/]")


def _responses_file(models: Sequence[PolicyTarget], stored: Sequence[Path]) -> Path | None:
    """With a model, ``--responses`` is where its responses are kept."""
    if not models or not stored:
        return None
    if len(models) > 1 or len(stored) > 1:
        raise ConfigError(
            "--responses: needs one model and one file, in which the model's responses are kept. "
            "Use --against FILE.jsonl to compare with stored responses."
        )
    return stored[0]


def _read_generation(
    settings: GenerationSettings, loading: Mapping[str, Any], *, generates: bool
) -> GenerationSettings:
    usual = GenerationSettings()
    changed = [name for name in _SAMPLING_TEXTS if getattr(settings, name) != getattr(usual, name)]
    if not generates and (given := [*changed, *loading]):
        option = given[0].replace("_", "-")
        raise ConfigError(f"--{option}: has no effect without a model. Name a model as TARGET.")
    return msgspec.structs.replace(settings, vllm=VllmSettings(**loading) if loading else None)


def print_ifeval(console: Console, errors: Console, job: IfevalJob) -> None:
    """Accuracies, categories and types of each model, differences, what is in no share."""
    summary = job.summary
    models = summary["models"]
    console.print(
        f"[bold]IFEval[/]: {summary['prompts']:,} prompts of {clean(summary['data'])}  ·  "
        f"{summary['seconds']:.1f} s"
    )
    for one in models:
        console.print(accuracy_table(one))
    if len(models) <= _MODELS_IN_DETAIL:
        for one in models:
            console.print(parts_table(one))
        if compared := difference_table(summary):
            console.print(compared)
    else:
        console.print(
            f"[dim]Categories, types and all {math.comb(len(models), 2)} pairs of models are in "
            "report.html and summary.json.[/]"
        )
    print_missing(errors, summary)
    console.print(
        "[dim]S strict, L loose; 95 % bootstrap intervals over prompts. "
        "Several samples of a prompt count with their mean, not their best. Missing responses are "
        "left out; least to most: the share if all of them followed nothing, or everything.[/]"
    )
    files = "eval_results_{strict,loose}.jsonl  summary.json  report.html"
    console.print(f"\n[bold]{clean(job.folder)}/[/]  {files}", highlight=False, soft_wrap=True)


def print_missing(console: Console, summary: _Entry) -> None:
    """A warning a line: what is in no share, and why."""
    for one in summary["models"]:
        for line in ifeval_missing_lines(one):
            console.print(f"[yellow]{clean(one['name'])}:[/] {clean(line)}", soft_wrap=True)


def eval_healthbench(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A reward spec with a grader of type rubric: SPEC.toml, or SPEC.toml#GRADER.",
        ),
    ],
    *,
    data: Annotated[Path, data_option("The file with HealthBench's rows (prompt, rubrics).")],
    responses: Annotated[
        Path,
        data_option(
            "The file of responses to score (prompt and response in each row).", "--responses"
        ),
    ],
    by: _JoinBy = "prompt",
    wait_for_judge: WaitForJudge = 0.0,
    folder: Annotated[Path | None, output_option("eval")] = None,
    budget_usd: Annotated[
        float | None, budget_option(help="The most that the judge may cost; needs its price.")
    ] = None,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Score stored responses on HealthBench with a rubric grader.

    Example: adjudge eval healthbench judge.toml --data bench.parquet --responses r.jsonl

    The rubric grader of TARGET marks the criteria of each row for the responses. Reports the
    official score with its bootstrap standard deviation, overall and by tag.

    Exit code: 0 done, 2 bad input, 3 no sample has a score, because no judge answered.
    """
    job = HealthbenchJob(
        target=target,
        data=data,
        responses=responses,
        folder=folder or new_folder("eval"),
        by=by,
        budget_usd=budget_usd,
        startup_patience_s=wait_for_judge,
        show_progress=not quiet,
    )
    if dry_run:
        print_call_estimates({target: estimate_healthbench(job)}, as_json=as_json)
        return
    with resumable_work(job.folder):
        evaluate_healthbench(job)
    _print_healthbench_missing(errors(), job.summary)
    if as_json:
        print_json(job.summary)
    else:
        _print_healthbench(output(), job)
    if not job.summary["scored"]:
        errors().print("[red]No sample has a score:[/] the judge gave no usable answer")
        raise typer.Exit(3)


def _print_healthbench_missing(console: Console, summary: Mapping[str, Any]) -> None:
    for line in healthbench_missing_lines(summary):
        console.print(f"[yellow]{clean(line)}[/]", soft_wrap=True)


def _print_healthbench(console: Console, job: HealthbenchJob) -> None:
    summary = job.summary
    console.print(
        f"[bold]HealthBench[/]: {summary['scored']:,} of {summary['samples']:,} samples scored  ·  "
        f"{summary['prompts']:,} prompts of {clean(summary['data'])}  ·  {summary['seconds']:.1f} s"
    )
    console.print(health_scores_table("HealthBench", {"overall": summary["overall"]}))
    groups = group_tags(summary["tags"])
    for name in (one for one in groups if one in USUAL_TAGS):
        console.print(health_scores_table(name, groups[name]))
    if others := [
        f"{name} ({len(tags)})" for name, tags in groups.items() if name not in USUAL_TAGS
    ]:
        console.print(f"[dim]also by {clean(', '.join(others))}: report.html[/]")
    console.print(
        "[dim]Score: points met over positive points; not clipped for a sample, the mean is "
        "clipped "
        "to 0 to 1. SD and 95 % interval: bootstrap over prompts. Missing samples are left out.[/]"
    )
    files = "scores.jsonl  summary.json  report.html  grading/"
    console.print(f"\n[bold]{clean(job.folder)}/[/]  {files}", highlight=False, soft_wrap=True)
