"""The heavy steps of a study, in processes of their own: training, sampling and scoring.

Processes work beside each other and say how far they are; each step is a call that leaves a folder
or file. In scoring, each judge is asked about each text once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from adjudge.config import load_toml
from adjudge.engine.loop import run_blocking
from adjudge.errors import (
    PASSING_KINDS,
    AdjudgeError,
    ConfigError,
    ErrorKind,
    JudgeAuthError,
    JudgeUnavailable,
    RunFolderError,
)
from adjudge.files import JsonlLog
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import Journal, sample_key
from adjudge.trainers.scoring import Scorer
from adjudge.types import GraderResult, RewardResult, Sample
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.judge_training.run import run_judge
from adjudge_lab.rl.episodes import build_task
from adjudge_lab.rl.held_out import evaluate_policy
from adjudge_lab.rl.local_player import LocalPlayer
from adjudge_lab.rl.policy import build_first_policy, save_policy
from adjudge_lab.rl.rewards import build_reward_spec, start_run_judge
from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile import UNREACHABLE_URL, RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.trl_backend import load_libraries
from adjudge_lab.studies.gathering import (
    AnswerSource,
    SampledAnswer,
    ScoresHeader,
    ScoresLine,
    read_answers_by_step,
    read_score_lines,
)

WorkerProgress = Callable[[str, str, int, int], None]
"""``(task, stage, done, total)``: how far a task is."""

_PARENT_CHECK_S = 2.0
_tell: Any = None  # this worker's way to its parent
_RAISED_ERRORS = (JudgeUnavailable, JudgeAuthError, RunFolderError)


class TaskOutcome(NamedTuple):
    """What a task came to: its ``value``, or the ``error`` that it ended with, as words.

    ``kind``: the error's class.
    """

    name: str
    value: Any = None
    error: str | None = None
    kind: str = ""

    def raise_error(self) -> None:
        """Raise the error, if there is one, with the task's name."""
        if self.error is not None:
            known = {one.__name__: one for one in _RAISED_ERRORS}
            if self.kind in known:
                raise known[self.kind](f"{self.name}: {self.error}")
            raise ConfigError(f"{self.name}: {self.error}")


class TaskPool:
    """A pool of processes; each runs one task after the other, so that libraries load once."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(
        self,
        task: Callable[..., Any],
        arguments: Mapping[str, Sequence[Any]],
        on_done: Callable[[TaskOutcome], None],
    ) -> dict[str, TaskOutcome]:
        """Call ``task(name, *arguments[name])`` for each name, as many at a time as there are.

        ``task`` is a function of a module. ``on_done`` hears of each as it ends, in the caller's
        thread. What it raises as an :class:`~adjudge.errors.AdjudgeError` is its outcome, and
        anything else is a fault and comes through. Raises :class:`~adjudge.errors.RunFolderError`
        where a process was killed.
        """
        waiting: dict[Future[TaskOutcome], str] = {
            self._pool.submit(_run_task, task, name, given): name
            for name, given in arguments.items()
        }
        found = {}
        for future in as_completed(waiting):
            try:
                outcome = future.result()
            except BrokenProcessPool:
                raise RunFolderError(
                    "a process of the study was killed, maybe because memory ran out. Run the same "
                    "command with fewer processes (--jobs 1); it continues the study."
                ) from None
            found[outcome.name] = outcome
            on_done(outcome)
        return {name: found[name] for name in arguments}


@contextmanager
def start_workers(count: int, on_progress: WorkerProgress) -> Iterator[TaskPool]:
    """``count`` fresh processes; they are killed where the caller is interrupted or fails.

    A thread of its own reports progress to ``on_progress``.
    """
    # A second thread costs more than it computes where several processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    events = context.SimpleQueue()
    listener = threading.Thread(target=_forward_progress, args=(events, on_progress), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(
        count, mp_context=context, initializer=_init_worker, initargs=(events, os.getpid())
    )
    try:
        yield TaskPool(pool)
        pool.shutdown()
    except BaseException:
        # Nobody waits for the listener: one that is killed while it tells keeps the queue's lock.
        _kill_workers(pool)
        raise
    events.put(None)
    listener.join()


def progress(name: str) -> Callable[[str, int, int], None]:
    """In a worker: what a job's ``on_progress`` may call so that the parent hears of it."""

    def tell(stage: str, done: int, total: int) -> None:
        if _tell is not None:
            _tell.put((name, stage, done, total))

    return tell


def _init_worker(events: Any, parent: int) -> None:
    global _tell  # noqa: PLW0603  (one a process, set once)
    _tell = events
    os.dup2(2, 1)  # what libraries and graders print is no part of the parent's answer
    # Ctrl-C goes to all processes of the terminal; the parent decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """End this process once its parent is gone: nobody would hear of what it does."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


def _run_task(task: Callable[..., Any], name: str, given: Sequence[Any]) -> TaskOutcome:
    try:
        return TaskOutcome(name, task(name, *given))
    except AdjudgeError as error:
        return TaskOutcome(name, error=str(error), kind=type(error).__name__)


def _forward_progress(events: Any, on_progress: WorkerProgress) -> None:
    try:
        while (said := events.get()) is not None:
            on_progress(*said)
    except BaseException:
        while events.get() is not None:
            pass  # who tells would wait for room
        raise


def _kill_workers(pool: ProcessPoolExecutor) -> None:
    """End the processes at once: what they write is written so that a kill does no harm."""
    for process in list((pool._processes or {}).values()):  # noqa: SLF001  (no public way before 3.14)
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


_BATCH = 256


class PanelMember(NamedTuple):
    """A judge of a panel, which was asked alone before: its run file, and where its scores are."""

    file: str
    target: str


def score_sources(
    name: str,
    file: str,
    beside: str,
    sources: Sequence[AnswerSource],
    target: str,
    members: Sequence[PanelMember] = (),
) -> int:
    """Score what ``target`` lacks of ``sources`` by the reward of the run file ``file``; how much.

    One line a source and step: ``{source, step, values, missing, answers}``; of several the last
    counts. ``answers`` is a hash of what was scored: other answers of that name are scored anew,
    and so are those of which a score is missing for a reason that may pass. Equal texts are one
    question, unless the judge compares: it is shown a checkpoint's answers to a prompt together.
    ``beside``: the folder that the file's relative paths start from. ``members``: the judges of a
    panel, with paths from there, too; what they have said is not asked again.

    What was answered is kept in a journal beside ``target`` as it comes, so that an interrupted
    study asks on. Raises :class:`~adjudge.errors.RunFolderError` where ``target`` has scores of
    another reward, and what scoring raises.
    """
    path = Path(target)
    run, reward = _load_reward(file, beside)
    if run.judge.folder is not None:
        load_libraries()
    scores = JsonlLog(path)
    known = {(line.source, line.step): line for line in read_score_lines(path, reward)}
    wanted = [
        (source.name, step, answers)
        for source in sources
        for step, answers in read_answers_by_step(source).items()
        if not _is_current(known.get((source.name, step)), answers)
    ]
    if not wanted:
        return 0
    said_alone = [
        Journal(_journal_path(Path(one.target)), _load_reward(one.file, beside)[1])
        for one in members
        if _journal_path(Path(one.target)).exists()
    ]
    journal = _PanelJournal(_journal_path(path), reward, said_alone)
    with start_run_judge(run, path.parent) as (spec, _):
        spec.refuse_schedules("a replay of answers", "Give the grader a number.")
        said = _AnswerScorer(name, Scorer(spec, journal=journal), journal).about(
            [a for *_, a in wanted]
        )
    lines = [
        _scores_line(source, step, answers, [said(answer) for answer in answers])
        for source, step, answers in wanted
    ]
    head = [] if path.exists() and path.stat().st_size else [ScoresHeader(reward)]
    scores.append(*head, *(one for one in lines if one != known.get((one.source, one.step))))
    return len(wanted)


class _AnswerScorer:
    """Asks about answers, in batches, and keeps what was said of each."""

    def __init__(self, name: str, scorer: Scorer, journal: Journal) -> None:
        self._scorer, self._journal, self._tell = scorer, journal, progress(name)
        self._said: dict[str, float | str] = {}

    def about(
        self, wanted: Sequence[Sequence[SampledAnswer]]
    ) -> Callable[[SampledAnswer], float | str]:
        """Ask; gives what was said of an answer: a number, or a kind of failure."""
        whole = [[one for one in answers if one.error is None] for answers in wanted]
        if self._scorer.compares_groups is not None:
            return self._compared(whole)
        unique = {_answer_key(answer): answer.sample for answers in whole for answer in answers}
        keys = list(unique)
        for start in range(0, len(keys), _BATCH):
            part = keys[start : start + _BATCH]
            self._ask(part, [unique[key] for key in part], part)
            self._tell("scoring", start + len(part), len(keys))
        return lambda answer: answer.error or self._said[_answer_key(answer)]

    def _compared(
        self, wanted: Sequence[Sequence[SampledAnswer]]
    ) -> Callable[[SampledAnswer], float | str]:
        for done, answers in enumerate(wanted, start=1):
            keys = [str(id(answer.sample)) for answer in answers]
            groups = [answer.sample.prompt or "" for answer in answers]
            self._ask(keys, [answer.sample for answer in answers], groups)
            self._tell("scoring", done, len(wanted))
        return lambda answer: answer.error or self._said[str(id(answer.sample))]

    def _ask(self, keys: Sequence[str], samples: Sequence[Sample], groups: Sequence[str]) -> None:
        placed = [
            Sample(place, place, one.prompt, one.response, one.messages, one.extra)
            for place, one in enumerate(samples)
        ]
        whole = self._scorer.compares_groups is not None
        scored = run_blocking(self._scorer.ascore(placed, groups, step=0, whole_groups=whole))
        for result in scored.results:
            self._said[keys[result.original_index]] = _score_or_kind(result)
        self._journal.flush()


class _PanelJournal(Journal):
    """A journal that also gives out what the judges of a panel said when each was asked alone."""

    def __init__(self, path: Path, spec_hash: str, members: Sequence[Journal]) -> None:
        super().__init__(path, spec_hash)
        self._members = members

    def take(self, sample: str, grader: str, draw: int) -> GraderResult | None:
        """As :meth:`Journal.take`; what the panel's own journal lacks is in its members'."""
        found = super().take(sample, grader, draw)
        for member in self._members:
            if found is not None:
                break
            found = member.take(sample, grader, draw)
        return found


def _load_reward(file: str, beside: str) -> tuple[RunFile, str]:
    """A scorer's run file, and the hash of its reward."""
    run = _load_run_file(file, beside)
    # Where the run starts its own judge its address is another one each time.
    return run, build_reward_spec(run, UNREACHABLE_URL if run.starts_mock else None).hash


def _journal_path(target: Path) -> Path:
    return target.with_suffix(".journal.jsonl")


def _answer_key(answer: SampledAnswer) -> str:
    return sample_key(answer.sample.fields()) or str(id(answer.sample))


def _score_or_kind(result: RewardResult) -> float | str:
    if result.score is not None:
        return result.score
    return str(result.missing.kind if result.missing is not None else ErrorKind.BUG)


def _scores_line(
    source: str, step: int, of: Sequence[SampledAnswer], said: Sequence[float | str]
) -> ScoresLine:
    values = [None if isinstance(one, str) else float(one) for one in said]
    missing = Counter(one for one in said if isinstance(one, str))
    return ScoresLine(source, step, values, dict(missing), _answers_digest(of))


def _is_current(line: ScoresLine | None, answers: Sequence[SampledAnswer]) -> bool:
    """Whether ``line`` is about ``answers``, and asking again would change nothing."""
    if line is None or line.answers != _answers_digest(answers):
        return False
    return not PASSING_KINDS.intersection(line.missing)


def _answers_digest(answers: Sequence[SampledAnswer]) -> str:
    said = [(one.seed, one.error, one.row["messages"], one.sample.extra) for one in answers]
    return sample_key({"answers": said}) or ""


_GENERATION_BATCH = 512
"""Answers that are generated together."""


def train_study_judge(name: str, file: str, beside: str, folder: str) -> str:
    """Train the judge or policy of the training file ``file`` into ``folder``; its digest.

    ``beside``: the folder that the file's relative paths start from, here and below.
    """
    if not (Path(folder) / "summary.json").exists():
        data = load_toml(Path(file))
        judge = JudgeFile.from_dict(data, where=file, folder=Path(beside), environ={})
        run_judge(JudgeJob(judge, Path(file), Path(folder), on_progress=progress(name)))
    return weights_digest(Path(folder))


def make_first_policy(name: str, file: str, beside: str, folder: str) -> str:
    """Make the policy that the run file ``file`` begins with, in ``folder``; its digest."""
    load_libraries()
    run, target = _load_run_file(file, beside), Path(folder)
    if not target.is_dir():
        tell, total = progress(name), run.training.warm_start_iterations
        with TemporaryDirectory() as scratch:
            model, tokenizer, _ = build_first_policy(
                run, scratch, lambda step: tell("warm start", step, total)
            )
        save_policy(model, tokenizer, target)
    return weights_digest(target)


def train_arm(name: str, file: str, beside: str, folder: str, policy: str) -> str:
    """Train the run file ``file`` into ``folder``; the digest of the policy that it began with.

    Raises :class:`~adjudge.errors.RunFolderError` where that is not the one in ``policy``.
    """
    run = _load_run_file(file, beside)
    if not (Path(folder) / "summary.json").exists():
        train_run(TrainingJob(run, Path(file), Path(folder), on_progress=progress(name)))
    began = weights_digest(Path(folder) / "checkpoints" / "checkpoint-0")
    if began != weights_digest(Path(policy)):
        raise RunFolderError(
            f"{folder}: began with another policy than {policy}, so it cannot be compared with the "
            "others. Delete the folder to train it again."
        )
    return began


def sample_answers(
    name: str, file: str, beside: str, target: str, prompts: int, answers: int
) -> int:
    """Draw ``answers`` answers to each of the first ``prompts`` held-out prompts of ``file``.

    From the policy that the run begins with, before any update; written to ``target`` as rows like
    those of ``evaluation_rollouts.jsonl``. How many there are.
    """
    load_libraries()
    run = _load_run_file(file, beside)
    nobody = RewardSpec.from_dict({"graders": [{"name": "none", "type": "length"}]})
    player = LocalPlayer.for_run(run, *build_first_policy(run, "", lambda _: None)[:2])
    task, tell = build_task(run, nobody), progress(name)
    seeds = run.evaluation.held_out[:prompts]
    rows: list[dict[str, Any]] = []
    wanted = [seed for seed in seeds for _ in range(answers)]
    for start in range(0, len(wanted), _GENERATION_BATCH):
        player.reseed(f"best of n {start}")
        part = wanted[start : start + _GENERATION_BATCH]
        found = evaluate_policy(task, part, player, None, most=_GENERATION_BATCH)
        rows += [
            {
                "step": 0,
                "seed": one.seed,
                "messages": one.episode.messages,
                "columns": one.episode.columns,
                "error": None if one.error is None else str(one.error.kind),
            }
            for one in found
        ]
        tell("sampling", len(rows), len(wanted))
    JsonlLog(Path(target)).rewrite(rows)
    return len(rows)


def weights_digest(folder: Path) -> str:
    """The hash of a saved policy's weights by name, whatever else its files hold."""
    from safetensors import safe_open  # noqa: PLC0415  (with torch)

    found = sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as weights:
            for name in sorted(weights.keys()):
                tensor = weights.get_tensor(name)
                found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.contiguous().view(-1).float().numpy().tobytes())
    return found.hexdigest()


def _load_run_file(file: str, beside: str) -> RunFile:
    return resolve_run_file(load_toml(Path(file)), where=file, folder=Path(beside))
