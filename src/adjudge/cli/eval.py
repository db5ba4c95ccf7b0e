"""``adjudge eval``: a policy on seeds, a judge on a benchmark, a model on IFEval."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from adjudge.cli.bars import StageBars
from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.eval_healthbench import eval_healthbench
from adjudge.cli.eval_ifeval import concerns_ifeval, eval_ifeval
from adjudge.cli.eval_judge import concerns_judge, eval_judge
from adjudge.cli.eval_tables import print_evaluation
from adjudge.cli.grade import new_folder
from adjudge.cli.judges import WaitForJudge, wait_for_judges
from adjudge.errors import ConfigError, JudgeAuthError, JudgeUnavailable
from adjudge.training.evaluating.run import EvalJob, evaluate_targets
from adjudge.training.evaluating.targets import Target, find_target
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import seeds_of

__all__ = ["eval_command"]


def eval_command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Of a policy: the run file (.toml), or what --model means. Of a judge: a reward "
            "spec (SPEC.toml, SPEC.toml#GRADER), the folder of a trained judge, a judgements.jsonl "
            "(or FILE#JUDGE), LLMBar's recorded verdicts (.json, or a quoted pattern with *). With "
            "--benchmark ifeval: what --model means, or a file of responses.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="A run folder of adjudge train (its last model), RUN@STEP, a checkpoint's folder, "
            "an endpoint (http://HOST/v1#MODEL), a name on the hub.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="The run file: task, judges, seeds [default: the run folder's]."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="1-20", help="[default: those of its [evaluation]]"),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="OTHER",
            help="Compare with this one, on the same seeds, items or prompts; repeatable, except "
            "for policies on seeds.",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="Where --model (and --against) is served."),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env", metavar="VAR", help="The variable with the key of an endpoint."
        ),
    ] = None,
    no_judges: Annotated[
        bool, typer.Option("--no-judges", help="Ask no judge: the official score alone.")
    ] = False,
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark",
            metavar="rewardbench2|llmbar|judgebench|preference|ifeval|healthbench",
            help="Validate a judge on this one [default: told from the columns of --data]; ifeval, "
            "healthbench: score a model's responses.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Its items (JSONL, JSON, Parquet), repeatable; 'local': a small self-made sample "
            "of its shape, to try a judge out.",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="pointwise|pairwise",
            help="How a judge that can do both is asked [default: pairs where there are pairs].",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar="logits|probabilities",
            help="What a judge's scores are, for calibration [default: known of scalar judges].",
        ),
    ] = None,
    wait_for_judge: WaitForJudge = 0.0,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Questions in flight [default: the spec's]."),
    ] = None,
    responses: Annotated[
        list[str] | None,
        typer.Option(
            "--responses",
            metavar="FILE",
            help="ifeval: score these (prompt and response a row), repeatable; with a model: where "
            "its responses are kept. healthbench: score these.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="prompt|key",
            help="ifeval: join by the prompt's text [default], or key.",
        ),
    ] = None,
    n_samples: Annotated[
        int | None,
        typer.Option("--n-samples", min=1, help="ifeval: samples a prompt [default: 1]."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="ifeval: of a response [default: 2048]."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="ifeval: of a model loaded here [default: 16]."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="ifeval: [default: 0].")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="ifeval: nucleus sampling.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="ifeval: of so many likeliest tokens.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="float32|bfloat16|float16", help="ifeval: of the weights."),
    ] = None,
    tp_size: Annotated[
        int | None,
        typer.Option("--tp-size", help="ifeval: generate by vLLM, split over so many GPUs."),
    ] = None,
    gpu_mem_util: Annotated[
        float | None,
        typer.Option("--gpu-mem-util", help="ifeval: by vLLM, with this share of GPU memory."),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", help="ifeval: by vLLM, prompt and response at most."),
    ] = None,
    ckpt_dir: Annotated[
        Path | None,
        typer.Option("--ckpt-dir", help="ifeval: verl's FSDP checkpoint (or a run's folder)."),
    ] = None,
    merge_target: Annotated[
        Path | None,
        typer.Option("--merge-target", help="ifeval: where that is merged to, and read from."),
    ] = None,
    verl_python: Annotated[
        str | None,
        typer.Option("--verl-python", help="ifeval: the Python with verl that merges [this one]."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The run folder [default: runs/eval-TIME]."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON instead of tables.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Evaluate a policy on seeds, validate a judge on a benchmark, or score a model on IFEval.

    A POLICY, by its official score and how far judges agree with it. The official score is what the
    environment pays. Each judge is set against it: mean, Pearson's r and Spearman's rho with 95 %
    bootstrap intervals over the seeds. What a judge failed at is missing, never 0. Two policies
    (--against) play the same seeds and are compared by pairs.

    Writes to the run folder: episodes.jsonl (every episode with messages and verdicts),
    summary.json, and report.html. The same command with the same -o goes on where it stopped, and
    asks again what judges failed at.

    Example: adjudge eval run.toml --model runs/first --against runs/first@0 --seeds 1-20 -o runs/e

    A JUDGE, with --benchmark or --data, or given as the folder of a trained judge: the benchmark's
    official score with a 95 % bootstrap interval, by subset; both orders of every pair; what failed
    beside the score, never counted as a choice; calibration, length, several judges compared on the
    same items; CONTAMINATED where the judge was trained on them. Writes judgements.jsonl,
    summary.json and report.html; the same command with the same -o asks only what is not answered.

    Example: adjudge eval runs/judge --data rewardbench2.parquet --against reward.toml -o runs/v

    Example: adjudge eval reward.toml --benchmark llmbar --data local

    IFEVAL, with --benchmark ifeval: a model generates (here by transformers or vLLM, or behind an
    endpoint), or --responses are scored as they are: Pr(S), Ins(S), Pr(L), Ins(L), by category and
    type, with 95 % bootstrap intervals over prompts; several compared on the same prompts. Writes
    responses.jsonl, eval_results_strict.jsonl, eval_results_loose.jsonl, summary.json and
    report.html; the same command with the same -o generates only what is missing.

    Example: adjudge eval --benchmark ifeval --data input_data.jsonl --responses responses.jsonl

    Example: adjudge eval runs/first --benchmark ifeval --data input_data.jsonl --n-samples 8
    --temperature 0.7 -o runs/i

    Example: adjudge eval --benchmark ifeval --data input_data.jsonl --ckpt-dir checkpoints
    --merge-target merged -o runs/c

    HEALTHBENCH, with --benchmark healthbench: the rubric grader of TARGET (SPEC.toml) marks the
    criteria of each row for --responses; the official score, its bootstrap spread, by tag.

    Example: adjudge eval judge.toml --benchmark healthbench --data healthbench.parquet
    --responses responses.jsonl -o runs/h
    """
    ifeval_options = {
        "--responses": responses,
        "--by": by,
        "--n-samples": n_samples,
        "--max-tokens": max_tokens,
        "--batch-size": batch_size,
        "--temperature": temperature,
        "--top-p": top_p,
        "--top-k": top_k,
        "--dtype": dtype,
        "--tp-size": tp_size,
        "--gpu-mem-util": gpu_mem_util,
        "--max-model-len": max_model_len,
        "--ckpt-dir": ckpt_dir,
        "--merge-target": merge_target,
        "--verl-python": verl_python,
    }
    specs = [one for one in (target, *(against or ())) if one is not None]
    if benchmark == "healthbench":
        wait_for_judges(specs, wait_for_judge)
        own = ("--responses", "--by")
        eval_healthbench(
            target,
            data or (),
            folder,
            options={**ifeval_options, "--concurrency": concurrency},
            foreign={
                **{name: value for name, value in ifeval_options.items() if name not in own},
                "--model": model,
                "--against": against,
                "--base-url": base_url,
                "--api-key-env": api_key_env,
                "--mode": mode,
                "--scale": scale,
                "--config": config,
                "--seeds": seeds,
                "--no-judges": no_judges,
            },
            as_json=as_json,
            quiet=quiet,
        )
        return
    if concerns_ifeval(benchmark, ifeval_options):
        eval_ifeval(
            [target, model, *(against or ())],
            data or (),
            folder,
            options={**ifeval_options, "--concurrency": concurrency},
            served={"base_url": base_url, "api_key_env": api_key_env},
            foreign={
                "--mode": mode,
                "--scale": scale,
                "--config": config,
                "--seeds": seeds,
                "--no-judges": no_judges,
                "--wait-for-judge": wait_for_judge,
            },
            as_json=as_json,
            quiet=quiet,
        )
        return
    judge_options = {
        "--benchmark": benchmark,
        "--data": data,
        "--mode": mode,
        "--scale": scale,
        "--concurrency": concurrency,
    }
    if concerns_judge(target, judge_options):
        policy_options = {
            "--model": model,
            "--config": config,
            "--seeds": seeds,
            "--base-url": base_url,
            "--api-key-env": api_key_env,
            "--no-judges": no_judges,
        }
        wait_for_judges(specs, wait_for_judge)
        eval_judge(
            target,
            against or (),
            folder,
            judge_options=judge_options,
            policy_options=policy_options,
            as_json=as_json,
            quiet=quiet,
        )
        return
    if wait_for_judge:
        raise ConfigError("--wait-for-judge: is for a judge's reward spec; a policy has none")
    other = _one(against)
    job = _job(_Asked(target, model, config, other, base_url, api_key_env), seeds, folder)
    job.judged = not no_judges
    try:
        with StageBars(show=not quiet) as bar, redirect_stdout(sys.stderr):
            job.on_progress = bar.update
            evaluate_targets(job)
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
        errors().print(f"To go on where it stopped: the same command with -o {clean(job.folder)}")
        raise
    if as_json:
        print_json(job.summary)
    else:
        print_evaluation(output(), job)


def _one(against: list[str] | None) -> str | None:
    if against and len(against) > 1:
        raise ConfigError("--against: a policy is compared with one other")
    return against[0] if against else None


class _Asked:
    """What the command line says about whom to evaluate, told apart."""

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
                raise ConfigError(f"{target} and --config: two run files; give one")
            config = Path(target)
        elif target is not None:
            if model is not None:
                raise ConfigError(f"{target} and --model: two models; name the other in --against")
            model = target
        if model is None:
            raise ConfigError(
                "--model: is required: a run folder of adjudge train, RUN@STEP, a checkpoint's "
                "folder, http://HOST/v1#MODEL, or a name on the hub"
            )
        found = [
            find_target(one, base_url=base_url, api_key_env=api_key_env)
            for one in (model, against)
            if one is not None
        ]
        if len({one.identity for one in found}) < len(found):
            raise ConfigError(f"--against {against!r}: is the same model as --model")
        self.targets: list[Target] = found
        self.config = config or _config_of(found[0])


def _config_of(target: Target) -> Path:
    """The run file that a run folder keeps; asked for where there is none."""
    if target.run is not None and (kept := Path(target.run) / "config.toml").is_file():
        return kept
    raise ConfigError(
        "--config: is required: the run file with the task and the judges (a run folder of adjudge "
        "train has its own)"
    )


def _job(asked: _Asked, seeds: str | None, folder: Path | None) -> EvalJob:
    run = RunFile.load(asked.config)
    try:
        wanted = run.evaluation.held_out if seeds is None else seeds_of(seeds)
    except ValueError as error:
        raise ConfigError(f"--seeds {seeds!r}: {error}") from None
    return EvalJob(run, asked.config, folder or new_folder("eval"), asked.targets, wanted)
