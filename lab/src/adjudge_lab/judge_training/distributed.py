"""A judge's training by several processes: who is who in them, and how they are started.

One process for each GPU, by ``accelerate launch`` with the model sharded over them (FSDP). Without
a GPU the processes hold the whole model each and average gradients (torchrun, gloo), since
accelerate starts several CPU processes by MPI only.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adjudge.errors import ConfigError, RunFolderError
from adjudge.installation import LAB, install_command
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.rl.launch import run_module

_T = TypeVar("_T")

EVENT_MARK_VARIABLE = "ADJUDGE_JUDGE_EVENTS"
"""The variable with what the processes' messages to their starter begin with."""

_PROCESS_MODULE = "adjudge_lab.judge_training.process"
_ERROR_TYPES: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (ConfigError, RunFolderError)
}
_LAST_LINES, _MAX_LINE = 40, 200  # of output that a failure shows: torchrun's own are some 30


@dataclass(frozen=True)
class ProcessRank:
    """A process, ``rank`` from 0, among ``world`` that train together."""

    rank: int
    world: int


def distributed_rank(environ: Mapping[str, str] | None = None) -> ProcessRank | None:
    """The rank of this process among several; ``None``: it is alone.

    By the variables that torchrun and ``accelerate launch`` set.

    >>> distributed_rank({"RANK": "1", "WORLD_SIZE": "2"})
    ProcessRank(rank=1, world=2)
    >>> distributed_rank({})
    """
    environ = os.environ if environ is None else environ
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:
        return None
    return ProcessRank(int(rank), int(size))


def world_size() -> int:
    """Processes that train together, this one included."""
    return (distributed_rank() or ProcessRank(0, 1)).world


def is_main_process() -> bool:
    """Whether this process is the one that writes, prints and reports."""
    return (distributed_rank() or ProcessRank(0, 1)).rank == 0


def all_gather(found: list[_T]) -> list[_T]:
    """What all processes have found, by rank, in each of them; all have to ask."""
    if distributed_rank() is None:
        return found
    _process_group()
    whole: list[_T] = import_module("accelerate.utils").gather_object(found)
    return whole


def barrier() -> None:
    """Return when all processes have come here."""
    if distributed_rank() is not None:
        _process_group().wait_for_everyone()


def leave_process_group() -> None:
    """Return when all processes have come here, and exchange nothing from now on.

    A process with an open group may abort when another one ends first.
    """
    if distributed_rank() is not None:
        group = _process_group()
        group.wait_for_everyone()
        group.destroy_process_group()


def _process_group() -> Any:
    """The group of processes, which this one is in from now on."""
    import torch  # noqa: PLC0415

    return import_module("accelerate").PartialState(cpu=not torch.cuda.is_available())


def process_count(judge: JudgeFile) -> int:
    """How many processes the file is trained by here: ``n_gpus_per_node``, GRPO's being one."""
    if judge.backend != "trl" or judge.method == "grpo":
        return 1
    return judge.trainer.n_gpus_per_node or 1


def gpu_count() -> int:
    """GPUs that this machine trains on: none without torch."""
    if find_spec("torch") is None:
        return 0
    import torch  # noqa: PLC0415

    count: int = torch.cuda.device_count()
    return count


def distributed_command(judge: JudgeFile, said: Path, *, cuda: bool) -> list[str]:
    """What follows ``python -m`` to train what the file ``said`` says by several processes.

    With ``cuda`` the model is sharded by ``trainer.strategy``: its weights, gradients and the
    optimiser's state lie in parts on the GPUs, or in memory where the file offloads.
    """
    count, trainer = process_count(judge), judge.trainer
    if not cuda:
        return ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m",
                _PROCESS_MODULE, str(said)]  # fmt: skip
    # All of it is said, so that nobody's own accelerate settings come in between.
    options = {
        "num_processes": count,
        "num_machines": 1,
        "machine_rank": 0,
        "main_process_port": 0,  # a free one
        "gpu_ids": "all",
        "mixed_precision": "bf16",
        "dynamo_backend": "no",
        "fsdp_version": 2 if trainer.strategy == "fsdp2" else 1,
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_reshard_after_forward": "true",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": str(trainer.cpu_offload or trainer.param_offload).lower(),
        "fsdp_use_orig_params": "true",
        "fsdp_cpu_ram_efficient_loading": "false",
        "fsdp_activation_checkpointing": "false",  # the trainer's own is used
    }
    flags = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    return ["accelerate.commands.launch", "--use_fsdp", *flags, "-m", _PROCESS_MODULE, str(said)]


def run_distributed(job: JudgeJob) -> dict[str, Any]:
    """Train ``job`` by as many processes as its file says; the summary of the first of them.

    The job's ``on_row`` and ``on_progress`` are called here, as the first process reports. What
    they raise, Ctrl-C and SIGTERM stop all processes. Raises what a process refuses as
    :class:`ConfigError` or :class:`~adjudge.errors.RunFolderError`, and ``RuntimeError`` for one
    that fails otherwise.
    """
    if missing := [name for name in ("torch", "accelerate") if find_spec(name) is None]:
        raise ConfigError(
            f"adjudge train needs {missing[0]}, which is not installed. Run: "
            + install_command("train", LAB)
        )
    judge, count, found = job.judge, process_count(job.judge), gpu_count()
    _check_processes(judge, count, found)
    mark = secrets.token_hex(8)
    output = _ProcessOutput(job, mark)
    env = {EVENT_MARK_VARIABLE: mark} | ({} if found else {"OMP_NUM_THREADS": "1"})
    with tempfile.TemporaryDirectory(prefix="adjudge-") as private:
        job_file = Path(private) / "job.json"
        job_file.write_bytes(_job_text(job))
        code = run_module(
            distributed_command(judge, job_file, cuda=found > 0), env=env, on_line=output.read_line
        )
    if code:
        raise output.make_error(count, code)
    summary: dict[str, Any] = msgspec.json.decode((job.folder / "summary.json").read_bytes())
    return summary


def _check_processes(judge: JudgeFile, count: int, found: int) -> None:
    data = judge.data
    if 0 < found < count:
        judge.refuse("trainer.n_gpus_per_node", f"is {count}, but this machine has {found} GPUs")
    if data.train_batch_size % (data.micro_batch_size * count):
        judge.refuse(
            "data.train_batch_size",
            f"must be a multiple of micro_batch_size × n_gpus_per_node = {data.micro_batch_size} × "
            f"{count} (found {data.train_batch_size})",
        )


def _job_text(job: JudgeJob) -> bytes:
    """All that a process must know of ``job``, which its file alone does not tell."""
    judge = job.judge
    return msgspec.json.encode(
        {
            "judge": judge.model_dump(mode="json", exclude_unset=True),
            "where": judge.where,
            "beside": str(judge.folder),
            "overrides": judge.overrides,
            "source": str(job.source),
            "folder": str(job.folder),
        }
    )


class _ProcessOutput:
    """What the processes said: progress is passed on, a failure and the last lines are kept."""

    def __init__(self, job: JudgeJob, mark: str) -> None:
        self._on: Mapping[str, Callable[..., None]] = {
            "row": job.on_row,
            "progress": job.on_progress,
            "resume": job.on_resume,
            "failed": self._failed,
        }
        self._mark = mark
        self._failure: tuple[str, str] | None = None
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def read_line(self, line: str) -> None:
        """One line of output."""
        before, found, text = line.partition(self._mark)
        if found:
            name, *given = msgspec.json.decode(text)
            self._on[name](*given)
        if any(map(str.isalnum, before)):  # torchrun draws lines around what it says
            self._last.append(before.strip()[:_MAX_LINE])

    def make_error(self, count: int, code: int) -> Exception:
        """Why they ended."""
        if self._failure is None:
            last = "\n".join(self._last) or "no output"
            return RuntimeError(f"{count} processes ended with exit code {code}: {last}")
        name, text = self._failure
        if name in _ERROR_TYPES:
            return _ERROR_TYPES[name](text)
        return RuntimeError(f"one of {count} processes failed: {name}: {text}")

    def _failed(self, name: str, text: str) -> None:
        self._failure = self._failure or (name, text)  # others fail because the first did
