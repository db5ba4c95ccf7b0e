"""What a run file asks for and its backend cannot do, said before it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from adjudge.errors import ConfigError
from adjudge.training.planning.foreseen import foreseen_spec, group_grader
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import CAPITALS, TINY
from adjudge.training.verl.spec import unrewardable
from adjudge.training.verl.version import verl_gpus, verl_version

__all__ = ["Unmet", "check_honoured", "not_honoured"]

_SPLIT = ("gpus_for_vllm", "gpus_for_training", "gpus_for_ref")


@dataclass(frozen=True)
class Unmet:
    """A key that is not done as ``asked``; ``instead`` is what happens, ``because`` says why.

    ``runs`` is false where nothing sensible could happen instead.
    """

    key: str
    asked: str
    instead: str
    because: str
    runs: bool = True

    def __str__(self) -> str:
        return f"{self.key} = {self.asked}: {self.instead}, because {self.because}"


def not_honoured(run: RunFile, version: str | None = None) -> list[Unmet]:
    """What ``run`` asks for and does not get from its backend, in the order of the file's tables.

    ``version`` of verl: by default the installed one's. A label such as ``gpu_type`` needs no
    fulfilment. Raises :class:`~adjudge.errors.ConfigError` where the run has no reward spec.
    """
    return list(_trl(run) if run.backend == "trl" else _verl(run, version or verl_version()))


def check_honoured(run: RunFile, approximate: bool) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` listing what the run does not get.

    With ``approximate`` only what makes it impossible is refused.
    """
    unmet = not_honoured(run)
    impossible = [one for one in unmet if not one.runs]
    if not unmet or (approximate and not impossible):
        return
    lines = [
        f"{run.where}: backend = {run.backend!r} cannot do all that is asked:",
        *(f"  {one}" for one in unmet),
    ]
    if impossible:
        keys = ", ".join(one.key for one in impossible)
        lines.append(f"Change {keys}: it cannot be run otherwise, --approximate or not")
    else:
        lines.append("Change these keys, or run it as described with --approximate")
    raise ConfigError("\n".join(lines))


def _trl(run: RunFile) -> Iterator[Unmet]:
    one_process = "TRL runs here as one process"
    if (count := run.compute.gpu_count or 0) > 1:
        yield Unmet("compute.gpu_count", str(count), "one GPU is used", one_process)
    yield from _split(
        run,
        whole=("the one device does everything in turns", one_process),
        gpus_for_vllm=(
            "the training process draws the replies",
            "transformers generates with the weights that are trained",
        ),
        gpus_for_training=("one device trains", one_process),
    )
    yield from _warm_start(run)


def _verl(run: RunFile, version: str) -> Iterator[Unmet]:
    yield from _task(run)
    if run.compute.gpu_count == 0:
        yield Unmet(
            "compute.gpu_count", "0", "nothing can run", "verl generates and trains on GPUs only",
            runs=False,
        )  # fmt: skip
    in_turns = "the trainers that are used share all GPUs between vLLM and training"
    yield from _split(
        run,
        whole=("all GPUs generate, then all train", in_turns),
        gpus_for_vllm=("all GPUs generate, then all train", in_turns),
        gpus_for_training=("all GPUs train, after they have generated", in_turns),
    )
    yield from _reward(run, version)
    yield from _side_by_side(run)
    yield from _warm_start(run)
    yield from _of_training(run, version)
    yield from _scaffold(run, version)
    if run.evaluation.kl:
        yield Unmet(
            "evaluation.kl", "true", "it is not measured", "verl evaluates by itself, by reward"
        )
    yield from _sentinel(run)


def _split(run: RunFile, **instead: tuple[str, str]) -> Iterator[Unmet]:
    """A split of the GPUs: by its numbers, or by its name where it has none."""
    topology = run.topology
    numbers = [(key, getattr(topology, key)) for key in _SPLIT]
    if topology.type == "single_node_split" and not any(count for _, count in numbers):
        yield Unmet("topology.type", repr(topology.type), *instead["whole"])
    no_ref = ("no reference model is kept", "there is no KL term (beta = 0)")
    for key, count in numbers:
        harmless = key == "gpus_for_training" and run.backend == "trl" and count == 1
        if count and not harmless:
            yield Unmet(f"topology.{key}", str(count), *instead.get(key, no_ref))


def _warm_start(run: RunFile) -> Iterator[Unmet]:
    wanted = run.training.warm_start_iterations
    if run.model.base != TINY and wanted and _differs(run.training, "warm_start_iterations"):
        yield Unmet(
            "training.warm_start_iterations", str(wanted), "there is no warm start",
            f"demonstrations are there for base = {TINY!r} only",
        )  # fmt: skip


def _task(run: RunFile) -> Iterator[Unmet]:
    if run.is_multi_turn:
        url = run.services.task_url
        key, asked = ("services.task_url", url) if url else ("rollout.env_name", run.env_name)
        yield Unmet(
            key, repr(asked), "nothing can run",
            "verl would need an agent loop that plays environments, and there is none; "
            f"datasets and {CAPITALS!r} go, or backend = 'trl'",
            runs=False,
        )  # fmt: skip
    if run.model.base == TINY:
        yield Unmet(
            "model.base", repr(TINY), "nothing can run",
            "verl serves a model from a folder or the hub; give one, or backend = 'trl'",
            runs=False,
        )  # fmt: skip


def _reward(run: RunFile, version: str) -> Iterator[Unmet]:
    judge, old = run.judge, version == "0.6.1"
    if run.is_multi_turn:
        return  # said already
    if problem := unrewardable(run):
        yield Unmet(*problem, runs=False)
    if not judge.enabled:
        return
    if not old and judge.sample_rate < 1:
        yield Unmet(
            "judge.sample_rate", f"{judge.sample_rate:g}", "every rollout is judged",
            "whole groups are drawn, and verl 0.9.1 shows its reward workers one rollout at a time",
        )  # fmt: skip
    if old and judge.unjudged == "env" and judge.sample_rate < 1:
        yield Unmet(
            "judge.unjudged", "'env'", "a rollout that is not judged has no reward",
            "the environment's reward is computed with the judged ones",
        )  # fmt: skip
    if not old and (name := group_grader(foreseen_spec(run))):
        yield Unmet(
            f"graders.{name}", "compares a group", "nothing can run",
            "verl 0.9.1 shows one rollout at a time; groups meet at a judge service of your own "
            "(docs/verl.md, Groups in 0.9.1)",
            runs=False,
        )  # fmt: skip


def _side_by_side(run: RunFile) -> Iterator[Unmet]:
    """Each of verl's servers, one a GPU, bounds its own sequences."""
    gpus = verl_gpus(run)
    for key in ("episodes_per_batch", "max_concurrent_rollouts"):
        wanted = getattr(run.rollout, key)
        if wanted is not None and wanted < gpus:
            yield Unmet(
                f"rollout.{key}", str(wanted), f"up to {gpus} rollouts run side by side",
                "each GPU has a server of its own, with one at least",
            )  # fmt: skip


def _of_training(run: RunFile, version: str) -> Iterator[Unmet]:
    training, old = run.training, version == "0.6.1"
    for key in ("step_rewards_beta", "step_rewards_indicator_lambda"):
        if training.stepwise and _differs(training, key):
            yield Unmet(
                f"training.{key}", f"{getattr(training, key):g}",
                "the environment's reward counts as it is",
                "verl's reward workers know one turn and no achievements",
            )  # fmt: skip
    if training.pipeline_async_enabled and old:
        yield Unmet(
            "training.pipeline_async_enabled", "true",
            "a step's rollouts are judged after they are all there",
            "verl 0.6.1 scores whole batches; 0.9.1 has a trainer that goes on meanwhile",
        )  # fmt: skip
    if old and training.seed:
        yield Unmet(
            "training.seed", str(training.seed), "it orders the data; replies come from seed 0",
            "verl 0.6.1 takes no seed for its rollout server",
        )  # fmt: skip
    gpus = verl_gpus(run)
    if old and training.rollouts_per_step % gpus:
        yield Unmet(
            "training.batch_size", str(training.batch_size), "nothing can run",
            f"verl 0.6.1 deals a step's {training.rollouts_per_step} rollouts evenly to its {gpus} "
            "GPUs",
            runs=False,
        )  # fmt: skip


def _scaffold(run: RunFile, version: str) -> Iterator[Unmet]:
    if run.rollout.scaffold is not None and version != "0.6.1":
        yield Unmet(
            "rollout.scaffold", "{…}", "nothing can run",
            "the hook that shows rubrics is for verl 0.6.1; take that, or backend = 'trl'",
            runs=False,
        )  # fmt: skip


def _sentinel(run: RunFile) -> Iterator[Unmet]:
    because = "the sentinel reads metrics of backend = 'trl'; verl's are in verl.jsonl"
    if run.sentinel.action == "stop":
        yield Unmet("sentinel.action", "'stop'", "nothing stops the run", because)
    if run.sentinel.gold is not None:
        yield Unmet(
            "sentinel.gold", repr(run.sentinel.gold), "it is computed and not watched", because
        )


def _differs(table: BaseModel, key: str) -> bool:
    """Whether a key has been set to something else than its default."""
    default: Any = type(table).model_fields[key].default
    return bool(getattr(table, key) != default)
