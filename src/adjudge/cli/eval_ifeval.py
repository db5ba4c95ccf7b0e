"""The IFEval half of ``adjudge eval``: a model that generates, or responses that it gave."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from adjudge.cli.bars import StageBars
from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.eval_ifeval_tables import print_ifeval, print_missing
from adjudge.cli.grade import new_folder
from adjudge.errors import ConfigError, JudgeAuthError, JudgeUnavailable
from adjudge.studies.checkpoints import merge_checkpoint
from adjudge.studies.ifeval.generating import Generation, check
from adjudge.studies.ifeval.run import IfevalJob, evaluate_ifeval
from adjudge.studies.ifeval.vllm_engine import VllmSettings
from adjudge.training.evaluating.targets import Target, find_target

__all__ = ["concerns_ifeval", "eval_ifeval"]

_FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".pq")
_VLLM = {"--tp-size": "tp_size", "--gpu-mem-util": "gpu_mem_util",
         "--max-model-len": "max_model_len"}  # fmt: skip
_DRAWN = {
    "--n-samples": "n_samples",
    "--max-tokens": "max_tokens",
    "--batch-size": "batch_size",
    "--temperature": "temperature",
    "--top-p": "top_p",
    "--top-k": "top_k",
    "--dtype": "dtype",
    "--concurrency": "concurrency",
}


def concerns_ifeval(benchmark: str | None, ifeval_options: Mapping[str, Any]) -> bool:
    """Whether IFEval is asked for; raises :class:`ConfigError` for its options without it."""
    if benchmark == "ifeval":
        return True
    if given := [name for name, value in ifeval_options.items() if _given(value)]:
        raise ConfigError(f"{given[0]}: goes with --benchmark ifeval")
    return False


def _given(value: Any) -> bool:
    return value is not None and value != []


def eval_ifeval(
    targets: Sequence[str | None],
    data: Sequence[str],
    folder: Path | None,
    *,
    options: Mapping[str, Any],
    served: Mapping[str, Any],
    foreign: Mapping[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Evaluate and print.

    ``targets``: models and files of responses; ``options``: IFEval's own; ``served``: ``base_url``
    and ``api_key_env``; ``foreign``: options of the other evaluations. Raises
    :class:`ConfigError` for what does not go together.
    """
    if given := [name for name, value in foreign.items() if value]:
        raise ConfigError(f"{given[0]}: does not go with --benchmark ifeval")
    if len(data) != 1:
        raise ConfigError(
            "--data: is required once: IFEval's prompts (input_data.jsonl: key, prompt, "
            "instruction_id_list, kwargs a row)"
        )
    candidates = [_candidate(one, served) for one in targets if one is not None]
    stored = [Path(one) for one in options["--responses"] or ()]
    merged = _merged(options, candidates)
    candidates[:0] = merged
    models = [one for one in candidates if isinstance(one, Target)]
    responses_to = _kept_in(models, stored)
    if responses_to is None:
        candidates += stored
    if not candidates:
        raise ConfigError(
            "TARGET or --responses: is required: a model that generates (a folder, a name on the "
            "hub, http://HOST/v1#MODEL), or a file of prompts and responses"
        )
    job = IfevalJob(
        data=Path(data[0]),
        folder=folder or new_folder("eval"),
        candidates=candidates,
        by=_by(options["--by"]),
        how=_how(options, generates=bool(models)),
        responses_to=responses_to,
    )
    for one in merged:
        check(one, job.how)  # before what takes minutes
        _merge(options, quiet=quiet)
    try:
        with StageBars(show=not quiet) as bar, redirect_stdout(sys.stderr):
            job.on_progress = bar.update
            evaluate_ifeval(job)
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
        errors().print(f"To go on where it stopped: the same command with -o {clean(job.folder)}")
        raise
    if as_json:
        print_missing(errors(), job.summary)
        print_json(job.summary)
    else:
        print_ifeval(output(), errors(), job)


def _candidate(name: str, served: Mapping[str, Any]) -> Target | Path:
    if name.lower().endswith(_FILES):
        return Path(name)
    if name.endswith(".toml"):
        raise ConfigError(
            f"{name}: --benchmark ifeval takes a model or responses (allowed: a model's folder, a "
            "run folder of adjudge train, a name on the hub, http://HOST/v1#MODEL, a .jsonl of "
            "responses)"
        )
    return find_target(name, **served)


def _merged(options: Mapping[str, Any], others: Sequence[Target | Path]) -> list[Target]:
    """The model that ``--ckpt-dir`` will be, where it is given."""
    if options["--ckpt-dir"] is None:
        for name in ("--merge-target", "--verl-python"):
            if options[name] is not None:
                raise ConfigError(f"{name}: goes with --ckpt-dir")
        return []
    if options["--merge-target"] is None:
        raise ConfigError("--ckpt-dir: goes with --merge-target FOLDER, where the model goes")
    place = str(options["--merge-target"].resolve())
    if place in {one.place for one in others if isinstance(one, Target)}:
        raise ConfigError(f"{place}: is given twice")
    return [Target(name=str(options["--merge-target"]), kind="folder", place=place)]


def _merge(options: Mapping[str, Any], *, quiet: bool) -> None:
    def say(line: str) -> None:
        if not quiet:
            errors().print(f"[dim]{clean(line)}[/]")

    ckpt, target = options["--ckpt-dir"], options["--merge-target"]
    merge_checkpoint(ckpt, target, python=options["--verl-python"], say=say)


def _kept_in(models: Sequence[Target], stored: Sequence[Path]) -> Path | None:
    """With a model, ``--responses`` is where its responses are kept."""
    if not models or not stored:
        return None
    if len(models) > 1 or len(stored) > 1:
        raise ConfigError(
            "--responses: with a model it is the one file that the model's responses are kept in; "
            "compare with stored responses by --against FILE.jsonl"
        )
    return stored[0]


def _by(value: str | None) -> Any:
    if value not in (None, "prompt", "key"):
        raise ConfigError(f"--by: found {value!r}, allowed: prompt, key")
    return value or "prompt"


def _how(options: Mapping[str, Any], *, generates: bool) -> Generation:
    drawn = {name: value for name in _DRAWN if (value := options[name]) is not None}
    loaded = {name: value for name in _VLLM if (value := options[name]) is not None}
    if not generates and (given := [*drawn, *loaded]):
        raise ConfigError(f"{given[0]}: nothing is generated; name a model as TARGET")
    settings = {_VLLM[name]: value for name, value in loaded.items()}
    return Generation(
        **{_DRAWN[name]: value for name, value in drawn.items()},
        vllm=VllmSettings(**settings) if loaded else None,
    )
