"""Settings of a run file that its backend does not support, reported before the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from adjudge.config_tables import ConfigFile
from adjudge.errors import ConfigError
from adjudge_lab.rl.episodes import find_group_grader
from adjudge_lab.rl.rewards import dry_run_spec
from adjudge_lab.rl.runfile import CAPITALS_ENV, TINY_BASE, RunFile
from adjudge_lab.rl.sinks import SHIPPED_SINKS
from adjudge_lab.rl.verl.inputs import (
    NOTHING_RUNS,
    find_reward_problem,
    verl_gpus,
    verl_nodes,
    verl_version,
)

_GPU_SPLIT_KEYS = ("gpus_for_vllm", "gpus_for_training", "gpus_for_ref")


@dataclass(frozen=True)
class UnsupportedSetting:
    """A key that is not done as ``asked``; ``instead`` is what happens, ``because`` says why.

    ``runs`` is false where nothing sensible could happen instead.
    """

    key: str
    asked: str
    instead: str
    because: str
    runs: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", self.instead != NOTHING_RUNS)

    def __str__(self) -> str:
        return f"{self.key} = {self.asked}: {self.instead}, because {self.because}"


def find_unsupported_settings(run: RunFile, version: str | None = None) -> list[UnsupportedSetting]:
    """What ``run`` asks for and does not get from its backend, in the order of the file's tables.

    ``version`` of verl: by default the installed one's. A label such as ``gpu_type`` needs no
    fulfilment. Raises :class:`~adjudge.errors.ConfigError` where the run has no reward spec.
    """
    return list(
        _unsupported_by_trl(run)
        if run.backend == "trl"
        else _unsupported_by_verl(run, version or verl_version())
    )


def check_backend_support(run: RunFile, approximate: bool) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` listing what the run does not get.

    With ``approximate`` only what makes it impossible is refused.
    """
    unmet = find_unsupported_settings(run)
    impossible = [one for one in unmet if not one.runs]
    if not unmet or (approximate and not impossible):
        return
    lines = [
        f"{run.where}: backend = {run.backend!r} does not support these settings:",
        *(f"  {one}" for one in unmet),
    ]
    if impossible:
        keys = ", ".join(one.key for one in impossible)
        lines.append(f"Change {keys}: the run is impossible otherwise, even with --approximate.")
    else:
        lines.append("Change these keys, or run it as described with --approximate.")
    raise ConfigError("\n".join(lines))


def check_trains_here(file: ConfigFile, backend: str, whole: str) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for a part of a ``whole`` on another backend."""
    if backend != "trl":
        file.refuse(
            "backend",
            f"must be 'trl' in a {whole}, which trains on this machine (found {backend!r})",
        )


def _unsupported_by_trl(run: RunFile) -> Iterator[UnsupportedSetting]:
    one_process = "TRL runs here as one process"
    count = run.compute.gpu_count or 0
    yield from _select([
        (count > 1, "compute.gpu_count", str(count), "one GPU is used", one_process),
    ])  # fmt: skip
    yield from _unsupported_gpu_split(
        run,
        whole=("the one device does everything in turns", one_process),
        gpus_for_vllm=(
            "the training process draws the replies",
            "transformers generates with the weights that are trained",
        ),
        gpus_for_training=("one device trains", one_process),
    )
    yield from _unsupported_warm_start(run)


_Row = tuple[object, str, str, str, str]
"""Whether the run asks for it; then the fields of an :class:`UnsupportedSetting`."""


def _select(rows: Iterable[_Row]) -> Iterator[UnsupportedSetting]:
    return (UnsupportedSetting(*fields) for asked_for, *fields in rows if asked_for)


def _unsupported_by_verl(run: RunFile, version: str) -> Iterator[UnsupportedSetting]:
    no_gpu = "verl generates and trains on GPUs only"
    hook = "the hook that shows rubrics is for verl 0.6.1; use that version, or backend = 'trl'"
    own_loggers = "verl logs by its own loggers"
    in_turns = "the trainers that are used share all GPUs between vLLM and training"
    yield from _unsupported_task(run)
    yield from _select([
        (run.compute.gpu_count == 0, "compute.gpu_count", "0", NOTHING_RUNS, no_gpu),
    ])  # fmt: skip
    yield from _unsupported_gpu_split(
        run,
        whole=("all GPUs generate, then all train", in_turns),
        gpus_for_vllm=("all GPUs generate, then all train", in_turns),
        gpus_for_training=("all GPUs train, after they have generated", in_turns),
    )
    yield from _unsupported_machines(run)
    yield from _unsupported_rewards(run, version)
    yield from _unsupported_concurrency(run)
    yield from _unsupported_warm_start(run)
    yield from _unsupported_training(run, version)
    shows_rubrics, own_sink = run.rollout.scaffold is not None, run.logging.to not in SHIPPED_SINKS
    yield from _select([
        (shows_rubrics and version != "0.6.1", "rollout.scaffold", "{…}", NOTHING_RUNS, hook),
        (own_sink, "logging.to", repr(run.logging.to), "it is not called", own_loggers),
    ])  # fmt: skip
    yield from _unsupported_evaluation(run)
    yield from _unsupported_sentinel(run)


def _unsupported_machines(run: RunFile) -> Iterator[UnsupportedSetting]:
    """What the run starts itself listens on this machine's loopback."""
    nodes = verl_nodes(run)
    here = [("services.judge_url", run.services.judge_url), ("judge.base_url", run.judge.base_url)]
    for key, value in here:
        if nodes > 1 and value is not None and (key != "judge.base_url" or run.starts_mock):
            yield UnsupportedSetting(
                key, repr(value), NOTHING_RUNS,
                f"it would listen on this machine alone, and verl.trainer.nnodes is {nodes}; start "
                "it yourself with a public --host, and give its address as judge.base_url",
            )  # fmt: skip


def _unsupported_gpu_split(
    run: RunFile, **instead: tuple[str, str]
) -> Iterator[UnsupportedSetting]:
    """A split of the GPUs: by its numbers, or by its name where it has none."""
    topology = run.topology
    numbers = [(key, getattr(topology, key)) for key in _GPU_SPLIT_KEYS]
    if topology.type == "single_node_split" and not any(count for _, count in numbers):
        yield UnsupportedSetting("topology.type", repr(topology.type), *instead["whole"])
    no_ref = ("no reference model is kept", "there is no KL term (beta = 0)")
    for key, count in numbers:
        harmless = key == "gpus_for_training" and run.backend == "trl" and count == 1
        if count and not harmless:
            yield UnsupportedSetting(f"topology.{key}", str(count), *instead.get(key, no_ref))


def _unsupported_warm_start(run: RunFile) -> Iterator[UnsupportedSetting]:
    wanted = run.training.warm_start_iterations
    set_here = _differs_from_default(run.training, "warm_start_iterations")
    if run.model.base != TINY_BASE and wanted and set_here:
        yield UnsupportedSetting(
            "training.warm_start_iterations", str(wanted), "there is no warm start",
            f"demonstrations exist for base = {TINY_BASE!r} only",
        )  # fmt: skip


def _unsupported_task(run: RunFile) -> Iterator[UnsupportedSetting]:
    url, base = run.services.task_url, repr(run.model.base)
    task = ("services.task_url", repr(url)) if url else ("rollout.env_name", repr(run.env_name))
    no_loop = (
        f"verl has no agent loop that plays environments; use a dataset, {CAPITALS_ENV!r} or "
        "backend = 'trl'"
    )
    served = "verl serves a model from a folder or the hub; use one of them, or backend = 'trl'"
    no_gguf = "verl loads no GGUF file; give a folder or a name on the hub, or use backend = 'trl'"
    yield from _select([
        (run.is_multi_turn, *task, NOTHING_RUNS, no_loop),
        (run.model.base == TINY_BASE, "model.base", base, NOTHING_RUNS, served),
        (run.is_gguf, "model.base", base, NOTHING_RUNS, no_gguf),
    ])  # fmt: skip


def _unsupported_evaluation(run: RunFile) -> Iterator[UnsupportedSetting]:
    because = "verl evaluates by itself, by reward"
    if run.evaluation.kl:
        yield UnsupportedSetting("evaluation.kl", "true", "it is not measured", because)
    for key in ("split", "baselines", "report_spec"):
        if wanted := getattr(run.evaluation, key):
            yield UnsupportedSetting(f"evaluation.{key}", repr(wanted), "it is left out", because)


def _unsupported_rewards(run: RunFile, version: str) -> Iterator[UnsupportedSetting]:
    if run.is_multi_turn:
        return  # said already
    if problem := find_reward_problem(run):
        yield UnsupportedSetting(*problem)
    if not run.judge.enabled:
        return
    if run.judge.sample_rate < 1:
        yield UnsupportedSetting(
            "judge.sample_rate", f"{run.judge.sample_rate:g}", "every rollout is judged",
            "the environment's reward is one of verl's graders, and a group that is not drawn "
            "would lose that reward, too",
        )  # fmt: skip
    if version == "0.6.1":
        return
    if name := find_group_grader(dry_run_spec(run)):
        yield UnsupportedSetting(
            f"graders.{name}", "compares a group", NOTHING_RUNS,
            "verl 0.9.1 shows one rollout at a time; groups meet at a judge service of your own "
            "(docs/verl.md, Groups in 0.9.1)",
        )  # fmt: skip


def _unsupported_concurrency(run: RunFile) -> Iterator[UnsupportedSetting]:
    """Each of verl's servers, one a GPU, bounds its own sequences."""
    gpus = verl_gpus(run)
    for key in ("episodes_per_batch", "max_concurrent_rollouts"):
        wanted = getattr(run.rollout, key)
        if wanted is not None and wanted < gpus:
            yield UnsupportedSetting(
                f"rollout.{key}", str(wanted), f"up to {gpus} rollouts run side by side",
                "each GPU has a server of its own, with one at least",
            )  # fmt: skip


def _unsupported_training(run: RunFile, version: str) -> Iterator[UnsupportedSetting]:
    training, old, gpus = run.training, version == "0.6.1", verl_gpus(run)
    one_turn = "verl's reward workers know one turn and no achievements"
    whole_batches = "verl 0.6.1 scores whole batches; 0.9.1 has a trainer that goes on meanwhile"
    uneven = (
        f"verl 0.6.1 divides a step's {training.rollouts_per_step} rollouts evenly among its "
        f"{gpus} GPUs"
    )
    yield from _select([
        *(
            (training.stepwise and _differs_from_default(training, key), f"training.{key}",
             f"{getattr(training, key):g}", "the environment's reward counts as it is", one_turn)
            for key in ("step_rewards_beta", "step_rewards_indicator_lambda")
        ),
        (training.trained_layers is not None, "training.trained_layers",
         str(training.trained_layers), "all layers are trained",
         "verl's workers have no such setting"),
        (old and training.pipeline_async_enabled, "training.pipeline_async_enabled", "true",
         "a step's rollouts are judged after they are all there", whole_batches),
        (old and training.seed, "training.seed", str(training.seed),
         "it orders the data; replies come from seed 0",
         "verl 0.6.1 takes no seed for its rollout server"),
        (old and training.rollouts_per_step % gpus, "training.batch_size",
         str(training.batch_size), NOTHING_RUNS, uneven),
    ])  # fmt: skip


def _unsupported_sentinel(run: RunFile) -> Iterator[UnsupportedSetting]:
    because = "the sentinel reads metrics of backend = 'trl'; verl's are in verl.jsonl"
    if run.sentinel.action == "stop":
        yield UnsupportedSetting("sentinel.action", "'stop'", "nothing stops the run", because)
    if run.sentinel.gold is not None:
        yield UnsupportedSetting(
            "sentinel.gold", repr(run.sentinel.gold), "it is computed and not watched", because
        )


def _differs_from_default(table: BaseModel, key: str) -> bool:
    """Whether a key has been set to something else than its default."""
    default: Any = type(table).model_fields[key].default
    return bool(getattr(table, key) != default)
